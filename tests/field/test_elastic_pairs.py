"""Elastic jobs of a file share what there is, by whole members, and are not evicted for each other."""

from pathlib import Path

import pandas as pd
import pytest

from autopilot.api import load, simulate
from simulator.specs.clusterfile import shape_cluster
from simulator.specs.inventory import build_inventory
from simulator.traces.jobs import jobs_from_frame
from simulator.world.work import jobs_from_trace


@pytest.mark.parametrize(("gpus", "least", "kept"), [(5, 1, "elastic"), (5, 1, "strict"), (8, 4, "elastic")])
def test_two_elastic_jobs_run_at_once(gpus: int, least: int, kept: str, tmp_path: Path) -> None:
    """Both want most of one node. At most two evictions, and no GPU that a member would fit on stays idle for long."""
    rows = [f"j{queue},{queue},{at_s},4000,{gpus},{least},true,60" for queue, at_s in (("a", 0), ("b", 300))]
    head = "job_id,tenant,submit_s,duration_s,gpus,min_gpus,preemptible,restart_s"
    (tmp_path / "jobs.csv").write_text("\n".join([head, *rows, ""]), "utf-8")
    found = simulate(load(tmp_path / "jobs.csv", cluster="1x8"), policy_set=[f"tenancy.guarantee={kept}"]).result
    assert sum(job["evictions"] for job in found["jobs"]["longest_waits"]) <= 2
    assert found["jobs"]["queue_wait_s_mean"] <= 600
    assert found["utilization"]["allocation_ratio"] >= 0.8


@pytest.mark.parametrize(
    ("gpus", "least", "nodes", "member", "starts_at"),
    [
        (5, 1, None, 1, 1),
        (16, 8, None, 8, 8),
        (16, 4, None, 4, 4),
        (24, 16, None, 8, 16),
        (20, 10, None, 5, 10),
        (16, None, None, 8, 16),
        (5, 5, None, 5, 5),
        (16, 3, 2, 8, 8),
        (8, 3, 1, 8, 8),
    ],
)
def test_the_least_width_is_whole_members(
    gpus: int, least: int | None, nodes: int | None, member: int, starts_at: int
) -> None:
    """Where the file names no members, they are as wide as the least width allows; where it does, the width follows."""
    frame = pd.DataFrame(
        {"job_id": ["a"], "tenant": ["t"], "submit_s": [0], "duration_s": [9], "gpus": [gpus], "nodes": [nodes]}
        | {"min_gpus": [least]}
    )
    jobs = jobs_from_trace(jobs_from_frame(frame, Path("jobs.csv")), build_inventory(shape_cluster(4, 8)))
    shape = jobs.shape_of(0)
    assert (shape.per_member, shape.min_gpus) == (member, starts_at)
