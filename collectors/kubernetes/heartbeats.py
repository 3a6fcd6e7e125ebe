"""Heartbeats of training programs: work whose heartbeat is old answers no request for a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, isfinite

from autopilot.contract.annotations import HEARTBEAT, HEARTBEAT_OLD_S
from collectors.kubernetes.gangs import PodFacts


def heartbeat_s(facts: PodFacts) -> float | None:
    """When a pod last reported progress, in seconds since 1970; None where it does not, or writes no number."""
    text = facts.pod.metadata.note(HEARTBEAT)
    try:
        beat_s = float(text) if text else inf
    except ValueError:
        return None
    return beat_s if isfinite(beat_s) else None


class Heartbeats:
    """When the heartbeat of each gang grows old: its row is made again then, without any event."""

    def __init__(self) -> None:
        self._old_at_s: dict[str, float] = {}

    def saves(self, key: str, holding: Iterable[PodFacts], now_s: float) -> bool:
        """False where the heartbeat of a pod of the gang is old. Work that never reported one is not judged."""
        beats_s = [beat_s for each in holding if (beat_s := heartbeat_s(each)) is not None]
        old_at_s = min(beats_s, default=inf) + HEARTBEAT_OLD_S
        if now_s <= old_at_s < inf:
            self._old_at_s[key] = old_at_s
        else:
            self._old_at_s.pop(key, None)
        return old_at_s >= now_s

    def grown_old(self, now_s: float) -> list[str]:
        """The gangs whose heartbeat has grown old since; each once."""
        found = [key for key, at_s in self._old_at_s.items() if at_s < now_s]
        for key in found:
            del self._old_at_s[key]
        return found
