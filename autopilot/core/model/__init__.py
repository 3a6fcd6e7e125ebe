"""The input and output types of a decision: snapshot, records, memory, policy, forecasts and ports.

These modules define types, units, codes and their limits. They make no decisions and import no other package of the
core.
"""
