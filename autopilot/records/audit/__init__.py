"""The audit log: who did what, from where, on which state. Append-only, chained by hashes, sealed by signatures."""
