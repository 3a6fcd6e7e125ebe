"""Stop work that cannot continue in its place, as a whole and once; it then starts elsewhere.

The reasons, in this order:

- a gang lost members and its grace is over (the longest broken first);
- the errors of a GPU condemn it;
- the cloud reclaims the node (core/recovery/spot_notice.py);
- a gang does nothing, by its telemetry (core/recovery/hangs.py);
- a coordinator holds GPUs while its own workers wait;
- evicted work is still on its GPUs long after its grace;
- an external check rejected the gang.

A half-started gang of another scheduler is named and left to its owner.

A node is cordoned if an error of its GPUs asks for a restart: this keeps other schedulers off it too.

The rest of a broken gang is stopped by contract. Gangs that do nothing and waiting coordinators are whole: stopping
them is weighed and subject to every guard. Broken hardware receives no new work (core/placement/whatif.py).
"""

from __future__ import annotations

import numpy as np

from autopilot.core.effects import evict
from autopilot.core.effects.action import Action
from autopilot.core.effects.draft import Case, Eviction, NoteCase, Submit
from autopilot.core.effects.under_recut import under_recut
from autopilot.core.hardware.xid_facts import CONDEMNED, Remedy, error_of, gpu_remedies
from autopilot.core.model.codes import ConditionKind
from autopilot.core.model.memory.plan import Condition
from autopilot.core.model.policy import Mode
from autopilot.core.model.records import About, Code, Evidence, Note
from autopilot.core.model.snapshot import GPU_MILLI, Bools, Gate, State
from autopilot.core.model.stops import StopReason
from autopilot.core.model.work import holding_mask, stoppable_mask, whole_gpus
from autopilot.core.placement.whatif import Layout
from autopilot.core.planning.context import Context
from autopilot.core.planning.losses import stop_losses
from autopilot.core.planning.writers import writers_s
from autopilot.core.recovery.cordoning import CASES, OUT_OF_USE, propose_cordons
from autopilot.core.recovery.follow_cordons import cordon_timers_s
from autopilot.core.recovery.half_started import HALF_STARTED, note_half_started
from autopilot.core.recovery.hangs import at_work, doing_nothing, doubts, judged, window_s
from autopilot.core.recovery.spot_notice import AtRisk, plan_saves

NAME = "recover"
_OWN_SAKE = frozenset(
    {
        Code.PROTECTED_CLASS,
        Code.OPTED_OUT,
        Code.NOT_PREEMPTIBLE,
        Code.WITHOUT_CHECKPOINT,
        Code.SLO_BURNING,
    }
)


def _stops(reason: str, words: str, contract: str) -> Case:
    """A stop by contract for the gang itself: it cannot continue in its place."""
    return Case(NAME, evict.KIND, reason, words, StopReason.RECOVER, contract, _OWN_SAKE)


def _restarts(reason: str, words: str, *, by_telemetry: bool = False) -> Case:
    """A stop of a whole gang: it is weighed, but the gang need not be able to save."""
    exempt = frozenset({Code.WITHOUT_CHECKPOINT})
    return Case(NAME, evict.KIND, reason, words, StopReason.RESTART, exempt=exempt, by_telemetry=by_telemetry)


BROKEN = _stops(
    "broken",
    "stop what is left of it ({taken}): for {broken} it has had fewer members than its minimum; "
    "it then waits as a whole gang",
    "a gang below its minimum of members cannot make progress",
)
BAD_GPU = _stops(
    "bad_gpu",
    "stop it ({taken}): {error} on {gpu}, which asks for {asks_for}; it then waits as a whole gang",
    "nothing can continue on a GPU with this error",
)
SPOT_STOP = _stops(
    "spot_stop",
    "stop it ({taken}) while it can still save {saved}: the cloud takes back a node of it in {gone_in}",
    "the node goes, whatever is decided",
)
SPOT_SHRINK = _stops(
    "spot_shrink",
    "continue without its members on a node that the cloud takes back in {gone_in}: {victims}",
    "the node goes, whatever is decided",
)
HUNG = _restarts(
    "hung",
    "restart it ({taken}): its GPUs have done nothing for {did_nothing}, after they had worked",
    by_telemetry=True,
)
COORDINATOR = _restarts(
    "coordinator",
    "stop it ({taken}): for {waited} it has held GPUs while its own workers ({waits_for}) wait; "
    "it starts again after them",
)
STUCK = _stops(
    "stuck",
    "take it off its GPUs by force ({taken}): it was evicted, and is still there {stuck} after its grace",
    "it was evicted already, and its grace is over",
)
CHECK = _stops(
    "check",
    "stop it ({taken}): a check outside of the autopilot no longer admits it ({check})",
    "the check that admitted it no longer does",
)
TOO_SLOW_TO_SAVE = NoteCase(
    "too_slow_to_save",
    "{subject} cannot be saved: its node is gone in {gone_in}, and its checkpoint takes {writes_in} to write; "
    "it continues, and loses {value}",
)
MAKES_NO_CHECKPOINT = NoteCase(
    "makes_no_checkpoint",
    "{subject} cannot be saved: its node is gone in {gone_in}, and it makes no checkpoints; it continues, and loses "
    "{value}",
)
NEVER_WORKED = NoteCase(
    "never_worked", "{subject} has done nothing since it started ({value}); it is left to its owner"
)
HUNG_AGAIN = NoteCase(
    "hung_again",
    "{subject} has done nothing for {value}, after {restarts:restart} for that reason; it is left to its owner",
)


