"""The working set of one tick, shared by all actions and guards.

Theory of operation. A `Context` has two halves. The facts (facts.py) are frozen: observed, remembered and predicted
state in the form needed by planning. The decisions of the tick are in three mutable parts: the `whatif` (capacity), the
`quota` (the quota ledger) and the `plan` (plan_state.py). Actions change these parts through methods; guards only read.

An action places a gang in the what-if, and `occupy` books the rest: its quota, the predicted end of its GPUs, and the
spare room of the holds that it outlives. `vacate` takes a waiting gang off the what-if, the quota and the spare room
again.

Room is bounded by holds. `room` takes the free GPUs of each node and, for each hold of others with a start before the
end of the gang, at most the GPUs spared by that hold. Two things open a hold to a gang: it is held for the gang or its
queue (`is_for`), or the guarantee of the gang takes precedence over a hold above the guarantee of another queue
(`overruled`). Holds of quota on the path of the queue (`quota_hold_against`) open in the same way.

Answers are computed at most once and kept in `memo`: for a state of the what-if, for a number of leaving gangs, or for
the whole tick. They change no decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import TypeVar, cast

import numpy as np

from autopilot.core.model.codes import ConditionKind
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.plan import Condition
from autopilot.core.model.records import Code, Proposal
from autopilot.core.model.snapshot import F64, GPU_MILLI, I32, Bools, State
from autopilot.core.model.work import evicted_uids, holding_mask, named, running_since, whole_gpus
from autopilot.core.placement.search_cache import SearchCache, StateCache
from autopilot.core.placement.shapes import Miss, Shape, shape_of
from autopilot.core.placement.whatif import Layout, WhatIf
from autopilot.core.planning.facts import Facts
from autopilot.core.planning.lending import Lending, lend
from autopilot.core.planning.plan_state import CODE_INDEX, Held, PlanState, QuotaHold
from autopilot.core.planning.quota_state import Quota
from autopilot.core.quota.ledger import ALL
from autopilot.core.quota.rules.base import Running

Built = TypeVar("Built")
_NO_ROOM = frozenset({Code.CAPACITY, Code.FRAGMENTED, Code.TOPOLOGY, Code.MIG_GEOMETRY})
_BY_HOLD = frozenset({CODE_INDEX[Code.RESERVED], CODE_INDEX[Code.RUNTIME_UNKNOWN]})


class _SharedIndices(list[float]):
    """Indices of pending gangs, by position."""


@dataclass(slots=True)
class Memo:
    """Answers about the plan of the tick, computed at most once. It changes no decision."""

    searches: SearchCache = field(default_factory=SearchCache)
    built: dict[type, object] = field(default_factory=dict)  # by type
    # claims by the most GPUs that they hold, and the number of gangs that were leaving then
    settled: tuple[int, dict[float, Running]] = (-1, {})
    shapes: dict[tuple[int, int], Shape] = field(default_factory=dict)  # by row and width


@dataclass(frozen=True, kw_only=True)
class Context(Facts):
    """One tick's working set: its facts, and the plan built on them."""

    memory: ControllerMemory  # as it is by now: with what is sent again in this tick
    whatif: WhatIf
    quota: Quota
    plan: PlanState
    memo: Memo = field(default_factory=Memo)

    def since_s(self, kind: ConditionKind, row: int, *, lasting: bool = False) -> float:
        """Start of the unbroken time, as far as observed, for which a present condition of a workload has held.

        It ends with the incarnation of the workload, unless it is `lasting`.
        """
        work = self.observation.snapshot.workloads
        condition = Condition(kind, str(work.uid[row]), -1 if lasting else int(work.incarnation[row]))
        return self.plan.since_s(condition, self.noted_since_s.get(condition, self.now_s))

    def room(self, end_s: float, row: int = -1, *, promises_only: bool = False, overruling: bool = True) -> I32:
        """Whole free GPUs per node for a gang that would run until `end_s`. Shape [nodes].

        Read only: gangs with the same bounds share one array. Room held for the gang itself (`row`) is free to it. With
        `promises_only`, tentatively held room does not count as held: no victim's GPUs are kept for a plan that may
        change at the next tick. Without `overruling`, room counts as held even if the guarantee of the gang takes
        precedence.
        """
        node_free, binding = self.whatif.node_free, list[tuple[I32, I32]]()  # nodes, and what the gang may use there
        if not self.plan.held:
            return node_free
        opened = np.zeros_like(node_free)  # what earlier holds take and the gang may use: a later hold leaves it out
        for held in self.plan.held:
            if self.is_for(held, row):
                opened[held.nodes] += held.counts
                continue
            if overruling and not len(held.instances) and self.overruled(held, row):
                opened[held.nodes] += held.lent
            if held.start_s < end_s and (held.record.firm or not promises_only):
                binding.append((held.nodes, np.maximum(held.spare + opened[held.nodes], 0)))
        if not binding:
            return node_free
        rooms = self.cached().rooms
        key = tuple((nodes.tobytes(), spare.tobytes()) for nodes, spare in binding)
        if key not in rooms:
            room = node_free.copy()
            for nodes, spare in binding:
                room[nodes] = np.minimum(room[nodes], spare)
            rooms[key] = room
        return rooms[key]

    def cached(self) -> StateCache:
        """Answers for the current state of the what-if."""
        return self.memo.searches.at(self.whatif.stamp)

    def once(self, kind: type[Built], build: Callable[[], Built]) -> Built:
        """An object built at most once in a tick, by its type."""
        if kind not in self.memo.built:
            self.memo.built[kind] = build()
        return cast("Built", self.memo.built[kind])

    @property
    def lending(self) -> Lending:
        """The rules of time sharing between queues, computed at most once in a tick."""
        found = self.memo.built.get(Lending)  # read for each waiting gang
        return cast("Lending", found) if found is not None else self.once(Lending, lambda: lend(self))

    @property
    def shared_indices(self) -> list[float]:
        """The index of each pending gang as other queues see it, computed at most once in a tick."""
        return self.once(_SharedIndices, self._shared_indices)

    def _shared_indices(self) -> _SharedIndices:
        weight = self.lending.weight
        return _SharedIndices(
            index * weight(row) for index, row in zip(self.index.tolist(), self.pending.tolist(), strict=True)
        )

    def shown_start(self, row: int) -> Proposal | None:
        """The open proposal to start a pending gang, as shown to people; None without one."""
        return self.shown_starts.get(str(self.observation.snapshot.workloads.uid[row])) if self.shown_starts else None

    def is_for(self, held: Held, row: int) -> bool:
        """True if this room is held for the gang of `row`, or for its queue. False where `row` is -1."""
        if held.queue < 0 or row < 0:
            return row >= 0 and held.row == row
        return int(self.observation.snapshot.workloads.queue[row]) in self.below(held.queue)

    def overruled(self, held: Held | QuotaHold, row: int, gpus: int = 0) -> bool:
        """True for an owed waiting gang (`gpus`: at that width), if another queue holds this above its guarantee."""
        at = self.positions.get(row) if np.any(held.lent) else None
        if at is None:
            return False
        whose = held.queue if isinstance(held, Held) and held.queue >= 0 else self._queue_of(held.row)
        return self.pending_table.queue[at] != whose and self.owed(at, gpus)

    def overrules_any(self, row: int, gpus: int = 0) -> bool:
        """True if the guarantee of a waiting gang takes precedence over any hold of room (`gpus`: at that width)."""
        return any(self.overruled(held, row, gpus) for held in self.plan.held)

    def _queue_of(self, row: int) -> int:
        return int(self.observation.snapshot.workloads.queue[row])

    def owed(self, at: int, gpus: int = 0) -> bool:
        """True for a waiting gang that takes back by contract: the rule set sees it within the guarantee of its queue.

        Its width is the least, or `gpus`. Replicas for a forecast alone are not owed.
        """
        if self.ahead[at] or not self.lending.takes_back(self.pending_table.queue[at]):
            return False
        return self.quota.inside(self.quota.claim(int(self.pending[at]), gpus or self.pending_table.least_gpus[at]))

    def below(self, queue: int) -> tuple[int, ...]:
        """A queue and all queues below it."""
        paths = self.quota.ledger.paths
        return tuple(each for each, path in enumerate(paths) if each == queue or queue in path)

    def binding_sets(self, positions: np.ndarray) -> np.ndarray:
        """Bit set of the reservations that bind each pending gang: it outlives their start, and they are not of its
        queue. Equal sets see equal room, unless a guarantee takes precedence over a hold. Shape [positions].
        """
        bits, ends_s = np.zeros(len(positions), np.int64), self.gap_end_s[positions]
        for number, held in enumerate(self.plan.held):
            binds = held.start_s < ends_s
            if held.queue >= 0:
                queues = self.observation.snapshot.workloads.queue[self.pending[positions]]
                binds = binds & ~np.isin(queues, self.below(held.queue))
            bits |= binds.astype(np.int64) << number
        return bits

    def occupy(self, row: int, layout: Layout, end_s: float) -> None:
        """Book a placement: its quota, the predicted end of its GPUs, and the loss of room to reservations."""
        self.quota.book(row, layout)
        self.foresee(layout, end_s, row)

    def foresee(self, layout: Layout, end_s: float, row: int) -> None:
        """Note the predicted end of the gang of `row` on these GPUs, and the loss of room to reservations of others."""
        self.plan.foresee(layout, end_s)
        self.use_held(layout, end_s, row)

    def use_held(self, layout: Layout, end_s: float, row: int, sign: int = 1) -> None:
        """Take the GPUs of the gang of `row`, used until `end_s`, off the room spared by other holds; -1: give
        it back.
        """
        losing = [
            held for held in self.plan.held if held.start_s < end_s and not (held.queue >= 0 and self.is_for(held, row))
        ]
        if losing:
            self.plan.use_spare(losing, layout.per_node(self.observation.snapshot), layout.instance, sign)

    def vacate(self, at: int) -> Layout:
        """Take the waiting gang at `at` off the what-if, its quota and the spare room of holds; return its layout."""
        row = int(self.pending[at])
        layout = self.whatif.evict(row)
        self.quota.book(row, layout, -1)
        self.use_held(layout, self.now_s + float(self.run_low_s[at]), row, -1)
        return layout

    def shape(self, row: int, gpus: int) -> Shape:
        """The shape of a workload at a width in GPUs, shares or instances."""
        shape = self.memo.shapes.get((row, gpus))
        if shape is None:
            shape = self.memo.shapes[row, gpus] = shape_of(self.observation.snapshot, row, gpus)
        return shape

    def may_start(self, at: int, gpus: int) -> Miss | None:
        """The refusal of a pending gang of this width by quota; None if it may start."""
        refusal = self.quota.may_start(int(self.pending[at]), gpus)
        return None if refusal is None else Miss(refusal.code, refusal.value, refusal.threshold)

    def quota_hold_against(self, row: int) -> QuotaHold | None:
        """The first hold of quota for another gang on the gang's path, unless overruled by the gang; None
        without one.
        """
        return next((kept for kept in self.quota_holds_on(row) if not self.overruled(kept, row)), None)

    def quota_holds_on(self, row: int) -> Iterator[QuotaHold]:
        """Holds of quota on the gang's path for other gangs, also those overruled by the guarantee of the gang."""
        for kept in self.plan.quota_holds:
            work, ledger = self.observation.snapshot.workloads, self.quota.ledger
            models, kinds = int(work.gpu_models[row]), ledger.kind_of_model
            may_use = kept.kind == ALL or any(
                kind == kept.kind and (not models or models >> code & 1) for code, kind in enumerate(kinds)
            )
            below = kept.queue in (*ledger.paths[int(work.queue[row])], 0)
            spares = kept.sheltered and not self.quota.protected[row]
            if kept.row != row and below and may_use and not spares:
                yield kept

    def waiting(self, codes: frozenset[Code] | None = None) -> list[int]:
        """Positions of gangs still waiting after their turn (for one of these reasons), in the order of turns.

        Replicas for a forecast alone are left out: only `make_room` displaces work for them.
        """
        left = self.plan.undecided()
        left = left[(self.pending_table.may_ask & ~self.ahead)[left]]
        if self.plan.asking is not None:
            left = self.plan.asking[np.isin(self.plan.asking, left)]
        if codes is not None:
            asked = np.zeros(len(CODE_INDEX), np.bool_)
            asked[[CODE_INDEX[code] for code in codes]] = True
            left = left[asked[self.plan.code[left]]]
        placed = np.zeros(len(self.observation.snapshot.workloads.id), np.bool_)
        placed[[row for row, layout in self.whatif.layouts.items() if len(layout)]] = True
        found: list[int] = left[~placed[self.pending[left]]].tolist()
        if self.plan.served:
            found = [at for at in found if at not in self.plan.served]
        if self.plan.quota_holds:
            found = [at for at in found if self.quota_hold_against(int(self.pending[at])) is None]
        return found

    def is_uniform(self, row: int) -> bool:
        """True for a gang of whole GPUs with equal members."""
        return row not in self.members and bool(whole_gpus(self.observation.snapshot.workloads, row))

    def leaving_mask(self) -> Bools:
        """Work on GPUs that saves to leave, has an eviction under way, or is a victim of this tick. [workloads]."""
        work = self.observation.snapshot.workloads
        leaving = np.asarray(work.state == State.CHECKPOINTING)
        uids = [*evicted_uids(self.memory), *(entry.uid for entry in self.plan.accepted)]
        if uids:
            leaving = leaving | (named(work.uid, uids) & holding_mask(work))
        return leaving

    def cooling(self) -> set[str]:
        """Uids of workloads with a recent disruption or a recently released promise."""
        return {name for name, until_s in self.memory.budget.cooled_until_s.items() if until_s > self.now_s}

    def settled(self, most_gpus: float = inf) -> Running:
        """Candidates for weighed preemption (see `_old_and_saved`).

        `most_gpus`: without gangs of more whole GPUs than that, unless they can give up a part.
        """
        gone = len(self.quota.leaving)  # it only grows
        if self.memo.settled[0] != gone:
            self.memo.settled = (gone, {inf: self.quota.running().only(self._old_and_saved().tolist())})
        known = self.memo.settled[1]
        if most_gpus not in known:
            keep = self.observation.snapshot.workloads.mig_profile >= 0
            keep[[claim.row for claim in known[inf] if claim.gpus <= most_gpus or claim.elastic]] = True
            known[most_gpus] = known[inf].only(keep.tolist())
        return known[most_gpus]

    def _old_and_saved(self) -> Bools:
        """Past the guaranteed run time, not cooling down, not stopped too often, able to save if asked, [workloads]."""
        work = self.observation.snapshot.workloads
        settled = self.now_s >= running_since(work) + self.stops.guaranteed_s
        settled = settled & ~named(work.uid, self.cooling()) & ~self.stops.often
        return settled if self.policy.preemption.without_checkpoint else settled & ~self.unsaved

    def answer(self, at: int, miss: Miss | None) -> None:
        """Note the refusal of a gang's preemption, if it says more than a lack of room.

        A gang kept waiting by a hold alone needs no victims: the hold stays its reason.
        """
        if miss is None or miss.code in _NO_ROOM or int(self.plan.code[at]) in _BY_HOLD:
            return
        # without guarantees the reason FAIRNESS says nothing
        if miss.code != Code.FAIRNESS or self.quota.ledger.guarantee_binds:
            self.plan.refuse(at, miss)

    def position_of(self, row: int) -> int:
        """The position of a pending gang. Raises `KeyError` for other work."""
        return self.positions[row]

    def too_early(self, at: int) -> Miss | None:
        """Set while a gang has not waited long enough to preempt."""
        if not self.pending_table.early[at]:
            return None
        work = self.observation.snapshot.workloads
        row = int(self.pending[at])
        submit_s, delay_s = float(work.submit_s[row]), float(work.preemption_delay_s[row])
        return Miss(Code.DELAY, self.now_s - submit_s, delay_s)

    def instance_share(self, instances: I32) -> float:
        """MIG instances in GPUs: each an equal part of the instances on its GPU.

        An instance still to be made counts as its part of the memory.
        """
        if not len(instances):
            return 0.0
        whatif = self.whatif
        first = whatif.places.first
        there, made = instances[instances < first], instances[instances >= first] - first
        parts = 1.0 / np.maximum(whatif.gpu_cuts[whatif.instance_gpu[there]], 1)
        return float(parts.sum()) + float(whatif.places.part[made].sum())

    def gpus_of(self, layout: Layout) -> float:
        """GPUs of a layout: shares are their part, and so are MIG instances."""
        plain = layout.plain
        return float(layout.milli[plain].sum()) / GPU_MILLI + self.instance_share(layout.instance[~plain])

    def priced_gpus(self, layout: Layout) -> float:
        """GPUs of a layout, weighted by their price."""
        if not len(layout):
            return 0.0
        return self.gpus_of(layout) * self.price_weight(int(self.observation.snapshot.gpus.node[layout.gpu[0]]))

    def price_weight(self, node: int) -> float:
        """Price of one GPU of a node relative to others, from policy; 1 for a model without a weight."""
        snapshot = self.observation.snapshot
        return self.policy.price_weight.get(snapshot.names.gpu_models[int(snapshot.nodes.gpu_model[node])], 1.0)

    def node_end_s(self) -> F64:
        """Latest predicted end of the work on each node; now for an idle node. Shape [nodes]."""
        gpus = self.observation.snapshot.gpus
        ends = np.full(len(self.whatif.node_free), self.now_s)
        finite = np.isfinite(self.plan.gpu_free_at_s)
        np.maximum.at(ends, gpus.node[finite], self.plan.gpu_free_at_s[finite])
        return ends
