"""Observations in the simulated world: the simulated cluster as batches for the controller.

`ClusterCollector` states the cluster; it judges nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np

from autopilot.core.model.latencies import ReplicaLatency
from autopilot.core.model.objects import Pausing
from autopilot.core.model.ranks import RankTable
from autopilot.core.model.records import Batch, Inventory, Listing, Work
from autopilot.core.model.service_signals import of_replicas
from autopilot.core.model.snapshot import (
    AdvanceTable,
    Gate,
    GpuTable,
    InstanceTable,
    PlacementTable,
    QueueTable,
    ServiceTable,
    State,
    Topology,
    WorkloadTable,
    empty,
)
from simulator.signals.paces import Paces
from simulator.world.cluster import Cluster
from simulator.world.facts import Declared, GpuChanged, NodeChanged, Recut, Recutting, Stopped, Turned, Why, Withdrawn
from simulator.world.work import uid_of, uids_of

WHOLE = Listing()
Mark = tuple[int, int]
"""How many objects were reported as ended and as deleted."""
GONE = -3
"""Profile code of an instance that was destroyed: its row stays, without a name, and no work can request it."""


class ClusterCollector:
    """Inventory and work of a simulated cluster. Unchanged tables are the same objects again."""

    name = "simulated-cluster"

    def __init__(
        self,
        cluster: Cluster,
        queues: QueueTable,
        queue_of_tenant: dict[str, int],
        services: Callable[[float], ServiceTable] | None = None,
        advance: AdvanceTable | None = None,
        paces: Paces | None = None,
        latencies: Callable[[float], ReplicaLatency] | None = None,
    ) -> None:
        """`services` returns the services' table at a time; None: no services. `advance`: the advance reservations.

        `paces`: what training programs report; None: nothing. `latencies`: what servers report of single replicas.
        """
        self._advance: AdvanceTable = empty(AdvanceTable) if advance is None else advance
        self.cluster, self.queues, self._queue_of_tenant = cluster, queues, queue_of_tenant
        self._services, self._paces, self._latencies = services, paces, latencies
        self._inventory: Inventory = cluster.inventory
        self._stale = False
        self._ended: list[int] = []
        self._deleted: list[str] = []
        self._forgotten: Mark = (0, 0)
        self._static: dict[str, np.ndarray] = {}
        self._tenants: tuple[str, ...] = ()
        self._profiles = {name: code for code, name in enumerate(cluster.inventory.names.profiles)}
        cluster.observe(self)

    # --- facts that make tables stale -----------------------------------------------------

    def on_node(self, _fact: NodeChanged) -> None:
        """A node changed."""
        self._stale = True

    def on_gpu(self, _fact: GpuChanged) -> None:
        """A GPU changed."""
        self._stale = True

    def on_recut(self, _fact: Recut) -> None:
        """A GPU was partitioned anew."""
        self._stale = True

    def on_recutting(self, _fact: Recutting) -> None:
        """A change of geometry began or ended."""
        self._stale = True

    def on_turned(self, _fact: Turned) -> None:
        """A node changed how its GPUs are shared, or begins to."""
        self._stale = True

    def on_stopped(self, fact: Stopped) -> None:
        """Ended work is shown once more, as ended; work withdrawn by its owner is reported deleted."""
        if fact.why in {Why.END, Why.FAIL, Why.SUSPEND}:
            self._ended.append(fact.job)
        elif fact.why is Why.RETIRE:
            self._deleted.append(uid_of("job", fact.job))

    def on_declared(self, _fact: Declared) -> None:
        """An otherwise constant property of a job changed."""
        self._static = {}

    def on_withdrawn(self, fact: Withdrawn) -> None:
        """Withdrawn waiting work is reported deleted."""
        self._deleted.append(uid_of("job", fact.job))

    # --- tables ---------------------------------------------------------------------------

    def collect(self, now_s: float) -> Batch:
        """The cluster as it is now; work ended or deleted since the last call is reported once."""
        batch = self.peek(now_s)
        self.forget(self.mark())
        return batch

    def mark(self) -> Mark:
        """The place after all work reported now by a batch as ended or deleted."""
        return (self._forgotten[0] + len(self._ended), self._forgotten[1] + len(self._deleted))

    def forget(self, mark: Mark) -> None:
        """Never again report the work reported before `mark`."""
        ended, deleted = (there - before for there, before in zip(mark, self._forgotten, strict=True))
        if ended >= 0 and deleted >= 0:
            del self._ended[:ended], self._deleted[:deleted]
            self._forgotten = mark

    def peek(self, now_s: float) -> Batch:
        """The same without marking anything as reported."""
        if self._stale:
            self._inventory, self._stale = self._rebuild_inventory(), False
        rows = self._live_rows()
        services = self._services(now_s) if self._services else empty(ServiceTable)
        work = Work(
            self._tenant_names(),
            self._workloads(rows, now_s),
            self._placements(rows),
            services,
            self.queues,
            advance=self._advance,
            ranks=self._paces.ranks(now_s) if self._paces else empty(RankTable),
        )
        listing = Listing(deleted=tuple(self._deleted)) if self._deleted else WHOLE
        replicas = self._latencies(now_s) if self._latencies else None
        signals = of_replicas(replicas) if replicas is not None and len(replicas.id) else None
        return Batch(self.name, now_s, inventory=self._inventory, work=work, services=signals, work_list=listing)

    def _live_rows(self) -> np.ndarray:
        cluster = self.cluster
        rows = np.fromiter(chain(cluster.pending, cluster.holding, cluster.parked, self._ended), np.int64)
        rows.sort()
        return rows

    def _tenant_names(self) -> tuple[str, ...]:
        if len(self._tenants) != len(self.cluster.jobs.tenants):
            self._tenants = tuple(self.cluster.jobs.tenants)
        return self._tenants

    def _rebuild_inventory(self) -> Inventory:
        """Current node and GPU states; instances by the current partitioning."""
        hardware, was = self.cluster.hardware, self._inventory
        nodes = replace(
            was.nodes,
            ready=np.array(hardware.ready, bool),
            cordoned=np.array(hardware.cordoned, bool),
            reclaim_at_s=np.where(np.isinf(hardware.reclaim_at_s), np.nan, hardware.reclaim_at_s),
            sharing=np.array(self.cluster.sharings.kind, np.int8),
            replicas=np.array(self.cluster.sharings.replicas(), np.int32),
        )
        gpus = GpuTable(
            was.gpus.uuid,
            was.gpus.node,
            was.gpus.index,
            np.array(hardware.healthy, bool),
            np.array(hardware.mig, bool),
            np.array(self.cluster.xids(), np.int32),
            was.gpus.remap,
            np.array(self.cluster.recuts.states(), np.int8),
            was.gpus.on_demand,
        )
        return Inventory(was.names, nodes, gpus, self._instances())

    def _instances(self) -> InstanceTable:
        """All instances ever created, so that row numbers are stable; destroyed ones have no profile."""
        hardware, uuids = self.cluster.hardware, self._inventory.gpus.uuid
        there = {row for rows in hardware.cut.values() for row in rows}
        cuts = hardware.instances
        table = InstanceTable(
            id=np.array(
                [f"{uuids[cut.gpu]}/{cut.gi_id}" if row in there else "" for row, cut in enumerate(cuts)], object
            ),
            gpu=np.array([cut.gpu for cut in cuts], np.int32),
            profile=np.array(
                [self._profiles[cut.profile] if row in there else GONE for row, cut in enumerate(cuts)],
                np.int32,
            ),
            start=np.array([cut.start for cut in cuts], np.int32),
            gi_id=np.array([cut.gi_id for cut in cuts], np.int32),
        )
        return table if len(cuts) else empty(InstanceTable)

    def _workloads(self, rows: np.ndarray, now_s: float) -> WorkloadTable:
        cluster, jobs = self.cluster, self.cluster.jobs
        if len(self._static.get("id", ())) != len(jobs):
            self._static = self._static_columns()
        static = {name: column[rows] for name, column in self._static.items()}
        pick = _picker(rows)
        ended = np.isin(rows, self._ended) if self._ended else np.zeros(len(rows), bool)
        served = np.array(pick(cluster.served_s), float)
        return WorkloadTable(
            id=static["id"],
            uid=static["uid"],
            name=static["name"],
            user=static["user"],
            tenant=static["tenant"],
            queue=static["queue"],
            slo_class=static["slo_class"],
            priority=static["priority"],
            state=np.array(pick(cluster.state), np.int8),
            incarnation=(np.array(pick(cluster.incarnation)) + np.isin(rows, list(cluster.counted))).astype(np.int32),
            submit_s=static["submit_s"],
            start_s=np.array(pick(cluster.start_s), float),
            runs_since_s=np.array(pick(cluster.since_s), float),
            ended_s=np.where(ended, np.array(pick(cluster.end_s), float), np.nan),
            served_s=served,
            outlived_s=np.maximum(served, np.array(pick(cluster.outlived_s), float)),
            gpus=static["gpus"],
            gpus_per_member=static["gpus_per_member"],
            min_gpus=static["min_gpus"],
            gpu_milli=static["gpu_milli"],
            mig_profile=static["mig_profile"],
            gpu_models=static["gpu_models"],
            gpu_memory_mib=static["gpu_memory_mib"],
            cpu_milli=static["cpu_milli"],
            memory_mib=static["memory_mib"],
            topology=static["topology"],
            preferred=static["preferred"],
            selector=static["selector"],
            prefers=static["prefers"],
            preemptible=static["preemptible"],
            excluded=static["excluded"],
            gate=np.where(np.isin(rows, list(cluster.parked)), Gate.REJECTED, Gate.OPEN).astype(np.int8),
            over_quota=static["over_quota"],
            preemption_delay_s=static["preemption_delay_s"],
            backfilled=np.array(pick(cluster.backfilled), bool),
            limit_s=static["limit_s"],
            checkpoint_interval_s=static["checkpoint_interval_s"],
            last_checkpoint_s=self._last_checkpoints(rows, now_s),
            checkpoint_write_s=static["checkpoint_write_s"],
            checkpoint_on_request=static["checkpoint_on_request"],
            restart_s=static["restart_s"],
            lost_gpu_s=np.array(pick(cluster.lost_gpu_s), float),
            service=static["service"],
            stuck=self._stuck(rows, now_s),
            stale_since_s=self._stale_since(rows),
            lacking_pods=np.zeros(len(rows), np.int32),
            stale_grace_s=np.full(len(rows), np.nan),
            job_group=static["no_group"],
            coordinates=static["no_group"],
            scheduler_quota=np.zeros(len(rows), np.int8),
            trust=static["trust"],
            share=static["share"],
            image=static["image"],
            pausing=self._pausing(rows),
            steps_per_s=self._paces.steps_per_s(rows, now_s) if self._paces else np.full(len(rows), np.nan),
        )

    def _pausing(self, rows: np.ndarray) -> np.ndarray:
        """Whether jobs take pauses, and which are paused."""
        jobs = self.cluster.jobs
        able = np.array(_picker(rows)(jobs.saves_on_request), bool) & (np.array(_picker(rows)(jobs.service), int) < 0)
        paused = np.isin(rows, list(self.cluster.paused))
        return np.where(paused, Pausing.PAUSED, np.where(able, Pausing.ABLE, Pausing.NONE)).astype(np.int8)

    def _last_checkpoints(self, rows: np.ndarray, now_s: float) -> np.ndarray:
        """Completion time of each job's newest periodic checkpoint; NaN if it makes none."""
        times_s = np.full(len(rows), np.nan)
        if not self.cluster.physics.checkpoint_interval_s:
            return times_s  # nothing is ever lost between two of them, so there is none to report
        holding = np.flatnonzero(np.isin(rows, np.fromiter(self.cluster.holding, np.int64)))
        for place in holding.tolist():
            times_s[place] = self.cluster.last_checkpoint_s(int(rows[place]), now_s)
        return times_s

    def _stuck(self, rows: np.ndarray, now_s: float) -> np.ndarray:
        """Evicted work beyond its grace period and still on GPUs."""
        late = [job for job in self.cluster.leaving if self.cluster.stuck(job, now_s)]
        return np.isin(rows, late)

    def _stale_since(self, rows: np.ndarray) -> np.ndarray:
        """Time of death of a member of each gang with the others on their GPUs; NaN if none is known to be dead."""
        since_s = np.full(len(rows), np.nan)
        for job, at_s in self.cluster.stale.items():
            if job in self.cluster.hung:
                continue
            since_s[np.searchsorted(rows, job)] = at_s
        return since_s

    def _static_columns(self) -> dict[str, np.ndarray]:
        """Columns constant for a job, over all jobs known so far."""
        jobs = self.cluster.jobs
        shapes = [jobs.shapes[code] for code in jobs.shape]
        count = len(jobs)
        queue_of = [self._queue_of_tenant.get(name, 0) for name in jobs.tenants]
        store = self.cluster.checkpoints
        texts = np.empty(count, object)
        texts[:] = jobs.id
        names = np.empty(count, object)
        names[:] = jobs.name
        users = np.empty(count, object)
        users[:] = jobs.user
        return {
            "id": texts,
            "uid": uids_of("job", count),
            "name": names,
            "user": users,
            "tenant": np.array(jobs.tenant, np.int32),
            "queue": np.array([queue_of[tenant] for tenant in jobs.tenant], np.int32),
            "slo_class": np.array(jobs.slo_class, np.int8),
            "priority": np.array(jobs.priority, np.int32),
            "submit_s": np.array(jobs.submit_s, float),
            "gpus": np.array(jobs.gpus, np.int32),
            "gpus_per_member": np.array([shape.per_member for shape in shapes], np.int32),
            "min_gpus": np.array([shape.min_gpus for shape in shapes], np.int32),
            "gpu_milli": np.array([shape.milli for shape in shapes], np.int32),
            "mig_profile": np.array(
                [self._profiles.get(shape.profile, -2) if shape.profile else -1 for shape in shapes], np.int32
            ),
            "gpu_models": np.array([shape.models for shape in shapes], np.int64),
            "gpu_memory_mib": np.array([shape.gpu_memory_mib for shape in shapes], np.int32),
            "cpu_milli": np.array([shape.cpu_milli for shape in shapes], np.int64),
            "memory_mib": np.array([shape.memory_mib for shape in shapes], np.int64),
            "topology": np.array([Topology.SPREAD if shape.spread else shape.topology for shape in shapes], np.int8),
            "preferred": np.zeros(count, np.int8),
            "selector": np.zeros(count, np.int32),
            "prefers": np.zeros(count, np.int64),
            "preemptible": np.array(jobs.preemptible, bool),
            "excluded": np.isin(np.arange(count), list(self.cluster.opted_out)),
            "over_quota": np.zeros(count, bool),
            "preemption_delay_s": np.array(jobs.preemption_delay_s, float),
            "limit_s": np.array(jobs.limit_s, float),
            "checkpoint_interval_s": np.array([store.stated_interval_s(job) for job in range(count)], float),
            "checkpoint_write_s": np.array([store.write_s(job) for job in range(count)], float),
            "checkpoint_on_request": np.array([store.saves(job) for job in range(count)], bool),
            "restart_s": np.array([store.restart_s(job) for job in range(count)], float),
            "service": np.array(jobs.service, np.int32),
            "no_group": np.full(count, "", object),
            "trust": np.array(jobs.trust, np.int8),
            "share": np.array(jobs.share, np.int8),
            "image": np.array([*jobs.image, None], object)[:-1],
        }

    def _placements(self, rows: np.ndarray) -> PlacementTable:
        """One entry per GPU, share or instance held."""
        cluster = self.cluster
        if not cluster.holding:
            table: PlacementTable = empty(PlacementTable)
            return table
        jobs = sorted(cluster.holding)
        held = [cluster.held[job] for job in jobs]
        sizes = [0 if each is None else len(each.gpus) for each in held]
        gpu = np.fromiter(chain.from_iterable([each.gpus for each in held if each is not None]), np.int32)
        workload = np.repeat(np.searchsorted(rows, jobs), sizes).astype(np.int32)
        instance = np.full(len(gpu), -1, np.int32)
        milli = np.full(len(gpu), 1000, np.int32)
        start = 0
        for each, size in zip(held, sizes, strict=True):
            if each is not None and each.instances:
                instance[start : start + size] = each.instances
                milli[start : start + size] = 0
            elif each is not None and each.milli != 1000 * size:
                milli[start : start + size] = each.milli // max(size, 1)
            start += size
        told = np.array([cluster.state[job] for job in jobs], np.int8) == int(State.CHECKPOINTING)
        leaving = np.repeat(told, sizes)
        rank, assumed = np.zeros(len(gpu), np.int32), np.zeros(len(gpu), np.bool_)
        node = self._inventory.gpus.node[gpu]
        return PlacementTable(workload, node, gpu, instance, milli, leaving, rank, assumed)


def _picker(rows: np.ndarray) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A fast getter of list entries at `rows`."""
    places = rows.tolist()
    if len(places) > 1:
        return itemgetter(*places)
    return lambda column: [column[place] for place in places]
