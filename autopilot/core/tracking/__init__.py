"""What earlier decisions set in motion, and what was learned since: effects, pipelined starts, replicas, hangs.

Tracking compares memory with the present snapshot. It may move memory forward, and it plans nothing new.
"""
