"""Earlier stops and moves of work for other work by a weighed decision, and the least run time before the next one.

The remaining stops are spread over the rest of the work: a bound alone is used up within hours, and the work then keeps
its GPUs for days while others wait. Work of unknown length is expected to run for as long as it has run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.policy.bounds import Protection
from autopilot.core.model.snapshot import F64, I32, Bools, WorkloadTable
from autopilot.core.model.work import named, running_since


@dataclass(frozen=True, slots=True)
class EarlierStops:
    """The earlier stops of each workload. Shape [workloads]."""

    count: I32
    often: Bools  # it was stopped as often as policy allows: only contracts may stop it for other work
    guaranteed_s: F64  # how long it runs at least before it may be stopped for other work


def earlier_stops(work: WorkloadTable, known: Mapping[str, int], rules: Protection, end_s: F64) -> EarlierStops:
    """`known`: stops counted by memory, by uid. `end_s` [workloads]: predicted end of running work, inf if unknown.

    With `left` remaining stops, work runs for 1 / (left + 2) of this run before the next one. Its time since the last
    stop then exceeds 1 / (left + 1) of the rest.
    """
    count = np.fromiter((known.get(uid, 0) for uid in work.uid.tolist()), np.int32, len(work.id))
    left = np.maximum(rules.most_stops - count, 0)
    lasts_s = np.where(
        np.isfinite(end_s), (end_s - running_since(work)) / (left + 2), work.served_s / np.maximum(left, 1)
    )
    spread_s = np.where((count > 0) & ~np.isnan(lasts_s), lasts_s, 0.0)
    return EarlierStops(count, count >= rules.most_stops, np.maximum(spread_s, rules.min_runtime_s))


def without_gone(memory: ControllerMemory, work: WorkloadTable) -> ControllerMemory:
    """Memory without the counts of vanished work."""
    known = memory.losses.weighed_stops
    if not known:
        return memory
    there = frozenset(work.uid[named(work.uid, known)].tolist())
    if len(there) == len(known):
        return memory
    return replace(
        memory,
        losses=replace(memory.losses, weighed_stops={uid: count for uid, count in known.items() if uid in there}),
    )
