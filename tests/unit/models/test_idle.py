"""Services that sleep at zero: the chance to wake, by how long they usually sleep."""

from __future__ import annotations

import numpy as np
import pytest

from models.demand import Ask
from models.idle import IdleTimes, _idle_lengths

PEAK = Ask(60.0, (1, 5, 20), peak=True)


def clockwork(cycles: int = 40) -> np.ndarray:
    """Awake for one step with 7 requests, then asleep for nine."""
    return np.tile([7.0] + [0.0] * 9, cycles)[None, :]


def test_idle_times_are_those_between_two_awake_steps() -> None:
    """A sleep that had begun before the row, has not ended, or is torn by an unknown value does not count."""
    row = np.array([0.0, 0.0, 3.0, 0.0, 0.0, 2.0, 0.0, np.nan, 0.0, 1.0, 0.0, 4.0, 0.0])
    assert _idle_lengths(row).tolist() == [2, 1]


def test_a_clockwork_is_expected_when_it_is_due_and_not_before() -> None:
    """Just fallen asleep: nothing within five minutes at 0.9; due in one: seven requests; within twenty: always."""
    model = IdleTimes()
    model.fit(clockwork(), 400, PEAK)
    just, due = clockwork()[:, :302], clockwork()[:, :310]
    asleep = model.predict(just, 301, PEAK)[0, 0]
    waking = model.predict(due, 309, PEAK)[0, 0]
    assert asleep[0, 1] == 0.0
    assert asleep[1, 1] == 0.0
    assert asleep[2, 1] == 7.0
    assert waking[0, 1] == 7.0


def test_it_speaks_only_for_series_that_sleep() -> None:
    """Awake now, never asleep, too seldom asleep, or asked for a value: NaN."""
    model = IdleTimes()
    values = np.vstack([clockwork()[0], np.full(400, 5.0)])
    model.fit(values, 400, PEAK)
    found = model.predict(values[:, :391], 390, PEAK)
    assert np.isnan(found).all()
    assert np.isnan(model.predict(values, 395, Ask(60.0, (1,)))).all()
    young = IdleTimes()
    young.fit(clockwork(), 60, PEAK)
    assert np.isnan(young.predict(clockwork(), 395, PEAK)).all()


@pytest.mark.parametrize("asleep", [10, 390])
def test_beyond_all_that_was_seen_it_stays_unsure(asleep: int) -> None:
    """A sleep longer than every one before: the bound is neither certain waking nor certain sleep."""
    model = IdleTimes()
    values = np.hstack([clockwork(), np.zeros((1, asleep))])
    model.fit(values, 400, PEAK)
    found = model.predict(values, values.shape[1] - 1, PEAK)[0, 0]
    assert np.isfinite(found).all()
    assert (np.diff(found, axis=1) >= 0).all()
    assert found[2, 2] == 7.0
