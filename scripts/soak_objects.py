"""Show the controller objects that say anything, 100 a tick, beside honest work: `make soak` does it.

    python scripts/soak_objects.py [--objects 100000] [--first 0]

A batch beside which a decision differs is halved until the object is found.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.hostile.objects import differing  # the checkout first, not an installed copy

BATCH = 100


def main(arguments: Sequence[str] | None = None) -> int:
    """Every object; 1 where one changes a decision on honest work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=100_000, help="number of objects (default 100000)")
    parser.add_argument("--first", type=int, default=0, help="number of the first one (default 0)")
    given = parser.parse_args(arguments)
    wrong = 0
    for at in range(given.first, given.first + given.objects, BATCH):
        for text in differing(range(at, at + BATCH)):
            wrong += 1
            print(text, flush=True)
    print(f"{given.objects:,} objects: {wrong} change decisions on others")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
