"""Reports of training programs: heartbeats, steps and checkpoints, by annotation of their pods or by metric.

Work with an old heartbeat answers no request for a checkpoint. If annotation and metric disagree, the older time
counts, so that nothing makes a stop look cheaper than it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import inf, isnan, nan
from typing import Protocol, runtime_checkable

from autopilot.contract.annotations import HEARTBEAT_OLD_S
from autopilot.core.intake.contain import EARLY_S
from collectors.kubernetes.gangs import PodFacts
from collectors.kubernetes.pace import rate_of
from collectors.training import NOBODY, NOTHING, Pod, Told


@runtime_checkable
class Training(Protocol):
    """A source of the metrics of training programs (a Prometheus)."""

    def training(self, now_s: float) -> Mapping[Pod, Told]:
        """The reports of each pod; the same object for the same answer."""
        ...


def unread_times(holding: Sequence[PodFacts]) -> tuple[tuple[str, str], ...]:
    """Annotations of pods with an unreadable time, each once, as notes."""
    found: dict[str, str] = {}
    for each in holding:
        for name, reason in each.noted.unread:
            found.setdefault(name, reason)
    return tuple(found.items())


class Heartbeats:
    """The time at which the heartbeat of each gang grows old: its row is made again then, without any event."""

    def __init__(self) -> None:
        self._old_at_s: dict[str, float] = {}
        self._old: set[str] = set()
        self._told: Mapping[Pod, Told] = NOBODY

    def saves(self, key: str, holding: Sequence[PodFacts], now_s: float) -> bool:
        """False if the heartbeat of a pod of the gang is old. Work that never reported one is not judged."""
        beats_s = [each.noted.beat_s for each in holding if each.noted.beat_s is not None]
        if self._told:
            told_s = [_known(self._of(each).beat_s, each, now_s) for each in holding]
            beats_s += [beat_s for beat_s in told_s if beat_s is not None]
        old_at_s = min(beats_s, default=inf) + HEARTBEAT_OLD_S
        if now_s <= old_at_s < inf:
            self._old_at_s[key] = old_at_s
        else:
            self._old_at_s.pop(key, None)
        if old_at_s < now_s:
            self._old.add(key)
        else:
            self._old.discard(key)
        return old_at_s >= now_s

    def steps_per_s(self, holding: Collection[PodFacts], now_s: float) -> float:
        """The pace of the slowest of its pods that report steps, by annotation, to three digits; NaN: unknown.

        Unknown where one of them has an old heartbeat, or reported for less than `PACE_S` since it paused or went back.
        """
        rates = [
            rate_of(each.beats) if -EARLY_S <= now_s - each.beats[-1].at_s <= HEARTBEAT_OLD_S else nan
            for each in holding
            if each.beats
        ]
        return nan if not rates or any(map(isnan, rates)) else float(f"{min(rates):.3g}")

    def grown_old(self, now_s: float) -> list[str]:
        """The gangs whose heartbeat has grown old since; each once."""
        found = [key for key, at_s in self._old_at_s.items() if at_s < now_s]
        for key in found:
            del self._old_at_s[key]
        return found

    def last_checkpoint_s(self, holding: Collection[PodFacts], now_s: float) -> float:
        """Completion time of the newest checkpoint of the gang; NaN: unknown.

        A metric of another pod of that name, or of the future, is not known. An annotation without a metric passes as
        reported: the core drops impossible times, and names them.
        """
        noted_s = max([each.noted.saved_s for each in holding if each.noted.saved_s is not None], default=nan)
        if not self._told:
            return noted_s
        told_s = [at_s for each in holding if (at_s := _known(self._of(each).saved_s, each, now_s)) is not None]
        if not told_s:
            return noted_s
        start_s = min(each.bound_s for each in holding)
        believed = start_s <= noted_s <= now_s + EARLY_S
        return min(noted_s, max(told_s)) if believed else max(told_s)

    def tell(self, told: Mapping[Pod, Told], gangs: Mapping[Pod, str]) -> set[str]:
        """Take in the metrics of pods; returns the gangs with a possibly changed row.

        `gangs`: the gang's key by pod.
        """
        before, self._told = self._told, told
        self._old.intersection_update(gangs.values())
        found = set()
        for pod, key in gangs.items():
            was, is_now = before.get(pod, NOTHING), told.get(pod, NOTHING)
            silent = (was.beat_s is None) != (is_now.beat_s is None)
            again = key in self._old and was.beat_s != is_now.beat_s  # a fresh one is looked at once it is due
            if was.saved_s != is_now.saved_s or silent or again:
                found.add(key)
        return found

    def _of(self, facts: PodFacts) -> Told:
        meta = facts.pod.metadata
        return self._told.get((meta.namespace, meta.name), NOTHING)


def _known(told_s: float | None, facts: PodFacts, now_s: float) -> float | None:
    """A time that this very pod can have reported: since it was bound, and not of the future."""
    return told_s if told_s is not None and facts.bound_s <= told_s <= now_s + EARLY_S else None
