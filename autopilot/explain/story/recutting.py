"""Changes of MIG geometry in the story of one workload: of the GPUs that it holds, or that it could use."""

from __future__ import annotations

import numpy as np

from autopilot.core.model.memory import RecutRecord
from autopilot.core.model.snapshot import Bools
from autopilot.core.model.units import counted, format_duration
from autopilot.core.planning.context import Context

SHOWN = 4
"""GPUs that are named."""


def recut_lines(ctx: Context, row: int) -> list[str]:
    """One line for each GPU that changes or is quarantined, of those that matter to the workload `row`."""
    open_changes = {uuid: each for uuid, each in ctx.memory.recuts.items() if each.state != "settled"}
    if not open_changes:
        return []
    gpus = ctx.observation.snapshot.gpus
    mine = set(gpus.uuid[_matters(ctx, row)].tolist())
    found = [(uuid, record) for uuid, record in sorted(open_changes.items()) if uuid in mine]
    lines = [_line(ctx, uuid, record) for uuid, record in found[:SHOWN]]
    return lines + ([f"and {counted(len(found) - SHOWN, 'more such GPU')}"] if len(found) > SHOWN else [])


def _matters(ctx: Context, row: int) -> Bools:
    """GPUs that the workload holds; for one that waits for MIG instances, all of the models that it may use."""
    snapshot = ctx.observation.snapshot
    work, gpus = snapshot.workloads, snapshot.gpus
    found = np.zeros(len(gpus.uuid), np.bool_)
    found[snapshot.placements.gpu[snapshot.placements.workload == row]] = True
    if not found.any() and work.mig_profile[row] >= 0:
        model = snapshot.nodes.gpu_model[gpus.node]
        allowed = int(work.gpu_models[row])
        found |= np.ones(len(found), np.bool_) if not allowed else (allowed >> np.maximum(model, 0) & 1).astype(bool)
    return found


def _line(ctx: Context, uuid: str, record: RecutRecord) -> str:
    lasted = format_duration(ctx.now_s - record.since_s)
    if record.state == "quarantined":
        needed = ctx.policy.regeometry.views
        return (
            f"{uuid} has been quarantined for {lasted}: {record.reason}; {record.views} of "
            f"{counted(needed, 'list')} in a row show one legal geometry"
        )
    if record.state == "draining":
        left = format_duration(max(record.deadline_s - ctx.now_s, 0.0))
        what = "its node is drained" if record.scope == "node" else "it is drained"
        return f"{uuid} has taken no new work for {lasted}: {what} for another MIG geometry; that is given up in {left}"
    if record.state == "beside":
        return f"{uuid} has been stopped for {lasted}: the MIG geometry of another GPU of its node changes"
    late = format_duration(max(record.deadline_s - ctx.now_s, 0.0))
    who = "" if record.state == "changing" else ", not started by the autopilot"
    return f"the MIG geometry of {uuid} has been changing for {lasted}{who}; it is late in {late}"
