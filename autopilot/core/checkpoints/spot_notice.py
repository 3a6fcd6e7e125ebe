"""A spot notice: what of the work on nodes that the cloud calls back can be saved in the time left, and in which order.

Checkpoints are planned on the writers of the store, the most work saved per byte first; bytes count by the time that
they take to write. Whatever ends after its node is gone cannot be saved, and that is known at once. The rest goes on
working until the plan must begin: some margin before the last moment at which all of it still fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from math import inf


@dataclass(frozen=True, slots=True)
class AtRisk:
    """One gang on nodes that are called back; times from now on."""

    row: int
    left_s: float  # until the first of its nodes is gone
    write_s: float  # of its checkpoint; 0: it takes no time, or none is known
    saved_gpu_s: float  # work that a checkpoint now would save
    able: bool = True  # False: it is known to write none in time


@dataclass(frozen=True, slots=True)
class Turn:
    """When the checkpoint of one gang is asked for, and written; seconds from now."""

    row: int
    start_s: float
    done_s: float


@dataclass(frozen=True, slots=True)
class SavePlan:
    """Who is saved when, who cannot be, and for how long the whole of it can wait (inf where nothing is to be
    saved).
    """

    turns: tuple[Turn, ...]
    lost: tuple[AtRisk, ...]
    slack_s: float


def plan_saves(work: Sequence[AtRisk], busy_s: Sequence[float] = ()) -> SavePlan:
    """Turns of the gangs in `work` on writers that are still busy for `busy_s`; without any, on as many as it takes.

    List scheduling in the order of work saved per second of writing, whoever would end too late left out: for writers
    of equal speed and one deadline that order saves most per second of the store.
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
    """Most saved per second of writing first; who writes at no cost before all; then by row."""
    return (-each.saved_gpu_s / each.write_s if each.write_s > 0 else -inf, each.row)
