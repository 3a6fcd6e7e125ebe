"""Guarantees are restored in time, and no work is preempted in their name without need.

A queue is owed what waits inside its guarantee and could start if the work that must yield did: work of queues above
their own guarantees that is not protected, or whose protection does not hold against an owner (declared.py). This is
recomputed from the facts, with a placement on the nodes for everything owed at once. The time counts from then on,
whatever blocks it later, except for work of another queue that was owed too, where there was room for one of the two: a
checker does not decide which goes first. It ends when work of the queue starts; it restarts when the hardware changes,
and pauses while evicted work exceeds its grace period.

Checked are gangs of whole GPUs whose only requirement is a GPU model, which they name where there are several. Replicas
of services are excluded (they are withdrawn while they wait, without a fact), and so is work with a
`preemption_delay_s`, or that opted out: it asks for no start.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from autopilot.core.model.units import counted
from simulator.checkers.base import Checker, World
from simulator.checkers.declared import Declarations
from simulator.checkers.floor import Counts, Floor
from simulator.checkers.owners import MILLI, Owners, by_width, held_milli, least_gpus, least_milli, sole_model
from simulator.world.facts import (
    Declared,
    Evicting,
    GpuChanged,
    NodeChanged,
    Recut,
    Resumed,
    Started,
    Stopped,
    Submitted,
    Turned,
    Why,
)


@dataclass(slots=True)
class _Lot:
    """A part of a queue's owed GPUs: thousandths, and the start of the debt."""

    since_s: float
    milli: int


