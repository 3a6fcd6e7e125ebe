"""The running jobs to give their nodes to a job of higher rank: by QOS, or by tier of the partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simulator.baselines.slurm.accounts import Accounts, Qos
from simulator.baselines.slurm.config import Config, Partition
from simulator.baselines.slurm.model import Books, Job, Running

STOPS = {"requeue", "cancel"}
"""The modes that free GPUs. Suspended jobs keep theirs."""


def _qos(accounts: Accounts, job: Job) -> Qos:
    return accounts.qos.get(job.qos, Qos(job.qos))


def _partition(config: Config, job: Job) -> Partition:
    return config.partitions.get(job.partition, Partition(job.partition))


def mode_of(config: Config, accounts: Accounts, job: Job) -> str:
    """The way to stop the job at a preemption: requeue, cancel, suspend or off."""
    if config.preempt == "qos":
        return _qos(accounts, job).preempt_mode or config.preempt_mode
    return _partition(config, job).preempt_mode or config.preempt_mode if config.preempt == "partition" else "off"


def grace_s(config: Config, accounts: Accounts, job: Job) -> int:
    """Further run time of a job after its notice (s)."""
    return _qos(accounts, job).grace_s if config.preempt == "qos" else _partition(config, job).grace_s


def outranks(config: Config, accounts: Accounts, job: Job, other: Job) -> bool:
    """True if the first may preempt the second."""
    if config.preempt == "qos":
        return other.qos in _qos(accounts, job).preempts
    if config.preempt == "partition":
        return _partition(config, job).tier > _partition(config, other).tier
    return False


def candidates(config: Config, accounts: Accounts, job: Job, running: Sequence[Running]) -> list[Running]:
    """The jobs it may preempt, the first to go first: lowest rank, then fewest nodes, then job id."""
    found = [
        run
        for run in running
        if outranks(config, accounts, job, run.job) and mode_of(config, accounts, run.job) != "off"
    ]
    found.sort(key=lambda run: run.job.order)
    if config.preempt_youngest_first:
        return sorted(found, key=lambda run: -run.start_s)
    return sorted(found, key=lambda run: (_rank(config, accounts, run.job), run.job.nodes))


def _rank(config: Config, accounts: Accounts, job: Job) -> int:
    return _qos(accounts, job).priority if config.preempt == "qos" else _partition(config, job).tier


def victims(
    config: Config,
    found: Sequence[Running],
    books: Books,
    place: Callable[[Books], list[int] | None],
) -> tuple[list[int], list[Running]] | None:
    """The nodes of a job and its victims, as few as Slurm's own reordering finds; None if none help.

    Candidates are removed one by one until the job fits. Then those with most of the found nodes come first, and it is
    tried again, `preempt_reorder_count` times.
    """
    order = list(found)
    for attempt in range(config.preempt_reorder_count + 1):
        trial = books.copy()
        nodes, last = None, -1
        while nodes is None and last + 1 < len(order):
            last += 1
            trial.give(order[last])
            nodes = place(trial)
        if nodes is None:
            return None
        gone = [run for run in order[: last + 1] if run.bits & _bits(nodes)]
        if attempt == config.preempt_reorder_count or len(order) <= attempt + 1:
            return nodes, gone
        if config.preempt_strict_order:
            order.insert(0, order.pop(last))
        else:
            bits = _bits(nodes)
            removed = set(range(last + 1))
            overlap = [(run.bits & bits).bit_count() if k in removed else 0 for k, run in enumerate(order)]
            order = [order[k] for k in sorted(range(len(order)), key=lambda k: (-overlap[k], k))]
    return None


def _bits(nodes: Sequence[int]) -> int:
    return sum(1 << node for node in nodes)
