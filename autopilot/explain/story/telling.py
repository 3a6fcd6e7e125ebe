"""Telling one workload's story at one tick, in any state.

The reasons are those of the decision: `Watch` observes the plan as it is made again from the recorded observation and
memory, and every answer here comes from the deciding functions. It changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite

import numpy as np

from autopilot.core.capabilities.actions import ACTIONS
from autopilot.core.capabilities.verbs import VERBS
from autopilot.core.effects.action import Action
from autopilot.core.effects.draft import Submit
from autopilot.core.effects.named import slots_of
from autopilot.core.model.codes import ConditionKind
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.plan import Condition
from autopilot.core.model.objects import Taken
from autopilot.core.model.records import About, Decision, Observation
from autopilot.core.model.snapshot import SLO_CLASS_NAMES, ClusterSnapshot, State
from autopilot.core.model.units import counted, format_clock, format_duration, format_moment
from autopilot.core.model.work import running_since
from autopilot.core.placement.shapes import Miss, shape_of
from autopilot.core.planning.context import Context
from autopilot.core.planning.plan_state import CODES
from autopilot.core.sharing.facts import shared_rates
from autopilot.explain.cases import with_worst
from autopilot.explain.disturbance import disturbance_lines
from autopilot.explain.held_up import straggler_lines
from autopilot.explain.neighbours import sharing_lines
from autopilot.explain.notes import gap_lines, note_words
from autopilot.explain.proposals import (
    SHOWN_VICTIMS,
    by_node,
    code_words,
    how_words,
    proposal_words,
    taken_words,
    victim_words,
)
from autopilot.explain.story.freeing import freed_by
from autopilot.explain.story.holding import held_by
from autopilot.explain.story.levels import has_tree, quota_lines
from autopilot.explain.story.never import NEVER_FREED, never_lines
from autopilot.explain.story.recutting import recut_lines
from autopilot.explain.story.waiting import QUOTA_CODES, Waiting, gangs, soon


@dataclass(slots=True)
class Watch:
    """Looks on while a plan is made, and changes nothing: use of the queues before it, the context after it."""

    use_before: list[list[float]] = field(default_factory=list)  # GPUs, [kind][queue]
    ctx: Context | None = None

    @property
    def actions(self) -> tuple[Action, ...]:
        """The shipped actions with the onlooker before and behind them; for `reconcile(..., actions=)`."""
        return (Action("look", "", self._before), *ACTIONS, Action("look", "", self._after))

    def _before(self, ctx: Context, _submit: Submit) -> None:
        self.use_before = [[*row] for row in ctx.quota.ledger.use]

    def _after(self, ctx: Context, _submit: Submit) -> None:
        self.ctx = ctx


def unlisted(observation: Observation, decision: Decision) -> str:
    """Reason to doubt the absence of work missing from this tick; "" if its absence is certain."""
    works = [view for view in observation.views if view.kind == "work"]
    partial = [view for view in works if not view.complete]
    if partial:
        return f"the list of {partial[0].source} is not complete ({partial[0].reason or 'no reason given'})"
    missing = not isfinite(observation.snapshot.work_age_s) or any(view.lost > 0 for view in works)
    return decision.halted if missing else ""


def tell(
    workload: str,
    observation: Observation,
    decision: Decision,
    watch: Watch | None = None,
    memory: ControllerMemory | None = None,
) -> list[str]:
    """The story of one workload at a tick, line by line.

    `watch` observed the making of this very plan; without it the story tells the record alone. `memory`: for the
    rates of work on shared GPUs, and what was found about noisy neighbours.
    """
    work = observation.snapshot.workloads
    found = np.flatnonzero(work.id == workload)
    if not len(found):
        blind = unlisted(observation, decision)
        why = next((gap.reason for gap in observation.gaps if gap.object_id == workload), "")
        state = f"unknown: {blind}" if blind else f"not in the cluster{f' ({why})' if why else ''}"
        return [f"{workload}: {state} at {format_clock(observation.now_s)}"]
    row = int(found[0])
    lines = [_who(workload, row, observation)]
    learned = observation.forecasts.colocation
    snapshot, known = observation.snapshot, memory or ControllerMemory()
    rates = shared_rates(snapshot, known.profiles, learned, observation.now_s) if memory is not None else None
    slowed = disturbance_lines(snapshot, row, observation.forecasts.interference, known.neighbours)
    forecasts, uid = observation.forecasts, str(snapshot.workloads.uid[row])
    slowed += straggler_lines(uid, forecasts.stragglers, forecasts.slow_gpus)
    lines += [f"  {line}" for line in (*sharing_lines(snapshot, row, rates), *slowed)]
    if decision.halted:
        lines.append(f"  everything is held: {decision.halted}")
    lines += [
        f"  note: {note_words(note)}"
        for note in decision.notes
        if note.about == About.WORKLOAD and note.subject == workload
    ]
    lines += [f"  {line}" for line in gap_lines([gap for gap in observation.gaps if gap.object_id == workload])]
    ctx = watch.ctx if watch is not None else None
    if ctx is not None:
        lines += [f"  {line}" for line in _under_way(ctx, workload)]
        lines += [f"  {line}" for line in recut_lines(ctx, row)]
    lines += [
        f"  proposed now: {proposal_words(each)}: {each.id} ({each.action})"
        for each in decision.plan.proposals
        if each.subject.name == workload
    ]
    lines += [
        f"  makes room now for {each.subject.name}: {how_words(victim)}: {each.id} ({each.action})"
        for each in decision.plan.proposals
        for victim in each.victims
        if victim.workload == workload and each.subject.name != workload
    ]
    lines += [f"  {line}" for line in _loses(workload, decision)]
    if watch is None or ctx is None:
        return lines + [f"  {line}" for line in _recorded(row, observation, decision)]
    if work.state[row] == State.PENDING:
        return lines + [f"  {line}" for line in _waits(ctx, row, decision, watch)]
    return lines + [f"  {line}" for line in _runs(ctx, row, watch)]


def _loses(workload: str, decision: Decision) -> list[str]:
    """Losses to starts of other work; the starts that pass it once approved share one line."""
    found = [
        (each, effect)
        for each in decision.plan.proposals
        for effect in each.change.side_effects
        if effect.workload == workload
    ]
    lines = [
        f"a start of {each.subject.name} takes {taken_words(effect)}: {each.id} ({each.action})"
        for each, effect in found
        if effect.what != Taken.TURN
    ]
    passing = [each.subject.name for each, effect in found if effect.what == Taken.TURN]
    more = f" and {len(passing) - SHOWN_VICTIMS} more" if len(passing) > SHOWN_VICTIMS else ""
    names = ", ".join(passing[:SHOWN_VICTIMS])
    return lines + ([f"a start that is approved comes before it: {names}{more}"] if passing else [])


def width_words(snapshot: ClusterSnapshot, row: int) -> str:
    """The request of a workload: `8 GPUs`, `1 instance of 1g.10gb`, `1 share of 0.5 GPU`."""
    work, gpus = snapshot.workloads, int(snapshot.workloads.gpus[row])
    if work.mig_profile[row] >= 0:
        return f"{counted(gpus, 'instance')} of {snapshot.names.profiles[int(work.mig_profile[row])]}"
    if work.gpu_milli[row]:
        return f"{counted(gpus, 'share')} of {int(work.gpu_milli[row]) / 1000:g} GPU"
    return counted(gpus, "GPU")


def _who(workload: str, row: int, observation: Observation) -> str:
    """State, width, class, priority, owner and age."""
    snapshot = observation.snapshot
    work = snapshot.workloads
    state = State(int(work.state[row])).name.lower()
    gpus, least, width = int(work.gpus[row]), int(work.min_gpus[row]), width_words(snapshot, row)
    elastic = f" (at least {least})" if least < gpus else ""
    soft = "preemptible" if work.preemptible[row] else "not preemptible"
    return (
        f"{workload}: {state}, {width}{elastic}, {SLO_CLASS_NAMES[int(work.slo_class[row])]}, priority "
        f"{int(work.priority[row])}, {soft}, tenant {snapshot.names.tenants[int(work.tenant[row])]}, queue "
        f"{snapshot.queues.id[int(work.queue[row])]}, submitted "
        f"{format_moment(float(work.submit_s[row]), observation.now_s)}, restart {int(work.incarnation[row])}"
    )


def _under_way(ctx: Context, workload: str) -> list[str]:
    """Effects on their way, and starts held until other work has left."""
    now_s, lines = ctx.now_s, []
    for entry in ctx.memory.effects.in_flight.values():
        effect = entry.instruction
        if effect.subject.name == workload:
            lines.append(
                f"{VERBS[effect.kind].noun} sent {format_duration(now_s - entry.since_s)} ago ({entry.state}, "
                f"attempt {entry.attempts}), checked again {soon(ctx, effect.deadline_s)}: "
                f"{effect.proposal_id} ({entry.action})"
            )
        lent = effect.operation.quota_from
        if lent and effect.subject.name == workload:
            lines.append(f"where it lacks quota, it takes the reserved quota of {', '.join(lent.values())}")
        if workload in lent.values():
            lines.append(
                f"its reserved quota goes to the start of {effect.subject.name} where that lacks quota, and comes back "
                f"once that start is over: {effect.proposal_id} ({entry.action})"
            )
    for pipelined in ctx.memory.starts.pipelined_starts:
        if pipelined.workload == workload:
            slots = [slot for part in pipelined.parts if part.workload == workload for slot in part.slots]
            away = "; ".join(victim_words(victim) for victim in pipelined.victims) or "those who leave already"
            lines.append(
                f"starts on {by_node(slots)} when others have made room ({away}), "
                f"given up {soon(ctx, pipelined.deadline_s)}: {pipelined.proposal_id} ({pipelined.action})"
            )
        lines += [
            f"makes room for {pipelined.workload}: {how_words(victim)}: {pipelined.proposal_id} ({pipelined.action})"
            for victim in pipelined.victims
            if victim.workload == workload
        ]
    return lines


def _recorded(row: int, observation: Observation, decision: Decision) -> list[str]:
    """Reason for its wait from the record alone: its place, its reason, its reservation."""
    refusals = decision.plan.refusals
    place = np.flatnonzero(refusals.workload == row)
    lines = []
    if len(place):
        at = int(place[0])
        code = refusals.codes[int(refusals.code[at])]
        waits = _waits_words(observation, row)
        lines.append(f"{waits}, place {at + 1} of {len(refusals.workload)} in the order of service")
        lines.append(f"held by {code}: {code_words(code, float(refusals.value[at]), float(refusals.threshold[at]))}")
    return lines + _own_reservation(str(observation.snapshot.workloads.id[row]), decision)


def _waits_words(observation: Observation, row: int) -> str:
    """Duration of its wait; of stopped work, its age alone is known."""
    work = observation.snapshot.workloads
    since = format_duration(observation.now_s - float(work.submit_s[row]))
    return f"waits again, {since} after its submission" if work.incarnation[row] else f"has waited for {since}"


def _own_reservation(workload: str, decision: Decision) -> list[str]:
    """Room held for it."""
    lines = []
    for held in decision.plan.reservations:
        if held.workload == workload:
            sure = f"promised for {format_moment(held.promised_s, decision.now_s)}" if held.firm else "tentative"
            start_s = held.start_s - decision.now_s
            planned = (
                f"planned to start in {format_duration(max(start_s, 0.0))}"
                if isfinite(held.start_s) or start_s < 0
                else "no room by forecast now"
            )
            where = f" on {', '.join(held.nodes[:8])}" if held.nodes else ""
            lines.append(
                f"holds a reservation of {counted(held.gpus, 'GPU')}{where}: {planned} ({sure}, held for "
                f"{format_duration(decision.now_s - held.since_s)})"
            )
    return lines


def _waits(ctx: Context, row: int, decision: Decision, watch: Watch) -> list[str]:
    """A pending gang: its place, its obstacles, and their ends by forecast."""
    found = np.flatnonzero(ctx.pending == row)
    if not len(found):
        return []  # an effect is under way: told above
    at, never = int(found[0]), never_lines(ctx, row)
    lines = [
        *never,
        _position(ctx, at, decision),
        *_own_reservation(str(ctx.observation.snapshot.workloads.id[row]), decision),
    ]
    if ctx.plan.taken[at]:
        return lines
    least = ctx.pending_table.least_gpus[at]
    why = Miss(CODES[ctx.plan.code[at]], float(ctx.plan.value[at]), float(ctx.plan.threshold[at]))
    quota = why if why.code in QUOTA_CODES else None
    if quota is None and ctx.quota.rules.keeps is None:  # else the books hold the room kept for this very gang
        quota = ctx.may_start(at, least)
    gang = Waiting(
        ctx,
        at,
        row,
        shape_of(ctx.observation.snapshot, row, least),
        ctx.quota.claim(row, least),
        why,
        quota,
        watch.use_before,
    )
    return [
        *lines,
        *held_by(gang),
        "what would free it:",
        *(f"  {line}" for line in ([NEVER_FREED] if never else freed_by(gang, decision))),
    ]


def _position(ctx: Context, at: int, decision: Decision) -> str:
    """Its place in the order of turns, and the gangs waiting before it."""
    turn, row = ctx.plan.turn, int(ctx.pending[at])
    waits = _waits_words(ctx.observation, row)
    if turn[at] == np.iinfo(np.int32).max:
        return f"{waits}; it has no turn in the order of service"
    before = np.flatnonzero(turn < turn[at])
    before = before[np.argsort(turn[before], kind="stable")]
    waiting = [int(ctx.pending[each]) for each in before.tolist() if not ctx.plan.taken[each]]
    had = int((turn < np.iinfo(np.int32).max).sum())
    words = f"{waits}, place {len(before) + 1} of {had} in the order of service"
    shown = {each.subject.uid for each in decision.plan.proposals if each.slots and not each.accepted}
    asked = sum(str(ctx.observation.snapshot.workloads.uid[ctx.pending[each]]) in shown for each in before.tolist())
    started = len(before) - len(waiting) - asked
    words += f"; {counted(started, 'gang')} before it {'starts' if started == 1 else 'start'} now" if started else ""
    words += f"; recommended before it, and waiting for a person: {counted(asked, 'gang')}" if asked else ""
    return words + (f"; before it wait {gangs(ctx, waiting)}" if waiting else "")


def _runs(ctx: Context, row: int, watch: Watch) -> list[str]:
    """A gang on GPUs: its nodes, its end by forecast, its possible loss, its queue."""
    work = ctx.observation.snapshot.workloads
    held = slots_of(ctx, ctx.whatif.layout_of(row))
    held_s = ctx.now_s - float(running_since(work)[row])
    ends_s = float(ctx.end_s[row])
    lines = []
    if held:
        lasted = f" for {format_duration(held_s)}" if isfinite(held_s) else ""
        lines.append(f"holds {by_node(held)} ({len(held)} of {int(work.gpus[row])}){lasted}")
        lines.append(_ends(ctx, row, ends_s))
        lines.append(_at_stake(ctx, row))
    claim = next((each for each in ctx.quota.running() if each.row == row), None)
    kinds = claim.kinds if claim is not None else (0,)
    if has_tree(ctx):
        lines += quota_lines(ctx, int(work.queue[row]), kinds, watch.use_before)
    return lines


def _ends(ctx: Context, row: int, ends_s: float) -> str:
    """Its end, and the source of that figure."""
    level = ctx.policy.reservation.level
    if not isfinite(ends_s):
        return "its end is unknown: no forecast, no time limit"
    if not ctx.outlook.foretold(level)[row]:
        return f"ends {soon(ctx, ends_s)} at the latest, by its time limit; no forecast of its run time"
    return f"ends {soon(ctx, ends_s)} by forecast (quantile {level:g} of its run time)"


def _at_stake(ctx: Context, row: int) -> str:
    """Its protections against displacement, and the loss in case of one."""
    work, policy = ctx.observation.snapshot.workloads, ctx.policy
    expected, worst = float(ctx.losses.expected_gpu_s[row]), float(ctx.losses.worst_gpu_s[row])
    lost = f"stopping it now would lose {with_worst(expected, worst)}"
    if work.backfilled[row]:
        return f"backfilled: it is evicted when the reserved gang can start; {lost}"
    shelters = []
    if work.excluded[row]:
        shelters.append("it opted out")
    if not work.preemptible[row]:
        shelters.append("it may not be preempted")
    if SLO_CLASS_NAMES[int(work.slo_class[row])] in policy.protection.classes:
        shelters.append("its class is protected")
    if ctx.stops.often[row]:
        shelters.append(
            f"it was stopped {counted(int(ctx.stops.count[row]), 'time')}; only contracts may stop it again"
        )
    settled_s = float(running_since(work)[row] + ctx.stops.guaranteed_s[row])
    if ctx.now_s < settled_s:
        shelters.append(f"its promised run time ends {soon(ctx, settled_s)}")
    cooled_s = ctx.memory.budget.cooled_until_s.get(str(work.uid[row]), float("-inf"))
    if ctx.now_s < cooled_s:
        shelters.append(f"it was disrupted before and is left alone until its cool-down ends {soon(ctx, cooled_s)}")
    if not shelters:
        return f"may be displaced; {lost}"
    return f"sheltered: {', '.join(shelters)}{_until_when(ctx, row)}; {lost}"


def _until_when(ctx: Context, row: int) -> str:
    """Limit of the protection of work, as the end of a sentence; "" without one."""
    work, starts = ctx.observation.snapshot.workloads, ctx.quota.starts
    unprotected = Condition(ConditionKind.UNPROTECTED, str(work.uid[row]), int(work.incarnation[row]))
    declared, started = unprotected in starts.conditions, row in starts.late_s
    if row in ctx.quota.lent:
        late = ", and it was declared while it ran" if declared else " since its start" if started else ""
        return (
            f"; that holds until the owner of these GPUs returns, because it is above the guarantee of its queue{late}"
        )
    if row in ctx.quota.late:
        late = "it was declared protected while it ran" if declared else "it started above the guarantee of its queue"
        return f"; {late}: until its next start it yields if only its place makes room for the owner of lent GPUs"
    return ""
