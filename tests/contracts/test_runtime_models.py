"""Every forecaster of run times keeps the same promises: shape, order, seed, copies, poor histories, its floor."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest

from autopilot.core.model.forecast import LEVELS, RuntimeForecast
from autopilot.core.model.policy.bounds import Forecasting
from autopilot.core.model.snapshot import ClusterSnapshot, State
from autopilot.worker import InlineWorker
from models import recent
from models.last_two import LastTwo
from models.runtime_boosting import LEAST_ROWS
from models.runtimes import Runtimes
from tests.kits.core_world import Item, snapshot

DAY_S = 86_400.0
NO_DELAY = Forecasting(trees=10, most_rows=1000, fit_delay_s=0.0)

Model = LastTwo | Runtimes
MODELS: dict[str, Callable[[], Model]] = {
    "last-two": LastTwo,
    "predicted": lambda: Runtimes(NO_DELAY, 3),
}


@pytest.fixture(params=list(MODELS))
def make_model(request: pytest.FixtureRequest) -> Callable[[], Model]:
    """Each model in turn."""
    return MODELS[request.param]


def job(number: int, state: State, ran_s: float = 0.0, name: str = "train") -> Item:
    """One job of one GPU; ended jobs have run `ran_s`."""
    return Item(f"job-{number}", {"state": state, "submit_s": 60.0 * number, "served_s": ran_s, "name": name})


def world(*items: Item) -> ClusterSnapshot:
    """A cluster whose work is `items`."""
    return snapshot("4x8", items)


def said(model: Model, now_s: float, snap: ClusterSnapshot) -> RuntimeForecast:
    """One tick: learn, fit what is due as a simulation does, then forecast."""
    model.update(now_s, snap)
    if isinstance(model, Runtimes) and (work := model.due(now_s)) is not None:
        worker = InlineWorker()
        worker.start(model.name, work, now_s, NO_DELAY)
        fit = worker.ended(now_s)
        assert fit is not None
        assert fit.problem == ""
        model.adopt(fit.result)
    found = model.forecast(now_s, snap).runtimes
    assert found is not None
    return found


def live(model: Model, durations_s: list[float]) -> RuntimeForecast:
    """Jobs come and end one after the other; what is then said of a new one."""
    for number, ran_s in enumerate(durations_s):
        now_s = 60.0 * number
        said(model, now_s, world(job(number, State.PENDING)))
        said(model, now_s + 59.0, world(job(number, State.SUCCEEDED, ran_s)))
    number = len(durations_s)
    return said(model, 60.0 * number, world(job(number, State.PENDING)))


def test_an_unknown_job_is_abstained_from(make_model: Callable[[], Model]) -> None:
    """Without one ended job nothing is known, hence nothing said."""
    found = said(make_model(), 0.0, world(job(0, State.PENDING)))
    assert found.known.tolist() == [False]
    assert np.isnan(found.total_s).all()


def test_quantiles_have_the_shape_and_rise(make_model: Callable[[], Model]) -> None:
    """One row a workload, one column a level, non-decreasing, positive and finite."""
    found = live(make_model(), [100.0, 3000.0, 250.0, 7000.0, 90.0])
    assert found.levels == LEVELS
    assert found.total_s.shape == (1, len(LEVELS))
    assert np.isfinite(found.total_s).all()
    assert (found.total_s > 0.0).all()
    assert (np.diff(found.total_s, axis=1) >= 0.0).all()
    assert found.history.tolist() == [5]


@pytest.mark.parametrize(
    "durations_s",
    [
        [600.0],
        [600.0] * 40,
        [1.0, 1e7] * 20,
        [np.nan, 600.0, np.nan],
        [0.0, 600.0, 0.2],
        [600.0] * 10 + [60_000.0],
    ],
)
def test_poor_histories_give_finite_forecasts(make_model: Callable[[], Model], durations_s: list[float]) -> None:
    """Short, constant, wild and broken histories, run times of nothing, and an outlier a hundred times too long."""
    found = live(make_model(), durations_s)
    assert found.known.all()
    assert np.isfinite(found.total_s).all()
    assert (np.diff(found.total_s, axis=1) >= 0.0).all()
    assert 1.0 <= float(found.total_s[0, LEVELS.index(0.5)]) <= 1e7


def test_replicas_of_services_abstain(make_model: Callable[[], Model]) -> None:
    """A replica runs until it is taken away."""
    model = make_model()
    live(model, [600.0, 700.0])
    replica = Item("replica", {"state": State.PENDING, "service": 0, "submit_s": 500.0})
    assert not said(model, 500.0, world(replica)).known.any()


def test_the_same_seed_says_the_same(make_model: Callable[[], Model]) -> None:
    """Two models with equal histories agree to the last digit."""
    durations_s = np.random.default_rng(5).lognormal(6.0, 1.0, 60).tolist()
    first, second = live(make_model(), durations_s), live(make_model(), durations_s)
    assert first.total_s.tobytes() == second.total_s.tobytes()


def test_a_copy_goes_its_own_way(make_model: Callable[[], Model]) -> None:
    """What a copy learns does not change the model that it was taken from."""
    model = make_model()
    live(model, [600.0] * 12)
    twin = deepcopy(model)
    snap = world(job(50, State.PENDING))
    before = said(deepcopy(model), 9000.0, snap).total_s
    for number in range(20, 40):
        said(twin, 8000.0, world(job(number, State.PENDING)))
        said(twin, 8100.0, world(job(number, State.SUCCEEDED, 50_000.0)))
    assert said(model, 9000.0, snap).total_s.tobytes() == before.tobytes()
    assert said(twin, 9000.0, snap).total_s[0, 2] > 2.0 * before[0, 2]


def test_a_job_keeps_its_forecast_while_it_waits(make_model: Callable[[], Model]) -> None:
    """Jobs in a queue do not swap places whenever another one ends."""
    model = make_model()
    live(model, [600.0] * 5)
    waits = job(5, State.PENDING)
    before = said(model, 310.0, world(waits)).total_s[0]
    after = said(model, 400.0, world(waits, job(6, State.SUCCEEDED, 9000.0))).total_s[0]
    assert after[LEVELS.index(0.5)] == before[LEVELS.index(0.5)]


def errors_of(model: Model, durations_s: np.ndarray, names: list[str]) -> np.ndarray:
    """Absolute errors in logs of the middle forecasts, once there is a history; each job ends before the next comes."""
    errors = []
    for number, (ran_s, name) in enumerate(zip(durations_s.tolist(), names, strict=True)):
        now_s = 60.0 * number
        found = said(model, now_s, world(job(number, State.PENDING, name=name)))
        if found.known[0]:
            errors.append(abs(np.log(ran_s / found.total_s[0, LEVELS.index(0.5)])))
        said(model, now_s + 59.0, world(job(number, State.SUCCEEDED, ran_s, name)))
    return np.array(errors[50:])


def test_no_model_is_worse_than_the_floor_where_names_tell(make_model: Callable[[], Model]) -> None:
    """Four kinds of jobs by name, a factor of ten apart: within 2 % of the last two jobs' error, or better."""
    rng = np.random.default_rng(7)
    kinds = rng.integers(0, 4, 300)
    durations_s = 60.0 * 10.0**kinds * rng.lognormal(0.0, 0.2, 300)
    names = [f"train-{'abcd'[kind]}-{number}" for number, kind in enumerate(kinds.tolist())]
    own = errors_of(make_model(), durations_s, names).mean()
    assert own <= 1.02 * errors_of(LastTwo(), durations_s, names).mean()


