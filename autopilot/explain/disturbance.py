"""Work that a neighbour slows down, and its suspects, in words."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

from autopilot.core.model.memory.neighbours import NeighboursMemory
from autopilot.core.model.neighbours import Interference, Nearness
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.neighbours.facts import Disturbed, Standing, disturbed

NEAR = {Nearness.GPU: "GPU", Nearness.NUMA: "NUMA node", Nearness.NODE: "node"}
KNOWN = {
    Standing.SUSPECTED: "not confirmed",
    Standing.PAUSED: "it is paused for that",
    Standing.CONFIRMED: "confirmed by a pause",
    Standing.CLEARED: "cleared by a pause",
}


def disturbance_lines(
    snapshot: ClusterSnapshot, row: int, records: Sequence[Interference], memory: NeighboursMemory
) -> list[str]:
    """Findings of the detectors about a workload, as a victim and as a suspect."""
    uid = str(snapshot.workloads.uid[row])
    mine = [each for each in disturbed(snapshot, tuple(records), memory) if uid in _both(each.found)]
    return [_line(each, victim=each.found.victim_uid == uid) for each in mine]


def _both(found: Interference) -> tuple[str, str]:
    return found.victim_uid, found.suspect_uid


def _line(each: Disturbed, *, victim: bool) -> str:
    found = each.found
    now = "" if isnan(found.now_ratio) else f", {found.now_ratio:.2f} times now"
    level = f"{found.rise_ratio:.2f} times as long since{now}"
    where, known = f"on the same {NEAR[found.nearness]}", KNOWN[each.standing]
    if victim:
        return f"slowed by {found.suspect or 'work that nobody knows'} {where}: it takes {level} ({known})"
    return f"suspected to slow {found.victim} {where}, which takes {level} ({known})"
