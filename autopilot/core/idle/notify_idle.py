"""Notify the owner of work on unused GPUs: the first step of the ladder (core/idle/ladder.py).

Work out of reach of every step gets a note instead, a recommendation to a person: work with weak evidence, replicas of
services, protected classes, work that opted out, and work inside its guarantee that is not preemptible.
"""

from __future__ import annotations

from math import floor, inf

import numpy as np

from autopilot.core.effects.action import Action
from autopilot.core.effects.draft import Case, NoteCase, Submit, VerbDraft
from autopilot.core.idle import notify
from autopilot.core.idle.facts import ladder
from autopilot.core.idle.follow import HOUR_S, STEPS, next_look_s, owner_of
from autopilot.core.idle.idle_work import borrowed, steps_under_way
from autopilot.core.idle.ladder import Rung, ladder_timers_s
from autopilot.core.idle.services import kept_replicas, out_of_reach
from autopilot.core.idle.sizing import right_size
from autopilot.core.model.memory.idle import IdleStep
from autopilot.core.model.records import About, Evidence, Note
from autopilot.core.model.work import holding_mask, named
from autopilot.core.planning.context import Context

NAME = "notify_idle"
NOTICE = Case(
    NAME,
    notify.KIND,
    words="notify the owner, {owner}: {gpus:GPU} idle for {idle_for}, held {held}; it may be suspended {grace} after "
    "the notice",
    by_telemetry=True,
)
REPLICA = Case(
    NAME,
    notify.KIND,
    "replica",
    words="notify the owner, {owner}: {gpus:GPU} of a replica idle for {idle_for}, held {held}; its service may be "
    "scaled down {grace} after the notice",
    by_telemetry=True,
)
ADVICE = NoteCase(
    "idle_advice", "{subject} has done nothing for {value} on {gpus:GPU} of {owner}; only a person may act: {why}"
)
SCORE = NoteCase(
    "idle_score",
    "tenant {subject} held {value} idle in {days:day}: {inside} inside guarantees, {above} above them",
    stands_s=2 * HOUR_S,
)
SIZE = NoteCase(
    "idle_size",
    "{subject} of {owner} used at most {value:GPU} and {memory_gib} GiB of {gpus:GPU} for {watched}: {size} would do",
    stands_s=25 * HOUR_S,
)
SERVICE = NoteCase(
    "idle_service",
    "{idle:replica} of service {subject} did nothing for {value}: {kept:replica} would do and free {gpus:GPU}; {why}",
)
MOST_ADVICE = 10
"""Notes of one kind at one look: the largest of them."""
DAY_HOURS = 24


def propose(ctx: Context, submit: Submit) -> None:
    """A notice for work open to the ladder, a note for the rest; each hour the score, each day the sizes."""
    if ctx.memory.idle.hour_s == ctx.now_s:
        _score(ctx)
        if floor(ctx.now_s / HOUR_S) % DAY_HOURS == 0:
            _sizes(ctx)
    _services(ctx)
    work, under_way = ctx.observation.snapshot.workloads, steps_under_way(ctx)
    advised = 0
    for rung in ladder(ctx):
        if rung.record.step != IdleStep.SEEN or ctx.now_s < rung.notice_s or rung.uid in under_way:
            continue
        why = rung.advice or _unpreemptible(ctx, rung)
        if not why:
            submit(
                VerbDraft(
                    case=REPLICA if work.service[rung.row] >= 0 else NOTICE,
                    verb=notify.Notify(
                        gpus=rung.record.gpus, idle_s=ctx.now_s - rung.record.since_s, grace_s=rung.grace_s
                    ),
                    row=rung.row,
                    benefit_gpu_s=worth_gpu_s(ctx, rung),
                    cost_gpu_s=0.0,
                    evidence=(*facts(ctx, rung), Evidence("grace", round(rung.grace_s, 3), "s")),
                )
            )
        elif rung.record.seen_s == ctx.now_s and advised < MOST_ADVICE:
            advised += 1
            about = facts(ctx, rung)
            ctx.plan.note(
                Note(
                    ADVICE.code,
                    About.WORKLOAD,
                    str(work.id[rung.row]),
                    round(ctx.now_s - rung.record.since_s, 3),
                    "s",
                    (*about[1:3], Evidence("why", why)),
                )
            )


def _score(ctx: Context) -> None:
    """GPU-hours held idle by tenants, the most first."""
    held = {
        name: (sum(day[1] for day in days), sum(day[2] for day in days), len(days))
        for name, days in ctx.memory.idle.held_gpu_s.items()
    }
    order = sorted(held, key=lambda name: (-held[name][0] - held[name][1], name))
    for name in order[:MOST_ADVICE]:
        inside, above, days = held[name]
        facts = (
            Evidence("inside", round(inside, 1), "GPU-s"),
            Evidence("above", round(above, 1), "GPU-s"),
            Evidence("days", days),
        )
        ctx.plan.note(Note(SCORE.code, About.TENANT, name, round(inside + above, 1), "GPU-s", facts))


