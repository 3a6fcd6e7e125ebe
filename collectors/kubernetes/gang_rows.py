"""The row of one gang: its declaration, its request and its state.

The declaration is read by the workload contract; an invalid contract is a gap with the name of the gang, and the gang
is then left alone. The request comes from its Workload, else from its Job, else from its pods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Any

import msgspec

from autopilot.contract import LEVEL_OF, PREFIX, TRUST_OF, Contract, Facts, parse_contract
from autopilot.contract.annotations import WINDOW
from autopilot.contract.words_to_stay import stays
from autopilot.core.hardware.gpu_products import find_product
from autopilot.core.model.snapshot import GPU_MILLI, State, Topology
from collectors.kubernetes.asks import UNCLAIMED
from collectors.kubernetes.constraints import Constraints, Meets, asked_by
from collectors.kubernetes.gang_life import End, elsewhere, lacking_pods, life_of, short_since_s
from collectors.kubernetes.gangs import Gang, PodFacts, declarations, lost_job, serves_apart, uid_of
from collectors.kubernetes.heartbeats import Heartbeats, unread_times
from collectors.kubernetes.hints import Hints, main_image
from collectors.kubernetes.offers import asked_of_nodes
from collectors.kubernetes.opt_outs import OptOuts, consent
from collectors.kubernetes.shapes import (
    ClaimedBy,
    PodShape,
    check_size,
    shapes_of,
    shapes_of_pods,
    unclear_claims,
)
from collectors.kubernetes.width import why_rigid
from collectors.kubernetes.wire import Meta, PodSpec, Taint

LONGEST_NAME = 253
MOST_STATED = 50_000
ON_DEMAND = (
    "it waits for an instance {} of dynamic MIG, which exists only while a claim has it, {}: "
    "the autopilot does not start it; do not gate it"
)
DIFFER = "and its members differ"
UNPLACED = "and no driver states where it could be made"
TOPOLOGY_REQUIRED = "kueue.x-k8s.io/podset-required-topology"
TOPOLOGY_PREFERRED = "kueue.x-k8s.io/podset-preferred-topology"


@dataclass(slots=True)
class Cluster:
    """Inputs of the row of a gang besides the gang. Functions return -1 for an unknown name."""

    constraints: Constraints
    models: tuple[str, ...] = ()
    profile_code: Mapping[str, int] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    tenant: Callable[[str], int] = lambda _: 0
    queue: Callable[[Gang], int] = lambda _: 0
    queue_stopped: Callable[[Gang], bool] = lambda _: False
    left: Callable[[Gang], str] = lambda _: ""  # the reason to leave it alone: an unreadable object
    shared: Callable[[Gang], str] = lambda _: ""  # the reason to leave it alone: a layer that shares its GPUs
    service: Callable[[str, str], int] = lambda _namespace, _name: -1
    budget: Callable[[Gang], bool] = lambda _: False  # a PodDisruptionBudget forbids its eviction now
    class_value: Callable[[str], int | None] = lambda _: None  # "" is the global default
    level: Callable[[str], int] = lambda _: Topology.NONE  # of a node label
    share: Callable[[PodFacts], int] = lambda _: GPU_MILLI  # thousandths of each GPU held by a pod on a node
    apart: Callable[[Gang], bool] = lambda _: False  # its pods have parts of unknown GPUs
    as_profile: Callable[[str], str] = lambda _: ""  # profile of the instances offered by a node as GPUs
    claimed: ClaimedBy = lambda _namespace, _spec, _count: UNCLAIMED
    on_demand: Callable[[str], bool] = lambda _: False  # instances of a profile exist only while a claim has them
    placed: Callable[[str], bool] = lambda _: False  # a driver states possible places of such an instance
    both_kinds: bool = False  # of nodes: GPUs offered as resources, and by claims
    claims_for_resources: bool = False  # the scheduler makes claims for GPUs asked for as resources
    multikueue: frozenset[str] = frozenset()  # names of the checks for work run by other clusters
    acts: bool = False  # the controller acts: see `collector.Options`
    resizes: bool = False  # a lever may change the width of elastic Jobs
    opt_outs: OptOuts = field(default_factory=OptOuts)
    overbooked: frozenset[str] = frozenset()  # gangs with a pod without a GPU on its node
    heartbeats: Heartbeats = field(default_factory=Heartbeats)
    hints: Hints = field(default_factory=Hints)
    stated: dict[Any, Stated] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GangRow:
    """Columns of the workload table, rows of the member table, and reasons to leave the gang alone.

    Without columns it is not known to ask for a GPU.
    """

    values: dict[str, Any]
    members: tuple[dict[str, Any], ...] = ()
    problems: tuple[tuple[str, str], ...] = ()
    notes: tuple[tuple[str, str], ...] = ()  # declarations without effect; it is not left alone for that
    approved: str = ""  # the annotation that approves actions on it alone
    again_s: float = 0.0  # time of its next change by time alone; 0: never


@dataclass(frozen=True, slots=True)
class Stated:
    """Request and declaration of a gang: equal for many gangs, so it is made once for all of them."""

    values: dict[str, Any]
    preemptible: bool
    members: int
    least: int  # least number of pods for it to go on
    problems: tuple[tuple[str, str], ...]
    window: str = ""
    wants_width: bool = False  # its owner allows fewer members


def row_of(gang: Gang, cluster: Cluster, holding: Sequence[PodFacts], end: End, now_s: float) -> GangRow | None:
    """The row of a gang; None without a request for GPUs. `holding`: its pods with GPUs."""
    known = shapes_of(gang, cluster.claimed)
    unclear = unclear_claims(gang, known)
    shapes = [each for each in known if each.ask.any_gpu]
    shapes = shapes or [each for each in shapes_of_pods(gang) if each.ask.any_gpu]  # by allocated claims
    left = cluster.left(gang)
    unclear += (("unreadable", left),) if left else ()
    shared = cluster.shared(gang)
    unclear += (("sharing", shared),) if shared else ()
    if not shapes or (shared and cluster.apart(gang)):
        return GangRow({}, problems=unclear) if unclear else None
    signal, why, again_s = ("", "", 0.0) if holding else elsewhere(gang, cluster.multikueue, now_s)
    if why:
        note = (signal, f"{why}; it is no work of this cluster")
        return GangRow({}, notes=() if end.at_s is not None else (note,), again_s=again_s)
    check_size(shapes)
    stated = _stated(gang, shapes, cluster, holding)
    problems = [*stated.problems, *unclear, *cluster.opt_outs.problems(stated.window)]
    if gang.key in cluster.overbooked:
        problems.append(("allocatable", "its node has no GPU left for it: the node holds more than it offers"))
    if lost_job(gang):
        problems.append(("job", "its Job is not in the view, and so what it declares is not known; it is left alone"))
    queue = cluster.queue(gang)
    if queue < 0:
        problems.append(("queue", "its queue does not exist; it is left alone"))
    first = next(iter(gang.pods.values()), None)
    daemon = first is not None and first.daemon
    values = {
        **stated.values,
        **identity(gang, first, cluster),
        **life_of(gang, stated.members, holding, end, stopped=cluster.queue_stopped, acts=cluster.acts),
        "queue": max(queue, 0),
        "image": main_image(shapes[0].spec),
        "stale_since_s": short_since_s(gang, stated.least, holding, now_s),
        "lacking_pods": lacking_pods(gang, stated.members, stated.least, holding),
        "last_checkpoint_s": cluster.heartbeats.last_checkpoint_s(holding, now_s),
        "checkpoint_on_request": cluster.heartbeats.saves(gang.key, holding, now_s)
        and stated.values["checkpoint_on_request"],
        "steps_per_s": cluster.heartbeats.steps_per_s(holding, now_s),
        "preemptible": stated.preemptible
        and not daemon
        and not cluster.budget(gang)
        and not [each for each in holding if each.stays]
        and not (gang.job is not None and stays(gang.job.metadata.annotations, gang.job.metadata.labels)),
    }
    waits = (
        values["state"] == State.PENDING and not stated.values["mig_profile"] >= 0 and not stated.values["gpu_milli"]
    )
    wanted = cluster.hints.of_pods((each.spec for each in shapes), shapes[0].ask.gpus) if waits else ()
    values["prefers"] = cluster.hints.prefer(gang.key, wanted)
    if problems or daemon or cluster.opt_outs.alone(gang.namespace, stated.window):
        values["excluded"] = True
    named = [each.metadata for each in (gang.job, gang.workload, first.pod if first else None) if each is not None]
    mine, idle = consent(*named, counts=cluster.opt_outs.approvals)
    notes = [*unread_times(holding), *([("approval", idle)] if idle else [])]
    if stated.wants_width and cluster.resizes and (why := why_rigid(gang)):
        notes.append(("width", f"it declares min-members, but its width does not change: {why}"))
    members = _members(gang, shapes, cluster)
    if cluster.acts and values["state"] == State.PENDING:
        made = (name for each in shapes for name, _ in each.ask.profiles if each.spec.resource_claims)
        notes += [
            ("resourceclaims", ON_DEMAND.format(name, DIFFER if members else UNPLACED))
            for name in dict.fromkeys(made)
            if cluster.on_demand(name) and (members or not cluster.placed(name))
        ]
    approved = ""
    if mine or cluster.opt_outs.approves(gang.namespace):
        approved = f"annotation of {gang.name}" if mine else f"annotation of namespace {gang.namespace}"
    return GangRow(values, members, tuple(problems), tuple(notes), approved)


def _least(values: Mapping[str, Any], members: int) -> int:
    """Least number of pods for the gang to go on."""
    least, wide, pod = (int(values[name]) for name in ("min_gpus", "gpus", "gpus_per_member"))
    return -(-least // max(pod, 1)) if least < wide else members


def _stated(gang: Gang, shapes: list[PodShape], cluster: Cluster, holding: Sequence[PodFacts]) -> Stated:
    """The statement of the gang, kept from an equal gang if there was one."""
    first, job, workload = shapes[0], gang.job, gang.workload
    declared = declarations(
        first.meta,
        _pod_meta(gang),
        workload.metadata if workload is not None else None,
        job.metadata if job is not None else None,
    )
    spec = first.spec
    affinity = msgspec.json.encode(spec.affinity) if spec.affinity is not None else b""
    tolerations = msgspec.json.encode(spec.tolerations) if cluster.taints and spec.tolerations else b""
    held = holding[0] if holding and first.ask.gpus else None
    offers = (cluster.as_profile(held.pod.spec.node_name), cluster.share(held)) if held is not None else ("", GPU_MILLI)
    key = (
        tuple(sorted(declared.items())),
        tuple((each.count, each.least, each.ask) for each in shapes),
        frozenset((spec.node_selector or {}).items()),
        affinity,
        tolerations,
        _priority(gang, spec, cluster),
        _limit_s(gang, spec),
        _asked_topology(gang, first),
        offers,
        cluster.resizes and not why_rigid(gang),
        tuple(name for each in shapes for name, _ in _node_kinds(each, cluster)),
        serves_apart(gang, cluster.service),
    )
    found = cluster.stated.get(key)
    if found is None:
        if len(cluster.stated) >= MOST_STATED:
            cluster.stated.clear()
        found = cluster.stated[key] = _state(gang, shapes, declared, offers, cluster)
    return found


def _node_kinds(shape: PodShape, cluster: Cluster) -> tuple[tuple[str, Meets], ...]:
    """Nodes with GPUs in the form requested by these pods; () if all nodes are of one kind."""
    if not cluster.both_kinds:
        return ()
    return asked_of_nodes(shape, claims_for_resources=cluster.claims_for_resources)


def _pod_meta(gang: Gang) -> Meta | None:
    """The pods' own declarations. The Workload of plain pods and replicas has no metadata of theirs."""
    if gang.job is not None or gang.workload is None or not gang.pods:
        return None
    return next(iter(gang.pods.values())).pod.metadata


