"""The time in which a rank of a training program computes, from the annotation of its pod."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import nan
from typing import NamedTuple

import msgspec

from autopilot.contract.annotations import HEARTBEAT_OLD_S
from autopilot.core.intake.contain import EARLY_S
from autopilot.core.model.ranks import RankTable
from autopilot.core.model.snapshot import empty, make

MOST_BUSY_S, MOST_RANK = 86400.0, 1 << 20


class RankTime(NamedTuple):
    """The report of a pod; NaN and -1: not stated."""

    busy_s: float = nan
    stage: int = -1
    rank: int = -1


NO_RANK = RankTime()


class _Wire(msgspec.Struct):
    busy_s: float
    stage: float = -1
    rank: float = -1


def rank_time(text: str) -> RankTime:
    """The annotation `gpu-autopilot.io/busy`; nothing where it is no such JSON or no possible time."""
    if not text:
        return NO_RANK
    try:
        told = msgspec.json.decode(text, type=_Wire)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return NO_RANK
    if not 0.0 < told.busy_s <= MOST_BUSY_S:
        return NO_RANK
    stage, rank = (int(each) if -1 <= each < MOST_RANK else -1 for each in (told.stage, told.rank))
    return RankTime(float(f"{told.busy_s:.4g}"), stage, rank)


def rank_table(told: Iterable[tuple[RankTime, float, Collection[str]]], now_s: float) -> RankTable:
    """One row for each GPU of pods with a report and a heartbeat that is not old.

    `told`: report, time of the heartbeat, and UUIDs of the GPUs of each pod.
    """
    rows = [
        (uuid, rank) for rank, beat_s, uuids in told if -EARLY_S <= now_s - beat_s <= HEARTBEAT_OLD_S for uuid in uuids
    ]
    if not rows:
        nothing: RankTable = empty(RankTable)
        return nothing
    table: RankTable = make(
        RankTable,
        id=[uuid for uuid, _ in rows],
        rank=[each.rank for _, each in rows],
        stage=[each.stage for _, each in rows],
        busy_s=[each.busy_s for _, each in rows],
    )
    return table
