"""Steps per second of work, from the heartbeats of its pods."""

from __future__ import annotations

from math import nan

import pytest

from autopilot.contract.annotations import HEARTBEAT, PAUSED, STEP
from collectors.kubernetes.pace import Beats, rate_of, with_beat
from tests.kits.kube_objects import node, pod
from tests.unit.collectors.kubernetes.view import NOW_S, Seen


def minutes(*steps: float | None, every_s: float = 60.0) -> Beats:
    """A heartbeat each minute with these steps; None: it pauses."""
    beats: Beats = ()
    for at, step in enumerate(steps):
        beats = with_beat(beats, at * every_s, step)
    return beats


@pytest.mark.parametrize(
    ("beats", "rate"),
    [
        (minutes(0, 60, 120, 180, 240, 300), 1.0),
        (minutes(0, 60, 120, 180, 240), nan),  # four minutes are too few
        (minutes(*range(0, 6000, 600), 6000, 6000, 6000, 6000, 6000, 6000), 0.0),  # it stands, and says so
        (minutes(0, 60, 120, 180, None, 240, 300), nan),  # a pause is no pace
        (minutes(900, 960, 0, 60, 120, 180, 240, 300), 1.0),  # it began again
        (minutes(0, 60, 120, 180, 240, 300, every_s=301.0), nan),  # silent for too long in between
        (minutes(*range(301), every_s=1.0), 1.0),  # faster than the helper writes
    ],
)
def test_a_pace_is_that_of_five_minutes_without_a_gap(beats: Beats, rate: float) -> None:
    """Else it is unknown, never 0. Few heartbeats are kept."""
    assert rate_of(beats) == pytest.approx(rate, nan_ok=True)
    assert len(beats) <= 32


def test_the_slowest_pod_that_reports_steps_counts() -> None:
    """A pod without steps says nothing; one that pauses, or whose heartbeat is old, makes the pace unknown."""
    seen = Seen(node("n", 4))
    found = []
    for minute in range(9):
        seen.now_s = NOW_S + 60.0 * minute
        beat = {HEARTBEAT: f"{seen.now_s}"}
        pods = [
            pod(f"p{at}", 1, node="n", labels={"pod-group-name": "g"}, annotations={**beat, **notes})
            for at, notes in enumerate(({STEP: f"{120 * minute}"}, {STEP: f"{118 * minute}"}, {}))
        ]
        work = seen.batch(*(pods if minute < 6 else ())).work
        assert work is not None
        found.append(float(work.workloads.steps_per_s[0]))
    seen.now_s += 300.0
    work = seen.batch().work
    assert work is not None
    found.append(float(work.workloads.steps_per_s[0]))
    assert found == pytest.approx([nan] * 5 + [1.97] * 4 + [nan], nan_ok=True)


def test_a_paused_program_has_no_pace() -> None:
    """Nor one with a step that is no number."""
    for notes in ({STEP: "7", PAUSED: "true"}, {STEP: "seven"}):
        work = Seen(node("n"), pod("p", 1, node="n", annotations={HEARTBEAT: f"{NOW_S}", **notes})).batch().work
        assert work is not None
        assert work.workloads.steps_per_s[0] != work.workloads.steps_per_s[0]