def propose(ctx: Context, submit: Submit) -> None:
    """One eviction for each gang unable to continue. Each gang is judged by the first reason that applies."""
    open_rows, changing = may_stop(ctx), _under_recut(ctx)
    for find in (_broken, _condemned, _called_back, _hung, _waiting_coordinators):
        by_health = find not in {_called_back, _waiting_coordinators}
        for row in find(ctx, open_rows & ~changing if by_health else open_rows, submit):
            open_rows[row] = False
    _stuck(ctx, submit)
    note_half_started(ctx)
    propose_cordons(ctx, submit)
    give_back(ctx, open_rows, submit)


def give_back(ctx: Context, open_rows: Bools, submit: Submit) -> None:
    """Stop gangs with a check rejected or to be repeated. Later gangs may book their GPUs."""
    gate = ctx.observation.snapshot.workloads.gate
    for row in np.flatnonzero(open_rows & (gate >= Gate.REJECTED)).tolist():
        stands = submit(_stop(ctx, row, CHECK, Evidence("check", Gate(int(gate[row])).name.lower())))
        if stands and ctx.policy.modes.recover == Mode.AUTO:
            ctx.plan.leave(row)


def may_stop(ctx: Context) -> Bools:
    """Gangs on GPUs that are not leaving. Shape [workloads]."""
    work = ctx.observation.snapshot.workloads
    open_rows = stoppable_mask(work)
    open_rows[list(ctx.busy | ctx.quota.leaving)] = False
    return open_rows


def _under_recut(ctx: Context) -> Bools:
    """Gangs on GPUs with a change of MIG geometry: reports on them may be due to it. Shape [workloads]."""
    snapshot = ctx.observation.snapshot
    found, changing = np.zeros(len(snapshot.workloads.id), np.bool_), under_recut(ctx.memory, snapshot)
    found[snapshot.placements.workload[changing[snapshot.placements.gpu]]] = True
    return found


def _broken(ctx: Context, open_rows: Bools, submit: Submit) -> list[int]:
    """Gangs below their minimum of members after their grace (their own, else that of the policy).

    Finished members count.
    """
    work = ctx.observation.snapshot.workloads
    grace_s = np.where(np.isnan(work.stale_grace_s), ctx.policy.recovery.stale_grace_s, work.stale_grace_s)
    broken = open_rows & (ctx.now_s >= work.stale_since_s + grace_s)  # never where since when is not known
    rows = sorted(np.flatnonzero(broken).tolist(), key=lambda row: (float(work.stale_since_s[row]), row))
    for row in rows:
        broken_s = round(ctx.now_s - float(work.stale_since_s[row]), 3)
        submit(_stop(ctx, row, BROKEN, Evidence("broken", broken_s, "s below its minimum of members")))
    return rows


def _condemned(ctx: Context, open_rows: Bools, submit: Submit) -> list[int]:
    """Gangs on GPUs with reported errors that rule out further work. A gang only assumed to be there continues."""
    gpus, held = ctx.observation.snapshot.gpus, ctx.observation.snapshot.placements
    remedy = gpu_remedies(gpus)
    entries = np.flatnonzero((remedy[held.gpu] >= CONDEMNED) & open_rows[held.workload] & ~held.assumed)
    rows: list[int] = np.unique(held.workload[entries]).tolist()
    for row in rows:
        bad = held.gpu[entries[held.workload[entries] == row]]
        gpu = int(bad[np.argmax(remedy[bad])])
        asks = Remedy(int(remedy[gpu])).name.lower().replace("_", " ")
        why = Evidence("error", error_of(gpus, gpu)), Evidence("gpu", str(gpus.uuid[gpu])), Evidence("asks_for", asks)
        submit(_stop(ctx, row, BAD_GPU, *why))
    return rows


