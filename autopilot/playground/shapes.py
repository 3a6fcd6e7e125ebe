"""The pods of a simulated job: their requests, their number, and their nodes and GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf, isnan
from typing import Any

from autopilot.contract import LAST_CHECKPOINT, LEVEL_OF, PREFIX, Domain, stated_sharing
from autopilot.core.hardware.mig_profiles import find_profile_name
from autopilot.core.model.snapshot import GPU_MILLI, SLO_CLASS_NAMES, SloClass, Topology
from simulator.world.cluster import Cluster
from simulator.world.work import Shape

Obj = dict[str, Any]
GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-"
DOMAIN_OF = {int(level): str(domain) for domain, level in LEVEL_OF.items() if int(level) != Topology.NONE}


@dataclass(frozen=True, slots=True)
class Member:
    """One pod of a gang on its node. `parts` are rows of GPUs, or of MIG instances if the gang requests them."""

    node: int
    parts: tuple[int, ...]


def requests_of(shape: Shape, units: int) -> dict[str, str]:
    """The resources of one pod with `units` GPUs or instances."""
    found: dict[str, str] = {}
    if shape.cpu_milli:
        found["cpu"] = f"{shape.cpu_milli}m" if shape.cpu_milli % GPU_MILLI else str(shape.cpu_milli // GPU_MILLI)
    if shape.memory_mib:
        found["memory"] = f"{shape.memory_mib}Mi"
    if units:
        found[resource_of(shape)] = str(units)
    return found


def resource_of(shape: Shape) -> str:
    """The resource requested by its pods."""
    return resource_of_profile(shape.profile) if shape.profile else GPU


def resource_of_profile(profile: str) -> str:
    """The resource of MIG instances of a profile; `+` is not allowed in its name."""
    return f"{MIG}{find_profile_name(profile) or profile}".replace("+", ".")


def member_count(shape: Shape, gpus: int) -> int:
    """Number of pods of a gang for `gpus`."""
    return max(ceil(gpus / max(shape.per_member, 1)), 1)


def members_of(cluster: Cluster, job: int) -> tuple[Member, ...]:
    """The pods of a job on GPUs: each on one node with its part, in the order of the nodes."""
    held = cluster.held[job]
    if held is None:
        return ()
    shape, node_of = cluster.jobs.shape_of(job), cluster.hardware.node_of
    rows = held.instances or held.gpus
    by_node: dict[int, list[int]] = {}
    for row, gpu in zip(rows, held.gpus, strict=True):
        by_node.setdefault(node_of[gpu], []).append(row)
    width = max(shape.per_member, 1)
    return tuple(
        Member(node, tuple(parts[at : at + width]))
        for node, parts in by_node.items()
        for at in range(0, len(parts), width)
    )


def contract_of(cluster: Cluster, job: int) -> dict[str, str]:
    """The annotations of the workload contract for the simulator's knowledge of the job."""
    jobs, store, shape = cluster.jobs, cluster.checkpoints, cluster.jobs.shape_of(job)
    stated: dict[str, Any] = {
        "slo-class": SLO_CLASS_NAMES[jobs.slo_class[job]],
        "preemptible": jobs.preemptible[job],
        "checkpoint-on-request": store.on_request(job),
        "preemption-delay-s": jobs.preemption_delay_s[job] or None,
        "limit-s": jobs.limit_s[job],
        "restart-s": store.restart_s(job),
        "checkpoint-write-s": store.write_s(job),
        "gpu-memory-gib": shape.gpu_memory_mib / 1024 or None,
        "gpu-type": _models(cluster, shape),
        **stated_sharing(jobs.trust[job], jobs.share[job]),
    }
    interval_s = store.stated_interval_s(job)
    stated["checkpoint-interval-s"] = interval_s if 1 <= interval_s < inf else None
    if jobs.service[job] < 0:
        members = member_count(shape, shape.gpus)
        stated["members"] = members if members > 1 else None
        least = member_count(shape, shape.min_gpus)
        stated["min-members"] = least if least < members else None
    if shape.spread:
        stated["topology"] = str(Domain.SPREAD)
    elif shape.topology in DOMAIN_OF:
        stated["topology"] = DOMAIN_OF[shape.topology]
    if jobs.slo_class[job] == SloClass.LATENCY_CRITICAL:
        stated["preemptible"] = None  # it never is
    return {PREFIX + name: text for name, value in stated.items() if (text := _text(value))}


def report_of(cluster: Cluster, job: int, now_s: float, start_s: float) -> dict[str, str]:
    """A running job's report about itself: the time of its last checkpoint; {} if it made none."""
    at_s = cluster.last_checkpoint_s(job, now_s)
    return {} if isnan(at_s) else {PREFIX + LAST_CHECKPOINT: f"{start_s + at_s:.3f}"}


def _models(cluster: Cluster, shape: Shape) -> str:
    names = cluster.inventory.names.gpu_models
    return "|".join(name for code, name in enumerate(names) if shape.models >> code & 1)


def _text(value: Any) -> str:
    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return "" if isnan(value) else f"{value:g}"
    return str(value)
