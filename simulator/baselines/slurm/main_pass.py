"""The main pass: the queue in order, until a job of a partition lacks resources."""

from __future__ import annotations

from simulator.baselines.slurm.trial import Trial


def main_pass(trial: Trial) -> None:
    """Start the fitting jobs. The first job short of resources ends the pass for its partition and its nodes."""
    blocked: set[str] = set()
    closed = 0
    for job in trial.queue():
        if closed and not trial.every_node & ~closed:
            return
        if job.partition in blocked or trial.refusal(job):
            continue
        allowed = trial.allowed(job, trial.now_s)
        if allowed is None:  # its reservation has not begun
            continue
        if trial.start_now(job, allowed & ~closed):
            continue
        if job.reservation:
            closed |= allowed
        else:
            blocked.add(job.partition)
            closed |= trial.partition_nodes(job.partition)
