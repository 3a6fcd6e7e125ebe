"""The gate inside a fit of run times: the data of the verdict, what passes, what is refused, and which model serves
then.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.special import ndtri

from autopilot.app.backtests.gate import bootstrap_rng
from autopilot.core.model.errors import InputError
from autopilot.core.model.forecast import LEVELS
from autopilot.core.model.policy.bounds import Forecasting
from autopilot.core.model.snapshot import F64, State
from models.backtest import GateVerdict
from models.forest import Forest
from models.opinions import BOOSTED, NEIGHBOURS, OPINIONS
from models.recent import ENDED
from models.runtime_boosting import Boosted, boosted_from, content_of, placed
from models.runtime_proving import MOST_JUDGED, EndedJob, Proof, Trial, opinions_with, parted, proved
from models.runtimes import FEATURES, Fit, FitWork, Runtimes
from tests.contracts.test_runtime_models import job, said, world
from tests.kits.registry_kit import small_boosted

SPREAD = 0.3
USUAL = np.log(600.0)


@dataclass(frozen=True, slots=True)
class Told(Boosted):
    """Stands for a fitted model: it knows the usual log run time of a job (its only feature), and adds `wrong`."""

    wrong: float = 0.0

    @property
    def work(self) -> int:
        """A small fit."""
        return 5000

    def predict(self, features: F64) -> F64:
        """Quantiles around the usual."""
        return np.asarray(features[:, :1] + self.wrong + SPREAD * ndtri(np.asarray(LEVELS)))


def told(wrong: float = 0.0) -> Told:
    """A model that is wrong by so much, in logs."""
    return Told(LEVELS, (), np.zeros(1, np.int32), 1, 1000, Forest(()), wrong)


def jobs_of(count: int = 800) -> tuple[EndedJob, ...]:
    """Jobs of two kinds by turns of chance, minutes and hours; who looks at the last jobs alone cannot tell them
    apart.
    """
    rng = np.random.default_rng(4)
    usual = USUAL + 2.5 * rng.integers(0, 2, count)
    log_s = usual + SPREAD * rng.normal(size=count)
    opinions = np.full((len(OPINIONS), len(LEVELS)), np.nan)
    opinions[:BOOSTED] = USUAL + np.linspace(-1.0, 3.2, len(LEVELS))
    nobody = np.full(ENDED + NEIGHBOURS, np.nan, np.float32)
    return tuple(
        EndedJob(
            f"tenant {number % 2}",
            number % 5,
            120.0 * number,
            120.0 * number + float(np.exp(log_s[number])),
            float(log_s[number]),
            usual[number : number + 1],
            opinions,
            nobody,
        )
        for number in range(count)
    )


def verdict_on(challenger: Boosted, champion: Boosted | None = None) -> GateVerdict:
    """What the gate says."""
    return proved(challenger, Trial(jobs_of(), bootstrap_rng, champion)).verdict


def test_a_model_that_tells_jobs_apart_passes_every_time_alike() -> None:
    """Against the last jobs alone, and against a champion that is wrong; a second look gives the same verdict."""
    assert verdict_on(told()).reasons == ()
    assert verdict_on(told()) == verdict_on(told())
    found = verdict_on(told(), told(wrong=1.5))
    assert found.passed
    assert found.against_champion


@pytest.mark.parametrize("wrong", [-2.5, 3.0])
def test_a_model_that_is_wrong_is_refused(wrong: float) -> None:
    """Too short or too long for every job: it is not ahead of those that spoke before, and the first reason says so."""
    found = verdict_on(told(wrong))
    assert not found.passed
    refusal = found.refusal("boosting")
    assert refusal is not None
    assert refusal.startswith("the gate refused boosting: run time, all: pinball_p90 against the champion")


def test_a_model_as_good_as_the_champion_does_not_replace_it() -> None:
    """Nothing changes without gain."""
    found = verdict_on(told(), told())
    assert "run time, all: pinball_p90 against the champion: 1.000 of its loss, the limit is 0.98" in found.reasons


def test_where_nothing_can_be_judged_the_model_is_refused() -> None:
    """An empty window shows nothing."""
    assert not proved(told(), Trial((), bootstrap_rng)).verdict.passed


def test_the_fit_knows_nothing_of_what_came_after_the_window_began() -> None:
    """Known jobs had ended by then; the window was submitted since; who ran then, or runs still, counts with its time
    so far.
    """
    jobs = jobs_of()
    now_s = max(job.end_s for job in jobs)
    parts = parted(jobs, np.array([now_s - 5000.0, 60.0]), now_s)
    assert len(parts.window) == len(jobs) // 4
    assert min(job.submit_s for job in parts.window) == parts.window_s
    assert all(job.end_s < parts.window_s for job in parts.known)
    between = [job for job in jobs if job.submit_s < parts.window_s <= job.end_s]
    assert between
    assert len(parts.known) + len(between) + len(parts.window) == len(jobs)
    since_s = sorted(parts.window_s - job.submit_s for job in between)
    assert sorted(parts.running_s) == pytest.approx(sorted([*since_s, parts.window_s - 5000.0]))


def test_the_window_is_bounded_and_leaves_out_whom_nobody_foresaw() -> None:
    """However long the history is; a job without the floor's opinion cannot be compared."""
    jobs = jobs_of(4 * MOST_JUDGED + 400)
    assert len(parted(jobs, np.zeros(0), jobs[-1].end_s).window) == MOST_JUDGED
    unforeseen = EndedJob(
        "t", 0, 1e9, 1e9 + 60.0, 4.0, np.zeros(1), np.full_like(jobs[0].opinions, np.nan), jobs[0].candidates
    )
    assert parted([*jobs[:39], unforeseen], np.zeros(0), 1e9 + 60.0).window == jobs[30:39]


