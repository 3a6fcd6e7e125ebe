"""Charts of drift: silent on noise, loud on a shift or broken promises, and the ladder up and down."""

from __future__ import annotations

import numpy as np

from models.drift import DWELL, LAST, SETTLED, Drift, Rung


def noise(count: int, series: int, seed: int, shift: float = 0.0) -> np.ndarray:
    """Standard normal residuals [outcomes, series]."""
    return np.random.default_rng(seed).normal(size=(count, series)) + shift


def fed(drift: Drift, residuals: np.ndarray, missed: np.ndarray | None = None) -> np.ndarray:
    """Rungs after each outcome. Shape [outcomes, series]."""
    rows = np.arange(residuals.shape[1])
    rungs = []
    for at, row in enumerate(residuals):
        drift.learn(rows, row, (row > 1.2816) if missed is None else missed[at])
        rungs.append(drift.rung)
    return np.array(rungs)


def test_on_noise_nothing_is_said_to_drift() -> None:
    """Of a hundred series with 1,500 residuals each, few ever raise an alarm and none is distrusted."""
    rungs = fed(Drift(100), noise(1500, 100, 1))
    assert (rungs.max(axis=0) > Rung.STEADY).mean() <= 0.1
    assert (rungs < Rung.FLOOR).all()


def test_a_shift_of_one_standard_deviation_is_seen_soon() -> None:
    """Half of the series within 25 residuals; all are distrusted at last, and a new fit is wanted."""
    drift = Drift(100)
    fed(drift, noise(500, 100, 1))
    assert not drift.retrain
    rungs = fed(drift, noise(150, 100, 2, shift=1.0))
    first = np.argmax(rungs > Rung.STEADY, axis=0)
    assert np.median(first) <= 25
    assert drift.drifting.all()
    assert drift.retrain


def test_broken_promises_are_seen_though_residuals_are_calm() -> None:
    """Three in ten missed where one was promised."""
    drift = Drift(20)
    residuals = noise(LAST + 100, 20, 1)
    missed = np.random.default_rng(2).random(residuals.shape) < 0.3
    assert (fed(drift, residuals, missed)[-1] >= Rung.FLOOR).all()


def test_the_ladder_goes_one_rung_at_a_time() -> None:
    """No rung is skipped, and each is held for its dwell time."""
    drift = Drift(1)
    fed(drift, noise(500, 1, 1))
    rungs = fed(drift, noise(120, 1, 2, shift=3.0))[:, 0]
    changes = np.flatnonzero(np.diff(rungs))
    assert (np.diff(rungs) <= 1).all()
    assert rungs[-1] == Rung.RETRAIN
    assert (np.diff(changes) >= DWELL).all()


def test_it_comes_down_when_the_world_stays_as_it_is() -> None:
    """The new level becomes the usual one; rung by rung the alarm is taken back."""
    drift = Drift(5)
    fed(drift, noise(300, 5, 1))
    fed(drift, noise(100, 5, 2, shift=2.0))
    rungs = fed(drift, noise(1500, 5, 3, shift=2.0), np.zeros((1500, 5), bool))
    assert (rungs[-1] == Rung.STEADY).all()
    assert SETTLED > DWELL


def test_one_outlier_and_unknown_residuals_are_no_drift() -> None:
    """A residual of ten thousand is clipped; NaN is left out; a forgotten series starts anew."""
    drift = Drift(2)
    fed(drift, noise(200, 2, 1))
    residuals = noise(60, 2, 2)
    residuals[5, 0], residuals[6] = 1e4, np.nan
    assert (fed(drift, residuals, np.zeros((60, 2), bool)) == Rung.STEADY).all()
    fed(drift, noise(100, 2, 3, shift=3.0))
    assert drift.drifting.all()
    drift.forget([0])
    assert drift.rung.tolist()[0] == Rung.STEADY
    drift.grow(1)
    assert len(drift.rung) == 3
