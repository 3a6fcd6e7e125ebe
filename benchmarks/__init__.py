"""Benchmarks: one file each; `python -m benchmarks` prints their tables."""

import os

from autopilot.cli import THREAD_POOLS

for _pool in THREAD_POOLS:
    os.environ.setdefault(_pool, "1")  # before numpy is loaded
