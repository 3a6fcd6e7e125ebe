"""Checkpoints of victims: those too slow for the grace, the order of the others, and those without a turn.

The store serves a limited number of writers at a time (`preemption.checkpoint_writers`; 0: unknown, so turns are not
planned). Within the grace, checkpoints are written in the order of work saved per byte. A victim without a turn is
stopped immediately and continues from its last periodic checkpoint, because waiting would save nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heapreplace
from math import inf, isnan

import numpy as np

from autopilot.core.model.memory.effects import InFlight
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Instruction
from autopilot.core.model.snapshot import F64, Bools, ClusterSnapshot, State, WorkloadTable
from autopilot.core.model.stops import Save


def cannot_save(work: WorkloadTable, grace_s: float) -> Bools:
    """Gangs without a checkpoint on request within a grace: they do not declare it, write none, or take longer.

    Shape [workloads]. Work that does not declare it is never asked, so it would keep its place or lose its progress. A
    gang that declares it and no time of writing is asked.
    """
    slow = (work.checkpoint_write_s > grace_s) | np.isinf(work.checkpoint_interval_s)
    return np.asarray(slow | ~work.checkpoint_on_request)


def in_turn(
    effects: Sequence[Instruction],
    under_way: Iterable[InFlight],
    snapshot: ClusterSnapshot,
    lost_gpu_s: F64,
    now_s: float,
    policy: Policy,
) -> tuple[Instruction, ...]:
    """Effects in the order of their requests for checkpoints: most work saved per byte first.

    Bytes are measured by the time to write them. Ties, and effects without a checkpoint, keep their order. `lost_gpu_s`
    [workloads] is the loss of stopping each gang without a checkpoint. `under_way` are the effects of earlier ticks.
    """
    work = snapshot.workloads
    rows = {str(name): row for row, name in enumerate(work.id.tolist())} if effects else {}
    write_s = {name: float(work.checkpoint_write_s[row]) for name, row in rows.items()}

    def saved_per_byte(effect: Instruction) -> float:
        takes_s = write_s.get(effect.subject.name, inf)
        if not effect.operation.stops or isnan(takes_s):
            return 0.0
        return float(lost_gpu_s[rows[effect.subject.name]]) / max(takes_s, 1e-9)

    ordered = sorted(effects, key=saved_per_byte, reverse=True)
    if not policy.preemption.checkpoint_writers:
        return tuple(ordered)
    free_s = writers_s(under_way, write_s, snapshot, now_s, policy)
    return tuple(_with_turn(effect, write_s, free_s) for effect in ordered)


def writers_s(
    under_way: Iterable[InFlight], write_s: Mapping[str, float], snapshot: ClusterSnapshot, now_s: float, policy: Policy
) -> list[float]:
    """Remaining busy time of each writer of the store (s), as a heap.

    Work that leaves without an instruction is assumed to start writing now.
    """
    begun_s = {
        entry.instruction.subject.name: entry.since_s for entry in under_way if entry.instruction.operation.stops
    }
    leaving = snapshot.workloads.state == State.CHECKPOINTING
    names = dict.fromkeys([*begun_s, *snapshot.workloads.id[leaving].tolist()])
    free_s = [0.0] * policy.preemption.checkpoint_writers
    heapify(free_s)
    for name in names:
        left_s = write_s.get(name, 0.0) - (now_s - begun_s.get(name, now_s))
        if left_s > 0:
            heapreplace(free_s, free_s[0] + left_s)
    return free_s


def _with_turn(effect: Instruction, write_s: Mapping[str, float], free_s: list[float]) -> Instruction:
    """The effect with a turn booked in `free_s`; `Save.SKIP` if there is no turn and its progress may be lost."""
    takes_s, operation = write_s.get(effect.subject.name, 0.0), effect.operation
    if not operation.stops or isnan(takes_s):
        return effect
    if free_s[0] + takes_s <= operation.grace_s:
        heapreplace(free_s, free_s[0] + takes_s)
        return effect
    return replace(effect, operation=operation.unsaved()) if operation.save == Save.TRY else effect
