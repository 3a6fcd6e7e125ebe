"""Burst forecasts in the controller: what is learned minute by minute, promised, withheld with a reason, and fitted."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from autopilot.core.model.forecast import REQUESTS, TOKENS, Forecast
from autopilot.core.model.snapshot import F64, ClusterSnapshot, ServiceTable, make
from models.baselines import LastValue
from models.boosting import Boosting
from models.burst_demand import HORIZONS_S, DemandFit
from models.bursts import Bursts
from models.demand import LEVELS, Ask, came_after, usual
from models.fitting import Fitted, fit_demand
from models.layer import Layer, replayed, states_spread
from models.rates import MOST_SERIES, Rates
from models.selection import Choice
from tests.kits.core_world import world

EMPTY = world("1x8", [], 0.0).snapshot


def seen(names: list[str], rates: list[float], age_s: float = 5.0) -> ClusterSnapshot:
    """A snapshot of services with this many requests/s in the last minute, ten tokens each."""
    table: ServiceTable = make(
        ServiceTable,
        id=names,
        uid=names,
        recent_rps=rates,
        tokens_per_s=[10.0 * rate for rate in rates],
        age_s=[age_s] * len(names),
    )
    return replace(EMPTY, services=table)


def run(bursts: Bursts, minutes: np.ndarray, names: list[str] | None = None, start: int = 0) -> Forecast:
    """Feed a row of minutes [minutes, services]; the last record of requests."""
    named = names or [f"s{at}" for at in range(minutes.shape[1])]
    forecast = None
    for minute, rates in enumerate(minutes.tolist(), start):
        snapshot = seen(named, rates)
        now_s = 60.0 * minute + 6.0
        bursts.update(now_s, snapshot)
        found = bursts.forecast(now_s, snapshot).demand
        forecast = found[0] if found else None
    assert forecast is not None
    return forecast


def fit_all(bursts: Bursts) -> list[str]:
    """Run every fit that is due and adopt it; what they were of."""
    kinds = []
    while (fit := bursts.due(0.0)) is not None:
        kinds.append(fit.kind)
        bursts.adopt(fit.run())
    return kinds


def calm(minutes: int, services: int = 3, seed: int = 1) -> np.ndarray:
    """Poisson counts around 600 a minute, as requests/s."""
    return np.random.default_rng(seed).poisson(600.0, (minutes, services)) / 60.0


def test_a_record_a_kind_with_everything_that_is_known_of_it() -> None:
    """Values are finite, at least zero, and rise with the level; history, coverage and outcomes are counted."""
    bursts = Bursts(1)
    forecast = run(bursts, calm(120))
    assert forecast.kind == REQUESTS
    assert forecast.series == ("s0", "s1", "s2")
    assert forecast.horizons_s == HORIZONS_S
    assert forecast.levels == LEVELS
    assert forecast.values.shape == (3, 3, 3)
    assert np.isfinite(forecast.values).all()
    assert (np.diff(forecast.values, axis=2) >= 0).all()
    assert (forecast.history == 120).all()
    assert (forecast.outcomes[:, 0] > 60).all()
    assert forecast.reasons == ("", "", "")
    assert forecast.chosen == ("last-value",) * 3
    tokens = bursts.forecast(0.0, seen(["s0", "s1", "s2"], [1.0] * 3)).demand[1]
    assert tokens.kind == TOKENS
    assert tokens.values[0, 0, 2] == pytest.approx(10.0 * forecast.values[0, 0, 2], rel=0.01)


def test_what_is_promised_is_delivered() -> None:
    """Of ten hours of counts, the peaks stay below their 0.9 and 0.99 bounds about so often."""
    forecast = run(Bursts(1), calm(600, 6))
    assert forecast.coverage[:, 0, 1].mean() == pytest.approx(0.9, abs=0.03)
    assert forecast.coverage[:, 0, 2].mean() == pytest.approx(0.99, abs=0.01)
    assert not forecast.drifting.any()


def test_before_there_were_outcomes_it_abstains_and_says_so() -> None:
    """The first minutes promise nothing but the median; the reason stands beside."""
    forecast = run(Bursts(1), calm(5, 1))
    assert np.isnan(forecast.values).all()
    assert "too few outcomes" in forecast.reasons[0]


def test_a_new_service_is_promised_something_from_its_class() -> None:
    """After one minute of its own, by the errors of the others; one that was never measured abstains."""
    bursts = Bursts(1)
    run(bursts, calm(120, 8))
    names = [f"s{at}" for at in range(8)] + ["new", "silent"]
    rates = np.array([[10.0] * 9 + [np.nan]])
    forecast = run(bursts, rates, names, start=120)
    assert 10.0 < forecast.values[8, 0, 2] < 30.0
    assert forecast.history[8] == 1
    assert np.isnan(forecast.values[9]).all()
    assert forecast.reasons[9] == "no rate was measured yet"


@pytest.mark.parametrize("bad", [np.nan, -5.0, np.inf, 1e300])
def test_a_reading_that_is_no_rate_is_unknown(bad: float) -> None:
    """The forecast goes on from the last good minute, and after some minutes abstains with a reason."""
    bursts = Bursts(1)
    minutes = calm(120, 2)
    run(bursts, minutes)
    held = run(bursts, np.array([[bad, 10.0]]), start=120)
    assert np.isfinite(held.values).all()
    assert held.history.tolist() == [120, 121]
    stale = run(bursts, np.array([[bad, 10.0]] * 6), start=121)
    assert np.isnan(stale.values[0]).all()
    assert "not measured" in stale.reasons[0]
    assert np.isfinite(stale.values[1]).all()


def test_a_clock_that_steps_back_and_minutes_told_twice_change_nothing() -> None:
    """Old minutes are laid where they belong; no promise is judged twice."""
    bursts = Bursts(1)
    first = run(bursts, calm(120, 2))
    for _ in range(3):
        bursts.update(60.0 * 119 + 20.0, seen(["s0", "s1"], [10.0, 10.0]))
        bursts.update(60.0 * 40 + 6.0, seen(["s0", "s1"], [10.0, 10.0]))
    again = bursts.forecast(60.0 * 119 + 30.0, seen(["s0", "s1"], [10.0, 10.0])).demand[0]
    assert (again.outcomes == first.outcomes).all()
    assert (again.history == first.history).all()


def test_a_gap_of_a_day_is_survived() -> None:
    """After it the last value counts anew; nothing of the gap is judged."""
    bursts = Bursts(1)
    before = run(bursts, calm(120, 2))
    after = run(bursts, calm(3, 2), start=120 + 1440)
    assert np.isfinite(after.values).all()
    assert (after.outcomes[:, 0] <= before.outcomes[:, 0] + 3).all()


def test_a_hundredfold_outlier_leaves_the_bounds_in_reach() -> None:
    """Half an hour after one minute a hundred times too high, the 0.9 bound is of the usual size."""
    minutes = calm(200, 3)
    minutes[150, 0] *= 100.0
    forecast = run(Bursts(1), minutes)
    assert forecast.values[0, 0, 1] < 30.0


def test_ten_thousand_new_names_are_bounded() -> None:
    """Rows are given up by the names seen longest ago; those that are still there keep theirs."""
    rates = Rates(60.0)
    for hour in range(5):
        names = [f"n{hour}-{at}" for at in range(6000)] + ["kept"]
        rows, _, _ = rates.rows(names)
        rates.advance(hour * 60)
        rates.put(rows, np.full(len(rows), hour * 60), np.full(len(rows), float(hour + 1)))
    assert len(rates.names) == MOST_SERIES
    kept = rates.values[rates.find(["kept"])[0]]
    assert np.nanmax(kept) == 5.0
    assert np.isfinite(kept).sum() == 5
    assert rates.find(["n0-5"])[0] == -1


def test_what_is_dropped_are_whole_days() -> None:
    """A model that counts columns finds noon where it was: the oldest column is of the same time of the day."""
    rates = Rates(3600.0)
    begun, dropped = [], 0
    for step in range(1, 1000):
        rates.rows(["a"])
        before = rates.values.shape[1]
        rates.advance(step)
        dropped += rates.values.shape[1] <= before
        begun.append((rates.step - rates.values.shape[1] + 1) % 24)
    assert dropped > 5
    assert set(begun) == {1}
    assert rates.values.shape[1] >= rates.kept_steps


def test_a_fit_is_wanted_once_and_speaks_when_adopted() -> None:
    """On noise around a mean the fitted smoothing takes over from the last value, and its bounds are tighter."""
    bursts = Bursts(1)
    first = run(bursts, calm(240, 4))
    assert fit_all(bursts) == [REQUESTS, TOKENS]
    later = run(bursts, calm(60, 4, seed=2), start=240)
    assert set(later.chosen) <= {"ewma", "ets"}
    assert later.values[:, 0, 2].mean() < first.values[:, 0, 2].mean()


def test_a_fit_that_ran_beside_minutes_that_went_on_is_the_same_everywhere() -> None:
    """The first is due after sixty minutes; run later, among other minutes, it gives the same bounds."""
    minutes = calm(75, 2)
    one, other = Bursts(3), Bursts(3)
    assert run(one, minutes[:62]).chosen == ("last-value",) * 2
    waiting = one.due(0.0)
    assert waiting is not None
    run(other, minutes[:62])
    given = other.due(0.0)
    assert given is not None
    bounds = []
    for bursts, early in ((one, waiting.run()), (other, given.run())):
        run(bursts, minutes[62:65], start=62)
        bursts.adopt(early)
        bounds.append(run(bursts, minutes[65:], start=65))
    assert "last-value" not in bounds[0].chosen
    assert np.isfinite(bounds[0].values).all()
    assert np.array_equal(bounds[0].values, bounds[1].values)


def test_a_series_that_has_drifted_falls_back_to_the_floor() -> None:
    """A load that jumps and stays is detected; until a new fit the last value serves."""
    bursts = Bursts(1)
    run(bursts, calm(240, 2))
    fit_all(bursts)
    run(bursts, calm(120, 2, seed=2), start=240)
    rising = calm(90, 2, seed=3) * np.linspace(1.0, 12.0, 90)[:, None] ** 2
    forecast = run(bursts, rising, start=360)
    assert forecast.drifting.any()
    assert all(model == "last-value" for model, moved in zip(forecast.chosen, forecast.drifting, strict=True) if moved)


def test_no_service_no_forecast() -> None:
    """A cluster without services asks nothing."""
    bursts = Bursts(1)
    bursts.update(60.0, EMPTY)
    assert bursts.forecast(60.0, EMPTY).demand == ()


def test_a_fit_says_from_when_its_data_is() -> None:
    """On the clock of the controller, whenever that was started: the manifest of a model names the window."""
    bursts = Bursts(1)
    run(bursts, calm(90), start=28_000)
    fit = bursts.due(0.0)
    assert fit is not None
    newest = 28_000 + 89
    assert fit.from_s + 60.0 * fit.values.shape[1] == 60.0 * (newest + 1)
    assert fit.from_s > 1_600_000.0


def test_a_new_service_changes_nothing_for_the_others() -> None:
    """Models with a state for each series keep serving those that they were fitted to."""
    bursts = Bursts(1)
    run(bursts, calm(240, 4))
    fit_all(bursts)
    other = deepcopy(bursts)
    minutes = calm(5, 4, seed=2)
    alone = run(bursts, minutes, start=240)
    beside = run(other, np.hstack([minutes, minutes[:, :1]]), [*(f"s{at}" for at in range(4)), "new"], start=240)
    assert set(alone.chosen) <= {"ewma", "ets"}
    assert beside.chosen == (*alone.chosen, "last-value")
    assert np.array_equal(beside.values[:4, :, 0], alone.values[:, :, 0])


def test_a_service_whose_minute_comes_later_is_judged_too() -> None:
    """Exporters do not answer at one moment: a minute that arrives a tick after another's counts as much."""
    bursts, names = Bursts(1), ["prompt", "late"]
    forecast = None
    for minute, rates in enumerate(calm(60, 2).tolist()):
        for second, age_s in ((6.0, 65.0), (16.0, 15.0)):
            now_s = 60.0 * minute + second
            snapshot = seen(names, rates)
            ages = np.array([second - 1.0, age_s])  # of the late one at first the minute before is known
            bursts.update(now_s, replace(snapshot, services=replace(snapshot.services, age_s=ages)))
            found = bursts.forecast(now_s, snapshot).demand
            forecast = found[0] if found else None
    assert forecast is not None
    assert forecast.history.tolist() == [60, 59]  # the record is made when the first has begun a minute
    assert (forecast.outcomes[1] >= forecast.outcomes[0] - 1).all()
    assert (forecast.outcomes[1] > 15).all()


