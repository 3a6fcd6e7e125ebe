"""Neighbours that slow down the replicas of services: found by the step in latency when they arrive.

`Watch` keeps six hours of minutes and the arrivals of the last hour; it knows no snapshot. `Interferences`
(models/interference.py) is the forecaster around it. A restart forgets: then it abstains ("short") until it has seen
enough.

Design and measured variants: study of sharing, section 5. Anchors: CPI2 (Zhang et al., EuroSys 2013) compares a task
with its siblings and names an antagonist.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autopilot.core.model.snapshot import F64
from models.interference_steps import (
    BEFORE_MIN,
    LEAST_BEFORE_MIN,
    LEAST_PER_MIN,
    LEAST_RISE,
    LEAST_Z,
    MOST_MISSING,
    Step,
    Window,
    mean_of,
    step_at,
    weights,
    without_load,
)

REASONS = {
    "short": "too few minutes are known between the arrival and what changed before it",
    "sparse": "too few requests: less than 0.1 per second, or too few minutes with a latency",
    "blackout": "the telemetry around the arrival is missing",
    "release": "the siblings started again, or changed as the replica did: a release",
    "renewed": "the replica started again, or has another name",
    "buckets": "the buckets of the histogram changed, or some are missing",
    "siblings-disagree": "the siblings changed in different ways",
    "clock": "the clock jumped",
}
"""Why an arrival is not judged."""
MINUTES = 420
"""Minutes kept: six hours for the load curve, and the window of an arrival."""
LOOKS_MIN = (14, 22, 32, 50)
"""Minutes after an arrival at which it is judged: again while it is not clear; the last only for sparse latencies."""
TOGETHER_MIN = 6
"""Two that arrive within this time are both suspected, with half the confidence."""
LEARN_MIN = 360
CLEARLY_MIN = 3
"""Where one of them came nearer to the step by so much, it alone is suspected."""
NOW_MIN = 5
"""Minutes behind `now`."""
APART_MIN = 8
"""A sibling with an arrival of its own in this time before the window ends is not compared with."""
CALM = 0.5 * LEAST_RISE
_OPEN = np.full(1, math.nan)
FADED_MIN = 45
"""A finding ends when its rise has been gone for this long."""


@dataclass(slots=True)
class Arrival:
    """A neighbour that came to a replica."""

    row: int
    suspect: str
    minute: int
    looks: int = 0
    reason: str = ""


@dataclass(slots=True)
class Found:
    """An open finding: who slowed down which row, and how it is now."""

    row: int
    suspect: str
    minute: int
    found_minute: int
    step: Step
    confidence: float
    own_before: float
    siblings_before: dict[int, float] = field(default_factory=dict)
    now: float = math.nan  # rise over the last minutes
    last_seen: int = 0  # minute in which at least half of the rise was there


class Watch:
    """Minutes of replicas, and the neighbours that came to them. `add` gives the rows."""

    def __init__(self) -> None:
        self.level, self.requests = np.full((0, MINUTES), np.nan), np.full((0, MINUTES), np.nan)
        self.service = np.empty(0, np.int64)  # -1: a free row
        self._buckets = np.empty(0, np.int64)  # the mark of the buckets of each row; 0: unknown
        self.minute = -1
        self.open: dict[tuple[int, str], Found] = {}
        self.unjudged: dict[int, str] = {}
        self.waiting: list[Arrival] = []
        self._changes: dict[int, list[int]] = {}  # minutes in which a neighbour of a row came or went
        self._came: dict[int, list[int]] = {}  # those in which one came
        self._cleared = 0  # first minute after a jump of the clock
        self._renewed: dict[int, int] = {}  # minute of the last restart of a row
        self._unlike: dict[int, int] = {}  # minute in which the buckets of a row last changed

    def add(self, service: int) -> int:
        """A row for a replica of this service."""
        free = np.flatnonzero(self.service < 0)
        if not len(free):
            grown = max(2 * len(self.service), 16)
            more = grown - len(self.service)
            self.level = np.concatenate([self.level, np.full((more, MINUTES), np.nan)])
            self.requests = np.concatenate([self.requests, np.full((more, MINUTES), np.nan)])
            free = np.arange(len(self.service), grown)
            self.service = np.concatenate([self.service, np.full(more, -1)])
            self._buckets = np.concatenate([self._buckets, np.zeros(more, np.int64)])
        self.service[free[0]] = service
        return int(free[0])

    def drop(self, row: int) -> None:
        """Forget a replica that is gone."""
        self.service[row], self._buckets[row] = -1, 0
        self.level[row] = self.requests[row] = np.nan
        self.waiting = [each for each in self.waiting if each.row != row]
        self.open = {key: each for key, each in self.open.items() if each.row != row}
        for kept in (self._changes, self._came, self._renewed, self._unlike, self.unjudged):
            kept.pop(row, None)

    def push(
        self,
        minute: int,
        rows: NDArray[Any],
        level: F64,
        requests: F64,
        minutes: NDArray[Any] | None = None,
    ) -> None:
        """Go on to a whole minute, with levels of it, or of earlier `minutes` by row. What is not pushed is unknown."""
        if minute <= self.minute:
            return
        for skipped in range(max(self.minute + 1, minute - MINUTES + 1), minute + 1):
            self.level[:, skipped % MINUTES] = self.requests[:, skipped % MINUTES] = np.nan
        of = np.full(len(rows), minute) if minutes is None else minutes
        known = of > minute - MINUTES
        self.level[rows[known], of[known] % MINUTES] = level[known]
        self.requests[rows[known], of[known] % MINUTES] = requests[known]
        self.minute = minute

    def arrive(self, row: int, suspect: str, minute: int) -> None:
        """A neighbour came to a replica in this minute."""
        self.waiting.append(Arrival(row, suspect, minute))
        self._changes.setdefault(row, []).append(minute)
        self._came.setdefault(row, []).append(minute)

    def leave(self, row: int, suspect: str, minute: int) -> None:
        """A neighbour is gone: what it did is over, and what it came for is not judged any more."""
        self._changes.setdefault(row, []).append(minute)
        self.open.pop((row, suspect), None)
        self.waiting = [each for each in self.waiting if (each.row, each.suspect) != (row, suspect)]

    def clear(self, minute: int) -> None:
        """Forget all minutes before this one: the clock jumped, and they cannot be placed."""
        self.level[:], self.requests[:] = np.nan, np.nan
        self.open.clear()
        self.waiting.clear()
        self.minute, self._cleared = minute - 1, minute

    def told(self, rows: NDArray[Any], buckets: NDArray[Any]) -> list[int]:
        """Take the marks of the buckets of these rows, 0 unknown; the rows with another one than before."""
        before = self._buckets[rows]
        other = (before != 0) & (buckets != 0) & (before != buckets)
        self._buckets[rows] = np.where(buckets != 0, buckets, before)
        return [int(each) for each in rows[other]]

    def renew(self, row: int, minute: int) -> None:
        """A replica started again, or with another image."""
        self._renewed[row] = minute

    def unlike(self, row: int, minute: int) -> None:
        """The buckets of a replica changed: levels before and after cannot be compared."""
        self._unlike[row] = minute

    def judge(self) -> None:
        """Judge the arrivals whose time has come, by the minutes up to the last one that was pushed."""
        left = []
        calm = self._calm()
        for each in self.waiting:
            since = self.minute - each.minute
            if since < LOOKS_MIN[each.looks]:
                left.append(each)
                continue
            each.looks += 1
            found = None if (each.row, each.suspect) in calm else self._step(each)
            if isinstance(found, Step):
                self._take(each, found)
                continue
            each.reason = found or ""
            if each.looks < len(LOOKS_MIN) - (each.reason != "sparse"):
                left.append(each)
        self.waiting = left
        self.unjudged = {each.row: each.reason for each in left if each.reason}
        self._follow()
        oldest = self.minute - MINUTES
        for kept in (self._changes, self._came):
            for row, when in list(kept.items()):
                if when and when[0] <= oldest:
                    kept[row] = [each for each in when if each > oldest]

    def _calm(self) -> set[tuple[int, str]]:
        """Arrivals that are due and after which a replica is hardly slower than its siblings: they need no more.

        By plain means, the highest of several windows: a rise that counts is never left out for what came before it.
        """
        due: dict[int, list[Arrival]] = {}
        for each in self.waiting:
            if self.minute - each.minute >= LOOKS_MIN[each.looks]:
                due.setdefault(each.minute, []).append(each)
        found = set[tuple[int, str]]()
        for at, arrivals in due.items():
            rows = np.flatnonzero(np.isin(self.service, self.service[[each.row for each in arrivals]]))
            change = self._change(rows, at)
            place = {int(row): number for number, row in enumerate(rows.tolist())}
            for each in arrivals:
                siblings = [place[row] for row in self._siblings(each.row, at, self.minute)]
                rest = (
                    change[:, place[each.row]] - np.median(change[:, siblings], axis=1) if len(siblings) > 1 else _OPEN
                )
                if (rest < CALM).all():
                    found.add((each.row, each.suspect))
        return found

    def _change(self, rows: NDArray[Any], at: int) -> F64:
        """[windows, rows]: the mean level after a minute over that before, NaN where a third of it is not known."""
        first = max(at - BEFORE_MIN, self.minute - MINUTES + 1, 0)
        levels = self.level[np.ix_(rows, np.arange(first, self.minute + 1) % MINUTES)]
        middle = at - first
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            before = [np.nanmean(levels[:, max(middle - reach, 0) : middle], axis=1) for reach in (BEFORE_MIN, 20, 8)]
            after = [np.nanmean(levels[:, middle + 1 : middle + 1 + reach], axis=1) for reach in (8, MINUTES)]
        known = np.isfinite(levels[:, middle + 1 :]).mean(axis=1) > 1.0 - MOST_MISSING
        return np.where(known, np.array([late - early for early in before for late in after]), np.nan)

    # --- one arrival ------------------------------------------------------------------------

    def _step(self, arrival: Arrival) -> Step | str | None:
        row, at = arrival.row, arrival.minute
        first = max(at - BEFORE_MIN, self.minute - MINUTES + 1, 0)
        last = self._last_minute(arrival)
        group = np.flatnonzero(self.service == self.service[row]).tolist()
        fresh = at - LEAST_BEFORE_MIN
        renewed = [first <= self._renewed.get(each, -1) <= last for each in group]
        anew = sum(fresh <= self._renewed.get(each, -1) <= last for each in group)
        if len(group) > 1 and 2 * anew > len(group):
            return "release"
        if fresh <= self._renewed.get(row, -1) <= last:
            return "renewed"
        changes = [each for each in self._changes.get(row, ()) if each < fresh]
        changes += [
            self._renewed[each] for each, new in zip(group, renewed, strict=True) if new and self._renewed[each] < fresh
        ]
        since = max([first, self._cleared, *(each + 1 for each in changes)])
        siblings = self._siblings(row, at, last)
        if any(self._unlike.get(each, -1) >= since for each in (row, *siblings)):
            return "buckets"
        early = max(at - LEARN_MIN, self.minute - MINUTES + 1, 0)
        minutes, rows = np.arange(early, last + 1) % MINUTES, np.array([row, *siblings])
        levels, requests = self.level[np.ix_(rows, minutes)], self.requests[np.ix_(rows, minutes)]
        alone = without_load(levels[0], requests[0], slice(0, at - early))[first - early :]
        levels, requests = levels[:, first - early :].copy(), requests[:, first - early :]
        for place, each in enumerate(siblings, 1):
            levels[place, : max(self._settled(each, at) - first, 0)] = np.nan
        window = Window(levels[0], requests[0], levels[1:], requests[1:], at - first, since - first, alone)
        found = step_at(window)
        if isinstance(found, Step) and self._nearer(arrival, found):
            return None
        return "clock" if found == "short" and since == self._cleared else found

    def _nearer(self, arrival: Arrival, step: Step) -> bool:
        """True if another one came clearly nearer to the step."""
        begin = arrival.minute + step.offset
        return any(abs(begin - each) + CLEARLY_MIN <= abs(step.offset) for each in self._came.get(arrival.row, ()))

    def _settled(self, row: int, at: int) -> int:
        """The minute from which on nothing that is known changed at a row before the arrival."""
        return max((each + 1 for each in self._changes.get(row, ()) if each <= at), default=0)

    def _last_minute(self, arrival: Arrival) -> int:
        """The last minute that belongs to an arrival: before the next one of the same replica."""
        later = [
            each for each in self._changes.get(arrival.row, ()) if arrival.minute + TOGETHER_MIN < each <= self.minute
        ]
        return min([self.minute, *(each - 1 for each in later)])

    def _siblings(self, row: int, at: int, last: int) -> list[int]:
        """The siblings to which nobody came, and that did not start again, around the arrival."""
        same = np.flatnonzero(self.service == self.service[row])
        return [
            int(each)
            for each in same
            if each != row
            and not any(at - APART_MIN <= change <= last for change in self._changes.get(int(each), ()))
            and not at - LEAST_BEFORE_MIN < self._renewed.get(int(each), -1) <= last
        ]

    def _take(self, arrival: Arrival, step: Step) -> None:
        """Open a finding."""
        row, at = arrival.row, arrival.minute
        beside = [each for each in self._came.get(row, ()) if abs(each - at) <= TOGETHER_MIN]
        first = max(at - BEFORE_MIN, self.minute - MINUTES + 1, 0)
        before = np.arange(first, at) % MINUTES
        siblings = {
            each: mean_of(self.level[each, before], weights(self.level[each, before], self.requests[each, before]))
            for each in self._siblings(row, at, self.minute)
        }
        sure = 1.0 - 0.5 * math.exp(-max(step.z - LEAST_Z, 0.0) / 4.0)
        confidence = 0.5 * sure if len(beside) > 1 else sure
        known = {each: level for each, level in siblings.items() if math.isfinite(level)}
        self.open[row, arrival.suspect] = Found(
            row, arrival.suspect, at, self.minute, step, confidence, step.own_before, known, last_seen=self.minute
        )
        self.unjudged.pop(row, None)

    # --- findings -----------------------------------------------------------------------------

    def _follow(self) -> None:
        """How each finding is now; those that have been gone for long end."""
        minutes = np.arange(max(self.minute - NOW_MIN + 1, 0), self.minute + 1) % MINUTES
        for key, found in list(self.open.items()):
            found.now = self._now(found, minutes)
            if math.isnan(found.now) or found.now >= 0.5 * found.step.rise:
                found.last_seen = self.minute
            elif self.minute - found.last_seen >= FADED_MIN:
                del self.open[key]

    def _now(self, found: Found, minutes: NDArray[Any]) -> float:
        suspected = {row for row, _ in self.open}
        rows = [
            row for row in found.siblings_before if row not in suspected and self._renewed.get(row, -1) < found.minute
        ]
        requests = self.requests[found.row, minutes]
        if float(np.nanmean(requests)) < LEAST_PER_MIN if np.isfinite(requests).any() else True:
            return math.nan
        own = self._mean(found.row, minutes) - found.own_before
        others = [self._mean(row, minutes) - found.siblings_before[row] for row in rows]
        others = [each for each in others if math.isfinite(each)]
        return own - float(np.median(others)) if others else own

    def _mean(self, row: int, minutes: NDArray[Any]) -> float:
        level, requests = self.level[row, minutes], self.requests[row, minutes]
        return mean_of(level, weights(level, requests))
