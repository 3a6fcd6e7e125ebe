"""What is kept of decisions: the journal, the memory of the controller, the audit log, and the replay of a journal.

Journal, memory and audit log do not import each other. `variants` decodes the records of all; replay reads a journal.
"""
