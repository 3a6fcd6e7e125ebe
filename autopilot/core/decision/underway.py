"""Effects of earlier decisions on the what-if of this tick: open effects, pipelined starts, and the choice to send now.

Everything under way is applied to the what-if first, so that no GPU is allocated twice. Then each due effect is judged
as a new one (core/decision/sending.py). Effects that end are removed, and the rest is applied again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autopilot.core.decision.build import build_context
from autopilot.core.decision.sending import ENDS, Sender, not_sent
from autopilot.core.decision.sparing import can_spare
from autopilot.core.effects import pipeline
from autopilot.core.effects.action import Action, cases_of
from autopilot.core.effects.admit import AdmitOperation
from autopilot.core.effects.disruption import latest, takes_gpus
from autopilot.core.effects.lifecycle import sent_again, step_to
from autopilot.core.effects.pipelined import Followed, Lookup, follow_pipelined
from autopilot.core.geometry.follow import set_aside
from autopilot.core.guards.base import Check
from autopilot.core.intake.usage.facts import SnapshotFacts
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.budget import Disruption
from autopilot.core.model.memory.effects import InFlight
from autopilot.core.model.memory.starts import Part, PipelinedStart
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import (
    About,
    Code,
    Evidence,
    Instruction,
    Note,
    NoteCode,
    Observation,
    Slot,
    Subject,
    SubjectKind,
)
from autopilot.core.model.snapshot import GPU_MILLI, State
from autopilot.core.placement.kinds.instances import find_places
from autopilot.core.placement.on_demand import profile_of
from autopilot.core.placement.whatif import Layout, WhatIf
from autopilot.core.planning.context import Context
from autopilot.core.sharing.follow_turns import closed_to_work


@dataclass(frozen=True, slots=True)
class UnderWay:
    """The context of the tick with everything under way, and the instructions sent of it now."""

    memory: ControllerMemory
    ctx: Context
    again: tuple[Instruction, ...]
    starts: tuple[Instruction, ...]
    notes: tuple[Note, ...]


_Start = tuple[PipelinedStart, Part, InFlight]


def follow(
    memory: ControllerMemory,
    facts: SnapshotFacts,
    actions: tuple[Action, ...],
    guards: tuple[tuple[str, Check], ...],
    *,
    halted: bool,
) -> UnderWay:
    """While everything is `halted`, nothing is sent, and the deadlines of due effects move."""
    observation, policy, notes = facts.observation, facts.policy, tuple[Note, ...]()
    while True:
        names = Lookup(observation.snapshot)
        ctx, followed, starts = _under_way(memory, facts, names, halted=halted)
        notes += tuple(_given_up(pipelined, count, observation.now_s) for pipelined, count in followed.late)
        started = ctx.memory
        held = [entry for entry in started.effects.in_flight.values() if entry.state == "held"]
        if not held and not starts:
            return UnderWay(started, ctx, (), (), notes)
        if halted:
            put_off = _put_off(started, held, observation.now_s, policy)
            return UnderWay(put_off, replace(ctx, memory=put_off), (), (), notes)
        sender = Sender(ctx, cases_of(actions), guards, names)
        refused = sender.held(held)
        refused |= dict.fromkeys(_not_needed(memory, held, refused, facts, names), Code.NOT_NEEDED)
        again = [entry for entry in held if refused[entry.instruction.id] is None]
        codes = {start[2].instruction.id: sender.start_of(start[0], start[1]) for start in starts}
        ended, more = _end(
            _without_given_up(memory, followed, observation.now_s, policy),
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
        leaving = [_at_last(start, sender) for start in starts if codes[start[2].instruction.id] is None]
        memory = _with_starts(memory, _held_back(followed, starts, codes), leaving, observation.now_s, policy)
        memory, sent = _send_again(memory, again, ctx, policy)
        ctx = replace(ctx, memory=memory)
        return UnderWay(memory, ctx, sent, tuple(start[2].instruction for start in leaving), notes)


def _under_way(
    memory: ControllerMemory, facts: SnapshotFacts, names: Lookup, *, halted: bool = False
) -> tuple[Context, Followed, list[_Start]]:
    """The context with open effects and pipelined starts booked, and with the ready starts."""
    observation, policy = facts.observation, facts.policy
    whatif = facts.books.opened(spot_saves=policy.placement.spot_saves)
    closed = closed_to_work(memory, observation.snapshot)
    aside = np.flatnonzero(set_aside(memory, observation.snapshot) | closed)
    if len(aside):
        whatif.set_aside(aside.astype(np.int32))
    busy = _apply_open_effects(memory, whatif, names)
    followed = Followed((), (), (), (), frozenset())
    if memory.starts.pipelined_starts:
        followed = follow_pipelined(
            memory.starts.pipelined_starts, whatif, names, observation.now_s, may_start=not halted
        )
    starts = [
        (pipelined, part, _start(pipelined, part, memory, observation, policy)) for pipelined, part in followed.starts
    ]
    started = _with_starts(memory, followed, starts, observation.now_s, policy)
    ctx = build_context(observation, policy, started, whatif, busy | followed.busy, facts.kept)
    return ctx, followed, starts


def _apply_open_effects(memory: ControllerMemory, whatif: WhatIf, names: Lookup) -> frozenset[int]:
    """Apply open effects to the what-if, so that no GPU is allocated twice. Their rows are busy."""
    busy = set()
    for entry in memory.effects.in_flight.values():
        effect = entry.instruction
        row = names.workload.get(effect.subject.uid)
        if row is None or effect.operation.leaves_alone:
            continue
        busy.add(row)
        slots = effect.operation.slots
        layout = names.layout(slots) if slots else None
        on_demand = bool(slots) and all(profile_of(slot.instance) and slot.gpu in names.gpu for slot in slots)
        if layout is None and not on_demand:
            continue
        mark = whatif.checkpoint()
        holds = len(whatif.layout_of(row))
        if holds and effect.operation.continues:
            whatif.evict(row)
        if on_demand and (layout is None or not whatif.fits(layout)):
            layout = _on_other_places(whatif, names, slots)
        elif layout is not None and not whatif.fits(layout):
            layout = _on_free_gpus(whatif, layout)
        if layout is not None and len(whatif.layout_of(row)) == 0 and len(layout) >= max(holds, 1):
            whatif.place(row, layout)
        else:  # where it shrinks, what it gives up is not free before it is seen to be
            whatif.rollback(mark)
    return frozenset(busy)


def _on_free_gpus(whatif: WhatIf, layout: Layout) -> Layout:
    """The whole GPUs of a layout without a fit, on free GPUs of the same nodes, as far as there are any.

    If a cluster does not name the GPU of a pod beforehand, the view may have given the GPUs of an effect under way to
    other work of the node. The effect takes as many GPUs of the node all the same.
    """
    node = whatif.snapshot.gpus.node
    whole = (layout.plain & (layout.milli == GPU_MILLI)).all()
    if not (whole and whatif.gpu_whole[layout.gpu].all() and whatif.node_ok[node[layout.gpu]].all()):
        return layout.without(range(len(layout)))
    found: list[int] = []
    for at, asked in zip(*np.unique(node[layout.gpu], return_counts=True), strict=True):
        free = np.flatnonzero((node == at) & whatif.gpu_whole & (whatif.gpu_used == 0))
        found += free[: int(asked)].tolist()
    return Layout.whole(np.array(found, np.int32))


def _on_other_places(whatif: WhatIf, names: Lookup, slots: Sequence[Slot]) -> Layout:
    """Instances of the same profiles that could be made on the same nodes, as far as there is room.

    The scheduler chooses the place: the foreseen slices may have gone to another claim.
    """
    gpus, profiles = whatif.snapshot.gpus, whatif.snapshot.names.profiles
    profile = profile_of(slots[0].instance)  # a gang for which instances are to be made asks for one profile
    found = [np.empty(0, np.int32)]
    for node, count in Counter(int(gpus.node[names.gpu[slot.gpu]]) for slot in slots).items():
        here = np.arange(len(whatif.node_free)) == node
        if profile in profiles:
            found.append(find_places(whatif, profiles.index(profile), here, whatif.node_free)[:count])
    rows = np.concatenate(found)
    return Layout(whatif.gpus_of(rows), rows, np.zeros(len(rows), np.int32))


# --- starts that waited for others to leave -----------------------------------------------------------


def _start(
    pipelined: PipelinedStart, part: Part, memory: ControllerMemory, observation: Observation, policy: Policy
) -> InFlight:
    """The admission of one part."""
    now_s = observation.now_s
    effect = Instruction(
        f"{observation.tick}/{pipelined.proposal_id}/{part.workload}",
        Subject(SubjectKind.WORKLOAD, part.workload, part.uid, part.incarnation),
        AdmitOperation(slots=part.slots, moved=any(victim.uid == part.uid for victim in pipelined.victims)),
        now_s + policy.limits.deadline_s,
        memory.fence,
        pipelined.proposal_id,
    )
    return InFlight(
        effect,
        "issued",
        now_s,
        pipelined.action,
        pipelined.tenant,
        pipelined.cost_gpu_s,
        pipelined.contract,
        benefit_gpu_s=pipelined.benefit_gpu_s,
        digest=pipelined.digest,
        shape=part.shape,
        kind=pipeline.KIND,
    )


def _at_last(start: _Start, sender: Sender) -> _Start:
    """The admission of a part with the work whose quota it may take, and with what to scrub."""
    pipelined, part, entry = start
    effect = entry.instruction
    operation = effect.operation.at_last(sender.side_effects(part), sender.scrub(part))
    return pipelined, part, replace(entry, instruction=replace(effect, operation=operation))


def _with_starts(
    memory: ControllerMemory, followed: Followed, starts: list[_Start], now_s: float, policy: Policy
) -> ControllerMemory:
    """Memory with these starts under way, and without the pipelined starts given up."""
    if not followed.given_up and not starts and followed.open == memory.starts.pipelined_starts:
        return memory
    memory = _without_given_up(memory, followed, now_s, policy)
    in_flight = dict(memory.effects.in_flight)
    in_flight.update((entry.instruction.id, entry) for _, _, entry in starts)
    return replace(
        memory,
        effects=replace(memory.effects, in_flight=in_flight),
        starts=replace(memory.starts, pipelined_starts=followed.open),
    )


def _without_given_up(memory: ControllerMemory, followed: Followed, now_s: float, policy: Policy) -> ControllerMemory:
    """Memory without the pipelined starts given up. Their gangs cool down."""
    if not followed.given_up:
        return memory
    over = {pipelined.proposal_id for pipelined in followed.given_up}
    until_s = now_s + policy.hysteresis.cool_down_s
    cooled = {**memory.starts.no_pipelined_until_s, **{pipelined.uid: until_s for pipelined in followed.given_up}}
    stays = tuple(pipelined for pipelined in memory.starts.pipelined_starts if pipelined.proposal_id not in over)
    return replace(memory, starts=replace(memory.starts, no_pipelined_until_s=cooled, pipelined_starts=stays))


def _given_up(pipelined: PipelinedStart, leaving: int, now_s: float) -> Note:
    """A note on a start whose victims have not left in time."""
    waited, facts = round(now_s - pipelined.since_s, 3), (Evidence("leaving", leaving, "gangs"),)
    return Note(NoteCode.START_GIVEN_UP, About.WORKLOAD, pipelined.workload, waited, "s", facts=facts)


def _held_back(followed: Followed, starts: list[_Start], codes: Mapping[str, Code | None]) -> Followed:
    """The pipelined starts with the parts delayed by a guard."""
    waiting: dict[str, list[Part]] = {}
    for pipelined, part, entry in starts:
        if codes[entry.instruction.id] is not None:
            waiting.setdefault(pipelined.proposal_id, []).append(part)
    if not waiting:
        return followed
    known = {pipelined.proposal_id for pipelined in followed.open}
    emptied = {
        pipelined.proposal_id: replace(pipelined, parts=())
        for pipelined, _, _ in starts
        if pipelined.proposal_id in waiting and pipelined.proposal_id not in known
    }
    stays = tuple(
        replace(pipelined, parts=(*pipelined.parts, *waiting.get(pipelined.proposal_id, ())))
        for pipelined in (*followed.open, *emptied.values())
    )
    return replace(followed, open=stays)


# --- victims that a start does not need any more ------------------------------------------------------


def _not_needed(
    memory: ControllerMemory,
    held: Sequence[InFlight],
    refused: Mapping[str, Code | None],
    facts: SnapshotFacts,
    names: Lookup,
) -> set[str]:
    """Ids of the takings of starts able to spare a victim, also of delayed ones.

    The start is planned on trial without it and these takings: on free and leaving capacity.
    """
    state, found = facts.snapshot.workloads.state, set[str]()
    for pipelined in memory.starts.pipelined_starts:
        due = {
            entry.instruction.id: entry.instruction
            for entry in held
            if (entry.instruction.proposal_id, entry.kind) == (pipelined.proposal_id, pipeline.KIND)
            and takes_gpus(entry.instruction)
            and refused[entry.instruction.id] not in ENDS
            and state[names.workload[entry.instruction.subject.uid]] != State.CHECKPOINTING
        }
        if not due:
            continue
        without = replace(
            memory,
            effects=replace(
                memory.effects,
                in_flight={key: entry for key, entry in memory.effects.in_flight.items() if key not in due},
            ),
            starts=replace(
                memory.starts,
                pipelined_starts=tuple(each for each in memory.starts.pipelined_starts if each is not pipelined),
            ),
        )
        if can_spare(_under_way(without, facts, names)[0], pipelined, list(due.values()), names):
            found |= set(due)
    return found


# --- what a check ends or holds -----------------------------------------------------------------------


def _end(
    memory: ControllerMemory,
    refused: Mapping[str, Code | None],
    codes: Mapping[str, Code | None],
    held: list[InFlight],
    starts: list[_Start],
    now_s: float,
    policy: Policy,
) -> tuple[ControllerMemory | None, tuple[Note, ...]]:
    """Memory without the effects that end now (None: none ends), and a note on each effect not sent."""
    notes: list[Note] = []
    in_flight, stays, gone = dict(memory.effects.in_flight), set(), set()
    for entry in held:
        effect, code = entry.instruction, refused[entry.instruction.id]
        ends = code is not None and (code in ENDS or now_s >= effect.deadline_s)
        if code is not None:
            notes.append(not_sent(effect, code, ends=ends))
        if ends and (now_s >= effect.deadline_s or takes_gpus(effect)):
            del in_flight[effect.id]  # it books no GPUs, and what leaves all the same is seen
        elif ends:
            in_flight[effect.id] = step_to(entry, "withdrawn", now_s)
        if ends and takes_gpus(effect):
            stays.add(effect.subject.uid)
    for pipelined, part, entry in starts:
        code = codes[entry.instruction.id]
        ends = code is not None and (code in ENDS or now_s >= pipelined.deadline_s)
        if code is not None:
            notes.append(not_sent(entry.instruction, code, ends=ends))
        if ends:
            gone.add((pipelined.proposal_id, part.uid))
    cooled = dict(memory.starts.no_pipelined_until_s)
    pipelined_starts = []
    for pipelined in memory.starts.pipelined_starts:
        left = tuple(part for part in pipelined.parts if (pipelined.proposal_id, part.uid) not in gone)
        if (pipelined.proposal_id, pipelined.uid) in gone:
            cooled[pipelined.uid] = now_s + policy.hysteresis.cool_down_s
        elif not stays.isdisjoint(victim.uid for victim in pipelined.victims):
            continue  # also where it waits for what was to leave for another start
        elif left or left == pipelined.parts:
            pipelined_starts.append(replace(pipelined, parts=left))
    after = replace(
        memory,
        effects=replace(memory.effects, in_flight=in_flight),
        starts=replace(memory.starts, pipelined_starts=tuple(pipelined_starts), no_pipelined_until_s=cooled),
    )
    changed = bool(gone) or any(in_flight.get(key) is not entry for key, entry in memory.effects.in_flight.items())
    return (after if changed else None), tuple(notes)


def _put_off(memory: ControllerMemory, held: list[InFlight], now_s: float, policy: Policy) -> ControllerMemory:
    """Memory while everything is halted: due effects become due later, and no attempt is counted."""
    in_flight = dict(memory.effects.in_flight)
    for entry in held:
        if now_s >= entry.instruction.deadline_s:
            later = replace(entry.instruction, deadline_s=now_s + policy.limits.deadline_s)
            in_flight[later.id] = replace(entry, instruction=later)
    return replace(memory, effects=replace(memory.effects, in_flight=in_flight))


def _send_again(
    memory: ControllerMemory, entries: list[InFlight], ctx: Context, policy: Policy
) -> tuple[ControllerMemory, tuple[Instruction, ...]]:
    """Memory with these effects sent again. The disruption of each counts from now, so that budgets hold."""
    if not entries:
        return memory, ()
    in_flight, disrupted, cooled = (
        dict(memory.effects.in_flight),
        list(memory.budget.disrupted),
        dict(memory.budget.cooled_until_s),
    )
    sent = []
    for entry in entries:
        after = sent_again(entry, ctx.now_s, memory.fence, policy)
        effect = after.instruction
        in_flight[effect.id] = after
        sent.append(effect)
        if not takes_gpus(effect):
            continue
        own = latest(disrupted, effect.proposal_id, effect.subject.uid)
        disrupted = [each for each in disrupted if each != own]
        if own is None:
            subject = effect.subject
            own = Disruption(0.0, subject.name, entry.tenant, (), entry.contract, subject.uid, effect.proposal_id)
        disrupted.append(replace(own, at_s=ctx.now_s, contract=entry.contract))
        if not entry.contract:
            cooled[effect.subject.uid] = ctx.now_s + policy.hysteresis.cool_down_s
    return replace(
        memory,
        effects=replace(memory.effects, in_flight=in_flight),
        budget=replace(memory.budget, disrupted=tuple(disrupted), cooled_until_s=cooled),
    ), tuple(sent)
