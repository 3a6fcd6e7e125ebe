"""Promised and realised: the promises of executed actions, the use within their horizon, and the cap.

    promised ──> finished    its horizon is over, or no beneficiary can gain more, and all losses are known
                    │
                    └──> counted, or unknown (`Unknown` in core/model/promises.py says why)

The realised use of a case is the GPU-seconds used by its beneficiaries before their predicted start without the action,
less the lost work of the victims. Work of a beneficiary lost by a stop meanwhile is deducted too. While a beneficiary
waits again after a stop by another action, the promise shrinks to the possible use of the remaining time: that stop was
weighed, and has a case of its own.

An action is judged by its newest cases and by those displaced by newer ones in the last week, because hundreds of
similar jobs may come in one day and share one error of the forecast. If they realised less than a share of their
promise, with and without the worst of the newest cases, the action is capped: the guard `promise` lets it recommend
only, until a person lifts the cap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, isfinite, isnan

import numpy as np

from autopilot.core.model.capability import Planned, Tick
from autopilot.core.model.identity import rows_by_uid
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.losses import Stop
from autopilot.core.model.policy import Policy
from autopilot.core.model.policy.bounds import DAY_S
from autopilot.core.model.policy.promises import Promises
from autopilot.core.model.promises import Beneficiary, DayOfCases, Promise, PromiseRecord, Realised, Unknown
from autopilot.core.model.records import About, Evidence, Loss, Note, NoteCode, Observation
from autopilot.core.model.snapshot import F64, GPU_MILLI, State
from autopilot.core.model.work import entry_milli, gpu_part, holding_mask

CHANCE_RATIO = 0.05
"""Part of the newest cases, at least one, whose shortfall counts as chance. A gang of 16 GPUs that runs for a day
outweighs a thousand gangs that run for minutes, so a single wrong forecast could decide the sum."""
RECORD_DAYS = 7
"""Days for which displaced cases count. A week covers daily and weekly patterns."""
MOST_OPEN = 200
"""Cases that are followed at once; further ones are not recorded. Memory is read and written at each tick."""


def remember_promises(memory: ControllerMemory, planned: Planned) -> ControllerMemory:
    """Memory with the promises of the actions executed now."""
    if not planned.promises:
        return memory
    room = max(MOST_OPEN - len(memory.trust.promises), 0)
    return replace(memory, trust=replace(memory.trust, promises=(*memory.trust.promises, *planned.promises[:room])))


def follow_promises(memory: ControllerMemory, tick: Tick) -> ControllerMemory:
    """Memory after a trusted view, with the caps that begin now. The finished cases are noted in `tick`."""
    if memory.trust.promises:
        memory = _followed(memory, tick)
    return judge_promises(memory, tick.now_s, tick.policy)


def _followed(memory: ControllerMemory, tick: Tick) -> ControllerMemory:
    observation, losses = tick.observation, tick.losses
    view = _View(observation)
    awaited = {stop.proposal_id for stop in memory.losses.stops}
    forgotten = _forgotten(memory, tick.before.losses.stops, losses, observation)
    still: list[Promise] = []
    over: list[Realised] = []
    for before in memory.trust.promises:
        promise = _with_losses(before, losses, forgotten)
        used = tuple(_used(each, promise.until_s, view) for each in promise.beneficiaries)
        started = any(each.used_gpu_s > 0 or each.width > 0 for each in used)
        promise = replace(promise, beneficiaries=used, done=promise.done or started)
        open_still = any(_may_gain(each, promise.until_s) for each in used)
        if promise.proposal_id in awaited or open_still:
            still.append(promise)
        else:
            over.append(_finished(promise))
    records = dict(memory.trust.kept_promises)
    for case in over:
        if not case.unknown:
            record = records.get(case.action, PromiseRecord())
            records[case.action] = _with_case(record, case, tick.now_s, tick.policy.promises)
    tick.realised = tuple(over)
    return replace(memory, trust=replace(memory.trust, promises=tuple(still), kept_promises=records))


def _with_case(record: PromiseRecord, case: Realised, now_s: float, rules: Promises) -> PromiseRecord:
    """The record with one more case. The cases displaced by it are summed by day and kept for `RECORD_DAYS`."""
    cases, day = (*record.cases, (case.promised_gpu_s, case.gain_gpu_s)), int(now_s // DAY_S)
    gone = cases[: -rules.most_cases]
    before = {each.day: each for each in record.before if each.day > day - RECORD_DAYS}
    if gone:
        today = before.get(day, DayOfCases(day, 0, 0.0, 0.0))
        promised_gpu_s, realised_gpu_s = map(sum, zip(*gone, strict=True))
        before[day] = DayOfCases(
            day,
            today.cases + len(gone),
            today.promised_gpu_s + promised_gpu_s,
            today.realised_gpu_s + realised_gpu_s,
        )
    return replace(record, cases=cases[-rules.most_cases :], before=tuple(before.values()))


@dataclass(slots=True)
class _View:
    """The beneficiaries in the view of one tick; computed on first use."""

    observation: Observation
    _rows: dict[str, int] | None = None
    _width: F64 | None = None

    def row(self, uid: str) -> int | None:
        """The row of a workload; None if it is gone."""
        if self._rows is None:
            self._rows = rows_by_uid(self.observation.snapshot.workloads)
        return self._rows.get(uid)

    def width(self, row: int) -> float:
        """GPUs, shares as their part, and instances of a workload."""
        if self._width is None:
            work, held = self.observation.snapshot.workloads, self.observation.snapshot.placements
            milli = np.bincount(held.workload, entry_milli(held), minlength=len(work.id))
            self._width = np.where(holding_mask(work), milli, 0.0) / GPU_MILLI
        return float(self._width[row])


def _used(each: Beneficiary, until_s: float, view: _View) -> Beneficiary:
    """A beneficiary with its use up to now, counted until the case is over for it.

    Between two ticks its width is that of the first.
    """
    if not _may_gain(each, until_s):
        return each
    now_s, work = view.observation.now_s, view.observation.snapshot.workloads
    row = view.row(each.uid)
    state = State.SUCCEEDED if row is None else State(int(work.state[row]))
    ended = state in {State.SUCCEEDED, State.FAILED}
    start_s = float("nan") if row is None else float(work.start_s[row])
    end_s = now_s if row is None or not ended or isnan(float(work.ended_s[row])) else float(work.ended_s[row])
    width, since_s = each.width, each.counted_s
    if width == 0 and row is not None and isfinite(start_s) and state != State.PENDING:  # it started meanwhile
        width = float(work.gpus[row]) * gpu_part(work, row) if ended else view.width(row)
        since_s = max(since_s, start_s)
    used_s = max(min(end_s, until_s, each.without_s) - since_s, 0.0)
    waits = each.stopped and width == 0 and not ended
    return replace(
        each,
        width=0.0 if row is None or ended else view.width(row),
        counted_s=max(now_s, each.counted_s),
        used_gpu_s=each.used_gpu_s + width * each.part * used_s,
        ended=ended,
        waited_s=each.waited_s + used_s if waits else each.waited_s,
    )


def _may_gain(each: Beneficiary, until_s: float) -> bool:
    return not each.ended and each.counted_s < min(until_s, each.without_s)


def _with_losses(promise: Promise, losses: Sequence[Loss], forgotten: set[str]) -> Promise:
    """The promise after the losses of this tick: those of its victims, and of the work started by it."""
    names = {each.workload for each in promise.beneficiaries if each.used_gpu_s > 0 or each.width > 0}
    lost, done, unknown, stopped = promise.lost_gpu_s, promise.done, promise.unknown, set[str]()
    for loss in losses:
        if loss.proposal_id != promise.proposal_id and loss.workload not in names:
            continue
        done = True
        if loss.proposal_id != promise.proposal_id:
            stopped.add(loss.workload)
        if isnan(loss.lost_gpu_s):
            unknown = unknown or Unknown.NO_LOSS
        else:
            lost += max(loss.lost_gpu_s, 0.0)
    if promise.proposal_id in forgotten:
        unknown = unknown or Unknown.NO_LOSS
    if stopped:
        found = (replace(each, stopped=each.stopped or each.workload in stopped) for each in promise.beneficiaries)
        promise = replace(promise, beneficiaries=tuple(found))
    if (lost, done, unknown) == (promise.lost_gpu_s, promise.done, promise.unknown):
        return promise
    return replace(promise, lost_gpu_s=lost, done=done, unknown=unknown)


def _forgotten(
    memory: ControllerMemory, stops: Sequence[Stop], losses: Sequence[Loss], observation: Observation
) -> set[str]:
    """Proposals with a stop whose loss stays unknown: it is no longer awaited, and nothing reported its end."""
    awaited = {stop.instruction_id for stop in memory.losses.stops}
    answered = {outcome.instruction_id for outcome in observation.outcomes}
    settled = {(loss.proposal_id, loss.workload) for loss in losses}
    return {
        stop.proposal_id
        for stop in stops
        if stop.instruction_id not in awaited | answered and (stop.proposal_id, stop.workload) not in settled
    }


def _finished(promise: Promise) -> Realised:
    most_gpu_s = sum(_most_gpu_s(each, promise) for each in promise.beneficiaries) if promise.beneficiaries else inf
    unknown = promise.unknown or ("" if promise.done else Unknown.NOT_DONE)
    return Realised(
        promise.proposal_id,
        promise.action,
        promise.at_s,
        min(promise.promised_gpu_s, most_gpu_s),
        sum(each.used_gpu_s for each in promise.beneficiaries),
        promise.lost_gpu_s,
        unknown,
    )


def _most_gpu_s(each: Beneficiary, promise: Promise) -> float:
    """The most possible use in its remaining time; inf without a stop by another action."""
    if not each.waited_s or not each.gpus:
        return inf
    return each.gpus * max(min(promise.until_s, each.without_s) - promise.at_s - each.waited_s, 0.0)


# --- the cap ------------------------------------------------------------------------------------------


def sums_of(record: PromiseRecord) -> tuple[float, float]:
    """Promised and realised GPU-seconds of the cases by which an action is judged."""
    promised_gpu_s = sum(promised for promised, _ in record.cases) + sum(each.promised_gpu_s for each in record.before)
    return promised_gpu_s, sum(gain for _, gain in record.cases) + sum(each.realised_gpu_s for each in record.before)


def least_gain_gpu_s(promised_gpu_s: float, rules: Promises) -> float:
    """The least to be realised. A promised loss may be larger by the same factor."""
    if promised_gpu_s >= 0:
        return promised_gpu_s * rules.least_ratio
    return promised_gpu_s / rules.least_ratio if rules.least_ratio > 0 else -inf


def judge_promises(memory: ControllerMemory, now_s: float, policy: Policy) -> ControllerMemory:
    """Memory with the caps that begin now."""
    rules = policy.promises
    capped = {name: each for name, each in memory.trust.kept_promises.items() if _falls_short(each, rules)}
    if not capped:
        return memory
    begun = {name: replace(each, capped_s=now_s) for name, each in capped.items()}
    return replace(memory, trust=replace(memory.trust, kept_promises={**memory.trust.kept_promises, **begun}))


def _falls_short(record: PromiseRecord, rules: Promises) -> bool:
    if record.capped_s < inf or record.count < rules.least_cases:
        return False
    if not _is_short(record, rules):
        return False
    worst_first = sorted(record.cases, key=lambda case: case[1] - least_gain_gpu_s(case[0], rules))
    return _is_short(replace(record, cases=tuple(worst_first[ceil(CHANCE_RATIO * len(worst_first)) :])), rules)


def _is_short(record: PromiseRecord, rules: Promises) -> bool:
    promised_gpu_s, realised_gpu_s = sums_of(record)
    return realised_gpu_s < least_gain_gpu_s(promised_gpu_s, rules)


def cap_notes(before: ControllerMemory, memory: ControllerMemory, _policy: Policy) -> tuple[Note, ...]:
    """A note on each cap begun or lifted since."""
    notes = []
    for action, record in memory.trust.kept_promises.items():
        was, now = before.trust.kept_promises.get(action, PromiseRecord()).capped_s < inf, record.capped_s < inf
        if now and not was:
            promised_gpu_s, realised_gpu_s = sums_of(record)
            facts = (
                Evidence("cases", record.count),
                Evidence("promised", round(promised_gpu_s, 3), "GPU-s"),
                Evidence("realised", round(realised_gpu_s, 3), "GPU-s"),
            )
            notes.append(Note(NoteCode.ACTION_CAPPED, About.ACTION, action, facts=facts))
        elif was and not now:
            notes.append(Note(NoteCode.CAP_LIFTED, About.ACTION, action))
    return tuple(notes)
