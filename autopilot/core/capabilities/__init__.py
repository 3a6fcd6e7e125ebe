"""The tables: actions, guards and verbs, and the memory of each capability (`memory.py`). One row each."""
