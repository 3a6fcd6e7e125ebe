"""Which GPUs of a pool get another MIG geometry, and how, for what waits and for what is expected.

May import `hardware` and `model`. It knows no queue, no time and no guard, and it changes nothing: it returns a list of
changes, each with its gain and its price.
"""
