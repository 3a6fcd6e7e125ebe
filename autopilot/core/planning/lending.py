"""Time sharing between queues: work inside a guarantee, queues that take back at once, and queues owed since a time.

Each queue states a rule for its guarantee (core/quota/guarantees.py). Queues ordered by index share time: waiting work
may pause running work of another queue with a lower index (sharing_time/time_sharing.py), as far as the guarantees
allow.

- `strict`: its running work inside the guarantee, the best index first, does not pause for other queues, and work that
  waits inside the guarantee takes back at once (preemption/reclaim_borrowed.py).
- `elastic`: the index of its work inside the guarantee, waiting or running, counts `elastic_factor` times. Once work
  that fits under the guarantee has waited without a break for `elastic_within_s`, the queue is kept like a strict one
  for `elastic_hold_s`. docs/decisions/0012-sharing-time.md derives the bound.
- `none`: neither.

The index rewards short jobs, and a tenant can make its jobs short. So past use bounds it. A queue is overused while its
part of the past use is above its part of the fair shares, and it used most of its part of the cluster. Work waiting for
the part of another queue comes before the work of overused queues, and takes back from them down to their fair share.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from autopilot.core.model.codes import ConditionKind
from autopilot.core.model.memory.plan import Condition
from autopilot.core.model.policy import GuaranteeRule
from autopilot.core.model.snapshot import F64, I32, Bools, QueueOrder, State
from autopilot.core.planning.ordering.job_order import aged_index
from autopilot.core.quota.ledger import ALL, EPSILON, QuotaLedger, claim_kinds, fair_shares
from autopilot.core.quota.past_use import fades_in_s

if TYPE_CHECKING:
    from autopilot.core.planning.context import Context


OVERUSED_WEIGHT = 1e-3
"""Factor of the index of overused work beside that of a gang that waits for its part. So the gang may run up to a
thousand times as long.
"""

USED_RATIO = 0.75
"""A queue that used less than this of its part of the cluster is not overused, whatever the others used.

A queue that asks for its part without a break gets more than that, so reaching it is no gain."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Gangs in competition for the guarantees of their queues. The arrays and `kinds` are [gangs]."""

    rows: I32
    queue: I32
    gpus: F64
    kinds: list[tuple[int, ...]]
    rank: F64  # the higher the sooner

    def of(self, queues: Collection[int], count: int) -> Bools:
        """True for gangs of these queues, of `count` in all. Shape [gangs]."""
        asked = np.zeros(count, np.bool_)
        asked[list(queues)] = True
        return np.asarray(asked[self.queue])

    def joined(self, other: Parts) -> Parts:
        """Both as one, these first."""
        return Parts(
            np.concatenate([self.rows, other.rows]),
            np.concatenate([self.queue, other.queue]),
            np.concatenate([self.gpus, other.gpus]),
            [*self.kinds, *other.kinds],
            np.concatenate([self.rank, other.rank]),
        )


class Overuse(NamedTuple):
    """The excess of a queue over its part: its parts of the past use and of the fair shares, of the compared queues."""

    used_ratio: float
    fair_ratio: float
    part_ratio: float  # past use over the queue's own part of the cluster in that time; inf: no such time is known
    since_s: float
    left_s: float  # how long that lasts if all go on to hold what they hold now; inf: it does not end by that


@dataclass(frozen=True, slots=True)
class Lending:
    """Time sharing of queues in one tick. Without it, every queue takes back and none shares."""

    shares: tuple[bool, ...] = ()  # queues that share time, [queues]; empty: none does
    rules: tuple[GuaranteeRule, ...] = ()  # [queues]
    factor: float = 1.0
    inside: frozenset[int] = frozenset()  # rows, waiting or running, whose index counts `factor` times
    overused: Mapping[int, Overuse] = field(default_factory=dict)  # by queue
    behind: frozenset[int] = frozenset()  # running rows of these queues that pause for entitled gangs
    entitled: frozenset[int] = frozenset()  # waiting rows of other queues that fit in the parts of their queues
    kept: frozenset[int] = frozenset()  # running rows that do not pause for other queues
    apart: frozenset[int] = frozenset()  # running rows that do not pause for overused queues
    owed_since_s: Mapping[int, float] = field(default_factory=dict)  # by elastic queue
    held_until_s: Mapping[int, float] = field(default_factory=dict)  # elastic queues that are kept like strict ones

    def sharing(self, queue: int) -> bool:
        """True if the queue shares time with others."""
        return bool(self.shares) and self.shares[queue]

    def takes_back(self, queue: int) -> bool:
        """True if work waiting inside the guarantee of the queue takes back at once."""
        if not self.shares:
            return True
        return self.rules[queue] is GuaranteeRule.STRICT or queue in self.held_until_s

    def weight(self, row: int) -> float:
        """Factor on the index of a gang."""
        return self.factor if row in self.inside else 1.0