class Guarantees(Checker):
    """Tracks holders, waiting gangs, and the owed lots of each queue with their starts."""

    name = "guarantees"

    def __init__(self, world: World) -> None:
        """No work yet."""
        super().__init__(world)
        models = world.inventory.names.gpu_models
        self._models = len(models)
        self._owners = Owners(world.rules.queues, models, world.jobs)
        self._declared = Declarations(world, self._owners)
        self._floor = Floor(world.inventory)
        self._asked = world.rules.guarantee_within_s is not None and self._owners.promised
        self._held: dict[int, Started] = {}
        self._leaving: dict[int, float] = {}
        self._waiting: dict[int, Counter[int]] = {}  # queue -> shapes of the gangs that are checked
        self._least: dict[int, Counter[int]] = {}  # queue -> least widths of all waiting gangs
        self._waits: set[int] = set()
        self._owed: dict[int, int] = {}  # queue -> thousandths that it waits for inside its guarantee
        self._lots: dict[int, deque[_Lot]] = {}
        self._touched: set[int] = set()
        self._instead = 0  # thousandths that owed queues started in this instant beyond their lots
        self._now_s = 0.0

    # --- facts ----------------------------------------------------------------------------

    def on_submitted(self, fact: Submitted) -> None:
        """It waits."""
        if self._asked:
            self._advance(fact.at_s)
            self._wait(fact.job, 1)

    def on_started(self, fact: Started) -> None:
        """It holds; this settles the oldest lots of its queue."""
        if not self._asked:
            return
        self._advance(fact.at_s)
        job = fact.job
        queue = self._owners.queue(job)
        going_on = self._held.pop(job, None)
        if going_on is None:
            self._wait(job, -1)
            whole = self.jobs.shape_of(job).whole  # a share settles what waited for a whole GPU
            beyond = self._give(queue, MILLI * len(fact.gpus) if whole else fact.milli)
            if queue in self._owed and self._looked_at(job):
                self._instead += beyond
        self._held[job] = fact
        self._declared.started(fact, self._held)
        self._book(fact, 1)

    def on_stopped(self, fact: Stopped) -> None:
        """It holds nothing now, and waits again unless it has ended."""
        job = fact.job
        if not self._asked or fact.why == Why.CUT or job not in self._held:
            return
        self._advance(fact.at_s)
        self._book(self._held[job], -1)
        self._leaving.pop(job, None)
        if fact.why == Why.RESIZE:
            return
        del self._held[job]
        self._declared.stopped(job)
        if fact.why not in (Why.END, Why.FAIL, Why.RETIRE, Why.SUSPEND, Why.PARK):
            self._wait(job, 1)

    def on_declared(self, fact: Declared) -> None:
        """From now on it yields, or does not."""
        if self._asked:
            self._advance(fact.at_s)
            waits = fact.job in self._waits
            if waits:
                self._wait(fact.job, -1)
            self._declared.declared(fact, holds=fact.job in self._held)
            if waits:
                self._wait(fact.job, 1)
            self._touched.add(self._owners.queue(fact.job))

    def on_resumed(self, fact: Resumed) -> None:
        """Parked work waits again."""
        if self._asked:
            self._advance(fact.at_s)
            self._wait(fact.job, 1)

    def on_evicting(self, fact: Evicting) -> None:
        """An eviction by contract must serve an owner, or end backfilled work. A move may also serve its own queue:
        the work goes on in another place, and the owner's wider gang takes this one.
        """
        if not self._asked:
            return
        self._advance(fact.at_s)
        held = self._held.get(fact.job)
        if fact.contract and fact.why != Why.RECOVER and held is not None and not held.backfill:
            self.checked += 1
            moves = fact.why == Why.MOVE
            if not self._owed_to(self._owners.queue(fact.job), moves=moves):
                what = "was moved by contract, while no" if moves else "was evicted by contract, while no other"
                self.violate(fact.at_s, self.job(fact.job), f"{what} queue waits inside its guarantee")
        self._leaving[fact.job] = fact.at_s

    def on_node(self, fact: NodeChanged) -> None:
        """The cluster changed: all debts start anew from now."""
        if self._asked:
            self._advance(fact.at_s)
            self._floor.node(fact)
            self._lots.clear()

    def on_gpu(self, fact: GpuChanged) -> None:
        """As for a node."""
        if self._asked:
            self._advance(fact.at_s)
            self._floor.gpu(fact)
            self._lots.clear()

    def on_recut(self, fact: Recut) -> None:
        """As for a node."""
        if self._asked:
            self._advance(fact.at_s)
            self._floor.recut(fact)
            self._lots.clear()

    def on_turned(self, fact: Turned) -> None:
        """As for a node."""
        if self._asked:
            self._advance(fact.at_s)
            self._floor.turned(fact)
            self._lots.clear()

    def at_end(self, end_s: float) -> None:
        """Judge the debts at the end of the run."""
        if self._asked:
            self._advance(end_s)

    # --- who waits and who holds ----------------------------------------------------------

    def _wait(self, job: int, count: int) -> None:
        queue = self._owners.queue(job)
        shape = self.jobs.shape_of(job)
        (self._waits.add if count > 0 else self._waits.discard)(job)
        self._least.setdefault(queue, Counter())[least_milli(shape)] += count
        if self._looked_at(job):
            self._waiting.setdefault(queue, Counter())[self.jobs.shape[job]] += count
            self._touched.add(queue)

    def _looked_at(self, job: int) -> bool:
        delay_s = self.jobs.preemption_delay_s[job]
        return self.jobs.service[job] < 0 and not delay_s and not self._declared.out(job)

    def _book(self, fact: Started, sign: int) -> None:
        queue = self._owners.queue(fact.job)
        each = held_milli(self.jobs.shape_of(fact.job), fact)
        for gpu in fact.gpus:
            self._owners.book(queue, self._floor.model_of[self._floor.node_of[gpu]], sign * each)
        self._touched.add(queue)

    def _owed_to(self, victim: int, *, moves: bool) -> bool:
        """True if a queue waits inside its guarantee, leaving work not counted: one other than that of the victim, or
        any if the victim `moves`.
        """
        leaving: Counter[int] = Counter()
        for job in self._leaving:
            held = self._held[job]
            leaving[self._owners.queue(job)] += len(held.gpus) * held_milli(self.jobs.shape_of(job), held)
        for queue, widths in self._least.items():
            own = queue == victim
            left = self._owners.left(queue)[-1] + (0 if own else leaving[queue])  # what moves comes back
            if (moves or not own) and any(count > 0 and milli <= left for milli, count in widths.items()):
                return True
        return False

    # --- what is owed ---------------------------------------------------------------------

    def _advance(self, at_s: float) -> None:
        """Close the instant of the facts so far, and judge the time up to `at_s`."""
        if at_s <= self._now_s:
            return
        self._close()
        rules = self.world.rules
        for queue, lots in self._lots.items():
            bound_s = rules.guarantee_later_s.get(self._owners.name[queue], rules.guarantee_within_s or 0.0)
            while lots and lots[0].since_s + bound_s < at_s:
                lot = lots.popleft()
                self.violate(
                    lot.since_s + bound_s,
                    f"tenant {self._owners.name[queue]}",
                    f"waits for {counted(lot.milli / MILLI, 'GPU')} of its guarantee of "
                    f"{self._owners.guarantee[queue][-1] / MILLI:g} for more than {bound_s:g} s",
                )
        self._now_s = at_s

    def _close(self) -> None:
        """Update the debts: less if less fits the guarantee, more if more could be had."""
        for queue in self._touched:
            owed = self._owed[queue] = self._inside(queue)
            if owed:
                self._shrink(queue, owed)
            else:
                del self._owed[queue]
                self._lots.pop(queue, None)
        self._touched.clear()
        grace_s = self.world.rules.grace_s
        instead, self._instead = self._instead, 0
        if any(since_s + grace_s < self._now_s for since_s in self._leaving.values()):
            self._lots.clear()
            return
        if instead:
            self._make_way(instead)
        if any(owed > self._sum(queue) for queue, owed in self._owed.items()):
            for queue, able in self._able().items():
                more = able - self._sum(queue)
                if more > 0:
                    self.checked += 1
                    self._lots.setdefault(queue, deque()).append(_Lot(self._now_s, more))

    def _make_way(self, milli: int) -> None:
        """Other owed queues took room: GPUs out of reach are no longer owed, up to the taken amount, the newest lots
        first.
        """
        able = self._able()
        for queue, lots in self._lots.items():
            gone = min(self._sum(queue) - able.get(queue, 0), milli)
            while gone > 0:
                off = min(gone, lots[-1].milli)
                lots[-1].milli -= off
                gone -= off
                milli -= off
                if not lots[-1].milli:
                    lots.pop()

    def _sum(self, queue: int) -> int:
        return sum(lot.milli for lot in self._lots.get(queue, ()))

    def _give(self, queue: int, milli: int) -> int:
        """Settle the oldest lots of a queue; returns the excess."""
        lots = self._lots.get(queue)
        while lots and milli > 0:
            off = min(milli, lots[0].milli)
            lots[0].milli -= off
            milli -= off
            if not lots[0].milli:
                lots.popleft()
        return milli

    def _shrink(self, queue: int, owed: int) -> None:
        self._give(queue, self._sum(queue) - owed)

    def _inside(self, queue: int) -> int:
        """Thousandths of the waiting work fitting the guarantee together, the widest first."""
        left, total = self._owners.left(queue), 0
        if left[-1] <= 0:
            return 0
        for milli, _, model, count in self._requests(queue):
            for _ in range(min(count, left[model] // milli, left[-1] // milli)):
                left[model] -= milli
                left[-1] -= milli
                total += milli
        return total

    def _requests(self, queue: int) -> list[tuple[int, int, int, int]]:
        """(least thousandths, GPUs of a member, GPU model, count) of the checked gangs in a queue, the widest first."""
        shapes = self.jobs.shapes
        found = []
        waiting = self._waiting.get(queue, Counter())
        for code in by_width((code for code, count in waiting.items() if count > 0), shapes):
            model = sole_model(shapes[code], self._models)
            if model is not None:
                found.append((MILLI * least_gpus(shapes[code]), shapes[code].per_member, model, waiting[code]))
        return found

    # --- what could be had ----------------------------------------------------------------

    def _able(self) -> dict[int, int]:
        """Thousandths by queue within reach of all owed queues together, if the work that must yield did."""
        room = self._room()
        placed: Counter[int] = Counter()  # by queue, including its ancestors
        able: dict[int, int] = {}
        for queue in sorted(self._owed, key=self._turn):
            left = self._owners.left(queue)
            for milli, per_member, model, count in self._requests(queue):
                for _ in range(count):
                    more = [placed[each] + milli for each in self._owners.paths[queue]]
                    if min(left[model], left[-1]) < milli or not self._owners.within_limits(queue, more):
                        break
                    if not self._floor.put(room, milli // MILLI, per_member, model):
                        break
                    left[model] -= milli
                    left[-1] -= milli
                    able[queue] = able.get(queue, 0) + milli
                    placed.update(dict.fromkeys(self._owners.paths[queue], milli))
        return able

    def _turn(self, queue: int) -> tuple[float, int]:
        """The queue with the oldest debt comes first."""
        lots = self._lots.get(queue)
        return (lots[0].since_s if lots else self._now_s, queue)

    def _room(self) -> Counts:
        """Whole GPUs by node, idle or held by work that leaves or must yield.

        Work leaving a queue at or below its guarantee makes room for no other queue: work of its own queue takes
        its place.
        """
        leaving, lent = list(self._leaving), self._declared.lent(self._held)
        staying = [job for job in reversed(self._held) if job not in self._leaving and self._may_give(job, lent)]
        give = self._givers([*leaving, *staying])
        return self._floor.idle(gpu for job, held in self._held.items() if job not in give for gpu in held.gpus)

    def _may_give(self, job: int, lent: set[int]) -> bool:
        """True for work on whole GPUs, unprotected, protected above the guarantee of its queue, or protected late."""
        declared = self._declared
        return self.jobs.shape_of(job).whole and (job in lent or declared.late(job) or not declared.protected(job))

    def _givers(self, jobs: list[int]) -> set[int]:
        """The longest selection of `jobs`, in this order, able to go with the guarantees of their queues kept."""
        owners = self._owners
        spare: dict[int, list[int]] = {}
        claimed: Counter[int] = Counter()
        for queue, owed in self._owed.items() if self._models == 1 else ():
            claimed.update(dict.fromkeys(owners.paths[queue][1:], owed))  # returned to the parent queues
        give = set()
        for job in jobs:
            path = owners.paths[owners.queue(job)]
            width: Counter[int] = Counter()
            held, each = self._held[job], held_milli(self.jobs.shape_of(job), self._held[job])
            for gpu in held.gpus:
                width[self._floor.model_of[self._floor.node_of[gpu]]] += each
            width[self._models] = each * len(held.gpus)
            for queue in path:
                if queue not in spare:
                    spare[queue] = [claimed[queue] - left for left in owners.left(queue)]
            if all(spare[queue][model] >= milli for queue in path for model, milli in width.items()):
                give.add(job)
                for queue in path:
                    for model, milli in width.items():
                        spare[queue][model] -= milli
        return give