def test_the_unit_of_the_margins_is_that_of_the_fit() -> None:
    """A service that grew a hundredfold is measured by what it is, not by the mean of its life."""
    bursts = Bursts(1)
    demand = bursts.demands[0]
    for step in range(8 * 1440):
        rate = 1.0 if step < 6 * 1440 else 100.0
        demand.observe(["s"], np.array([step]), np.array([rate]))
    demand.foresee()
    assert 60.0 < demand._made[step].root[0] ** 2 < 90.0
    fit = demand.wanted()
    assert fit is not None
    fitted = fit_demand(fit.values[:, -1440:], fit.ask, 1)
    demand.adopt(DemandFit(fit, fitted))
    demand.foresee()
    assert demand._made[step].root[0] ** 2 == pytest.approx(100.0)


class Knows(Boosting):
    """Stands for a global model that states the true quantiles of independent lognormal minutes."""

    def predict(self, values: F64, first: int, ask: Ask, *, judged: bool = False) -> F64:
        """The highest of `steps` draws."""
        found = np.empty((len(values), values.shape[1] - first, len(ask.steps), len(ask.levels)))
        for place, steps in enumerate(ask.steps):
            found[:, :, place] = 100.0 * np.exp(0.5 * norm.ppf(np.array(ask.levels) ** (1.0 / steps)))
        return found


