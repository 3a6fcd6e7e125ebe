"""The input and output types of a decision: snapshot, records, memory, policy, forecasts and ports.

Theory of operation. A decision is a function of four values: the `Observation` (records.py) with its snapshot
(snapshot.py: one table of columns for each kind of object, rows named by number), the `Policy` (policy*.py), the
`ControllerMemory` (memory.py) and the forecasts inside the observation. Its results are records: proposals, verdicts,
refusals, instructions, and the next memory. Every number has its unit in its name, every missing number is NaN, every
reason is a `Code` with one meaning (codes.py), and every object is known by its uid and revision (identity.py): names
and row numbers change. ports.py states the interfaces of the shell around the decision.

These modules define types, units, codes and their limits. They make no decisions and import no other package of the
core.
"""
