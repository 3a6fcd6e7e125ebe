"""Reclaim GPUs of queues above their share, for a queue below its own share.

The rule set names the queues and the victim order. The cheapest sufficient set is taken: elastic gangs shrink first,
and a victim with a fit elsewhere is moved. Inside its guarantee a queue reclaims by contract: neither weighed nor
budgeted. Above it the reclaim is weighed like every disruption. If no work may be reclaimed, moves alone are tried. If
owed GPUs are scattered, others move together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from autopilot.core.effects import pipeline
from autopilot.core.effects.action import Action
from autopilot.core.effects.draft import Case, Submit
from autopilot.core.model.policy import Mode
from autopilot.core.model.records import Code
from autopilot.core.model.snapshot import Gate
from autopilot.core.model.stops import StopReason
from autopilot.core.placement.shapes import Miss
from autopilot.core.planning.context import Context
from autopilot.core.planning.plan_state import CODES
from autopilot.core.planning.search_budget import within_steps
from autopilot.core.preemption.defragment import SHAPES
from autopilot.core.quota.ledger import QuotaLedger
from autopilot.core.quota.rules.base import Claim, Refusal, Room, Running, Takes, Target
from autopilot.core.search.compaction import compact
from autopilot.core.search.displacing import displacing_timers_s
from autopilot.core.search.moves import moves_only
from autopilot.core.search.scenario import (
    STEPS_A_QUEUE,
    Scenario,
    cases_without_victims,
    find_scenario,
    pipelined_draft,
    scheduling_signatures,
    worth_gpu_s,
)

NAME = "reclaim_borrowed"
GUARANTEE = Case(
    NAME,
    pipeline.KIND,
    "guarantee",
    words="start on {where}{after} by preempting borrowers of its guarantee: {victims}",
    takes=StopReason.RECLAIM,
    contract="the queue of {workload} stays within its guarantee",
)
SHARE = Case(
    NAME,
    pipeline.KIND,
    "share",
    words="start on {where}{after} by preempting work above its fair share: {victims}",
)
TOGETHER = Case(
    NAME,
    pipeline.KIND,
    "together",
    words="start on {where}{after} by moving or preempting others, to end a guarantee shortfall: {victims}",
    takes=StopReason.RECLAIM,
    contract="the queue of {workload} stays within its guarantee",
)
MOVES = Case(
    NAME,
    pipeline.KIND,
    "moves",
    words="start on {where}{after} by moving others: {victims}",
)


OWED = 40
"""Steps of a search for what is owed by contract, over those of other searches: it must end in time."""


def propose(ctx: Context, submit: Submit) -> None:
    """Reclaims across queues, first those by contract; each in the order of service of the gangs still waiting."""
    if ctx.quota.rules.across is None or ctx.quota.rules.at_once or len(ctx.quota.snapshot.queues.id) <= 2:
        return
    refused: dict[int, Miss] = {}
    keys = scheduling_signatures(ctx)
    owed, rest = _by_contract_first(ctx)
    for at in chain(within_steps(ctx, owed, OWED), within_steps(ctx, rest)):
        miss = ctx.too_early(at) or refused.get(keys[at])
        if miss is None:
            miss = _try(ctx, at, keys[at], submit)
            if miss is None:
                refused.clear()  # each victim, past or planned, changes the answer for others
                keys = scheduling_signatures(ctx)
            else:
                refused[keys[at]] = miss
        ctx.answer(at, miss)


def _by_contract_first(ctx: Context) -> tuple[list[int], list[int]]:
    """Waiting gangs in two lists: those that reclaim by contract, and the others."""
    waiting = ctx.waiting()
    if not ctx.quota.ledger.guarantee_binds:
        return [], waiting
    signatures, answers = ctx.pending_table.signature, dict[int, bool]()
    for at in waiting:
        if signatures[at] not in answers:
            answers[signatures[at]] = ctx.owed(at)
    return ([at for at in waiting if answers[signatures[at]]], [at for at in waiting if not answers[signatures[at]]])


def take_at_once(ctx: Context, at: int, submit: Submit) -> bool:
    """Reclaim for one gang at its turn, under rule sets that preempt at once. True once it was decided."""
    if ctx.quota.snapshot.workloads.gate[ctx.pending[at]] != Gate.OPEN:
        return False
    miss = ctx.too_early(at) or _try(ctx, at, None, submit)
    if CODES[ctx.plan.code[at]] not in SHAPES:  # moves may end that, and `defragment` looks for them later in this tick
        ctx.answer(at, miss)
    return miss is None


def keep_quota(ctx: Context, at: int, held_for: dict[int, tuple[int, float]]) -> None:
    """Hold idle quota for the first waiting gang of a queue, as its rule set says. The hold binds other queues only."""
    keeps = ctx.quota.rules.keeps
    if keeps is None:
        return
    claim = ctx.quota.claim(int(ctx.pending[at]), ctx.pending_table.least_gpus[at])
    gpus = 0.0 if ctx.pending_table.early[at] and _could_take(ctx, at) else keeps(ctx.quota.ledger, claim)
    if gpus > 0:
        ctx.quota.ledger.add(claim.queue, gpus, claim.kinds, preemptible=True)
    held_for[claim.queue] = (at, gpus)


def release_quota(ctx: Context, at: int, held_for: Mapping[int, tuple[int, float]]) -> int | None:
    """Release the quota held in the queue of the gang at `at`; the position of the gang it was held for."""
    held = held_for.get(ctx.pending_table.queue[at])
    if held is None or held[1] <= 0:
        return None
    claim = ctx.quota.claim(int(ctx.pending[held[0]]), ctx.pending_table.least_gpus[held[0]])
    ctx.quota.ledger.add(claim.queue, -held[1], claim.kinds, preemptible=True)
    return held[0]


def _could_take(ctx: Context, at: int) -> bool:
    """True if the gang at `at` would find victims after its preemption delay."""
    across = ctx.quota.rules.across
    return across is not None and isinstance(find_scenario(ctx, at, across, contract=ctx.owed(at)), Scenario)


def _try(ctx: Context, at: int, key: int | None, submit: Submit) -> Miss | None:
    """Propose the reclaim for one gang, or note the reason against it.

    `key`: its scheduling signature, to look for moves; None: do not.
    """
    across = ctx.quota.rules.across
    contract = ctx.owed(at)
    found: Scenario | Refusal | Miss = Miss(Code.POLICY, 0.0, 0.0)
    if across is not None:
        apart = not contract and ctx.lending.sharing(ctx.pending_table.queue[at])
        if apart and all(map(ctx.lending.sharing, ctx.quota.running().queues)):
            found = _none_apart(ctx, at)
        else:
            found = find_scenario(ctx, at, _not_sharing(ctx, across) if apart else across, contract=contract)
    if not isinstance(found, Scenario) and key is not None:
        moved = moves_only(ctx, at, key, contract=contract)
        found = moved if moved is not None else found
    packed = None
    if not isinstance(found, Scenario) and key is not None and across is not None and contract:
        packed = compact(ctx, at, across)
        found = packed if packed is not None else found
    if isinstance(found, Refusal):
        return Miss(found.code, found.value, found.threshold)
    if isinstance(found, Miss):
        return found
    owed = contract and bool(found.evictions)
    worth = 0.0 if owed else worth_gpu_s(ctx, at, found)  # a contract is not weighed
    stops = any(give.how != "move" for give in found.evictions)
    case = (TOGETHER if packed is not None else GUARANTEE) if owed else SHARE if stops else MOVES
    ctx.plan.decide(at, submit(pipelined_draft(ctx, case, at, found, worth)))
    return None


def _none_apart(ctx: Context, at: int) -> Refusal:
    """The answer of the search under `_not_sharing` if all running work shares time, and its steps."""
    ctx.plan.spend(len(ctx.quota.snapshot.queues.id) * STEPS_A_QUEUE)
    return Refusal(Code.CAPACITY, 0.0, ctx.quota.claim(int(ctx.pending[at]), ctx.pending_table.least_gpus[at]).gpus)


def _not_sharing(ctx: Context, across: Takes) -> Takes:
    """The same without victims in queues with time sharing: there the index decides, not the share."""

    def takes(ledger: QuotaLedger, claim: Claim, running: Sequence[Claim], room: Room) -> tuple[Target, ...] | Refusal:
        others = Running(each for each in running if not ctx.lending.sharing(each.queue))
        return across(ledger, claim, others, room) if others else Refusal(Code.CAPACITY, 0.0, claim.gpus)

    return takes


def timers(ctx: Context) -> list[float]:
    """Times at which running work becomes preemptible."""
    return displacing_timers_s(ctx, on=ctx.policy.modes.reclaim_borrowed != Mode.OFF)


ACTION = Action(
    NAME,
    "take back what a queue below its share lacks",
    propose,
    (GUARANTEE, TOGETHER, SHARE, MOVES, *cases_without_victims(NAME)),
    displaces=True,
    timers=timers,
)
