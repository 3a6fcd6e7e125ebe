"""The clock: trust in the time of this tick, and the times in memory under a clock that was set.

The wall clock can be set at any moment. `elapsed_s`, the time since the last decision by a monotonic clock, cannot.
After a small difference between the two, the times in memory move with the wall clock, so that each budget, cool-down
and timer lasts as long in true time as promised. A difference of more than `clock.max_jump_s` is a jump: all actions
wait until the clock is back at the expected time, or has advanced consistently from its new reading for
`clock.confirm_ticks` ticks. Virtual time has no second clock: it may advance by any step, and a step back is a jump.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from math import inf, isnan
from typing import Any

import numpy as np

from autopilot.core.model.idle_memory import IdleMemory, IdleOwner, IdleRecord, ShrunkService, SizeRecord
from autopilot.core.model.memory import (
    Approval,
    ClockDoubt,
    ControllerMemory,
    CordonRecord,
    Disruption,
    Failure,
    InFlight,
    Noted,
    OpenProposal,
    PipelinedStart,
    RecutRecord,
    Rejection,
    ServiceRecord,
    Stop,
    StormRecord,
    Touched,
    ViewRecord,
)
from autopilot.core.model.policy import Policy
from autopilot.core.model.policy_bounds import DAY_S
from autopilot.core.model.promises import Beneficiary, Promise, PromiseRecord
from autopilot.core.model.records import Batch, Gap, Instruction, Reservation, Work

SETTLED_S = 0.5
"""Differences between the two clocks accumulate; memory moves when their sum reaches this."""

TIMES: dict[type[Any], tuple[str, ...]] = {
    ControllerMemory: (
        "now_s",
        "cooled_until_s",
        "requested_s",
        "idle_nodes_s",
        "offered_s",
        "no_pipelined_until_s",
        "refused_until_s",
        "proposed_since_s",
        "spent_until_s",
        "usage_at_s",
        "paused_since_s",
        "wake_at_s",
    ),
    InFlight: ("since_s",),
    Instruction: ("deadline_s",),
    Reservation: ("since_s", "start_s", "promised_s", "planned_s"),
    Noted: ("since_s",),
    Disruption: ("at_s",),
    Failure: ("at_s",),
    StormRecord: ("minutes", "hours", "last_s", "since_s"),
    Touched: ("at_s",),
    Promise: ("at_s", "until_s"),
    Beneficiary: ("without_s", "counted_s"),
    PromiseRecord: ("capped_s",),
    Stop: ("at_s",),
    RecutRecord: ("since_s", "deadline_s", "starts_s", "viewed_s", "turned_s"),
    CordonRecord: ("since_s",),
    ViewRecord: ("listed_s", "counted_s"),
    PipelinedStart: ("since_s", "deadline_s"),
    OpenProposal: ("since_s", "changed_s"),
    Approval: ("given_s",),
    Rejection: ("until_s",),
    IdleMemory: ("doubted_s", "look_s", "hour_s"),
    IdleOwner: ("last_s",),
    IdleRecord: ("since_s", "seen_s", "step_s", "gone_s"),
    ShrunkService: ("since_s", "returned_s"),
    SizeRecord: ("since_s",),
    ServiceRecord: ("ready_since_s", "minute_s", "desired", "raised_s", "room_s", "returned_s"),
}
"""Fields that hold times of the controller's clock: numbers, or numbers in a mapping or tuple."""

NOT_TIMES: dict[type[Any], tuple[str, ...]] = {
    ControllerMemory: (
        "usage_gpu_s",
        "standing_use_gpu_s",
        "part_gpu_s",
        "standing_part_gpu_s",
        "spent_gpu_s",
        "starting_s",
        "clock_drift_s",
    ),
    ClockDoubt: ("first_s", "last_s", "passed_s"),
    ServiceRecord: ("cold_starts_s",),
    IdleMemory: ("held_gpu_s",),
    IdleOwner: ("freed_gpu_s", "waited_gpu_s"),
    Beneficiary: ("waited_s",),
}
"""Fields in seconds that do not move: durations, and times of another clock. `spent_gpu_s` moves by whole days.

No field of a deed (core/verbs) moves: it was shown to a person, or sent to an actuator.
"""


@dataclass(frozen=True, slots=True)
class Reading:
    """Memory at this reading of the clock, the reason for distrust ("" for trust), and the move of memory in s."""

    memory: ControllerMemory
    doubt: str
    moved_s: float


def read_clock(memory: ControllerMemory, now_s: float, elapsed_s: float, policy: Policy) -> Reading:
    """Judge the time of a tick. `elapsed_s`: since the last decision, by a monotonic clock; NaN: virtual time."""
    if memory.now_s == -inf:
        return Reading(memory, "", 0.0)
    rules, doubt, virtual = policy.clock, memory.clock_doubt, isnan(elapsed_s)
    restarted = elapsed_s == 0.0 or (doubt is not None and doubt.restarted)
    passed_s = (0.0 if virtual else elapsed_s) + (doubt.passed_s if doubt else 0.0)

    def ahead_s(since_s: float, true_s: float) -> float:
        """Seconds of the clock ahead of the expected time, `true_s` after it read `since_s`."""
        return min(now_s - since_s, 0.0) if virtual else now_s - since_s - true_s

    def jumped(by_s: float) -> bool:
        return by_s < 0 if virtual else abs(by_s) > rules.max_jump_s

    off_s = ahead_s(memory.now_s, passed_s)
    if not jumped(off_s):
        sure = memory if memory.clock_doubt is None else replace(memory, clock_doubt=None)
        return _settled(sure, now_s, off_s, restarted=restarted)
    goes_on = doubt is not None and not jumped(ahead_s(doubt.last_s, 0.0 if virtual else elapsed_s))
    first_s, ticks = (doubt.first_s, doubt.ticks + 1) if doubt is not None and goes_on else (now_s, 1)
    if ticks >= rules.confirm_ticks:
        by_s = first_s - memory.now_s if virtual else off_s
        after = moved(replace(memory, clock_doubt=None, clock_drift_s=0.0), by_s, restarted=restarted)
        return Reading(after, "", by_s)
    kept = replace(memory, clock_doubt=ClockDoubt(first_s, now_s, ticks, passed_s, restarted))
    where = "went back" if off_s < 0 else "jumped ahead"
    return Reading(kept, f"the clock {where} {abs(off_s):.0f} s and is not trusted yet", 0.0)


