"""Slurm's scheduler as a baseline: main pass, backfill pass, priorities, limits, preemption and reservations.

Written from Slurm's documentation (version 22.05) and from the acts of a real controller with scripted workloads.
Times are whole seconds, as in Slurm.
"""
