"""Idle work: the workloads on unused GPUs, their idle time, and the steps that follow.

The verdict is pure measurement. Its evidence over hours, the record of owners and the steps of the ladder are a bounded
part of memory. Nothing here takes a GPU: the actions propose each step.
"""
