"""Past use of queues, and its effect on their part of idle capacity.

Use decays with a half-life: with one of a week, an hour of 8 GPUs a week ago counts as half an hour. Memory keeps the
sum as of the last change of any queue's holding, and the GPUs held since. The sum at any later time follows bit for
bit from these two, regardless of the ticks in between. Weights change only at the start of a review period, so that a
decision does not depend on the time within the period.

For queues that share time, their parts of the cluster (the use open to them) are summed in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf, log, log2

import numpy as np

from autopilot.core.model.capability import Planned, Tick
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.use import UseMemory
from autopilot.core.model.policy import Policy
from autopilot.core.model.snapshot import F64, ClusterSnapshot, QueueTable
from autopilot.core.model.work import held_gpus, holding_mask
from autopilot.core.quota.counting import counting

LEAST_RATIO = 0.1
"""Least part of its weight for a queue after any past use: it is served less, but it is served."""

FORGOTTEN_GPU_S = 1e-3
"""Past use below this is dropped from memory."""


def remember_use(memory: ControllerMemory, tick: Tick) -> ControllerMemory:
    """Memory with the GPUs held from now on, and the past use as of the start of the review.

    Until now, the holding of the last observation counts. Nothing is kept if past use does not count.
    """
    snapshot, now_s, review_s = tick.observation.snapshot, tick.now_s, tick.review_s
    half_life_s, use = tick.policy.tenancy.usage_half_life_s, memory.use
    if not half_life_s or len(snapshot.queues.id) <= 2:
        return replace(memory, use=UseMemory()) if use.usage_at_s > -np.inf else memory
    since_s = use.usage_at_s if use.usage_at_s > -np.inf else now_s
    if since_s <= review_s:  # else it was computed before the holding changed, in this same period
        for_s = review_s - since_s
        use = replace(
            use,
            standing_use_gpu_s=_decayed(use.usage_gpu_s, use.held_gpus, for_s, half_life_s),
            standing_part_gpu_s=_decayed(use.part_gpu_s, use.part_gpus, for_s, half_life_s),
        )
    held = _held(snapshot, tick.policy)
    if held != use.held_gpus or use.usage_at_s == -np.inf:
        use = replace(_summed(use, now_s, half_life_s), held_gpus=held)
    return memory if use is memory.use else replace(memory, use=use)


def remember_parts(memory: ControllerMemory, planned: Planned) -> ControllerMemory:
    """Memory with the parts of the cluster from now on, GPUs by queue. Until then those of before count."""
    half_life_s, part_gpus, use = planned.policy.tenancy.usage_half_life_s, planned.part_gpus, memory.use
    if use.usage_at_s == -np.inf or not half_life_s or part_gpus == use.part_gpus:
        return memory
    return replace(memory, use=replace(_summed(use, planned.now_s, half_life_s), part_gpus=part_gpus))


def _summed(use: UseMemory, now_s: float, half_life_s: float) -> UseMemory:
    """Past use with its sums as of now."""
    for_s = now_s - use.usage_at_s if use.usage_at_s > -np.inf else 0.0
    return replace(
        use,
        usage_gpu_s=_decayed(use.usage_gpu_s, use.held_gpus, for_s, half_life_s),
        part_gpu_s=_decayed(use.part_gpu_s, use.part_gpus, for_s, half_life_s),
        usage_at_s=now_s,
    )


def _decayed(use: Mapping[str, float], held: Mapping[str, float], for_s: float, half_life_s: float) -> dict[str, float]:
    """Use after `for_s` seconds of holding `held` GPUs: the integral of an exponential decay."""
    kept = 0.5 ** (for_s / half_life_s)
    gained_s = (1.0 - kept) * half_life_s / log(2.0)
    after = {name: use.get(name, 0.0) * kept + held.get(name, 0.0) * gained_s for name in sorted({*use, *held})}
    return {name: gpu_s for name, gpu_s in after.items() if gpu_s > FORGOTTEN_GPU_S or name in held}


def fades_in_s(above_gpu_s: float, gaining_gpus: float, half_life_s: float) -> float:
    """Seconds of past use above a bound, for an excess of `above_gpu_s` and a gain of `gaining_gpus`.

    With k the remaining part of past use, the excess is `above_gpu_s` k + `gaining_gpus` (1 - k) half_life_s / ln 2.
    inf for a queue that holds its part or more: its excess lasts.
    """
    if gaining_gpus >= 0 or half_life_s <= 0:
        return inf
    losing_gpu_s = -gaining_gpus * half_life_s / log(2.0)
    return -half_life_s * log2(losing_gpu_s / (above_gpu_s + losing_gpu_s))


def _held(snapshot: ClusterSnapshot, policy: Policy) -> dict[str, float]:
    """GPUs held by each queue's own work, by name; zeros are left out.

    A share counts its part, an instance one, or its part where quota counts parts.
    """
    queue, queues, counts = snapshot.workloads.queue, len(snapshot.queues.id), counting(snapshot, policy)
    if counts is None or counts.requests:
        held = held_gpus(snapshot, queue, queues)
    else:
        workload = snapshot.placements.workload
        holds = holding_mask(snapshot.workloads)[workload]
        held = np.asarray(np.bincount(queue[workload[holds]], counts.held[holds], minlength=queues), np.float64)
    return {str(snapshot.queues.id[queue]): float(held[queue]) for queue in np.flatnonzero(held).tolist()}


def corrected_weights(memory: ControllerMemory, queues: QueueTable, policy: Policy) -> F64 | None:
    """Weights corrected by past use; None if past use does not count. Shape [queues].

    Among siblings, with w the part of the weight and u the part of the past use: w + k (w - u), as in KAI's time-based
    fair share. k is `tenancy.usage_weight`; the result is at least a tenth of w.
    """
    rules = policy.tenancy
    if not memory.use.standing_use_gpu_s or not rules.usage_weight or not rules.usage_half_life_s:
        return None
    used = np.array([memory.use.standing_use_gpu_s.get(str(name), 0.0) for name in queues.id.tolist()])
    for queue in range(len(used) - 1, 0, -1):  # children come after their parents
        used[queues.parent[queue]] += used[queue]
    weights = queues.weight.astype(float).copy()
    for parent in np.unique(queues.parent[queues.parent >= 0]).tolist():
        below = np.flatnonzero(queues.parent == parent)
        total, weight = used[below].sum(), weights[below].sum()
        if total > 0 and weight > 0:
            part = weights[below] / weight
            weights[below] = np.maximum(part + rules.usage_weight * (part - used[below] / total), LEAST_RATIO * part)
    return weights
