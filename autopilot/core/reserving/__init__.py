"""Capacity and quota held for work that cannot start yet.

Four kinds: the reservation of a gang, advance reservations, the fair-share hold and the quota hold. (Room for expected
replicas is held in `replicas/`.) A hold limits the use by others; it never preempts. Above the guarantee of its queue
the guarantees of other queues take precedence.
"""
