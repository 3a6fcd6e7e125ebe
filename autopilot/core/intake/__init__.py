"""From the batches of collectors to one observation that can be trusted.

Intake joins rows, contains bad objects, judges how far lists and clocks are to be believed, and orders the commands
of people. It takes no decision about a workload.
"""
