"""The row of one gang: what it declares, what it asks for, and where it is.

What it declares is read by the workload contract; an invalid contract is a gap that names the gang, which is then left
alone. What it asks for comes from its Workload, else from its Job, else from its pods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import nan
from typing import Any

from autopilot.contract import LEVEL_OF, Contract, Facts, Problem, parse_contract
from autopilot.core.hardware.mig_profiles import find_gpu_model
from autopilot.core.model.snapshot import GPU_MILLI, Gate, State, Topology
from collectors.kubernetes.asks import Ask, ask_of
from collectors.kubernetes.constraints import Constraints
from collectors.kubernetes.gangs import KUEUE_TOTAL, SET_SIZE, Gang, PodFacts, declarations
from collectors.kubernetes.wire import Meta, PodSpec, Taint, condition, is_true
from collectors.kueue import state as kueue

LONGEST_NAME = 253
MOST_CONTRACTS = 50_000
TOPOLOGY_REQUIRED = "kueue.x-k8s.io/podset-required-topology"
TOPOLOGY_PREFERRED = "kueue.x-k8s.io/podset-preferred-topology"


@dataclass(frozen=True, slots=True)
class PodShape:
    """Equal pods of a gang."""

    count: int
    least: int
    ask: Ask
    spec: PodSpec
    meta: Meta
    name: str = ""


@dataclass(slots=True)
class Cluster:
    """What the row of a gang depends on besides the gang. Functions return -1 for what is unknown."""

    constraints: Constraints
    models: tuple[str, ...] = ()
    profile_code: Mapping[str, int] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    tenant: Callable[[str], int] = lambda _: 0
    queue: Callable[[Gang], int] = lambda _: 0
    queue_stopped: Callable[[Gang], bool] = lambda _: False
    service: Callable[[str, str], int] = lambda _namespace, _name: -1
    budget: Callable[[Gang], bool] = lambda _: False  # a PodDisruptionBudget forbids its eviction now
    class_value: Callable[[str], int | None] = lambda _: None  # "" is the global default
    level: Callable[[str], int] = lambda _: Topology.NONE  # of a node label
    replicas: Callable[[str], int] = lambda _: 1  # pods that share a GPU of a node
    as_profile: Callable[[str], str] = lambda _: ""  # profile of the instances that a node offers as GPUs
    overbooked: frozenset[str] = frozenset()  # gangs with a pod for which its node has no GPU
    contracts: dict[Any, Contract | tuple[Problem, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GangRow:
    """Columns of the workload table, rows of the member table, and why the gang is left alone."""

    values: dict[str, Any]
    members: tuple[dict[str, Any], ...] = ()
    problems: tuple[tuple[str, str], ...] = ()


def row_of(gang: Gang, cluster: Cluster) -> GangRow | None:
    """The row of a gang; None where it asks for no GPU."""
    shapes = [each for each in shapes_of(gang) if each.ask.any_gpu]
    if not shapes:
        return None
    problems: list[tuple[str, str]] = []
    first = shapes[0]
    contract = _contract(gang, shapes, cluster, problems)
    members = sum(each.count for each in shapes)
    values = _identity(gang, cluster)
    values |= _shape(gang, shapes, contract, cluster)
    values |= _lifecycle(gang, members, cluster)
    selector = cluster.constraints.of_pod(first.spec, cluster.taints, contract.place.node_selector)
    if selector is None:
        problems.append(("selector", "there are more than 63 different constraints on nodes; it is left alone"))
    topology, preferred = _topology(gang, first, contract, cluster)
    daemon = any(each.daemon for each in gang.pods.values())
    if gang.key in cluster.overbooked:
        problems.append(("allocatable", "its node has no GPU left for it: the node holds more than it offers"))
    queue = cluster.queue(gang)
    if queue < 0:
        problems.append(("queue", "its queue does not exist; it is left alone"))
    values |= {
        "queue": max(queue, 0),
        "slo_class": int(contract.service.slo_class),
        "priority": _clip(contract.service.priority),
        "selector": selector or 0,
        "topology": topology,
        "preferred": preferred,
        "preemptible": contract.preemption.preemptible and not daemon and not cluster.budget(gang),
        "excluded": contract.preemption.exclude or bool(problems) or daemon,
        "preemption_delay_s": contract.preemption.preemption_delay_s,
        "limit_s": _or_nan(contract.limits.limit_s),
        "checkpoint_interval_s": _or_nan(contract.checkpoint.interval_s),
        "checkpoint_write_s": _or_nan(contract.checkpoint.write_s),
        "checkpoint_on_request": contract.checkpoint.on_request,
        "restart_s": _or_nan(contract.checkpoint.restart_s),
        "gpu_memory_mib": round((contract.shape.gpu_memory_gib or 0.0) * 1024),
        "gpu_models": _models(contract.shape.gpu_type, cluster.models),
    }
    return GangRow(values, _members(gang, shapes, cluster), tuple(problems))


# --- what it asks for -----------------------------------------------------------------------------


def shapes_of(gang: Gang) -> list[PodShape]:
    """The kinds of pods of a gang with their numbers: of its Workload, else its Job, else its pods."""
    if gang.workload is not None:
        return [
            PodShape(
                each.count,
                each.min_count if each.min_count is not None else each.count,
                ask_of(each.template.spec),
                each.template.spec,
                each.template.metadata,
                each.name,
            )
            for each in gang.workload.spec.pod_sets or ()
        ]
    if gang.job is not None:
        spec = gang.job.spec
        wide = spec.parallelism if spec.parallelism is not None else 1
        count = min(wide, spec.completions) if spec.completions is not None else wide
        return [PodShape(count, count, ask_of(spec.template.spec), spec.template.spec, spec.template.metadata)]
    by_ask: dict[Ask, list[PodFacts]] = {}
    for each in gang.pods.values():
        by_ask.setdefault(each.ask, []).append(each)
    shapes = [
        PodShape(len(found), len(found), ask, found[0].pod.spec, found[0].pod.metadata) for ask, found in by_ask.items()
    ]
    stated = _stated_members(gang)
    if len(shapes) == 1 and stated > shapes[0].count:
        shapes = [PodShape(stated, stated, shapes[0].ask, shapes[0].spec, shapes[0].meta)]
    return shapes


def _stated_members(gang: Gang) -> int:
    """The number of pods that a group states on them; 0 for none."""
    for each in gang.pods.values():
        text = each.pod.metadata.note(KUEUE_TOTAL) or each.pod.metadata.note(SET_SIZE)
        if text.isdecimal() and len(text) < 7:
            return int(text)
    return 0


def _contract(gang: Gang, shapes: list[PodShape], cluster: Cluster, problems: list[tuple[str, str]]) -> Contract:
    """What the gang declares, with what its pods say where it declares nothing."""
    first, job = shapes[0], gang.job
    stated = declarations(
        first.meta, gang.workload.metadata if gang.workload is not None else None, job.metadata if job else None
    )
    uniform = len({each.ask.units for each in shapes}) == 1
    profile = first.ask.profiles[0][0] if len(first.ask.profiles) == 1 and not first.ask.gpus else ""
    facts = Facts(
        members=sum(each.count for each in shapes) or None,
        gpus_per_member=first.ask.gpus or None if uniform else None,
        mig_profile=profile,
        priority=_priority(gang, first.spec, cluster),
        limit_s=_limit_s(gang, first.spec),
        node_selector=tuple(sorted(f"{key}={value}" for key, value in (first.spec.node_selector or {}).items())),
        gpu_models=cluster.models if stated else (),
    )
    key = (tuple(sorted(stated.items())), facts)
    found = cluster.contracts.get(key)
    if found is None:
        if len(cluster.contracts) >= MOST_CONTRACTS:
            cluster.contracts.clear()
        found = cluster.contracts[key] = parse_contract(stated, facts)
    if isinstance(found, Contract):
        return found
    text = "; ".join(str(each) for each in found[:3])
    problems.append(("contract", f"its workload contract is refused, and it is left alone: {text}"))
    without = parse_contract({}, facts)
    return without if isinstance(without, Contract) else Contract()


def _priority(gang: Gang, spec: PodSpec, cluster: Cluster) -> int | None:
    """Kueue's priority, else that of the pods, else the value of the class that they will get."""
    if gang.workload is not None and gang.workload.spec.priority is not None:
        return gang.workload.spec.priority
    known = next((each.pod.spec.priority for each in gang.pods.values() if each.pod.spec.priority is not None), None)
    if known is not None or spec.priority is not None:
        return known if known is not None else spec.priority
    return cluster.class_value(spec.priority_class_name)


