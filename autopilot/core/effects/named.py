"""Rows of a plan in names: its object, places and victims."""

from __future__ import annotations

from autopilot.core.effects.draft import Draft, Eviction
from autopilot.core.model.objects import Slot, Subject, SubjectKind, Victim
from autopilot.core.model.snapshot import SLO_CLASS_NAMES, ClusterSnapshot
from autopilot.core.placement.whatif import Layout
from autopilot.core.planning.context import Context


def object_of(about: SubjectKind, row: int, snapshot: ClusterSnapshot) -> tuple[Subject, int, int]:
    """The object of a draft, and its queue and tenant; -1 for none."""
    if about == SubjectKind.WORKLOAD:
        work = snapshot.workloads
        subject = Subject(about, str(work.id[row]), str(work.uid[row]), int(work.incarnation[row]))
        return subject, int(work.queue[row]), int(work.tenant[row])
    if about == SubjectKind.SERVICE:
        services = snapshot.services
        tenants = snapshot.workloads.tenant[snapshot.workloads.service == row]
        subject = Subject(about, str(services.id[row]), str(services.uid[row]), int(services.generation[row]))
        return subject, int(services.queue[row]), int(tenants[0]) if len(tenants) else -1
    name = str((snapshot.nodes.id if about == SubjectKind.NODE else snapshot.gpus.uuid)[row])
    return Subject(about, name, name, 0), -1, -1


def slots_of(ctx: Context, layout: Layout) -> tuple[Slot, ...]:
    """A layout in names."""
    snapshot = ctx.observation.snapshot
    nodes = snapshot.nodes.id[snapshot.gpus.node[layout.gpu]].tolist()
    uuids = snapshot.gpus.uuid[layout.gpu].tolist()
    instances = [ctx.whatif.instance_id(row) for row in layout.instance.tolist()]
    return tuple(map(Slot, nodes, uuids, instances, layout.milli.tolist()))


def victims_of(draft: Draft, ctx: Context) -> tuple[Victim, ...]:
    """Work with a loss by a draft."""
    return tuple(victim_of(give, ctx, contract=draft.contract) for give in draft.taken)


def victim_of(give: Eviction, ctx: Context, *, contract: bool) -> Victim:
    """One gang with its loss."""
    work = ctx.observation.snapshot.workloads
    keeps = slots_of(ctx, give.keeps) if give.keeps is not None else ()
    part = give.gpus / max(len(ctx.whatif.layout_of(give.row)), 1) if give.how == "shrink" else 1.0
    losses = ctx.losses
    expected, worst, overhead = (
        float(column[give.row]) * part for column in (losses.expected_gpu_s, losses.worst_gpu_s, losses.overhead_gpu_s)
    )
    return Victim(
        str(work.id[give.row]),
        int(work.incarnation[give.row]),
        give.gpus,
        expected,
        contract,
        give.how,
        keeps,
        worst,
        overhead,
        str(work.uid[give.row]),
        str(ctx.observation.snapshot.queues.id[work.queue[give.row]]) if work.queue[give.row] >= 0 else "",
        SLO_CLASS_NAMES[int(work.slo_class[give.row])],
    )
