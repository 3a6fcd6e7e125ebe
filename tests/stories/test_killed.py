"""Stories once more, with a controller that dies at one boundary of its effects.

An eighth of the stories is told on a day, and the boundary follows the day of the year, so that they all come in turn.
`make soak` tries all of them, and tells the stories that stop work twice more: the controller dies while the
controller-manager stands still from the first stop on, and nothing dies and the controller-manager stands still from
the boundary on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.kits.killed_stories import MORTAL, STOPPING, STORIES, play
from tests.kits.standing import WORST, Standing

SEED = int(os.environ.get("AUTOPILOT_KILL_SEED") or datetime.now(UTC).timetuple().tm_yday)
TODAY = MORTAL[SEED % 8 :: 8]

MORE = 1.2
"""STORIES states the least number of boundaries. Where a story has fewer than are tried, nothing dies in it."""
APART = Standing(590.0, 20.0)
"""Starts without pods are given up every two minutes: the controller-manager goes on between two of these times."""
WAYS: dict[str, Standing | None] = {"plain": None, "late": WORST, "stands": APART}
EVERY = [
    pytest.param(name, way, marks=[pytest.mark.soak, pytest.mark.seeds(int(MORE * STORIES[name].boundaries))])
    for name in MORTAL
    for way in (WAYS if name in STOPPING else ["plain"])
]


@pytest.mark.parametrize("name", TODAY)
def test_the_next_controller_finishes_the_story(name: str, tmp_path: Path, require_tool: Callable[[str], str]) -> None:
    """Nothing is lost, nothing is done twice, and what the story states holds."""
    at = 1 + SEED // 8 % STORIES[name].boundaries
    played = play(name, at, tmp_path, require_tool)
    again = f"AUTOPILOT_KILL_SEED={SEED} .venv/bin/python -m pytest tests/stories/test_killed.py -k {name}"
    died = f"{name}, boundary {at}: {played.died or 'it is not reached'}"
    assert not played.problems, f"{died}: {played.problems}; repeat it with: {again}"
    assert played.died, f"{died}; correct STORIES"


@pytest.mark.parametrize(("name", "way"), EVERY)
def test_a_story_holds_at_any_boundary(
    name: str, way: str, soak_seed: int, tmp_path: Path, require_tool: Callable[[str], str]
) -> None:
    """Whichever it is."""
    played = play(name, soak_seed + 1, tmp_path, require_tool, WAYS[way], stands=way == "stands")
    assert not played.problems, played.died
