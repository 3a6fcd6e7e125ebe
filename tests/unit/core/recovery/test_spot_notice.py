"""Spot notices: who is saved, in which order, when it must begin, and who cannot be."""

from __future__ import annotations

from itertools import permutations
from math import inf

import numpy as np
import pytest

from autopilot.core.recovery.spot_notice import AtRisk, plan_saves


def test_the_most_work_per_byte_is_written_first() -> None:
    """One writer: 100 GPU-s for 10 s of writing come before 150 for 30 s, whatever the sums."""
    plan = plan_saves([AtRisk(0, 120.0, 30.0, 150.0), AtRisk(1, 120.0, 10.0, 100.0)], [0.0])
    assert [(turn.row, turn.start_s, turn.done_s) for turn in plan.turns] == [(1, 0.0, 10.0), (0, 10.0, 40.0)]
    assert (plan.lost, plan.slack_s) == ((), 80.0)


def test_what_does_not_fit_is_left_out_and_named() -> None:
    """Ninety seconds of writer, three writes of 40 s: the least worth is lost, not the last that was asked."""
    work = [AtRisk(0, 90.0, 40.0, 10.0), AtRisk(1, 90.0, 40.0, 30.0), AtRisk(2, 90.0, 40.0, 20.0)]
    plan = plan_saves(work, [0.0])
    assert [turn.row for turn in plan.turns] == [1, 2]
    assert [each.row for each in plan.lost] == [0]
    assert plan.slack_s == 10.0


def test_a_writer_that_is_busy_begins_later() -> None:
    """Who writes already keeps its writer; a second one halves the wait."""
    work = [AtRisk(0, 60.0, 20.0, 1.0)]
    assert plan_saves(work, [50.0]).lost == tuple(work)
    (turn,) = plan_saves(work, [50.0, 30.0]).turns
    assert (turn.start_s, turn.done_s) == (30.0, 50.0)


def test_without_a_known_bandwidth_all_write_at_once() -> None:
    """Without planned turns no gang waits for one; its own time must still fit."""
    plan = plan_saves([AtRisk(0, 60.0, 50.0, 1.0), AtRisk(1, 60.0, 61.0, 9.0), AtRisk(2, 60.0, 0.0, 0.0)])
    assert {turn.row: turn.start_s for turn in plan.turns} == {0: 0.0, 2: 0.0}
    assert ([each.row for each in plan.lost], plan.slack_s) == ([1], 10.0)


def test_who_makes_no_checkpoint_is_lost_from_the_first() -> None:
    """Regardless of the time left; a gang without anything to save can wait indefinitely."""
    plan = plan_saves([AtRisk(0, 9e9, 1.0, 5.0, able=False)], [0.0])
    assert (plan.turns, [each.row for each in plan.lost], plan.slack_s) == ((), [0], inf)


@pytest.mark.parametrize("seed", range(20))
def test_with_one_writer_it_saves_nearly_what_the_best_order_saves(seed: int) -> None:
    """Against every order of up to six writes: by density and then whatever still fits is at least half of the
    optimum.
    """
    rng = np.random.default_rng(seed)
    work = [AtRisk(row, 100.0, float(rng.integers(5, 60)), float(rng.integers(1, 100))) for row in range(6)]
    plan = plan_saves(work, [0.0])
    saved = sum(work[turn.row].saved_gpu_s for turn in plan.turns)
    best = 0.0
    for order in permutations(work):
        time_s = total = 0.0
        for each in order:
            if time_s + each.write_s <= each.left_s:
                time_s += each.write_s
                total += each.saved_gpu_s
        best = max(best, total)
    assert saved >= 0.5 * best
    assert all(turn.done_s <= 100.0 for turn in plan.turns)
