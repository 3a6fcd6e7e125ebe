"""Decision conformance: cases of today's schedulers, put to the product's own planner.

`python -m tests.conformance FILE...` runs files of the format `gpu-decision-conformance/1`.
"""
