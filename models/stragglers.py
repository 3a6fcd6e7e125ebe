"""Members that hold up their gang, found by comparing the members of one gang: the model behind core/stragglers/.

A gang in step waits for its slowest member. Two series tell that member: the busy time of a step where the program
reports it, and its activity, because members that wait show idle tensor cores and SMs while the slow one works all the
time. Stages of a pipeline differ by design, so members are compared within their stage. Where the stage is unknown a
difference from the start proves nothing, and only a rise over the first half hour counts.

A third kind of evidence is the hardware: clocks, thermal or power throttling, the width of PCIe, errors and remapped
rows. Hardware alone is no verdict. A verdict on busy times alone has a low confidence, under `SURE`: no one counter
stops work.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from autopilot.core.model.forecast import Forecasts
from autopilot.core.model.neighbours import SlowGpu, Straggler, Unjudged
from autopilot.core.model.snapshot import F32, F64, I64, Bools, ClusterSnapshot
from models.members import Members, members_of

NAME = "stragglers"

MINUTE_S = 55.0
"""Least time between two looks; a snapshot may come a little early."""
GAP_S = 300.0
"""After a longer gap, or a step back of the clock, all histories begin anew."""
WINDOW, LEAST = 15, 12
"""Minutes of the window, and how many of them must have a value."""
BASE, RISEN = 30, float(np.log(1.05))
"""Minutes after which the difference of a member is taken as its own, and the least rise over it that is an onset."""

SLOW = float(np.log(1.08))
"""Least rise over the peers. Among ranks of one stage of three real jobs the medians differ by .009 at most, and
single steps by .027 (ByteDance-Seed/StragglerAnalysis, OSDI'25; scripts/fit_stragglers.py)."""
ALONE_RATIO = 1.15
"""Least ratio of a verdict on busy times alone without an onset: the work of a rank may just be larger."""
ENDS = float(np.log(1.04))
"""Under this rise a verdict ends."""
SINGLE = float(np.log(1.03))
"""Four of five minutes must show at least this rise, so that a few slow steps are no verdict."""
SPREADS, FLOOR = 4.5, 0.009
"""The rise must exceed this many spreads of the members of the gang; the least spread is that of the real jobs."""
AGREES = float(np.log(1.02))
"""Least rise of the SM activity beside that of the tensor cores: members that wait still spin in a collective."""
MOST_OF_GROUP = 4
"""One member in this many may be slow; where more are, the work is unequal by design."""

CLOCK_RATIO = 0.95
"""A clock below this part of that of the peers is evidence."""
THROTTLED, UNTHROTTLED = 0.2, 0.05
"""Part of the time in which a member is throttled, and in which its peers are at most."""

SURE = 0.9
"""Confidence of a verdict on two kinds of evidence."""
BY_STEPS, BY_TWO, BY_ALL = 0.7, 0.93, 0.98
DOUBT = 0.03
"""Subtracted where stages are unknown."""

KEPT_S = 14 * 86400.0
"""A GPU found slow is remembered for this long."""
SUSPECT_GANGS = 2

SHORT, CHANGED, SILENT, UNEQUAL, STAGES = "short", "changed", "member-silent", "unequal", "stages-unknown"
REASONS = {
    SHORT: "it has not been watched for long enough",
    SILENT: "signals of a member are missing, and not all report the time of a step",
    UNEQUAL: "more than a quarter of the members of a stage differ: its work is unequal by design",
    STAGES: "its stages are unknown, and it has not run for long enough to know their differences",
}
"""Why a gang is not judged."""

Rows = NDArray[np.intp]


@dataclass(slots=True)
class _Series:
    """Log ratios of one measure to the peers, over the window, and the difference at the start of each member."""

    ring: F32 = field(default_factory=lambda: np.empty((WINDOW, 0), np.float32))
    base: F64 = field(default_factory=lambda: np.empty(0))

    def moved(self, old: I64) -> _Series:
        """The columns of other members: those at `old`, and new ones for -1."""
        ring, base = np.full((WINDOW, len(old)), np.nan, np.float32), np.full(len(old), np.nan)
        kept = old >= 0
        ring[:, kept], base[kept] = self.ring[:, old[kept]], self.base[old[kept]]
        return _Series(ring, base)

    def take(self, place: int, values: F64, age: I64) -> None:
        """Take in the ratios of one minute."""
        self.ring[place] = values
        due = (age == BASE) & np.isnan(self.base)
        if due.any():
            self.base[due] = _quantile(self.ring[:, due], 0.5)

    def levels(self, stage_known: Bools) -> tuple[F64, F64, Bools]:
        """Median over the window, the level of four minutes in five, and True after an onset; NaN: unknown.

        Without a known stage both levels are those above the difference at the start.
        """
        own, level = np.where(stage_known, 0.0, self.base), _quantile(self.ring, 0.5)
        return level - own, _quantile(self.ring, 0.2) - own, level - self.base >= RISEN


def _quantile(ring: F32, part: float) -> F64:
    """A quantile of each column; NaN with fewer than `LEAST` values."""
    ordered = np.sort(ring, axis=0)
    count = (~np.isnan(ordered)).sum(axis=0)
    at = np.clip(((count - 1) * part).astype(np.int64), 0, None)
    found = np.take_along_axis(ordered, at[None], axis=0)[0].astype(float)
    return np.where(count >= LEAST, found, np.nan)


@dataclass(slots=True)
class _Groups:
    """Groups of members, for values of their middle."""

    code: I64  # group of each member
    start: I64 = field(init=False)
    size: I64 = field(init=False)

    def __post_init__(self) -> None:
        """Members need not be in the order of their groups."""
        self.size = np.bincount(self.code) if len(self.code) else np.zeros(0, np.int64)
        self.start = np.concatenate([[0], np.cumsum(self.size)[:-1]]).astype(np.int64)

    def middle(self, values: F64, *, upper: bool = False) -> F64:
        """The lower (upper) median of each member's group, unknown ones left out. A slow one of two is not it."""
        if not len(values):
            return values
        ordered = values[np.lexsort((values, self.code))]
        known = np.bincount(self.code, ~np.isnan(values), minlength=len(self.size)).astype(np.int64)
        at = self.start + np.maximum((known if upper else known - 1) // 2, 0)
        return np.where(known > 0, ordered[np.minimum(at, len(ordered) - 1)], np.nan)[self.code]

    def count(self, flags: Bools) -> I64:
        """How many members of each member's group have a flag."""
        return np.bincount(self.code, flags, minlength=len(self.size)).astype(np.int64)[self.code]


@dataclass(frozen=True, slots=True)
class Found:
    """The findings of one minute: rows of members by kind of evidence."""

    members: Members
    steps: Bools
    waits: Bools
    steps_risen: Bools  # after a time in which it was like its peers
    waits_risen: Bools
    ratio: F64
    holds: Bools  # still slow enough for an open verdict to stay
    unjudged: tuple[Unjudged, ...]


@dataclass(slots=True)
class Histories:
    """The last minutes of every member."""

    steps: _Series = field(default_factory=_Series)
    tensor: _Series = field(default_factory=_Series)
    sm: _Series = field(default_factory=_Series)
    age: I64 = field(default_factory=lambda: np.empty(0, np.int64))  # minutes
    _at: dict[tuple[str, int, tuple[str, ...], tuple[int, ...]], int] = field(default_factory=dict)
    _place: int = 0

    def take(self, members: Members) -> Found:
        """Take in a minute, and find who is slow."""
        self._follow(members)
        self._place = (self._place + 1) % WINDOW
        self.age += 1
        _, code = np.unique(members.gang * 4096 + np.clip(members.stage, -1, 4094), return_inverse=True)
        stages, gangs = _Groups(code.astype(np.int64)), _Groups(members.gang)
        with np.errstate(invalid="ignore", divide="ignore"):
            for series, values in (
                (self.steps, members.busy_s),
                (self.tensor, members.tensor),
                (self.sm, members.sm),
            ):
                log = np.log(np.where(values > 0, values, np.nan))
                series.take(self._place, log - stages.middle(log), self.age)
        return self._judge(members, stages, gangs)

    def _follow(self, members: Members) -> None:
        """Move the columns to the present members. A gang that was restarted, moved or resized begins anew."""
        first = np.flatnonzero(np.diff(members.gang, prepend=-1))
        ends = [*first.tolist(), len(members.gang)][1:]
        now: dict[tuple[str, int, tuple[str, ...], tuple[int, ...]], int] = {}
        old = np.full(len(members.gang), -1, np.int64)
        for row, (begin, end) in enumerate(zip(first.tolist(), ends, strict=True)):
            of = slice(begin, end)
            uid, incarnation = str(members.gangs.uid[row]), int(members.gangs.incarnation[row])
            key = (uid, incarnation, tuple(members.gpu[of].tolist()), tuple(members.stage[of].tolist()))
            now[key] = begin
            if (before := self._at.get(key)) is not None:
                old[of] = np.arange(before, before + end - begin)
        if now != self._at or len(old) != len(self.age):
            self.steps, self.tensor, self.sm = (each.moved(old) for each in (self.steps, self.tensor, self.sm))
            age = np.zeros(len(old), np.int64)
            age[old >= 0] = self.age[old[old >= 0]]
            self.age, self._at = age, now

    def _judge(self, members: Members, stages: _Groups, gangs: _Groups) -> Found:
        slow, levels, whole, onset = list[Bools](), list[F64](), list[Bools](), list[Bools]()
        known = members.stage >= 0
        with np.errstate(invalid="ignore"):
            sm_level = self.sm.levels(known)[0]
            for series in (self.steps, self.tensor):
                level, low, risen = series.levels(known)
                onset.append(risen)
                complete = stages.count(~np.isnan(level)) == stages.size[stages.code]
                spread = 1.4826 * gangs.middle(np.abs(level))
                least = np.maximum(SLOW, SPREADS * np.maximum(spread, FLOOR))
                slow.append(complete & (level >= least) & (low >= SINGLE) & (stages.size[stages.code] > 1))
                levels.append(np.where(complete, level, np.nan))
                whole.append(complete)
            slow[1] &= sm_level >= AGREES
            flagged = slow[0] | slow[1]
            many = stages.count(flagged) > np.maximum(stages.size[stages.code] // MOST_OF_GROUP, 1)
            holds = (levels[0] >= ENDS) | (levels[1] >= ENDS)
        steps, waits = slow[0] & ~many, slow[1] & ~many
        ratio = np.exp(np.fmax(np.where(steps, levels[0], np.nan), np.where(waits, levels[1], np.nan)))
        return Found(
            members, steps, waits, onset[0], onset[1], ratio, holds & ~many, self._unjudged(members, gangs, many, whole)
        )

    def _unjudged(self, members: Members, gangs: _Groups, many: Bools, whole: list[Bools]) -> tuple[Unjudged, ...]:
        first = np.flatnonzero(np.diff(members.gang, prepend=-1))
        every = [(gangs.count(each) == gangs.size[gangs.code])[first] for each in whole]
        unequal, judged = (gangs.count(many) > 0)[first], every[0] | every[1]
        stageless = (gangs.count(members.stage < 0) > 0)[first] & (self.age[first] < BASE)
        found = []
        for row in np.flatnonzero(unequal | ~judged).tolist():
            if unequal[row]:
                reason = UNEQUAL
            elif self.age[first[row]] < LEAST:
                reason = SHORT
            else:
                reason = STAGES if stageless[row] else SILENT
            found.append(Unjudged(str(members.gangs.id[row]), reason))
        return tuple(found)


def hardware_of(members: Members, rows: Rows) -> list[tuple[str, ...]]:
    """Codes of what the hardware of these members shows and that of their peers does not."""
    gangs = _Groups(members.gang)
    with np.errstate(invalid="ignore"):
        shown = {
            "clocks": members.clock_mhz < CLOCK_RATIO * gangs.middle(members.clock_mhz, upper=True),
            "thermal": (members.thermal >= THROTTLED) & (gangs.middle(members.thermal) <= UNTHROTTLED),
            "power-brake": (members.brake >= THROTTLED) & (gangs.middle(members.brake) <= UNTHROTTLED),
            "xid": members.xid > 0,
            "remap": members.remap > 0,
            "pcie-width": members.pcie_width < gangs.middle(members.pcie_width, upper=True),
        }
    return [tuple(code for code, flags in shown.items() if flags[row]) for row in rows.tolist()]


@dataclass(frozen=True, slots=True)
class _Seen:
    """A GPU that was slow in one gang."""

    node: str
    at_s: float
    ratio: float
    evidence: tuple[str, ...]


class Stragglers:
    """Forecaster of the members that hold up their gang. A restart of the process forgets all of it."""

    name = NAME

    def __init__(self) -> None:
        self._look_s = float("-inf")
        self._forget()
        self._slow: dict[str, dict[str, _Seen]] = {}  # by GPU, then by uid of the gang

    def _forget(self) -> None:
        self._histories = Histories()
        self._open: dict[tuple[str, str, str], Straggler] = {}
        self.unjudged: tuple[Unjudged, ...] = ()

    def update(self, now_s: float, snapshot: ClusterSnapshot) -> None:
        """Look once a minute."""
        if 0.0 <= now_s - self._look_s < MINUTE_S:
            return
        if not 0.0 <= now_s - self._look_s <= GAP_S:
            self._forget()
        self._look_s = now_s
        self.take(now_s, members_of(snapshot))

    def take(self, now_s: float, members: Members) -> None:
        """Take in the members of one minute."""
        found = self._histories.take(members)
        if found.unjudged != self.unjudged:  # the same objects while nothing changes: the journal keeps them once
            self.unjudged = found.unjudged
        before, self._open = self._open, {}
        for each in verdicts(found, now_s):
            key = (each.gang_uid, each.node, each.gpu)
            old = before.pop(key, None)
            self._open[key] = each if old is None else replace(each, since_s=old.since_s, found_s=old.found_s)
        if before:  # not slow enough to be found anew; slow enough to stay
            uids = members.gangs.uid[members.gang]
            held = {(str(uids[row]), str(members.node[row])): None for row in np.flatnonzero(found.holds).tolist()}
            self._open |= {key: each for key, each in before.items() if key[:2] in held}
        self._remember(now_s)

    def _remember(self, now_s: float) -> None:
        for each in self._open.values():
            if each.gpu:
                seen = _Seen(each.node, now_s, each.slow_ratio, each.evidence)
                self._slow.setdefault(each.gpu, {})[each.gang_uid] = seen
        for gangs in self._slow.values():
            for uid in [uid for uid, seen in gangs.items() if now_s - seen.at_s > KEPT_S]:
                del gangs[uid]
        self._slow = {gpu: gangs for gpu, gangs in self._slow.items() if gangs}

    def verdicts(self) -> tuple[Straggler, ...]:
        """The open verdicts."""
        return tuple(self._open.values())

    def forecast(self, now_s: float, snapshot: ClusterSnapshot) -> Forecasts:
        """The open verdicts, what is not judged, and the GPUs slow in several gangs."""
        return Forecasts(stragglers=self.verdicts(), slow_gpus=slow_gpus(self._slow), unjudged=self.unjudged)


def verdicts(found: Found, now_s: float) -> Iterable[Straggler]:
    """One verdict for each node of a gang with a slow member; the GPU is named where it is known."""
    members, gangs = found.members, found.members.gangs
    rows = np.flatnonzero(found.steps | found.waits)
    hardware = dict(zip(rows.tolist(), hardware_of(members, rows), strict=True))
    by_node: dict[tuple[int, str], list[int]] = {}
    for row in rows.tolist():
        by_node.setdefault((int(members.gang[row]), str(members.node[row])), []).append(row)
    for (gang, node), of in by_node.items():
        sure = {row: _confidence(found, row, hardware[row]) for row in of}
        most = max(sure.values())
        best = [row for row in of if sure[row] == most]
        row = max(best, key=lambda each: found.ratio[each])
        if most == 0.0:
            continue
        evidence = (*("step-time",) * bool(found.steps[row]), *("waits",) * bool(found.waits[row]), *hardware[row])
        yield Straggler(
            str(gangs.id[gang]),
            str(gangs.uid[gang]),
            int(members.rank[row]),
            node,
            str(members.gpu[row]) if len(best) == 1 else "",
            round(float(found.ratio[row]), 3),
            evidence,
            round(most - (DOUBT if members.stage[row] < 0 else 0.0), 3),
            now_s - WINDOW * 60.0,
            now_s,
            round(lost_ratio(found, row) * int(gangs.gpus[gang]) * 3600.0, 1),
        )


def _confidence(found: Found, row: int, hardware: tuple[str, ...]) -> float:
    """Confidence in a slow member; 0 for its activity alone, without a cause.

    Busy time and activity both grow with the work of a member, so they agree on one that has more to do, too. Without
    a cause in the hardware only an onset in both is a second kind of evidence.
    """
    if hardware:
        return BY_ALL if found.steps[row] and found.waits[row] else BY_TWO
    if found.steps_risen[row] and found.waits_risen[row]:
        return BY_TWO
    alone = found.steps_risen[row] or found.ratio[row] >= ALONE_RATIO
    return BY_STEPS if found.steps[row] and alone else 0.0


def lost_ratio(found: Found, row: int) -> float:
    """Part of the time of its gang that a slow member costs.

    A step lasts as long as its longest member computes: only what a member needs beyond all others is lost, of the time
    in which it works.
    """
    members = found.members
    others = members.gang == members.gang[row]
    others[row] = False
    rate, busy_s = float(members.gangs.steps_per_s[members.gang[row]]), float(members.busy_s[row])
    own = members.busy_s if busy_s > 0.0 else members.sm
    mine = float(own[row])
    longest = 0.0 if np.isnan(own[others]).all() else float(np.nanmax(own[others]))
    share = rate * busy_s if rate > 0.0 and busy_s > 0.0 else float(members.sm[row])
    part = min(1.0 - longest / mine, 1.0 - 1.0 / float(found.ratio[row])) if mine > 0.0 else np.nan
    return 0.0 if np.isnan(part * share) else min(max(part * share, 0.0), 1.0)


def slow_gpus(slow: dict[str, dict[str, _Seen]]) -> tuple[SlowGpu, ...]:
    """GPUs that were slow in several gangs, the one of most gangs first."""
    found = []
    for gpu, gangs in slow.items():
        if len(gangs) >= SUSPECT_GANGS:
            last = max(gangs.values(), key=lambda each: each.at_s)
            codes = dict.fromkeys(code for each in gangs.values() for code in each.evidence)
            ratio = float(np.median([each.ratio for each in gangs.values()]))
            found.append(SlowGpu(last.node, gpu, len(gangs), round(ratio, 3), tuple(codes)))
    return tuple(sorted(found, key=lambda each: (-each.gangs, each.gpu)))