def _state(
    gang: Gang, shapes: list[PodShape], declared: dict[str, str], offers: tuple[str, int], cluster: Cluster
) -> Stated:
    problems: list[tuple[str, str]] = []
    first = shapes[0]
    contract = _contract(gang, shapes, declared, cluster, problems)
    kinds = _node_kinds(first, cluster)
    asked = asked_by(first.spec, cluster.taints, contract.place.node_selector, kinds)
    topology, preferred = _topology(gang, first, contract, cluster)
    values = {
        **_shape(shapes, contract, offers, cluster, elastic=_elastic(gang, shapes, declared, contract)),
        "slo_class": int(contract.service.slo_class),
        "priority": _clip(contract.service.priority),
        "selector": cluster.constraints.number(asked.items()),
        "topology": topology,
        "preferred": preferred,
        "excluded": contract.preemption.exclude,
        "trust": int(TRUST_OF[contract.preemption.trust]),
        "share": int(contract.preemption.share),
        "preemption_delay_s": contract.preemption.preemption_delay_s,
        "limit_s": _or_nan(contract.limits.limit_s),
        "checkpoint_interval_s": _or_nan(contract.checkpoint.interval_s),
        "checkpoint_write_s": _or_nan(contract.checkpoint.write_s),
        "checkpoint_on_request": contract.checkpoint.on_request,
        "restart_s": _or_nan(contract.checkpoint.restart_s),
        "gpu_memory_mib": round((contract.shape.gpu_memory_gib or 0.0) * 1024),
        "gpu_models": _models(contract.shape.gpu_type, cluster.models),
    }
    members = sum(each.count for each in shapes)
    return Stated(
        values,
        contract.preemption.preemptible,
        members,
        _least(values, members),
        tuple(problems),
        declared.get(WINDOW, ""),
        _wants_width(declared, contract),
    )


