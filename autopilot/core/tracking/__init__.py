"""Tracking of earlier decisions: effects, pipelined starts, replicas of services, and hung gangs.

These modules compare memory with the present snapshot and update memory. They plan nothing new.
"""
