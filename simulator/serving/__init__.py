"""The simulated cluster as a process of its own, behind one protocol: state, effects, changes, clock and metrics.

It runs without a controller inside and does not depend on one: jobs arrive, run and end whether or not a controller
answers. The protocol knows batches, instructions and outcomes, and judges nothing.
"""
