"""Values of fields not declared by a job. The reasons are documented with the fields (`tree.Stated.absent`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autopilot.contract.tree import MOST_SHARED_GPUS, SECTIONS, Contract, contract_fields
from autopilot.contract.vocabulary import Domain
from autopilot.core.hardware.mig_profiles import find_profile_name
from autopilot.core.model.objects import Share
from autopilot.core.model.snapshot import GPU_MILLI, SloClass


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a job other than its annotations; None or empty: unknown.

    Of its pods: `members` (the number declared by its controller), the request of one pod (`gpus_per_member`,
    `mig_profile`), the value of their PriorityClass, their activeDeadlineSeconds, their node selector ("key=value"),
    and True if they serve. Of the cluster: its GPU models, and the limit of the job's queue in GPUs.
    """

    members: int | None = None
    gpus_per_member: int | None = None
    mig_profile: str = ""
    priority: int | None = None
    limit_s: float | None = None
    node_selector: tuple[str, ...] = ()
    gpu_models: tuple[str, ...] = ()
    queue_limit_gpus: int | None = None
    serves: bool = False


NOTHING_KNOWN = Facts()
PROMISES = frozenset({"objective-s", "ttft-objective-s", "itl-objective-s"})
"""Annotations with a promise to requests."""


def preemptible_by_class(slo_class: int) -> bool:
    """Default of `preemptible` for a class: only batch work can be repeated."""
    return slo_class == SloClass.BATCH


def share_by_class(slo_class: int, *, gpus: int, island: bool) -> Share:
    """Default of `share` for work that requests whole GPUs: interactive work pauses, other work does not."""
    dev = slo_class == SloClass.INTERACTIVE and gpus <= MOST_SHARED_GPUS and not island
    return Share.DEV if dev else Share.NEVER


def infer(stated: Mapping[str, Any], facts: Facts = NOTHING_KNOWN) -> dict[str, Any]:
    """Every field by its annotation: the `stated` value, else the value of the pods, else the default."""
    filled = {found.key: found.default for found in contract_fields()} | dict(stated)

    def absent(key: str, value: Any) -> None:
        if key not in stated and value is not None:
            filled[key] = value

    absent("slo-class", _class_of_pods(stated, facts))
    absent("preemptible", preemptible_by_class(filled["slo-class"]))
    absent("priority", facts.priority)
    absent("limit-s", facts.limit_s)
    absent("members", facts.members or stated.get("min-members"))
    absent("min-members", filled["members"])
    absent("mig-profile", _profile_of_pods(stated, facts))
    if filled["mig-profile"] or is_share(filled):
        absent("gpus-per-member", 1)
    else:
        absent("gpus-per-member", facts.gpus_per_member or None)
        absent("topology", Domain.ISLAND if spans_members(filled) else None)
    absent("share", _share_of_work(filled))
    filled["node-selector"] = tuple(dict.fromkeys((*facts.node_selector, *filled["node-selector"])))
    return filled


def _share_of_work(filled: Mapping[str, Any]) -> Share:
    if filled["mig-profile"] or is_share(filled):
        return Share.NEVER
    gpus = int(filled["members"]) * int(filled["gpus-per-member"])
    return share_by_class(filled["slo-class"], gpus=gpus, island=needs_island(filled))


def needs_island(filled: Mapping[str, Any]) -> bool:
    """True if the job requires an NVLink island, or has a tensor-parallel group, which never leaves one."""
    return filled["topology"] == Domain.ISLAND or int(filled["tensor-parallel"]) > 1


def _class_of_pods(stated: Mapping[str, Any], facts: Facts) -> SloClass | None:
    if not PROMISES.isdisjoint(stated) or (facts.serves and not stated.get("preemptible")):
        return SloClass.LATENCY_CRITICAL
    return SloClass.INTERACTIVE if facts.serves else None


def pod_profile(facts: Facts) -> str:
    """The MIG profile requested by one pod, by its name (`1g.10gb`) or its resource; "" for none."""
    return str(find_profile_name(facts.mig_profile) or facts.mig_profile)


def _profile_of_pods(stated: Mapping[str, Any], facts: Facts) -> tuple[str, ...] | None:
    asks_otherwise = "gpus-per-member" in stated or stated.get("gpu-milli", GPU_MILLI) < GPU_MILLI
    return (pod_profile(facts),) if facts.mig_profile and not asks_otherwise else None


def is_share(filled: Mapping[str, Any]) -> bool:
    """True if the job requests less than one GPU."""
    return int(filled["gpu-milli"]) < GPU_MILLI


def spans_members(filled: Mapping[str, Any]) -> bool:
    """True if a tensor-parallel group is wider than one member."""
    return int(filled["tensor-parallel"]) > int(filled["gpus-per-member"])


def build(filled: Mapping[str, Any], assumed: tuple[str, ...]) -> Contract:
    """The contract for a complete set of values by annotation."""
    parts: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for found in contract_fields():
        parts[found.section][found.name] = filled[found.key]
    made: dict[str, Any] = {section: SECTIONS[section](**values) for section, values in parts.items()}
    return Contract(**made, assumed=assumed)
