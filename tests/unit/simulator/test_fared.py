"""What becomes of single jobs beside the means."""

from __future__ import annotations

from simulator.baselines import BASELINES
from simulator.outcome.fared import MOST_NAMED, compare, evictions, fared_worse, longest_waits, reference_name
from simulator.outcome.results import policy_result
from simulator.running.simulation import Simulated, Simulation
from simulator.world.physics import CHARGED, IDEAL, Physics
from simulator.world.work import Jobs
from tests.kits.cluster_kit import gang, inventory, make_jobs

ROWS = [(0.0, 40_000.0, 16), (10_000.0, 100.0, 16), (10_000.0, 300.0, 8)]


def run(name: str, jobs: Jobs | None = None, physics: Physics = IDEAL, horizon_s: float = 1e9) -> Simulated:
    """One run on 2 x 8."""
    return Simulation(
        inventory(2, 8), jobs or make_jobs(ROWS), lambda _cluster: BASELINES[name](), physics, horizon_s=horizon_s
    ).run()


def test_the_job_that_pays_for_the_others_is_named() -> None:
    """`las` lets two short jobs in; the long one ends later by what it loses, and stands there with how much."""
    found = fared_worse(run("las", physics=CHARGED), run("fifo-skip", physics=CHARGED), "fifo-skip")
    assert (found["reference"], found["compared"], found["worse"], found["better"]) == ("fifo-skip", 3, 1, 2)
    (job,) = found["jobs"]
    assert (job["job_id"], job["gpus"], job["evictions"], job["moves"]) == ("job-0", 16, 1, 0)
    assert job["worse_by_s"] == found["worse_by_s_max"] == found["worse_by_s_mean"]
    assert job["worse_by_s"] == job["total_wait_s"] - job["reference_total_wait_s"]
    assert job["lost_gpu_s"] == 16 * 60.0


def test_nobody_fared_worse_than_under_the_same_policy() -> None:
    """A comparison of equals has no losers and no average of none."""
    found = fared_worse(run("las"), run("las"), "las")
    assert (found["worse"], found["better"], found["jobs"], found["worse_by_s_mean"]) == (0, 0, [], None)


def test_a_job_that_did_not_end_is_counted_apart() -> None:
    """It has no time to compare, and must not disappear."""
    found = fared_worse(run("fifo", horizon_s=20_000.0), run("fifo"), "fifo")
    assert (found["compared"], found["unfinished"]) == (0, 3)


def test_the_longest_wait_may_be_of_a_job_that_never_started() -> None:
    """It waits to the end of the run and says that it has not finished."""
    first, *_ = longest_waits(run("fifo", horizon_s=20_000.0))
    assert (first["job_id"], first["finished"], first["queue_wait_s"], first["total_wait_s"]) == (
        "job-1",
        False,
        None,
        10_000.0,
    )


def test_work_that_goes_on_does_not_wait() -> None:
    """Progress of a job that has not ended is no wait."""
    rows = longest_waits(run("fifo", horizon_s=20_000.0))
    assert {row["job_id"]: row["total_wait_s"] for row in rows}["job-0"] == 0.0


def test_only_so_many_jobs_are_named() -> None:
    """The lists are short however many jobs there are."""
    jobs = make_jobs([(0.0, 100.0, 16)] * (MOST_NAMED + 5))
    found = longest_waits(run("fifo", jobs))
    assert [row["job_id"] for row in found[:2]] == [f"job-{MOST_NAMED + 4}", f"job-{MOST_NAMED + 3}"]
    assert len(found) == MOST_NAMED


def test_replicas_and_jobs_that_never_fit_are_not_among_the_jobs() -> None:
    """Neither waits for anything that a policy could do."""
    jobs = make_jobs([(0.0, 100.0, 4), (0.0, 100.0, 99)])
    jobs.add("svc-0", "s", gang(2), 0.0, float("inf"), service=0)
    simulated = run("fifo", jobs)
    assert [row["job_id"] for row in longest_waits(simulated)] == ["job-0"]
    assert evictions(simulated)["evictions_per_job_mean"] == 0.0


def test_evictions_per_job_have_a_mean_a_worst_and_a_name() -> None:
    """One of three jobs was stopped once; moves count too."""
    assert evictions(run("las")) == {
        "evictions_per_job_mean": 1 / 3,
        "evictions_per_job_max": 1,
        "most_evicted_job": "job-0",
    }
    assert evictions(run("fifo"))["most_evicted_job"] is None
    moved = [(0.0, 500.0, 6), (0.0, 500.0, 6), (0.0, 2000.0, 2), (0.0, 3000.0, 2), (600.0, 50.0, 8)]
    simulated = run("las", make_jobs(moved))
    assert (evictions(simulated)["evictions_per_job_max"], sum(simulated.accounts.moves.values())) == (1, 1)


def test_the_reference_is_fifo_skip_else_the_first_baseline() -> None:
    """Nothing is compared with itself, nor two policies of ours with each other."""
    known = tuple(BASELINES)
    assert reference_name(["autopilot", "las", "fifo-skip"], known) == "fifo-skip"
    assert reference_name(["autopilot", "las"], known) == "las"
    assert reference_name(["fifo-skip"], known) is None
    assert reference_name(["autopilot", "mine"], known) is None


def test_an_interrupted_run_is_compared_with_nothing() -> None:
    """What it did not come to would count as better or worse at random."""
    runs = {"las": run("las"), "fifo-skip": run("fifo-skip")}
    results = {name: policy_result(each) for name, each in runs.items()}
    results["fifo-skip"]["interrupted"] = True
    compare(results, runs, "fifo-skip")
    assert not any(each["fared_worse"] for each in results.values())
    results["fifo-skip"]["interrupted"] = False
    compare(results, runs, "fifo-skip")
    better = {name: (each["fared_worse"] or {}).get("better") for name, each in results.items()}
    assert better == {"las": 2, "fifo-skip": None}
