"""The order of service of one tick over the startable gangs."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np
from numpy.typing import NDArray

from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.idle import IdleStep
from autopilot.core.model.snapshot import I8, Bools, ClusterSnapshot, State
from autopilot.core.model.work import named, overdue_mask
from autopilot.core.planning.context import Context
from autopilot.core.planning.ordering.queue_order import QueueRotation
from autopilot.core.quota.ledger import claim_kinds

NOT_APPROVED = 2
"""Rank of a gang whose start nobody approved."""


def queue_turns(ctx: Context, positions: NDArray[np.integer]) -> QueueRotation:
    """The order of service over these positions. It follows the books as they change."""
    work = ctx.observation.snapshot.workloads
    rows = ctx.pending[positions]
    overdue = overdue_mask(work, rows, ctx.review_now_s, ctx.policy.order) | _returning(ctx, rows)
    groups = []
    # what a person approved comes before what waits for one, and what is needed before what is foreseen
    ranks = 4 * work.slo_class[rows] + 2 * ~approved_starts(ctx, rows) + ctx.ahead[positions]
    for rank in np.unique(ranks).tolist():
        mine = ranks == rank
        lines: dict[int, list[int]] = {}
        queues = work.queue[rows[mine & ~overdue]].tolist()
        for queue, at in zip(queues, positions[mine & ~overdue].tolist(), strict=True):
            lines.setdefault(queue, []).append(at)
        groups.append((positions[mine & overdue].tolist(), lines))
    adds = (work.gpus[ctx.pending] * ctx.quota.parts(ctx.pending)).tolist()
    models = work.gpu_models[ctx.pending].tolist()
    kinds = {each: claim_kinds(ctx.quota.ledger.kind_of_model, each) for each in set(models)}

    def extra(at: int) -> tuple[float, tuple[int, ...]]:
        return adds[at], kinds[models[at]]

    width, pending, quota = work.gpus[ctx.pending].tolist(), ctx.pending.tolist(), ctx.quota

    hosts = _hosts(ctx) if quota.ledger.host_use else None
    key = quota.rules.head_key
    head_key = None if key is None else lambda at: key(quota.ledger, quota.claim(pending[at], width[at]))
    if ctx.lending.shares:
        head_key = _shared_key(ctx)
    return QueueRotation(
        quota.ledger,
        groups,
        work.submit_s[ctx.pending].tolist(),
        ctx.pending_table.queue,
        extra,
        head_key,
        None if hosts is None else hosts.__getitem__,
    )


def _hosts(ctx: Context) -> list[tuple[float, float]]:
    """CPU (milli) and memory (MiB) added by a start of each pending gang at full width, counted as by Quota.host_of."""
    work, rows = ctx.observation.snapshot.workloads, ctx.pending
    members = work.gpus[rows] / np.maximum(work.gpus_per_member[rows], 1)
    return list(zip((work.cpu_milli[rows] * members).tolist(), (work.memory_mib[rows] * members).tolist(), strict=True))


def _shared_key(ctx: Context) -> Callable[[int], tuple[float, ...]]:
    """The key under time sharing: tiers of the queues from the top, then gangs that take back at once, then
    the index.
    """
    ledger, line, lending = ctx.quota.ledger, ctx.pending_table, ctx.lending
    priority: list[int] = ledger.queues.priority.tolist()
    deepest = max(map(len, ledger.paths))
    tiers = [[-float(priority[each]) for each in path[::-1]] + [0.0] * (deepest - len(path)) for path in ledger.paths]
    takes_back = [lending.takes_back(queue) for queue in range(len(ledger.paths))]
    index, rows = ctx.shared_indices, ctx.pending.tolist()
    owed: dict[int, bool] = {}  # by scheduling signature; cleared when the ledger has a new entry
    as_of = ledger.entries

    def key(at: int) -> tuple[float, ...]:
        nonlocal as_of
        queue, signature, at_once = line.queue[at], line.signature[at], False
        if takes_back[queue]:
            if as_of != ledger.entries:
                owed.clear()
                as_of = ledger.entries
            if signature not in owed:
                owed[signature] = ctx.quota.inside(ctx.quota.claim(int(ctx.pending[at]), line.least_gpus[at]))
            at_once = owed[signature]
        return (*tiers[queue], float(not at_once), float(rows[at] not in lending.entitled), -index[at])

    return key


def approved_starts(ctx: Context, rows: NDArray[np.integer]) -> Bools:
    """True for gangs with a start approved by a person. Shape [rows]."""
    return approval_ranks(ctx, rows) < NOT_APPROVED


def approval_ranks(ctx: Context, rows: NDArray[np.integer]) -> I8:
    """0 for gangs with a start approved in the place of victims, 1 for other approved gangs, else NOT_APPROVED. [rows].

    Starts shown without victims may rest on the victims of another: those that may take them come first.
    """
    ranks: dict[str, int] = {}
    for each in ctx.memory.people.approvals.values():
        if each.seen.starts and each.given_s > ctx.now_s - ctx.policy.approval.valid_s:
            ranks[each.seen.uid] = min(ranks.get(each.seen.uid, 1), int(each.seen.taken_gpus == 0.0))
    if not ranks:
        return np.full(len(rows), NOT_APPROVED, np.int8)
    uids = ctx.observation.snapshot.workloads.uid[rows].tolist()
    return np.array([ranks.get(uid, NOT_APPROVED) for uid in uids], np.int8)


def _returning(ctx: Context, rows: NDArray[np.integer]) -> Bools:
    """Suspended work of a returned owner, as far as the guarantee of its queue reaches. Shape [rows].

    It comes before other work of its class, oldest first, as overdue gangs do; above the guarantee it keeps its place.
    """
    first = np.zeros(len(rows), np.bool_)
    back = returning_rows(ctx.memory, ctx.observation.snapshot)
    if not back:
        return first
    work, ledger = ctx.observation.snapshot.workloads, ctx.quota.ledger
    more: dict[int, float] = {}
    for place in sorted(range(len(rows)), key=lambda place: (work.submit_s[rows[place]], rows[place])):
        row = int(rows[place])
        if row in back:
            queue = int(work.queue[row])
            gpus = more.get(queue, 0.0) + float(work.gpus[row]) * ctx.quota.part(row)
            kinds = claim_kinds(ledger.kind_of_model, int(work.gpu_models[row]))
            if ledger.within_guarantee(queue, gpus, kinds):
                more[queue], first[place] = gpus, True
    return first


def returning_rows(memory: ControllerMemory, snapshot: ClusterSnapshot) -> set[int]:
    """Rows of waiting work of a returned owner: suspended work, and replicas taken from a service."""
    work, services = snapshot.workloads, snapshot.services
    uids = [uid for uid, record in memory.idle.records.items() if record.step == IdleStep.RETURNED]
    rows: list[int] = np.flatnonzero(named(work.uid, uids)).tolist() if uids else []
    back = [uid for uid, record in memory.idle.shrunk.items() if record.returned_s < inf]
    if back:
        waits = np.isin(work.service, np.flatnonzero(named(services.uid, back))) & (work.state == State.PENDING)
        rows += np.flatnonzero(waits).tolist()
    return set(rows)