def _called_back(ctx: Context, open_rows: Bools, submit: Submit) -> list[int]:
    """Work on nodes that the cloud reclaims. Work that its store can save in time is asked to leave at its turn.

    A gang that can continue with its members elsewhere shrinks. Replicas of services serve until the end. Unsaveable
    work continues, because it may end in time; a note states its expected loss at once.
    """
    snapshot = ctx.observation.snapshot
    work, nodes, held = snapshot.workloads, snapshot.nodes, snapshot.placements
    doomed = ~np.isnan(nodes.reclaim_at_s)
    if not doomed.any():
        return []
    gone_s = np.full(len(work.id), np.inf)
    np.minimum.at(gone_s, held.workload, np.where(doomed, nodes.reclaim_at_s, np.inf)[held.node])
    rows = np.flatnonzero(open_rows & (work.service < 0) & (gone_s < np.inf)).tolist()
    margin_s = ctx.policy.recovery.notice_margin_s
    stays, at_risk = {row: _elsewhere(ctx, row, doomed) for row in rows}, []
    for row in rows:
        left_s = float(gone_s[row]) - ctx.now_s
        if stays[row] is None:
            write_s = float(np.nan_to_num(work.checkpoint_write_s[row]))
            at_risk.append(AtRisk(row, left_s, write_s, float(ctx.losses.worst_gpu_s[row]), not ctx.unsaved[row]))
        elif left_s <= margin_s:
            submit(_shrink(ctx, row, stays[row], left_s))
        else:
            ctx.plan.wake_at(float(gone_s[row]) - margin_s)
    told = [row for row in rows if stays[row] is not None and gone_s[row] - ctx.now_s <= margin_s]
    return told + _save(ctx, at_risk, submit)


def _save(ctx: Context, at_risk: list[AtRisk], submit: Submit) -> list[int]:
    """Ask the gangs with a turn to leave, once the plan cannot wait longer. For the others, note their losses."""
    work = ctx.observation.snapshot.workloads
    write_s = dict(zip(work.id.tolist(), work.checkpoint_write_s.tolist(), strict=True)) if at_risk else {}
    busy_s = []
    if at_risk and ctx.policy.preemption.checkpoint_writers:
        under_way = ctx.memory.effects.in_flight.values()
        busy_s = writers_s(under_way, write_s, ctx.observation.snapshot, ctx.now_s, ctx.policy)
    plan = plan_saves(at_risk, busy_s)
    for each in plan.lost:
        kind = TOO_SLOW_TO_SAVE if each.write_s > 0 else MAKES_NO_CHECKPOINT
        facts = Evidence("gone_in", round(each.left_s, 3), "s"), Evidence("writes_in", round(each.write_s, 3), "s")
        lost_gpu_s = round(each.saved_gpu_s, 3)
        ctx.plan.note(Note(kind.code, About.WORKLOAD, str(work.id[each.row]), lost_gpu_s, "GPU-s", facts))
    margin_s = ctx.policy.recovery.notice_margin_s
    if plan.slack_s > margin_s:
        if plan.turns:
            ctx.plan.wake_at(ctx.now_s + plan.slack_s - margin_s)
        return []
    left_s, saved = (
        {each.row: each.left_s for each in at_risk},
        {each.row: each.saved_gpu_s for each in at_risk},
    )
    told = [turn for turn in plan.turns if turn.start_s <= 0]
    for turn in told:
        submit(
            _stop(
                ctx,
                turn.row,
                SPOT_STOP,
                Evidence("gone_in", round(left_s[turn.row], 3), "s until the cloud takes a node of it"),
                Evidence("saved", round(saved[turn.row], 3), "GPU-s"),
                Evidence("written_in", round(turn.done_s, 3), "s"),
                gone_s=ctx.now_s + left_s[turn.row],
            )
        )
    ctx.plan.wake_at(*(ctx.now_s + turn.start_s for turn in plan.turns if turn.start_s > 0))
    return [turn.row for turn in told]


def _elsewhere(ctx: Context, row: int, doomed: Bools) -> Layout | None:
    """The part of a gang on nodes that stay, if the gang can continue with it; else None."""
    work, gpus = ctx.observation.snapshot.workloads, ctx.observation.snapshot.gpus
    layout = ctx.whatif.layout_of(row)
    stays = ~doomed[gpus.node[layout.gpu]]
    member, least = max(int(work.gpus_per_member[row]), 1), max(int(work.min_gpus[row]), 1)
    if row in ctx.members or not whole_gpus(work, row) or (layout.milli < GPU_MILLI).any():
        return None
    if not least <= int(stays.sum()) < len(layout) or int(stays.sum()) % member:
        return None
    return layout.only(stays)


