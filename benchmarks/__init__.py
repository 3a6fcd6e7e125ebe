"""Benchmarks: one file each; `python -m benchmarks` prints their tables."""
