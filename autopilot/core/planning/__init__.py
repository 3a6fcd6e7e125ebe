"""The working set of one tick, shared by all actions and guards.

It holds the inputs, the plan made so far, and helpers on both for the actions. Actions write it through methods; guards
only read it.
"""
