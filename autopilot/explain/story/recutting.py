"""Changes of MIG geometry in the story of one workload: of its GPUs, or of GPUs it could use."""

from __future__ import annotations

import numpy as np

from autopilot.core.model.memory.geometry import RecutRecord
from autopilot.core.model.snapshot import Bools
from autopilot.core.model.units import counted, format_duration
from autopilot.core.planning.context import Context

SHOWN = 4
"""GPUs in the list."""


def recut_lines(ctx: Context, row: int) -> list[str]:
    """One line for each changing or quarantined GPU of concern to the workload `row`."""
    whole = _whole_lines(ctx, row)
    open_changes = {uuid: each for uuid, each in ctx.memory.geometry.recuts.items() if each.state != "settled"}
    if not open_changes:
        return whole
    gpus = ctx.observation.snapshot.gpus
    mine = set(gpus.uuid[_matters(ctx, row)].tolist())
    found = [(uuid, record) for uuid, record in sorted(open_changes.items()) if uuid in mine]
    lines = whole + [_line(ctx, uuid, record) for uuid, record in found[:SHOWN]]
    return lines + ([f"and {counted(len(found) - SHOWN, 'more such GPU')}"] if len(found) > SHOWN else [])


def _whole_lines(ctx: Context, row: int) -> list[str]:
    """One line for each node with GPUs becoming whole for a waiting gang, with the expected time."""
    found = np.flatnonzero(ctx.pending == row).tolist()
    made = ctx.plan.made.get(found[0], ()) if found else ()
    gpus, by_node = ctx.observation.snapshot.gpus, dict[int, list[str]]()
    place = {uuid: number for number, uuid in enumerate(gpus.uuid.tolist())}
    for uuid in made:
        by_node.setdefault(int(gpus.node[place[uuid]]), []).append(uuid)
    return [_whole_line(ctx, node, uuids, ctx.plan.served[found[0]]) for node, uuids in sorted(by_node.items())]


def _whole_line(ctx: Context, node: int, uuids: list[str], takes_s: float) -> str:
    name = ctx.observation.snapshot.nodes.id[node]
    records = [ctx.memory.geometry.recuts.get(uuid) for uuid in uuids]
    begun = [each for each in records if each is not None and each.state in {"changing", "beside"}]
    stays = [uuid for uuid, each in zip(uuids, records, strict=True) if each in begun and each.state == "beside"]
    leave = [uuid for uuid in uuids if uuid not in stays]
    shown = ", ".join(leave[:SHOWN]) + (f" and {len(leave) - SHOWN} more" if len(leave) > SHOWN else "")
    what = f"{shown} of node {name} {'leaves' if len(leave) == 1 else 'leave'} MIG mode for it"
    if not leave:
        what = f"the MIG geometry of node {name} changes, and {counted(len(stays), 'whole GPU')} of it will be free"
    if not begun:
        return f"{what}: expected in {format_duration(takes_s)}"
    left_s = min(each.since_s for each in begun) + takes_s - ctx.now_s
    when = f"expected in {format_duration(left_s)}" if left_s > 0 else f"expected {format_duration(-left_s)} ago"
    late = format_duration(max(max(each.deadline_s for each in begun) - ctx.now_s, 0.0))
    return f"{what}: {when}, late in {late}"


def _matters(ctx: Context, row: int) -> Bools:
    """GPUs of the workload; for work waiting for MIG instances, all GPUs of its allowed models."""
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
