"""What makes a fit quick must not change what it learns: each part against the plain way to the same."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor

from autopilot.core.forecast import REQUESTS, TOKENS
from autopilot.core.snapshot import F64
from benchmarks import forecast_speed
from models import boosting, demand, selection
from models.boosting import Boosting
from models.conformal import conformal_quantile
from models.demand import Ask, outcomes, usual
from models.features import ahead, at_cells, common

ASK = Ask(600.0, (2, 5), peak=True)


def with_holes(series: int, steps: int, seed: int = 3) -> F64:
    """Demand of which a part was not measured."""
    rng = np.random.default_rng(seed)
    values = rng.gamma(2.0, 1.0, (series, steps))
    values[rng.random(values.shape) < 0.02] = np.nan
    values[0, 300:340] = np.nan
    return values


def test_features_of_single_cells_are_those_of_whole_columns() -> None:
    """Cells at the start, behind a hole and at the end, with a long past and with none."""
    values = with_holes(4, 700)
    scale = usual(values)
    whole = common(values, scale, 0, ASK)
    whole |= ahead(values, scale, whole["mean"], 0, 5, ASK)
    rows, origins = np.array([0, 0, 1, 2, 3, 0]), np.array([2, 345, 144, 143, 699, 450])
    cells = at_cells(values, scale, rows, origins, 5, ASK)
    assert cells.keys() == whole.keys()
    for name, found in cells.items():
        wanted = np.broadcast_to(whole[name], values.shape)[rows, origins]
        # exponential means of cells are run from 240 steps before
        assert found == pytest.approx(wanted, abs=1e-4, nan_ok=True), name


def test_rows_of_a_fit_are_usable_and_evenly_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every n-th usable cell, each with what came of it."""
    monkeypatch.setattr(boosting, "MOST_ROWS", 50)
    values = with_holes(4, 700)
    usable = boosting._usable(values, 144, 5, ASK)
    count = int(usable.sum())
    series, origins = boosting._spread_out(usable, count)
    places = np.flatnonzero(usable)[np.linspace(0, count - 1, 50).astype(int)]
    assert (series * usable.shape[1] + origins).tolist() == places.tolist()
    came = outcomes(values, 5, peak=True)[series, origins + 144]
    assert boosting._came(values, series, origins + 144, 5, ASK).tolist() == came.tolist()


def test_the_highest_ahead_is_that_of_each_window() -> None:
    """Widths that are a power of two and others; unknown where one of the window is."""
    values = with_holes(3, 90)
    for width in (1, 2, 7, 16):
        found = outcomes(values, width, peak=True)
        for origin in range(90 - width):
            wanted = values[:, origin + 1 : origin + 1 + width].max(axis=1)
            assert found[:, origin] == pytest.approx(wanted, nan_ok=True)
        assert np.isnan(found[:, 90 - width :]).all()


def test_blocks_cover_every_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a single row is larger than a block, and where nothing is left over."""
    monkeypatch.setattr(demand, "BLOCK_CELLS", 100)
    for series, steps in ((7, 30), (6, 50), (3, 1000), (0, 10)):
        rows = [row for block in demand.blocks(series, steps) for row in range(series)[block]]
        assert rows == list(range(series))


def test_a_margin_of_rows_is_the_conformal_quantile_of_each() -> None:
    """The largest score where a row has too few, nothing where it has none."""
    scores = with_holes(40, 30)
    scores[5, 2:], scores[6] = np.nan, np.nan
    for level in (0.9, 0.99):
        found = selection._margin(scores, level)
        for row, margin in zip(scores, found.tolist(), strict=True):
            known = row[~np.isnan(row)]
            wanted = conformal_quantile(known, level) if len(known) else 0.0
            assert margin == (wanted if np.isfinite(wanted) else known.max())


def test_a_quantile_is_boosted_as_scikit_learn_would() -> None:
    """The quicker loss finds the same trees, and leaves a model that says nothing of it."""
    rng = np.random.default_rng(0)
    rows = np.round(rng.normal(size=(3000, 6)), 1)
    came, weight = rows[:, 0] * rng.gamma(1.0, 1.0, 3000), np.exp(rng.uniform(0.0, 3.0, 3000))
    for level in (0.5, 0.99):
        ours = Boosting(3, trees=10)._fit_one(rows, came, weight, level, 0)
        theirs = HistGradientBoostingRegressor(**ours.get_params()).fit(rows, came, sample_weight=weight)
        assert ours.get_params()["loss"] == "quantile"
        assert type(ours._loss) is type(theirs._loss)
        assert (ours.predict(rows) == theirs.predict(rows)).all()


def test_the_speed_benchmark_plays_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute of few services: every timed minute has a figure, and the global model of both kinds is handed on."""
    monkeypatch.setattr(forecast_speed, "PLAYED", 61)
    monkeypatch.setattr(forecast_speed, "TIMED", 2)
    bursts, spent, served = forecast_speed.play_services(3, 1)
    assert len(spent) == 2
    assert all(each > 0.0 for each in spent)
    assert set(served) == {REQUESTS, TOKENS}
    assert [len(demand.rates.names) for demand in bursts.demands] == [3, 3]
    assert forecast_speed.memory_gib() > 0.01
