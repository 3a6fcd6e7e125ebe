"""Measured use: what workloads, and the groups that they belong to, do with the GPUs that they hold.

It reads a snapshot and joins telemetry with placements. It plans nothing, keeps nothing between two ticks, and never
replaces a missing value by a guess without marking it as estimated.
"""