# --- its request ----------------------------------------------------------------------------------


def _contract(
    gang: Gang, shapes: list[PodShape], declared: dict[str, str], cluster: Cluster, problems: list[tuple[str, str]]
) -> Contract:
    """The declaration of the gang, completed with facts of its pods."""
    first = shapes[0]
    uniform = len({each.ask.units for each in shapes}) == 1
    profile = first.ask.profiles[0][0] if len(first.ask.profiles) == 1 and not first.ask.gpus else ""
    facts = Facts(
        members=sum(each.count for each in shapes) or None,
        gpus_per_member=first.ask.gpus or None if uniform else None,
        mig_profile=profile,
        priority=_priority(gang, first.spec, cluster),
        limit_s=_limit_s(gang, first.spec),
        node_selector=tuple(sorted(f"{key}={value}" for key, value in (first.spec.node_selector or {}).items())),
        gpu_models=cluster.models if declared else (),
        serves=serves_apart(gang, cluster.service),
    )
    found = parse_contract(declared, facts)
    if isinstance(found, Contract):
        return found
    text = "; ".join(str(each) for each in found[:3])
    problems.append(("contract", f"its workload contract is refused, and it is left alone: {text}"))
    without = parse_contract({}, facts)
    return without if isinstance(without, Contract) else Contract()


