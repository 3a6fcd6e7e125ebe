"""Kueue as a source: its queues as our queue tree, and its Workloads as the state of its admitted work.

The objects arrive through the caches of `collectors.kubernetes`. Use is counted from Workloads and pods, because the
status of a ClusterQueue lags by about a second.
"""
