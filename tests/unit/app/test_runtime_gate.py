"""The champion in a backtest of a job file: found by the names of its features, or named with why it cannot be
scored.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from autopilot.app.backtests.backtest_options import GateEvidence, RuntimesOptions
from autopilot.app.backtests.from_jobs import run

JOBS = 1800
"""Enough that boosting is fitted on their first three fifths."""


def judged(path: Path, evidence: GateEvidence) -> GateEvidence:
    """What a backtest of the jobs at `path` leaves for the gate."""
    run(RuntimesOptions(jobs=path, evidence=evidence), lambda *_: None)
    return evidence


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """Jobs whose run time follows the memory that they ask for."""
    rng = np.random.default_rng(5)
    kind = rng.integers(0, 3, JOBS)
    return pd.DataFrame(
        {
            "job_id": [f"job-{number}" for number in range(JOBS)],
            "tenant": "t",
            "name": "train",
            "submit_s": 60.0 * np.arange(JOBS),
            "duration_s": np.round(60.0 * 8.0**kind * rng.lognormal(0.0, 0.2, JOBS)),
            "gpus": 1,
            "memory_mib": 1024 << kind,
        }
    )


def test_a_champion_is_found_by_the_names_of_its_features(jobs: pd.DataFrame, tmp_path: Path) -> None:
    """On a file with one column more, before its own, it says what it said; on one that lacks its column it is
    named.
    """
    first, more, fewer = (tmp_path / f"{name}.parquet" for name in ("first", "more", "fewer"))
    jobs.to_parquet(first)
    jobs.assign(cpus=4).to_parquet(more)
    jobs.drop(columns="memory_mib").head(300).to_parquet(fewer)
    new = judged(first, GateEvidence())
    assert "memory_mib" in new.feature_schema
    again = judged(more, GateEvidence(champion=new.artifact, champion_schema=new.feature_schema))
    assert again.feature_schema != new.feature_schema
    assert again.champion_problem == ""
    (own,), (case,) = new.cases, again.cases
    assert case.champion is not None
    assert np.array_equal(case.champion.losses["pinball_p90"], own.challenger.losses["pinball_p90"])
    lost = judged(fewer, GateEvidence(champion=new.artifact, champion_schema=new.feature_schema))
    assert "uses unknown attributes of jobs: memory_mib" in lost.champion_problem
    assert lost.cases[0].champion is None


def test_rows_that_cannot_be_used_are_told(jobs: pd.DataFrame, tmp_path: Path) -> None:
    """By reason, and a note that jobs without a run time count as running."""
    odd = jobs.head(100).astype({"duration_s": float, "submit_s": float})
    odd.loc[[3, 4], "duration_s"] = [0.0, -5.0]
    odd.loc[5, "submit_s"] = np.nan
    odd.loc[[97, 98, 99], "duration_s"] = np.nan
    path = tmp_path / "odd.csv"
    odd.to_csv(path, index=False)
    document = run(RuntimesOptions(jobs=path), lambda *_: None)
    assert document["jobs"] == 94
    assert document["left_out_by_reason"] == {
        "without a submit time": 1,
        "whose run time is 0, below 0 or infinite": 2,
    }
    assert list(document["assumed_by_reason"].values()) == [3]
