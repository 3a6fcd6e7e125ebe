"""Hazards by age: the formula by hand, the index against integration, quantiles against outcomes, bounds of memory."""

from __future__ import annotations

import numpy as np
import pytest

from autopilot.core.model.forecast import LEVELS
from models import hazards
from models.hazards import (
    BINS,
    EDGES_S,
    FIRST_HAZARD,
    LEAST_HORIZON_S,
    WIDTH_S,
    Counts,
    Groups,
    bins_of,
    index_per_s,
    known_age_s,
    lasting_ratio,
    total_quantiles_s,
)

HOUR_S = 3600.0
NARROW, WIDE = 1000, 8000


def counted(groups: Groups, tenant: str, width: int, ages_s: np.ndarray, ended: bool = True) -> None:
    """Add jobs that were followed from their start."""
    rows = np.full(len(ages_s), groups.row_of(tenant, width))
    groups.count(rows, np.zeros(len(rows)), ages_s, np.full(len(rows), float(ended)))


def hazard_of(groups: Groups, tenant: str, width: int) -> np.ndarray:
    """Its row, 1/s. Shape [bins]."""
    none = np.empty(0)
    found = groups.with_open(np.empty(0, np.int64), none, none).hazards()
    return np.asarray(found[groups.pairs().index((tenant, width))])


def index_at(hazard: np.ndarray, age_s: float) -> float:
    """The index of one job, 1/s."""
    return float(index_per_s(hazard[None, :], np.array([age_s]))[0])


def test_edges_are_those_of_the_definition() -> None:
    """0, 30 s, and each sqrt(2) times the one before, beyond a hundred days."""
    assert EDGES_S[:4] == pytest.approx([0.0, 30.0, 42.426, 60.0], abs=1e-3)
    assert len(EDGES_S) == len(WIDTH_S) == BINS
    assert EDGES_S[-1] > 100 * 86_400.0


def test_a_hazard_is_ends_by_time_at_risk_shrunk_twice() -> None:
    """By hand, in the second bin (30 to 42.4 s): two narrow jobs and a wide one of a tenant, one of another."""
    groups = Groups()
    counted(groups, "a", NARROW, np.array([40.0, 100.0]))
    counted(groups, "a", WIDE, np.array([35.0]))
    counted(groups, "b", WIDE, np.array([31.0]))
    whole = WIDTH_S[1]

    def shrunk(ended: int, risk_s: float, wider: float) -> float:
        return (ended + 1.0) / (risk_s + 1.0 / wider)

    every = shrunk(3, 10.0 + whole + 5.0 + 1.0, FIRST_HAZARD[1])
    tenant = shrunk(2, 10.0 + whole + 5.0, every)
    assert hazard_of(groups, "a", NARROW)[1] == pytest.approx(shrunk(1, 10.0 + whole, tenant))
    wide_every = shrunk(2, 5.0 + 1.0, FIRST_HAZARD[1])  # narrow jobs are no evidence for wide ones
    assert hazard_of(groups, "b", WIDE)[1] == pytest.approx(shrunk(1, 1.0, shrunk(1, 1.0, wide_every)))


def test_jobs_that_have_not_ended_count_as_time_at_risk() -> None:
    """Ten of an hour ended and ninety run for ten: leaving out those that run would say that every job ends at once."""
    groups = Groups()
    counted(groups, "a", NARROW, np.full(10, HOUR_S))
    alone = hazard_of(groups, "a", NARROW)
    rows, ages_s = np.full(90, groups.row_of("a", NARROW)), np.full(90, 10 * HOUR_S)
    both = groups.with_open(rows, np.zeros(90), ages_s).hazards()[0]
    at = int(bins_of(np.array([HOUR_S]))[0])
    assert both[at] == pytest.approx(10.0 / (90 * WIDTH_S[at]), rel=0.3)
    assert alone[at] > 10.0 * both[at]
    assert (both <= alone).all()


def test_a_job_is_at_risk_from_the_age_at_which_it_was_first_seen() -> None:
    """What ran for an hour before the controller started says nothing about shorter jobs."""
    groups = Groups()
    row = np.array([groups.row_of("a", NARROW)])
    found = groups.with_open(row, np.array([HOUR_S]), np.array([2 * HOUR_S]))
    assert found.risk_s[0].sum() == pytest.approx(HOUR_S)
    assert found.risk_s[0][EDGES_S + WIDTH_S < HOUR_S].sum() == 0.0