def _priority(gang: Gang, spec: PodSpec, cluster: Cluster) -> int | None:
    """Kueue's priority, else that of the pods, else the value of their future class."""
    if gang.workload is not None and gang.workload.spec.priority is not None:
        return gang.workload.spec.priority
    known = next((each.pod.spec.priority for each in gang.pods.values() if each.pod.spec.priority is not None), None)
    if known is not None or spec.priority is not None:
        return known if known is not None else spec.priority
    return cluster.class_value(spec.priority_class_name)


def _limit_s(gang: Gang, spec: PodSpec) -> float | None:
    """The shortest limit of its run time enforced by Kubernetes or Kueue."""
    job, workload = gang.job, gang.workload
    limits = [
        job.spec.active_deadline_seconds if job is not None else None,
        spec.active_deadline_seconds,
        workload.spec.maximum_execution_time_seconds if workload is not None else None,
    ]
    return min((float(each) for each in limits if each is not None and each > 0), default=None)


def _elastic(gang: Gang, shapes: list[PodShape], declared: dict[str, str], contract: Contract) -> bool:
    """True if its width may change: its owner declares the whole width and a smaller one."""
    return _wants_width(declared, contract) and len(shapes) == 1 and not shapes[0].ask.profiles and not why_rigid(gang)


def _wants_width(declared: dict[str, str], contract: Contract) -> bool:
    return f"{PREFIX}members" in declared and 0 < contract.gang.min_members < contract.gang.members


