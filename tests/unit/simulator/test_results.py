from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopilot.core.model.errors import InputError
from autopilot.files import write_document
from simulator.baselines import BASELINES
from simulator.baselines.textbook import Textbook, by_submit
from simulator.outcome.results import (
    Measured,
    Reservations,
    Setting,
    document,
    job_rows,
    policy_result,
    quantile,
    write_job_rows,
)
from simulator.running.accounting import gpu_s, utilization_bound
from simulator.running.simulation import Simulated, Simulation, alone_jct_s, bound_ratio, width_gpus
from simulator.specs.clusterfile import shape_cluster
from simulator.specs.inventory import build_inventory
from simulator.traces.jobs import jobs_from_frame
from simulator.world.physics import CHARGED, IDEAL, REAL, TICKS_PER_S
from simulator.world.work import Jobs, Shape, jitter, jobs_from_trace
from tests.kits.cluster_kit import cluster_of, gang, inventory, make_jobs, one_job

KEYS = {
    "tenants",
    "reservations",
    "gpu_s",
    "guarantees",
    "jobs",
    "makespan_s",
    "utilization",
    "slo",
    "disruptions",
    "fragmentation",
    "idle",
    "invariants",
    "wall_s",
    "fared_worse",
}
INNER = {
    "reservations": "made kept late released",
    "gpu_s": "capacity allocated useful lost overhead idle",
    "jobs": "submitted finished unusable unusable_by_reason jct_s_mean jct_s_p50 jct_s_p99 queue_wait_s_mean "
    "queue_wait_s_p50 queue_wait_s_p90 queue_wait_s_p95 queue_wait_s_p99 total_wait_s_mean "
    "total_wait_s_p50 total_wait_s_p90 total_wait_s_p99 longest_wait_s longest_waits "
    "slowdown_worst slowdown_worst_tenant",
    "utilization": "allocation_ratio to_last_arrival_ratio bound_ratio hardware_ratio real_utilization_ratio "
    "useful_utilization_ratio goodput_ratio "
    "to_last_arrival",
    "slo": "requests p99_latency_s violation_ratio",
    "disruptions": "preemptions migrations regeometries lost_gpu_s reversals resizes recoveries "
    "lost_since_checkpoint_gpu_s lost_no_bandwidth_gpu_s preemptions_per_1000_jobs migrations_per_1000_jobs "
    "evictions_per_job_mean evictions_per_job_max most_evicted_job stops_per_job_p50 stops_per_job_p99 "
    "stops_per_job_max contract_stops_per_job_p50 contract_stops_per_job_p99 contract_stops_per_job_max",
    "fragmentation": "stranded_gpu_s pools",
    "invariants": "checked violated",
}
SETTING = Setting(1, "ideal", None, 0.0, None, 2, 16, {"kind": 3}, {})


def simulate(jobs: Jobs, name: str = "fifo-skip", **more: Any) -> Simulated:
    """One run on 2 x 8."""
    return Simulation(inventory(), jobs, lambda _cluster: BASELINES[name](), **more).run()


def numbers(value: Any) -> Iterator[Any]:
    """Every leaf of a result."""
    for item in value.values() if isinstance(value, dict) else [value]:
        yield from numbers(item) if isinstance(item, dict) else [item]


def test_the_result_has_every_key_and_nothing_that_is_no_number() -> None:
    """All keys of the schema are there; what does not apply is null; JSON takes it without NaN."""
    entry = policy_result(simulate(make_jobs([(0, 10, 4), (5, 20, 16)])))
    assert set(entry) >= KEYS
    for name, inner in INNER.items():
        assert set(entry[name]) == set(inner.split())
    assert set(entry["tenants"]["t"]) == {
        "submitted",
        "finished",
        "queue_wait_s_mean",
        "total_wait_s_mean",
        "total_wait_s_p50",
        "total_wait_s_p90",
        "slowdown",
    }
    result = document(SETTING, {"fifo-skip": entry})
    assert list(result) == [
        "schema",
        "seed",
        "physics",
        "durations",
        "jitter_ratio",
        "telemetry",
        "engine",
        "cluster",
        "assumed",
        "policies",
    ]
    assert (result["schema"], result["cluster"], result["assumed"]) == (
        "gpu-autopilot/simulation/1",
        {"nodes": 2, "gpus": 16},
        {"kind": 3},
    )
    json.dumps(result, allow_nan=False)
    nothing = (entry["reservations"], entry["slo"], entry["fragmentation"])
    assert all(leaf is None for part in nothing for leaf in part.values())
    assert (entry["utilization"]["hardware_ratio"], entry["disruptions"]["regeometries"]) == (None, None)


