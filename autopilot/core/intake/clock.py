"""The clock: trust in the time of this tick, and the times in memory under a clock that was set.

The wall clock can be set at any moment. `elapsed_s`, the time since the last decision by a monotonic clock, cannot.
After a small difference between the two, the times in memory move with the wall clock, so that each budget, cool-down
and timer lasts as long in true time as promised. A difference of more than `clock.max_jump_s` is a jump: all actions
wait until the clock is back at the expected time, or has advanced consistently from its new reading for
`clock.confirm_ticks` ticks. Virtual time has no second clock: it may advance by any step, and a step back is a jump.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, partial
from math import inf, isnan
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.intake import ClockDoubt
from autopilot.core.model.policy import Policy
from autopilot.core.model.policy.bounds import DAY_S
from autopilot.core.model.records import Batch, Gap, Work
from autopilot.core.model.times import Day, Time

SETTLED_S = 0.5
"""Differences between the two clocks accumulate; memory moves when their sum reaches this."""

Mover = Callable[[Any, float], Any]
"""Takes a value and a number of seconds. Returns the value with its times later by these seconds."""


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
    rules, doubt, virtual = policy.clock, memory.intake.clock_doubt, isnan(elapsed_s)
    restarted = elapsed_s == 0.0 or (doubt is not None and doubt.restarted)
    passed_s = (0.0 if virtual else elapsed_s) + (doubt.passed_s if doubt else 0.0)

    def ahead_s(since_s: float, true_s: float) -> float:
        """Seconds of the clock ahead of the expected time, `true_s` after it read `since_s`."""
        return min(now_s - since_s, 0.0) if virtual else now_s - since_s - true_s

    def jumped(by_s: float) -> bool:
        return by_s < 0 if virtual else abs(by_s) > rules.max_jump_s

    off_s = ahead_s(memory.now_s, passed_s)
    if not jumped(off_s):
        sure = (
            memory
            if memory.intake.clock_doubt is None
            else replace(memory, intake=replace(memory.intake, clock_doubt=None))
        )
        return _settled(sure, now_s, off_s, restarted=restarted)
    goes_on = doubt is not None and not jumped(ahead_s(doubt.last_s, 0.0 if virtual else elapsed_s))
    first_s, ticks = (doubt.first_s, doubt.ticks + 1) if doubt is not None and goes_on else (now_s, 1)
    if ticks >= rules.confirm_ticks:
        by_s = first_s - memory.now_s if virtual else off_s
        after = moved(
            replace(memory, intake=replace(memory.intake, clock_doubt=None, clock_drift_s=0.0)),
            by_s,
            restarted=restarted,
        )
        return Reading(after, "", by_s)
    kept = replace(
        memory, intake=replace(memory.intake, clock_doubt=ClockDoubt(first_s, now_s, ticks, passed_s, restarted))
    )
    where = "went back" if off_s < 0 else "jumped ahead"
    return Reading(kept, f"the clock {where} {abs(off_s):.0f} s and is not trusted yet", 0.0)


def _settled(memory: ControllerMemory, now_s: float, off_s: float, *, restarted: bool) -> Reading:
    """Memory with a small clock difference accumulated, or moved by the accumulated difference."""
    drift_s = memory.intake.clock_drift_s + off_s
    if abs(drift_s) < SETTLED_S and memory.now_s <= now_s:
        if drift_s == memory.intake.clock_drift_s:
            return Reading(memory, "", 0.0)
        return Reading(replace(memory, intake=replace(memory.intake, clock_drift_s=drift_s)), "", 0.0)
    by_s = drift_s if memory.now_s + drift_s <= now_s else now_s - memory.now_s
    left = replace(memory, intake=replace(memory.intake, clock_drift_s=drift_s - by_s))
    return Reading(moved(left, by_s, restarted=restarted), "", by_s)


def moved(memory: ControllerMemory, by_s: float, *, restarted: bool = False) -> ControllerMemory:
    """Memory with all times later by `by_s`, as if the clock had always been that far ahead.

    After a restart the elapsed time is unknown, so budgets and cool-downs may last longer than promised. Approvals stay
    under a clock that went ahead: an approval never lasts longer than granted.
    """
    move = mover_of(ControllerMemory)
    after: ControllerMemory = move(memory, by_s) if move is not None else memory
    if restarted and by_s > 0:
        after = replace(after, people=replace(after.people, approvals=memory.people.approvals))
    return after


@cache
def mover_of(kind: Any) -> Mover | None:
    """How a value of this type moves: each `Time` in it by seconds, each `Day` by whole days. None: it holds neither.

    No field of a deed (core/model/verb.py) moves: it was shown to a person, or sent to an actuator.
    """
    if kind == Time:
        return lambda at_s, by_s: at_s + by_s
    if kind == Day:
        return lambda day, by_s: day + round(by_s / DAY_S)
    if is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        moving = {each.name: move for each in fields(kind) if (move := mover_of(hints[each.name])) is not None}
        return partial(_move_fields, moving) if moving else None
    parts = get_args(kind)
    if get_origin(kind) is tuple and parts[-1] is not Ellipsis:
        moves = tuple(map(mover_of, parts))
        return partial(_move_each, moves) if any(moves) else None
    found = [move for move in map(mover_of, parts) if move is not None]
    if not found:
        return None
    if get_origin(kind) is tuple:
        return lambda values, by_s: tuple(found[0](each, by_s) for each in values)
    if get_origin(kind) is Mapping:
        return lambda values, by_s: {key: found[0](each, by_s) for key, each in values.items()}
    return lambda value, by_s: None if value is None else found[0](value, by_s)


def _move_fields(moving: Mapping[str, Mover], record: Any, by_s: float) -> Any:
    return replace(record, **{name: move(getattr(record, name), by_s) for name, move in moving.items()})


def _move_each(moves: tuple[Mover | None, ...], values: tuple[Any, ...], by_s: float) -> tuple[Any, ...]:
    return tuple(each if move is None else move(each, by_s) for each, move in zip(values, moves, strict=True))


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
