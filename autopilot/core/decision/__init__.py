"""The decision itself: follow everything under way, plan the tick, and issue instructions.

`reconciler.reconcile` is the one entry point. It is pure: time, randomness and I/O arrive as arguments.
"""
