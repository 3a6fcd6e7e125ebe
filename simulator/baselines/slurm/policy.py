"""Slurm's scheduler in charge of a simulated cluster.

Each member of a gang gets a node of its own, as with `sbatch --nodes`. A job's account is its tenant. Its partition and
QOS are those of the accounting, else its kind if it names one of the site. Shares of a GPU and MIG instances are
started by first fit, outside the plans.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor, inf

from simulator.baselines.easy import limits_s
from simulator.baselines.slurm.loops import Loops
from simulator.baselines.slurm.model import Books, Job, Node, Running, members
from simulator.baselines.slurm.site import UNLIMITED_S, Site
from simulator.baselines.slurm.slurmctld import Slurmctld
from simulator.baselines.slurm.trial import Decisions
from simulator.world.cluster import Cluster
from simulator.world.hardware import Hardware
from simulator.world.placing import find_spot

LIMIT_CHECK_S = 30
ANY_CPUS = 1_000_000
"""CPUs of a node whose number is unknown."""


def nodes_of(hardware: Hardware) -> tuple[Node, ...]:
    """The nodes of a cluster as the scheduler sees them."""
    return tuple(
        Node(
            str(hardware.inventory.nodes.id[k]),
            max(int(hardware.inventory.nodes.cpu_milli[k]) // 1000, 0) if hardware.limits_cpu[k] else ANY_CPUS,
            (str(hardware.inventory.names.gpu_models[hardware.model_of[k]]),) * count,
        )
        for k, count in enumerate(hardware.node_gpus)
    )


class Slurm:
    """The baseline `slurm`: a site's settings if they are given, else the defaults of Slurm 22.05."""

    name = "slurm"

    def __init__(self, make_site: Callable[[tuple[Node, ...]], Site] = Site, start_s: float | None = None) -> None:
        """`make_site` gets the nodes of the cluster and returns the site. `start_s`: seconds since 1970 of time 0."""
        self._make_site, self._start_s = make_site, start_s

    def attach(self, cluster: Cluster) -> None:
        """Take charge of `cluster`."""
        self._cluster = cluster
        self._limit_s = limits_s(cluster)
        site = self._make_site(nodes_of(cluster.hardware))
        if self._start_s is not None:
            site.clock_s = floor(self._start_s) % 60
        self.ctl, self._loops = Slurmctld(site), Loops(site.config)
        self._special: dict[int, None] = {}  # waiting shares and MIG work
        ticks = site.config.multifactor and any((*site.config.weights.values(), *site.config.tres_weights.values()))
        self._tick_s = 0.0 if ticks else inf

    def on_submit(self, job: int, now_s: float) -> None:
        """It enters the queue."""
        while len(self._limit_s) <= job:
            self._limit_s.append(inf)  # a replica: it stays
        if self._cluster.jobs.shape_of(job).whole:
            self.ctl.submit(self._asked(job), floor(now_s))
        else:
            self._special[job] = None
        self._loops.changed(now_s, queued=True)

    def on_requeue(self, job: int, now_s: float) -> None:
        """It was stopped and waits again, after Slurm's delay."""
        if str(job) in self.ctl.running:
            self.ctl.requeue(str(job), floor(now_s))
        else:
            self.on_submit(job, now_s)
        self._loops.changed(now_s, queued=True)

    def on_end(self, job: int, now_s: float) -> None:
        """Room was freed."""
        if str(job) in self.ctl.past:
            self.ctl.end(str(job), floor(now_s))
        self._special.pop(job, None)
        self._loops.changed(now_s, queued=True)

    def on_change(self, now_s: float) -> None:
        """Any job may fit now."""
        self._loops.changed(now_s, queued=True)

    def _asked(self, job: int) -> Job:
        """The request of a job. For a gang with more members than nodes, nodes take several."""
        jobs, hardware, site = self._cluster.jobs, self._cluster.hardware, self.ctl.site
        shape = jobs.shape_of(job)
        eligible = hardware.eligible(shape)
        count = ceil(shape.gpus / shape.per_member) if shape.per_member else 1
        each = ceil(count / max(eligible.bit_count(), 1))
        tenant = jobs.tenants[jobs.tenant[job]]
        partitions, qos = site.config.partitions, (jobs.qos[job], jobs.kind[job])
        named = (*jobs.partition[job].split(","), jobs.kind[job])  # a job may name several
        return Job(
            str(job),
            job,
            submit_s=jobs.submit_s[job],
            name=jobs.name[job],
            user=jobs.user[job],
            account=tenant,
            qos=next(
                (name for name in qos if name in site.accounts.qos), site.accounts.default_qos(tenant, jobs.user[job])
            ),
            partition=next((name for name in named if name in partitions), site.config.default_partition),
            nodes=ceil(count / each),
            gpus=shape.per_member * each,
            cpus=ceil(shape.cpu_milli * each / 1000),
            limit_s=self._limit_s[job],
            only=eligible,
        )

    def decide(self, now_s: float) -> float | None:
        """Run the due loops; the time of the next one."""
        cluster = self._cluster
        for key in [key for key in self.ctl.waiting if int(key) not in cluster.pending]:  # owners withdrew work
            self.ctl.end(key, floor(now_s), ok=False)
        self._enforce(now_s)
        while self._tick_s <= now_s:
            self.ctl.tick(floor(self._tick_s))
            self._tick_s += self.ctl.site.config.calc_period_s
            self._loops.changed(now_s, queued=False)
        while min(self._loops.next_main_s(), self._loops.next_backfill_s()) <= now_s:
            self._mirror()
            at_s = self._loops.next_main_s()
            if at_s <= now_s:
                self._loops.main_done(at_s)
                self._start_special(now_s)
                self._apply(self.ctl.main_pass(floor(now_s)), now_s)
            else:
                self._loops.backfill_done(self._loops.next_backfill_s())
                self._apply(self.ctl.backfill_pass(floor(now_s)), now_s)
        return self._next_s(now_s)

    def _next_s(self, now_s: float) -> float | None:
        waiting = self.ctl.waiting
        times = [self._next_check_s()]
        if waiting or self._special:
            times += [self._loops.next_main_s(), self._loops.next_backfill_s()]
        if waiting:
            times.append(self._tick_s)
            held = [each.not_before_s for each in waiting.values() if each.not_before_s > now_s]
            times += [min(held)] if held else []
            marks = [mark for each in self.ctl.site.reservations for mark in (each.start_s, each.end_s)]
            times += [mark for mark in marks if mark > now_s]
            if any(each.not_before_s == floor(now_s) for each in waiting.values()) or now_s in marks:
                self._loops.changed(now_s, queued=True)
                times.append(self._loops.next_main_s())
        next_s = min(times)
        return None if next_s == inf else next_s

    def _next_check_s(self) -> float:
        """The first check of time limits with a job beyond its own."""
        end_s = min((run.end_s for run in self._limited()), default=inf)
        return (floor(end_s / LIMIT_CHECK_S) + 1) * LIMIT_CHECK_S if end_s < inf else inf

    def _enforce(self, now_s: float) -> None:
        """Stop jobs beyond their limits, at a check."""
        if self._next_check_s() > now_s:
            return
        for run in self._limited():
            if run.end_s < floor(now_s):
                self.ctl.end(run.job.key, floor(now_s), ok=False)
                self._cluster.fail(int(run.job.key), now_s, final=True)

    def _limited(self) -> list[Running]:
        """Running jobs with a limit: replicas of services have none."""
        return [run for run in self.ctl.running.values() if self.ctl.site.limit_s(run.job) < UNLIMITED_S]

    def _mirror(self) -> None:
        """The books of the scheduler are those of the hardware."""
        hardware = self._cluster.hardware
        count = len(hardware.node_gpus)
        cpus = [hardware.cpu_free[k] // 1000 if hardware.limits_cpu[k] else ANY_CPUS for k in range(count)]
        self.ctl.books = Books(self.ctl.site.nodes, list(hardware.free_mask), cpus)
        self.ctl.site.up = sum(1 << k for k in range(count) if hardware.is_open(k))

    def _apply(self, found: Decisions, now_s: float) -> None:
        for run in found.starts:
            self._start(run, now_s)
        for key, by in found.stops:
            if key in self.ctl.running and self.ctl.stop(key, by, floor(now_s)):
                requeues = self.ctl.requeues(key)
                if requeues:
                    self._cluster.evict(int(key), now_s)
                else:
                    self.ctl.end(key, floor(now_s), ok=False)
                    self._cluster.fail(int(key), now_s, final=True)
                self._loops.kick(now_s)

    def _start(self, run: Running, now_s: float) -> None:
        """Start the job there; if the cluster refuses, it waits on."""
        cluster, job = self._cluster, int(run.job.key)
        first = cluster.hardware.first_gpu
        gpus = [first[node] + bit for node, mask in zip(run.nodes, run.masks, strict=True) for bit in members(mask)]
        if cluster.start(job, gpus[: cluster.jobs.gpus[job]], now_s) is not None:
            return
        ready_s = cluster.ready_s[job] - cluster.served_s[job]
        self.ctl.start(Running(run.job, run.start_s, ceil(ready_s + self.ctl.site.limit_s(run.job)), run.nodes, ()))
        self._loops.changed(now_s, queued=False)

    def _start_special(self, now_s: float) -> None:
        cluster = self._cluster
        for job in [job for job in self._special if job in cluster.pending]:
            spot = find_spot(cluster.hardware, cluster.jobs.shape_of(job))
            if spot is not None and cluster.start(job, spot.gpus, now_s, instances=spot.instances) is None:
                del self._special[job]
        self._special = {job: None for job in self._special if job in cluster.pending}
        self._mirror()
