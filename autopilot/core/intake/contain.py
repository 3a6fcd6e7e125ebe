"""Containment of bad objects: each is left out or made harmless, with a reason, and the other objects stay in use.

A bad file is refused as a whole when it is read. The answer of a cluster's API cannot be refused. Each contained object
is reported by a gap that names it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from autopilot.core.model.records import Gap, Work
from autopilot.core.model.snapshot import QueueTable, State, WorkloadTable

EARLY_S = 1.0
"""A report may be this far ahead of the controller's clock."""


def contain(work: Work, source: str, now_s: float) -> tuple[Work, tuple[Gap, ...]]:
    """`work` with bad objects contained, and one gap per contained object.

    - Workloads with a common id: all of them are excluded from every action and keep their GPUs.
    - Workloads with a common uid, or without one: they are excluded from every action and keep their GPUs.
    - A workload of an unknown queue: it is excluded from every action.
    - A checkpoint of another incarnation, or of a future time: the time of the last checkpoint is unknown.
    - A queue not preceded by its parent (a cycle, an orphan): its work does not start and it has no guarantee.
    - Negative guarantees, limits and weights, and texts in their place: no guarantee, no limit, and weight zero.
    """
    gaps: list[Gap] = []
    work = _unique(work, source, gaps)
    queues = _sound_queues(work.queues, source, gaps)
    workloads = _one_uid_each(work.workloads, source, gaps)
    workloads = _known_queues(workloads, len(queues.id), source, gaps)
    workloads = _own_checkpoints(workloads, source, now_s, gaps)
    if queues is work.queues and workloads is work.workloads:
        return work, tuple(gaps)
    return replace(work, queues=queues, workloads=workloads), tuple(gaps)


def _unique(work: Work, source: str, gaps: list[Gap]) -> Work:
    """Make ids unique. Rows with a common id are all excluded: an effect names an id and could reach any of them.

    The row with GPUs keeps the id, else the first row; the others get unused ids. All keep their placements, so
    their GPUs stay allocated and counted in the quota of their queues.
    """
    names = work.workloads.id.tolist()
    if len(set(names)) == len(names):
        return work
    rows_of: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        rows_of.setdefault(str(name), []).append(row)
    holding = set(work.placements.workload.tolist())
    ids, excluded = work.workloads.id.copy(), work.workloads.excluded.copy()
    for name, rows in list(rows_of.items()):
        if len(rows) == 1:
            continue
        gaps.append(
            Gap(
                source,
                name,
                "id",
                f"{len(rows)} workloads share this id: all are left alone; rename all but one",
            )
        )
        excluded[rows] = True
        keeps = next((row for row in rows if row in holding), rows[0])
        number = 1
        for row in rows:
            if row == keeps:
                continue
            number += 1
            while f"{name}#{number}" in rows_of:
                number += 1
            ids[row] = f"{name}#{number}"
            rows_of[f"{name}#{number}"] = [row]
    return replace(work, workloads=replace(work.workloads, id=ids, excluded=excluded))


def _one_uid_each(work: WorkloadTable, source: str, gaps: list[Gap]) -> WorkloadTable:
    """Exclude workloads without a unique uid and clear it, because an effect names its object by uid."""
    uids = work.uid.tolist()
    if len(set(uids)) == len(uids) and "" not in uids:
        return work
    times = Counter(uids)
    unclear = np.array([times[uid] > 1 or not uid for uid in uids], np.bool_)
    for row in np.flatnonzero(unclear).tolist():
        what = f"{times[uids[row]]} workloads share the uid {uids[row]}" if uids[row] else "it has no uid"
        gaps.append(Gap(source, str(work.id[row]), "uid", f"{what}: it is left alone"))
    return replace(work, uid=np.where(unclear, "", work.uid), excluded=work.excluded | unclear)


def _known_queues(work: WorkloadTable, queues: int, source: str, gaps: list[Gap]) -> WorkloadTable:
    """Exclude work of an unknown queue, and count it in the root."""
    lost = (work.queue < 0) | (work.queue >= queues)
    if not lost.any():
        return work
    gaps.extend(
        Gap(source, str(name), "queue", "its queue does not exist: it is left alone") for name in work.id[lost].tolist()
    )
    return replace(work, queue=np.where(lost, 0, work.queue).astype(np.int32), excluded=work.excluded | lost)


def _own_checkpoints(work: WorkloadTable, source: str, now_s: float, gaps: list[Gap]) -> WorkloadTable:
    """Drop checkpoint times of another incarnation or of the future."""
    running = (work.state == State.RUNNING) | (work.state == State.CHECKPOINTING)
    with np.errstate(invalid="ignore"):
        other = running & ((work.last_checkpoint_s < work.start_s) | (work.last_checkpoint_s > now_s + EARLY_S))
    if not other.any():
        return work
    gaps.extend(
        Gap(
            source,
            str(name),
            "last_checkpoint",
            "the report is of another incarnation or the future; it is ignored",
        )
        for name in work.id[other].tolist()
    )
    return replace(work, last_checkpoint_s=np.where(other, np.nan, work.last_checkpoint_s))


def _sound_queues(queues: QueueTable, source: str, gaps: list[Gap]) -> QueueTable:
    """A tree with its root in row 0 and valid numbers."""
    count = len(queues.id)
    if not count:
        return queues
    rows = np.arange(count)
    astray = (rows > 0) & ((queues.parent < 0) | (queues.parent >= rows))
    negative = (queues.limit < -1) | (queues.guarantee < 0).any(axis=1) | ~(queues.weight >= 0)
    if not astray.any() and not negative.any():
        return queues
    gaps.extend(
        Gap(source, str(name), "parent", "its parent does not precede it: none of its work starts")
        for name in queues.id[astray].tolist()
    )
    gaps.extend(
        Gap(source, str(name), "quota", "a guarantee, limit or weight is negative or not a number: it counts as none")
        for name in queues.id[negative].tolist()
    )
    parent = np.where(astray, 0, queues.parent).astype(np.int32)
    guarantee = np.maximum(np.where(astray[:, None], 0, queues.guarantee), 0).astype(np.int32)
    limit = np.where(astray, 0, np.maximum(queues.limit, -1)).astype(np.int32)
    weight = np.where(queues.weight >= 0, queues.weight, 0.0)
    return replace(queues, parent=parent, guarantee=guarantee, limit=limit, weight=weight)