def _shrink(ctx: Context, row: int, keeps: Layout | None, left_s: float) -> evict.EvictDraft:
    """Continue without the members on nodes reclaimed by the cloud."""
    given = len(ctx.whatif.layout_of(row)) - (0 if keeps is None else len(keeps))
    gone = Evidence("gone_in", round(left_s, 3), "s until the cloud takes a node of it")
    return evict.EvictDraft(
        case=SPOT_SHRINK,
        row=row,
        benefit_gpu_s=float(ctx.losses.worst_gpu_s[row]),
        cost_gpu_s=0.0,
        evictions=(Eviction(row, "shrink", keeps, given, 0.0),),
        evidence=(gone, Evidence("gpus", given, "GPUs given up")),
    )


def _hung(ctx: Context, open_rows: Bools, submit: Submit) -> list[int]:
    """Gangs with GPUs that worked and then all did nothing for long, up to `hung_restarts` times each.

    A gang restarted that often, or never at work, is left to its owner, with a note.
    """
    rules, snapshot = ctx.policy.recovery, ctx.observation.snapshot
    work = snapshot.workloads
    alive = set(work.uid.tolist())
    past = _still(ctx, ConditionKind.HUNG, alive)
    ctx.plan.remember(past)
    _note_work(ctx, alive)
    quiet = doing_nothing(snapshot, ctx.policy)
    if not quiet.any():
        return []
    earlier = {
        row: _earlier(past, str(work.uid[row]), int(work.incarnation[row])) for row in np.flatnonzero(quiet).tolist()
    }
    seen = {condition.uid for condition in ctx.plan.conditions if condition.kind == ConditionKind.WORKED}
    worked = np.array([uid in seen for uid in work.uid.tolist()], np.bool_)
    left = quiet & ~worked
    left[[row for row, count in earlier.items() if count >= rules.hung_restarts]] = True
    why_not = doubts(snapshot, ctx.policy, quiet & ~left, left)
    stopped = []
    for row in np.flatnonzero(quiet & open_rows).tolist():
        name = str(work.id[row])
        for_s = ctx.now_s - ctx.since_s(ConditionKind.QUIET, row) + window_s(snapshot)
        if for_s < rules.hung_after_s or ctx.now_s - float(work.start_s[row]) < rules.hung_after_s:
            ctx.plan.wake_at(
                ctx.now_s + max(rules.hung_after_s - for_s, rules.hung_after_s - ctx.now_s + float(work.start_s[row]))
            )
        elif not worked[row]:
            ctx.plan.note(Note(NEVER_WORKED.code, About.WORKLOAD, name, round(for_s, 3), "s"))
        elif left[row]:
            again = (Evidence("restarts", earlier[row], "restarts"),)
            ctx.plan.note(Note(HUNG_AGAIN.code, About.WORKLOAD, name, round(for_s, 3), "s", again))
        elif row in why_not:
            code, doubt = why_not[row]
            ctx.plan.note(Note(code, About.WORKLOAD, name, round(for_s, 3), "s", doubt))
        else:
            submit(
                _restart(
                    ctx,
                    row,
                    HUNG,
                    for_s,
                    Evidence("did_nothing", round(for_s, 3), "s on all its GPUs, by fresh telemetry"),
                )
            )
            if any(entry.workload == name for entry in ctx.plan.accepted):
                ctx.since_s(ConditionKind.HUNG, row)
            stopped.append(row)
    return stopped


def _still(ctx: Context, kind: ConditionKind, alive: set[str]) -> dict[Condition, float]:
    """The conditions of a kind in memory, of existing workloads (by uid)."""
    return {held: at_s for held, at_s in ctx.noted_since_s.items() if held.kind == kind and held.uid in alive}


def _earlier(past: dict[Condition, float], uid: str, incarnation: int) -> int:
    """The number of stops for doing nothing before this incarnation."""
    return sum(held.uid == uid and held.incarnation != incarnation for held in past)


