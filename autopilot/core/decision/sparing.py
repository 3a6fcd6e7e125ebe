"""Starts that no longer need all of their victims, after a failed eviction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from autopilot.core.effects.pipelined import Lookup
from autopilot.core.model.memory.starts import PipelinedStart
from autopilot.core.model.records import Instruction
from autopilot.core.model.work import named
from autopilot.core.placement.shapes import Fit
from autopilot.core.placement.whatif import Layout
from autopilot.core.planning.context import Context
from autopilot.core.planning.places import place
from autopilot.core.search.scenario import let_leave


def can_spare(ctx: Context, pipelined: PipelinedStart, due: Sequence[Instruction], names: Lookup) -> bool:
    """True if the start comes about without one victim of `due`, not stopped or left in its place.

    `ctx` is without the start and these takings. Everything else that leaves counts as gone.
    """
    takes: dict[int, Layout | None] = {}
    for effect in due:
        slots = effect.operation.slots
        takes[names.workload[effect.subject.uid]] = names.layout(slots) if slots else None
    lands = {
        names.workload[part.uid]: names.layout(part.slots)
        for part in pipelined.parts
        if part.uid != pipelined.uid and part.uid in names.workload
    }
    starts = any(part.uid == pipelined.uid for part in pipelined.parts)
    for spared in takes:
        mark, saved = _keep_reserved(ctx, pipelined), ctx.quota.ledger.saved()
        gone = {row: keeps for row, keeps in takes.items() if row != spared}
        found = _move(ctx, gone, {row: layout for row, layout in lands.items() if row != spared})
        found = found and (not starts or _fits(ctx, names.workload.get(pipelined.uid, -1)))
        ctx.quota.ledger.restore(saved)
        ctx.whatif.rollback(mark)
        if found:
            return True
    return False


def _keep_reserved(ctx: Context, pipelined: PipelinedStart) -> int:
    """Set aside nodes reserved for others, except for the nodes of the start; the mark to roll back to."""
    mark = ctx.whatif.checkpoint()
    own = {slot.node for part in pipelined.parts for slot in part.slots}
    reserved = {node for each in ctx.memory.plan.reservations if each.uid != pipelined.uid for node in each.nodes} - own
    if reserved:
        nodes, gpus = ctx.observation.snapshot.nodes, ctx.observation.snapshot.gpus
        ctx.whatif.set_aside(np.flatnonzero(named(nodes.id, reserved)[gpus.node]).astype(np.int32))
    return mark


def _move(ctx: Context, gone: Mapping[int, Layout | None], lands: Mapping[int, Layout | None]) -> bool:
    """Let victims give up their GPUs, and put moving ones on their new place. False if one has none."""
    let_leave(ctx)
    for row, keeps in gone.items():
        if len(ctx.whatif.layout_of(row)):  # other starts may have all of it already
            ctx.quota.book(row, ctx.whatif.evict(row), -1)
        if keeps is not None:
            ctx.whatif.place(row, keeps)
            ctx.quota.book(row, keeps)
    for row, layout in lands.items():
        if layout is None or len(ctx.whatif.layout_of(row)) or not ctx.whatif.fits(layout):
            return False
        ctx.whatif.place(row, layout)
        ctx.quota.book(row, layout)
    return True


def _fits(ctx: Context, row: int) -> bool:
    """True if quotas let a pending gang start and it has room."""
    if row not in ctx.pending:
        return False
    at = ctx.position_of(row)
    gpus = ctx.pending_table.least_gpus[at]
    return ctx.may_start(at, gpus) is None and isinstance(place(ctx, at, ctx.shape(row, gpus)), Fit)
