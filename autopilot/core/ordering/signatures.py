"""Those who wait, in columns by their place in the order of service: actions ask all of them, in every tick."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from autopilot.core.model.snapshot import I32, I64, Bools, Gate, WorkloadTable


@dataclass(frozen=True, slots=True)
class PendingTable:
    """Plain lists where gangs are looked at one at a time: reading those takes a tenth of the time."""

    queue: list[int]
    least_gpus: list[int]  # of the smallest start: whole members, at least its minimum
    early: list[bool]  # it has not waited long enough to displace anybody
    may_ask: Bools  # nothing but room and quota keeps it, so that others may give way for it
    # of gangs of one sort, none may displace others where one may not, but for room that is held
    sort: list[int]


def pending_table(work: WorkloadTable, rows: I32, classes: I32, members: Collection[int], now_s: float) -> PendingTable:
    """The columns of pending `rows` of shape `classes`. `members`: rows of gangs whose members differ."""
    differ = np.isin(rows, np.fromiter(members, np.int32, len(members)))
    early = now_s < work.submit_s[rows] + work.preemption_delay_s[rows]  # the sum that the timer waits for
    may_ask = (work.gate[rows] == Gate.OPEN) & ~work.excluded[rows]
    least = _least_gpus(work, rows, differ)
    return PendingTable(
        work.queue[rows].tolist(), least.tolist(), early.tolist(), may_ask, _sorts(work, rows, classes, differ).tolist()
    )


def _least_gpus(work: WorkloadTable, rows: I32, differ: Bools) -> I32:
    wide, minimum = work.gpus[rows], work.min_gpus[rows]
    member = np.maximum(work.gpus_per_member[rows], 1)
    least = -(-minimum // member) * member
    least = np.where(least > 0, np.minimum(least, wide), wide)
    return np.where(differ, minimum, least).astype(np.int32)


def _sorts(work: WorkloadTable, rows: I32, classes: I32, differ: Bools) -> I64:
    """One number for queue, priority, shape and whether it may be preempted; members that differ are their own sort."""
    ranks = np.unique(work.priority[rows], return_inverse=True)[1]
    sort = classes.astype(np.int64)
    for column in (work.queue[rows], ranks, work.preemptible[rows]):
        sort = sort * (int(column.max(initial=0)) + 1) + column
    return np.where(differ, -1 - np.arange(len(rows)), sort)
