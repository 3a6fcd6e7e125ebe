"""What holds for every model of demand: shape, order of quantiles, same seed same answer, bad history, and its
floor.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest

from models.baselines import Ewma, LastValue, Profile
from models.boosting import LEAST_ROWS, Boosting
from models.demand import Ask, DemandModel, outcomes
from models.idle import IdleTimes
from models.statistical import Ets

DAY = 48
ASK = Ask(1800.0, (1, 4))
PEAK = Ask(1800.0, (1, 4), peak=True)

MODELS: dict[str, Callable[[], DemandModel]] = {
    "last-value": LastValue,
    "ewma": Ewma,
    "profile": Profile,
    "idle-times": IdleTimes,
    "ets": Ets,
    "boosting": lambda: Boosting(7, trees=5),
}


def noise(series: int, steps: int, seed: int = 1) -> np.ndarray:
    """Independent counts around ten: what a mean foresees and a last value does not."""
    return np.random.default_rng(seed).poisson(10.0, (series, steps)).astype(float)


def days(series: int, steps: int, seed: int = 1) -> np.ndarray:
    """A daily course with noise, another hour of its peak for each series."""
    rng = np.random.default_rng(seed)
    angle = 2 * np.pi * (np.arange(steps) / DAY + rng.random((series, 1)))
    return rng.poisson(20.0 * (1.2 + np.sin(angle))).astype(float)


def walk(series: int, steps: int, seed: int = 1) -> np.ndarray:
    """A random walk far above zero: nothing beats its last value."""
    return 1000.0 + np.cumsum(np.random.default_rng(seed).normal(size=(series, steps)), axis=1)


@pytest.fixture(params=MODELS, ids=str)
def name(request: pytest.FixtureRequest) -> str:
    """Each model in turn."""
    return str(request.param)


def fitted(name: str, values: np.ndarray, until: int, ask: Ask = ASK) -> tuple[DemandModel, np.ndarray]:
    """The model, fitted on the columns before `until`, and its forecasts from there on."""
    model = Boosting(7, trees=15) if name == "boosting with more trees" else MODELS[name]()
    model.fit(values, until, ask)
    return model, model.predict(values, until, ask)


@pytest.mark.parametrize("ask", [ASK, PEAK], ids=["value", "peak"])
def test_quantiles_have_their_shape_and_never_fall(name: str, ask: Ask) -> None:
    """[series, origins, horizons, levels]; finite or NaN, at least zero, and no level below a lower one."""
    values = days(16, 6 * DAY)
    _, found = fitted(name, values, 5 * DAY, ask)
    assert found.shape == (16, DAY, 2, 3)
    spoken = found[~np.isnan(found).any(axis=3)]
    assert len(spoken) >= DAY or name == "idle-times"  # which speaks for sleeping series alone
    assert np.isfinite(spoken).all()
    assert (spoken >= 0.0).all()
    assert (np.diff(spoken, axis=1) >= 0.0).all()


def test_the_same_seed_gives_the_same_answer_and_a_clone_does_too(name: str) -> None:
    """Fitting twice, and asking a deep copy, change nothing."""
    values = days(16, 6 * DAY)
    model, found = fitted(name, values, 5 * DAY)
    _, again = fitted(name, values, 5 * DAY)
    cloned = copy.deepcopy(model).predict(values, 5 * DAY, ASK)
    assert np.array_equal(found, again, equal_nan=True)
    assert np.array_equal(found, cloned, equal_nan=True)


def test_an_origin_sees_nothing_that_comes_after_it(name: str) -> None:
    """A change of the last column changes the forecasts of the last origin only."""
    values = days(16, 6 * DAY)
    model, found = fitted(name, values, 5 * DAY)
    other = values.copy()
    other[:, -1] += 50.0
    assert np.array_equal(found[:, :-1], model.predict(other, 5 * DAY, ASK)[:, :-1], equal_nan=True)


def test_one_origin_alone_is_foreseen_as_among_many(name: str) -> None:
    """What the controller asks each minute is what the backtest judged."""
    values = days(16, 6 * DAY)
    model = MODELS[name]()
    model.fit(values, 5 * DAY, ASK)
    many = model.predict(values, values.shape[1] - 12, ASK)[:, -1]
    alone = model.predict(values, values.shape[1] - 1, ASK)[:, 0]
    if name in ("profile", "boosting"):  # scaled by the history up to the first origin
        assert np.allclose(many, alone, rtol=0.1, equal_nan=True)
    else:
        assert np.allclose(many, alone, rtol=1e-4, equal_nan=True)


# a model of 15 trees is enough to see that the form holds
HISTORIES: dict[str, np.ndarray] = {
    "three points": np.full((10, 3), 5.0),
    "one point": np.full((10, 1), 5.0),
    "nothing known": np.full((10, 4 * DAY), np.nan),
    "constant": np.full((10, 4 * DAY), 3.0),
    "zero": np.zeros((10, 4 * DAY)),
    "one known": np.where(np.arange(4 * DAY) == 100, 5.0, np.nan) * np.ones((10, 1)),
    "enormous": np.full((10, 4 * DAY), 1e15) * np.linspace(0.1, 1.0, 10)[:, None],
    "tiny": np.full((10, 4 * DAY), 1e-12) * np.linspace(0.1, 1.0, 10)[:, None],
}


@pytest.mark.parametrize("history", HISTORIES)
def test_a_bad_history_is_foreseen_soundly_or_not_at_all(name: str, history: str) -> None:
    """Finite, at least zero and in order, or NaN; never an exception."""
    values = HISTORIES[history]
    until = max(1, values.shape[1] * 3 // 4)
    for until_here in {until, values.shape[1] - 1}:
        _, found = fitted(name, values, until_here)
        known = found[~np.isnan(found)]
        assert (known >= 0.0).all()
        assert np.isfinite(known).all()
        if history == "nothing known":
            assert not len(known)


def test_a_gap_of_a_day_is_not_bridged(name: str) -> None:
    """Inside the gap the model abstains; after it the first value counts again."""
    values = days(16, 7 * DAY)
    values[:, 5 * DAY : 6 * DAY] = np.nan
    model = MODELS[name]()
    model.fit(values, 5 * DAY, ASK)
    if name in ("profile", "idle-times"):
        pytest.skip("it foresees from the days before, not from the last value")
    found = model.predict(values, 5 * DAY + 10, ASK)
    assert np.isnan(found[:, 0]).all()
    assert not np.isnan(found[:, -1]).any()


def test_a_hundredfold_outlier_is_outlived(name: str) -> None:
    """A day later the forecasts are of the usual size again."""
    values = days(16, 8 * DAY)
    values[:, 6 * DAY] *= 100.0
    _, found = fitted(name, values, 5 * DAY)
    last = found[:, -1]
    assert name == "idle-times" or not np.isnan(last).all()
    assert (last[~np.isnan(last)] < 30.0 * values[:, : 5 * DAY].mean()).all()


def mean_errors(name: str, values: np.ndarray, until: int) -> tuple[float, float]:
    """Mean absolute error of the median, of the model and of the last value, on the same origins."""
    _, found = fitted(name, values, until)
    _, floor = fitted("last-value", values, until)
    came = np.stack([outcomes(values, steps, peak=False)[:, until:] for steps in ASK.steps], axis=2)
    judged = ~np.isnan(came) & ~np.isnan(found[..., 0])
    assert judged.any()
    own = np.abs(found[..., 0] - came)[judged].mean()
    return float(own), float(np.abs(floor[..., 0] - came)[judged].mean())


@pytest.mark.parametrize(
    ("better", "draw"),
    [
        ("ewma", noise),
        ("ets", noise),
        ("profile", days),
        ("boosting with more trees", days),
    ],
)
def test_where_a_model_belongs_it_beats_its_floor(better: str, draw: Callable[..., np.ndarray]) -> None:
    """A mean on noise, a profile and boosting on a daily course: at least a tenth better."""
    own, floor = mean_errors(better, draw(20, 8 * DAY), 6 * DAY)
    assert own <= 0.9 * floor


@pytest.mark.parametrize("equal", ["ewma", "ets"])
def test_on_a_random_walk_smoothing_equals_its_floor(equal: str) -> None:
    """Nothing beats the last value; the smoothing that is chosen comes near it."""
    own, floor = mean_errors(equal, walk(20, 8 * DAY), 6 * DAY)
    assert own <= 1.15 * floor


def test_boosting_is_not_fitted_to_a_few_rows() -> None:
    """Below the least number of rows it abstains; a column that is never known does not break it."""
    few = days(10, LEAST_ROWS // 10 // 2)
    _, found = fitted("boosting", few, few.shape[1] - 5)
    assert np.isnan(found).all()
    short = days(40, 2 * DAY)  # three days back is never known
    _, found = fitted("boosting", short, 2 * DAY - 5)
    assert not np.isnan(found).any()


def test_boosting_goes_through_its_content() -> None:
    """What a registry stores is the whole model."""
    values = days(16, 6 * DAY)
    model, found = fitted("boosting", values, 5 * DAY)
    assert isinstance(model, Boosting)
    again = Boosting.from_content(model.content(), ASK).predict(values, 5 * DAY, ASK)
    assert np.array_equal(found, again)


@pytest.mark.parametrize("peak", [False, True], ids=["value", "peak"])
@pytest.mark.parametrize("steps", [DAY - 1, DAY, DAY + 1, 2 * DAY])
def test_a_profile_of_more_than_a_day_ahead_does_not_know_what_came(steps: int, *, peak: bool) -> None:
    """The forecast at an origin does not depend on later values."""
    values, ask = days(3, 10 * DAY), Ask(1800.0, (steps,), peak=peak)
    other = values.copy()
    other[:, 8 * DAY + 1 :] *= 1000.0
    told, again = (Profile().predict(each, 8 * DAY, ask)[:, 0] for each in (values, other))
    assert np.isfinite(told).all()
    assert np.array_equal(told, again)
