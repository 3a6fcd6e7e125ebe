"""The detector of neighbours that slow down replicas: what it finds, and when it abstains."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from models.interference_watch import REASONS, Watch

CAME = 80
"""Minute of the arrival at row 0; the rows are the replicas of one service."""
Levels = np.ndarray
Act = Callable[[Watch, int], None]


def watched(
    change: Callable[[Levels, Levels], None], *, rows: int = 4, act: Act | None = None, minutes: int = CAME + 30
) -> Watch:
    """A watch on four replicas at 1 request/s. `change` edits levels and requests [rows, minutes]."""
    rng = np.random.default_rng(5)
    level = 0.5 + rng.normal(0.0, 0.08, (rows, minutes)) + 0.05 * np.sin(np.arange(minutes) / 20.0)
    requests = np.full((rows, minutes), 60.0)
    change(level, requests)
    watch = Watch()
    of = np.array([watch.add(7) for _ in range(rows)])
    for at in range(minutes):
        if at == CAME:
            watch.arrive(0, "neighbour", at)
        if act is not None:
            act(watch, at)
        watch.push(at, of, level[:, at], requests[:, at])
        watch.judge()
    return watch


def slower(level: Levels, _requests: Levels) -> None:
    """Row 0 becomes 1.5 times as slow when the neighbour comes."""
    level[0, CAME:] += math.log(1.5)


def test_a_replica_that_became_slower_than_its_siblings_on_the_arrival_names_the_neighbour() -> None:
    """With its rise, and the rise of the last minutes: none while the neighbour pauses."""
    (found,) = watched(slower).open.values()
    assert (found.suspect, found.step.against) == ("neighbour", "siblings")
    assert math.exp(found.step.rise) == pytest.approx(1.5, abs=0.1)
    assert found.confidence > 0.9
    assert math.exp(found.now) == pytest.approx(1.5, abs=0.2)
    assert found.found_minute - CAME <= 20

    def paused(level: Levels, requests: Levels) -> None:
        slower(level, requests)
        level[0, CAME + 20 :] -= math.log(1.5)

    (found,) = watched(paused).open.values()
    assert math.exp(found.now) == pytest.approx(1.0, abs=0.15)
    left = watched(slower, act=lambda watch, at: watch.leave(0, "neighbour", at) if at == CAME + 28 else None)
    assert not left.open


def test_without_siblings_the_load_of_the_replica_explains_what_it_can() -> None:
    """A rise with its own requests is the load; one without is the neighbour's."""

    def busier(level: Levels, requests: Levels) -> None:
        busy = 0.4 + 0.35 * np.sin(np.arange(level.shape[1]) / 9.0)
        busy[CAME - 5 :] = 0.75
        requests[0], level[0] = 100.0 * busy, level[0] - np.log1p(-busy)

    assert not watched(busier, rows=1).open
    (found,) = watched(slower, rows=1).open.values()
    assert found.step.against == "load"


def test_two_that_came_together_are_both_suspected_with_half_the_confidence() -> None:
    """They cannot be told apart yet; one that came well before the step is not suspected."""

    def more(watch: Watch, at: int) -> None:
        if at == CAME + 1:
            watch.arrive(0, "second", at)
        if at == CAME - 30:
            watch.arrive(0, "earlier", at)

    found = {each.suspect: each.confidence for each in watched(slower, act=more).open.values()}
    assert found.keys() == {"neighbour", "second"}
    assert max(found.values()) <= 0.5


def _early(level: Levels, _requests: Levels) -> None:
    level[0, CAME - 12 :] += math.log(1.5)


def _shared(level: Levels, _requests: Levels) -> None:
    level[:, CAME:] += math.log(1.5)


def _dark(level: Levels, requests: Levels) -> None:
    level[:, CAME + 2 : CAME + 28], requests[:, CAME + 2 : CAME + 28] = math.nan, math.nan


def _few(level: Levels, requests: Levels) -> None:
    slower(level, requests)
    requests[0] = 4.0


def _rolling(level: Levels, _requests: Levels) -> None:
    for row in range(4):
        level[row, CAME - (0, 19, 19, 18)[row] :] += math.log(1.8)


def _apart(level: Levels, requests: Levels) -> None:
    slower(level, requests)
    level[1, CAME:] -= 0.6
    level[2, CAME:] += 0.6


def _renew(*rows: int) -> Act:
    def act(watch: Watch, at: int) -> None:
        for row in rows if at == CAME + 1 else ():
            watch.renew(row, at)

    return act


CASES: dict[str, tuple[Callable[[Levels, Levels], None], Act | None, str]] = {
    "a step that was there before": (_early, None, ""),
    "all replicas at once": (_shared, None, ""),
    "no telemetry": (_dark, None, "blackout"),
    "too few requests": (_few, None, "sparse"),
    "a release without restarts, one replica after another": (_rolling, None, "release"),
    "a release in the same minute": (slower, _renew(0, 1, 2, 3), "release"),
    "the replica started again, or has a new name": (slower, _renew(0), "renewed"),
    "siblings that change apart": (_apart, None, "siblings-disagree"),
    "buckets that changed or were lost": (
        slower,
        lambda watch, at: watch.unlike(0, at) if at == CAME + 3 else None,
        "buckets",
    ),
    "the clock jumped": (
        slower,
        lambda watch, at: watch.clear(at) if at == CAME - 3 else None,
        "clock",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_abstains_with_a_reason_where_it_cannot_tell(case: str) -> None:
    """No finding, and the reason while the arrival is watched; "": it looked, and the arrival did nothing."""
    change, act, reason = CASES[case]
    reasons = set[str]()

    def noting(watch: Watch, at: int) -> None:
        if act is not None:
            act(watch, at)
        reasons.update(watch.unjudged.values())

    assert not watched(change, act=noting).open
    assert reasons - {""} == ({reason} if reason else set())
    assert reasons <= {"", *REASONS}


def test_minutes_that_come_twice_or_late_change_nothing_and_a_dropped_row_is_used_again() -> None:
    """The clock of a source may jump back; a replica may be gone."""
    watch = watched(slower)
    before = watch.level.copy()
    watch.push(watch.minute, np.array([0]), np.array([9.0]), np.array([9.0]))
    assert np.array_equal(watch.level, before, equal_nan=True)
    watch.drop(0)
    assert not watch.open
    assert np.isnan(watch.level[0]).all()
    assert watch.add(8) == 0
