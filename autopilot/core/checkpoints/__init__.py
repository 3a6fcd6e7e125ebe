"""The cost of a stop, and the progress that can be saved in time.

The modules compute losses, turns at the checkpoint store, and the save plan for nodes that the cloud reclaims. The
actions decide which work to stop.
"""