def test_names_make_the_prediction_sharp() -> None:
    """With names that repeat but for their number, the error is that of one kind, not of all four."""
    rng = np.random.default_rng(8)
    kinds = rng.integers(0, 4, 300)
    durations_s = 60.0 * 10.0**kinds * rng.lognormal(0.0, 0.2, 300)
    names = [f"train-{'abcd'[kind]}-{number}" for number, kind in enumerate(kinds.tolist())]
    assert errors_of(Runtimes(), durations_s, names).mean() < 0.4


def test_a_fit_is_adopted_and_sees_what_the_last_jobs_do_not_tell() -> None:
    """Jobs of one name, far apart, whose run time follows their memory request: distinguished once boosting is
    in use.
    """
    rng = np.random.default_rng(9)

    def batch(kinds: list[int], state: State, first: int) -> list[Item]:
        return [
            Item(
                f"job-{first + number}",
                {
                    "state": state,
                    "memory_mib": 1024 * (1 + kind),
                    "submit_s": DAY_S * (first + number),
                    "name": "train",
                    "served_s": 60.0 * 10.0**kind * rng.lognormal(0.0, 0.1) if state == State.SUCCEEDED else 0.0,
                },
            )
            for number, kind in enumerate(kinds)
        ]

    model, first, middle_s = Runtimes(replace(NO_DELAY, trees=100), 3), 0, np.zeros((3, 3))
    # the fit; then opinions are weighed by what they are worth, at last against what siblings say
    for phase, jobs in enumerate((LEAST_ROWS, 150, 150)):
        kinds = rng.integers(0, 3, jobs).tolist()
        said(model, DAY_S * first, world(*batch(kinds, State.PENDING, first)))
        said(model, DAY_S * (first + jobs), world(*batch(kinds, State.SUCCEEDED, first)))
        new = deepcopy(model)
        found = said(new, DAY_S * (first + jobs), world(*batch([0, 1, 2], State.PENDING, 10 * LEAST_ROWS)))
        middle_s[phase], first = found.total_s[:, LEVELS.index(0.5)], first + jobs
    assert middle_s[0, 2] < 2.0 * middle_s[0, 0]
    assert middle_s[2, 2] > 20.0 * middle_s[2, 0]


