"""A scheduling policy of your own beside the shipped ones: a notebook as a script, cell by cell (`# %%`).

    python examples/own_policy.py --out figures [--seeds 3] [--workers 2] [--philly jobs.parquet]

It writes plots to the folder `--out`. With the Philly trace (docs/data-sources.md) it also repeats rows of the table
"Preemption at a price" in docs/benchmarks.md. docs/research.md explains each step.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd

from autopilot import api

# %% A policy


class ResponseRatio:
    """Highest response ratio next (Brinch Hansen, 1971): short jobs first, and what waits long rises in the order."""

    def __init__(self, weight: float = 1.0) -> None:
        self.weight = weight  # 0: first come, first served

    def decide(self, view: api.View) -> float | None:
        """Called after everything that happened at one instant; returns when to call again without an event."""

        def order(job: api.Job) -> tuple[bool, float]:
            waited_s = view.now_s - job.submit_s
            return not job.service, -waited_s / job.duration_s**self.weight  # replicas of services first

        for job in sorted(view.waiting, key=order):
            if not view.free_gpus:
                break
            view.start(job)  # False where it does not fit now: the next one may
        return None


# %% Rows of the published table: policy, useful share, mean completion, p99 of the first start, pauses + moves

PUBLISHED = {
    "fifo-skip": "0.907; 115,169 s; 943,033 s; 0 + 0",
    "las": "0.968; 26,204 s; 5,901 s; 978 + 231",
}
"""Of P1, from docs/benchmarks.md."""


def table_row(run: api.Simulated) -> str:
    """The same figures of a run."""
    used, jobs, stops = (run.result[name] for name in ("utilization", "jobs", "disruptions"))
    return (
        f"{used['to_last_arrival_ratio'] / used['bound_ratio']:.3f}; {jobs['jct_s_mean']:,.0f} s; "
        f"{jobs['queue_wait_s_p99']:,.0f} s; {stops['preemptions_per_1000_jobs']:.0f} + "
        f"{stops['migrations_per_1000_jobs']:.0f}"
    )


def published(philly: Path) -> None:
    """Repeat the rows of P1, and add the new policy to them."""
    p1 = api.load(philly, cluster="7x8", tenants=("vc_6c71a0",), physics="charged", telemetry="off", seed=1)
    for policy in (*PUBLISHED, "response-ratio"):
        found, stated = table_row(api.simulate(p1, policy=policy)), PUBLISHED.get(policy)
        verdict = "" if stated is None else " (as published)" if stated == found else f" (published: {stated})"
        print(f"P1, {policy}: {found}{verdict}")


# %% Plots


def plot(runs: list[api.Simulated], table: pd.DataFrame, out: Path) -> None:
    """How long jobs waited, how many GPUs were held over time, and the range over the seeds."""
    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, (waits, held, seeds) = plt.subplots(1, 3, figsize=(15, 4), layout="constrained")
    for run in runs:
        hours = np.sort(run.jobs["total_wait_s"].dropna()) / 3600
        waits.step(hours, np.arange(1, len(hours) + 1) / len(hours), label=run.policy)
        ran = run.jobs.dropna(subset=["start_s", "end_s"])
        times_s = np.concatenate([ran["start_s"], ran["end_s"]])
        change = np.concatenate([ran["gpus"], -ran["gpus"]])
        order = np.argsort(times_s, kind="stable")
        held.step(times_s[order] / 3600, np.cumsum(change[order]), where="post", label=run.policy)
    waits.set(xlabel="total wait, h", ylabel="part of the jobs", title="Waits")
    held.set(xlabel="time, h", ylabel="GPUs held by jobs that never stopped", title="Held GPUs")
    rows = table[table["figure"] == "total wait, mean"]
    for number, (policy, each) in enumerate(rows.groupby("policy", sort=False)):
        seeds.plot([number] * len(each), each["value"] / 60, "o", label=str(policy))
    seeds.set(xticks=[], ylabel="mean total wait, min", title="Each seed")
    for axes in (waits, held, seeds):
        axes.legend()
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "own_policy.svg")
    plt.close(figure)


# %% Register it, run it, look at single jobs, compare it over seeds


def main() -> None:
    """All cells in order."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("figures"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--philly", type=Path, default=None)
    given = parser.parse_args()

    api.register("response-ratio", ResponseRatio)
    day = api.load("quickstart", telemetry="off")
    runs = [api.simulate(day, policy=policy) for policy in ("fifo-skip", "response-ratio")]
    for run in runs:
        print(f"{run.policy}: refused {run.result.get('refused', '-')}")
        print(run.jobs.nlargest(3, "total_wait_s")[["job_id", "tenant", "gpus", "total_wait_s"]])

    found = api.compare(day, policies=["fifo-skip", "response-ratio"], seeds=given.seeds, workers=given.workers)
    for each in found.findings:
        print(each.words)
    plot(runs, api.to_pandas(found), given.out)
    print(f"plots: {given.out / 'own_policy.svg'}")
    if given.philly is not None:
        published(given.philly)


if __name__ == "__main__":
    main()
