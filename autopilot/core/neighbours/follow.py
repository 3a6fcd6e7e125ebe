"""Trials of suspects, their verdicts, and what is remembered of pairs.

Theory of operation. A trial begins when a suspect is asked to pause. Once the view shows the pause, the level of its
victim is watched. If it falls by half of its rise, in logarithms, from where it was before the pause, the suspect is
confirmed, and stays paused until it is moved, for `HOLD_S` at most. If it does not within `JUDGE_S`, the suspect is
cleared, and goes on. Where the level is not known, or the pause never shows, the trial ends at `MOST_S` without a
verdict. It also ends when one of the two is gone, or when the actuator fails. A pause ends by itself within 300 s
unless it is asked for again, so nothing here can leave work paused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from heapq import nlargest
from math import isnan, log, nan

from autopilot.core.model.capability import Planned, Tick
from autopilot.core.model.identity import rows_by_uid
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.neighbours import NeighboursMemory, Trial, Verdict
from autopilot.core.model.neighbours import Interference
from autopilot.core.model.objects import Pausing
from autopilot.core.model.policy.bounds import DAY_S
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.model.work import holding_mask
from autopilot.core.neighbours.pairing import budget_of, pair_of
from autopilot.core.neighbours.pausing import MOST_PAUSE_S, PAUSE, Pause
from autopilot.core.planning.pairs import kept_part, uid_pair, with_result

LEAST_S, JUDGE_S = 180.0, 360.0
"""A victim that recovered counts from the first on, one that did not from the second: its level covers minutes."""
MOST_S = 600.0
"""A trial is over after this long (study of sharing, section 5: a pause of ten minutes)."""
HOLD_S = 600.0
"""A confirmed suspect stays paused for this long while its move waits."""
RENEW_S = 100.0
"""A pause is asked for again when less than this is left of it."""
FALLEN_RATIO = 0.5
"""Part of the rise that a pause takes away at least where the suspect is the cause."""
MOST_PAIRS = 2000
"""Pairs in the memory: the newest. Names come from people and from generators."""
LEAST_COUNT = 0.05
"""Counts that have fallen below this are forgotten."""


def open_records(snapshot_forecasts: Iterable[Interference]) -> dict[str, Interference]:
    """The records of a forecast by both uids."""
    return {uid_pair(each.victim_uid, each.suspect_uid): each for each in snapshot_forecasts}


def follow_neighbours(memory: ControllerMemory, tick: Tick) -> ControllerMemory:
    """Memory after a fresh and complete view."""
    before = memory.neighbours
    if before == NeighboursMemory():
        return memory
    snapshot, now_s = tick.observation.snapshot, tick.now_s
    rows = rows_by_uid(snapshot.workloads)
    failed = {each.instruction.subject.uid for each in tick.failed if each.instruction.kind == PAUSE}
    records = open_records(tick.observation.forecasts.interference)
    after = before
    for uid, trial in before.trials.items():
        row, victim = rows.get(uid), rows.get(trial.victim_uid)
        kept = None
        if uid in failed:
            after = _spent(after, trial, now_s)
        elif row is not None and victim is not None and _still(snapshot, row, victim, trial):
            after, kept = _followed(
                after, uid, trial, records.get(uid_pair(trial.victim_uid, uid)), row, snapshot, now_s
            )
        after = replace(after, trials=_with(after.trials, uid, kept))
    after = _forgotten(after, rows, snapshot, now_s)
    return memory if after == before else replace(memory, neighbours=after)


def _with(trials: Mapping[str, Trial], uid: str, kept: Trial | None) -> dict[str, Trial]:
    others = {key: each for key, each in trials.items() if key != uid}
    return others if kept is None else {**others, uid: kept}


def _still(snapshot: ClusterSnapshot, row: int, victim: int, trial: Trial) -> bool:
    """Both hold GPUs, and the suspect was not restarted."""
    work = snapshot.workloads
    holding = holding_mask(work)
    return bool(holding[row] and holding[victim] and int(work.incarnation[row]) == trial.incarnation)


def _followed(
    memory: NeighboursMemory,
    uid: str,
    trial: Trial,
    found: Interference | None,
    row: int,
    snapshot: ClusterSnapshot,
    now_s: float,
) -> tuple[NeighboursMemory, Trial | None]:
    """The memory with the verdict of a trial, and the trial; None where it is over."""
    waits = bool(snapshot.workloads.pausing[row] == Pausing.PAUSED)
    if not waits or isnan(trial.paused_s):  # since now, not yet, or not any more
        trial = replace(trial, paused_s=now_s if waits else nan)
    if now_s >= trial.until_s:
        return memory if trial.judged else _spent(memory, trial, now_s), None
    paused_s, now_ratio = now_s - trial.paused_s, nan if found is None else found.now_ratio
    if trial.judged or isnan(paused_s) or not now_ratio > 0.0 or paused_s < LEAST_S:
        return memory, trial
    harmful = log(trial.before_ratio / now_ratio) >= FALLEN_RATIO * log(trial.rise_ratio)
    if not harmful and paused_s < JUDGE_S:
        return memory, trial
    verdict = Verdict(harmful, trial.rise_ratio, round(now_ratio, 4), now_s)
    pairs = {**memory.pairs, trial.pair: with_result(memory.pairs.get(trial.pair), now_s, harmful=harmful)}
    verdicts = {**memory.verdicts, uid_pair(trial.victim_uid, uid): verdict}
    memory = replace(memory, pairs=pairs, verdicts=verdicts)
    if harmful:
        return memory, replace(trial, judged=True, until_s=now_s + HOLD_S)
    return _spent(memory, trial, now_s), None


def _spent(memory: NeighboursMemory, trial: Trial, now_s: float) -> NeighboursMemory:
    """The memory with one pause more that found nothing."""
    innocent = (*memory.innocent_s.get(trial.budget, ()), now_s)
    return replace(memory, innocent_s={**memory.innocent_s, trial.budget: innocent})


def _forgotten(
    memory: NeighboursMemory, rows: Mapping[str, int], snapshot: ClusterSnapshot, now_s: float
) -> NeighboursMemory:
    """The memory without what has expired, and without objects that are gone."""
    pairs = {
        key: each
        for key, each in memory.pairs.items()
        if (each.harmful + each.harmless) * kept_part(each, now_s) >= LEAST_COUNT
    }
    if len(pairs) > MOST_PAIRS:
        pairs = dict(nlargest(MOST_PAIRS, pairs.items(), key=lambda row: (row[1].at_s, row[0])))
    recent = {key: tuple(at_s for at_s in times if at_s + DAY_S > now_s) for key, times in memory.innocent_s.items()}
    pausing = snapshot.workloads.pausing
    return replace(
        memory,
        pairs=pairs,
        verdicts={key: each for key, each in memory.verdicts.items() if each.at_s + DAY_S > now_s},
        innocent_s={key: times for key, times in recent.items() if times},
        lapses_s={
            uid: at_s
            for uid, at_s in memory.lapses_s.items()
            if uid in rows and (at_s > now_s or pausing[rows[uid]] == Pausing.PAUSED)
        },
    )


def enter_trials(memory: ControllerMemory, planned: Planned) -> ControllerMemory:
    """Memory with the pauses that are asked for from now on, and the trials that begin."""
    asked = [each.instruction for each in planned.effects if isinstance(each.instruction.operation, Pause)]
    if not asked:
        return memory
    snapshot, now_s, before = planned.observation.snapshot, planned.now_s, memory.neighbours
    rows, records = rows_by_uid(snapshot.workloads), open_records(planned.observation.forecasts.interference)
    trials, lapses_s = dict(before.trials), dict(before.lapses_s)
    for each in asked:
        uid, pause = each.subject.uid, each.operation
        if not isinstance(pause, Pause):
            continue
        lapses_s[uid] = now_s + pause.seconds
        row, victim = rows.get(uid), rows.get(pause.victim_uid)
        found = records.get(uid_pair(pause.victim_uid, uid))
        if not pause.again and row is not None and victim is not None and found is not None:
            trials[uid] = Trial(
                victim=pause.victim,
                victim_uid=pause.victim_uid,
                incarnation=each.subject.revision,
                pair=pair_of(snapshot, found, victim, row),
                budget=budget_of(snapshot, victim),
                rise_ratio=found.rise_ratio,
                before_ratio=found.now_ratio if found.now_ratio > 0.0 else found.rise_ratio,
                paused_s=nan,
                until_s=now_s + MOST_S,
            )
    return replace(memory, neighbours=replace(before, trials=trials, lapses_s=lapses_s))


def trial_timers_s(memory: ControllerMemory, planned: Planned) -> Iterable[float]:
    """Times at which a trial is judged or over, and a pause is asked for again."""
    for uid, trial in memory.neighbours.trials.items():
        yield trial.until_s
        yield from () if isnan(trial.paused_s) else (trial.paused_s + LEAST_S, trial.paused_s + JUDGE_S)
        yield memory.neighbours.lapses_s.get(uid, planned.now_s + MOST_PAUSE_S) - RENEW_S
