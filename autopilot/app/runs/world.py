"""The world of a simulation: cluster, jobs, services, faults; equal for every policy of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from math import ceil, isnan
from typing import Any

import numpy as np

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.changes import changed
from autopilot.core.model.errors import InputError, nearest, unknown_name
from autopilot.core.model.policy.names import ClusterNames
from autopilot.core.model.records import Inventory
from autopilot.core.model.units import parse_cluster_shape
from simulator.baselines.slurm.files import read_site
from simulator.baselines.slurm.model import Node
from simulator.baselines.slurm.site import Site as SlurmSite
from simulator.inference.deployments import Services, requests_for
from simulator.inference.services import ServiceFleet
from simulator.outcome.recorded import Recorded, recorded_result, recorded_starts
from simulator.running.faults import FaultOptions
from simulator.scenarios import Scenario, load_scenario, policy_values
from simulator.specs.clusterfile import ClusterSpec, parse_cluster
from simulator.specs.inventory import build_inventory
from simulator.traces.defaults import declared_limits_s, load_defaults
from simulator.traces.job_trace import JobTrace
from simulator.traces.jobs import read_jobs
from simulator.traces.own_columns import parse_columns
from simulator.traces.slurm.replay import Site
from simulator.world.physics import PHYSICS
from simulator.world.work import Jobs, jobs_from_trace

DEFAULT = "quickstart"
DEFAULT_PLAYED = (
    f"no scenario and no job file is named, so the shipped scenario {DEFAULT} is played; name one with --scenario, or "
    "your own jobs with --jobs"
)
DRAWN = (
    "a job file has no SM activity: what the autopilot sees of it is drawn by the kind of work, and no "
    "utilization, price or page counts it"
)
UNMEASURED = "real utilization is not measured: the run has no telemetry; --telemetry windowed measures it"
LIMIT_SEED = 1
"""Seed of the declared limits generated for a file without them (reference: `easy`)."""


@dataclass(slots=True)
class World:
    """The common world of all policies. `jobs()` and `fleet()` return fresh copies, because runs change them."""

    title: str
    seed: int
    physics: str
    spec: ClusterSpec
    inventory: Inventory
    policies: tuple[str, ...]
    policy: Mapping[str, Any] = field(default_factory=dict)  # values of fields, under a policy file
    telemetry: str = "auto"
    durations: str = "predicted"
    faults: FaultOptions | None = None
    slow_gpus: Mapping[int, float] = field(default_factory=dict)  # by row; see `simulator.world.sharing.Loads`
    assumed: Mapping[str, int] = field(default_factory=dict)
    unusable_by_reason: Mapping[str, int] = field(default_factory=dict)
    first_unusable: Mapping[str, str] = field(default_factory=dict)  # by reason, the first such row of the job file
    services: Services = field(default_factory=Services)
    notes: tuple[str, ...] = ()
    start_s: float | None = None  # start of the run, in seconds since 1970; None: the input has no dates
    slurm: Callable[[tuple[Node, ...]], SlurmSite] = SlurmSite  # of these nodes, for the baseline `slurm`
    recorded: Mapping[str, Any] | None = None  # figures of the starts in the job file
    starts: Recorded | None = None  # these starts
    _jobs: Jobs = field(default_factory=Jobs)

    def jobs(self) -> Jobs:
        """The jobs, for one run to consume."""
        return deepcopy(self._jobs)

    def fleet(self, jobs: Jobs) -> ServiceFleet | None:
        """The services with their requests, their first replicas added to `jobs`; None without services."""
        if not self.services.deployments:
            return None
        return ServiceFleet(self.services, jobs, self.inventory, PHYSICS[self.physics])

    @property
    def span_s(self) -> float:
        """Time of the last submit, or of the last request if that is later."""
        return max(max(self._jobs.submit_s, default=0.0), self.services.horizon_s)

    @property
    def effects_fail(self) -> bool:
        """True if faults make the controller's effects fail or come late."""
        faults = self.faults
        return faults is not None and faults.conflict_ratio + faults.failure_ratio + faults.delay_ratio > 0

    @property
    def tenants(self) -> tuple[str, ...]:
        """The tenants of jobs and services, each once."""
        return tuple(dict.fromkeys((*self._jobs.tenants, *(each.tenant for each in self.services.deployments))))

    @property
    def names(self) -> ClusterNames:
        """Names that a policy may use here."""
        return ClusterNames(self.spec.gpus_by_model, [pool.name for pool in self.spec.pools])

    @property
    def guaranteed_nodes(self) -> dict[str, int]:
        """Whole nodes guaranteed to each tenant by the queue of its name."""
        widest = max((pool.gpus_per_node for pool in self.spec.pools), default=1)
        tenants = self.tenants
        guaranteed = {queue.name: sum(queue.guarantee.values()) for queue in self.spec.queues if queue.name in tenants}
        return {name: ceil(gpus / widest) for name, gpus in guaranteed.items() if gpus > 0}


