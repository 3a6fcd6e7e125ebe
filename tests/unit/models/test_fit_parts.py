"""What makes a fit quick must not change what it learns: each part against the plain way to the same."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor

from autopilot.core.model.forecast import REQUESTS, TOKENS
from autopilot.core.model.snapshot import F64
from benchmarks import forecast_speed
from models import backtest_bursts, boosting, demand, fitting, selection, statistical
from models.baselines import Ewma, LastValue
from models.boosting import Boosting
from models.conformal import conformal_quantile
from models.demand import Ask, outcomes, usual
from models.features import ahead, at_cells, common
from models.statistical import Ets, _fit_one

ASK = Ask(600.0, (2, 5), peak=True)


def with_holes(series: int, steps: int, seed: int = 3) -> F64:
    """Demand with a part that was not measured."""
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
        found = selection._quantile(scores, level)
        for row, margin in zip(scores, found.tolist(), strict=True):
            known = row[~np.isnan(row)]
            wanted = conformal_quantile(known, level) if len(known) else 0.0
            assert margin == (wanted if np.isfinite(wanted) else known.max())
    assert (selection._margin(scores, 0.9) == selection._quantile(scores, 0.9)).all()


def test_a_margin_that_only_the_pool_resolves_is_that_of_all_rows() -> None:
    """As in the layer, which lets a series' own scores say nothing at 0.99."""
    scores = with_holes(40, 30)
    pooled = conformal_quantile(scores[~np.isnan(scores)], 0.99)
    assert selection._margin(scores, 0.99).tolist() == [pooled] * 40


def test_a_model_that_speaks_in_calm_hours_alone_is_judged_on_all() -> None:
    """Its forecasts are the floor's, and nothing while it is busy: fewer losses where less comes are no merit."""
    came = np.tile(np.repeat([0.0, 100.0], 50), 4)[None, :, None] * np.array([[[1.0]], [[2.0]]])
    came[:, ::3] += 20.0
    floor = np.repeat(np.full(came.shape, 30.0)[..., None], 3, axis=3)
    calm = np.where(came[..., None] < 50.0, floor, np.nan)
    ask = Ask(600.0, (1,), levels=(0.5, 0.9, 0.99))
    choice = selection.choose({"floor": floor, "calm": calm}, came, np.sqrt(came.mean(axis=(1, 2))), ask)
    assert choice.losses[1] == pytest.approx(1.0)
    assert not choice.chosen.any()


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


def test_where_nobody_can_judge_no_tree_is_asked() -> None:
    """The origins whose outcome is known are foreseen as ever; the last ones, by horizon, are left out."""
    values = np.random.default_rng(1).gamma(2.0, 1.0, (8, 900))
    model = Boosting(1, trees=5)
    model.fit(values, 880, ASK)
    whole, judged = model.predict(values, 880, ASK), model.predict(values, 880, ASK, judged=True)
    assert not np.isnan(whole).any()
    for place, steps in enumerate(ASK.steps):
        assert np.array_equal(judged[:, : 20 - steps, place], whole[:, : 20 - steps, place])
        assert np.isnan(judged[:, 20 - steps :, place]).all()
    assert np.isnan(model.predict(values, 898, ASK, judged=True)).all()


def test_of_many_series_every_horizon_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the longest one, whose outcomes come last; every model has as many of them as are asked for."""
    monkeypatch.setattr(fitting, "MOST_FORECASTS", 1)
    values, ask = np.random.default_rng(1).gamma(20.0, 0.05, (5, 120)), Ask(60.0, (2, 30), peak=True)
    fitted = fitting.fit_demand(values, ask, 1)
    ewma = fitted.choice.names.index("ewma")
    assert np.isfinite(fitted.choice.losses[ewma]).all()
    assert (fitted.layer.outcomes >= fitting.LEAST_OUTCOMES).all()


def ramps(series: int, steps: int) -> F64:
    """Demand that climbs and falls for hours, with little noise: what a trend foresees and a mean does not."""
    rng = np.random.default_rng(2)
    at = np.arange(steps) + rng.integers(0, 300, (series, 1))
    return np.asarray(np.abs(at % 300 - 150) + rng.normal(20.0, 0.1, (series, steps)))


def told_by(ets: Ets, values: F64) -> list[int]:
    """Series that a model has something to say of."""
    found = ets.predict(values, values.shape[1] - 1, ASK)
    return np.flatnonzero(~np.isnan(found).any(axis=(1, 2, 3))).tolist()


def test_exponential_smoothing_is_tried_on_a_few_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others follow where enough of those tried have chosen it, up to the most; once. Few series are fitted at
    once.
    """
    monkeypatch.setattr(statistical, "TRIED_SERIES", 3)
    values = ramps(11, 60)
    everyone, nobody = np.ones(11, np.bool_), np.zeros(11, np.bool_)
    ets = Ets(most_series=7)
    ets.fit(values, 60, ASK)
    assert told_by(ets, values) == [0, 5, 10]
    assert not ets.fit_others(values, 60, nobody)
    assert told_by(ets, values) == [0, 5, 10]
    assert ets.fit_others(values, 60, everyone)
    assert len(told_by(ets, values)) == 7
    assert set(told_by(ets, values)) > {0, 5, 10}
    assert not ets.fit_others(values, 60, everyone)
    few = Ets(most_series=11)
    few.fit(values, 60, ASK)
    assert told_by(few, values) == list(range(11))
    assert not few.fit_others(values, 60, everyone)


@pytest.mark.parametrize("trend", [True, False])
def test_a_fit_smooths_further_series_only_where_that_is_chosen(trend: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is where demand climbs and falls; not on a random walk, where the last value says all."""
    monkeypatch.setattr(statistical, "TRIED_SERIES", 3)
    walk = 500.0 + np.cumsum(np.random.default_rng(2).normal(size=(8, 400)), axis=1)
    values = ramps(8, 400) if trend else walk
    fits: list[int] = []

    def counted(past: F64) -> tuple[float, float, float]:
        fits.append(len(past))
        return _fit_one(past)

    monkeypatch.setattr(statistical, "_fit_one", counted)
    for place in (fitting, backtest_bursts):
        monkeypatch.setattr(place, "models_for", lambda *_: (LastValue(), Ewma(), Ets(most_series=6)))
    fitted = fitting.fit_demand(values, ASK, 1)
    speaks = (fitted.choice.chosen == 2).any(axis=1)
    assert len(fits) == (6 if trend else 3)
    assert speaks.sum() == (6 if trend else 0)
    judged = backtest_bursts.backtest([str(at) for at in range(8)], values, ASK, 1, lambda: 0.0, lambda *_: None)
    assert len(fits) == 2 * (6 if trend else 3)
    assert ((judged.choice.chosen == 2).any(axis=1) == speaks).all()


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
