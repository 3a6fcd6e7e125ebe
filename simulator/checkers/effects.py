"""Every effect has a decision: each start, resize and eviction was accepted before, once, for its job."""

from __future__ import annotations

from simulator.checkers.base import Checker, World
from simulator.world.facts import (
    Ceiled,
    Cordoned,
    Decided,
    Evicting,
    Floored,
    Paused,
    Recutting,
    Started,
    Stopped,
    Turned,
    Why,
)


class Effects(Checker):
    """Compares effects with the log of decisions."""

    name = "effects"

    def __init__(self, world: World) -> None:
        """No decisions yet."""
        super().__init__(world)
        self._decided: dict[str, tuple[str, int]] = {}
        self._resizing: set[int] = set()

    def on_decided(self, fact: Decided) -> None:
        """An effect with this id may happen."""
        self._decided[fact.effect] = (fact.kind, fact.job)

    def on_stopped(self, fact: Stopped) -> None:
        """Resized work starts again without an admission."""
        if fact.why == Why.RESIZE:
            self._resizing.add(fact.job)

    def on_started(self, fact: Started) -> None:
        """It needs an accepted admission, or a resize."""
        kind = "resize" if fact.job in self._resizing else "admit"
        self._resizing.discard(fact.job)
        self._effect(fact.at_s, fact.job, fact.effect, kind)

    def on_evicting(self, fact: Evicting) -> None:
        """It needs an accepted eviction."""
        self._effect(fact.at_s, fact.job, fact.effect, "evict")

    def on_floored(self, fact: Floored) -> None:
        """It needs an accepted scaling."""
        self._effect(fact.at_s, fact.service, fact.effect, "scale")

    def on_ceiled(self, fact: Ceiled) -> None:
        """It needs an accepted ceiling."""
        self._effect(fact.at_s, fact.service, fact.effect, "ceiling")

    def on_recutting(self, fact: Recutting) -> None:
        """Its begin needs an accepted change."""
        if fact.begins:
            self._effect(fact.at_s, fact.gpu, fact.effect, "recut")

    def on_cordoned(self, fact: Cordoned) -> None:
        """It needs an accepted decision."""
        self._effect(fact.at_s, fact.node, fact.effect, "cordon")

    def on_turned(self, fact: Turned) -> None:
        """Its begin needs an accepted change."""
        if fact.begins:
            self._effect(fact.at_s, fact.node, fact.effect, "set_sharing")

    def on_paused(self, fact: Paused) -> None:
        """It needs an accepted decision; a pause also ends by itself."""
        if fact.on or fact.effect:
            self._effect(fact.at_s, fact.job, fact.effect, "pause" if fact.on else "resume")

    def _effect(self, at_s: float, job: int, effect: str, kind: str) -> None:
        self.checked += 1
        decided = self._decided.pop(effect, None)
        subject = self._named(kind, job)
        if decided is None:
            named = f"effect {effect!r} has" if effect else "the effect names"
            self.violate(at_s, subject, f"{kind}: {named} no accepted decision (or it was used before)")
        elif decided != (kind, job):
            other = f"{decided[0]} {self._named(*decided)}"
            self.violate(at_s, subject, f"{kind}: effect {effect!r} was accepted to {other}")

    def _named(self, kind: str, row: int) -> str:
        if kind == "recut":
            return self.gpu(row)
        if kind in {"cordon", "set_sharing"}:
            return self.node(row)
        return f"service {row}" if kind in {"scale", "ceiling"} else self.job(row)
