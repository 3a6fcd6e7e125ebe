"""What earlier decisions set in motion, on the books of this tick: open effects, landings, and what of them leaves now.

Everything under way is put on the what-if first, so that nothing is handed out twice. Then each effect that would
leave now is checked as a new one (core/decision/sending.py). What is ended by that leaves the books, and the rest is
put on them anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autopilot.core.decision.sending import ENDS, Sender, not_sent
from autopilot.core.guards.base import Check
from autopilot.core.guards.budget import takes_gpus
from autopilot.core.model.memory import ControllerMemory, Disruption, InFlight, Landing, Part
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Code, Evidence, Instruction, Observation
from autopilot.core.placement.whatif import WhatIf
from autopilot.core.planning.context import Context, build_context
from autopilot.core.tracking.lifecycle import sent_again, step_to
from autopilot.core.tracking.pipelined import Landed, Lookup, fits, follow_landings


@dataclass(frozen=True, slots=True)
class UnderWay:
    """The working set of the tick with everything under way on its books, and what leaves of that now."""

    memory: ControllerMemory
    ctx: Context
    again: tuple[Instruction, ...]
    starts: tuple[Instruction, ...]
    notes: tuple[Evidence, ...]


_Start = tuple[Landing, Part, InFlight]


def follow(
    memory: ControllerMemory,
    observation: Observation,
    policy: Policy,
    guards: tuple[tuple[str, Check], ...],
    *,
    halted: bool,
) -> UnderWay:
    """Nothing leaves while everything is `halted`: what is due then is due again after the time that an effect has."""
    notes: tuple[Evidence, ...] = ()
    while True:
        whatif = WhatIf(observation.snapshot)
        names = Lookup(observation.snapshot)
        busy = _apply_open_effects(memory, whatif, names)
        landed = Landed((), (), (), frozenset())
        if memory.landings:
            landed = follow_landings(memory.landings, whatif, names, observation.now_s, may_start=not halted)
        starts = [
            (landing, part, _start(landing, part, memory, observation, policy)) for landing, part in landed.starts
        ]
        started = _with_starts(memory, landed, starts, observation.now_s, policy)
        ctx = build_context(observation, policy, started, whatif, busy | landed.busy)
        held = [entry for entry in started.in_flight.values() if entry.state == "held"]
        if not held and not starts:
            return UnderWay(started, ctx, (), (), notes)
        if halted:
            ctx.memory = _put_off(started, held, observation.now_s, policy)
            return UnderWay(ctx.memory, ctx, (), (), notes)
        sender = Sender(ctx, guards, names)
        refused = sender.held(held)
        codes = {start[2].instruction.id: sender.start_of(start[0], start[1]) for start in starts}
        ended, more = _end(
            _without_given_up(memory, landed, observation.now_s, policy),
            refused,
            codes,
            held,
            starts,
            observation.now_s,
            policy,
        )
        notes += more
        if ended is not None:
            memory = ended
            continue
        again = [entry for entry in held if refused[entry.instruction.id] is None]
        leaving = [start for start in starts if codes[start[2].instruction.id] is None]
        memory = _with_starts(memory, _held_back(landed, starts, codes), leaving, observation.now_s, policy)
        memory, sent = _send_again(memory, again, ctx, policy)
        ctx.memory = memory
        return UnderWay(memory, ctx, sent, tuple(start[2].instruction for start in leaving), notes)


def _apply_open_effects(memory: ControllerMemory, whatif: WhatIf, names: Lookup) -> frozenset[int]:
    """Put effects under way on the books, so that nothing is handed out twice; their rows are busy."""
    busy = set()
    for entry in memory.in_flight.values():
        effect = entry.instruction
        row = names.workload.get(effect.uid)
        if row is None or effect.kind == "scale":
            continue
        busy.add(row)
        layout = names.layout(effect.slots) if effect.slots else None
        if layout is None or effect.kind == "evict":
            continue
        mark = whatif.checkpoint()
        holds = len(whatif.layout_of(row).gpu)
        if holds and effect.kind == "resize":
            if holds > len(layout.gpu):
                continue  # it shrinks: what it gives up is not free before it is seen to be
            whatif.evict(row)
        if len(whatif.layout_of(row).gpu) == 0 and fits(whatif, layout):
            whatif.place(row, layout)
        else:
            whatif.rollback(mark)
    return frozenset(busy)


# --- starts that waited for others to leave -----------------------------------------------------------


def _start(
    landing: Landing, part: Part, memory: ControllerMemory, observation: Observation, policy: Policy
) -> InFlight:
    """The admission of one part."""
    now_s = observation.now_s
    effect = Instruction(
        f"{observation.tick}/{landing.proposal_id}/{part.workload}",
        "admit",
        part.workload,
        part.incarnation,
        part.slots,
        False,
        now_s + policy.limits.deadline_s,
        memory.fence,
        landing.proposal_id,
        "move" if part.uid != landing.uid else "",
        uid=part.uid,
    )
    return InFlight(
        effect,
        "issued",
        now_s,
        landing.action,
        landing.tenant,
        landing.cost_gpu_s,
        landing.contract,
        benefit_gpu_s=landing.benefit_gpu_s,
        digest=landing.digest,
        shape=part.shape,
        kind="land",
    )


def _with_starts(
    memory: ControllerMemory, landed: Landed, starts: list[_Start], now_s: float, policy: Policy
) -> ControllerMemory:
    """Memory with these starts under way, and without the landings that were given up."""
    if not landed.given_up and not starts and landed.open == memory.landings:
        return memory
    memory = _without_given_up(memory, landed, now_s, policy)
    in_flight = dict(memory.in_flight)
    in_flight.update((entry.instruction.id, entry) for _, _, entry in starts)
    return replace(memory, in_flight=in_flight, landings=landed.open)


def _without_given_up(memory: ControllerMemory, landed: Landed, now_s: float, policy: Policy) -> ControllerMemory:
    """Memory without the landings that came to nothing; their gangs cool down."""
    if not landed.given_up:
        return memory
    over = {landing.proposal_id for landing in landed.given_up}
    until_s = now_s + policy.hysteresis.cool_down_s
    cooled = {**memory.no_landing_until_s, **{landing.uid: until_s for landing in landed.given_up}}
    stays = tuple(landing for landing in memory.landings if landing.proposal_id not in over)
    return replace(memory, no_landing_until_s=cooled, landings=stays)


def _held_back(landed: Landed, starts: list[_Start], codes: Mapping[str, Code | None]) -> Landed:
    """The landings with the parts that a guard holds for now."""
    waiting: dict[str, list[Part]] = {}
    for landing, part, entry in starts:
        if codes[entry.instruction.id] is not None:
            waiting.setdefault(landing.proposal_id, []).append(part)
    if not waiting:
        return landed
    known = {landing.proposal_id for landing in landed.open}
    emptied = {
        landing.proposal_id: replace(landing, parts=())
        for landing, _, _ in starts
        if landing.proposal_id in waiting and landing.proposal_id not in known
    }
    stays = tuple(
        replace(landing, parts=(*landing.parts, *waiting.get(landing.proposal_id, ())))
        for landing in (*landed.open, *emptied.values())
    )
    return replace(landed, open=stays)


# --- what a check ends or holds -----------------------------------------------------------------------


def _end(
    memory: ControllerMemory,
    refused: Mapping[str, Code | None],
    codes: Mapping[str, Code | None],
    held: list[InFlight],
    starts: list[_Start],
    now_s: float,
    policy: Policy,
) -> tuple[ControllerMemory | None, tuple[Evidence, ...]]:
    """Memory without what ends now (None: nothing does), and a note on each effect that does not leave."""
    notes: list[Evidence] = []
    in_flight, over, gone = dict(memory.in_flight), set(), set()
    for entry in held:
        effect, code = entry.instruction, refused[entry.instruction.id]
        ends = code is not None and (code in ENDS or now_s >= effect.deadline_s)
        if code is not None:
            notes.append(not_sent(effect, code, ends=ends))
        if ends and now_s >= effect.deadline_s:
            del in_flight[effect.id]
        elif ends:
            in_flight[effect.id] = step_to(entry, "withdrawn", now_s)
        if ends and takes_gpus(effect):
            over.add(effect.proposal_id)
    for landing, part, entry in starts:
        code = codes[entry.instruction.id]
        ends = code is not None and (code in ENDS or now_s >= landing.deadline_s)
        if code is not None:
            notes.append(not_sent(entry.instruction, code, ends=ends))
        if ends:
            gone.add((landing.proposal_id, part.uid))
    cooled = dict(memory.no_landing_until_s)
    landings = []
    for landing in memory.landings:
        left = tuple(part for part in landing.parts if (landing.proposal_id, part.uid) not in gone)
        if (landing.proposal_id, landing.uid) in gone:
            cooled[landing.uid] = now_s + policy.hysteresis.cool_down_s
        elif landing.proposal_id not in over and (left or left == landing.parts):
            landings.append(replace(landing, parts=left))
    after = replace(memory, in_flight=in_flight, landings=tuple(landings), no_landing_until_s=cooled)
    changed = bool(gone) or any(in_flight.get(key) is not entry for key, entry in memory.in_flight.items())
    return (after if changed else None), tuple(notes)


def _put_off(memory: ControllerMemory, held: list[InFlight], now_s: float, policy: Policy) -> ControllerMemory:
    """Memory while everything is halted: what is due is due again later, and no attempt is counted."""
    in_flight = dict(memory.in_flight)
    for entry in held:
        if now_s >= entry.instruction.deadline_s:
            later = replace(entry.instruction, deadline_s=now_s + policy.limits.deadline_s)
            in_flight[later.id] = replace(entry, instruction=later)
    return replace(memory, in_flight=in_flight)


def _send_again(
    memory: ControllerMemory, entries: list[InFlight], ctx: Context, policy: Policy
) -> tuple[ControllerMemory, tuple[Instruction, ...]]:
    """Memory with these effects sent again; the disruption of each counts from now on, so that budgets hold in any
    window.
    """
    if not entries:
        return memory, ()
    in_flight, ledger, cooled = dict(memory.in_flight), list(memory.ledger), dict(memory.cooled_until_s)
    sent = []
    for entry in entries:
        after = sent_again(entry, ctx.now_s, memory.fence, policy)
        effect = after.instruction
        in_flight[effect.id] = after
        sent.append(effect)
        if not takes_gpus(effect):
            continue
        own = [each for each in ledger if (each.proposal_id, each.uid) == (effect.proposal_id, effect.uid)]
        nodes = own[0].nodes if own else ()
        ledger = [each for each in ledger if each not in own]
        ledger.append(
            Disruption(
                ctx.now_s,
                effect.workload,
                own[0].tenant if own else entry.tenant,
                nodes,
                entry.contract,
                effect.uid,
                effect.proposal_id,
            )
        )
        if not entry.contract:
            cooled[effect.uid] = ctx.now_s + policy.hysteresis.cool_down_s
    return replace(memory, in_flight=in_flight, ledger=tuple(ledger), cooled_until_s=cooled), tuple(sent)
