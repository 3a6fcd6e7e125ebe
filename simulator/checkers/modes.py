"""Actions only recommended by the policy have no effect: no effect occurs with such actions as its only cause."""

from __future__ import annotations

from autopilot.core.model.policy import ACTIONS_WITH, Effect
from simulator.checkers.base import Checker, World
from simulator.world.facts import Ceiled, Cordoned, Evicting, Floored, Recutting, Started, Stopped, Why


def _with(*effects: Effect) -> frozenset[str]:
    return frozenset(name for effect in effects for name in ACTIONS_WITH[effect])


FILLS, RECOVERS, SUSPENDS, FLOORS = _with(Effect.FILL), _with(Effect.STOP), _with(Effect.SUSPEND), _with(Effect.FLOOR)
CEILINGS = _with(Effect.CEILING)
RECUTS, DRAINS, CORDONS = _with(Effect.RECUT), _with(Effect.DRAIN), _with(Effect.CORDON)
ISOLATES = _with(Effect.ISOLATE)
MOVES, CLEARS, PARKS = _with(Effect.MOVE), _with(Effect.CLEAR), _with(Effect.PARK)
TAKES = _with(Effect.RECLAIM, Effect.PREEMPT, Effect.ROOM)
STARTS = _with(Effect.ADMIT, Effect.SHARE) | MOVES | CLEARS | DRAINS | ISOLATES
"""Actions that start work: on idle GPUs, or on those of victims."""
SHRINKS, GROWS = TAKES | RECOVERS, _with(Effect.GROW)


class Modes(Checker):
    """Infers the possible actions behind an effect from its facts: backfill, moves, repairs and reclaims are marked."""

    name = "modes"

    def __init__(self, world: World) -> None:
        """No work yet."""
        super().__init__(world)
        self._filler: set[int] = set()
        self._milli: dict[int, int] = {}  # width of work that continues at once with another one

    def on_stopped(self, fact: Stopped) -> None:
        """Remember the width of continuing work."""
        if fact.why == Why.RESIZE:
            self._milli[fact.job] = fact.milli
        else:
            self._filler.discard(fact.job)

    def on_started(self, fact: Started) -> None:
        """An action for the start or resize of work must be allowed."""
        was = self._milli.pop(fact.job, None)
        if was is not None:
            words, actions = ("was widened", GROWS) if fact.milli > was else ("was narrowed", SHRINKS)
            self._effect(fact.at_s, fact.job, words, actions)
            return
        if fact.backfill:
            self._filler.add(fact.job)
        self._effect(fact.at_s, fact.job, "was started", FILLS if fact.backfill else STARTS)

    def on_evicting(self, fact: Evicting) -> None:
        """Backfilled work may be evicted by backfill too."""
        if fact.why == Why.RECOVER:
            actions = RECOVERS
        elif fact.why == Why.MOVE:
            actions = CLEARS if fact.ahead else DRAINS if fact.drain else ISOLATES if fact.apart else MOVES
        elif fact.why == Why.SUSPEND:
            actions = SUSPENDS
        elif fact.why == Why.PARK:
            actions = PARKS
        else:
            actions = TAKES | FILLS if fact.job in self._filler else TAKES
        self._effect(fact.at_s, fact.job, "was evicted", actions)

    def on_floored(self, fact: Floored) -> None:
        """Only one action sets floors."""
        self.checked += 1
        if self.world.rules.held_actions >= FLOORS:
            names = " or ".join(sorted(FLOORS))
            self.violate(fact.at_s, f"service {fact.service}", f"has a floor although {names} may not act on its own")

    def on_ceiled(self, fact: Ceiled) -> None:
        """Only one action sets ceilings."""
        self.checked += 1
        if self.world.rules.held_actions >= CEILINGS:
            names = " or ".join(sorted(CEILINGS))
            self.violate(fact.at_s, f"service {fact.service}", f"has a ceiling although {names} may not act on its own")

    def on_recutting(self, fact: Recutting) -> None:
        """Only one action changes geometries."""
        self.checked += fact.begins
        if fact.begins and self.world.rules.held_actions >= RECUTS:
            names = " or ".join(sorted(RECUTS))
            self.violate(fact.at_s, self.gpu(fact.gpu), f"is cut anew although {names} may not act on its own")

    def on_cordoned(self, fact: Cordoned) -> None:
        """Only one action cordons nodes."""
        self.checked += 1
        if self.world.rules.held_actions >= CORDONS:
            names = " or ".join(sorted(CORDONS))
            self.violate(fact.at_s, self.node(fact.node), f"is cordoned or opened although {names} may not act")

    def _effect(self, at_s: float, job: int, words: str, actions: frozenset[str]) -> None:
        self.checked += 1
        if actions <= self.world.rules.held_actions:
            names = " or ".join(sorted(actions))
            self.violate(at_s, self.job(job), f"{words} although {names} may not act on its own")