def test_figures_follow_their_definitions() -> None:
    """Worked by hand: two jobs one after the other on 16 GPUs."""
    entry = policy_result(simulate(make_jobs([(0, 10, 16), (4, 20, 8)])))
    assert entry["jobs"]["jct_s_mean"] == (10 + 26) / 2
    assert entry["jobs"]["queue_wait_s_mean"] == 3.0
    assert entry["jobs"]["total_wait_s_p99"] == 6.0
    assert (entry["jobs"]["jct_s_p50"], entry["makespan_s"]) == (26.0, 30.0)
    assert entry["gpu_s"] == {
        "capacity": 480.0,
        "allocated": 320.0,
        "useful": 320.0,
        "lost": 0.0,
        "overhead": 0.0,
        "idle": 160.0,
    }
    utilization = entry["utilization"]
    assert utilization["allocation_ratio"] == 320 / 480
    assert utilization["to_last_arrival_ratio"] == 1.0
    assert utilization["goodput_ratio"] == 1.0
    assert utilization["to_last_arrival"] == {
        "allocation_ratio": 1.0,
        "hardware_ratio": None,
        "real_utilization_ratio": None,
        "useful_utilization_ratio": None,
        "goodput_ratio": 1.0,
    }


def test_one_late_wide_job_moves_the_makespan_and_not_the_headline() -> None:
    """Until the last arrival the cluster was full; the gang that had to wait for all of it leaves it half empty
    after.
    """
    entry = policy_result(
        simulate(make_jobs([(0, 100, 8), (0, 100, 8), (100, 300, 8)])),
        Measured(active_gpu_s=3000.0, early_active_gpu_s=800.0, useful_gpu_s=2400.0, early_useful_gpu_s=400.0),
    )
    used = entry["utilization"]
    assert used["allocation_ratio"] == (1600 + 2400) / (16 * 400)
    assert used["to_last_arrival"] == {
        "allocation_ratio": 1.0,
        "hardware_ratio": 0.5,
        "real_utilization_ratio": 0.5,
        "useful_utilization_ratio": 0.25,
        "goodput_ratio": 1.0,
    }
    assert used["real_utilization_ratio"] == 3000 / (16 * 400)


def test_a_run_that_was_cut_before_the_last_arrival_is_measured_up_to_the_cut() -> None:
    """Capacity that was never simulated is no idle capacity."""
    used = policy_result(simulate(make_jobs([(0, 100, 16), (90, 5, 16)]), horizon_s=50.0))["utilization"]
    assert used["to_last_arrival"]["allocation_ratio"] == 1.0
    assert used["to_last_arrival_ratio"] == 1.0


def test_what_others_measured_is_taken_in() -> None:
    """Active time, requests, stranded capacity, reservations and tenants' slowdown come from outside."""
    measured = Measured(
        active_gpu_s=160.0,
        requests=10,
        p99_latency_s=0.5,
        violation_ratio=0.1,
        stranded_gpu_s=7.0,
        fragmentation={"main": {"index_ratio": 0.25}},
        reservations=Reservations(4, 3, 1, 1),
        alone_jct_s={"t": 9.0},
        checked=5,
        violated=1,
        wall_s=2.0,
    )
    simulated = simulate(make_jobs([(0, 10, 16), (4, 20, 8)]))
    entry = policy_result(simulated, measured, {"end before start": 2})
    assert (entry["utilization"]["hardware_ratio"], entry["utilization"]["real_utilization_ratio"]) == (
        0.5,
        1 / 3,
    )
    assert entry["fragmentation"] == {"stranded_gpu_s": 7.0, "pools": {"main": {"index_ratio": 0.25}}}
    assert entry["slo"] == {"requests": 10, "p99_latency_s": 0.5, "violation_ratio": 0.1}
    assert entry["reservations"] == {"made": 4, "kept": 3, "late": 1, "released": 1}
    assert entry["tenants"]["t"]["slowdown"] == 2.0
    assert entry["invariants"] == {"checked": simulated.found.checked + 5, "violated": 1}
    assert (entry["jobs"]["unusable"], entry["jobs"]["unusable_by_reason"]) == (2, {"end before start": 2})
    assert entry["wall_s"] == 2.0


