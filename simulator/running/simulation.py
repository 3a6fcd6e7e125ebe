"""One policy, one cluster, one run: wires cluster, engine, accounts and checkers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, fsum, inf, isfinite, nan

from autopilot.core.hardware.mig import compute_share, find_gpu_model
from autopilot.core.model.records import Inventory
from autopilot.core.model.snapshot import ServiceTable
from simulator.checkers import PHYSICAL, CheckerSet, Found, Rules, World
from simulator.running.accounting import Accounts, Totals, utilization_bound
from simulator.running.engine import Engine, Run, Scheduler
from simulator.running.owed import Owed
from simulator.specs.clusterqueues import QueueSpec
from simulator.traces.gpu_models import KNOWN_GPU_MODELS
from simulator.world.cluster import Cluster
from simulator.world.hardware import Hardware, bits
from simulator.world.physics import IDEAL, Physics
from simulator.world.sharing import Loads
from simulator.world.work import Jobs, Shape

GPU_MEMORY_MIB = {name: None if gb is None else gb * 1024 for name, gb in KNOWN_GPU_MODELS.items()}


@dataclass(frozen=True, slots=True)
class Simulated:
    """A finished run with its observations."""

    cluster: Cluster
    run: Run
    accounts: Accounts
    totals: Totals
    found: Found
    owed: Owed


class Simulation:
    """A run before its start: events, observers and services may still be added to `engine` and `cluster`."""

    def __init__(
        self,
        inventory: Inventory,
        jobs: Jobs,
        make_scheduler: Callable[[Cluster], Scheduler],
        physics: Physics = IDEAL,
        *,
        checkers: Iterable[str] = PHYSICAL,
        rules: Rules | None = None,
        services: Callable[[float], ServiceTable] | None = None,
        works: Callable[[int, float], bool] | None = None,
        loads: Loads | None = None,
        queues: Sequence[QueueSpec] = (),
        observers: Sequence[object] = (),
        horizon_s: float = inf,
        ready_wakes: bool = False,
        recuts: bool = True,
        on_progress: Callable[[float, int, int], None] | None = None,
    ) -> None:
        """`checkers` are keys of simulator.checkers.CHECKERS; `rules` are the limits of the policy.

        `loads`: what work does and holds on its GPUs, for those that share GPUs; None: all is alike and holds nothing.
        For the checkers, `services` returns the services of the run at a time, and `works` tells if the GPUs of a job
        worked in the half hour before a time. The run counts the owed guarantees of the `queues` of the cluster file.
        """
        self.cluster = Cluster(inventory, jobs, physics, GPU_MEMORY_MIB)
        last_s = max((s for s, service in zip(jobs.submit_s, jobs.service, strict=True) if service < 0), default=0.0)
        self.accounts = Accounts(self.cluster, last_s)
        if loads is not None:
            self.cluster.sharings.loads = loads
        world = World(inventory, jobs, rules or Rules(), services, physics, ill=self._ill, works=works, loads=loads)
        self.checkers = CheckerSet(world, checkers)
        self.owed = Owed(self.cluster, queues)
        for observer in (self.accounts, self.owed, *self.checkers.checkers, *observers):
            self.cluster.observe(observer)
        self.engine = Engine(
            self.cluster,
            make_scheduler(self.cluster),
            horizon_s=horizon_s,
            ready_wakes=ready_wakes,
            recuts=recuts,
            on_progress=on_progress,
        )

    def _ill(self, job: int) -> bool:
        """True if a job lacks a member, hangs, or has to leave."""
        return job in self.cluster.stale or job in self.cluster.leaving

    def run(self) -> Simulated:
        """Run to the end and close the accounts."""
        run = self.engine.run()
        totals = self.accounts.totals(run.end_s)
        self.owed.at_end(run.end_s)
        found = self.checkers.close(run.end_s, totals.capacity, totals.idle, totals.by_tenant)
        return Simulated(self.cluster, run, self.accounts, totals, found, self.owed)


def width_gpus(hardware: Hardware, shape: Shape) -> float:
    """GPUs of work of `shape`: whole, a share, or MIG instances by their fraction of the first model with them."""
    if not shape.profile:
        return shape.full_milli / 1000
    names = hardware.inventory.names.gpu_models
    for code in dict.fromkeys(hardware.model_of[node] for node in bits(hardware.eligible(shape))):
        model = find_gpu_model(names[code])
        if model is not None and any(profile.name == shape.profile for profile in model.profiles):
            return shape.gpus * float(compute_share(model, shape.profile))
    return nan


def bound_ratio(cluster: Cluster) -> float:
    """The utilization bound of the cluster's jobs; NaN without jobs, or if services use part of the cluster."""
    jobs, hardware = cluster.jobs, cluster.hardware
    if any(service >= 0 for service in jobs.service):
        return nan  # the capacity left for jobs changes with the load of the services
    widths = [width_gpus(hardware, shape) for shape in jobs.shapes]
    rows = [job for job in range(len(jobs)) if widths[jobs.shape[job]] > 0]
    return utilization_bound(
        [jobs.submit_s[job] for job in rows],
        [jobs.duration_s[job] for job in rows],
        [widths[jobs.shape[job]] for job in rows],
        hardware.capacity_milli / 1000,
    )


def alone_jct_s(
    inventory: Inventory,
    jobs: Jobs,
    guarantee_nodes: Mapping[str, int],
    make_scheduler: Callable[[], Scheduler],
) -> dict[str, float]:
    """Mean JCT of each tenant alone on its guaranteed nodes (at least those of its widest gang), ideal physics.

    `make_scheduler` gives the policy to compare with (fifo-skip). A tenant without a guarantee is omitted, and NaN
    means none of its jobs ended. Ctrl-C raises: a partial mean is not returned.
    """
    means: dict[str, float] = {}
    for name, nodes in guarantee_nodes.items():
        rows = [job for job, code in enumerate(jobs.tenant) if jobs.tenants[code] == name and jobs.service[job] < 0]
        if not rows:
            continue
        mine = Jobs()
        for job in rows:
            mine.add(jobs.id[job], name, jobs.shape_of(job), jobs.submit_s[job], jobs.duration_s[job])
        cluster = Cluster(inventory, mine, IDEAL, GPU_MEMORY_MIB)
        widest = max(ceil(shape.gpus / shape.per_member) if shape.per_member else 1 for shape in mine.shapes)
        for node in range(max(nodes, widest), len(cluster.hardware.node_gpus)):
            cluster.hardware.set_node(node, ready=False, cordoned=False)
        if Engine(cluster, make_scheduler()).run().interrupted:
            raise KeyboardInterrupt
        jct_s = [end - submit for end, submit in zip(cluster.end_s, mine.submit_s, strict=True) if isfinite(end)]
        means[name] = fsum(jct_s) / len(jct_s) if jct_s else nan
    return means
