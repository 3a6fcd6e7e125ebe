"""Priorities of pending jobs: the multifactor plugin, recomputed at ticks; or priority/basic, the order of job ids."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import floor

from simulator.baselines.slurm.accounts import Qos
from simulator.baselines.slurm.fairshare import Shares
from simulator.baselines.slurm.limits import tres_of
from simulator.baselines.slurm.model import Job, Running, members
from simulator.baselines.slurm.site import Site

LN2 = 0.693
"""Slurm's own value in its decay factor."""


@dataclass(frozen=True, slots=True)
class Factors:
    """The normalized factors of a job, 0 to 1; `tres` are weighted figures by name."""

    age: float = 0.0
    fairshare: float = 0.0
    size: float = 0.0
    partition: float = 0.0
    qos: float = 0.0
    tres: dict[str, float] = field(default_factory=dict)


class Priorities:
    """Figures of one site. Usage of ended jobs counts at once, usage of running jobs at ticks."""

    def __init__(self, site: Site) -> None:
        """No tick has passed yet."""
        self._site, self._config = site, site.config
        self.shares = Shares(site.accounts, site.config)
        self._last_s: int | None = None
        half_life_s = site.config.half_life_s
        self._decay = 1 - LN2 / half_life_s if half_life_s else 1.0
        self._most_qos = max((each.priority for each in site.accounts.qos.values()), default=0)
        self._most_part = max((each.job_factor for each in site.config.partitions.values()), default=0)

    def tick(self, now_s: int, running: Iterable[Running]) -> None:
        """Decay all usage and add the usage of running jobs."""
        if self._last_s is not None:
            self.shares.decay(self._decay ** (now_s - self._last_s))
        for run in running:
            self._use(run, now_s)
        self._last_s = now_s
        self.shares.settle()

    def tick_in_order(self, now_s: int, running: Iterable[Running], waiting: Iterable[Job]) -> None:
        """A tick of the classic formula: usage is added by job id, and users' figures are taken in between."""
        self.shares.decay(self._decay ** (now_s - self._last_s) if self._last_s is not None else 1.0)
        runs = {run.job.order: run for run in running}
        jobs = {job.order: job for job in waiting}
        for order in sorted([*runs, *jobs]):
            if order in runs:
                self._use(runs[order], now_s)
            else:
                self.shares.factor(jobs[order].account, jobs[order].user)
        self._last_s = now_s

    def ended(self, run: Running, now_s: int) -> None:
        """A job has left its nodes."""
        self._use(run, now_s)

    def _use(self, run: Running, now_s: int) -> None:
        since_s = run.start_s if self._last_s is None else max(run.start_s, self._last_s)
        ran_s = max(now_s - since_s, 0)
        self.shares.use(run.job.account, run.job.user, ran_s * self._decay**ran_s * self.billing(run.job))

    def billing(self, job: Job) -> float:
        """Billing of a job in a second: CPUs, or the weighted sum of its TRES (with MAX_TRES the largest term)."""
        weights = self._site.partition(job.partition).billing
        if not weights:
            return job.nodes * job.cpus
        tres = tres_of(job)
        terms = [weight * tres.get(name, 0) for name, weight in weights.items()]
        return max(terms) if self._config.max_tres else sum(terms)

    def factors(self, job: Job, accrued_s: float, now_s: int) -> Factors:
        """The factors of a job eligible since `accrued_s`."""
        config = self._config
        nodes, cpus = len(self._site.nodes), sum(node.cpus for node in self._site.nodes)
        asked = job.nodes * job.cpus
        parts = (
            (nodes - job.nodes) / nodes + (cpus - asked) / cpus
            if config.favor_small
            else job.nodes / nodes + asked / cpus
        )
        factor = self._site.partition(job.partition).job_factor
        priority = self._site.accounts.qos.get(job.qos, Qos(job.qos)).priority
        weighs = config.weights
        return Factors(
            age=min(1.0, max(now_s - accrued_s, 0) / config.max_age_s) if weighs.get("age") else 0.0,
            fairshare=self.shares.factor(job.account, job.user) if weighs.get("fairshare") else 0.0,
            size=parts / 2 if weighs.get("jobsize") else 0.0,
            partition=factor / self._most_part if weighs.get("partition") and self._most_part else 0.0,
            qos=priority / self._most_qos if weighs.get("qos") and self._most_qos else 0.0,
            tres=self._tres(job),
        )

    def _tres(self, job: Job) -> dict[str, float]:
        """Weight x asked / total of the partition, by name."""
        if not self._config.tres_weights:
            return {}
        inside = [self._site.nodes[node] for node in members(self._site.partition_nodes(job.partition))]
        totals = {
            "cpu": sum(node.cpus for node in inside),
            "node": len(inside),
            "gres/gpu": sum(len(node.gpu_types) for node in inside),
        }
        for node in inside:
            for each in node.gpu_types:
                totals[f"gres/gpu:{each}"] = totals.get(f"gres/gpu:{each}", 0) + 1
        asked = tres_of(job)
        return {
            name: weight * asked.get(name, 0) / totals[name]
            for name, weight in self._config.tres_weights.items()
            if totals.get(name)
        }

    def priority(self, job: Job, found: Factors) -> int:
        """The sum of weight x factor, less `nice`, at least 1. Equal for all under priority/basic."""
        if not self._config.multifactor:
            return max(1, -job.nice + 1)
        weighs = self._config.weights
        values = {
            "age": found.age,
            "fairshare": found.fairshare,
            "jobsize": found.size,
            "partition": found.partition,
            "qos": found.qos,
        }
        total = sum(weighs.get(name, 0) * value for name, value in values.items()) + sum(found.tres.values())
        return max(1, floor(total - job.nice))
