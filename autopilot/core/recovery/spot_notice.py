"""Spot notices: the work on reclaimed nodes that can be saved in the time left, and its order.

Checkpoints are planned on the writers of the store, most work saved per byte first; bytes are measured by the time to
write them. A checkpoint with an end after its node is gone is not attempted. The other gangs run on until the plan must
begin: a margin before the last moment at which all of it still fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from math import inf


@dataclass(frozen=True, slots=True)
class AtRisk:
    """One gang on nodes to be reclaimed; times in seconds from now."""

    row: int
    left_s: float  # until the first of its nodes is gone
    write_s: float  # of its checkpoint; 0: no time, or unknown
    saved_gpu_s: float  # work that a checkpoint now would save
    able: bool = True  # False: known not to write a checkpoint in time


@dataclass(frozen=True, slots=True)
class Turn:
    """Request and end of the checkpoint of one gang; seconds from now."""

    row: int
    start_s: float
    done_s: float


@dataclass(frozen=True, slots=True)
class SavePlan:
    """Planned saves, gangs beyond saving, and the time for which the plan can wait (inf without saves)."""

    turns: tuple[Turn, ...]
    lost: tuple[AtRisk, ...]
    slack_s: float


def plan_saves(work: Sequence[AtRisk], busy_s: Sequence[float] = ()) -> SavePlan:
    """Plan the saves of `work` on one writer per entry of `busy_s`, the time for which it is still busy.

    Without `busy_s` the number of writers is unlimited. The plan is list scheduling in the order of work saved per
    second of writing; a gang with too late an end of its write is left out. For writers of equal speed and one
    deadline, this order saves the most work per second of the store.
    """
    free_s = list(busy_s)
    heapify(free_s)
    turns, lost, slack_s = [], [], inf
    for each in sorted(work, key=_per_byte):
        start_s = free_s[0] if free_s and each.write_s > 0 else 0.0
        done_s = start_s + each.write_s
        if not each.able or done_s > each.left_s:
            lost.append(each)
            continue
        if free_s and each.write_s > 0:
            heapreplace(free_s, done_s)
        turns.append(Turn(each.row, start_s, done_s))
        slack_s = min(slack_s, each.left_s - done_s)
    return SavePlan(tuple(turns), tuple(lost), slack_s)


def _per_byte(each: AtRisk) -> tuple[float, int]:
    """Sort key: writes without cost first, then most work saved per second of writing, then by row."""
    return (-each.saved_gpu_s / each.write_s if each.write_s > 0 else -inf, each.row)
