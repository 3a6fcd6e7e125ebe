"""Bounds on disruptions: per cluster, tenant and node in any window, and at once."""

from __future__ import annotations

from collections import Counter

import numpy as np

from autopilot.core.effects.disruption import disruptions, latest, takes_gpus
from autopilot.core.effects.draft import Draft
from autopilot.core.guards.base import allow, deny, waive
from autopilot.core.model.memory.budget import Disruption
from autopilot.core.model.records import Code, Proposal, Verdict
from autopilot.core.planning.context import Context

NAME = "budget"


class _Earlier(list[Disruption]):
    """Disruptions of earlier ticks inside the window: the same for all proposals of a tick."""


def _earlier(ctx: Context) -> _Earlier:
    window_s = ctx.policy.budget.window_s
    return _Earlier(
        entry for entry in ctx.memory.budget.disrupted if not entry.contract and entry.at_s + window_s > ctx.now_s
    )


def check(proposal: Proposal, draft: Draft, ctx: Context) -> Verdict:
    """Count disruptions in the window, the accepted ones of this tick, and the victims of the proposal.

    Contracts count nowhere. A proposal on its way to the cluster counts once: its own entries are left out.
    """
    rules = ctx.policy.budget
    victims = len(proposal.victims)
    again = {victim.uid for victim in proposal.victims} if draft.resent else set()
    own = {uid: latest(ctx.memory.budget.disrupted, draft.resent, uid) for uid in again}
    past = [*ctx.once(_Earlier, lambda: _earlier(ctx)), *(each for each in ctx.plan.accepted if not each.contract)]
    if own:
        past = [entry for entry in past if entry != own.get(entry.uid)]
    total = len(past) + victims
    if not victims:
        return allow(NAME, float(total), "disruptions in the window", float(rules.per_cluster))
    if draft.contract:
        return waive(NAME, float(total), "disruptions in the window", float(rules.per_cluster))
    if total > rules.per_cluster:
        return deny(NAME, Code.BUDGET_CLUSTER, float(total), "disruptions in the window", float(rules.per_cluster))
    under_way = sum(
        takes_gpus(entry.instruction)
        and not entry.contract
        and not (entry.instruction.proposal_id == draft.resent and entry.instruction.subject.uid in again)
        for entry in ctx.memory.effects.in_flight.values()
    )
    at_once = under_way + victims + sum(1 for entry in ctx.plan.accepted if not entry.contract)
    if at_once > rules.concurrent:
        return deny(NAME, Code.BUDGET_CONCURRENT, float(at_once), "disruptions under way", float(rules.concurrent))
    writing = _writing_s(draft, ctx)
    bound_s = ctx.policy.preemption.checkpoint_writers * ctx.policy.preemption.grace_s
    if ctx.policy.preemption.checkpoint_writers and writing > bound_s:
        return deny(NAME, Code.BUDGET_CHECKPOINT, writing, "s of checkpoint writes at once", bound_s)
    wanted = disruptions(draft, ctx, proposal.id)
    tenants = Counter(entry.tenant for entry in (*past, *wanted))
    worst_tenant = max(tenants[entry.tenant] for entry in wanted)
    if worst_tenant > rules.per_tenant:
        return deny(
            NAME,
            Code.BUDGET_TENANT,
            float(worst_tenant),
            "disruptions of one tenant",
            float(rules.per_tenant),
        )
    nodes = Counter(node for entry in (*past, *wanted) for node in entry.nodes)
    worst_node = max((nodes[node] for entry in wanted for node in entry.nodes), default=0)
    if worst_node > rules.per_node:
        return deny(NAME, Code.BUDGET_NODE, float(worst_node), "disruptions on one node", float(rules.per_node))
    return allow(NAME, float(total), "disruptions in the window", float(rules.per_cluster))


def _writing_s(draft: Draft, ctx: Context) -> float:
    """Total time (s) of the checkpoint writes of all gangs that leave or would leave.

    A gang writes none in order to shrink. A gang without a stated write time is left out.
    """
    work = ctx.observation.snapshot.workloads
    leaving = ctx.leaving_mask()
    leaving[[give.row for give in draft.taken if give.how != "shrink"]] = True
    return float(np.nansum(work.checkpoint_write_s[leaving]))
