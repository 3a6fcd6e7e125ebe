"""Show the controller, its levers and the watchdog objects that say anything, 100 at a time, beside honest work.

    python scripts/soak_objects.py [--objects 100000] [--first 0]

A batch beside which a decision or a write differs is halved until the object is found. `make soak` does it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.hostile import objects, written  # the checkout first, not an installed copy

BATCH = 100


def main(arguments: Sequence[str] | None = None) -> int:
    """Every object; 1 where one changes a decision on honest work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=100_000, help="number of objects (default 100000)")
    parser.add_argument("--first", type=int, default=0, help="number of the first one (default 0)")
    given = parser.parse_args(arguments)
    wrong = 0
    for at in range(given.first, given.first + given.objects, BATCH):
        numbers = range(at, at + BATCH)
        for text in (*objects.differing(numbers), *written.differing(numbers)):
            wrong += 1
            print(text, flush=True)
    print(f"{given.objects:,} objects: {wrong} change decisions on others")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
