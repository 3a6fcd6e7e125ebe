"""Siblings: what came of some says what to expect of the others, and how far."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import numpy as np
import pytest

from autopilot.core.model.forecast import LEVELS
from autopilot.core.model.snapshot import F64, Bools
from models import siblings
from models.siblings import EDGES, MOST_KINS, MOST_SIBLINGS, Siblings, cell_mass, usual_mass

MIDDLE, LATE = LEVELS.index(0.5), LEVELS.index(0.9)
VAGUE_S = np.exp(8.0 + 2.0 * np.array([-1.645, -0.674, 0.0, 0.674, 1.282, 1.645, 2.326]))[None, :]


def batch(jobs: int, apart_s: float = 10.0) -> Siblings:
    """Jobs `a-0`, `a-1`, ... under a vague forecast, after one other job that ended after an hour."""
    found = Siblings()
    found.add("old", "other", 0.0)
    found.end("old", float(np.log(3600.0)))
    for number in range(jobs):
        found.add(f"a-{number}", "a", 1000.0 + apart_s * number)
        found.foresee([f"a-{number}"], VAGUE_S)
    return found


def middle_s(said: Mapping[Hashable, F64], name: str) -> float:
    """The median."""
    return float(np.exp(said[name][MIDDLE]))


def test_cells_hold_the_mass_that_the_quantiles_say() -> None:
    """Below the median lies half of it, and a forecast without any spread lies in one place."""
    mass = cell_mass(np.vstack([VAGUE_S, np.full((1, len(LEVELS)), 600.0)]))
    assert mass.sum(axis=1) == pytest.approx(1.0)
    assert mass[0, EDGES[1:] <= 8.0 + 1e-9].sum() == pytest.approx(0.5, abs=0.01)
    assert mass[1, np.abs(EDGES[1:] - np.log(600.0)) < 0.5].sum() > 0.99


def test_jobs_that_still_run_make_the_usual_run_time_longer() -> None:
    """Nine ended after a minute; ten more that have run for an hour move mass beyond the hour."""
    ended, late = np.full(9, np.log(60.0)), EDGES[:-1] > np.log(3600.0)
    without, beside = usual_mass(ended, np.zeros(0)), usual_mass(ended, np.full(10, 3600.0))
    assert without.sum() == pytest.approx(1.0)
    assert without[late].sum() < 0.1
    assert beside[late].sum() > 0.4


def test_siblings_that_ended_move_those_that_wait() -> None:
    """Ten of twelve ended after ten minutes, after the others were submitted."""
    found = batch(12)
    before = found.renewed()["a-11"]
    for number in range(10):
        found.end(f"a-{number}", float(np.log(600.0)))
    after = found.renewed()["a-11"]
    assert 480.0 < np.exp(after[MIDDLE]) < 750.0
    assert after[LATE] - after[0] < 0.5 * (before[LATE] - before[0])


def test_siblings_that_outlive_the_forecast_move_those_that_wait() -> None:
    """Nothing has ended: ten run for three hours already."""
    found = batch(12)
    before = middle_s(found.renewed(), "a-11")
    found.ran([f"a-{number}" for number in range(10)], np.full(10, 3 * 3600.0))
    assert middle_s(found.renewed(), "a-11") > max(3.0 * before, 3 * 3600.0)


def test_far_siblings_say_less_than_near_ones() -> None:
    """The same outcome, ten seconds or a day apart; beyond the reach it says nothing."""
    said = []
    for apart_s in (10.0, 86_400.0):
        found = batch(2, apart_s)
        start = middle_s(found.renewed(), "a-1")
        found.end("a-0", float(np.log(60.0)))
        said.append(middle_s(found.renewed(), "a-1") / start)
    assert said[0] < 0.3
    assert said[1] > 0.8
    found = batch(MOST_SIBLINGS + 2)
    found.renewed()
    found.end("a-0", float(np.log(60.0)))
    after, far = found.renewed(), f"a-{MOST_SIBLINGS + 1}"
    assert f"a-{MOST_SIBLINGS}" in after
    assert far not in after  # nobody who speaks for it was heard of
    assert middle_s(after, "a-1") < 0.7 * middle_s(found.said([far]), far)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_renewed_piece_by_piece_is_what_would_be_said_of_all(seed: int) -> None:
    """Jobs come, run on and end in any order; who is not renewed would be told what it was told before."""
    rng = np.random.default_rng(seed)
    found, told, ran_s = batch(0), dict[str, F64](), dict[str, float]()
    for number in range(4 * MOST_SIBLINGS):
        name = f"a-{number}"
        found.add(name, "a", 10.0 * number)
        found.foresee([name], VAGUE_S)
        ran_s[name] = 0.0
        for other in rng.choice(list(ran_s), min(3, len(ran_s)), replace=False).tolist():
            ran_s[other] = 2.0 * ran_s[other] + 30.0
            found.ran([other], np.array([ran_s[other]]))
            if ran_s[other] > 1000.0:
                found.end(other, float(np.log(ran_s.pop(other))))
                told.pop(other, None)
        told.update({str(job): said for job, said in found.renewed().items()})
    assert set(told) == set(ran_s)
    now = found.said(list(told))
    for job, said in told.items():
        np.testing.assert_allclose(said, now[job], rtol=1e-9)


def test_a_running_job_is_foreseen_given_what_it_has_run() -> None:
    """All quantiles lie beyond, and the job does not count as its own sibling."""
    found = batch(1)
    found.ran(["a-0"], np.array([7200.0]))
    said = np.exp(found.renewed()["a-0"])
    assert said[0] >= 7200.0
    assert (np.diff(said) > 0.0).all()


def test_jobs_submitted_before_anything_was_known_are_foreseen_when_something_is() -> None:
    """No forecast before the first job ends, whichever it is."""
    found = Siblings()
    for name, key in (("early", "a"), ("first", "b")):
        found.add(name, key, 0.0)
    assert found.renewed() == {}
    found.end("first", float(np.log(600.0)))
    assert list(found.renewed()) == ["early"]


def test_what_is_remembered_is_bounded() -> None:
    """Ten thousand jobs that came and went leave no more than those still relevant."""
    found = batch(0)
    for number in range(10_000):
        found.add(f"a-{number}", "a", float(number))
        found.end(f"a-{number}", 6.0)
        if number % 50 == 0:
            found.renewed()
    kin = found._kins["a"]  # a bound is not visible from outside
    assert len(kin.log_s) < 4 * MOST_SIBLINGS


def test_one_job_asked_alone_is_told_what_all_are() -> None:
    """Without waiting for news, and without using them up."""
    found = batch(6)
    found.end("a-0", float(np.log(600.0)))
    alone = found.said(["a-3"])["a-3"]
    assert alone.tolist() == found.renewed()["a-3"].tolist()
    assert found.renewed() == {}
    assert found.beside("a-3") == [f"a-{number}" for number in range(1, 6)]


def test_a_renewal_looks_at_few_siblings_however_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """400 of a kind wait between 400 that ended: the same answers as one by one, each from a bounded neighbourhood."""
    found = batch(800)
    for number in range(0, 800, 2):
        found.end(f"a-{number}", float(np.log(60.0 + number)))
    looked: list[tuple[int, int]] = []
    posterior = siblings._posterior

    def counted(prior: F64, weight: F64, log_s: F64, ended: Bools, spread: F64) -> F64:
        looked.append(weight.shape)
        return posterior(prior, weight, log_s, ended, spread)

    monkeypatch.setattr(siblings, "_posterior", counted)
    said = found.renewed()
    assert sum(jobs for jobs, _ in looked) == 400
    assert max(beside for _, beside in looked) <= 3 * MOST_SIBLINGS
    monkeypatch.undo()
    for name in list(said)[::37]:
        assert said[name] == pytest.approx(found.said([name])[name], rel=1e-12)


def test_kinds_without_end_are_forgotten() -> None:
    """One job of each of more kinds than are kept: only those that wait, and the newest, remain."""
    found = batch(1)
    for number in range(MOST_KINS + 10):
        found.add(f"b-{number}", number, 5000.0)
        found.end(f"b-{number}", 6.0)
    assert len(found._kins) < 20
    assert "a-0" in found.renewed()
