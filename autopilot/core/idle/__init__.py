"""Idle work: which workloads hold GPUs without using them, since when, and what follows.

The verdict is pure measurement. Its evidence over hours, the record of owners and the steps of the ladder are a bounded
part of memory. Nothing here takes a GPU: the actions propose each step.
"""
