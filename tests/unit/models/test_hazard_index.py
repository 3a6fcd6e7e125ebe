"""The forecaster of hazards: ages across restarts, what is an end, when hazards are renewed, and tenants that lie."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from autopilot.core.model.snapshot import ClusterSnapshot, State
from models.hazard_index import RESTART_S, Hazards
from models.hazards import EDGES_S, REFRESH_S
from tests.kits.core_world import Item, snapshot

HOUR_S = 3600.0
LIAR, OTHER = 0, 1


def job(
    name: str, ran_s: float, state: State = State.PENDING, tenant: int = OTHER, gpus: int = 1, **more: object
) -> Item:
    """A job at this age: paused where it does not say otherwise."""
    return Item(name, {"state": state, "served_s": ran_s, "tenant": tenant, "gpus": gpus, "name": name, **more})


def world(jobs: Iterable[Item]) -> ClusterSnapshot:
    """A cluster whose work is `jobs`."""
    return snapshot("1x8", jobs)


def taught(model: Hazards, ages_s: Iterable[float], tenant: int = OTHER, gpus: int = 1, now_s: float = 0.0) -> None:
    """Jobs that came, and ended at these ages."""
    ages = list(enumerate(ages_s))
    model.update(now_s, world(job(f"{tenant}-{gpus}-{at}-{now_s}", 0.0, tenant=tenant, gpus=gpus) for at, _ in ages))
    model.update(
        now_s + 1.0,
        world(job(f"{tenant}-{gpus}-{at}-{now_s}", age_s, State.SUCCEEDED, tenant, gpus) for at, age_s in ages),
    )


def index_of(model: Hazards, now_s: float, *jobs: Item) -> list[float]:
    """What it says of these jobs, in 1/s, once hazards are renewed."""
    snap = world(jobs)
    model.update(now_s, snap)
    return [float(each) for each in model.index_per_s(now_s, snap)]


def mixed(seed: int = 0, count: int = 200) -> np.ndarray:
    """Half of the jobs end in about ten minutes, half after about a day."""
    rng = np.random.default_rng(seed)
    return np.where(
        rng.random(count) < 0.5, rng.lognormal(np.log(600.0), 0.4, count), rng.lognormal(np.log(86_400.0), 0.3, count)
    )


def test_nothing_is_said_before_ten_jobs_ended() -> None:
    """NaN: the decision keeps its other index."""
    model = Hazards()
    taught(model, [600.0] * 9)
    assert np.isnan(index_of(model, 10.0, job("new", 0.0))).all()
    taught(model, [600.0], now_s=20.0)
    assert index_of(model, 100.0, job("new", 0.0))[0] > 0.0


def test_a_paused_job_keeps_its_age() -> None:
    """A stop that lost all progress makes no job young: its index is below that of a young one, and of one its age."""
    model = Hazards()
    taught(model, mixed())
    young, old, lost = index_of(
        model, 100.0, job("young", 0.0), job("old", 2 * HOUR_S), job("lost", 0.0, outlived_s=2 * HOUR_S)
    )
    assert young > 5.0 * old > 5.0 * lost


def test_a_job_that_comes_back_under_its_name_keeps_its_age() -> None:
    """Failed or withdrawn, and made again within the hour: the same job, that has not ended."""
    for state in (State.FAILED, None):
        model = Hazards()
        taught(model, mixed())
        before = model.groups.ended_jobs
        index_of(model, 100.0, job("again", 2 * HOUR_S))
        gone = [] if state is None else [job("again", 2 * HOUR_S, state)]
        model.update(200.0, world(gone))
        again, old = index_of(model, 1200.0, job("again", 0.0, uid="another"), job("old", 2 * HOUR_S))
        assert again == old
        model.update(200.0 + RESTART_S, world([job("again", 60.0, uid="another")]))
        assert model.groups.ended_jobs == before


def test_one_that_failed_has_ended_and_one_that_was_withdrawn_has_not() -> None:
    """Once they did not come back for an hour. Both are time at risk up to their age."""
    model = Hazards()
    model.update(0.0, world([job("failed", 0.0), job("withdrawn", 0.0)]))
    model.update(1.0, world([job("failed", 500.0, State.FAILED), job("withdrawn", 700.0)]))
    model.update(2.0, world([]))
    model.update(2.0 + RESTART_S, world([]))
    assert model.groups.ended_jobs == 1
    none = np.empty(0)
    assert model.groups.with_open(np.empty(0, np.int64), none, none).risk_s.sum() == pytest.approx(1200.0)


def test_the_index_stays_within_a_bin_and_an_hour() -> None:
    """An order does not change with every tick, nor with every job that ends."""
    model = Hazards()
    taught(model, mixed())
    first = index_of(model, 100.0, job("a", 1000.0))
    taught(model, [200.0] * 50, now_s=200.0)
    assert index_of(model, 400.0, job("a", 1300.0)) == first
    assert index_of(model, 100.0 + REFRESH_S, job("a", 1300.0)) != first


@pytest.mark.parametrize("broken_s", [np.nan, -5.0, 1e12, np.inf, 0.0, 0.5])
def test_broken_run_times_change_nothing(broken_s: float) -> None:
    """Zero, NaN, negative and absurd: no end, no time at risk."""
    model, clean = Hazards(), Hazards()
    taught(model, mixed())
    taught(clean, mixed())
    taught(model, [broken_s] * 20, now_s=50.0)
    taught(clean, [0.0] * 20, now_s=50.0)
    assert model.groups.ended_jobs == clean.groups.ended_jobs == 200
    asked = [job("a", 0.0), job("b", 5000.0)]
    assert index_of(model, 5000.0, *asked) == pytest.approx(index_of(clean, 5000.0, *asked), rel=1e-3)


def test_services_and_ended_jobs_have_no_index() -> None:
    """A replica runs until it is taken away."""
    model = Hazards()
    taught(model, mixed())
    found = index_of(model, 100.0, job("replica", 0.0, service=0), job("ended", 5.0, State.SUCCEEDED), job("a", 0.0))
    assert np.isnan(found).tolist() == [True, True, False]


def test_parts_of_gpus_and_instances_are_widths_of_their_own() -> None:
    """Half a GPU, an instance and a GPU are three widths of one tenant."""
    model = Hazards()
    kinds = [job("gpu", 0.0), job("half", 0.0, gpu_milli=500), job("instance", 0.0, mig_profile=0)]
    model.update(0.0, snapshot("1x8", kinds, cuts={}))
    assert sorted(key[1] for key in model.groups.pairs()) == [1, 500, 1000]


def test_five_thousand_jobs_of_ten_thousand_tenants_are_looked_up_at_once() -> None:
    """One tick of many: every job has an index, and equal states give equal bytes."""
    jobs = [job(f"j{at}", float(at % 977) * 60.0, tenant=at % 3, gpus=1 + at % 8) for at in range(5000)]
    snap = world(jobs)
    found = []
    for _ in range(2):
        model = Hazards()
        taught(model, mixed())
        model.update(100.0, snap)
        found.append(model.index_per_s(100.0, snap))
    assert np.isfinite(found[0]).all()
    assert found[0].tobytes() == found[1].tobytes()


def test_quantiles_are_those_of_the_rest_of_a_job() -> None:
    """As a forecaster of its own: rising, finite, at least the age; unknown for services and before ten ended."""
    model = Hazards()
    asked = world([job("young", 0.0), job("old", 50_000.0), job("replica", 0.0, service=0)])
    model.update(0.0, asked)
    before = model.forecast(0.0, asked).runtimes
    assert before is not None
    assert before.known.tolist() == [False, False, False]
    taught(model, mixed(count=400), now_s=10.0)
    model.update(100.0, asked)
    found = model.forecast(100.0, asked).runtimes
    assert found is not None
    assert found.known.tolist() == [True, True, False]
    assert (np.diff(found.total_s[:2], axis=1) >= 0.0).all()
    assert (found.total_s[1] >= 50_000.0).all()
    assert 400.0 < found.total_s[0, 1] < 900.0  # a quarter of them end by then
    assert 60_000.0 < found.total_s[1, 2] < 130_000.0
    assert found.history.tolist() == [400, 400, 0]


# --- tenants that lie -----------------------------------------------------------------------


def honest_index(model: Hazards, now_s: float, life_s: float = 24 * HOUR_S) -> float:
    """The average index of a wide job of the liar over its life, weighted by time."""
    ages_s = EDGES_S[EDGES_S < life_s]
    spans_s = np.diff(np.append(ages_s, life_s))
    found = index_of(
        model, now_s, *(job(f"at-{age_s:.0f}", float(age_s), tenant=LIAR, gpus=8) for age_s in ages_s.tolist())
    )
    return float(np.average(found, weights=spans_s))


def test_names_drawn_at_random_gain_nothing() -> None:
    """The index does not read names: to the last bit that of honest names."""
    honest, random = Hazards(), Hazards()
    rng = np.random.default_rng(1)
    for model in (honest, random):
        taught(model, mixed(1), OTHER)
        taught(model, mixed(2), LIAR, now_s=10.0)
    asked = [job(f"train-{at}", at * 100.0, tenant=LIAR) for at in range(20)]
    lies = [job(rng.bytes(8).hex(), at * 100.0, tenant=LIAR) for at in range(20)]
    assert index_of(honest, 100.0, *asked) == index_of(random, 100.0, *lies)


def test_many_tiny_jobs_gain_nothing_for_the_wide_ones() -> None:
    """A thousand jobs of a minute on one GPU beside forty gangs of eight: at most 10 % at any age."""
    honest, liar = Hazards(), Hazards()
    for model in (honest, liar):
        taught(model, mixed(1), OTHER)
        taught(model, np.random.default_rng(3).lognormal(np.log(40_000.0), 0.7, 40), LIAR, 8, now_s=10.0)
    taught(liar, np.random.default_rng(4).lognormal(np.log(60.0), 0.3, 1000), LIAR, 1, now_s=20.0)
    asked = [job(f"at-{age_s:.0f}", age_s, tenant=LIAR, gpus=8) for age_s in (0.0, 1800.0, 20_000.0, 90_000.0)]
    for before, after in zip(index_of(honest, 5000.0, *asked), index_of(liar, 5000.0, *asked), strict=True):
        assert after <= 1.1 * before


@pytest.mark.parametrize("state", [State.FAILED, None])
def test_restarts_under_one_name_gain_nothing(state: State | None) -> None:
    """A gang of a day that is withdrawn, or made to fail, every five minutes is as old as one that is not."""
    model, now_s, gains = Hazards(), 100.0, []
    taught(model, mixed(2), LIAR, 8)
    for turn in range(1, 40):
        liar, ran_s = job("liar", 300.0, tenant=LIAR, gpus=8, uid=f"u{turn}"), 300.0 * turn
        lying, honest = index_of(model, now_s, liar, job(f"h{turn}", ran_s, tenant=LIAR, gpus=8))
        gains.append(lying / honest)
        model.update(now_s + 1.0, world([] if state is None else [job("liar", 300.0, state, LIAR, 8, uid=f"u{turn}")]))
        now_s += 300.0
    assert max(gains) <= 1.1


def test_a_narrow_job_that_comes_back_as_a_wide_one_is_judged_as_wide() -> None:
    """Under the name of a job of a minute: its width and age count, not what it was."""
    model = Hazards()
    taught(model, np.full(50, 60.0), LIAR, 1)
    taught(model, np.random.default_rng(3).lognormal(np.log(40_000.0), 0.7, 50), LIAR, 8, now_s=10.0)
    index_of(model, 100.0, job("liar", 0.0, tenant=LIAR, gpus=1))
    liar, wide = index_of(
        model, 200.0, job("liar", 0.0, tenant=LIAR, gpus=8, uid="other"), job("wide", 0.0, tenant=LIAR, gpus=8)
    )
    assert liar == wide


def test_restarts_under_new_names_wear_out() -> None:
    """Gangs of a day that are withdrawn and made again every half hour, under new names, are never seen to end: in the
    third day a young one has no more than the average of an honest one over its life.
    """
    honest, liar = Hazards(), Hazards()
    for model in (honest, liar):
        taught(model, mixed(1), OTHER, 8)
        taught(model, mixed(2), LIAR, 8, now_s=10.0)
    at_first = index_of(liar, 100.0, job("young", 0.0, tenant=LIAR, gpus=8))[0]
    for turn in range(144):
        now_s = 100.0 + 1800.0 * turn
        liar.update(now_s, world(job(f"{turn}-{at}", 0.0, tenant=LIAR, gpus=8) for at in range(40)))
        liar.update(now_s + 1790.0, world(job(f"{turn}-{at}", 1790.0, tenant=LIAR, gpus=8) for at in range(40)))
    end_s = 100.0 + 1800.0 * 144 + RESTART_S
    young = index_of(liar, end_s, job("young", 0.0, tenant=LIAR, gpus=8))[0]
    assert young <= 1.1 * honest_index(honest, end_s)
    assert young < 0.1 * at_first
