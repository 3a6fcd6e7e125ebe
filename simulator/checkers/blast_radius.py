"""No large gang is stopped for a small need: weighed evictions of one tick, against the width of their beneficiaries.

The next holder of a taken GPU is its beneficiary, the victims themselves excepted; its whole width counts. The
limit is for a tick: another tick of the same instant may move other work so that an earlier victim starts again.
Shrunk gangs are no victims here: they go on. Some takings cannot be judged: those after which an effect was lost (the
start itself, another eviction for it, or enough to make the controller pause), and those whose victims are still there
when the wait for them has ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from autopilot.core.model.units import counted
from simulator.checkers.base import Checker, World, weighed
from simulator.world.facts import Decided, Evicting, GpuChanged, NodeChanged, Started, Stopped, Why

MILLI = 1000


@dataclass(slots=True)
class _Taking:
    """All weighed evictions of one tick: thousandths taken, GPUs without a new holder yet, and the beneficiaries."""

    at_s: float
    tick: str  # the effects of a tick begin with its number; "": a policy without instructions
    milli: int = 0
    open: set[int] = field(default_factory=set)
    victims: set[int] = field(default_factory=set)
    there: set[int] = field(default_factory=set)  # victims that have not left yet
    gained: dict[int, int] = field(default_factory=dict)


class BlastRadius(Checker):
    """Follows every GPU from its victim to its next holder."""

    name = "blast-radius"

    def __init__(self, world: World) -> None:
        """Nothing was taken yet."""
        super().__init__(world)
        self._held: dict[int, Started] = {}
        self._takings: list[_Taking] = []
        self._decided: dict[str, float] = {}  # effects of this instant that have not happened yet

    def on_evicting(self, fact: Evicting) -> None:
        """Add it to the other evictions of this instant."""
        self._decided.pop(fact.effect, None)
        held = self._held.get(fact.job)
        if fact.ahead or fact.drain or fact.apart:
            return  # the gang that gains is still to come, or a neighbour gains and starts nothing
        own_sake = fact.why == Why.RECOVER or fact.away  # no other work gains its GPUs
        if self.world.rules.blast_ratio is None or not weighed(fact) or own_sake or held is None:
            return
        tick = fact.effect.partition("/")[0]
        if not self._takings or (self._takings[-1].at_s, self._takings[-1].tick) != (fact.at_s, tick):
            self._takings.append(_Taking(fact.at_s, tick))
        taking = self._takings[-1]
        taking.milli += held.milli
        taking.open.update(held.gpus)
        taking.victims.add(fact.job)
        taking.there.add(fact.job)

    def on_started(self, fact: Started) -> None:
        """Work on taken GPUs is the beneficiary."""
        self._held[fact.job] = fact
        self._decided.pop(fact.effect, None)
        if not self._takings:
            return
        self._judge_late(fact.at_s)
        for taking in self._takings:
            taking.there.discard(fact.job)
            if fact.job not in taking.victims and not taking.open.isdisjoint(fact.gpus):
                taking.gained[fact.job] = fact.milli
            taking.open.difference_update(fact.gpus)
        for taking in [each for each in self._takings if not each.open]:
            self._judge(taking)

    def on_stopped(self, fact: Stopped) -> None:
        """A victim has left."""
        for taking in self._takings:
            taking.there.discard(fact.job)

    def on_decided(self, fact: Decided) -> None:
        """It follows at once, or it was lost."""
        self._forget_lost(fact.at_s)
        if self.world.rules.blast_ratio is not None and fact.kind in {"admit", "evict"}:
            self._decided[fact.effect] = fact.at_s

    def _forget_lost(self, now_s: float) -> None:
        """A lost effect cancels the takings before it."""
        lost_s = max((at_s for at_s in self._decided.values() if at_s < now_s), default=float("-inf"))
        self._decided = {effect: at_s for effect, at_s in self._decided.items() if at_s >= now_s}
        self._takings = [taking for taking in self._takings if taking.at_s > lost_s]

    def on_node(self, _fact: NodeChanged) -> None:
        """The hardware changed: open takings are cancelled."""
        self._takings.clear()

    def on_gpu(self, _fact: GpuChanged) -> None:
        """As for a node."""
        self._takings.clear()

    def at_end(self, end_s: float) -> None:
        """Judge the takings with their time over; the rest was cut short."""
        self._judge_late(end_s)

    def _judge_late(self, now_s: float) -> None:
        """The wait for the taken GPUs has ended."""
        self._forget_lost(now_s)
        for taking in [each for each in self._takings if each.at_s + self.world.rules.landing_s < now_s]:
            if taking.there and not taking.gained:
                self._takings.remove(taking)
            else:
                self._judge(taking)

    def _judge(self, taking: _Taking) -> None:
        self._takings.remove(taking)
        self.checked += 1
        limit, gained = self.world.rules.blast_ratio, sum(taking.gained.values())
        if limit is not None and taking.milli > limit * gained:
            first = self.job(min(taking.victims))
            self.violate(
                taking.at_s,
                first,
                f"{counted(taking.milli / MILLI, 'GPU was|GPUs were')} taken (this one first) so that "
                f"{gained / MILLI:g} could start; the limit is {limit:g} for each",
            )
