"""The workload of a simulated cluster: one column per property, one entry per job.

Columns are plain Python lists: the event loop reads one entry at a time. The hardware request of a job is its
`Shape`, shared by all jobs with the same request, so that each shape is tested once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, gcd, inf, nan
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autopilot.contract import LEVEL_OF, TRUST_OF, Domain, Trust, preemptible_by_class, share_by_class
from autopilot.core.model.objects import Share
from autopilot.core.model.snapshot import SLO_CLASS_NAMES, SloClass, Topology
from simulator.world.physics import TICKS_PER_S

if TYPE_CHECKING:
    from autopilot.core.model.records import Inventory
    from simulator.traces.job_trace import JobTrace


def uid_of(kind: str, row: int) -> str:
    """Identity of a job or a service. It is constant for its lifetime; no object is deleted and created again."""
    return f"{kind}-{row}"


def uids_of(kind: str, count: int) -> NDArray[np.object_]:
    """Identities of the first `count` objects of a kind."""
    uids = np.empty(count, object)
    uids[:] = [uid_of(kind, row) for row in range(count)]
    return uids


class Shape(NamedTuple):
    """The hardware request of a job.

    `gpus` whole GPUs divided into members of `per_member` (the last takes the remainder), each member on one node.
    `milli` > 0 requests this share of one GPU instead; `profile` requests `gpus` MIG instances of that name. 0 means
    "no constraint" in `models` (bit set over the GPU models), `gpu_memory_mib`, `cpu_milli` and `memory_mib` (both per
    member).
    """

    gpus: int
    per_member: int
    min_gpus: int
    milli: int = 0
    profile: str = ""
    models: int = 0
    gpu_memory_mib: int = 0
    cpu_milli: int = 0
    memory_mib: int = 0
    topology: int = int(Topology.NONE)
    spread: bool = False

    @property
    def whole(self) -> bool:
        """True if it requests whole GPUs."""
        return self.milli == 0 and not self.profile

    @property
    def plain(self) -> bool:
        """True if any free GPUs fit, as long as each member is on one node."""
        return (
            self.whole
            and not self.spread
            and not (self.models or self.gpu_memory_mib or self.cpu_milli or self.memory_mib or self.topology)
        )

    @property
    def full_milli(self) -> int:
        """Its width in thousandths of a GPU; a MIG instance counts as held, so not here."""
        return self.milli or 1000 * self.gpus


@dataclass(slots=True)
class Jobs:
    """All jobs, in file order. Row numbers are stable; replicas of services are added at the end."""

    tenants: list[str] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)
    id: list[str] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    user: list[str] = field(default_factory=list)
    kind: list[str] = field(default_factory=list)
    partition: list[str] = field(default_factory=list)  # of an accounting of Slurm; "" where unknown, as qos
    qos: list[str] = field(default_factory=list)
    tenant: list[int] = field(default_factory=list)
    shape: list[int] = field(default_factory=list)
    gpus: list[int] = field(default_factory=list)
    submit_s: list[float] = field(default_factory=list)
    duration_s: list[float] = field(default_factory=list)  # inf: until it is withdrawn
    limit_s: list[float] = field(default_factory=list)  # NaN: not declared
    priority: list[int] = field(default_factory=list)
    slo_class: list[int] = field(default_factory=list)
    preemptible: list[bool] = field(default_factory=list)
    checkpoint_interval_s: list[float] = field(default_factory=list)  # NaN: not stated
    checkpoint_gib: list[float] = field(default_factory=list)
    restart_s: list[float] = field(default_factory=list)
    preemption_delay_s: list[float] = field(default_factory=list)
    saves_on_request: list[bool] = field(default_factory=list)  # writes a checkpoint when it is evicted
    trust: list[int] = field(default_factory=list)  # objects.Trust
    share: list[int] = field(default_factory=list)  # objects.Share
    image: list[str] = field(default_factory=list)  # "": unknown
    peak_memory_gib: list[float] = field(default_factory=list)  # on each of its GPUs; NaN: by its behaviour
    service: list[int] = field(default_factory=list)  # -1: not a replica
    unknown_preemptible: int = 0
    _shape_code: dict[Shape, int] = field(default_factory=dict)
    _tenant_code: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.id)

    def shape_of(self, job: int) -> Shape:
        """The hardware request of job `job`."""
        return self.shapes[self.shape[job]]

    def shape_code(self, shape: Shape) -> int:
        """Number of `shape`; a new one is added."""
        code = self._shape_code.setdefault(shape, len(self.shapes))
        if code == len(self.shapes):
            self.shapes.append(shape)
        return code

    def tenant_code(self, name: str) -> int:
        """Number of the tenant `name`; a new one is added."""
        code = self._tenant_code.setdefault(name, len(self.tenants))
        if code == len(self.tenants):
            self.tenants.append(name)
        return code

    def add(
        self,
        job_id: str,
        tenant: str,
        shape: Shape,
        submit_s: float,
        duration_s: float = inf,
        *,
        slo_class: int = SloClass.BATCH,
        preemptible: bool = True,
        priority: int = 0,
        service: int = -1,
        kind: str = "",
        limit_s: float = nan,
        checkpoint_interval_s: float = nan,
        checkpoint_gib: float = nan,
        restart_s: float = nan,
        preemption_delay_s: float = 0.0,
        saves_on_request: bool = True,
        trust: int = TRUST_OF[Trust.UNTRUSTED],
        share: int = Share.NEVER,
        image: str = "",
        peak_memory_gib: float = nan,
    ) -> int:
        """Add one job and return its row."""
        self.id.append(job_id)
        self.name.append("")
        self.user.append("")
        self.kind.append(kind)
        self.partition.append("")
        self.qos.append("")
        self.tenant.append(self.tenant_code(tenant))
        self.shape.append(self.shape_code(shape))
        self.gpus.append(shape.gpus)
        self.submit_s.append(submit_s)
        self.duration_s.append(duration_s)
        self.limit_s.append(limit_s)
        self.priority.append(priority)
        self.slo_class.append(int(slo_class))
        self.preemptible.append(preemptible)
        self.checkpoint_interval_s.append(checkpoint_interval_s)
        self.checkpoint_gib.append(checkpoint_gib)
        self.restart_s.append(restart_s)
        self.preemption_delay_s.append(preemption_delay_s)
        self.saves_on_request.append(saves_on_request)
        self.trust.append(int(trust))
        self.share.append(int(share))
        self.image.append(image)
        self.peak_memory_gib.append(peak_memory_gib)
        self.service.append(service)
        return len(self.id) - 1


def jitter(duration_s: Sequence[float], ratio: float, seed: int) -> list[float]:
    """Each duration x uniform(1 - ratio, 1 + ratio), one draw a job in job order; on the time grid.

    The draws depend on the seed and the number of jobs alone, so every policy of a run sees the same.
    """
    durations = np.asarray(duration_s, float)
    if ratio:
        draws = np.random.default_rng(seed).uniform(1 - ratio, 1 + ratio, len(durations))
        durations = np.maximum(np.rint(durations * draws * TICKS_PER_S), 1) / TICKS_PER_S
    values: list[float] = durations.tolist()
    return values


def jobs_from_trace(trace: JobTrace, inventory: Inventory, *, jitter_ratio: float = 0.0, seed: int = 0) -> Jobs:
    """The jobs of a trace, for the hardware of `inventory`.

    A gang without a stated number of nodes has members as wide as its widest usable node, or as its least width
    allows. Missing properties have the defaults of the workload contract (docs/workload-contract.md).
    """
    jobs = Jobs()
    count = len(trace)
    jobs.id, jobs.name, jobs.user, jobs.kind = (
        column.tolist() for column in (trace.job_id, trace.name, trace.user, trace.kind)
    )
    jobs.partition, jobs.qos = (trace.words(name).tolist() for name in ("partition", "qos"))
    codes, names = trace.codes("tenant")
    jobs.tenant = codes.tolist()
    for name in names:
        jobs.tenant_code(name)
    jobs.gpus = trace.gpus.tolist()
    jobs.submit_s = (np.rint(trace.submit_s * TICKS_PER_S) / TICKS_PER_S).tolist()
    jobs.duration_s = jitter(
        (np.maximum(np.rint(trace.duration_s * TICKS_PER_S), 1) / TICKS_PER_S).tolist(), jitter_ratio, seed
    )
    jobs.limit_s = trace.limit_s.tolist()
    jobs.priority = np.maximum(trace.priority, 0).tolist()
    class_code = {name: code for code, name in enumerate(SLO_CLASS_NAMES)}
    jobs.slo_class = [class_code.get(word, int(SloClass.BATCH)) for word in trace.slo_class.tolist()]
    assumed = np.array([preemptible_by_class(each) for each in jobs.slo_class], bool)
    jobs.preemptible = np.where(trace.preemptible < 0, assumed, trace.preemptible > 0).tolist()
    jobs.unknown_preemptible = int(np.count_nonzero(trace.preemptible < 0))
    jobs.checkpoint_interval_s = trace.checkpoint_interval_s.tolist()
    jobs.checkpoint_gib = trace.checkpoint_gib.tolist()
    jobs.restart_s = trace.restart_s.tolist()
    jobs.preemption_delay_s = np.nan_to_num(trace.preemption_delay_s, nan=0.0).tolist()
    # the physics supply what a file omits: work that saves at all saves when it is evicted
    jobs.saves_on_request = (trace.checkpoint_on_request != 0).tolist()
    jobs.service = [-1] * count
    jobs.shape = _shapes(jobs, trace, inventory)
    jobs.trust = [int(TRUST_OF[word or Trust.UNTRUSTED]) for word in trace.trust.tolist()]
    jobs.share = [
        int(_share(word, slo_class, jobs.shapes[code]))
        for word, slo_class, code in zip(trace.share.tolist(), jobs.slo_class, jobs.shape, strict=True)
    ]
    jobs.image = trace.image.tolist()
    jobs.peak_memory_gib = trace.peak_memory_gib.tolist()
    return jobs


def _share(word: str, slo_class: int, shape: Shape) -> Share:
    if word:
        return Share[word.upper()]
    if not shape.whole or not shape.gpus:
        return Share.NEVER
    return share_by_class(slo_class, gpus=shape.gpus, island=shape.topology == Topology.ISLAND)


def _shapes(jobs: Jobs, trace: JobTrace, inventory: Inventory) -> list[int]:
    """The shape code of each job; equal rows are found by their values, so that many jobs cost little."""
    columns = zip(
        trace.gpus.tolist(),
        trace.nodes.tolist(),
        trace.min_gpus.tolist(),
        trace.gpu_milli.tolist(),
        trace.mig_profile.tolist(),
        trace.gpu_type.tolist(),
        np.nan_to_num(trace.gpu_memory_gib, nan=0.0).tolist(),
        np.nan_to_num(trace.cpus, nan=0.0).tolist(),
        trace.memory_mib.tolist(),
        trace.topology.tolist(),
        strict=True,
    )
    known: dict[tuple[object, ...], int] = {}
    codes: list[int] = []
    for row in columns:
        code = known.get(row)
        if code is None:
            code = known[row] = jobs.shape_code(_shape(row, inventory))
        codes.append(code)
    return codes


def _widest_member(gpus: int, min_gpus: int, widest: int) -> int:
    """GPUs of a member if the file names no members. An elastic gang gives and takes whole members, so its least
    width is a number of them.
    """
    if not 0 < min_gpus < gpus:
        return min(gpus, widest)
    both = gcd(gpus, min_gpus)
    return next(width for width in range(min(both, widest), 0, -1) if both % width == 0)


def _shape(row: tuple[int, int, int, int, str, str, float, float, int, str], inventory: Inventory) -> Shape:
    gpus, nodes, min_gpus, milli, profile, gpu_type, memory_gib, cpus, memory_mib, topology = row
    models = 0
    for word in gpu_type.split("|") if gpu_type else ():
        for code, name in enumerate(inventory.names.gpu_models):
            models |= (name.lower() == word.strip().lower()) << code
    if gpu_type and not models:
        models = 1 << len(inventory.names.gpu_models)  # a model that this cluster lacks: never fits
    widest = max(
        (
            int(n)
            for n, m in zip(inventory.nodes.gpus, inventory.nodes.gpu_model, strict=True)
            if not models or models >> int(m) & 1
        ),
        default=1,
    )
    if profile or topology == "node":
        per_member = 1 if profile else gpus
    elif nodes > 0:
        per_member = ceil(gpus / min(nodes, max(gpus, 1)))
    else:
        per_member = _widest_member(gpus, min_gpus, max(widest, 1))
    members = ceil(gpus / per_member) if gpus else 1
    spread = topology == Domain.SPREAD
    return Shape(
        gpus=gpus,
        per_member=per_member,
        min_gpus=min(gpus, ceil(min_gpus / per_member) * per_member) if min_gpus > 0 and gpus else gpus,
        milli=0 if profile or milli >= 1000 or gpus == 0 else milli,
        profile=profile,
        models=models,
        gpu_memory_mib=round(memory_gib * 1024),
        cpu_milli=ceil(cpus * 1000 / members),
        memory_mib=ceil(max(memory_mib, 0) / members),
        topology=int(LEVEL_OF[Domain(topology)] if topology and not spread else Topology.NONE),
        spread=spread,
    )
