"""What the decision reads and what it returns: the snapshot, the records, memory, policy, forecasts and the ports.

These modules hold types, units, codes and their limits. They compute nothing that a decision depends on and import
nothing else of the core.
"""
