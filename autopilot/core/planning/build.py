"""Builds the working set of one tick from the observation, memory and policy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from autopilot.core.checkpoints.earlier_stops import earlier_stops
from autopilot.core.checkpoints.losses import saves_ratio, stop_losses
from autopilot.core.checkpoints.writers import cannot_save
from autopilot.core.facts.table import Kept
from autopilot.core.hardware.gpu_products import find_product
from autopilot.core.model.codes import ConditionKind
from autopilot.core.model.memory import Condition, ControllerMemory
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import About, Code, Evidence, Note, NoteCode, Observation, Reservation
from autopilot.core.model.snapshot import F64, I32, Bools, ClusterSnapshot, State
from autopilot.core.model.work import holding_mask, progress_s
from autopilot.core.ordering.job_order import aged_index, service_order
from autopilot.core.ordering.predicted_ends import (
    Outlook,
    gap_ends,
    gpu_free_at,
    look_out,
    may_reserve,
    predicted_ends,
    review_start,
    run_times,
)
from autopilot.core.ordering.signatures import pending_table
from autopilot.core.placement.shapes import shape_classes
from autopilot.core.placement.whatif import Layout, WhatIf
from autopilot.core.planning.context import Context
from autopilot.core.planning.plan_state import CODE_INDEX, NO_TURN, PlanState
from autopilot.core.planning.quota_state import build_quota
from autopilot.core.quota.past_use import corrected_weights
from autopilot.core.tracking.pipelined import once_done
from autopilot.core.tracking.replicas import ahead_mask


def build_context(
    observation: Observation,
    policy: Policy,
    memory: ControllerMemory,
    whatif: WhatIf,
    busy_rows: frozenset[int],
    kept: Kept | None = None,
) -> Context:
    """The working set of one tick. `busy_rows` have an effect under way and are not planned."""
    snapshot, work = observation.snapshot, observation.snapshot.workloads
    review_now_s, noted_since_s = review_start(observation.now_s, policy), _noted_since_s(memory)
    pending = np.flatnonzero(work.state == State.PENDING).astype(np.int32)
    if busy_rows:
        pending = pending[~np.isin(pending, np.fromiter(busy_rows, np.int32))]
    outlook = look_out(observation, policy, review_now_s)
    standing = standing_reservations(memory, observation, pending)
    order, index, firm = _in_order(snapshot, policy, outlook, standing, pending, review_now_s)
    ordered, firm = pending[order], firm[order]
    low, high, known = run_times(observation, policy, outlook, ordered)
    end_s = predicted_ends(observation, policy, outlook, review_now_s, policy.reservation.level)
    count, foreseen = len(ordered), ahead_mask(snapshot)
    members = members_by_row(snapshot)
    classes = shape_classes(snapshot, ordered, members, spot_saves=whatif.spot_saves)
    saves = saves_ratio(snapshot, memory, policy, observation.now_s)
    lost_gpu_s = stop_losses(snapshot, review_now_s, saves).price_gpu_s
    weights = corrected_weights(memory, snapshot.queues, policy)
    quota = build_quota(snapshot, policy, whatif, lost_gpu_s, weights, noted_since_s, observation.now_s, busy_rows)
    ctx = Context(
        observation=observation,
        policy=policy,
        kept=Kept() if kept is None else kept,
        memory=memory,
        whatif=whatif,
        review_now_s=review_now_s,
        outlook=outlook,
        pending=ordered,
        index=index[order],
        pending_table=pending_table(work, ordered, classes, members, observation.now_s, quota.protected),
        classes=classes,
        firm=firm,
        may_reserve=may_reserve(observation, policy, memory, ordered, review_now_s) & ~foreseen[ordered],
        standing=standing,
        noted_since_s=noted_since_s,
        run_low_s=low,
        run_high_s=high,
        gap_end_s=gap_ends(observation, policy, ordered, high, known),
        known=known,
        end_s=end_s,
        busy=busy_rows,
        lost_gpu_s=lost_gpu_s,
        stops=earlier_stops(work, memory, policy.protection, end_s),
        losses=stop_losses(snapshot, observation.now_s, saves),
        unsaved=cannot_save(work, policy.preemption.grace_s),
        quota=quota,
        members=members,
        gpu_memory_mib=np.array([gpu_memory_mib(name) for name in snapshot.names.gpu_models], float),
        ahead=foreseen[ordered],
        plan=PlanState(
            gpu_free_at_s=gpu_free_at(whatif, end_s),
            taken=np.zeros(count, np.bool_),
            code=np.full(count, CODE_INDEX[Code.CAPACITY], np.int8),
            value=np.zeros(count),
            threshold=work.gpus[ordered].astype(float),
            turn=np.full(count, NO_TURN, np.int32),
            leaving=leaving_rows(snapshot, busy_rows),
        ),
    )
    ctx.plan.remember(quota.starts.conditions)
    _note_lent(ctx)
    _book_open_effects(ctx, busy_rows)
    return ctx


def _noted_since_s(memory: ControllerMemory) -> dict[Condition, float]:
    return {noted.condition: noted.since_s for noted in memory.conditions}


def _in_order(
    snapshot: ClusterSnapshot,
    policy: Policy,
    outlook: Outlook,
    standing: Mapping[int, Reservation],
    pending: I32,
    review_now_s: float,
) -> tuple[NDArray[np.intp], F64, Bools]:
    """The order of service as positions in `pending`; the index of each gang, and whether its reservation is or would
    be a promise. The latter two in the order of `pending`.
    """
    work = snapshot.workloads
    wait_s = review_now_s - work.submit_s[pending]
    firm = wait_s >= policy.reservation.firm_after_s
    promised_since_s = np.full(len(pending), np.inf)
    for at in np.flatnonzero(firm & np.isin(pending, np.fromiter(standing, np.int32, len(standing)))).tolist():
        promised_since_s[at] = standing[int(pending[at])].since_s
    # who ran already would only take turns by its age
    fresh_s = np.where(progress_s(work, pending, review_now_s)[1] > 0, 0.0, wait_s)
    index = aged_index(outlook.index_per_s[pending], work.gpus[pending], fresh_s, policy.order)
    order = service_order(
        snapshot, pending, index, outlook.quantile_s(pending, 0.5), promised_since_s, review_now_s, policy.order
    )
    return order, index, firm


def _note_lent(ctx: Context) -> None:
    """Note lent work once for each incarnation: its protection holds until the owner of its GPUs returns. Note queues
    that keep more than their guarantee by work that ran before.
    """
    work, kept = ctx.observation.snapshot.workloads, defaultdict[int, float](float)
    for row, gpus in ctx.quota.kept.items():
        kept[int(work.queue[row])] += gpus
    for queue, gpus in sorted(kept.items()):
        name = ctx.observation.snapshot.queues.id[queue]
        ctx.plan.note(Note(NoteCode.PROTECTION_KEPT, About.QUEUE, str(name), facts=(Evidence("gpus", gpus),)))
    for row in sorted(ctx.quota.lent):
        lent = Condition(ConditionKind.LENT, str(work.uid[row]), int(work.incarnation[row]))
        if lent not in ctx.noted_since_s:
            ctx.plan.remember({lent: ctx.now_s})
            facts = (Evidence("uid", lent.uid), Evidence("incarnation", lent.incarnation))
            ctx.plan.note(Note(NoteCode.PROTECTION_LENT, About.WORKLOAD, str(work.id[row]), facts=facts))


def _book_open_effects(ctx: Context, busy_rows: frozenset[int]) -> None:
    """Book effects under way into the predictions and the quota ledger; the what-if has them already."""
    ctx.quota.leaving |= busy_rows
    rows = np.array(sorted(busy_rows), np.int32)
    if not len(rows):
        return
    held, work = ctx.observation.snapshot.placements, ctx.observation.snapshot.workloads
    mine = np.flatnonzero(np.isin(held.workload, rows) & ~held.leaving & holding_mask(work)[held.workload])
    mine = mine[np.argsort(held.workload[mine], kind="stable")]
    after = once_done(ctx.memory, ctx.whatif, busy_rows)
    leaves = ctx.leaving_mask()  # without victims whose eviction has failed: they stay
    run_s, _, _ = run_times(ctx.observation, ctx.policy, ctx.outlook, rows)
    for row, length_s in zip(rows.tolist(), run_s.tolist(), strict=True):
        if row in after:
            low, high = np.searchsorted(held.workload[mine], (row, row + 1))
            counted = mine[low:high]
            ctx.quota.book(row, Layout(held.gpu[counted], held.instance[counted], held.milli[counted]), -1)
            ctx.quota.book(row, after[row])
        if row in ctx.whatif.layouts:
            ctx.plan.foresee(ctx.whatif.layouts[row], ctx.now_s + length_s)
        gives = row in ctx.whatif.layouts or work.state[row] == State.CHECKPOINTING  # also where its start was given up
        if gives and leaves[row] and row in after and len(ctx.whatif.layout_of(row).minus(after[row])):
            ctx.plan.leave(row, after[row] if len(after[row]) else None)  # what nobody has booked of it


def leaving_rows(snapshot: ClusterSnapshot, busy_rows: frozenset[int]) -> dict[int, Layout | None]:
    """Gangs that are giving up GPUs already, and what they keep; None: nothing."""
    held, work = snapshot.placements, snapshot.workloads
    rows = np.unique(held.workload[held.leaving])
    found: dict[int, Layout | None] = {}
    for row in rows.tolist():
        if row not in busy_rows and not work.stuck[row]:
            stays = (held.workload == row) & ~held.leaving
            found[row] = Layout(held.gpu[stays], held.instance[stays], held.milli[stays]) if stays.any() else None
    return found


def members_by_row(snapshot: ClusterSnapshot) -> dict[int, list[int]]:
    """Members of the gangs of whole GPUs or MIG instances whose members differ in more than their rank."""
    table, work = snapshot.members, snapshot.workloads
    by_row: dict[int, list[int]] = {}
    for member, row in enumerate(table.workload.tolist()):
        by_row.setdefault(row, []).append(member)

    def differ(row: int, members: list[int]) -> bool:
        kinds = {(int(table.gpus[each]), int(table.selector[each]), int(table.mig_profile[each])) for each in members}
        one = (int(work.gpus_per_member[row]), int(work.selector[row]), int(work.mig_profile[row]))
        return bool(work.gpu_milli[row] == 0 and kinds != {one})

    return {row: members for row, members in by_row.items() if differ(row, members)}


def standing_reservations(memory: ControllerMemory, observation: Observation, pending: I32) -> dict[int, Reservation]:
    """Reservations in memory whose gang still waits in the same incarnation, by row."""
    work = observation.snapshot.workloads
    found = {}
    for record in memory.reservations:
        rows = pending[work.uid[pending] == record.uid]
        if len(rows) and int(work.incarnation[rows[0]]) == record.incarnation:
            found[int(rows[0])] = record
    return found


@lru_cache(maxsize=512)
def gpu_memory_mib(model: str) -> float:
    """Memory of one GPU of `model` in MiB, as its name states it (`H100-80GB`), else by its product; 0 if unknown."""
    tail = model.rsplit("-", 1)[-1]
    if tail.endswith("GB") and tail[:-2].isdigit():
        return float(tail[:-2]) * 1024
    product = find_product(model)
    return float(product.memory_gb) * 1024 if product is not None else 0.0