def _shape(
    shapes: list[PodShape], contract: Contract, offers: tuple[str, int], cluster: Cluster, *, elastic: bool
) -> dict[str, Any]:
    """GPUs in total, of one member, and least; share and profile. `offers`: form of the GPUs on its node."""
    first = shapes[0]
    profile = contract.shape.mig_profile[0] if contract.shape.mig_profile else ""
    profile = profile or (offers[0] if first.ask.gpus else "")
    milli = first.ask.milli or contract.shape.gpu_milli % GPU_MILLI
    if first.ask.gpus and not milli:
        milli = offers[1] % GPU_MILLI
    total = sum(each.count * each.ask.units for each in shapes)
    least = sum(each.least * each.ask.units for each in shapes)
    width = max(each.ask.units for each in shapes)
    declared = contract.gang.min_members
    if declared < contract.gang.members:
        least = min(least, declared * width)
    if cluster.resizes and elastic:  # its Job asks for its present pods
        total, least = contract.gang.members * width, declared * width
    elif cluster.acts:
        least = total
    return {
        "gpus": max(total, 1),
        "gpus_per_member": max(width, 1),
        "min_gpus": max(min(least, total), 1),
        "gpu_milli": milli if not profile else 0,
        "mig_profile": cluster.profile_code.get(profile, -2) if profile else -1,
        "cpu_milli": first.ask.cpu_milli,
        "memory_mib": first.ask.memory_mib,
    }


def _members(gang: Gang, shapes: list[PodShape], cluster: Cluster) -> tuple[dict[str, Any], ...]:
    """One row for each pod of a gang of unequal pods; equal pods need none."""
    if len({(each.ask.gpus, each.ask.profiles) for each in shapes}) == 1 and all(
        bool(each.ask.gpus) + len(each.ask.profiles) == 1 for each in shapes
    ):
        return ()
    rows = []
    for number, each in enumerate(shapes):
        asked = asked_by(each.spec, cluster.taints, kinds=_node_kinds(each, cluster))
        selector = cluster.constraints.number(asked.items())
        for k in range(min(each.count, 4096)):
            pod = f"{gang.name}/{each.name or number}/{k}"
            parts = [(each.ask.gpus, -1)] if each.ask.gpus else []
            parts += [(count, cluster.profile_code.get(name, -2)) for name, count in each.ask.profiles]
            rows += [
                {
                    "id": f"{pod}/{place}" if len(parts) > 1 else pod,
                    "gpus": gpus,
                    "rank": len(shapes) - number,
                    "selector": selector,
                    "mig_profile": profile,
                    "pod": pod if len(parts) > 1 else "",
                }
                for place, (gpus, profile) in enumerate(parts)
            ]
    return tuple(rows)


def _asked_topology(gang: Gang, first: PodShape) -> tuple[str, str]:
    """Labels of the required and of the preferred level, as requested of Kueue's topology-aware scheduling."""
    asked = first.meta.note(TOPOLOGY_REQUIRED), first.meta.note(TOPOLOGY_PREFERRED)
    sets = (gang.workload.spec.pod_sets or ()) if gang.workload is not None else ()
    request = next((each.topology_request for each in sets if each.topology_request is not None), None)
    if request is None:
        return asked
    return request.required or asked[0], request.preferred or asked[1]


def _topology(gang: Gang, first: PodShape, contract: Contract, cluster: Cluster) -> tuple[int, int]:
    """The required level to be shared by all members, and the preferred one."""
    place = contract.place
    level = int(LEVEL_OF[place.topology]) if place.topology is not None else int(Topology.NONE)
    wish = int(LEVEL_OF[place.preferred_topology]) if place.preferred_topology is not None else 0
    required, preferred = _asked_topology(gang, first)
    level = level or cluster.level(required)
    wish = wish or cluster.level(preferred)
    return level, wish if wish != level else 0


def _models(wanted: tuple[str, ...], models: tuple[str, ...]) -> int:
    """GPU models by any of their names as a bit set; 0: any."""
    bits = 0
    for text in wanted:
        known = find_product(text)
        for code, name in enumerate(models):
            if name.lower() == text.lower() or (known is not None and known.name == name):
                bits |= 1 << code
    return bits


def identity(gang: Gang, first: PodFacts | None, cluster: Cluster) -> dict[str, Any]:
    """The identifying columns of a gang."""
    service = first.service if first is not None else ""
    return {
        "id": f"{gang.namespace}/{gang.name}"[:LONGEST_NAME],
        "uid": uid_of(gang),
        "name": gang.name[:LONGEST_NAME],
        "tenant": cluster.tenant(gang.namespace),
        "service": cluster.service(gang.namespace, service) if service else -1,
    }


def _or_nan(value: float | None) -> float:
    return nan if value is None else value


def _clip(value: int) -> int:
    return max(min(value, 2**31 - 1), -(2**31))