def lend(ctx: Context) -> Lending:
    """Time sharing of queues in this tick; the plan remembers the debt to elastic queues."""
    tenancy, queues = ctx.policy.tenancy, ctx.observation.snapshot.queues
    if not tenancy.time_sharing or len(queues.id) <= 2:  # the root and one queue: there is no other queue to share with
        return Lending()
    rules = ctx.guarantee_rules
    shares = tuple((queues.order == QueueOrder.INDEX).tolist())
    waiting, running = _waiting(ctx), _running(ctx)
    elastic = {queue for queue, rule in enumerate(rules) if rule is GuaranteeRule.ELASTIC and shares[queue]}
    owed_since_s, held_until_s = _owed(ctx, elastic, waiting)
    overused = _overused(ctx, shares)
    if not len(waiting.rows):  # there is nothing that others could pause for
        return Lending(
            shares,
            rules,
            tenancy.elastic_factor,
            overused=overused,
            owed_since_s=owed_since_s,
            held_until_s=held_until_s,
        )
    ledger = ctx.quota.ledger
    firm = {queue for queue, rule in enumerate(rules) if rule is GuaranteeRule.STRICT} | held_until_s.keys()
    every = running.joined(waiting)
    inside = _within(ledger, ledger.guarantee, every, elastic, running)
    kept = _within(ledger, ledger.guarantee, running, firm, running)
    behind, entitled, apart = _behind(ctx, overused, shares, every, running)
    return Lending(
        shares,
        rules,
        tenancy.elastic_factor,
        inside,
        overused,
        behind - inside - kept,
        entitled,
        kept,
        apart,
        owed_since_s,
        held_until_s,
    )


def _behind(
    ctx: Context, overused: Collection[int], shares: Sequence[bool], every: Parts, running: Parts
) -> tuple[frozenset[int], frozenset[int], frozenset[int]]:
    """Rows `behind`, `entitled` and `apart` of `Lending`.

    While no other queue waits for its part, no running work is behind.
    """
    none, ledger = frozenset[int](), ctx.quota.ledger
    others = {queue for queue, shared in enumerate(shares) if shared and queue not in overused}
    if not overused or not others:
        return none, none, none
    part = [_parts(ctx), *([inf] * len(shares) for _ in ledger.use[1:])]
    own = _within(ledger, part, every, others, running, beyond=True)
    apart = own.intersection(running.rows.tolist())
    entitled = own - apart
    if not entitled:
        return none, none, apart
    behind = frozenset(running.rows[running.of(overused, len(shares))].tolist())
    # two queues that hold most of a cluster would take turns: all that one lends pauses for the other, and back
    return behind - _within(ledger, ledger.fair, running, overused, running), entitled, apart