def test_a_snapshot_without_work_is_answered(make_model: Callable[[], Model]) -> None:
    """An empty cluster: no rows, no error."""
    empty = world()
    found = said(make_model(), 0.0, replace(empty))
    assert found.total_s.shape == (0, len(LEVELS))


def test_names_that_are_forgotten_in_the_middle_of_a_batch_cost_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows of kins are numbered anew between batches, never within one."""
    monkeypatch.setattr(recent, "MOST_KINS", 100)
    model = Runtimes(NO_DELAY, 3)
    for hour in range(12):
        new = [job(30 * hour + number, State.PENDING, name=f"n{hour}x{number}") for number in range(30)]
        assert len(said(model, 3600.0 * hour, world(*new)).total_s) == 30
    assert len(model._recent._slot) < 300


def test_a_job_that_is_shown_no_more_is_given_up_after_an_hour() -> None:
    """Withdrawn while it waited, or ended unobserved; a short gap of the collector is neither."""
    model = Runtimes(NO_DELAY, 3)
    stays, gone = job(0, State.PENDING), job(1, State.PENDING)
    both, one = world(stays, gone), world(stays)
    for now_s, snap in ((0.0, both), (60.0, one), (1800.0, both), (1860.0, one), (5400.0, one)):
        said(model, now_s, snap)
        assert set(model._jobs) == {"job-0", "job-1"}
    said(model, 5460.0, one)
    assert set(model._jobs) == {"job-0"}


def test_what_the_controller_tells_of_a_new_job_is_what_was_promised() -> None:
    """Siblings end all the time, so it is their posterior that is told: with the margins that make promises hold."""
    rng = np.random.default_rng(3)
    submit_s, run_s = np.cumsum(rng.exponential(60.0, 700)), rng.lognormal(6.5, 1.5, 700)
    model, told = Runtimes(), np.full((700, len(LEVELS)), np.nan)
    begun_s: dict[int, float] = {}
    now_s, met = 0.0, 0
    while met < len(submit_s):
        now_s += 60.0
        over = [number for number, at_s in begun_s.items() if at_s + run_s[number] <= now_s]
        while met < len(submit_s) and submit_s[met] <= now_s:
            begun_s[met] = now_s
            met += 1
        items = [
            Item(
                f"job-{number}",
                {
                    "state": State.SUCCEEDED if number in over else State.RUNNING,
                    "submit_s": submit_s[number],
                    "start_s": at_s,
                    "served_s": run_s[number] if number in over else 0.0,
                    "name": f"train{number % 3}",
                    "gpus": 1,
                },
            )
            for number, at_s in begun_s.items()
        ]
        found = said(model, now_s, snapshot("60x8", items))
        for row, number in enumerate(begun_s):
            if np.isnan(told[number, 0]):
                told[number] = found.total_s[row]
        begun_s = {number: at_s for number, at_s in begun_s.items() if number not in over}
    kept = (run_s[:, None] <= told)[200:].mean(axis=0)
    assert kept[LEVELS.index(0.9)] == pytest.approx(0.9, abs=0.03)
    assert kept[LEVELS.index(0.99)] >= 0.98
