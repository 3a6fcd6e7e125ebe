"""Outcomes of single jobs: the longest waits, the most stops, and the jobs finished later than under another policy.

A mean hides the jobs paying for it. Every policy is compared with the same reference run, job by job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum, isfinite
from typing import Any

from autopilot.core.model.errors import invariant
from autopilot.core.model.snapshot import State
from simulator.running.accounting import gpu_s
from simulator.running.simulation import Simulated

MOST_NAMED = 10
"""Number of jobs named in each list."""
WORSE_S = 60.0
"""A job finished later when it ended later than under the reference by more than this."""
REFERENCES = ("fifo-skip", "fifo")
"""Reference policies in order of preference; otherwise the first baseline of the call."""


def submitted_jobs(simulated: Simulated) -> list[int]:
    """Rows of the submitted jobs; replicas of services are not jobs."""
    cluster = simulated.cluster
    return [
        job
        for job, state in enumerate(cluster.state)
        if state >= 0 and cluster.jobs.service[job] < 0 and job not in simulated.run.never_fits
    ]


def waited_s(simulated: Simulated, job: int) -> float:
    """Total wait of a job (JCT - duration); for an unfinished one, its time without progress so far."""
    cluster = simulated.cluster
    submit_s, end_s = cluster.jobs.submit_s[job], cluster.end_s[job]
    if isfinite(end_s):
        wait_s = end_s - submit_s - cluster.jobs.duration_s[job]
        stopped = cluster.state[job] == State.FAILED  # at its limit: what it did not run is no time saved
        return max(wait_s, cluster.first_start_s[job] - submit_s) if stopped else wait_s
    return simulated.run.end_s - submit_s - cluster.progress_s(job, simulated.run.end_s)


def job_block(simulated: Simulated, job: int) -> dict[str, Any]:
    """One job as an entry of the lists; `total_wait_s` is the wait so far if `finished` is false."""
    cluster, jobs, accounts = simulated.cluster, simulated.cluster.jobs, simulated.accounts
    start_s = cluster.first_start_s[job]
    return {
        "job_id": jobs.id[job],
        "tenant": jobs.tenants[jobs.tenant[job]],
        "gpus": jobs.gpus[job],
        "submit_s": jobs.submit_s[job],
        "duration_s": jobs.duration_s[job],
        "queue_wait_s": start_s - jobs.submit_s[job] if isfinite(start_s) else None,
        "total_wait_s": waited_s(simulated, job),
        "finished": isfinite(cluster.end_s[job]),
        "evictions": cluster.evictions[job],
        "moves": accounts.moves[job],
        "lost_gpu_s": gpu_s(accounts.lost[job]),
    }


def longest_waits(simulated: Simulated) -> list[dict[str, Any]]:
    """The jobs with the longest total wait, ended or not, worst first."""
    waits = sorted((-waited_s(simulated, job), job) for job in submitted_jobs(simulated))
    return [job_block(simulated, job) for _, job in waits[:MOST_NAMED]]


def evictions(simulated: Simulated) -> dict[str, Any]:
    """Stops of jobs with another wait (evicted, moved, recovered, hit by a fault): mean, maximum, and the
    job with the maximum.
    """
    counts = [(simulated.cluster.evictions[job], -job) for job in submitted_jobs(simulated)]
    most, row = max(counts, default=(0, 0))
    return {
        "evictions_per_job_mean": sum(count for count, _ in counts) / len(counts) if counts else None,
        "evictions_per_job_max": most if counts else None,
        "most_evicted_job": simulated.cluster.jobs.id[-row] if most else None,
    }


def fared_worse(simulated: Simulated, reference: Simulated, name: str) -> dict[str, Any]:
    """The jobs finished later than under the reference `name`, by the end of each; worst first.

    Compared are the jobs ended under both. `unfinished` are those ended under the reference only.
    """
    ours, theirs = simulated.cluster, reference.cluster
    later: list[tuple[float, int]] = []
    better = unfinished = compared = 0
    for job in submitted_jobs(reference):
        invariant(ours.jobs.id[job] == theirs.jobs.id[job], "two runs of one call have different jobs")
        if not isfinite(theirs.end_s[job]):
            continue
        if not isfinite(ours.end_s[job]):
            unfinished += 1
            continue
        compared += 1
        by_s = ours.end_s[job] - theirs.end_s[job]
        better += by_s < -WORSE_S
        if by_s > WORSE_S:
            later.append((-by_s, job))
    later.sort()
    named = [
        job_block(simulated, job) | {"worse_by_s": -by_s, "reference_total_wait_s": waited_s(reference, job)}
        for by_s, job in later[:MOST_NAMED]
    ]
    return {
        "reference": name,
        "compared": compared,
        "worse": len(later),
        "better": better,
        "unfinished": unfinished,
        "worse_by_s_mean": -fsum(by_s for by_s, _ in later) / len(later) if later else None,
        "worse_by_s_max": -later[0][0] if later else None,
        "jobs": named,
    }


def reference_name(names: Sequence[str], baselines: Sequence[str]) -> str | None:
    """The reference policy of a call; None without a baseline."""
    known = [*(name for name in REFERENCES if name in names), *(name for name in names if name in baselines)]
    return known[0] if known and len(names) > 1 else None


def compare(results: Mapping[str, dict[str, Any]], runs: Mapping[str, Simulated], name: str | None) -> None:
    """Fill `fared_worse` of every policy but the reference `name`; an interrupted run is not compared."""
    if name is None or results[name]["interrupted"]:
        return
    for policy, result in results.items():
        if policy != name and not result["interrupted"]:
            result["fared_worse"] = fared_worse(runs[policy], runs[name], name)
