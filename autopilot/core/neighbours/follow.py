"""What is remembered of work that slows its neighbours."""

from __future__ import annotations

from dataclasses import replace
from heapq import nlargest

from autopilot.core.model.capability import Tick
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.neighbours import NeighboursMemory
from autopilot.core.planning.pairs import kept_part

MOST_PAIRS = 2000
"""Pairs in the memory: the newest. Names come from people and from generators."""
LEAST_COUNT = 0.05
"""Counts that have fallen below this are forgotten."""


def follow_neighbours(memory: ControllerMemory, tick: Tick) -> ControllerMemory:
    """Memory after a fresh and complete view."""
    before = memory.neighbours
    after = _forgotten(before, tick.now_s)
    return memory if after is before else replace(memory, neighbours=after)


def _forgotten(memory: NeighboursMemory, now_s: float) -> NeighboursMemory:
    """The memory without pairs that are too old or too many."""
    kept = {
        key: each
        for key, each in memory.pairs.items()
        if (each.harmful + each.harmless) * kept_part(each, now_s) >= LEAST_COUNT
    }
    if len(kept) > MOST_PAIRS:
        kept = dict(nlargest(MOST_PAIRS, kept.items(), key=lambda row: (row[1].at_s, row[0])))
    return memory if len(kept) == len(memory.pairs) else replace(memory, pairs=kept)
