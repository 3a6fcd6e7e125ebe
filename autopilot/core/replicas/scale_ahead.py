"""Raise the replicas of a service before the predicted load arrives.

The target is the number of replicas for the predicted load within the lead time. It becomes a floor for the autoscaler
of the service. A forecast can add or keep replicas; the autoscaler still scales with the load above the floor. A floor
rises at once, falls to the highest target of the dwell time, and lapses if it is not renewed. A replica on a MIG
instance counts as its part of a GPU.

Here these replicas start on free and borrowed capacity only (`Context.ahead`); `make_room` displaces work for them, and
then the floor does not fall before the room may be returned. Present load goes first: while a replica needed by a load
finds no place, no floor rises, and services with replicas above their own need give up as many as it takes. Only
replicas of the same kind compete: those on GPUs and shares, or those of one MIG profile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from autopilot.core.effects.action import Action
from autopilot.core.effects.draft import Case, Submit, VerbDraft
from autopilot.core.hardware.mig_profiles import compute_share, find_gpu_model
from autopilot.core.model.memory.replicas import ServiceRecord
from autopilot.core.model.records import About, Evidence, Note
from autopilot.core.model.work import gpu_part, holding_mask
from autopilot.core.planning.context import Context
from autopilot.core.planning.foresight import Ahead, beyond_served
from autopilot.core.replicas import scale
from autopilot.core.replicas.follow import desired_replicas, room_until_s

NAME = "scale_ahead"
FLOOR = Case(
    NAME,
    scale.KIND,
    "floor",
    words="keep at least {replicas} (needed now: {needed_now}), for up to {demand_foreseen} requests/s within "
    "{within}, {replica_serves} of them a replica",
)
GIVE_BACK = Case(NAME, scale.KIND, "give_back", words="remove the floor: the forecast load needs none")
LAPSED = Case(NAME, scale.KIND, "lapsed", words="remove the floor: it ended {ended} ago and was not renewed")


@dataclass(frozen=True, slots=True)
class _Lack:
    """GPUs lacked by needed replicas, by MIG profile (-1: GPUs and shares), and the services that give some up."""

    gpus: Mapping[int, float]
    yields: frozenset[int]


def propose(ctx: Context, submit: Submit) -> None:
    """One proposal for each service with a floor to be changed or renewed; a note for an unknown forecast."""
    effects = (entry.instruction for entry in ctx.memory.effects.in_flight.values())
    under_way = {effect.subject.uid for effect in effects if effect.operation.sets_floor}
    services = ctx.observation.snapshot.services
    asked = ctx.foreseen
    lacking_gpus = _lacking_gpus(ctx) if asked else {}
    lack = _Lack(lacking_gpus, _yields(ctx, lacking_gpus))
    for ahead in asked:
        name = str(services.id[ahead.row])
        if ahead.unknown is not None:
            ctx.plan.note(Note(ahead.unknown, About.SERVICE, name, facts=ahead.facts))
        elif str(services.uid[ahead.row]) not in under_way and _propose(ctx, ahead, lack, submit):
            under_way.add(str(services.uid[ahead.row]))
    for row in np.flatnonzero(services.floor_until_s <= ctx.now_s).tolist():
        if str(services.uid[row]) not in under_way:
            submit(_lapsed(ctx, row))


def _lacking_gpus(ctx: Context) -> dict[int, float]:
    """GPUs of replicas needed by their load and without a place in this tick, by MIG profile."""
    work, lacking = ctx.observation.snapshot.workloads, defaultdict[int, float](float)
    rows = ctx.pending[ctx.waiting()]
    for row in rows[work.service[rows] >= 0].tolist():
        lacking[int(work.mig_profile[row])] += _gpus(ctx, row)
    return dict(lacking)


def _yields(ctx: Context, lacking_gpus: Mapping[int, float]) -> frozenset[int]:
    """Services with floors to lower for that: the fewest, those with the largest surplus first."""
    services, work = ctx.observation.snapshot.services, ctx.observation.snapshot.workloads
    spare = []
    for row in np.flatnonzero(services.floor > 0).tolist() if lacking_gpus else ():
        holds = int((holding_mask(work) & (work.service == row)).sum())
        beyond = holds - int(services.needed_replicas[row])
        if beyond > 0 and services.needed_replicas[row] >= 0:
            spare.append((beyond * _gpus_per_replica(ctx, row), row))
    chosen, found_gpus = set(), defaultdict[int, float](float)
    for gpus, row in sorted(spare, reverse=True):
        profile = _profile(ctx, row)
        if found_gpus[profile] < lacking_gpus.get(profile, 0.0):
            chosen.add(row)
            found_gpus[profile] += gpus
    return frozenset(chosen)


def _lapsed(ctx: Context, row: int) -> VerbDraft:
    """A floor past its time, still with its record or with the replicas set by it."""
    services = ctx.observation.snapshot.services
    ended_s = ctx.now_s - float(services.floor_until_s[row])
    evidence = (Evidence("ended", round(ended_s, 3), "s"), Evidence("floor", int(services.floor[row]), "replicas"))
    return VerbDraft(
        case=LAPSED,
        verb=scale.Scale(replicas=0, until_s=ctx.now_s),
        row=row,
        benefit_gpu_s=0.0,
        cost_gpu_s=0.0,
        evidence=evidence,
    )


def _propose(ctx: Context, ahead: Ahead, lack: _Lack, submit: Submit) -> bool:
    """Raise, renew, lower or release the floor of one service; False if there is nothing to do."""
    services, row = ctx.observation.snapshot.services, ahead.row
    record = ctx.memory.replicas.services.get(str(services.uid[row]), ServiceRecord())
    rules = ctx.policy.scale_ahead
    desired, stands = desired_replicas(record, ahead, ctx.now_s, rules.dwell_s), int(services.floor[row])
    if 0 <= desired < stands and ctx.now_s < room_until_s(record, ctx.policy.room):
        desired = stands
    if lack.gpus.get(_profile(ctx, row)):
        desired = min(desired, int(services.needed_replicas[row]) if row in lack.yields else stands)
    desired = desired if desired > int(services.min_replicas[row]) else 0  # what the owner keeps anyway needs no floor
    left_s = float(services.floor_until_s[row]) - ctx.now_s
    if desired == stands and (desired == 0 or left_s > rules.lease_s / 2):
        return False
    submit(_draft(ctx, ahead, record, desired, ctx.now_s + rules.lease_s if desired else ctx.now_s))
    return True


def _draft(ctx: Context, ahead: Ahead, record: ServiceRecord, desired: int, until_s: float) -> VerbDraft:
    services, row = ctx.observation.snapshot.services, ahead.row
    needed, stands = int(services.needed_replicas[row]), int(services.floor[row])
    gpus, more = _gpus_per_replica(ctx, row), max(desired - needed, 0)
    beyond, missing = beyond_served(ahead, needed * ahead.capacity_rps, ahead.within_s)
    return VerbDraft(
        case=FLOOR if desired else GIVE_BACK,
        verb=scale.Scale(replicas=desired, until_s=until_s),
        row=row,
        ahead=ahead,
        benefit_gpu_s=gpus * min(missing / ahead.capacity_rps, more) * ahead.lead_s,
        cost_gpu_s=gpus * more * ctx.policy.scale_ahead.dwell_s * (1.0 - beyond),
        evidence=(
            Evidence(
                "demand_foreseen", round(ahead.demand_rps, 6), f"requests/s, level {ahead.level:g} of the forecast"
            ),
            Evidence("within", round(ahead.within_s, 3), "s"),
            Evidence("lead_time", round(ahead.lead_s, 3), f"s from {len(record.cold_starts_s)} measured start-ups"),
            Evidence(
                "replica_serves", round(ahead.capacity_rps, 6), "requests/s by its owner's target and its objective"
            ),
            Evidence("needed_now", needed, "replicas"),
            Evidence("floor", stands, "replicas"),
            Evidence("wanted", desired, "replicas"),
            Evidence("model", _model(ahead)),
        ),
    )


def _model(ahead: Ahead) -> str:
    forecast = ahead.forecast
    if forecast is None:
        return ""
    return forecast.chosen[ahead.series] if forecast.chosen else forecast.model


def _example(ctx: Context, row: int) -> int:
    """The first workload among the replicas of a service; -1 without any."""
    known = np.flatnonzero(ctx.observation.snapshot.workloads.service == row)
    return int(known[0]) if len(known) else -1


def _profile(ctx: Context, row: int) -> int:
    """The MIG profile of the replicas of a service; -1 for GPUs and shares, and for an unknown one."""
    example = _example(ctx, row)
    return int(ctx.observation.snapshot.workloads.mig_profile[example]) if example >= 0 else -1


def _gpus_per_replica(ctx: Context, row: int) -> float:
    """GPUs of one replica, from any known replica; 1 without any."""
    example = _example(ctx, row)
    return _gpus(ctx, example) if example >= 0 else 1.0


def _gpus(ctx: Context, row: int) -> float:
    """GPUs requested by one workload: an instance counts as its compute slices' part of the GPU."""
    work, names = ctx.observation.snapshot.workloads, ctx.observation.snapshot.names
    if work.mig_profile[row] < 0:
        return float(work.gpus[row]) * gpu_part(work, row)
    profile, models = names.profiles[int(work.mig_profile[row])], int(work.gpu_models[row])
    for code, name in enumerate(names.gpu_models):
        facts = find_gpu_model(name) if not models or models >> code & 1 else None
        if facts is not None and any(each.name == profile for each in facts.profiles):
            return float(work.gpus[row]) * float(compute_share(facts, profile))
    return float(work.gpus[row])  # a profile that no known model has


ACTION = Action(NAME, "keep replicas of a service ahead of its load", propose, (FLOOR, GIVE_BACK, LAPSED))