def _overused(ctx: Context, shares: tuple[bool, ...]) -> dict[int, Overuse]:
    """Queues that share time and used more than their part, among those with running or waiting work.

    Past use fades by half in `tenancy.usage_half_life_s`; with 0 there is none.
    """
    ledger, memory, names = ctx.quota.ledger, ctx.memory, ctx.observation.snapshot.queues.id.tolist()
    half_life_s = ctx.policy.tenancy.usage_half_life_s
    fair = {
        queue: ledger.fair[ALL][queue]
        for queue, shared in enumerate(shares)
        if shared and not ledger.children[queue] and ledger.fair[ALL][queue] > EPSILON
    }
    used, due, held, part = (
        {queue: known.get(str(names[queue]), 0.0) for queue in fair}
        for known in (
            memory.use.standing_use_gpu_s,
            memory.use.standing_part_gpu_s,
            memory.use.held_gpus,
            memory.use.part_gpus,
        )
    )
    in_all, fair_in_all, held_in_all = sum(used.values()), max(sum(fair.values()), EPSILON), sum(held.values())
    found = {}
    for queue, gpus in fair.items():
        ratio, condition = gpus / fair_in_all, Condition(ConditionKind.OVERUSED, str(names[queue]))
        above = (used[queue] - ratio * in_all, held[queue] - ratio * held_in_all)
        beyond = (used[queue] - USED_RATIO * due[queue], held[queue] - USED_RATIO * part[queue])
        if above[0] > 0 and beyond[0] > 0:
            found[queue] = Overuse(
                used[queue] / in_all,
                ratio,
                used[queue] / due[queue] if due[queue] else inf,
                ctx.plan.since_s(condition, ctx.noted_since_s.get(condition, ctx.now_s)),
                min(fades_in_s(*above, half_life_s), fades_in_s(*beyond, half_life_s)),
            )
    return found


def parts_gpus(ctx: Context) -> dict[str, float]:
    """The part of the cluster of each queue with time sharing (GPUs), by name: its fair share if all asked for all.

    Past use does not correct it.
    """
    ledger, queues, shares = ctx.quota.ledger, ctx.observation.snapshot.queues, ctx.lending.shares
    if not shares or not ctx.policy.tenancy.usage_half_life_s:
        return {}
    part = _parts(ctx)
    return {
        str(queues.id[queue]): part[queue]
        for queue, shared in enumerate(shares)
        if shared and not ledger.children[queue]
    }


class _Parts(NamedTuple):
    """GPUs of each queue if all asked for everything. Shape [queues]."""

    gpus: list[float]


def _parts(ctx: Context) -> list[float]:
    """The parts of this tick, computed at most once. Shape [queues]."""

    def computed() -> _Parts:
        ledger, queues = ctx.quota.ledger, ctx.observation.snapshot.queues
        guarantee, limit = np.array(ledger.guarantee[ALL]), np.array(ledger.limit[ALL])
        asked = np.full(len(limit), inf)
        return _Parts(fair_shares(queues.parent, guarantee, queues.weight, limit, asked, ledger.capacity[ALL]).tolist())

    return ctx.once(_Parts, computed).gpus


def _waiting(ctx: Context) -> Parts:
    """Waiting gangs that may start, at their least width."""
    work, may = ctx.observation.snapshot.workloads, ctx.pending_table.may_ask & ~ctx.ahead
    at = np.flatnonzero(may)
    rows = ctx.pending[at]
    gpus = np.array(ctx.pending_table.least_gpus, float)[at] * ctx.quota.parts(rows)
    kinds = _kinds(ctx.quota.ledger, work.gpu_models[rows].tolist())
    return Parts(rows, work.queue[rows], gpus, kinds, ctx.index[at])


def _kinds(ledger: QuotaLedger, models: list[int]) -> list[tuple[int, ...]]:
    known = {each: claim_kinds(ledger.kind_of_model, each) for each in set(models)}
    return [known[each] for each in models]


def _running(ctx: Context) -> Parts:
    """Running gangs. Protected ones rank first; the others, for calm, count `index_ratio` times."""
    claims, work = ctx.quota.running(), ctx.observation.snapshot.workloads
    rows = np.array([claim.row for claim in claims], np.int32)
    index = aged_index(ctx.outlook.index_per_s[rows], work.gpus[rows], np.zeros(len(rows)), ctx.policy.order)
    may = np.array([claim.preemptible or claim.row in ctx.quota.lent for claim in claims], np.bool_)
    gpus = np.array([claim.gpus for claim in claims], np.float64)
    rank = np.where(may, index * ctx.policy.preemption.index_ratio, inf)
    return Parts(rows, work.queue[rows], gpus, [claim.kinds for claim in claims], rank)