def _settled(memory: ControllerMemory, now_s: float, off_s: float, *, restarted: bool) -> Reading:
    """Memory with a small clock difference accumulated, or moved by the accumulated difference."""
    drift_s = memory.clock_drift_s + off_s
    if abs(drift_s) < SETTLED_S and memory.now_s <= now_s:
        if drift_s == memory.clock_drift_s:
            return Reading(memory, "", 0.0)
        return Reading(replace(memory, clock_drift_s=drift_s), "", 0.0)
    by_s = drift_s if memory.now_s + drift_s <= now_s else now_s - memory.now_s
    return Reading(moved(replace(memory, clock_drift_s=drift_s - by_s), by_s, restarted=restarted), "", by_s)


def moved(memory: ControllerMemory, by_s: float, *, restarted: bool = False) -> ControllerMemory:
    """Memory with all times later by `by_s`, as if the clock had always been that far ahead.

    After a restart the elapsed time is unknown, so budgets and cool-downs may last longer than promised. Approvals stay
    under a clock that went ahead: an approval never lasts longer than granted.
    """
    after: ControllerMemory = _moved(memory, by_s)
    if restarted and by_s > 0:
        after = replace(after, approvals=memory.approvals)
    days = round(by_s / DAY_S)
    spent = {
        tenant: tuple((day + days, used) for day, used in used_on) for tenant, used_on in memory.spent_gpu_s.items()
    }
    return replace(after, spent_gpu_s=spent)


def _moved(value: Any, by_s: float, *, is_time: bool = False) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        times = TIMES.get(type(value), ())
        changed = {
            field.name: _moved(getattr(value, field.name), by_s, is_time=field.name in times)
            for field in fields(value)
            if field.name in times
            or isinstance(getattr(value, field.name), (tuple, Mapping))
            or is_dataclass(getattr(value, field.name))
        }
        return replace(value, **changed) if changed else value
    if isinstance(value, Mapping):
        return {key: _moved(each, by_s, is_time=is_time) for key, each in value.items()}
    if isinstance(value, tuple):
        if is_time and value and isinstance(value[0], tuple):
            return tuple((at_s + by_s, *rest) for at_s, *rest in value)
        return tuple(_moved(each, by_s, is_time=is_time) for each in value)
    return value + by_s if is_time else value


def not_of_the_future(batch: Batch, now_s: float, most_s: float) -> Batch:
    """A batch with values dated more than `most_s` in the future made unknown, each reported by a gap."""
    ahead_s = batch.collected_s - now_s
    if ahead_s > most_s:
        return Batch(batch.source, now_s, gaps=(*batch.gaps, _skew(batch, "", ahead_s)))
    gaps: list[Gap] = []
    telemetry, work = batch.telemetry, batch.work
    if telemetry is not None and (early := telemetry.age_s < -most_s).any():
        gaps.append(_skew(batch, "samples", -float(telemetry.age_s.min())))
        telemetry = replace(telemetry, age_s=np.where(early, np.inf, telemetry.age_s).astype(np.float32))
    if work is not None:
        work = _known_work(work, batch, now_s + most_s, most_s, gaps)
    if not gaps:
        return batch
    return replace(batch, telemetry=telemetry, work=work, gaps=(*batch.gaps, *gaps))


def _known_work(work: Work, batch: Batch, latest_s: float, most_s: float, gaps: list[Gap]) -> Work:
    """Work without checkpoints and service figures of the future.

    A start in the future is kept, with a gap: it protects the work by its minimum run time.
    """
    table, services = work.workloads, work.services
    for signal, times_s in (("start", table.start_s), ("last checkpoint", table.last_checkpoint_s)):
        if (times_s > latest_s).any():
            gaps.append(_skew(batch, signal, float(np.nanmax(times_s)) - latest_s + most_s))
    if (table.last_checkpoint_s > latest_s).any():
        known_s = np.where(table.last_checkpoint_s > latest_s, np.nan, table.last_checkpoint_s)
        work = replace(work, workloads=replace(table, last_checkpoint_s=known_s))
    if (services.age_s < -most_s).any():
        gaps.append(_skew(batch, "service figures", -float(services.age_s.min())))
        ages_s = np.where(services.age_s < -most_s, np.inf, services.age_s).astype(services.age_s.dtype)
        work = replace(work, services=replace(services, age_s=ages_s))
    return work


def _skew(batch: Batch, signal: str, ahead_s: float) -> Gap:
    return Gap(batch.source, "", signal, f"clock skew: dated {ahead_s:.0f} s in the future; set the clocks right")
