"""Offer unneeded nodes back, and take an offer back once they are needed. Nodes are never removed here.

A node is needed while work is on it or is planned to start there, room is held on it, or it suits waiting work. Each
pool also keeps `capacity.spare_nodes` and the number of nodes expected by the demand mix to fill within
`capacity.unneeded_s`. No node is offered while the mix abstains, since future demand is unknown then.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from autopilot.core.effects.action import Action
from autopilot.core.effects.draft import Case, Submit, VerbDraft
from autopilot.core.model.forecast import ExpectedMix
from autopilot.core.model.records import Evidence
from autopilot.core.model.snapshot import Bools
from autopilot.core.nodes import offer
from autopilot.core.nodes.follow_idle_nodes import being_offered
from autopilot.core.placement.shapes import shape_of, suitable_nodes
from autopilot.core.planning.context import Context
from autopilot.core.planning.expected_room import arrivals_within, usable_mix

NAME = "offer_idle"
OFFER = Case(
    NAME,
    offer.KIND,
    "unneeded",
    "offer it back: nothing has needed its {gpus:GPU} for {idle}, so it may be removed",
)
WITHDRAW = Case(NAME, offer.KIND, "needed", "take its offer back: it is needed again")
MOST_LOOKED_AT = 200
"""Waiting gangs whose needs are looked at, in the order of service; with more of them every node is needed."""


def propose(ctx: Context, submit: Submit) -> None:
    """One proposal for each node with an offer that begins or ends."""
    memory, nodes = ctx.memory, ctx.observation.snapshot.nodes
    if not ctx.policy.capacity.pools and not memory.nodes.offered_s:
        return
    unneeded = _unneeded(ctx)
    ctx.plan.not_needed(str(name) for name in nodes.id[unneeded])
    busy = being_offered(memory)
    for row in np.flatnonzero(~unneeded).tolist():
        name = str(nodes.id[row])
        if name in memory.nodes.offered_s and name not in busy:
            submit(_draft(ctx, row, WITHDRAW, on=False))
    for row in np.flatnonzero(unneeded).tolist():
        name = str(nodes.id[row])
        since_s = memory.nodes.idle_nodes_s.get(name, ctx.now_s)
        due = ctx.now_s >= since_s + ctx.policy.capacity.unneeded_s
        if due and name not in memory.nodes.offered_s and name not in busy:
            idle = Evidence("idle", round(ctx.now_s - since_s, 3), "s")
            submit(_draft(ctx, row, OFFER, idle, on=True))


def _unneeded(ctx: Context) -> Bools:
    """Unneeded nodes of the pools of the policy, now and as expected. Shape [nodes]."""
    snapshot, whatif = ctx.observation.snapshot, ctx.whatif
    nodes, pools = snapshot.nodes, snapshot.names.pools
    codes = [pools.index(pool) for pool in ctx.policy.capacity.pools if pool in pools]
    free = np.isin(nodes.pool, codes) & whatif.node_ok & (nodes.gpus > 0) & (whatif.node_free == nodes.gpus)
    free[snapshot.placements.node] = False
    for held in ctx.plan.held:
        free[held.nodes] = False
    waiting = ctx.waiting()
    mix = usable_mix(ctx)
    if len(waiting) > MOST_LOOKED_AT or mix is None:
        return np.zeros(len(nodes.id), np.bool_)
    for at in waiting:
        shape = shape_of(snapshot, int(ctx.pending[at]))
        free &= ~suitable_nodes(whatif, shape, ctx.gpu_memory_mib, empty=True)
    for code in codes:
        rows = np.flatnonzero(free & (nodes.pool == code))
        stay = ctx.policy.capacity.spare_nodes + _expected_nodes(ctx, mix, int(nodes.gpus[rows].max(initial=1)))
        free[sorted(rows.tolist(), key=lambda row: _since_s(ctx, row), reverse=True)[:stay]] = False
    return np.asarray(free)


def _since_s(ctx: Context, row: int) -> tuple[bool, float, int]:
    """Order in which nodes stay: offered ones go first, then those needed longest ago."""
    name = str(ctx.observation.snapshot.nodes.id[row])
    return name not in ctx.memory.nodes.offered_s, ctx.memory.nodes.idle_nodes_s.get(name, ctx.now_s), -row


def _expected_nodes(ctx: Context, mix: ExpectedMix, gpus: int) -> int:
    """Number of nodes with `gpus` GPUs expected by the mix to fill within `capacity.unneeded_s`."""
    arrivals = arrivals_within(mix, ctx.policy.capacity.unneeded_s)
    return ceil(float(arrivals @ np.array([kind.gpus for kind in mix.kinds], float)) / gpus) if len(mix.kinds) else 0


def _draft(ctx: Context, row: int, case: Case, *why: Evidence, on: bool) -> VerbDraft:
    """It is worth the price of the node's GPUs up to the horizon."""
    gpus = int(ctx.observation.snapshot.nodes.gpus[row])
    words = "nothing needs it" if on else "it is needed again"
    return VerbDraft(
        case=case,
        verb=offer.Offer(on=on, reason=words),
        row=row,
        benefit_gpu_s=gpus * ctx.policy.horizon_s,
        cost_gpu_s=0.0,
        evidence=(*why, Evidence("gpus", gpus, "GPUs of the node"), Evidence("why", words)),
    )


def timers(ctx: Context) -> list[float]:
    """Times at which nodes have been unneeded for long enough."""
    memory = ctx.memory
    since_s = [
        memory.nodes.idle_nodes_s.get(name, ctx.now_s)
        for name in ctx.plan.unneeded
        if name not in memory.nodes.offered_s
    ]
    return [at_s + ctx.policy.capacity.unneeded_s for at_s in since_s]


ACTION = Action(NAME, "offer nodes back that nothing needs", propose, (OFFER, WITHDRAW), timers=timers)