def _note_work(ctx: Context, alive: set[str]) -> None:
    """Remember the gangs seen at work: only those can hang. The end of the first window after a start is a timer."""
    snapshot = ctx.observation.snapshot
    ctx.plan.remember(_still(ctx, ConditionKind.WORKED, alive))
    for row in np.flatnonzero(at_work(snapshot, ctx.policy, ctx.now_s)).tolist():
        ctx.since_s(ConditionKind.WORKED, row, lasting=True)
    looks_s = snapshot.workloads.start_s[judged(snapshot)] + window_s(snapshot)
    if (looks_s > ctx.now_s).any():
        ctx.plan.wake_at(float(looks_s[looks_s > ctx.now_s].min()))


def _waiting_coordinators(ctx: Context, open_rows: Bools, submit: Submit) -> list[int]:
    """Coordinators on GPUs for too long while all of their workers wait."""
    work = ctx.observation.snapshot.workloads
    limit_s, stopped = ctx.policy.recovery.coordinator_wait_s, []
    for row in np.flatnonzero(work.coordinates != "").tolist():
        workers = work.job_group == work.coordinates[row]
        waiting = int((workers & (work.state == State.PENDING)).sum())
        if waiting and Condition(ConditionKind.WAITED, str(work.uid[row])) in ctx.noted_since_s:
            ctx.since_s(ConditionKind.WAITED, row, lasting=True)  # it starts after them (starting/admit_gang.py)
        if not open_rows[row] or not waiting or (workers & holding_mask(work)).any():
            continue
        for_s = ctx.now_s - ctx.since_s(ConditionKind.ALONE, row)
        if for_s < limit_s:
            ctx.plan.wake_at(ctx.now_s + limit_s - for_s)
            continue
        ctx.since_s(ConditionKind.WAITED, row, lasting=True)
        submit(
            _restart(
                ctx,
                row,
                COORDINATOR,
                0.0,
                Evidence("waits_for", waiting, "workers of its own that have no GPUs"),
                Evidence("waited", round(for_s, 3), "s"),
            )
        )
        stopped.append(row)
    return stopped


def _stuck(ctx: Context, submit: Submit) -> None:
    """Work still on its GPUs long after its grace is stopped by force."""
    work = ctx.observation.snapshot.workloads
    for row in np.flatnonzero(work.stuck & holding_mask(work) & ~work.excluded).tolist():
        for_s = ctx.now_s - ctx.since_s(ConditionKind.STUCK, row)
        limit_s = ctx.policy.recovery.stuck_after_s
        if for_s < limit_s:
            ctx.plan.wake_at(ctx.now_s + limit_s - for_s)
        elif row not in ctx.busy and row not in ctx.quota.leaving:
            submit(_stop(ctx, row, STUCK, Evidence("stuck", round(for_s, 3), "s past its grace, still on its GPUs")))


def _restart(ctx: Context, row: int, case: Case, for_s: float, *why: Evidence) -> evict.EvictDraft:
    """Stop a gang with all members alive, to start it again. It is not broken, so this is weighed.

    The loss is the work since its last checkpoint, up to the time `for_s` ago at which it fell silent, and the restart.
    """
    work = ctx.observation.snapshot.workloads
    losses = stop_losses(ctx.observation.snapshot, ctx.now_s - for_s, np.zeros(len(work.id)))
    return evict.stop_draft(ctx, row, case, *why, cost_gpu_s=float(losses.price_gpu_s[row]))


def _stop(ctx: Context, row: int, case: Case, *why: Evidence, gone_s: float | None = None) -> evict.EvictDraft:
    """Stop a gang that cannot continue in its place: that costs nothing more."""
    return evict.stop_draft(ctx, row, case, *why, cost_gpu_s=0.0, gone_s=gone_s)


def runs(ctx: Context) -> bool:
    """True unless the action is switched off."""
    return ctx.policy.modes.recover != Mode.OFF


def timers(ctx: Context) -> list[float]:
    """Ends of the graces of broken gangs, and times of the next try of cordons."""
    work = ctx.observation.snapshot.workloads
    grace_s = np.where(np.isnan(work.stale_grace_s), ctx.policy.recovery.stale_grace_s, work.stale_grace_s)
    times_s: list[float] = (work.stale_since_s + grace_s)[~np.isnan(work.stale_since_s)].tolist()
    return times_s + cordon_timers_s(ctx.memory)


ACTION = Action(
    NAME,
    "stop work that is broken or hangs, so that it starts again",
    propose,
    (BROKEN, BAD_GPU, SPOT_STOP, SPOT_SHRINK, HUNG, COORDINATOR, STUCK, CHECK, *CASES),
    (TOO_SLOW_TO_SAVE, MAKES_NO_CHECKPOINT, NEVER_WORKED, HUNG_AGAIN, HALF_STARTED, OUT_OF_USE),
    timers=timers,
)
