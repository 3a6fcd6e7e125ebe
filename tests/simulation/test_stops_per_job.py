"""A long job that is the cheapest victim again and again is not stopped without end."""

from __future__ import annotations

from pathlib import Path

import pytest

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.simulate import simulate
from autopilot.core.model.policy.bounds import Protection

HOURS = 67


@pytest.mark.parametrize("policy", ["strict", "elastic"])
def test_a_long_job_is_stopped_a_few_times_however_often_short_ones_come(tmp_path: Path, policy: str) -> None:
    """Each hour a job of ten minutes asks for the GPUs of one that needs 67 hours. Several share a stop, and none waits
    until the long one has ended.
    """
    rows = [f"long,t,0,{HOURS * 3600},8", *(f"short-{hour:02d},t,{hour * 3600},600,8" for hour in range(1, HOURS))]
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("\n".join(["job_id,tenant,submit_s,duration_s,gpus", *rows]) + "\n", encoding="utf-8")
    (played,) = simulate(
        SimulateOptions(
            jobs=jobs,
            cluster="1x8",
            policies=("autopilot",),
            policy_set=(f"tenancy.guarantee={policy}",),
            physics="charged",
            telemetry="off",
            durations="exact",
            seed=1,
            series=False,
        )
    ).policies
    assert played.simulated.found.violations == ()
    found = played.result["disruptions"]
    assert 2 < found["stops_per_job_max"] <= Protection().most_stops
    assert (found["stops_per_job_p50"], found["contract_stops_per_job_max"]) == (0, 0)
    assert played.result["jobs"]["queue_wait_s_p99"] < HOURS * 3600 / 2