def build_world(options: SimulateOptions) -> World:
    """The world of `options`. Raises `InputError` naming the flag, file or field."""
    scenario = load_scenario(options.scenario or DEFAULT) if _wants_scenario(options) else None
    seed = options.seed if options.seed is not None else (scenario.seed if scenario else 0)
    spec = changed(parse_cluster(options.cluster) if options.cluster else _cluster_of(scenario), options.changes)
    inventory = build_inventory(spec)
    trace = _trace(options, scenario, spec, seed)
    start_s = trace.start_s if trace is not None else None
    slurm: Callable[[tuple[Node, ...]], SlurmSite] = SlurmSite
    if options.slurm is not None:
        slurm = partial(read_site, options.slurm, start_s=start_s, timezone=options.timezone)
        slurm(tuple(Node(str(name), 0) for name in inventory.nodes.id))  # its mistakes show before a long run
    jobs = (
        jobs_from_trace(trace, inventory, jitter_ratio=options.jitter_ratio, seed=seed) if trace is not None else Jobs()
    )
    _set_limits(jobs, options.limits)
    services = requests_for(
        scenario.services if scenario else (),
        options.requests,
        horizon_s=scenario.horizon_s if scenario else 0.0,
        seed=seed,
        rate_scale=options.rate_scale,
        columns=parse_columns(options.columns or ""),
    )
    assumed = dict(trace.assumed) if trace is not None else {}
    if jobs.unknown_preemptible and options.jobs is not None:
        assumed.setdefault("preemptible", jobs.unknown_preemptible)
    unusable = dict(trace.unusable_by_reason) if trace is not None else {}
    _check_replica_ids(jobs, services)
    tenants = {*jobs.tenants, *(deployment.tenant for deployment in services.deployments)}
    return World(
        title=scenario.name if scenario else " + ".join(str(path) for path in (options.jobs, options.requests) if path),
        seed=seed,
        physics=options.physics or (scenario.physics if scenario else "ideal"),
        spec=spec,
        inventory=inventory,
        policies=(scenario.policies if scenario else ()) or default_policies(jobs),
        policy=policy_values(scenario),
        telemetry=scenario.telemetry if scenario else "auto",
        durations=scenario.durations if scenario else "predicted",
        faults=scenario.faults if scenario else None,
        slow_gpus=_slow_rows(scenario, inventory),
        assumed=assumed,
        unusable_by_reason=unusable | dict(services.unusable_by_reason),
        first_unusable=dict(trace.first_unusable) if trace is not None else {},
        services=services,
        notes=(
            *((DEFAULT_PLAYED,) if scenario is not None and options.scenario is None else ()),
            *(trace.notes if trace is not None else ()),
            *_queue_notes(spec, tenants),
            *services.notes,
            *_policy_notes(options.policy_set),
            *((UNMEASURED,) if (options.telemetry or (scenario.telemetry if scenario else "")) == "off" else ()),
            *((DRAWN,) if options.jobs is not None and options.telemetry != "off" else ()),
        ),
        start_s=start_s,
        slurm=slurm,
        recorded=recorded_result(trace, spec.gpus) if trace is not None and options.jobs is not None else None,
        starts=_starts(trace, spec) if trace is not None and options.jobs is not None else None,
        _jobs=jobs,
    )


def _slow_rows(scenario: Scenario | None, inventory: Inventory) -> dict[int, float]:
    """Rows of the slow GPUs. Raises `InputError` for one that the cluster does not have."""
    nodes, found = inventory.nodes, dict[int, float]()
    places = {str(name): row for row, name in enumerate(nodes.id.tolist())}
    for each in scenario.slow_gpus if scenario else ():
        row = places.get(each.node, -1)
        if row < 0 or each.gpu >= int(nodes.gpus[row]):
            raise InputError(
                f"slow_gpus: the cluster has no GPU {each.gpu} on node {each.node!r}; {unknown_name(each.node, places)}"
            )
        found[int(nodes.first_gpu[row]) + each.gpu] = each.ratio
    return found


def _policy_notes(policy_set: tuple[str, ...]) -> tuple[str, ...]:
    return (f"every policy of the autopilot runs with {', '.join(policy_set)}",) if policy_set else ()


def _starts(trace: JobTrace, spec: ClusterSpec) -> Recorded | None:
    return recorded_starts(trace, spec.gpus_by_model, max(pool.gpus_per_node for pool in spec.pools))


