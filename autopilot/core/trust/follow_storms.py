"""Storms: an action that reverses itself, fails or cuts GPUs anew again and again.

Three events count, by action: a failed effect; a reversal, that is a stop or move of a workload stopped or moved by the
same action within the hour before, or the rise of a floor lowered by it within the hour before; and each change of MIG
geometry. More of these within an hour than policy allows is a storm (`Storms` in core/model/policy/storms.py). The
guard `storm` pauses the action until a person resumes or nothing was counted for a while.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from math import inf
from statistics import median

from autopilot.core.model.capability import Planned, Tick
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.trust import StormRecord, Touched
from autopilot.core.model.policy import Policy
from autopilot.core.model.policy.storms import Storms
from autopilot.core.model.records import About, Evidence, Note, NoteCode

MINUTE_S, HOUR_S, WEEK_S = 60.0, 3600.0, 7 * 86_400.0
LEAST_HOURS = 24
"""The median is known once the action acted in this many hours."""

Bins = tuple[tuple[float, int], ...]
"""(start, events) of bins that follow each other."""


def follow_failed(memory: ControllerMemory, tick: Tick) -> ControllerMemory:
    """Memory after the failed effects of this tick, and with the storms that begin and end now."""
    memory = _counted(memory, Counter(entry.action for entry in tick.failed), tick.now_s)
    if tick.resumed:
        memory = _resumed(memory)
    return memory if tick.blind else judge_storms(memory, tick.now_s, tick.policy)


def count_acts(memory: ControllerMemory, planned: Planned) -> ControllerMemory:
    """Memory after the accepted proposals of a tick: their reversals and changes of geometry."""
    now_s, services = planned.now_s, planned.observation.snapshot.services
    touched = {(each.action, each.uid): each for each in memory.trust.touched if each.at_s + HOUR_S > now_s}
    acts: Counter[str] = Counter()
    for proposal in planned.plan.proposals:
        events, action, change = 0, proposal.action, proposal.change
        if not proposal.accepted or change.only_holds:
            continue
        for victim in change.victims:
            events += (action, victim.uid) in touched
            touched[action, victim.uid] = Touched(action, victim.uid, now_s)
        uid = proposal.subject.uid
        lowers = change.lowers(uid, services)
        if lowers and not (change.renewable and (action, uid) in touched):
            touched[action, uid] = Touched(action, uid, now_s)
        elif lowers is False:
            events += touched.pop((action, uid), None) is not None
        acts[action] += events + change.cuts_gpu
    if touched or memory.trust.touched:
        memory = replace(memory, trust=replace(memory.trust, touched=tuple(touched.values())))
    return judge_storms(_counted(memory, acts, now_s), now_s, planned.policy)


def _counted(memory: ControllerMemory, acts: Counter[str], now_s: float) -> ControllerMemory:
    """Memory after acts, with the number of events counted for each action."""
    storms = dict(memory.trust.storms)
    for action, events in acts.items():
        record = storms.get(action, StormRecord())
        storms[action] = replace(record, hours=_added(record.hours, HOUR_S, WEEK_S, events, now_s))
        if events:
            minutes = _added(record.minutes, MINUTE_S, HOUR_S, events, now_s)
            storms[action] = replace(storms[action], minutes=minutes, last_s=now_s)
    return replace(memory, trust=replace(memory.trust, storms=storms)) if acts else memory


def _added(bins: Bins, width_s: float, kept_s: float, events: int, now_s: float) -> Bins:
    """The bins of the last `kept_s` with these events in the newest one."""
    kept = tuple(each for each in bins if each[0] + kept_s > now_s)
    if kept and now_s < kept[-1][0] + width_s:
        return (*kept[:-1], (kept[-1][0], kept[-1][1] + events))
    return (*kept, (now_s, events))


def events_in_hour(record: StormRecord, now_s: float) -> int:
    """Events within the last hour, to the minute."""
    return sum(events for at_s, events in record.minutes if at_s + HOUR_S > now_s)


def limit_of(record: StormRecord, now_s: float, rules: Storms) -> float:
    """The most events allowed in an hour."""
    past = [events for at_s, events in record.hours if now_s - WEEK_S < at_s <= now_s - HOUR_S]
    if len(past) < LEAST_HOURS:
        return float(rules.per_hour)
    return min(float(rules.per_hour), max(float(rules.least), rules.median_ratio * median(past)))


def judge_storms(memory: ControllerMemory, now_s: float, policy: Policy) -> ControllerMemory:
    """Memory with the storms that begin and end now."""
    if not memory.trust.storms:
        return memory
    judged = {name: _judged(each, now_s, policy.storms) for name, each in memory.trust.storms.items()}
    if all(judged[name] is each for name, each in memory.trust.storms.items()):
        return memory
    return replace(memory, trust=replace(memory.trust, storms=judged))


def _judged(record: StormRecord, now_s: float, rules: Storms) -> StormRecord:
    if record.since_s < inf and now_s >= record.last_s + rules.calm_s:
        record = replace(record, since_s=inf, events=0)
    events = events_in_hour(record, now_s)
    if record.since_s < inf:
        return replace(record, events=max(events, record.events))
    if events <= min(rules.per_hour, rules.least):  # no limit is lower
        return record
    if events > limit_of(record, now_s, rules):
        return replace(record, since_s=now_s, events=events)
    return record


def _resumed(memory: ControllerMemory) -> ControllerMemory:
    """Memory after a person resumed: no storm, and the events so far count for no new one."""
    ended = {name: replace(each, since_s=inf, events=0, minutes=()) for name, each in memory.trust.storms.items()}
    return replace(memory, trust=replace(memory.trust, storms=ended)) if ended else memory


def storm_timers_s(memory: ControllerMemory, planned: Planned) -> Iterable[float]:
    """Times at which calm ends a storm."""
    calm_s = planned.policy.storms.calm_s
    yield from (each.last_s + calm_s for each in memory.trust.storms.values() if each.since_s < inf)


def storm_notes(before: ControllerMemory, memory: ControllerMemory, policy: Policy) -> tuple[Note, ...]:
    """A note on each storm begun or ended since."""
    notes = []
    for action, record in memory.trust.storms.items():
        was, now = before.trust.storms.get(action, StormRecord()).since_s < inf, record.since_s < inf
        if now and not was:
            limit = Evidence("limit", limit_of(record, memory.now_s, policy.storms))
            facts = (Evidence("events", record.events), limit, Evidence("calm", policy.storms.calm_s, "s"))
            notes.append(Note(NoteCode.STORM_BEGAN, About.ACTION, action, facts=facts))
        elif was and not now:
            notes.append(Note(NoteCode.STORM_ENDED, About.ACTION, action))
    return tuple(notes)
