"""Starting work: gangs with a fit start in the order of service, and gaps before reservations are filled.

The room of each capability has the same kinds of files. An action is a file with its name, and so is a verb of this
capability alone. `follow*.py` keeps its part of memory, `facts.py` has its derived values, and `*guard.py` its guard.
The tables of all of them are in `capabilities/`.
"""
