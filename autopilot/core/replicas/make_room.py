"""Make room for replicas of services without a place: foreseen ones, and those of a service that misses its objective.

Every source of room (core/replicas/room_sources.py) is asked, and the cheapest answer by expected cost is proposed: the
loss of stopping the victims, the cost of a late start, and for a foreseen replica the cost of the case in which the
load does not come. Idle work is taken as the ladder and the mode of `suspend_idle` allow. It does not wait for GPUs
again; the expected cost of its owner's return counts instead. A forecast that abstains or is not trusted makes no room.
The room goes back after the floor of the service falls, and after `room.dwell_s` at the earliest. A replica with an
instance in the making by `regeometry` within `room.delay_s` is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from autopilot.core.effects import pipeline
from autopilot.core.effects.action import Action
from autopilot.core.effects.admit import AdmitDraft
from autopilot.core.effects.draft import Case, Eviction, Submit
from autopilot.core.effects.pipeline import PipelineDraft
from autopilot.core.idle.idle_victims import idle_facts, returns_gpu_s
from autopilot.core.model.objectives import breached, of_pools
from autopilot.core.model.policy import Mode
from autopilot.core.model.records import Code, Evidence
from autopilot.core.model.stops import StopReason
from autopilot.core.model.units import format_duration, format_gpu_s
from autopilot.core.placement.shapes import Shape
from autopilot.core.planning.context import Context
from autopilot.core.planning.foreseen_replicas import chances_needed
from autopilot.core.planning.foresight import Ahead
from autopilot.core.planning.search_budget import within_steps
from autopilot.core.replicas.room_sources import SOURCES, Source
from autopilot.core.search.displacing import displacing_timers_s
from autopilot.core.search.scenario import Scenario, cases_without_victims, pipelined_draft

NAME = "make_room"
_FORESEEN = "start on {where}{after}, before the load that is foreseen (needed with probability {chance_needed}); "
_BREACH = "start on {where}{after}, because its service misses its objective; "
_ROOM = "room from {source}, at an expected cost of {expected_cost}: {victims}"
_IDLE = "; {owners} had a notice or a mark for {since} or longer, and can resume it at any time"
_OTHERS = "; other sources: {others}"


def _on_idle(reason: str, words: str) -> Case:
    """A case with idle victims."""
    return Case(
        NAME,
        pipeline.KIND,
        reason,
        words=words + _ROOM + _IDLE + _OTHERS,
        takes=StopReason.IDLE,
        exempt=frozenset({Code.NOT_PREEMPTIBLE}),  # the ladder leads only to what may go
        by_telemetry=True,
    )


FORESEEN = Case(NAME, pipeline.KIND, "foreseen", words=_FORESEEN + _ROOM + _OTHERS, takes=StopReason.PREEMPT)
BREACH = Case(NAME, pipeline.KIND, "breach", words=_BREACH + _ROOM + _OTHERS, takes=StopReason.PREEMPT)
FORESEEN_ON_IDLE = _on_idle("foreseen_on_idle", _FORESEEN)
BREACH_ON_IDLE = _on_idle("breach_on_idle", _BREACH)


@dataclass(frozen=True, slots=True)
class _Wish:
    """A waiting replica: the reason to make room for it, and its worth."""

    at: int
    case: Case
    chance: float  # that the load needs it
    lead_s: float  # from its start to serving
    ahead: Ahead | None

    @property
    def case_on_idle(self) -> Case:
        """The same on the GPUs of idle work."""
        return FORESEEN_ON_IDLE if self.case is FORESEEN else BREACH_ON_IDLE


@dataclass(frozen=True, slots=True)
class _Offer:
    """The offer of one source, and its expected cost in GPU-seconds."""

    source: Source
    found: Scenario
    delay_s: float
    cost_gpu_s: float
    wrong_gpu_s: float  # the part of it for the case that the load does not come
    returns_gpu_s: float  # the part of it for owners of idle work who come back


def propose(ctx: Context, submit: Submit) -> None:
    """One start for each waiting replica that is worth the room, in the order of service."""
    refused: set[int] = set()
    work = ctx.observation.snapshot.workloads
    wishes = {wish.at: wish for wish in _wishes(ctx)}
    for at in within_steps(ctx, list(wishes)):
        service = int(work.service[ctx.pending[at]])
        if service in refused or ctx.may_start(at, ctx.pending_table.least_gpus[at]) is not None:
            continue
        offer, others = _cheapest(ctx, wishes[at])
        stands = offer is not None and ctx.plan.decide(at, submit(_draft(ctx, wishes[at], offer, others)))
        if not stands:
            refused.add(service)  # its other replicas are alike, and worth less


def _wishes(ctx: Context) -> Iterator[_Wish]:
    """Waiting replicas with the chance of a need for each: those of services in breach, then the foreseen ones."""
    work, services = ctx.observation.snapshot.workloads, ctx.observation.snapshot.services
    left = ctx.plan.undecided()
    left = left[ctx.pending_table.may_ask[left] & (work.service[ctx.pending[left]] >= 0)]
    if not len(left):
        return
    lead, chances = {each.row: each for each in ctx.foreseen}, chances_needed(ctx, left.tolist())
    fresh = services.age_s <= ctx.policy.freshness.telemetry_s
    breach = of_pools(services, fresh & breached(services))
    for at in left.tolist():
        if ctx.plan.served.get(at, inf) <= ctx.policy.room.delay_s:
            continue  # an instance for it is being made, and is there in time
        service = int(work.service[ctx.pending[at]])
        if not ctx.ahead[at]:
            if breach[service]:
                ahead = lead.get(service)
                lead_s = ahead.lead_s if ahead is not None else ctx.policy.scale_ahead.lead_s
                yield _Wish(at, BREACH, 1.0, lead_s, None)
        elif at in chances:
            foreseen, chance = chances[at]
            yield _Wish(at, FORESEEN, chance, foreseen.lead_s, foreseen)


def _cheapest(ctx: Context, wish: _Wish) -> tuple[_Offer | None, str]:
    """The cheapest offer of all sources in time, of equal ones the first; and the answers of the others."""
    offers: list[_Offer] = []
    others: dict[str, str] = {}
    for source in SOURCES:
        found = source.find(ctx, wish.at, ctx.policy.modes.make_room)
        if isinstance(found, str):
            others |= {source.words: found} if found else {}
            continue
        offer = _priced(ctx, wish, source, found)
        if offer.delay_s <= ctx.policy.room.delay_s:
            offers.append(offer)
            others[source.words] = format_gpu_s(offer.cost_gpu_s)
        else:
            others[source.words] = f"too late, in {format_duration(offer.delay_s)}"
        if not found.evictions:
            break  # nothing is cheaper than what costs nothing
    best = min(offers, key=lambda each: each.cost_gpu_s, default=None)
    return best, "; ".join(
        f"{words}: {why}" for words, why in others.items() if best is None or words != best.source.words
    )


def _priced(ctx: Context, wish: _Wish, source: Source, found: Scenario) -> _Offer:
    """Busy victims wait for GPUs again. Idle ones do not; their owners may come back while they are away."""
    rules, weight = ctx.policy.room, ctx.policy.preemption.waiting_weight
    gpus = ctx.priced_gpus(found.fit.layout)
    rows = [give.row for give in found.evictions]
    write_s = np.nan_to_num(ctx.observation.snapshot.workloads.checkpoint_write_s[rows])
    delay_s = float(write_s.max(initial=0.0))
    taken = sum(ctx.gpus_of(ctx.whatif.layout_of(give.row)) for give in found.evictions if give.how != "move")
    unused, busy = (min(taken, gpus), 0.0) if source.idle else (0.0, taken)
    back_gpu_s = returns_gpu_s(ctx, rows, wish.lead_s + rules.dwell_s) if source.idle else 0.0
    wrong_gpu_s = (1.0 - wish.chance) * (gpus - unused + weight * busy) * rules.dwell_s if found.evictions else 0.0
    late_gpu_s = wish.chance * gpus * delay_s * rules.late_weight
    again_gpu_s = wish.chance * weight * busy * (delay_s + wish.lead_s)
    stops_gpu_s = sum(_stop_gpu_s(ctx, give) for give in found.evictions)
    cost_gpu_s = stops_gpu_s + late_gpu_s + wrong_gpu_s + again_gpu_s + back_gpu_s
    return _Offer(source, found, delay_s, cost_gpu_s, wrong_gpu_s, back_gpu_s)


def _stop_gpu_s(ctx: Context, give: Eviction) -> float:
    """Price of stopping a victim. Losses count a MIG instance as a GPU; here it is its part of one."""
    held = ctx.whatif.layout_of(give.row)
    if (held.instance < 0).all():
        return give.price_gpu_s
    return give.price_gpu_s * ctx.gpus_of(held) / max(held.gpus, 1e-9)


def _draft(ctx: Context, wish: _Wish, offer: _Offer, others: str) -> AdmitDraft | PipelineDraft:
    """The start as a draft, with the price of each part."""
    gpus = ctx.priced_gpus(offer.found.fit.layout)
    worth_gpu_s = wish.chance * gpus * (wish.lead_s + offer.delay_s) * ctx.policy.room.late_weight
    case = wish.case_on_idle if offer.source.idle else wish.case
    draft = pipelined_draft(ctx, case, wish.at, offer.found, worth_gpu_s, net_of_waiting=True)
    cost_gpu_s = offer.cost_gpu_s if offer.found.evictions else 0.0
    return replace(
        draft,
        cost_gpu_s=cost_gpu_s,
        evidence=(
            *draft.evidence,
            *_profile(ctx, offer.found.shape),
            Evidence("source", offer.source.words),
            Evidence("expected_cost", round(cost_gpu_s, 3), "GPU-s"),
            Evidence("others", others or "none was looked at"),
            Evidence("chance_needed", round(wish.chance, 3)),
            Evidence("delay", round(offer.delay_s, 3), "s"),
            Evidence("lead_time", round(wish.lead_s, 3), "s"),
            Evidence("if_not_needed", round(offer.wrong_gpu_s, 3), "GPU-s"),
            *(_idle_facts(ctx, offer) if offer.source.idle else ()),
        ),
        ahead=wish.ahead,
    )


def _idle_facts(ctx: Context, offer: _Offer) -> tuple[Evidence, ...]:
    """Known facts of the victims and their owners."""
    rows = [give.row for give in offer.found.evictions]
    return (Evidence("owner_returns", round(offer.returns_gpu_s, 3), "GPU-s"), *idle_facts(ctx, rows))


def _profile(ctx: Context, shape: Shape) -> tuple[Evidence, ...]:
    """The MIG profile of a start on an instance."""
    return () if shape.profile < 0 else (Evidence("profile", ctx.observation.snapshot.names.profiles[shape.profile]),)


def timers(ctx: Context) -> list[float]:
    """While a replica waits for room: times from which running work may be displaced for it."""
    if ctx.policy.modes.make_room == Mode.OFF or next(_wishes(ctx), None) is None:
        return []
    again_s = [entry.at_s + ctx.policy.room.reversal_s for entry in ctx.memory.budget.disrupted]
    return [*displacing_timers_s(ctx, on=True), *again_s]


ACTION = Action(
    NAME,
    "make room for replicas that are foreseen or late",
    propose,
    (FORESEEN, BREACH, FORESEEN_ON_IDLE, BREACH_ON_IDLE, *cases_without_victims(NAME)),
    timers=timers,
)
