"""Advance reservations: GPUs of one model for the work of a queue, from a given time on.

The GPUs are held by draining. From `reservation.advance_lead_s` before the start, work that would outlive the start may
use only the spare GPUs of the chosen nodes. Work with a predicted end before it, and backfilled work, may use them.
From the start on, the GPUs idle for the queue's own work for `grace_s`; those unused by then are released. GPUs of the
model already held by the queue count. The guarantees of other queues take precedence over the part above that of the
queue. Only backfilled work is evicted; a note reports other work still running there at the start.
"""

from __future__ import annotations

import numpy as np

from autopilot.core.model.records import About, Evidence, Note, NoteCode, Reservation
from autopilot.core.model.snapshot import Bools
from autopilot.core.model.work import named
from autopilot.core.placement.shapes import Shape
from autopilot.core.planning.context import Context
from autopilot.core.planning.plan_state import Held
from autopilot.core.quota.ledger import claim_kinds
from autopilot.core.quota.rules.base import Claim

MOST = 8
"""Advance reservations held at once, the earliest first; the others wait."""


def hold_advance(ctx: Context) -> None:
    """Hold the advance reservations of this tick, and note their nodes."""
    table, now_s = ctx.observation.snapshot.advance, ctx.now_s
    if not len(table.id):
        return
    begins_s = table.start_s - ctx.policy.reservation.advance_lead_s
    over_s = table.start_s + table.grace_s
    for moment_s in np.concatenate([begins_s, table.start_s, over_s]).tolist():
        if moment_s > now_s:
            ctx.plan.wake_at(moment_s)
    current = np.flatnonzero((begins_s <= now_s) & (now_s < over_s))
    for row in current[np.argsort(table.start_s[current], kind="stable")][:MOST].tolist():
        _hold(ctx, row)


def _hold(ctx: Context, row: int) -> None:
    """Choose nodes for one reservation, those of the previous tick first, and hold them."""
    snapshot, table = ctx.observation.snapshot, ctx.observation.snapshot.advance
    queue, model, name = int(table.queue[row]), int(table.gpu_model[row]), str(table.id[row])
    start_s = float(table.start_s[row])
    own = _own_gpus(ctx, queue)
    right = snapshot.nodes.gpu_model[snapshot.gpus.node] == model
    left = int(table.gpus[row]) - int((own & right).sum())
    if left <= 0:
        return
    count = len(snapshot.nodes.id)
    usable = ctx.whatif.gpu_whole & right & ~own
    ready = np.bincount(snapshot.gpus.node[usable & _free_by(ctx, start_s)], minlength=count)
    most = np.bincount(snapshot.gpus.node[usable], minlength=count)
    before = named(snapshot.nodes.id, ctx.memory.plan.advance.get(name, ()))
    counts = _choose(ready, before, left)
    counts += _choose(most - counts, before, left - int(counts.sum()))
    chosen = np.flatnonzero(counts)
    nodes = chosen.astype(np.int32)
    ctx.plan.reserve_nodes(name, tuple(snapshot.nodes.id[nodes].tolist()))
    record = Reservation(
        f"advance reservation {name} of queue {snapshot.queues.id[queue]}",
        0,
        left,
        start_s,
        start_s,
        start_s,
        ctx.plan.advance[name],
    )
    shape = Shape(left, 1, 0, 0, -1, 1 << model, 0, 0, 0, 0)
    kinds = claim_kinds(ctx.quota.ledger.kind_of_model, 1 << model)
    inside = ctx.quota.guaranteed(left, lambda gpus: Claim(-1, queue, gpus, kinds, 0, 0.0, np.nan, True, gpus, gpus))
    lent = np.minimum(counts, np.maximum(np.cumsum(counts) - inside, 0))[chosen].astype(np.int32)
    spare = (ready[nodes] - counts[chosen]).astype(np.int32)
    held = counts[chosen].astype(np.int32)
    ctx.plan.hold(Held(-1, record, shape, start_s, nodes, held, spare, queue, lent=lent))
    if ctx.now_s >= start_s:
        _say(ctx, row, left, int(np.minimum(ctx.whatif.node_free[nodes], counts[chosen]).sum()))


def _say(ctx: Context, row: int, left: int, free: int) -> None:
    """While it waits for its queue's work: its GPUs, the missing ones, and the end of its time."""
    table = ctx.observation.snapshot.advance
    ends_s = float(table.start_s[row] + table.grace_s[row]) - ctx.now_s
    code = NoteCode.ADVANCE_HELD if free >= left else NoteCode.ADVANCE_NOT_FREE
    facts = Evidence("gpus", left, "GPUs"), Evidence("not_free", max(left - free, 0), "GPUs")
    ctx.plan.note(Note(code, About.RESERVATION, str(table.id[row]), round(ends_s, 3), "s", facts))


def _own_gpus(ctx: Context, queue: int) -> Bools:
    """GPUs held and kept by the work of a queue, or of those below it. Shape [gpus]."""
    snapshot = ctx.observation.snapshot
    held, own = snapshot.placements, np.zeros(len(snapshot.gpus.uuid), np.bool_)
    below = np.array(ctx.below(queue), np.int32)
    own[held.gpu[~held.leaving & np.isin(snapshot.workloads.queue[held.workload], below)]] = True
    return own


def _free_by(ctx: Context, start_s: float) -> Bools:
    """GPUs free at `start_s` by prediction, or now once that is past; backfilled work counts as gone. [gpus]."""
    held, work = ctx.observation.snapshot.placements, ctx.observation.snapshot.workloads
    free = ctx.whatif.gpu_used == 0 if ctx.now_s >= start_s else ctx.plan.gpu_free_at_s <= start_s
    marked = held.gpu[work.backfilled[held.workload]]
    free[marked] = True
    return np.asarray(free)


def _choose(most: np.ndarray, before: Bools, wanted: int) -> np.ndarray:
    """GPUs to hold on each node, `wanted` in all as far as there are. Shape [nodes].

    The nodes of `before` come first, then the node with the fewest sufficient GPUs, else the one with most.
    """
    counts = np.where(before, most, 0)
    counts = np.clip(wanted - (np.cumsum(counts) - counts), 0, counts)
    left, rest = wanted - int(counts.sum()), most - counts
    while left > 0 and rest.any():
        enough = np.flatnonzero(rest >= left)
        node = int(enough[np.argmin(rest[enough])] if len(enough) else np.argmax(rest))
        taken = min(left, int(rest[node]))
        counts[node] += taken
        rest[node] -= taken
        left -= taken
    return np.asarray(counts)
