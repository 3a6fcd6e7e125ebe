"""Bad input that comes with good input: kept out or made harmless, object by object, with a reason; the rest goes on.

Files are refused as a whole when they are read; what a cluster's own API says cannot be. Whatever is contained is told
as a gap that names the object.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from autopilot.core.model.records import Gap, Work
from autopilot.core.model.snapshot import QueueTable, State, WorkloadTable

EARLY_S = 1.0
"""By this much a report may be ahead of our clock."""


def contain(work: Work, source: str, now_s: float) -> tuple[Work, tuple[Gap, ...]]:
    """`work` without what nobody may act on, and what was done about it.

    - An id that several workloads bear: all of them opt out of every action, and hold what they hold.
    - A uid that several workloads bear, or a workload without one: they opt out of every action, and hold what they
    hold.
    - A workload of a queue that is not there: it opts out of every action, so nothing happens to it.
    - A checkpoint of another incarnation, or of a time that has not come: it is not known when it saved.
    - A queue whose parent does not stand above it (a cycle, an orphan): nothing of it starts, it is guaranteed nothing.
    - Guarantees, limits and weights that are negative or no numbers: none, none, and zero.
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
    """Each id once. Rows that share one all opt out: an effect names an id, and would reach either of them.

    The row that holds GPUs keeps the id, else the first; the others get one that nothing else bears. All keep their
    placements, so what they hold stays taken and on the books of their queues.
    """
    names = work.workloads.id.tolist()
    rows_of: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        rows_of.setdefault(str(name), []).append(row)
    if len(rows_of) == len(names):
        return work
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
                f"{len(rows)} workloads bear this id: all are left alone; rename all but one",
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
    """An effect names its object by uid: what is not named by one alone is left alone, and bears none from here on."""
    uids = work.uid.tolist()
    if len(set(uids)) == len(uids) and "" not in uids:
        return work
    times = Counter(uids)
    unclear = np.array([times[uid] > 1 or not uid for uid in uids], np.bool_)
    for row in np.flatnonzero(unclear).tolist():
        what = f"{times[uids[row]]} workloads bear the uid {uids[row]}" if uids[row] else "it has no uid"
        gaps.append(Gap(source, str(work.id[row]), "uid", f"{what}: it is left alone"))
    return replace(work, uid=np.where(unclear, "", work.uid), excluded=work.excluded | unclear)


def _known_queues(work: WorkloadTable, queues: int, source: str, gaps: list[Gap]) -> WorkloadTable:
    """Work without a queue opts out, in the root."""
    lost = (work.queue < 0) | (work.queue >= queues)
    if not lost.any():
        return work
    gaps.extend(
        Gap(source, str(name), "queue", "its queue is not there: it is left alone") for name in work.id[lost].tolist()
    )
    return replace(work, queue=np.where(lost, 0, work.queue).astype(np.int32), excluded=work.excluded | lost)


def _own_checkpoints(work: WorkloadTable, source: str, now_s: float, gaps: list[Gap]) -> WorkloadTable:
    """Reports that cannot be of this incarnation are not believed."""
    running = (work.state == State.RUNNING) | (work.state == State.CHECKPOINTING)
    with np.errstate(invalid="ignore"):
        other = running & ((work.last_checkpoint_s < work.start_s) | (work.last_checkpoint_s > now_s + EARLY_S))
    if not other.any():
        return work
    gaps.extend(
        Gap(source, str(name), "last_checkpoint", "the report is of another incarnation or of the future")
        for name in work.id[other].tolist()
    )
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
    gaps.extend(
        Gap(source, str(name), "parent", "its parent does not stand above it: nothing of it starts")
        for name in queues.id[astray].tolist()
    )
    gaps.extend(
        Gap(source, str(name), "quota", "a negative guarantee, limit or weight: it counts as none")
        for name in queues.id[negative].tolist()
    )
    parent = np.where(astray, 0, queues.parent).astype(np.int32)
    guarantee = np.maximum(np.where(astray[:, None], 0, queues.guarantee), 0).astype(np.int32)
    limit = np.where(astray, 0, np.maximum(queues.limit, -1)).astype(np.int32)
    weight = np.where(queues.weight >= 0, queues.weight, 0.0)
    return replace(queues, parent=parent, guarantee=guarantee, limit=limit, weight=weight)