def test_nothing_finished_is_null_and_not_zero() -> None:
    """A run cut before anything ended has counts of 0 and no averages."""
    entry = policy_result(simulate(make_jobs([(0, 100, 4), (0, 50, 99)]), horizon_s=10.0))
    assert (entry["jobs"]["submitted"], entry["jobs"]["finished"], entry["jobs"]["unusable"]) == (2, 0, 1)
    assert (entry["jobs"]["jct_s_mean"], entry["jobs"]["jct_s_p99"], entry["jobs"]["queue_wait_s_mean"]) == (
        None,
        None,
        0.0,
    )
    assert entry["gpu_s"]["useful"] == 40.0
    assert policy_result(simulate(Jobs()))["utilization"]["allocation_ratio"] is None


def test_replicas_are_not_jobs() -> None:
    """A service's replica takes GPU time and tells nothing about waits."""
    jobs = make_jobs([(0, 10, 4)])
    jobs.add("svc-0", "s", gang(2), 0.0, float("inf"), service=0)
    simulation = Simulation(inventory(), jobs, lambda _cluster: BASELINES["fifo-skip"]())
    simulation.engine.at(0.0, lambda now_s: simulation.engine.submit(1, now_s))
    entry = policy_result(simulation.run())
    assert (entry["jobs"]["submitted"], entry["tenants"]["s"]["submitted"]) == (1, 0)
    assert entry["gpu_s"]["useful"] == 4 * 10 + 2 * 10


def test_the_percentile_is_the_rule_of_the_table() -> None:
    """p99 is sorted[int(0.99 n)]."""
    assert quantile([float(k) for k in range(200)], 0.99) == 198.0
    assert quantile([1.0], 0.99) == 1.0
    assert quantile([], 0.5) is None


# --- accounts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("physics", [IDEAL, CHARGED, REAL], ids=lambda each: each.name)
@pytest.mark.parametrize("seed", range(4))
def test_gpu_time_is_conserved_under_every_price(physics: Any, seed: int) -> None:
    """The identities capacity = allocated + idle and allocated = useful + lost + overhead, in integers, by tenant
    too.
    """
    rng = np.random.default_rng(seed)
    jobs = Jobs()
    for number in range(120):
        shape = Shape(1, 1, 1, milli=300) if number % 7 == 0 else gang(int(rng.choice([1, 2, 4, 8, 16])))
        jobs.add(
            f"j{number}",
            "abc"[number % 3],
            shape,
            float(rng.integers(0, 40_000)),
            int(rng.integers(1, 9_000_000)) / TICKS_PER_S,
        )
    simulated = simulate(jobs, "las", physics=physics)
    totals = simulated.totals
    assert simulated.found.violations == ()
    assert totals.capacity == totals.all.allocated + totals.idle
    assert totals.all.allocated == totals.all.useful + totals.all.lost + totals.all.overhead
    for tenant, share in enumerate(totals.by_tenant):
        work = sum(
            int(jobs.duration_s[job] * TICKS_PER_S) * jobs.shape_of(job).full_milli
            for job, code in enumerate(jobs.tenant)
            if code == tenant
        )
        assert share.useful == work
    if physics is IDEAL:
        assert totals.all.lost == totals.all.overhead == 0
    else:
        assert simulated.accounts.preemptions > 0
        assert totals.all.lost + totals.all.overhead > 0


def test_work_lost_later_does_not_count_before_the_last_arrival() -> None:
    """Useful time up to the last submit leaves out what an early preemption destroyed."""
    jobs = make_jobs([(0, 10_000, 16), (4_000, 100, 16)])
    simulated = simulate(jobs, "las", physics=CHARGED)
    assert gpu_s(simulated.totals.early_useful) == 16 * (4_000 - 60)
    assert gpu_s(simulated.totals.all.lost) == 16 * 60
    assert gpu_s(simulated.totals.all.overhead) == 16 * 30