def _within(
    ledger: QuotaLedger,
    due: Sequence[Sequence[float]],
    parts: Parts,
    queues: Collection[int],
    running: Parts,
    *,
    beyond: bool = False,
) -> frozenset[int]:
    """Rows of gangs of these queues that fit together under `due` on their path, the highest rank first.

    `due` [kinds][queues] GPUs: guarantees, fair shares or parts. `beyond`: the last gang may reach beyond it.
    """
    mine = np.flatnonzero(parts.of(queues, len(ledger.paths)))
    if not len(mine):
        return frozenset()
    left = [[owed - used for owed, used in zip(*each, strict=True)] for each in zip(due, ledger.use, strict=True)]
    for queue, kinds, gpus in zip(running.queue.tolist(), running.kinds, running.gpus.tolist(), strict=True):
        if queue in queues:  # they compete for it anew
            _book(ledger, left, queue, kinds, gpus)
    open_gpus = {queue: min(left[0][each] for each in ledger.paths[queue]) for queue in queues if ledger.paths[queue]}
    order = mine[np.lexsort((parts.rows[mine], -parts.rank[mine]))]
    columns = (column[order].tolist() for column in (parts.rows, parts.queue, parts.gpus))
    least_gpus, found = 2 * EPSILON if beyond else float(parts.gpus[mine].min()), []  # room that a gang needs at least
    for at, row, queue, gpus in zip(order.tolist(), *columns, strict=True):
        needed = least_gpus if beyond else gpus
        if needed > open_gpus.get(queue, 0.0) + EPSILON:  # an upper bound: siblings may have taken more
            continue
        kinds = parts.kinds[at]
        if all(needed <= left[kind][each] + EPSILON for kind in kinds for each in ledger.paths[queue]):
            _book(ledger, left, queue, kinds, -gpus)
            open_gpus[queue] -= gpus
            found.append(row)
            if least_gpus > max(open_gpus.values()) + EPSILON:
                break
    return frozenset(found)


def _book(ledger: QuotaLedger, left: list[list[float]], queue: int, kinds: tuple[int, ...], gpus: float) -> None:
    for kind in kinds:
        for each in ledger.paths[queue]:
            left[kind][each] += gpus


def _owed(ctx: Context, elastic: set[int], waiting: Parts) -> tuple[dict[int, float], dict[int, float]]:
    """Start of the unbroken debt to each elastic queue, and the end of its time under the strict rule."""
    tenancy, now_s, names = ctx.policy.tenancy, ctx.now_s, ctx.observation.snapshot.queues.id
    ledger = ctx.quota.ledger
    short = {
        queue
        for queue, gpus, kinds in set(zip(waiting.queue.tolist(), waiting.gpus.tolist(), waiting.kinds, strict=True))
        if queue in elastic and ledger.paths[queue] and ledger.within_guarantee(queue, gpus, kinds)
    }
    starting = _starting(ctx)
    owed_since_s: dict[int, float] = {}
    held_until_s: dict[int, float] = {}
    for queue in sorted(elastic):
        owed, taking = (Condition(kind, str(names[queue])) for kind in (ConditionKind.OWED, ConditionKind.TAKES_BACK))
        held_s = ctx.noted_since_s.get(taking, -inf)
        if queue in short or (queue in starting and owed in ctx.noted_since_s):
            owed_since_s[queue] = ctx.plan.since_s(owed, ctx.noted_since_s.get(owed, now_s))
            due_s = owed_since_s[queue] + tenancy.elastic_within_s
            if now_s >= max(due_s, held_s + tenancy.elastic_hold_s):
                held_s = now_s
            ctx.plan.wake_at(max(due_s, held_s + tenancy.elastic_hold_s))
        if now_s < held_s + tenancy.elastic_hold_s:
            held_until_s[queue] = ctx.plan.since_s(taking, held_s) + tenancy.elastic_hold_s
            ctx.plan.wake_at(held_until_s[queue])
    return owed_since_s, held_until_s


def _starting(ctx: Context) -> set[int]:
    """Queues of waiting gangs with a start under way: the queue stays owed until the start has happened."""
    work, rows = ctx.observation.snapshot.workloads, sorted(ctx.busy)
    return {int(work.queue[row]) for row in rows if work.state[row] == State.PENDING}