def _sizes(ctx: Context) -> None:
    """Sufficient sizes for work of little use for long, the largest saving first."""
    snapshot = ctx.observation.snapshot
    work, nodes = snapshot.workloads, snapshot.nodes
    due = {
        uid: each for uid, each in ctx.memory.idle.sizes.items() if ctx.now_s - each.since_s >= ctx.policy.idle.size_s
    }
    if not due:
        return
    node_of = dict(zip(snapshot.placements.workload.tolist(), snapshot.placements.node.tolist(), strict=True))
    found = []
    for row in np.flatnonzero(named(work.uid, due)).tolist():
        record, model = due[str(work.uid[row])], int(nodes.gpu_model[node_of[row]]) if row in node_of else -1
        size = (
            right_size(record, snapshot.names.gpu_models[model], float(ctx.gpu_memory_mib[model])) if model >= 0 else ""
        )
        if size:
            found.append((record.most_gpus - record.gpus, row, record, size))
    for _, row, record, size in sorted(found, key=lambda each: each[:2])[:MOST_ADVICE]:
        facts = (
            Evidence("owner", owner_of(snapshot, row)),
            Evidence("memory_gib", round(record.most_mib / 1024, 1)),
            Evidence("gpus", round(record.gpus, 3)),
            Evidence("watched", round(ctx.now_s - record.since_s, 3), "s"),
            Evidence("size", size),
        )
        ctx.plan.note(Note(SIZE.code, About.WORKLOAD, str(work.id[row]), round(record.most_gpus, 2), "GPUs", facts))


def _services(ctx: Context) -> None:
    """Services with replicas beyond those they keep, all idle for long enough, at each look; the largest gain first."""
    snapshot = ctx.observation.snapshot
    work, services = snapshot.workloads, snapshot.services
    idle: dict[int, list[Rung]] = {}
    for rung in ladder(ctx):
        due = rung.record.seen_s == ctx.now_s and ctx.now_s >= rung.notice_s and not rung.record.estimated
        if due and 0 <= work.service[rung.row] < len(services.id) and not work.excluded[rung.row]:
            idle.setdefault(int(work.service[rung.row]), []).append(rung)
    found = []
    for row, rungs_of in idle.items():
        kept, why = kept_replicas(services, row, ctx.policy)
        why = "; ".join(filter(None, (why, out_of_reach(services, row, kept))))
        spare = min(int((holding_mask(work) & (work.service == row)).sum()) - kept, len(rungs_of))
        if spare > 0:
            gone = sorted(rungs_of, key=lambda each: each.record.gpus)[-spare:]
            found.append((-sum(each.record.gpus for each in gone), row, kept, why, gone))
    for gpus, row, kept, why, gone in sorted(found, key=lambda each: each[:2])[:MOST_ADVICE]:
        idle_s = ctx.now_s - max(each.record.since_s for each in gone)
        about = (
            Evidence("idle", len(idle[row]), "replicas"),
            Evidence("kept", kept, "replicas"),
            Evidence("gpus", round(-gpus, 3), "GPUs"),
            Evidence("why", why),
        )
        ctx.plan.note(Note(SERVICE.code, About.SERVICE, str(services.id[row]), round(idle_s, 3), "s", about))


def worth_gpu_s(ctx: Context, rung: Rung) -> float:
    """Expected idle GPU-seconds from now: gaps of owners have a heavy tail, so as long again as until now."""
    return rung.record.gpus * min(ctx.now_s - rung.record.since_s, ctx.policy.horizon_s)


def facts(ctx: Context, rung: Rung) -> tuple[Evidence, ...]:
    """The facts of every step."""
    return (
        Evidence("idle_for", round(ctx.now_s - rung.record.since_s, 3), "s"),
        Evidence("gpus", round(rung.record.gpus, 3), "GPUs without activity"),
        Evidence("owner", rung.record.owner),
        Evidence("held", "above the guarantee of its queue" if borrowed(ctx, rung) else "inside a guarantee"),
    )


def _unpreemptible(ctx: Context, rung: Rung) -> str:
    preemptible = bool(ctx.observation.snapshot.workloads.preemptible[rung.row])
    return "" if preemptible or borrowed(ctx, rung) else "not preemptible, inside its guarantee"


def timers(ctx: Context) -> list[float]:
    """The next look, and steps that become due by time alone."""
    if not any(ctx.policy.modes.on(effect) for effect in STEPS):
        return []
    snapshot = ctx.observation.snapshot
    look_s = next_look_s(ctx.memory, snapshot, ctx.policy)
    times_s = ladder_timers_s(ladder(ctx))
    return times_s if look_s == inf else [*times_s, look_s]


ACTION = Action(
    NAME, "notify the owners of idle work", propose, (NOTICE, REPLICA), (ADVICE, SCORE, SIZE, SERVICE), timers=timers
)
