"""Capacity and quota that are held for work that cannot start yet.

Five kinds: a gang's own reservation, advance reservations, the fair-share hold, the quota hold, and room for expected
replicas. A hold limits what others may use; it never preempts. Above the guarantee of its queue the
guarantees of other queues take precedence.
"""
