"""The ladder: notify the owner, mark the work, suspend it, or scale its service down.

No step is due before the one before it is done. A step waits for its grace, by SLO class, multiplied by the earned
patience of the owner. For interactive work only working hours count. No work is suspended before `idle.gone_s`: owners
away for longer seldom come back soon. Work known to be idle by weak evidence only, of a protected class or opted out is
left to a person. So are replicas of a service that has to keep all of them, and those of every service while
`shrink_idle` may not act.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

import numpy as np

from autopilot.core.idle.follow import patience
from autopilot.core.idle.services import kept_replicas, out_of_reach
from autopilot.core.intake.usage.activity import awake_mask
from autopilot.core.model.hours import parse_hours, passed_at
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.idle import IdleRecord, IdleStep
from autopilot.core.model.policy import Effect, Policy
from autopilot.core.model.snapshot import SLO_CLASS_NAMES, ClusterSnapshot, SloClass, State
from autopilot.core.model.work import named


@dataclass(frozen=True, slots=True)
class Rung:
    """One workload on the ladder, as of the newest look.

    `notice_s`: the earliest time of a notice to its owner. `next_s`: the end of the grace of its latest step (inf
    before the notice). `suspend_s`: the earliest time of its suspension, if that step allows it.
    """

    row: int
    uid: str
    record: IdleRecord
    notice_s: float
    next_s: float
    suspend_s: float
    grace_s: float
    advice: str = ""  # why only a person may act; "" where the ladder may


def rungs(memory: ControllerMemory, snapshot: ClusterSnapshot, policy: Policy) -> tuple[Rung, ...]:
    """All work idle at the newest look and since, most idle GPU-seconds first."""
    work, known = snapshot.workloads, memory.idle
    if not known.records:
        return ()
    rows = np.flatnonzero(named(work.uid, known.records) & (work.state == State.RUNNING)).tolist()
    found: list[Rung] = []
    awake = awake_mask(snapshot, policy) if rows else np.zeros(0, np.bool_)
    for row in rows:
        if awake[row]:
            continue  # its owner is back since the newest look
        uid = str(work.uid[row])
        record = known.records[uid]
        if record.seen_s >= known.look_s and record.gone_s == inf:
            found.append(_rung(memory, snapshot, policy, row, uid, record))
    now_s = known.look_s
    return tuple(sorted(found, key=lambda rung: (-rung.record.gpus * (now_s - rung.record.since_s), rung.row)))


def _rung(
    memory: ControllerMemory, snapshot: ClusterSnapshot, policy: Policy, row: int, uid: str, record: IdleRecord
) -> Rung:
    work, rules = snapshot.workloads, policy.idle
    factor = patience(memory.idle.owners.get(record.owner), policy)
    interactive = work.slo_class[row] == SloClass.INTERACTIVE
    grace_s = (rules.interactive_grace_s if interactive else rules.batch_grace_s) * factor
    hours = parse_hours(rules.working_hours, "idle.working_hours") if interactive else None
    next_s = inf if record.step == IdleStep.SEEN else passed_at(hours, record.step_s, grace_s)
    if record.estimated:
        advice = "estimated"
    elif work.excluded[row]:
        advice = "opted out"
    elif SLO_CLASS_NAMES[int(work.slo_class[row])] in policy.protection.classes:
        advice = "protected class"
    else:
        stays = work.service[row] >= 0 and not _may_shrink(snapshot, int(work.service[row]), policy)
        advice = "replica of a service" if stays else ""
    notice_s, gone_s = (record.since_s + length_s * factor for length_s in (rules.window_s, rules.gone_s))
    return Rung(row, uid, record, notice_s, next_s, max(next_s, gone_s), grace_s, advice)


def _may_shrink(snapshot: ClusterSnapshot, service: int, policy: Policy) -> bool:
    """True if a step may follow for the replicas of a service: it has more than it keeps, and a ceiling reaches it."""
    services = snapshot.services
    if not policy.modes.acts(Effect.CEILING) or service >= len(services.id):
        return False
    kept, _ = kept_replicas(services, service, policy)
    return kept < int(services.replicas[service]) and not out_of_reach(services, service, kept)


def ladder_timers_s(found: Iterable[Rung]) -> list[float]:
    """Times at which a step becomes due by time alone."""
    return [time_s for rung in found for time_s in (rung.notice_s, rung.next_s, rung.suspend_s) if time_s < inf]