def _limit_s(gang: Gang, spec: PodSpec) -> float | None:
    """The shortest limit of its run time that Kubernetes or Kueue enforces."""
    job, workload = gang.job, gang.workload
    limits = [
        job.spec.active_deadline_seconds if job is not None else None,
        spec.active_deadline_seconds,
        workload.spec.maximum_execution_time_seconds if workload is not None else None,
    ]
    return min((float(each) for each in limits if each is not None and each > 0), default=None)


def _shape(gang: Gang, shapes: list[PodShape], contract: Contract, cluster: Cluster) -> dict[str, Any]:
    """GPUs in total, of one member, and least; share and profile."""
    first = shapes[0]
    node = next((each.pod.spec.node_name for each in gang.pods.values() if each.holds), "")
    profile = contract.shape.mig_profile[0] if contract.shape.mig_profile else ""
    if first.ask.gpus and not profile and node:
        profile = cluster.as_profile(node)
    milli = contract.shape.gpu_milli % GPU_MILLI
    if first.ask.gpus and not milli and node and cluster.replicas(node) > 1:
        milli = GPU_MILLI // cluster.replicas(node)
    total = sum(each.count * each.ask.units for each in shapes)
    least = sum(each.least * each.ask.units for each in shapes)
    width = max(each.ask.units for each in shapes)
    declared = contract.gang.min_members
    if declared < contract.gang.members:
        least = min(least, declared * width)
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
    """One row for each pod of a gang whose pods differ; equal pods need none."""
    if len({(each.ask.gpus, each.ask.profiles) for each in shapes}) == 1 and all(
        bool(each.ask.gpus) + len(each.ask.profiles) == 1 for each in shapes
    ):
        return ()
    rows = []
    for number, each in enumerate(shapes):
        selector = cluster.constraints.of_pod(each.spec, cluster.taints) or 0
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


