"""The obstacles of a waiting gang, asked again of the functions behind its refusal."""

from __future__ import annotations

from math import isfinite

import numpy as np

from autopilot.core.model.policy import Effect
from autopilot.core.model.records import Code
from autopilot.core.model.snapshot import TOPOLOGY_NAMES, Gate
from autopilot.core.model.units import counted, number
from autopilot.core.placement.shapes import Fit, level_of, suitable_nodes
from autopilot.core.planning.context import Context
from autopilot.core.planning.places import place
from autopilot.core.quota.ledger import ALL
from autopilot.core.quota.rules.base import Refusal, Takes
from autopilot.core.search.moves import moves_only
from autopilot.core.search.scenario import Scenario, find_scenario, scheduling_signatures
from autopilot.explain.proposals import code_words
from autopilot.explain.story.levels import (
    cohorts,
    has_tree,
    name_of,
    quota_lines,
    rival_lines,
    settings_line,
    short_levels,
)
from autopilot.explain.story.sharing import guarantee_lines
from autopilot.explain.story.waiting import (
    NO_TURN_CODES,
    QUOTA_CODES,
    SHOWN_NAMES,
    Waiting,
    gangs,
    soon,
    waiting_before,
)

_CHECK = {
    Gate.OPEN: "a part of it is not there yet",
    Gate.WAITING: "a check, a gate or a stopped queue still holds it",
    Gate.NO_PODS: "its scheduler has admitted it, and its controller makes no pods",
    Gate.REJECTED: (
        "a check or a limit of Kueue switched it off (condition Evicted of its Workload); "
        "Kueue takes it back once its owner deletes the Workload"
    ),
    Gate.RETRY: "the check is to be asked again; it holds no quota until then",
    Gate.BACKOFF: (
        "Kueue stopped it because its pods were not ready in time, and keeps it out of its queue until "
        "status.requeueState.requeueAt of its Workload"
    ),
}

TAKING_CODES = frozenset({Code.FAIRNESS, Code.PRIORITY, Code.POLICY, Code.PROTECTED})
"""Reasons against taking room from others, for a gang without room."""


def held_by(gang: Waiting) -> list[str]:
    """The reason with numbers, the queue tree above it, free room, and possible victims."""
    ctx, code = gang.ctx, gang.why.code
    lines = [
        f"held by {code}: {code_words(code, gang.why.value, gang.why.threshold)}",
        *_more(gang),
    ]
    if gang.quota is not None and code not in QUOTA_CODES:
        words = code_words(gang.quota.code, gang.quota.value, gang.quota.threshold)
        lines.append(f"quota would hold it too, {gang.quota.code}: {words}")
    if has_tree(ctx):
        short = short_levels(ctx, gang.claim, code if gang.quota is None else gang.quota.code)
        lines += quota_lines(ctx, gang.claim.queue, gang.claim.kinds, gang.use_before, short)
        lines += guarantee_lines(ctx, gang.claim)
    if code in {Code.FAIRNESS, Code.QUOTA}:
        lines += rival_lines(ctx, gang.claim)
    if cohorts(ctx) and code in {Code.POLICY, Code.PRIORITY, Code.QUOTA}:
        lines.append(settings_line(ctx, gang.claim.queue))
        ledger, queue = ctx.quota.ledger, gang.claim.queue
        if code == Code.QUOTA and len(ledger.paths[queue]) == 1 and not ledger.children[queue]:
            lines.append(f"queue {name_of(ctx, queue)} has no parent but the root: no queue lends to it")
    if code in TAKING_CODES:
        lines.append(_who_runs(gang))
    if code in QUOTA_CODES | TAKING_CODES | NO_TURN_CODES:
        lines.append(_room(gang))
    sheltered = gang.quota is not None and gang.quota.code == Code.GUARANTEE  # then it may not preempt either
    if code not in NO_TURN_CODES and not sheltered:
        lines += _displacing(gang)
    return lines


def _more(gang: Waiting) -> list[str]:
    """The objects of a reason, by name."""
    ctx, code = gang.ctx, gang.why.code
    work = ctx.observation.snapshot.workloads
    if code in {Code.RESERVED, Code.RUNTIME_UNKNOWN}:
        return _reservations(gang)
    if code == Code.TOPOLOGY:
        return _domains(gang)
    if code == Code.KEPT:
        return _kept(gang)
    if code == Code.ORDER:
        before = [row for row in waiting_before(gang) if work.queue[row] == work.queue[gang.row]]
        return [f"before it in queue {name_of(ctx, gang.claim.queue)}: {gangs(ctx, before)}"] if before else []
    if code == Code.CHECK:
        return [_CHECK[Gate(int(work.gate[gang.row]))]]
    return []


def _reservations(gang: Waiting) -> list[str]:
    """Reservations that it would outlive: their owners, GPUs and starts."""
    ctx = gang.ctx
    end_s = float(ctx.gap_end_s[gang.at])
    lines = []
    for held in ctx.plan.held:
        if held.start_s < end_s and held.row != gang.row:
            sure = "promised" if held.record.firm else "tentative"
            nodes = ", ".join(held.record.nodes[:8]) + (" ..." if len(held.record.nodes) > 8 else "")
            if len(held.instances):
                profile = ctx.observation.snapshot.names.profiles[held.shape.profile]
                what, left = f"MIG instance {profile}|MIG instances {profile}", int(held.left.clip(0)[0])
                of = "this profile"
            else:
                what, left, of = "GPU", int(held.spare.clip(0).sum()), "these nodes"
            lines.append(
                f"reserved ({sure}) for {held.record.workload}: {counted(held.record.gpus, what)} on {nodes}, "
                f"planned to start {soon(ctx, held.start_s)}; "
                f"until then {counted(left, what)} of {of} stay for others"
            )
    if lines and isfinite(end_s):
        level = ctx.policy.backfill.level
        lines.append(f"if started now, done {soon(ctx, end_s)} (p{100 * level:g} of its run time)")
    return lines