def _check_replica_ids(jobs: Jobs, services: Services) -> None:
    """Raise `InputError` if a job has the id of a replica (SERVICE/NUMBER): an effect could reach either."""
    names = {deployment.name for deployment in services.deployments}
    for job_id in jobs.id if names else ():
        service, slash, number = job_id.rpartition("/")
        if slash and number.isdigit() and service in names:
            raise InputError(f"job {job_id!r}: replicas of service {service!r} have such ids; rename the job")


def _queue_notes(spec: ClusterSpec, tenants: set[str]) -> tuple[str, ...]:
    """Queues without work and tenants without a queue: names alone connect them, so a typing error costs the guarantee.

    Raises `InputError` if the names of an unused queue and of a tenant without a queue differ by a likely typing error.
    """
    if not spec.queues:
        return ()
    queues = {queue.name for queue in spec.queues}
    idle = queues - tenants - {queue.parent for queue in spec.queues}
    alone = tenants - queues
    for name in sorted(idle):
        twins = [tenant for tenant in alone if _digits(tenant) == _digits(name)]
        if near := nearest(name, twins, least_ratio=0.8):
            raise InputError(
                f"{spec.source}: queues: {name!r}: no tenant has this name, {near} The jobs of that tenant "
                "have no queue; use one name for both, or add a queue for that tenant"
            )
    notes = []
    if idle:
        notes.append(f"queues without work: {_listed(idle)}")
    if alone:
        notes.append(f"tenants without a queue, and so without a guarantee: {_listed(alone)}")
    return tuple(notes)


def _digits(name: str) -> str:
    return "".join(letter for letter in name if letter.isdigit())


def _listed(names: set[str], most: int = 10) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:most]) + (f" and {len(ordered) - most:,} more" if len(ordered) > most else "")


def default_policies(jobs: Jobs) -> tuple[str, ...]:
    """The default policies: with several tenants also `las`, for its shortest waits; it ignores guarantees."""
    return ("fifo-skip", "las", "autopilot") if len(jobs.tenants) > 1 else ("fifo-skip", "autopilot")


def _wants_scenario(options: SimulateOptions) -> bool:
    """True for a named scenario, and without an input file."""
    return options.scenario is not None or (options.jobs is None and options.requests is None)


def _cluster_of(scenario: Scenario | None) -> ClusterSpec:
    if scenario is None:
        raise InputError("--cluster: name the cluster that the jobs run on; write for example --cluster 7x8")
    return scenario.cluster


def _trace(options: SimulateOptions, scenario: Scenario | None, spec: ClusterSpec, seed: int) -> JobTrace | None:
    """The jobs of the file, or those generated by the scenario."""
    if options.jobs is None:
        return scenario.jobs(seed) if scenario is not None else None
    defaults = load_defaults(options.defaults) if options.defaults is not None else None
    return read_jobs(
        options.jobs,
        tenants=options.tenants,
        defaults=defaults,
        capacity=spec.capacity,
        columns=parse_columns(options.columns or ""),
        site=Site(
            timezone=options.timezone,
            shards_per_gpu=options.shards_per_gpu,
            partitions=_models_of_partitions(options.partitions or "", spec),
            any_model=options.cluster is not None and parse_cluster_shape(options.cluster.strip().lower()) is not None,
        ),
    )


def _models_of_partitions(text: str, spec: ClusterSpec) -> dict[str, tuple[str, ...]]:
    """`gpu=train+big,h100=H100-80GB` as GPU models by partition. Raises `InputError`."""
    pools = {pool.name: pool.gpu_model for pool in spec.pools}
    models = {**{model: model for model in spec.gpus_by_model}, **pools}
    found: dict[str, tuple[str, ...]] = {}
    for part in filter(None, text.split(",")):
        name, equals, places = (word.strip() for word in part.partition("="))
        if not (name and equals and places):
            raise InputError(f"--partitions: {part!r} is no pair; write for example gpu=train,h100=hopper")
        for place in places.split("+"):
            if place.strip() not in models:
                raise InputError(f"--partitions: {place.strip()!r}: {unknown_name(place.strip(), sorted(models))}")
        found[name] = tuple(dict.fromkeys(models[place.strip()] for place in places.split("+")))
    return found


def _set_limits(jobs: Jobs, limits: str) -> None:
    """The user limits shown to the autopilot: those in the file, generated ones for jobs without, or none."""
    if limits == "none":
        jobs.limit_s = [float("nan")] * len(jobs)
    elif limits == "declared":
        made = declared_limits_s(np.asarray(jobs.duration_s, float), np.random.default_rng(LIMIT_SEED)).tolist()
        jobs.limit_s = [other if isnan(own) else own for own, other in zip(jobs.limit_s, made, strict=True)]