def _topology(gang: Gang, first: PodShape, contract: Contract, cluster: Cluster) -> tuple[int, int]:
    """The level that all members must share, and the one that they should share."""
    place = contract.place
    level = int(LEVEL_OF[place.topology]) if place.topology is not None else int(Topology.NONE)
    wish = int(LEVEL_OF[place.preferred_topology]) if place.preferred_topology is not None else 0
    asked = first.meta.note(TOPOLOGY_REQUIRED), first.meta.note(TOPOLOGY_PREFERRED)
    if gang.workload is not None:
        sets = gang.workload.spec.pod_sets or ()
        request = next((each.topology_request for each in sets if each.topology_request is not None), None)
        if request is not None:
            asked = request.required or asked[0], request.preferred or asked[1]
    if not level and asked[0]:
        level = cluster.level(asked[0])
    if not wish and asked[1]:
        wish = cluster.level(asked[1])
    return level, wish if wish != level else 0


def _models(wanted: tuple[str, ...], models: tuple[str, ...]) -> int:
    """GPU models by any of their names as a bit set; 0: any."""
    bits = 0
    for text in wanted:
        known = find_gpu_model(text)
        for code, name in enumerate(models):
            if name.lower() == text.lower() or (known is not None and known.name == name):
                bits |= 1 << code
    return bits


# --- where it is ----------------------------------------------------------------------------------


def _identity(gang: Gang, cluster: Cluster) -> dict[str, Any]:
    kind, _, rest = gang.key.partition("/")
    uid = rest if kind == "uid" else gang.key
    if kind == "group" and gang.workload is not None:
        uid = gang.workload.metadata.uid
    service = next((each.service for each in gang.pods.values() if each.service), "")
    return {
        "id": f"{gang.namespace}/{gang.name}"[:LONGEST_NAME],
        "uid": uid,
        "name": gang.name[:LONGEST_NAME],
        "tenant": cluster.tenant(gang.namespace),
        "service": cluster.service(gang.namespace, service) if service else -1,
    }