def test_the_bound_counts_what_the_backlog_can_still_use() -> None:
    """By hand: 100 s of demand 20 on 10 GPUs, then demand 5, up to the last submit at 200 s."""
    bound = utilization_bound([0, 0, 0, 200], [100, 100, 400, 1], [5, 10, 5, 1], 10)
    assert bound == 1.0
    assert utilization_bound([0, 100], [50, 1], [4, 1], 8) == (4 * 50) / (8 * 100)
    assert utilization_bound([0, 0, 100], [50, 50, 1], [8, 4, 1], 8) == (8 * 50 + 4 * 50) / (8 * 100)
    assert np.isnan(utilization_bound([0], [50], [4], 8))


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 40), st.integers(1, 12)), min_size=2, max_size=30))
def test_the_bound_is_one_and_equals_a_sweep_second_by_second(rows: list[tuple[int, int, int]]) -> None:
    """Stepping through each second by the definition gives the same."""
    last = max(row[0] for row in rows)
    counted = backlog = 0.0
    for second in range(last):
        demand = sum(width for submit, duration, width in rows if submit <= second < submit + duration)
        used = min(10.0, demand + backlog)
        counted, backlog = counted + used, backlog + demand - used
    submits, durations, widths = zip(*rows, strict=True)
    found = utilization_bound(submits, durations, widths, 10)
    assert found == pytest.approx(counted / (10 * last)) if last else np.isnan(found)


def test_alone_is_what_a_tenant_would_have_had() -> None:
    """On its guaranteed nodes, at least those of its widest gang; others do not disturb it."""
    jobs = make_jobs([(0, 100, 8), (0, 100, 8), (0, 50, 16)])
    jobs.add("other", "u", gang(16), 0.0, 1e6)
    alone = alone_jct_s(inventory(4, 8), jobs, {"t": 1, "nobody": 2}, BASELINES["fifo-skip"])
    assert alone == {"t": (100 + 100 + 150) / 3}


def test_ctrl_c_while_a_tenant_is_played_alone_ends_the_call() -> None:
    """The engine keeps what was done; here a part of a mean would be taken for all of it."""

    class Interrupted(Textbook):
        """Somebody loses patience."""

        def decide(self, now_s: float) -> None:
            raise KeyboardInterrupt

    def impatient() -> Interrupted:
        return Interrupted("fifo", by_submit, skip=False)

    with pytest.raises(KeyboardInterrupt):
        alone_jct_s(inventory(4, 8), make_jobs([(0, 100, 8)]), {"t": 1}, impatient)


# --- jobs in, rows out --------------------------------------------------------------------------------------


def test_jitter_is_one_draw_a_job_from_the_seed() -> None:
    """Equal seeds give equal durations for every policy, within the ratio, on the grid; 0 changes nothing."""
    base = [100.0, 1000.0, 0.5]
    draws = np.random.default_rng(3).uniform(0.95, 1.05, 3)
    assert jitter(base, 0.05, 3) == pytest.approx(np.array(base) * draws, abs=1 / TICKS_PER_S)
    assert jitter(base, 0.05, 3) == jitter(base, 0.05, 3) != jitter(base, 0.05, 4)
    assert jitter(base, 0.0, 3) == base


