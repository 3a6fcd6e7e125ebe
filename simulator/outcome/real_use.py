"""The use of the capacity up to the last arrival: the active SMs, the causes of the rest, and the bound.

The parts are GPU-seconds and add up to the capacity. Repeated work after a stop counts as active each time,
as its telemetry does. Useful is the SM activity of the same work alone, times its progress over that of the work
alone: it is below the SM-active part where work on one GPU stalls, and equal to it where nothing is shared. A GPU with
several holders is divided equally among them.

The bound is that of `simulator.running.accounting.served_gpu_s`, weighted by SM activity. Work of the highest activity
goes first, so the GPUs usable by work of at least a level are those of a cluster without other work, and

    bound = sum over levels of (level - next lower level) x GPU-seconds served of work at or above the level

No schedule without shared GPUs does more: at each level, its work at or above the level uses at most the served part.
An absent owner asks for nothing. Replicas of services arrive at their start, since their number depends on the policy.

The bound with shared GPUs, and the rules that part the under-driven time, are in simulator/outcome/shareable.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.outcome.shareable import Piece, Rule, packed, shared_bound
from simulator.outcome.spans import F64, Span, Steps, area_gpu_s, steps_of, together
from simulator.running.accounting import served_gpu_s

LEVEL_STEP = 0.01
"""Activities are rounded up to it for the bound."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """One stay of work on GPUs. `level`: SM activity of the work alone, once it is ready; `away`: the absences of its
    owner. `active_gpus` and `useful_gpus` while it works are None where it has its GPUs alone: level x GPUs.
    """

    queue: str
    from_s: float
    ready_s: float
    to_s: float
    gpus: float
    level: float
    away: Sequence[tuple[float, float]] = ()
    active_gpus: float | None = None
    useful_gpus: float | None = None
    rule: Rule = Rule.CLASS

    def worked_s(self, until_s: float) -> float:
        """Seconds up to a time without start-up and without the absences of its owner."""
        ready = [(max(self.from_s, self.ready_s), self.to_s, 1.0)]
        idle = [(from_s, to_s, 1.0) for from_s, to_s, _ in self.idle_spans()]
        return area_gpu_s(ready, until_s) - area_gpu_s(idle, until_s)

    def idle_spans(self) -> list[Span]:
        """The time without its owner."""
        begin_s = max(self.from_s, self.ready_s)
        spans = [(max(begin_s, from_s), min(self.to_s, to_s), self.gpus) for from_s, to_s in self.away]
        return [span for span in spans if span[1] > span[0]]


@dataclass(frozen=True, slots=True)
class RealUse:
    """GPU-seconds up to the last arrival. Active, low activity, start-up, away and free add up to the capacity."""

    capacity_gpu_s: float
    active_gpu_s: float  # SM-active
    useful_gpu_s: float  # no part of the capacity: lone SM activity x relative progress
    low_activity_gpu_s: float  # of work that runs: 1 - its SM activity; the sum of the next five
    low_shares_gpu_s: float  # of it: of work that could share its GPUs under the rules
    low_memory_gpu_s: float  # of work that may not for its memory,
    low_trust_gpu_s: float  # its trust,
    low_width_gpu_s: float  # its width,
    low_class_gpu_s: float  # its class, or because it does not say so
    start_up_gpu_s: float
    away_guaranteed_gpu_s: float  # held while the owner is away, within the guarantee of the queue
    away_borrowed_gpu_s: float  # the same, above it
    free_wanted_gpu_s: float  # free while as many GPUs were waited for
    free_gpu_s: float  # free without demand
    bound_active_gpu_s: float
    bound_low_activity_gpu_s: float  # of the work that the bound serves
    bound_free_gpu_s: float  # the rest of the capacity under the bound
    bound_shared_gpu_s: float  # the most SM-active GPU-seconds with shared GPUs
    packed_gpu_s: float  # the SM-active ones of the whole mix of work, packed statically under the rules
    unpacked_gpu_s: float  # the same, each piece alone on its GPUs


def real_use(
    stays: Sequence[Occupancy],
    waiting: Steps,
    offers: Sequence[Piece],
    guarantees: Mapping[str, float],
    gpus: float,
    until_s: float,
) -> RealUse:
    """All of it. `waiting` are the GPUs requested by waiting work, `guarantees` those of each queue."""
    held = [(each.from_s, each.to_s, each.gpus) for each in stays]
    idle = [span for each in stays for span in each.idle_spans()]
    start_up = area_gpu_s([(each.from_s, min(each.ready_s, each.to_s), each.gpus) for each in stays], until_s)
    held_gpu_s, away_gpu_s = area_gpu_s(held, until_s), area_gpu_s(idle, until_s)
    active = sum(
        each.level
        * (
            area_gpu_s([(max(each.from_s, each.ready_s), each.to_s, each.gpus)], until_s)
            - area_gpu_s(each.idle_spans(), until_s)
        )
        for each in stays
        if each.active_gpus is None
    )
    useful = active + sum(each.useful_gpus * each.worked_s(until_s) for each in stays if each.useful_gpus is not None)
    active += sum(each.active_gpus * each.worked_s(until_s) for each in stays if each.active_gpus is not None)
    length_s, (used, wanted) = together((steps_of(held, until_s), waiting), until_s)
    free = np.maximum(gpus - used, 0.0)
    free_wanted = float(np.minimum(free, np.maximum(wanted, 0.0)) @ length_s)
    borrowed = _borrowed_gpu_s(stays, guarantees, until_s)
    bound, bound_served = _bound(offers, gpus, until_s)
    low = _low_by_rule(stays, until_s)
    return RealUse(
        capacity_gpu_s=gpus * until_s,
        active_gpu_s=active,
        useful_gpu_s=useful,
        low_activity_gpu_s=held_gpu_s - start_up - away_gpu_s - active,
        low_shares_gpu_s=low[Rule.SHARES],
        low_memory_gpu_s=low[Rule.MEMORY],
        low_trust_gpu_s=low[Rule.TRUST],
        low_width_gpu_s=low[Rule.WIDTH],
        low_class_gpu_s=low[Rule.CLASS],
        start_up_gpu_s=start_up,
        away_guaranteed_gpu_s=away_gpu_s - borrowed,
        away_borrowed_gpu_s=borrowed,
        free_wanted_gpu_s=free_wanted,
        free_gpu_s=gpus * until_s - held_gpu_s - free_wanted,
        bound_active_gpu_s=bound,
        bound_low_activity_gpu_s=bound_served - bound,
        bound_free_gpu_s=gpus * until_s - bound_served,
        bound_shared_gpu_s=shared_bound(offers, gpus, until_s),
        packed_gpu_s=packed(offers, gpus, until_s),
        unpacked_gpu_s=packed(offers, gpus, until_s, shares=False),
    )


def _low_by_rule(stays: Sequence[Occupancy], until_s: float) -> dict[Rule, float]:
    """Held without SM activity by work that runs, by what the rules of sharing say of the work."""
    found = dict.fromkeys(Rule, 0.0)
    for each in stays:
        active_gpus = each.level * each.gpus if each.active_gpus is None else each.active_gpus
        found[each.rule] += (each.gpus - active_gpus) * each.worked_s(until_s)
    return found


def _borrowed_gpu_s(stays: Sequence[Occupancy], guarantees: Mapping[str, float], until_s: float) -> float:
    """Held without an owner above the guarantees; GPUs of a queue above its guarantee are counted as idle first."""
    by_queue: dict[str, list[Occupancy]] = {}
    for each in stays:
        by_queue.setdefault(each.queue, []).append(each)
    total = 0.0
    for queue, its in by_queue.items():
        idle = [span for each in its for span in each.idle_spans()]
        if not idle:
            continue
        steps = steps_of([(each.from_s, each.to_s, each.gpus) for each in its], until_s), steps_of(idle, until_s)
        length_s, (used, away) = together(steps, until_s)
        total += float(np.minimum(away, np.maximum(used - guarantees.get(queue, 0.0), 0.0)) @ length_s)
    return total


def _bound(offers: Sequence[Piece], gpus: float, until_s: float) -> tuple[float, float]:
    """The most SM-active GPU-seconds, and the GPU-seconds of work served by it."""
    rows = [(each.from_s, each.to_s, each.gpus, each.level) for each in offers if each.level > 0 and each.gpus > 0]
    if not rows:
        return 0.0, 0.0
    begin_s, end_s, width, level = np.array(rows, float).T
    level = np.minimum(np.ceil(level / LEVEL_STEP - 1e-9) * LEVEL_STEP, 1.0)
    found, served = 0.0, 0.0
    levels: F64 = np.unique(level)
    for this, lower in zip(levels[::-1], [*levels[-2::-1], 0.0], strict=True):
        on = level >= this
        served = served_gpu_s(begin_s[on], end_s[on], width[on], gpus, until_s)
        found += (this - lower) * served
    return float(found), served
