"""The quota side of one tick: the books, the rule set in force, and gangs in the terms of the rules."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from autopilot.core.model.memory.plan import Condition
from autopilot.core.model.policy import Policy, RuleSetName
from autopilot.core.model.policy.bounds import Protection
from autopilot.core.model.records import Code
from autopilot.core.model.snapshot import F64, GPU_MILLI, I32, SLO_CLASS_NAMES, Bools, ClusterSnapshot
from autopilot.core.model.work import (
    EVERY,
    active_mask,
    entry_milli,
    gpu_part,
    gpu_parts,
    running_since,
    stoppable_mask,
)
from autopilot.core.placement.whatif import Layout, WhatIf
from autopilot.core.quota.counting import Counting, counting
from autopilot.core.quota.ledger import ALL, EPSILON, QuotaLedger, build_ledger, capacity_by_kind, claim_kinds
from autopilot.core.quota.protection import Starts, follow_starts, lent_rows, protected_mask
from autopilot.core.quota.rules import RULES, RuleSet, cohort_fair
from autopilot.core.quota.rules.base import Claim, Refusal, Running

NO_MODEL = 1 << 62
"""A bit set of GPU models that no node has."""


@dataclass(slots=True)
class Quota:
    """Books of the moment, with the questions asked of them. `lost_gpu_s` [workloads]: the loss of stopping a gang."""

    snapshot: ClusterSnapshot
    ledger: QuotaLedger
    rules: RuleSet
    lost_gpu_s: F64
    leaving: set[int] = field(default_factory=set)  # rows that this tick's plan takes away or moves
    sheltered: frozenset[int] = frozenset()  # SLO classes whose work is protected
    protected: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))  # [workloads]
    lent: frozenset[int] = frozenset()  # rows of protected work above the guarantee of its queue
    late: frozenset[int] = frozenset()  # rows of late work inside it
    kept: Mapping[int, float] = field(default_factory=dict)  # GPUs of work that ran above it before, by row
    starts: Starts = field(default_factory=Starts)
    counted: Counting | None = None  # how quota counts GPUs; None: as the ledger does
    _running: Running | None = None
    _yielding: Running | None = None
    # those of them who are there still, by `owed`, and how many had gone then
    _seen: dict[bool, tuple[int, Running]] = field(default_factory=dict)
    _leaving: dict[int, set[tuple[int, int]]] | None = None  # (GPU, instance) that gangs are giving up, by row
    _claims_made: dict[tuple[int, int], Claim] = field(default_factory=dict)  # by row and width: they do not change

    def may_start(self, row: int, gpus: int, share: float = 1.0) -> Refusal | None:
        """May the gang start at this width on idle capacity, as far as quotas go? `share`: the part of each GPU."""
        claim = self.claim(row, gpus)
        if share < 1.0 and not (self.counted is not None and self.counted.requests):
            claim = claim._replace(gpus=claim.gpus * share, least_gpus=claim.least_gpus * share)
        if self.open_models(row, gpus) == NO_MODEL:
            room = max(self.ledger.limit_room(claim.queue, (kind,)) for kind in set(self.ledger.kind_of_model))
            return Refusal(Code.LIMIT, max(room, 0.0), claim.gpus)
        return self.rules.may_start(self.ledger, claim)

    def inside(self, claim: Claim) -> bool:
        """True if with the gang its queue is within its guarantee, as the rule set sees it."""
        return self.rules.owed(self.ledger, claim)

    def guaranteed(self, most: int, claim: Callable[[int], Claim]) -> int:
        """The greatest number up to `most` with its claim inside; `most` without any guarantee."""
        if not self.ledger.guarantee_binds:
            return most
        return bisect_left(range(1, most + 1), True, key=lambda number: not self.inside(claim(number)))

    def open_models(self, row: int, gpus: int) -> int:
        """GPU models open to a gang of this width: those it asks for, except those with too little left under their
        limit.

        A bit set over the model codes, 0 for any, `NO_MODEL` for none. A gang asking for one model draws on that kind
        alone, and the rules check its limit.
        """
        asked = int(self.snapshot.workloads.gpu_models[row])
        if not self.ledger.limits_models or (asked and not asked & (asked - 1)):
            return asked
        claim = self.claim(row, gpus)
        models = [code for code in range(len(self.ledger.kind_of_model)) if not asked or asked >> code & 1]
        left = [
            code
            for code in models
            if claim.gpus <= self.ledger.limit_room(claim.queue, (self.ledger.kind_of_model[code],)) + EPSILON
        ]
        return asked if left == models else sum(1 << code for code in left) or NO_MODEL

    def parts(self, rows: I32 = EVERY) -> F64:
        """GPUs by which quota counts one unit of the width of gangs. Shape [rows]."""
        work = self.snapshot.workloads
        return gpu_parts(work, rows) if self.counted is None else self.counted.asked[rows]

    def part(self, row: int) -> float:
        """`parts` of one gang."""
        return gpu_part(self.snapshot.workloads, row) if self.counted is None else float(self.counted.asked[row])

    def claim(self, row: int, gpus: int) -> Claim:
        """A waiting gang, at a width in GPUs, shares or instances."""
        claim = self._claims_made.get((row, gpus))
        if claim is None:
            claim = self._claims_made[row, gpus] = self._claim(row, gpus)
        return claim

    def _claim(self, row: int, gpus: int) -> Claim:
        work = self.snapshot.workloads
        part = self.part(row)
        models = int(work.gpu_models[row])
        return Claim(
            row,
            int(work.queue[row]),
            gpus * part,
            claim_kinds(self.ledger.kind_of_model, models),
            int(work.priority[row]),
            float(work.submit_s[row]),
            float("nan"),
            not self.protected[row],
            int(work.min_gpus[row]) * part,
            max(int(work.gpus_per_member[row]), 1) * part,
            bool(work.over_quota[row]),
        )

    def running(self, *, owed: bool = False) -> Running:
        """Gangs on GPUs that may be evicted: not leaving, not stuck, not in the plan of this tick already.

        `owed`: for work owed by contract; lent and late work yields to it too. `leaving` only grows, so its length
        dates an earlier answer.
        """
        owed = owed and bool(self.lent or self.late)
        if self._running is None:
            self._running = self._claims(stoppable_mask(self.snapshot.workloads))
        every = self._running
        if owed:
            if self._yielding is None:
                self._yielding = self._with_protected()
            every = self._yielding
        if not self.leaving:
            return every
        seen = self._seen.get(owed)
        if seen is None or seen[0] != len(self.leaving):
            stays = np.ones(len(self.snapshot.workloads.id), np.bool_)
            stays[list(self.leaving)] = False
            seen = self._seen[owed] = (len(self.leaving), every.only(stays.tolist()))
        return seen[1]

    @property
    def yielding(self) -> frozenset[int]:
        """Rows of protected work that may be taken for work owed by contract."""
        return self.lent | self.late

    def _with_protected(self) -> Running:
        """Running gangs with the yielding protected work as preemptible ones: lent work, then late work."""
        work, yields = self.snapshot.workloads, self.yielding
        may = np.zeros(len(work.id), np.bool_)
        may[list(yields)] = True
        claims = self._claims((stoppable_mask(work) | may) & active_mask(work) & ~work.stuck)
        return Running(
            claim._replace(preemptible=True, shelter=2 if claim.row in self.late else 1)
            if claim.row in yields
            else claim
            for claim in claims
        )

    def _claims(self, may: Bools) -> Running:
        work, held = self.snapshot.workloads, self.snapshot.placements
        entry = ~held.leaving
        size = (entry_milli(held) / GPU_MILLI if self.counted is None else self.counted.held) * entry
        gpus = np.bincount(held.workload, size, minlength=len(work.id))
        first = np.full(len(work.id), -1, np.int64)
        first[held.workload[::-1]] = np.arange(len(held.workload))[::-1]
        rows = np.flatnonzero(may & (gpus > 0))
        part = self.parts()
        models = self.snapshot.nodes.gpu_model[held.node[first[rows]]].tolist()
        kinds = {model: self._held_kinds(model) for model in set(models)}
        columns = (
            work.priority,
            work.submit_s,
            running_since(work),
            ~self.protected,
            work.min_gpus * part,
            np.maximum(work.gpus_per_member, 1) * part,
            work.over_quota,
            self.lost_gpu_s,
        )
        rest = zip(*(column[rows].tolist() for column in columns), strict=True)
        held_gpus, queues = gpus[rows].tolist(), work.queue[rows].tolist()
        return Running(
            Claim(row, queue, width, kinds[model], *more)
            for row, queue, width, model, more in zip(rows.tolist(), queues, held_gpus, models, rest, strict=True)
        )

    def _held_kinds(self, model: int) -> tuple[int, ...]:
        kind = self.ledger.kind_of_model[model] if model < len(self.ledger.kind_of_model) else ALL
        return (ALL,) if kind == ALL else (ALL, kind)

    def book(self, row: int, layout: Layout, sign: int = 1) -> None:
        """Book a layout taken by a gang (or, with -1, given up). Leaving parts do not count."""
        work, snapshot = self.snapshot.workloads, self.snapshot
        queue, preemptible = int(work.queue[row]), not self.protected[row] or row in self.lent
        gpus = layout.parts if self.counted is None else self._counted_parts(row, layout, self.counted)
        if sign < 0:
            gpus = np.where(self._leaves(row, layout), 0.0, gpus)
        self.ledger.add(queue, sign * float(gpus.sum()), (ALL,), preemptible=preemptible)
        if self.ledger.host_use:
            self.ledger.add_host(queue, self.host_of(row, sign * int(np.count_nonzero(gpus))))
        if len(self.ledger.use) > 1:  # a gang may sit on GPUs of several models
            taken: dict[int, float] = {}
            models = snapshot.nodes.gpu_model[snapshot.gpus.node[layout.gpu]].tolist()
            for model, part in zip(models, gpus.tolist(), strict=True):
                kind = self.ledger.kind_of_model[model]
                taken[kind] = taken.get(kind, 0.0) + part
            for kind, held in sorted(taken.items()):
                self.ledger.add(queue, sign * held, (kind,), preemptible=preemptible)

    def _counted_parts(self, row: int, layout: Layout, counted: Counting) -> F64:
        """GPUs by which quota counts each entry of a layout of a gang. Shape [entries]."""
        whole = counted.requests and self.snapshot.workloads.gpu_milli[row] == 0
        return np.where(layout.plain, 1.0 if whole else layout.parts, counted.asked[row])

    def host_of(self, row: int, gpus: int) -> tuple[float, float]:
        """CPU (milli) and memory (MiB) for this many GPUs, shares or instances of a gang."""
        work = self.snapshot.workloads
        part = gpus / max(int(work.gpus_per_member[row]), 1)
        return float(work.cpu_milli[row]) * part, float(work.memory_mib[row]) * part

    def _leaves(self, row: int, layout: Layout) -> Bools:
        """Entries of a layout that are leaving already. Shape [entries]."""
        if self._leaving is None:
            held = self.snapshot.placements
            self._leaving = {}
            for entry in np.flatnonzero(held.leaving).tolist():
                place = (int(held.gpu[entry]), int(held.instance[entry]))
                self._leaving.setdefault(int(held.workload[entry]), set()).add(place)
        given_up = self._leaving.get(row, set())
        return np.array([place in given_up for place in layout.places()], np.bool_)


def build_quota(
    snapshot: ClusterSnapshot,
    policy: Policy,
    whatif: WhatIf,
    lost_gpu_s: F64,
    weight: F64 | None = None,
    noted: Mapping[Condition, float] | None = None,
    now_s: float = 0.0,
    starting: Collection[int] = (),
) -> Quota:
    """Books and rules of a tick; `weight` [queues] as corrected by past use. `noted`: conditions of the last tick.
    `starting`: rows with an effect under way.
    """
    counted = counting(snapshot, policy)
    capacity = capacity_by_kind(snapshot, whatif.gpu_usable, counted)
    sheltered = sheltered_classes(policy.protection)
    protected = protected_mask(snapshot.workloads, sheltered)
    always = policy.tenancy.shelter_always
    ledger = build_ledger(snapshot, capacity, weight, shelter_always=always, protected=protected, counted=counted)
    starts = follow_starts(snapshot, protected, noted or {}, now_s, starting)
    lent, kept = lent_rows(snapshot, ledger, protected, starts, counted), dict[int, float]()
    if starts.begins:
        above, lent = lent, lent_rows(snapshot, ledger, protected, replace(starts, new=frozenset()), counted)
        kept = {row: gpus[ALL] for row, gpus in above.items() if row not in lent}
    starts = starts.judged(snapshot.workloads, () if starts.begins else lent, now_s)
    for row, gpus in lent.items():
        ledger.lend(int(snapshot.workloads.queue[row]), gpus)
    rules = RULES[policy.rules]
    if policy.rules == RuleSetName.COHORT_FAIR:
        rules = replace(rules, across=partial(cohort_fair.targets, rules=policy.tenancy.fair_preemption_rules))
    return Quota(
        snapshot,
        ledger,
        rules,
        lost_gpu_s,
        sheltered=sheltered,
        protected=protected,
        lent=frozenset(lent),
        late=frozenset(starts.late_s.keys() - lent),
        kept=kept,
        starts=starts,
        counted=counted,
    )


def sheltered_classes(rules: Protection) -> frozenset[int]:
    """Codes of the SLO classes protected by the policy."""
    return frozenset(SLO_CLASS_NAMES.index(name) for name in rules.classes)