def test_a_trace_becomes_jobs() -> None:
    """Shapes, classes and what is unknown are read as the format says."""
    frame = pd.DataFrame(
        {
            "job_id": ["a", "b", "c", "d", "e"],
            "tenant": ["x", "y", "x", "x", "x"],
            "submit_s": [5, 5, 6, 7, 8],
            "duration_s": [10, 20, 30, 40, 50],
            "gpus": [16, 0.25, 2, 12, 4],
            "nodes": [4, 1, None, None, None],
            "slo_class": ["batch", "interactive", None, None, None],
            "mig_profile": [None, None, "3g.40gb", None, None],
            "preemptible": [None, None, "true", "false", None],
            "gpu_type": [None, None, None, None, "A100-80GB|H100-80GB"],
            "cpus": [None, None, None, 12, None],
            "topology": [None, None, None, "rack", None],
        }
    )
    trace = jobs_from_frame(frame, Path("jobs.csv"))
    jobs = jobs_from_trace(trace, build_inventory(shape_cluster(4, 8)))
    shapes = [jobs.shape_of(job) for job in range(5)]
    assert shapes[0] == gang(16, 4)
    assert shapes[1] == Shape(1, 1, 1, milli=250)
    assert shapes[2] == Shape(2, 1, 2, profile="3g.40gb")
    assert shapes[3] == Shape(12, 8, 12, cpu_milli=6000, topology=2)
    assert shapes[4].models == 1
    assert jobs.submit_s == [0, 0, 1, 2, 3]
    assert jobs.preemptible == [True, False, True, False, True]
    assert (jobs.tenants, jobs.tenant) == (["x", "y"], [0, 1, 0, 0, 0])
    cluster = cluster_of(jobs, build_inventory(shape_cluster(4, 8)))
    assert width_gpus(cluster.hardware, shapes[2]) == pytest.approx(2 * 3 / 7)
    assert bound_ratio(cluster) == pytest.approx((3 * 16.25 + 2 * 6 / 7 + 12) / (3 * 32))


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_job_rows_are_written_by_the_ending(tmp_path: Path, ending: str) -> None:
    """A row a job and policy; what did not happen is empty, not zero."""
    jobs = make_jobs([(0, 10, 16), (4, 20, 8), (5, 20, 99)])
    frames = [job_rows(name, simulate(jobs, name)) for name in ("fifo-skip", "sjf")]
    path = tmp_path / f"rows.{ending}"
    write_job_rows(frames, path)
    rows = pd.read_csv(path) if ending == "csv" else pd.read_parquet(path)
    assert " ".join(map(str, rows)) == (
        "policy job_id tenant submit_s start_s end_s duration_s total_wait_s gpus nodes node_names evictions moves "
        "lost_gpu_s"
    )
    assert rows.total_wait_s.tolist()[:2] == [0.0, 6.0]
    assert rows.duration_s.tolist()[:3] == [10.0, 20.0, 20.0]
    assert (len(rows), rows.start_s[0], rows.end_s[1], rows.nodes[0]) == (6, 0, 30, 2)
    assert rows.loc[2, ["start_s", "end_s", "nodes", "total_wait_s"]].isna().all()
    with pytest.raises(InputError, match=r"rows\.xyz"):
        write_job_rows(frames, tmp_path / "rows.xyz")


def test_a_document_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """The JSON can be read back; a folder that is not there is one clear message."""
    result = document(SETTING, {"fifo": policy_result(simulate(one_job(gang(1)), "fifo"))})
    write_document(result, tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text()) == result
    with pytest.raises(InputError, match="nowhere"):
        write_document(result, tmp_path / "nowhere" / "out.json")
    assert not any(isinstance(leaf, float) and np.isnan(leaf) for leaf in numbers(result))


@pytest.mark.parametrize("name", ["=1+1", "+x", "-x", "@sum", "\tx", "\rx"])
def test_no_cell_of_the_job_rows_is_a_formula(tmp_path: Path, name: str) -> None:
    """A spreadsheet gets an apostrophe before names that it would run, and no control characters; numbers and other
    names stay as they are.
    """
    jobs = Jobs()
    jobs.add(name, f"={name}", gang(2), -5.0, 10.0)
    jobs.add("plain-1", "t=1", gang(2), 0.0, 10.0)
    frame = job_rows(name, simulate(jobs))
    write_job_rows([frame], tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open(newline="") as file:
        first, second = list(csv.reader(file))[1:]
    shown = name.replace("\t", "?").replace("\r", "?")
    assert first[:3] == [f"'{shown}", f"'{shown}", f"'={shown}"]
    assert second[:4] == [f"'{shown}", "plain-1", "t=1", "0.0"]
    assert float(first[3]) == -5.0
    write_job_rows([frame], tmp_path / "rows.parquet")
    assert pd.read_parquet(tmp_path / "rows.parquet").job_id[0] == name
