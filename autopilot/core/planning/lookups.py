"""What a snapshot and memory say of gangs, by row: who is leaving, whose members differ, who holds a reservation."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.records import Observation, Reservation
from autopilot.core.model.snapshot import I32, ClusterSnapshot
from autopilot.core.placement.whatif import Layout


def leaving_rows(snapshot: ClusterSnapshot, busy_rows: frozenset[int]) -> dict[int, Layout | None]:
    """Gangs that give something up already, and what they go on with; None: nothing."""
    held, work = snapshot.placements, snapshot.workloads
    rows = np.unique(held.workload[held.leaving])
    found: dict[int, Layout | None] = {}
    for row in rows.tolist():
        if row not in busy_rows and not work.stuck[row]:
            stays = (held.workload == row) & ~held.leaving
            found[row] = Layout(held.gpu[stays], held.instance[stays], held.milli[stays]) if stays.any() else None
    return found


def members_by_row(snapshot: ClusterSnapshot) -> dict[int, list[int]]:
    """Members of the gangs of whole GPUs or MIG instances whose members differ in more than their rank."""
    table, work = snapshot.members, snapshot.workloads
    by_row: dict[int, list[int]] = {}
    for member, row in enumerate(table.workload.tolist()):
        by_row.setdefault(row, []).append(member)

    def differ(row: int, members: list[int]) -> bool:
        kinds = {(int(table.gpus[each]), int(table.selector[each]), int(table.mig_profile[each])) for each in members}
        one = (int(work.gpus_per_member[row]), int(work.selector[row]), int(work.mig_profile[row]))
        return bool(work.gpu_milli[row] == 0 and kinds != {one})

    return {row: members for row, members in by_row.items() if differ(row, members)}


def standing_reservations(memory: ControllerMemory, observation: Observation, pending: I32) -> dict[int, Reservation]:
    """Reservations in memory whose gang still waits in the same incarnation, by row."""
    work = observation.snapshot.workloads
    found = {}
    for record in memory.reservations:
        rows = pending[work.uid[pending] == record.uid]
        if len(rows) and int(work.incarnation[rows[0]]) == record.incarnation:
            found[int(rows[0])] = record
    return found


@lru_cache(maxsize=512)
def gpu_memory_mib(model: str) -> float:
    """Memory of one GPU of `model` in MiB, as its name states it (`H100-80GB`); 0 when it does not."""
    tail = model.rsplit("-", 1)[-1]
    return float(tail[:-2]) * 1024 if tail.endswith("GB") and tail[:-2].isdigit() else 0.0