def test_the_floor_in_a_models_place_keeps_its_own_promise() -> None:
    """And what it errs teaches the model's margins nothing."""
    count, rng = 12, np.random.default_rng(2)
    demand = Bursts(1).demands[0]
    names = [f"s{at}" for at in range(count)]

    def live(begin: int, end: int, drifted: int) -> float:
        """The part of the 0.9 promises of the first services at 2 min that was kept."""
        upper, came = [], []
        for step in range(begin, end):
            came.append(100.0 * np.exp(0.5 * rng.normal(size=count)))
            demand.observe(names, np.full(count, step), came[-1])
            demand.settle(60.0 * step)
            demand._drift._rung[:drifted] = 2
            demand.foresee()
            upper.append(demand._made[step].upper[:, 0, 1])
        peak = np.maximum(np.array(came)[1:-1], np.array(came)[2:])
        return float((peak <= np.array(upper)[:-2])[:, :3].mean())

    live(0, 400, 0)
    fit = demand.wanted()
    assert fit is not None
    values, first = fit.values, 100
    models = (LastValue(), Knows(0))
    raw = models[1].predict(values, first, fit.ask)
    root = np.sqrt(usual(values[:, :first]))
    layer = Layer(LEVELS, count, fit.ask.steps, stated=states_spread(raw))
    replayed(layer, raw, came_after(values, first, fit.ask), root, refresh=10)
    ones = np.ones((count, 3), np.int64)
    choice = Choice(("last-value", "boosting"), ones, np.zeros((2, count, 3)), ones, np.zeros((count, 3, 3)))
    demand.adopt(DemandFit(fit, Fitted(models, choice, layer, 400, 0, root)))
    assert live(400, 600, 0) == pytest.approx(0.9, abs=0.05)
    before = demand._layer.margins()[3:].max()
    assert live(600, 720, 3) == pytest.approx(0.9, abs=0.07)
    assert demand._layer.margins()[3:].max() < before + 0.3
