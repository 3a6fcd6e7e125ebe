"""Bad input that comes with good input: kept out or made harmless, object by object, with a reason; the rest goes on.

Files are refused as a whole when they are read; what a cluster's own API says cannot be. Whatever is contained is told
as a gap that names the object.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from autopilot.core.records import Gap, Work
from autopilot.core.snapshot import I32, MemberTable, PlacementTable, QueueTable, State, WorkloadTable, take

EARLY_S = 1.0
"""By this much a report may be ahead of our clock."""


def contain(work: Work, source: str, now_s: float) -> tuple[Work, tuple[Gap, ...]]:
    """`work` without what nobody may act on, and what was done about it.

    - A name that two workloads bear: the one that holds GPUs counts, else the first; the others are left out.
    - A workload of a queue that is not there: it opts out of every action, so nothing happens to it.
    - A checkpoint of another incarnation, or of a time that has not come: it is not known when it saved.
    - A queue whose parent does not stand above it (a cycle, an orphan): nothing of it starts, it is guaranteed nothing.
    - Guarantees, limits and weights that are negative or no numbers: none, none, and zero.
    """
    gaps: list[Gap] = []
    work = _unique(work, source, gaps)
    queues = _sound_queues(work.queues, source, gaps)
    workloads = _known_queues(work.workloads, len(queues.id), source, gaps)
    workloads = _own_checkpoints(workloads, source, now_s, gaps)
    if queues is work.queues and workloads is work.workloads:
        return work, tuple(gaps)
    return replace(work, queues=queues, workloads=workloads), tuple(gaps)


def _unique(work: Work, source: str, gaps: list[Gap]) -> Work:
    """Each name once."""
    names = work.workloads.id.tolist()
    if len(set(names)) == len(names):
        return work
    holding = set(work.placements.workload.tolist())
    kept: dict[str, int] = {}
    for row, name in enumerate(names):  # in order: the first of a name counts
        if name not in kept:
            kept[name] = row
            continue
        gaps.append(
            Gap(
                source,
                str(name),
                "",
                "duplicate id: one workload of this name is managed, the others are not",
            )
        )
        if row in holding and kept[name] not in holding:
            kept[name] = row
    rows = np.array(sorted(kept.values()), np.int32)
    moved = np.full(len(names), -1, np.int32)
    moved[rows] = np.arange(len(rows), dtype=np.int32)
    return replace(
        work,
        workloads=take(work.workloads, rows),
        placements=_follow(work.placements, moved),
        members=_follow(work.members, moved),
    )


def _follow(table: Any, moved: I32) -> Any:
    """A table of rows of workloads, after those moved; what belonged to one that is left out is left out too.

    GPUs that such a one holds stay taken only if their node says so: whoever holds them is not known here.
    """
    stays = moved[table.workload] >= 0
    columns = {field.name: getattr(table, field.name)[stays] for field in fields(table)}
    columns["workload"] = moved[columns["workload"]]
    kind: type[PlacementTable | MemberTable] = type(table)
    return kind(**columns)


def _known_queues(work: WorkloadTable, queues: int, source: str, gaps: list[Gap]) -> WorkloadTable:
    """Work without a queue opts out, in the root."""
    lost = (work.queue < 0) | (work.queue >= queues)
    if not lost.any():
        return work
    gaps.extend(Gap(source, str(name), "queue", "its queue is not there: it is left alone")
                for name in work.id[lost].tolist())  # fmt: skip
    return replace(work, queue=np.where(lost, 0, work.queue).astype(np.int32), excluded=work.excluded | lost)


def _own_checkpoints(work: WorkloadTable, source: str, now_s: float, gaps: list[Gap]) -> WorkloadTable:
    """Reports that cannot be of this incarnation are not believed."""
    running = (work.state == State.RUNNING) | (work.state == State.CHECKPOINTING)
    with np.errstate(invalid="ignore"):
        other = running & (
            (work.last_checkpoint_s < work.start_s) | (work.last_checkpoint_s > now_s + EARLY_S)
        )
    if not other.any():
        return work
    gaps.extend(Gap(source, str(name), "last_checkpoint", "the report is of another incarnation or of the future")
                for name in work.id[other].tolist())  # fmt: skip
    return replace(work, last_checkpoint_s=np.where(other, np.nan, work.last_checkpoint_s))


def _sound_queues(queues: QueueTable, source: str, gaps: list[Gap]) -> QueueTable:
    """A tree with its root in row 0, and figures that are figures."""
    count = len(queues.id)
    if not count:
        return queues
    rows = np.arange(count)
    astray = (rows > 0) & ((queues.parent < 0) | (queues.parent >= rows))
    negative = (queues.limit < -1) | (queues.guarantee < 0).any(axis=1) | ~(queues.weight >= 0)
    if not astray.any() and not negative.any():
        return queues
    gaps.extend(Gap(source, str(name), "parent", "its parent does not stand above it: nothing of it starts")
                for name in queues.id[astray].tolist())  # fmt: skip
    gaps.extend(Gap(source, str(name), "quota", "a negative guarantee, limit or weight: it counts as none")
                for name in queues.id[negative].tolist())  # fmt: skip
    parent = np.where(astray, 0, queues.parent).astype(np.int32)
    guarantee = np.maximum(np.where(astray[:, None], 0, queues.guarantee), 0).astype(np.int32)
    limit = np.where(astray, 0, np.maximum(queues.limit, -1)).astype(np.int32)
    weight = np.where(queues.weight >= 0, queues.weight, 0.0)
    return replace(queues, parent=parent, guarantee=guarantee, limit=limit, weight=weight)
