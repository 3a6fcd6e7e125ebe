"""The tables: actions, guards and verbs, and what each capability remembers (`memory.py`). One row each."""
