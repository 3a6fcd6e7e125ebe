"""New MIG geometries for the GPUs of a pool, for waiting and for expected work.

May import `hardware` and `model`. It knows no queue, no time and no guard, and it changes nothing: it returns a list of
changes, each with its gain and its price.
"""
