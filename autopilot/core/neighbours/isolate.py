"""Confirm that work slows its neighbours, and move it away from them.

Theory of operation. A detector names a victim, and a suspect that came before it slowed down. A suspect that takes
pauses is paused, one for each victim at a time, within a budget of pauses that find nothing (follow.py has the trial).
A confirmed suspect is moved away, or its victim is, whichever costs less: the verdict was the dwell of that move, and a
neighbour that does harm has no guaranteed run time. All other guards bind. What cannot be confirmed is only noted, for
a person; so is a holder that nobody knows. Pairs that were confirmed are kept apart without a move (sharing/terms.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite, log

from autopilot.core.effects import move
from autopilot.core.effects.action import Action
from autopilot.core.effects.draft import Case, Eviction, NoteCase, Submit, VerbDraft
from autopilot.core.effects.move import MoveDraft
from autopilot.core.model.codes import Code
from autopilot.core.model.identity import rows_by_uid
from autopilot.core.model.memory.neighbours import Verdict
from autopilot.core.model.neighbours import Interference
from autopilot.core.model.objects import Pausing, Sharing
from autopilot.core.model.records import About, Evidence, Note
from autopilot.core.model.snapshot import SloClass, State
from autopilot.core.model.stops import StopReason
from autopilot.core.model.units import counted
from autopilot.core.model.work import holding_mask
from autopilot.core.neighbours import pausing
from autopilot.core.neighbours.follow import FALLEN_RATIO, MOST_S, RENEW_S
from autopilot.core.neighbours.pairing import budget_of
from autopilot.core.neighbours.pausing import MOST_PAUSE_S, Pause, Resume
from autopilot.core.neighbours.places import as_agreed, away
from autopilot.core.planning.context import Context
from autopilot.core.planning.pairs import uid_pair

NAME = "isolate"
MOST_TRIALS = 4
"""Trials at once."""
MOST_INNOCENT = 2
"""Pauses of a day that found nothing, for the neighbours of one service."""
MOST_TOLD = 10

CONFIRM = Case(
    NAME,
    pausing.PAUSE,
    words="pause it for {pause} to see whether {victim} recovers: it takes {rise} times as long since this came beside "
    "it ({near}, confidence {confidence})",
)
_BEGUN = frozenset({Code.NEEDS_APPROVAL})  # the pause had one
HOLD = Case(NAME, pausing.PAUSE, "hold", words="keep it paused: {why}", exempt=_BEGUN)
GO_ON = Case(NAME, pausing.RESUME, words="let it go on: {why}", exempt=_BEGUN)
_MOVED = frozenset({Code.MIN_RUNTIME, Code.DWELL})
MOVE = Case(
    NAME,
    move.KIND,
    "neighbour",
    words="move it away from {victim}, which took {rise} times as long beside it ({near}), and {paused} times while "
    "this was paused: {victims}",
    takes=StopReason.ISOLATE,
    exempt=_MOVED,
)
HARDEN = Case(
    NAME,
    move.KIND,
    "harden",
    words="move it away from {suspect}, beside which it took {rise} times as long ({near}), and {paused} times while "
    "that was paused: {victims}",
    takes=StopReason.ISOLATE,
    exempt=_MOVED,
)
UNCONFIRMED = NoteCase(
    "neighbour_unconfirmed",
    "{subject} takes {value} times as long since {suspect} came beside it ({near}, confidence {confidence}). It is "
    "left to a person: {why}",
)
CONFIRMED = NoteCase(
    "neighbour_confirmed",
    "{subject} takes {value} times as long beside {suspect} ({near}), which a pause has confirmed; {why}",
)


class _Found:
    """One open record about two workloads that are there."""

    def __init__(self, ctx: Context, record: Interference, victim: int, suspect: int) -> None:
        self.record, self.victim, self.suspect = record, victim, suspect
        self.key = uid_pair(record.victim_uid, record.suspect_uid)
        self.verdict: Verdict | None = ctx.memory.neighbours.verdicts.get(self.key)
        rise = record.rise_ratio if self.verdict is None else self.verdict.rise_ratio
        both_s = max(min(float(ctx.end_s[victim]), float(ctx.end_s[suspect])) - ctx.now_s, 0.0)
        held = ctx.gpus_of(ctx.whatif.layout_of(victim))
        self.rise = rise
        self.harm_gpu_s = round(held * max(1.0 - 1.0 / rise, 0.0) * min(both_s, ctx.policy.horizon_s), 3)

    @property
    def passed(self) -> bool:
        """The victim is nearly as before by now: there is nothing to end, and a pause would tell nothing."""
        now = self.record.now_ratio
        return now > 0.0 and log(now) < FALLEN_RATIO * log(self.record.rise_ratio)

    def facts(self) -> tuple[Evidence, ...]:
        """What every word of the action may name."""
        found = self.record
        return (
            Evidence("victim", found.victim),
            Evidence("suspect", found.suspect),
            Evidence("rise", round(self.rise, 2), ""),
            Evidence("near", f"the same {found.nearness.value.upper() if found.nearness != 'node' else 'node'}"),
            Evidence("confidence", round(found.confidence, 3), "of"),
        )


def propose(ctx: Context, submit: Submit) -> None:
    """Trials, moves of confirmed suspects, and the end of pauses."""
    told, tried = 0, {trial.victim_uid for trial in ctx.memory.neighbours.trials.values()}
    for found in _open(ctx):
        harmful = found.verdict.harmful if found.verdict is not None else None
        why = ""
        if harmful:
            why = _isolate(ctx, found, submit)
        elif harmful is None and not found.passed and found.record.suspect_uid not in ctx.memory.neighbours.trials:
            why = _unfit(ctx, found, tried)
            if not why and submit(_trial(ctx, found)):
                tried.add(found.record.victim_uid)
        if why and told < MOST_TOLD:
            told += 1
            _tell(ctx, found.record, found.facts(), CONFIRMED if harmful else UNCONFIRMED, why)
    _keep_or_end(ctx, submit)


def _open(ctx: Context) -> Iterator[_Found]:
    """The open records about work that holds GPUs, the worst first. Holders that nobody knows are noted."""
    work, rows = ctx.observation.snapshot.workloads, rows_by_uid(ctx.observation.snapshot.workloads)
    records = ctx.observation.forecasts.interference
    if not records:
        return
    holding = holding_mask(work)
    worst = sorted(records, key=lambda each: (-each.confidence * each.rise_ratio, each.victim_uid, each.suspect_uid))
    for record in worst:
        if not (isfinite(record.rise_ratio) and record.rise_ratio > 1.0):
            continue
        victim, suspect = rows.get(record.victim_uid), rows.get(record.suspect_uid)
        if not record.suspect_uid and victim is not None:
            near = Evidence("near", f"the same {record.nearness.value}")
            confidence = Evidence("confidence", round(record.confidence, 3), "of")
            named = Evidence("suspect", record.suspect or "work that nobody knows")
            _tell(ctx, record, (named, near, confidence), UNCONFIRMED, "no workload of the view is that neighbour")
        elif victim is not None and suspect is not None and holding[victim] and holding[suspect]:
            if as_agreed(ctx, record, victim):
                continue
            yield _Found(ctx, record, victim, suspect)


def _tell(ctx: Context, record: Interference, facts: tuple[Evidence, ...], case: NoteCase, why: str) -> None:
    about = (*(each for each in facts if each.name not in {"victim", "rise"}), Evidence("why", why))
    ctx.plan.note(Note(case.code, About.WORKLOAD, record.victim, round(record.rise_ratio, 2), "", about))


def _unfit(ctx: Context, found: _Found, tried: set[str]) -> str:
    """Why a suspect is not tried; "" for none."""
    work, row, memory = ctx.observation.snapshot.workloads, found.suspect, ctx.memory.neighbours
    if work.pausing[row] == Pausing.NONE:
        return "the suspect takes no pauses, so nothing can confirm it"
    if work.pausing[row] == Pausing.PAUSED:
        return "the suspect is paused already"
    if work.excluded[row]:
        return "the suspect opted out of every action"
    if work.slo_class[row] == SloClass.LATENCY_CRITICAL or not work.preemptible[row]:
        return "the suspect is protected from stops, also from short ones"
    if found.record.victim_uid in tried:
        return "another suspect is tried first"
    if row in ctx.busy | ctx.quota.leaving or work.state[row] != State.RUNNING:
        return "the suspect is starting, or on its way to another place"
    if len(memory.trials) >= MOST_TRIALS:
        return f"{counted(len(memory.trials), 'trial')} are under way"
    spent = len(memory.innocent_s.get(budget_of(ctx.observation.snapshot, found.victim), ()))
    if spent >= MOST_INNOCENT:
        return f"{counted(spent, 'pause')} of neighbours within a day found nothing"
    return ""


def _trial(ctx: Context, found: _Found) -> VerbDraft:
    """The pause of a suspect. Its cost is the time that it stands still."""
    held = ctx.gpus_of(ctx.whatif.layout_of(found.suspect))
    return VerbDraft(
        case=CONFIRM,
        verb=Pause(seconds=MOST_PAUSE_S, victim=found.record.victim, victim_uid=found.record.victim_uid, again=False),
        row=found.suspect,
        benefit_gpu_s=found.harm_gpu_s,
        cost_gpu_s=round(held * MOST_S, 3),
        evidence=(*found.facts(), Evidence("pause", MOST_S, "s at most")),
    )


def _isolate(ctx: Context, found: _Found, submit: Submit) -> str:
    """Move the suspect or the victim away, the cheaper first. Returns why nothing moves; "" if something does."""
    work, leaving = ctx.observation.snapshot.workloads, ctx.busy | ctx.quota.leaving
    if found.suspect in leaving or found.victim in leaving:
        return ""
    options: list[tuple[float, int, Case, Eviction]] = []
    for case, row, other in ((MOVE, found.suspect, found.victim), (HARDEN, found.victim, found.suspect)):
        give = (
            None
            if work.service[row] >= 0 or not _ends_cleanly(ctx, row)
            else away(ctx, row, other, found.record.nearness)
        )
        if give is not None:
            options.append((give.price_gpu_s, len(options), case, give))
    if not options:
        return (
            "neither of them has another place now: give it whole GPUs or a MIG instance of its own, or end the other"
        )
    for price, _, case, give in sorted(options, key=lambda each: each[:2]):
        draft = MoveDraft(
            case=case,
            row=give.row,
            moves=(give,),
            cleared_gpus=give.gpus,
            benefit_gpu_s=found.harm_gpu_s,
            cost_gpu_s=price,
            evidence=(*found.facts(), Evidence("paused", round(_paused(found), 2), "")),
        )
        if submit(draft):
            return ""
    return "no move is allowed, or pays, now; such work is kept apart where it starts"


def _paused(found: _Found) -> float:
    return found.verdict.paused_ratio if found.verdict is not None else float("nan")


def _ends_cleanly(ctx: Context, row: int) -> bool:
    """Whether a stop of a workload takes no client of an MPS server along."""
    snapshot = ctx.observation.snapshot
    held = snapshot.placements
    shared = (snapshot.nodes.sharing[held.node[held.workload == row]] == Sharing.MPS).any()
    return bool(snapshot.workloads.checkpoint_on_request[row]) or not bool(shared)


def _keep_or_end(ctx: Context, submit: Submit) -> None:
    """Ask for pauses again that a trial or a move still needs, and end all others of ours."""
    memory, rows = ctx.memory.neighbours, rows_by_uid(ctx.observation.snapshot.workloads)
    work, leaving = ctx.observation.snapshot.workloads, ctx.busy | ctx.quota.leaving
    for uid, lapses_s in memory.lapses_s.items():
        row, trial = rows.get(uid), memory.trials.get(uid)
        if row is None or row in leaving or work.pausing[row] != Pausing.PAUSED:
            continue
        verb: Pause | Resume = Resume()
        case, why = GO_ON, "its neighbour did not recover, or nothing was found in time"
        if trial is not None:
            if ctx.now_s < lapses_s - RENEW_S:
                continue
            verb = Pause(seconds=MOST_PAUSE_S, victim=trial.victim, victim_uid=trial.victim_uid, again=True)
            why = "its move is not under way yet" if trial.judged else "the level of its neighbour is watched"
            case = HOLD
        submit(
            VerbDraft(
                case=case, verb=verb, row=row, benefit_gpu_s=0.0, cost_gpu_s=0.0, evidence=(Evidence("why", why),)
            )
        )


ACTION = Action(
    NAME,
    "confirm work that slows its neighbours, and move it away",
    propose,
    (CONFIRM, HOLD, GO_ON, MOVE, HARDEN),
    notes=(UNCONFIRMED, CONFIRMED),
)
