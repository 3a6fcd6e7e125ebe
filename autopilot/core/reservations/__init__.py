"""Capacity and quota that are held for work that cannot start yet.

Four kinds: a gang's own reservation, advance reservations, the fair-share hold, and the quota hold. A hold limits what
others may use; it never preempts.
"""
