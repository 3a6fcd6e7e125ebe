"""The working set of one tick, which every action and guard shares.

It holds the inputs, the plan made so far and the helpers that actions use on them. Actions write it through methods;
guards only read it.
"""
