"""Stories once more, with a controller that dies at one boundary of its effects.

An eighth of the stories is told on a day, and the boundary follows the day of the year, so that they all come in turn.
`make soak` tries all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.kits.killed_stories import MORTAL, STORIES, play

SEED = int(os.environ.get("AUTOPILOT_KILL_SEED") or datetime.now(UTC).timetuple().tm_yday)
TODAY = MORTAL[SEED % 8 :: 8]


@pytest.mark.parametrize("name", TODAY)
def test_the_next_controller_finishes_the_story(name: str, tmp_path: Path, require_tool: Callable[[str], str]) -> None:
    """Nothing is lost, nothing is done twice, and what the story states holds."""
    at = 1 + SEED // 8 % STORIES[name].boundaries
    played = play(name, at, tmp_path, require_tool)
    again = f"AUTOPILOT_KILL_SEED={SEED} .venv/bin/python -m pytest tests/stories/test_killed.py -k {name}"
    died = f"{name}, boundary {at}: {played.died or 'it is not reached'}"
    assert not played.problems, f"{died}: {played.problems}; repeat it with: {again}"
    assert played.died, f"{died}; count them anew with: python scripts/soak_kills.py --seed 0, and see STORIES"
