"""Scale an idle service down to the replicas kept by its owner, while other work waits. They come back on use.

The last step on idle work, for services alone: every replica does nothing, its owner had a notice (and a mark inside a
guarantee) for its grace, and no request is seen. A ceiling bounds the replicas: the minimum of the owner, and zero only
if a signal that wakes the service is seen (core/idle/services.py). It lapses by itself unless it is renewed, and is
lifted at once on requests, load, a change by the owner or anything unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autopilot.core.effects.action import Action
from autopilot.core.effects.draft import Case, Submit, VerbDraft
from autopilot.core.idle import ceiling
from autopilot.core.idle.facts import ladder
from autopilot.core.idle.idle_work import may_take
from autopilot.core.idle.ladder import Rung
from autopilot.core.idle.notify_idle import worth_gpu_s
from autopilot.core.idle.services import kept_replicas, out_of_reach, shrunk_rows, unused, why_back
from autopilot.core.model.memory.idle import ShrunkService
from autopilot.core.model.policy import Effect
from autopilot.core.model.records import Code, Evidence
from autopilot.core.model.work import holding_mask
from autopilot.core.planning.context import Context

NAME = "shrink_idle"
SHRINK = Case(
    NAME,
    ceiling.KIND,
    "idle",
    words="scale it down to {replicas}, until it is used again: all of its {had:replica} did nothing for {idle_for} or "
    "longer, {owner} was notified, and other work waits for GPUs; this frees {gpus:GPU}; {why}",
    by_telemetry=True,
)
RENEW = Case(
    NAME,
    ceiling.KIND,
    "renewed",
    words="keep it at {replicas}: it is still not used",
    exempt=frozenset({Code.NEEDS_APPROVAL}),
)
RETURN = Case(
    NAME,
    ceiling.KIND,
    "returned",
    words="give it its replicas back: {why}",
    contract="its owner is back",
    exempt=frozenset({Code.NEEDS_APPROVAL}),
)
LEASE_S = 1800.0
"""A ceiling that is not renewed ends after this time, also where the controller is gone."""
LOOK_S = 30.0
"""While a ceiling stands, its service is looked at this often."""


def propose(ctx: Context, submit: Submit) -> None:
    """Ceilings that end come first, then renewed ones, then at most one new one."""
    services, under_way = ctx.observation.snapshot.services, _under_way(ctx)
    for row in shrunk_rows(services):
        record = ctx.memory.idle.shrunk.get(str(services.uid[row]))
        if str(services.uid[row]) in under_way:
            continue
        why = why_back(ctx.observation.snapshot, row, record, ctx.policy, ctx.now_s)
        if why or record is None:
            submit(_ending(ctx, row, record, why))
        elif services.ceiling_until_s[row] - ctx.now_s <= LEASE_S / 2:
            submit(_renewal(ctx, row, record))
    if not under_way and _others_wait(ctx):
        for row, rungs in _candidates(ctx):
            if submit(_shrinking(ctx, row, rungs)):
                return


def _under_way(ctx: Context) -> set[str]:
    """Services with a change of their ceiling under way, by uid."""
    effects = (entry.instruction for entry in ctx.memory.effects.in_flight.values())
    return {effect.subject.uid for effect in effects if effect.operation.bounds}


def _others_wait(ctx: Context) -> bool:
    """True if work waits: GPUs that nothing asks for are left to the service."""
    return bool(ctx.waiting())


def _candidates(ctx: Context) -> list[tuple[int, list[Rung]]]:
    """Services that may be scaled down now, with the rungs of all of their replicas; the largest gain first."""
    snapshot = ctx.observation.snapshot
    work, services = snapshot.workloads, snapshot.services
    idle: dict[int, list[Rung]] = {}
    for rung in ladder(ctx):
        if 0 <= work.service[rung.row] < len(services.id):
            idle.setdefault(int(work.service[rung.row]), []).append(rung)
    holding, found = holding_mask(work), []
    for row, rungs in idle.items():
        kept, _ = kept_replicas(services, row, ctx.policy)
        held = int((holding & (work.service == row)).sum())
        everything = len(rungs) == held == int(services.replicas[row]) == int(services.ready_replicas[row])
        free = services.ceiling[row] < 0 and not services.floor[row] > kept
        if (
            kept < held
            and everything
            and not out_of_reach(services, row, kept)
            and free
            and unused(services, row, ctx.policy)
            and all(may_take(ctx, rung) for rung in rungs)
        ):
            rungs.sort(key=lambda rung: (rung.record.gpus, rung.row))
            found.append((-sum(rung.record.gpus for rung in rungs[kept:]), row, rungs))
    return [(row, rungs) for _, row, rungs in sorted(found, key=lambda each: each[:2])]


def _shrinking(ctx: Context, row: int, rungs: Sequence[Rung]) -> VerbDraft:
    kept, why = kept_replicas(ctx.observation.snapshot.services, row, ctx.policy)
    gone = rungs[kept:]
    gpus = sum(rung.record.gpus for rung in gone)
    return VerbDraft(
        case=SHRINK,
        verb=ceiling.Ceiling(
            replicas=kept,
            until_s=ctx.now_s + LEASE_S,
            had=len(rungs),
            gpus=gpus,
            owner=gone[0].record.owner,
        ),
        row=row,
        benefit_gpu_s=sum(worth_gpu_s(ctx, rung) for rung in gone),
        cost_gpu_s=float(sum(ctx.losses.price_gpu_s[rung.row] for rung in gone)),
        evidence=(
            Evidence("idle_for", round(ctx.now_s - max(rung.record.since_s for rung in rungs), 3), "s"),
            Evidence("had", len(rungs), "replicas"),
            Evidence("gpus", round(gpus, 3), "GPUs"),
            Evidence("owner", gone[0].record.owner),
            Evidence("why", why),
        ),
    )


def _renewal(ctx: Context, row: int, record: ShrunkService) -> VerbDraft:
    services = ctx.observation.snapshot.services
    return VerbDraft(
        case=RENEW,
        verb=ceiling.Ceiling(
            replicas=int(services.ceiling[row]),
            until_s=ctx.now_s + LEASE_S,
            had=record.had,
            gpus=record.gpus,
            owner=record.owner,
        ),
        row=row,
        benefit_gpu_s=record.gpus * LEASE_S,
        cost_gpu_s=0.0,
        evidence=(Evidence("ceiling", int(services.ceiling[row]), "replicas"),),
    )


def _ending(ctx: Context, row: int, record: ShrunkService | None, why: str) -> VerbDraft:
    services = ctx.observation.snapshot.services
    return VerbDraft(
        case=RETURN,
        verb=ceiling.Ceiling(
            replicas=-1,
            until_s=ctx.now_s,
            had=0 if record is None else record.had,
            gpus=0.0 if record is None else record.gpus,
            owner="" if record is None else record.owner,
        ),
        row=row,
        benefit_gpu_s=0.0,
        cost_gpu_s=0.0,
        evidence=(
            Evidence("ceiling", int(services.ceiling[row]), "replicas"),
            Evidence("why", why or "nothing is known of why it was scaled down"),
        ),
    )


def timers(ctx: Context) -> list[float]:
    """The next look at services under a ceiling."""
    if not ctx.policy.modes.on(Effect.CEILING):
        return []
    standing = np.any(ctx.observation.snapshot.services.ceiling >= 0)
    return [ctx.now_s + LOOK_S] if standing else []


ACTION = Action(NAME, "scale idle services down until they are used", propose, (SHRINK, RENEW, RETURN), timers=timers)
