"""Kill the controller at every boundary of every story: `make soak` does it, and goes on where it was stopped.

    python scripts/soak_kills.py [--workers 2] [--minutes 30] [--seed N] [--fresh]

Seed N is one boundary of one story (tests/kits/killed_stories.py): all stories at their first boundary, then all at
their second, and so on. A boundary beyond the last one of a story is none, and costs nothing where it is known. The
stories that stop work are told twice more: the controller dies while the controller-manager stands still from the first
stop on, and nothing dies and the controller-manager stands still from the boundary on.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.soaking import Found, Soak, parser, soak  # the checkout first, not an installed copy
from tests.kits.killed_stories import MORTAL, STOPPING, STORIES, Played, play
from tests.kits.standing import WORST, Standing

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
    "tests/kits/standing.py",
    "tests/hostile/api_wire.py",
    "tests/stories",
)
PLAIN, LATE, STANDS = "", "late: ", "stands: "
PLAYS = [(way, name) for way in (PLAIN, LATE, STANDS) for name in MORTAL if way == PLAIN or name in STOPPING]
"""Ways and stories."""
APART = Standing(590.0, 20.0)
"""Starts without pods are given up every two minutes: the controller-manager goes on between two of these times."""


def run_seed(number: int) -> Found:
    """One boundary of one story."""
    (way, name), at = PLAYS[number % len(PLAYS)], number // len(PLAYS) + 1
    story = f"{way}{name}"
    if at > count(way, name):
        return {"story": story, "at": 0, "died": "", "violation": ""}
    played = told(way, name, at)
    violation = f"{story}, boundary {at} ({played.died}): {'; '.join(played.problems)}" if played.problems else ""
    return {"story": story, "at": at, "died": played.died, "violation": violation}


COUNTS: dict[tuple[str, str], int] = {}


def count(way: str, name: str) -> int:
    """The boundaries of a story, counted once in a process."""
    if (way, name) not in COUNTS:
        COUNTS[way, name] = told(way, name, 0).boundaries
    return COUNTS[way, name]


def told(way: str, name: str, at: int) -> Played:
    """One story."""
    standing = {PLAIN: None, LATE: WORST, STANDS: APART}[way]
    with tempfile.TemporaryDirectory() as folder:
        return play(name, at, Path(folder), standing=standing, stands=way == STANDS)


def words(found: Found) -> str:
    """What was tried."""
    if not found["at"]:
        return f"{found['story']} has no such boundary"
    return f"{found['story']} at boundary {found['at']}, {found['died'] or 'which it did not reach'}"


def summary(kept: dict[str, Found]) -> str:
    """How many boundaries."""
    reached = [found for found in kept.values() if found["died"]]
    stories = {found["story"] for found in reached}
    return f"{len(reached)} boundaries in {len(stories)} stories"


if __name__ == "__main__":
    sys.exit(
        soak(
            Soak("kill-soak", SOURCES, MOST * len(PLAYS), run_seed, words, summary), parser(__doc__ or "").parse_args()
        )
    )