@pytest.mark.parametrize("age_s", [0.0, 1800.0, 90_000.0])
def test_a_constant_hazard_is_its_own_index(age_s: float) -> None:
    """A job without memory: its index is its rate, at every age."""
    assert index_at(np.full(BINS, 1.0 / 7200.0), age_s) == pytest.approx(1.0 / 7200.0)


def test_the_index_is_the_maximum_over_horizons() -> None:
    """Against integration in steps of a second, for hazards that rise and fall; all jobs end within thirty hours."""
    rng = np.random.default_rng(3)
    for age_s in (0.0, 20.0, 700.0, 5000.0) * 3:
        hazard = np.exp(rng.uniform(np.log(1e-6), np.log(1e-3), BINS))
        hazard[EDGES_S > 20 * HOUR_S] = 1e-2
        spans_s = np.arange(1.0, 30 * HOUR_S)
        gone = np.cumsum(hazard[bins_of(age_s + spans_s - 1.0)])
        ends, spent_s = 1.0 - np.exp(-gone), np.cumsum(np.exp(-np.concatenate([[0.0], gone[:-1]])))
        edges_s = EDGES_S[(EDGES_S >= age_s + LEAST_HORIZON_S) & (EDGES_S < 25 * HOUR_S)]
        places = np.rint(np.append(edges_s, age_s + spans_s[-1]) - age_s).astype(int) - 1
        assert index_at(hazard, age_s) == pytest.approx(float((ends / spent_s)[places].max()), rel=0.01)


def test_work_that_is_repeated_is_time_spent() -> None:
    """A job without memory that first repeats an hour: 1 / (7200 s + an hour)."""
    hazard = np.full((1, BINS), 1.0 / 7200.0)
    assert index_per_s(hazard, np.zeros(1), np.array([HOUR_S]))[0] == pytest.approx(1.0 / (7200.0 + HOUR_S), rel=1e-6)


def test_a_tenant_whose_long_jobs_run_through_keeps_its_index() -> None:
    """Half end in ten minutes, half after a day: what passed the minutes falls behind, and rises towards its end."""
    rng = np.random.default_rng(1)
    groups = Groups()
    counted(groups, "a", WIDE, rng.lognormal(np.log(600.0), 0.3, 200))
    counted(groups, "a", WIDE, rng.lognormal(np.log(86_400.0), 0.2, 200))
    hazard = hazard_of(groups, "a", WIDE)
    young, old, late = (index_at(hazard, age_s) for age_s in (0.0, 2 * HOUR_S, 16 * HOUR_S))
    assert young > 10.0 * old
    assert late > 1.3 * old


def test_quantiles_are_calibrated_at_every_age() -> None:
    """Fresh draws of the same jobs, given that they outlived an age: each level holds its share of them."""
    rng = np.random.default_rng(11)
    groups = Groups()
    ages_s = rng.lognormal(np.log(4000.0), 1.5, 4000)
    counted(groups, "a", NARROW, ages_s)
    hazard = hazard_of(groups, "a", NARROW)
    fresh_s = rng.lognormal(np.log(4000.0), 1.5, 20_000)
    for age_s in (0.0, 600.0, 7200.0):
        lasting = fresh_s[fresh_s > age_s]
        bounds_s = total_quantiles_s(hazard[None, :], np.array([age_s]), LEVELS)[0]
        held = (lasting[:, None] <= bounds_s).mean(axis=0)
        assert held == pytest.approx(LEVELS, abs=0.02)


def test_the_probability_transform_is_uniform_under_censoring() -> None:
    """Half of the jobs are followed for a part of their time only: the transform of whole jobs is uniform still."""
    rng = np.random.default_rng(12)
    groups = Groups()
    whole_s = rng.weibull(0.7, 6000) * 5000.0
    seen_s = np.where(rng.random(6000) < 0.5, rng.random(6000) * 20_000.0, np.inf)
    counted(groups, "a", NARROW, whole_s[whole_s <= seen_s])
    counted(groups, "a", NARROW, seen_s[whole_s > seen_s], ended=False)
    hazard = hazard_of(groups, "a", NARROW)
    fresh_s = rng.weibull(0.7, 5000) * 5000.0
    reached = lasting_ratio(np.repeat(hazard[None, :], 5000, axis=0), np.zeros(5000))
    at = bins_of(fresh_s)
    inside = np.exp(-hazard[at] * (fresh_s - EDGES_S[at]))
    transform = 1.0 - reached[np.arange(5000), at] * inside
    shares, _ = np.histogram(transform, np.linspace(0.0, 1.0, 11))
    assert shares / 5000 == pytest.approx(0.1, abs=0.02)


