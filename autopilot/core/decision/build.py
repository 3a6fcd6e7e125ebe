"""Builds the working set of one tick from the observation, memory and policy."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from autopilot.core.effects.pipelined import once_done
from autopilot.core.facts.table import Kept
from autopilot.core.model.codes import ConditionKind
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.plan import Condition
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import About, Code, Evidence, Note, NoteCode, Observation
from autopilot.core.model.snapshot import ClusterSnapshot, State
from autopilot.core.model.work import holding_mask
from autopilot.core.placement.whatif import Layout, WhatIf
from autopilot.core.planning.context import Context
from autopilot.core.planning.facts import Facts
from autopilot.core.planning.ordering.predicted_ends import gpu_free_at, run_times
from autopilot.core.planning.plan_state import CODE_INDEX, NO_TURN, PlanState
from autopilot.core.planning.quota_state import build_quota


def build_context(
    observation: Observation,
    policy: Policy,
    memory: ControllerMemory,
    whatif: WhatIf,
    busy_rows: frozenset[int],
    kept: Kept | None = None,
) -> Context:
    """The working set of one tick. `busy_rows` have an effect under way and are not planned."""
    facts = Facts(
        observation=observation, policy=policy, kept=Kept() if kept is None else kept, recalled=memory, busy=busy_rows
    )
    work, pending = observation.snapshot.workloads, facts.pending
    ctx = Context(
        observation=observation,
        policy=policy,
        kept=facts.kept,
        recalled=memory,
        busy=busy_rows,
        memory=memory,
        whatif=whatif,
        quota=build_quota(
            observation.snapshot,
            policy,
            whatif,
            facts.lost_gpu_s,
            facts.weights,
            facts.noted_since_s,
            observation.now_s,
            busy_rows,
        ),
        plan=PlanState(
            gpu_free_at_s=gpu_free_at(whatif, facts.end_s),
            taken=np.zeros(len(pending), np.bool_),
            code=np.full(len(pending), CODE_INDEX[Code.CAPACITY], np.int8),
            value=np.zeros(len(pending)),
            threshold=work.gpus[pending].astype(float),
            turn=np.full(len(pending), NO_TURN, np.int32),
            leaving=leaving_rows(observation.snapshot, busy_rows),
        ),
    )
    ctx.plan.remember(ctx.quota.starts.conditions)
    _note_lent(ctx)
    _book_open_effects(ctx, busy_rows)
    return ctx


def _note_lent(ctx: Context) -> None:
    """Note lent work once for each incarnation: its protection holds until the owner of its GPUs returns.

    Also note queues that keep more than their guarantee by work that ran before.
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
    run_s = run_times(work, ctx.policy, ctx.outlook, rows).low_s
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
    """Gangs already giving up GPUs, with the rest of their layout; None: nothing."""
    held, work = snapshot.placements, snapshot.workloads
    rows = np.unique(held.workload[held.leaving])
    found: dict[int, Layout | None] = {}
    for row in rows.tolist():
        if row not in busy_rows and not work.stuck[row]:
            stays = (held.workload == row) & ~held.leaving
            found[row] = Layout(held.gpu[stays], held.instance[stays], held.milli[stays]) if stays.any() else None
    return found