def _kept(gang: Waiting) -> list[str]:
    """The gang with the quota hold, the queue, and the time by which enough has ended."""
    ctx = gang.ctx
    kept = ctx.quota_hold_against(gang.row)
    if kept is None:
        return []
    what = "guarantee" if kept.sheltered else "limit"
    return [
        f"kept for {ctx.observation.snapshot.workloads.id[kept.row]}, which is overdue, under the {what} of "
        f"{name_of(ctx, kept.queue)}: enough has ended {soon(ctx, kept.ready_s)}; what surely ends before may use it"
    ]


def _domains(gang: Waiting) -> list[str]:
    """The common level of its members, and the room of the best domain."""
    ctx, shape = gang.ctx, gang.shape
    level = level_of(ctx.observation.snapshot.nodes, shape.topology)
    if level is None:
        return [f"its members must lie on nodes of their own ({counted(shape.members, 'node')})"]
    suits = suitable_nodes(ctx.whatif, shape, ctx.gpu_memory_mib)
    free = np.bincount(level, np.where(suits, ctx.room(float(ctx.gap_end_s[gang.at]), gang.row), 0))
    return [
        f"all members must share one {TOPOLOGY_NAMES[shape.topology]}: of {len(np.unique(level))}, the roomiest has "
        f"{counted(float(free.max(initial=0)), 'GPU')} that it may use, all together {number(float(free.sum()))}"
    ]


def _who_runs(gang: Waiting) -> str:
    """Running gangs in its queue and in others: the number of preemptible ones, and of those of lower priority."""
    running, mine = gang.ctx.quota.running(), gang.claim
    parts = []
    for where, some in (
        ("in its queue", [c for c in running if c.queue == mine.queue]),
        ("in other queues", [c for c in running if c.queue != mine.queue]),
    ):
        soft = [each for each in some if each.preemptible]
        lower = sum(each.priority < mine.priority for each in soft)
        parts.append(
            f"{counted(len(some), 'gang')} {where} ({len(soft)} may be displaced, {lower} of them of lower "
            f"priority than its {mine.priority})"
        )
    return f"running: {'; '.join(parts)}"


def _room(gang: Waiting) -> str:
    found = place(gang.ctx, gang.at, gang.shape)
    if isinstance(found, Fit):
        return f"room: there is some now, on {counted(len(np.unique(found.nodes)), 'node')}"
    return f"room: {code_words(found.code, found.value, found.threshold)}"


def _displacing(gang: Waiting) -> list[str]:
    """Victims within its reach now, in its queue and in others, as the rule set answers."""
    ctx, rules, modes = gang.ctx, gang.ctx.quota.rules, gang.ctx.policy.modes
    across_off = not rules.at_once and (not modes.on(Effect.RECLAIM) or len(ctx.quota.ledger.parent) <= 2)
    if ctx.ahead[gang.at]:
        return ["no work is preempted for it: it is a replica that is only predicted to be needed"]
    lines = []
    if rules.within is not None and modes.on(Effect.PREEMPT):
        lines.append(f"displacing lower priority in its queue: {_taking(gang, rules.within, contract=False)}")
    if rules.across is not None and not across_off:
        where = "displacing" if rules.within is None else "taking back from other queues"
        contract = ctx.owed(gang.at)
        if contract or not ctx.lending.sharing(gang.claim.queue):
            lines.append(f"{where}: {_taking(gang, rules.across, contract=contract)}")
    if modes.on(Effect.CONSOLIDATE) and gang.why.code in {Code.FRAGMENTED, Code.TOPOLOGY, Code.MIG_GEOMETRY}:
        found = moves_only(ctx, gang.at, scheduling_signatures(ctx)[gang.at])
        lines.append("moving others: " + ("no moves give room" if found is None else _victims(ctx, found)))
    return lines


def _taking(gang: Waiting, targets: Takes, *, contract: bool) -> str:
    found = find_scenario(gang.ctx, gang.at, targets, contract=contract)
    if isinstance(found, Scenario):
        return _victims(gang.ctx, found)
    if isinstance(found, Refusal) and found.code == Code.CAPACITY:
        if not found.value:
            return "no work there can be preempted"
        return (
            f"the work there that can be preempted holds {counted(found.value, 'GPU')}, too few or in the "
            f"wrong place for its {number(found.threshold)}"
        )
    if isinstance(found, Refusal) and found.code == Code.FAIRNESS and not cohorts(gang.ctx):
        return _unfair(gang)
    return code_words(found.code, found.value, found.threshold)


def _unfair(gang: Waiting) -> str:
    """The limiting fair share: that of its own queues, or those of the lenders."""
    ledger, claim = gang.ctx.quota.ledger, gang.claim
    above = short_levels(gang.ctx, claim, Code.FAIRNESS)
    if above:
        use, fair = ledger.use[ALL][above[0]] + claim.gpus, ledger.fair[ALL][above[0]]
        return (
            f"not beyond its fair share: with it queue {name_of(gang.ctx, above[0])} would use {counted(use, 'GPU')}, "
            f"its fair share is {number(round(fair, 2))}"
        )
    return "no lender there uses more than its fair share"


def _victims(ctx: Context, found: Scenario) -> str:
    if not found.evictions:
        return "there is room without it"
    work = ctx.observation.snapshot.workloads
    names = [f"{work.id[give.row]} ({give.how}, {counted(give.gpus, 'GPU')})" for give in found.evictions]
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return f"possible, by {', '.join(names[:SHOWN_NAMES])}{more}"
