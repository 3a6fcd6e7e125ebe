"""The GPUs by which quota counts what work holds and requests, where they are not those of the ledger.

The ledger counts a share as its part of a GPU and a MIG instance as a GPU. Kueue counts requests: a replica of a shared
GPU is a request for one. Our own rules may count an instance as its part (`tenancy.instance_parts`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from autopilot.core.hardware.mig_profiles import compute_share, find_gpu_model, find_profile
from autopilot.core.model.policy import Policy, RuleSetName
from autopilot.core.model.snapshot import F64, GPU_MILLI, ClusterSnapshot
from autopilot.core.model.work import entry_milli, gpu_parts, on_shares

KUEUE = frozenset({RuleSetName.COHORT_CLASSIC, RuleSetName.COHORT_FAIR})
"""Rule sets that count as Kueue does."""


@dataclass(frozen=True, slots=True)
class Counting:
    """GPUs of each placement, of one unit of the width of each workload, and of each instance. None of them is 0."""

    held: F64  # [placements]
    asked: F64  # [workloads]
    instances: F64  # [instances]
    requests: bool  # shares of requested whole GPUs count as these


def counting(snapshot: ClusterSnapshot, policy: Policy) -> Counting | None:
    """How quota counts under a policy; None: as the ledger does."""
    work, held, cuts = snapshot.workloads, snapshot.placements, snapshot.instances
    shares = on_shares(snapshot) if policy.rules in KUEUE else np.zeros(0, np.bool_)
    requests = policy.rules in KUEUE and bool(shares.any() or (snapshot.nodes.replicas > 1).any())
    parts = policy.rules not in KUEUE and policy.tenancy.instance_parts
    if not requests and not (parts and ((cuts.profile >= 0).any() or (work.mig_profile >= 0).any())):
        return None
    gpus, asked, instances = entry_milli(held) / GPU_MILLI, gpu_parts(work), np.ones(len(cuts.id))
    if not parts:
        return Counting(np.where(shares[held.workload], 1.0, gpus), asked, instances, requests=True)
    models = snapshot.nodes.gpu_model[snapshot.gpus.node[cuts.gpu]]
    for at in np.flatnonzero(cuts.profile >= 0).tolist():
        instances[at] = _part(snapshot, int(cuts.profile[at]), 1 << int(models[at]))
    for row in np.flatnonzero(work.mig_profile >= 0).tolist():
        asked[row] = _part(snapshot, int(work.mig_profile[row]), int(work.gpu_models[row]))
    inside = held.instance >= 0
    gpus[inside] = instances[held.instance[inside]]
    return Counting(gpus, asked, instances, requests=False)


def _part(snapshot: ClusterSnapshot, profile: int, models: int) -> float:
    """The part of a GPU of one of these models (bit set, 0: any)."""
    names = snapshot.names
    open_to = (name for code, name in enumerate(names.gpu_models) if not models or models >> code & 1)
    return _largest(tuple(open_to), names.profiles[profile])


@lru_cache(maxsize=4096)
def _largest(models: tuple[str, ...], profile: str) -> float:
    """The largest share of compute slices of a profile on these models; 1 if unknown."""
    facts = (find_gpu_model(name) for name in models)
    shares = [compute_share(each, profile) for each in facts if each is not None and find_profile(each, profile)]
    return float(max(shares, default=1))