def _lifecycle(gang: Gang, members: int, cluster: Cluster) -> dict[str, Any]:
    """State, gate and times."""
    holding = [each for each in gang.pods.values() if each.holds]
    ended_s, failed = end_of(gang)
    state, gate = int(State.PENDING), int(Gate.OPEN)
    if holding:
        if ended_s is not None or all(each.leaving for each in holding) or kueue.evicted(gang.workload):
            state = int(State.CHECKPOINTING)
        else:
            whole = len(holding) >= min(members, sum(not each.over for each in gang.pods.values()))
            state = int(State.RUNNING if whole and all(each.ready for each in holding) else State.STARTING)
    elif ended_s is not None:
        state = int(State.FAILED if failed else State.SUCCEEDED)
    else:
        gate = _gate(gang, cluster)
    stats = kueue.evictions(gang.workload)
    return {
        "state": state,
        "gate": gate,
        "incarnation": max(gang.incarnation, stats),
        "submit_s": _submit_s(gang),
        "start_s": min((_bound_s(each) for each in holding), default=nan),
        "ended_s": ended_s if ended_s is not None and not holding else nan,
    }


def end_of(gang: Gang) -> tuple[float | None, bool]:
    """When the gang ended, and whether it failed; None while it has not."""
    if gang.workload is not None:
        done = condition(gang.workload.status.conditions, "Finished")
        if done is not None and done.status == "True":
            return _seconds(done.last_transition_time), done.reason not in {"Succeeded", "JobFinished"}
    if gang.job is not None:
        for kind, failed in (("Complete", False), ("Failed", True)):
            done = condition(gang.job.status.conditions, kind)
            if done is not None and done.status == "True":
                return _seconds(done.last_transition_time), failed
        return None, False
    if gang.workload is None and gang.pods and all(each.over for each in gang.pods.values()):
        ends = [_pod_end_s(each) for each in gang.pods.values()]
        return max(ends), any(each.pod.status.phase == "Failed" for each in gang.pods.values())
    return None, False


def _pod_end_s(found: PodFacts) -> float:
    """When the containers of a pod ended: its last change of readiness."""
    times = [_seconds(each.last_transition_time) for each in found.pod.status.conditions or () if each.type == "Ready"]
    return max([*times, _seconds(found.pod.metadata.creation_timestamp)])


def _gate(gang: Gang, cluster: Cluster) -> int:
    """Whether something other than room keeps a waiting gang from starting."""
    if gang.workload is not None:
        gate = kueue.gate(gang.workload)
        return int(Gate.WAITING) if gate == Gate.OPEN and cluster.queue_stopped(gang) else gate
    if gang.job is not None and gang.job.spec.suspend:
        ours = declarations(gang.job.metadata, gang.job.spec.template.metadata)
        return int(Gate.OPEN if ours else Gate.REJECTED)  # suspended by a person, or left to the autopilot
    foreign = [
        gate.name
        for each in gang.pods.values()
        for gate in each.pod.spec.scheduling_gates or ()
        if not gate.name.startswith("gpu-autopilot.io/")
    ]
    return int(Gate.WAITING if foreign else Gate.OPEN)


def _submit_s(gang: Gang) -> float:
    """When the gang was created: its own object, else its first pod."""
    times = [gang.job.metadata.creation_timestamp] if gang.job is not None else []
    times += [gang.workload.metadata.creation_timestamp] if gang.workload is not None else []
    times += [each.pod.metadata.creation_timestamp for each in gang.pods.values()] if not times else []
    return min((_seconds(each) for each in times if each is not None), default=0.0)


def _bound_s(found: PodFacts) -> float:
    """Since when a pod holds its GPUs: its binding, else its start."""
    for each in found.pod.status.conditions or ():
        if each.type == "PodScheduled" and each.status == "True" and each.last_transition_time is not None:
            return _seconds(each.last_transition_time)
    return _seconds(found.pod.status.start_time or found.pod.metadata.creation_timestamp)


def _seconds(at: datetime | None) -> float:
    return at.timestamp() if at is not None else 0.0


def _or_nan(value: float | None) -> float:
    return nan if value is None else value


def _clip(value: int) -> int:
    return max(min(value, 2**31 - 1), -(2**31))


def finished(gang: Gang) -> bool:
    """True once the gang has ended and holds nothing."""
    return end_of(gang)[0] is not None and not any(each.holds for each in gang.pods.values())


def admitted(gang: Gang) -> bool:
    """True while Kueue admits the gang."""
    return gang.workload is not None and is_true(gang.workload.status.conditions, "Admitted")
