"""From the batches of collectors to one trusted observation.

Intake joins rows, contains bad objects, judges whether lists and clocks can be trusted, and orders the commands of
people. It makes no decision about a workload.
"""
