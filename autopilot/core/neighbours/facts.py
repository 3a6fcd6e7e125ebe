"""Work that a neighbour slows down now, and how far its suspect is known: for metrics, page and explanations."""

from __future__ import annotations

from enum import StrEnum
from math import isnan
from typing import NamedTuple

from autopilot.core.model.identity import rows_by_uid
from autopilot.core.model.memory.neighbours import NeighboursMemory
from autopilot.core.model.neighbours import Interference
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.neighbours.follow import FALLEN_RATIO
from autopilot.core.planning.pairs import uid_pair


class Standing(StrEnum):
    """How far the suspect of a victim is known."""

    SUSPECTED = "suspected"  # nothing has confirmed or cleared it
    PAUSED = "paused"  # it waits, to be judged or to be moved
    CONFIRMED = "confirmed"  # its victim recovered while it was paused
    CLEARED = "cleared"  # its victim did not


class Disturbed(NamedTuple):
    """A victim (row) with the record of its detector. `lasts`: at least half of the rise is there, or it is unknown."""

    row: int
    found: Interference
    standing: Standing
    lasts: bool


def disturbed(
    snapshot: ClusterSnapshot, records: tuple[Interference, ...], memory: NeighboursMemory
) -> list[Disturbed]:
    """The victims of the view, in the order of the records."""
    if not records:
        return []
    rows, found = rows_by_uid(snapshot.workloads), []
    for record in records:
        row, verdict = rows.get(record.victim_uid), memory.verdicts.get(uid_pair(record.victim_uid, record.suspect_uid))
        if row is None:
            continue
        trial = memory.trials.get(record.suspect_uid)
        if trial is not None and trial.victim_uid == record.victim_uid:
            standing = Standing.PAUSED
        elif verdict is not None:
            standing = Standing.CONFIRMED if verdict.harmful else Standing.CLEARED
        else:
            standing = Standing.SUSPECTED
        lasts = isnan(record.now_ratio) or record.now_ratio - 1.0 > FALLEN_RATIO * (record.rise_ratio - 1.0)
        found.append(Disturbed(row, record, standing, lasts))
    return found
