"""Starting work: what fits starts in the order of service, and gaps before reservations are filled.

The room of each capability has the same kinds of files. An action is a file with its name, and so is a verb that only
this capability uses. `follow*.py` keeps its part of memory, `facts.py` has its derived values, and `*guard.py` its
guard. The tables of all of them are in `capabilities/`.
"""
