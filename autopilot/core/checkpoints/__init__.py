"""What stopping work costs and what of it can be saved in time.

Losses, turns at the checkpoint store, and the plan for nodes that the cloud reclaims. The modules price and plan; the
actions decide whom to stop.
"""