def test_tiny_jobs_do_not_lift_the_wide_jobs_of_their_tenant() -> None:
    """Ten thousand jobs of a minute on one GPU: the index of its gangs of eight stays as it was, at every age."""
    rng = np.random.default_rng(2)
    honest, split = Groups(), Groups()
    for groups in (honest, split):
        counted(groups, "a", WIDE, np.random.default_rng(4).lognormal(np.log(30_000.0), 0.8, 40))
        counted(groups, "b", WIDE, np.random.default_rng(5).lognormal(np.log(20_000.0), 1.2, 200))
    counted(split, "a", NARROW, rng.lognormal(np.log(60.0), 0.3, 10_000))
    for age_s in (0.0, 900.0, 7200.0, 40_000.0):
        before, after = (index_at(hazard_of(groups, "a", WIDE), age_s) for groups in (honest, split))
        assert after <= 1.1 * before


def test_a_tenant_with_one_job_is_told_by_the_others() -> None:
    """One job weighs one pseudo-event: its tenant's index lies near that of all."""
    rng = np.random.default_rng(6)
    groups = Groups()
    counted(groups, "many", NARROW, rng.lognormal(np.log(5000.0), 1.0, 1000))
    counted(groups, "one", NARROW, np.array([5000.0]))
    every, one = (index_at(hazard_of(groups, name, NARROW), 0.0) for name in ("many", "one"))
    assert 0.4 * every <= one <= 2.5 * every


def test_broken_ages_are_unknown() -> None:
    """NaN, negative numbers and centuries are no ages; zero is one."""
    found = known_age_s(np.array([np.nan, -1.0, 1e12, np.inf, 0.0, 5.0]))
    assert np.isnan(found[:4]).all()
    assert found[4:].tolist() == [0.0, 5.0]


def test_ten_thousand_tenants_stay_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least recently used half goes to the nameless tenant: nothing that was counted is lost."""
    monkeypatch.setattr(hazards, "MOST_GROUPS", 1000)
    groups = Groups()
    for number in range(10_000):
        counted(groups, f"tenant-{number}", 1000 * (1 + number % 8), np.array([600.0]))
        if len(groups) > 1000:
            last = groups.row_of(f"tenant-{number}", 1000 * (1 + number % 8))
            groups.forget(np.array([last]))
    assert len(groups) <= 1000
    assert groups.ended_of(np.arange(len(groups))).sum() == 10_000 == groups.ended_jobs
    assert np.isfinite(hazard_of(groups, "tenant-9999", 8000)).all()


def test_counts_fade_by_half_in_a_month() -> None:
    """What ended long ago weighs less; the number of ended jobs stays."""
    groups = Groups()
    groups.fade(0.0)
    counted(groups, "a", NARROW, np.full(8, 600.0))
    groups.fade(hazards.HALF_LIFE_S)
    assert groups.ended_of(np.array([0])) == pytest.approx(4.0)
    groups.fade(0.0)  # a clock that went back changes nothing
    assert groups.ended_of(np.array([0])) == pytest.approx(4.0)
    assert groups.ended_jobs == 8


def test_counts_are_pure() -> None:
    """The same counts give the same hazards to the last bit, in any order of the groups."""
    rng = np.random.default_rng(9)
    tenant, width = rng.integers(0, 5, 60), rng.integers(1, 9, 60) * 1000
    _, first = np.unique(tenant * 10_000 + width, return_index=True)
    tenant, width = tenant[first], width[first]
    ended, risk_s = rng.integers(0, 9, (len(first), BINS)).astype(float), rng.random((len(first), BINS)) * 1e5
    straight = Counts(tenant, width, ended, risk_s).hazards()
    order = rng.permutation(len(first))
    shuffled = Counts(tenant[order], width[order], ended[order], risk_s[order]).hazards()
    assert shuffled == pytest.approx(straight[order], rel=1e-12)
    assert Counts(tenant, width, ended, risk_s).hazards().tobytes() == straight.tobytes()
