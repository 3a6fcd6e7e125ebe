"""Cluster files: pools, queues and advance reservations, read with one clear message for each mistake."""