def test_what_another_model_said_then_is_left_out() -> None:
    """The place of boosting is filled anew, or empty where there is no champion."""
    jobs = jobs_of(3)
    for each in jobs:
        each.opinions[BOOSTED] = 99.0
    assert np.isnan(opinions_with(jobs, None)[:, BOOSTED]).all()
    assert opinions_with(jobs, told())[:, BOOSTED].max() < 12.0
    assert jobs[0].opinions[BOOSTED, 0] == 99.0


# --- in the forecaster ------------------------------------------------------------------------------


def test_a_fit_is_due_when_enough_is_left_beside_the_window() -> None:
    """A quarter is not fitted on: a thousand ended jobs are not enough, and the fit is tried against the one that
    serves.
    """
    champion = told()
    model = Runtimes(Forecasting(trees=10), gate=bootstrap_rng, champion=champion)
    jobs = jobs_of(1500)
    model._ended = list(jobs[:1300])
    assert model.due(jobs[1299].end_s) is None
    model._ended = list(jobs)
    work = model.due(max(job.end_s for job in jobs))
    assert isinstance(work, FitWork)
    assert work.trial is not None
    assert work.trial.champion is champion
    assert len(work.log_s) <= 1125
    assert work.to_s == work.trial.jobs[0].submit_s
    assert model.due(1e9) is None


def test_what_the_gate_refused_leaves_the_champion_in_its_place() -> None:
    """Adopting a refused fit keeps the champion and reports why; a model that passed serves."""
    champion, better = told(), told(1.0)
    model = Runtimes(gate=bootstrap_rng, champion=champion)
    refused = Proof(told(9.0), GateVerdict(False, "1", True, (), ("it is behind", "it covers too little")))
    said = model.adopt(Fit(champion, refused))
    assert said == "the gate refused boosting for run times: it is behind, and 1 more"
    assert model._fit.boosted is champion
    passed = Proof(better, GateVerdict(True, "1", True, (), ()))
    assert model.adopt(Fit(better, passed)) is None
    assert model._fit.boosted is better


# --- columns ----------------------------------------------------------------------------------------


def test_a_model_of_a_job_file_looks_at_the_same_columns_here() -> None:
    """By name, wherever they stand; one that is not known of jobs here is refused."""
    rows = np.random.default_rng(2).normal(5.0, 2.0, size=(30, 4))
    model = small_boosted(4)
    moved = placed(model, ("gpus", "a", "b", "hour"), ("hour", "limit_s", "gpus"))
    assert np.array_equal(moved.predict(rows[:, [3, 1, 0]]), model.predict(rows))
    with pytest.raises(InputError, match="uses unknown attributes of jobs: hour"):
        placed(model, ("gpus", "a", "b", "hour"), ("gpus", "a"))
    with pytest.raises(InputError, match="forecasts the levels"):
        placed(boosted_from({**content_of(model), "levels": [0.5]}, 4) or model, FEATURES, FEATURES)


def test_the_names_of_the_columns_are_those_of_the_features() -> None:
    """One for each, no two alike."""
    model = Runtimes()
    said(model, 0.0, world(job(0, State.PENDING)))
    assert len(model._jobs["job-0"].features) == len(FEATURES) == len(set(FEATURES))
