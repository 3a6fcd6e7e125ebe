"""Ask the autoscaler of the cluster for nodes, for gangs without a fit on the present ones.

A gang asks once it has waited `capacity.after_s`, its quota allows its start, and no start is planned for it before new
nodes would arrive. Only pools named by `capacity.pools` grow, up to the number of nodes given there. The offer of a new
node of a pool is known from the existing nodes of the pool. Free GPUs count first, for one gang after the other.

Replicas of services do not ask: their pods exist, and an autoscaler sees pods without a node.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import inf

import numpy as np

from autopilot.core.effects.action import Action
from autopilot.core.effects.draft import Case, NoteCase, Submit, VerbDraft
from autopilot.core.model.records import About, Code, Evidence, Note
from autopilot.core.model.snapshot import I32, State, Topology
from autopilot.core.nodes import provision
from autopilot.core.nodes.follow_requests import open_requests
from autopilot.core.placement.shapes import Shape, host_members, members_on, shape_of, suitable_models, suitable_nodes
from autopilot.core.planning.context import Context

NAME = "request_capacity"
ASK = Case(
    NAME,
    provision.KIND,
    words="ask the autoscaler for {nodes:node} of pool {pool}: it has waited {waited} for {gpus:GPU}, and the nodes "
    "that there are do not take it; each new one takes up to {per_node:GPU} of it",
)
ELSEWHERE = NoteCase(
    "elsewhere",
    "{subject} has waited {value} for {gpus:GPU}, and no nodes are asked for it; a queue of MultiKueue may start it in "
    "another cluster",
)
MOST_NOTES = 8
NO_ROOM = frozenset({Code.CAPACITY, Code.FRAGMENTED, Code.TOPOLOGY, Code.RESERVED})


@dataclass(frozen=True, slots=True)
class Growth:
    """A pool that can grow: a node of it as the pattern of new ones, and the number of nodes that may still come."""

    pool: str
    pattern: int  # row
    left: int


def propose(ctx: Context, submit: Submit) -> None:
    """One request for each gang that a pool could serve, in the order of service."""
    _elsewhere(ctx)
    rules, under_way = ctx.policy.capacity, open_requests(ctx.memory)
    left = rules.most_requests - len(under_way)
    growths = _growths(ctx) if rules.pools and left > 0 else []
    if not growths:
        return
    work, free = ctx.observation.snapshot.workloads, ctx.whatif.node_free.copy()
    for at in ctx.waiting(NO_ROOM):
        row = int(ctx.pending[at])
        if left <= 0 or not ctx.is_uniform(row):
            continue
        shape = shape_of(ctx.observation.snapshot, row, ctx.pending_table.least_gpus[at])
        if ctx.may_start(at, shape.gpus) is not None:
            continue
        missing = shape.members + (shape.tail > 0) - _take_free(ctx, shape, free)
        uid, waited_s = str(work.uid[row]), ctx.now_s - float(work.submit_s[row])
        asks = (
            work.service[row] < 0 and not work.excluded[row] and uid not in {*ctx.memory.nodes.requested_s, *under_way}
        )
        if not asks or waited_s < rules.after_s or _starts_soon(ctx, row):
            continue
        for place, growth in enumerate(growths):
            members = _members_on_new(ctx, shape, growth)
            nodes = max(-(-missing // members), 1) if members else 0
            if 0 < nodes <= growth.left and _may_span(shape, members):
                left -= 1
                growths[place] = Growth(growth.pool, growth.pattern, growth.left - nodes)
                submit(_draft(ctx, row, shape, growth.pool, nodes, members, waited_s))
                break


def _elsewhere(ctx: Context) -> None:
    """Name gangs that another cluster may start, the longest waiting first. Nothing is done about them."""
    after_s, work = ctx.policy.capacity.elsewhere_s, ctx.observation.snapshot.workloads
    asked = {*open_requests(ctx.memory), *ctx.memory.nodes.requested_s} if after_s else set()
    rows = [int(ctx.pending[at]) for at in ctx.waiting(NO_ROOM)] if after_s else []
    due = [row for row in rows if work.service[row] < 0 and ctx.now_s - work.submit_s[row] >= after_s]
    for row in sorted(due, key=lambda row: (float(work.submit_s[row]), row))[:MOST_NOTES]:
        if str(work.uid[row]) not in asked:
            waited_s = round(ctx.now_s - float(work.submit_s[row]), 3)
            gpus = Evidence("gpus", int(work.gpus[row]), "GPUs")
            ctx.plan.note(Note(ELSEWHERE.code, About.WORKLOAD, str(work.id[row]), waited_s, "s", (gpus,)))


def _take_free(ctx: Context, shape: Shape, free: I32) -> int:
    """Members taken by the present nodes beside those of earlier gangs; `free` [nodes] is reduced by them.

    A gang bound to one domain counts none: it needs new nodes for all.
    """
    if shape.topology not in {Topology.NONE, Topology.SPREAD}:
        return 0
    room = members_on(shape, np.where(suitable_nodes(ctx.whatif, shape, ctx.gpu_memory_mib), free, 0))
    before = np.cumsum(room) - room
    taken = np.clip(shape.members - before, 0, room)
    free -= (taken * shape.per_member).astype(free.dtype)
    return int(taken.sum())


def _growths(ctx: Context) -> list[Growth]:
    """Pools of the policy with room for more nodes, in its order.

    Ready nodes, and those asked for already, count.
    """
    nodes, names = ctx.observation.snapshot.nodes, ctx.observation.snapshot.names.pools
    asked: Counter[str] = Counter()
    for pool, nodes_asked in open_requests(ctx.memory).values():
        asked[pool] += nodes_asked
    found = []
    for pool, most in ctx.policy.capacity.pools.items():
        rows = np.flatnonzero(nodes.pool == names.index(pool)) if pool in names else np.empty(0, np.int32)
        left = int(most) - int(nodes.ready[rows].sum()) - asked[pool]
        if len(rows) and left > 0:
            found.append(Growth(pool, int(rows[np.argmax(nodes.gpus[rows])]), left))
    return found


def _members_on_new(ctx: Context, shape: Shape, growth: Growth) -> int:
    """Members of a gang on an empty node like those of the pool."""
    nodes, at = ctx.observation.snapshot.nodes, np.array([growth.pattern], np.int32)
    if not suitable_models(nodes, shape, ctx.gpu_memory_mib, at)[0]:
        return 0
    if ctx.whatif.spot_saves and nodes.spot[growth.pattern] and not shape.saves:
        return 0
    most = int(nodes.gpus[growth.pattern]) // shape.unit_gpus
    if shape.topology == Topology.SPREAD:
        most = min(most, 1)
    stated = [nodes.cpu_milli[at], nodes.memory_mib[at]]
    empty = [np.where(each < 0, np.iinfo(np.int64).max, each) for each in stated]
    return min(most, int(host_members(shape, empty[0], empty[1])[0])) if shape.asks_hosts else most


def _may_span(shape: Shape, members: int) -> bool:
    """True if new nodes suffice for the topology: only one node is sure to be in one domain."""
    return shape.topology in {Topology.NONE, Topology.SPREAD} or members >= shape.members + (shape.tail > 0)


def _starts_soon(ctx: Context, row: int) -> bool:
    """True if room is held for the gang, for a start before new nodes would take work."""
    soon_s = ctx.now_s + ctx.policy.capacity.arrives_s
    starts_s = min((held.start_s for held in ctx.plan.held if held.row == row), default=inf)
    return starts_s <= soon_s


def _draft(ctx: Context, row: int, shape: Shape, pool: str, nodes: int, members: int, waited_s: float) -> VerbDraft:
    """It is worth the use of the gang's GPUs up to the horizon."""
    asked = ctx.policy.capacity.provisioning_class
    return VerbDraft(
        case=ASK,
        verb=provision.Provision(pool=pool, nodes=nodes, provisioning_class=asked),
        row=row,
        benefit_gpu_s=shape.gpus * ctx.policy.horizon_s,
        cost_gpu_s=0.0,
        evidence=(
            Evidence("pool", pool),
            Evidence("nodes", nodes, "nodes"),
            Evidence("gpus", shape.gpus, "GPUs of the gang"),
            Evidence("per_node", members * shape.unit_gpus, "GPUs of the gang on each new node"),
            Evidence("waited", round(waited_s, 3), "s"),
        ),
    )


def timers(ctx: Context) -> list[float]:
    """Times at which a gang has waited long enough, and at which one may ask again."""
    rules, work = ctx.policy.capacity, ctx.observation.snapshot.workloads
    submit_s = work.submit_s[work.state == State.PENDING]
    times_s: list[float] = (submit_s + rules.elsewhere_s).tolist() if rules.elsewhere_s else []
    times_s += (submit_s + rules.after_s).tolist() if rules.pools else []
    return times_s + [since_s + rules.retry_s for since_s in ctx.memory.nodes.requested_s.values()]


ACTION = Action(NAME, "ask for nodes for gangs that do not fit", propose, (ASK,), (ELSEWHERE,), timers=timers)
