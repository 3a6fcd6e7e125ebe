"""Kill the controller at every boundary of every story: `make soak` does it, and goes on where it was stopped.

    python scripts/soak_kills.py [--workers 2] [--minutes 30] [--seed N] [--fresh]

Seed N is one boundary of one story (tests/kits/killed_stories.py): all stories at their first boundary, then all at
their second, and so on. A boundary beyond the last one of a story is none, and costs nothing where it is known.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.soaking import Found, Soak, parser, soak  # the checkout first, not an installed copy
from tests.kits.killed_stories import STORIES, play

MOST = 2 * max(each.boundaries for each in STORIES.values())
"""Boundaries that are tried of each story: more than any has."""
SOURCES = (
    "autopilot/core",
    "autopilot/controller.py",
    "autopilot/service/leading",
    "autopilot/playground",
    "actuators/kubernetes",
    "collectors/kubernetes",
    "apiserver",
    "benchmarks/playground_acting.py",
    "tests/kits/killing.py",
    "tests/kits/killed_stories.py",
    "tests/kits/acting_kit.py",
    "tests/kits/acting_story.py",
    "tests/kits/approving.py",
    "tests/kits/deciding_kit.py",
    "tests/kits/kueue_kit.py",
    "tests/kits/mig_kit.py",
    "tests/hostile/api_wire.py",
    "tests/stories",
)
NAMES = sorted(STORIES)


def run_seed(number: int) -> Found:
    """One boundary of one story."""
    name, at = NAMES[number % len(NAMES)], number // len(NAMES) + 1
    if at > count(name):
        return {"story": name, "at": 0, "died": "", "violation": ""}
    with tempfile.TemporaryDirectory() as folder:
        played = play(name, at, Path(folder))
    violation = f"{name}, boundary {at} ({played.died}): {'; '.join(played.problems)}" if played.problems else ""
    return {"story": name, "at": at, "died": played.died, "violation": violation}


COUNTS: dict[str, int] = {}


def count(name: str) -> int:
    """The boundaries of a story, counted once in a process."""
    if name not in COUNTS:
        with tempfile.TemporaryDirectory() as folder:
            COUNTS[name] = play(name, 0, Path(folder)).boundaries
    return COUNTS[name]


def words(found: Found) -> str:
    """What was tried."""
    if not found["at"]:
        return f"{found['story']} has no such boundary"
    return f"{found['story']} at boundary {found['at']}, {found['died'] or 'which it did not reach'}"


def summary(kept: dict[str, Found]) -> str:
    """How many deaths."""
    deaths = [found for found in kept.values() if found["died"]]
    stories = {found["story"] for found in deaths}
    return f"{len(deaths)} deaths in {len(stories)} stories"


if __name__ == "__main__":
    sys.exit(
        soak(
            Soak("kill-soak", SOURCES, MOST * len(NAMES), run_seed, words, summary), parser(__doc__ or "").parse_args()
        )
    )
