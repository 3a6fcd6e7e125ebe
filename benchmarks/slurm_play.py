"""Whole runs of a recorded workload under the baseline, and their score against the recorded starts."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import combinations, count
from math import floor, inf, nan

from benchmarks.slurm_recordings import Recording
from simulator.baselines.slurm.loops import Loops
from simulator.baselines.slurm.model import Running
from simulator.baselines.slurm.slurmctld import Slurmctld
from simulator.baselines.slurm.trial import Decisions

END_S, LEAVE_S = 0.06, 0.05
"""Measured: a job ends that long after its duration; the main pass that long after preempted work was told to leave."""
MAIN_DRIFT, BACKFILL_DRIFT = 0.0018, 0.00045
LIMIT_CHECK_S = 30.0
FLOOR_S, EXTRA_S = 3.0, 2.0


def _second(time_s: float) -> int:
    return floor(time_s + 0.2)


@dataclass(slots=True)
class Played:
    """The first start of a job, None where it never started; its first node, and how often it was preempted."""

    start_s: float | None = None
    node: str = ""
    restarts: int = 0


class Player:
    """One run: the loops at the phases of a recorded run, jobs that last as long as the workload says."""

    def __init__(self, recording: Recording, run: int) -> None:
        """Before the first event."""
        self._recording = recording
        self._setup = recording.setup["runs"][run - 1]
        self.ctl = Slurmctld(recording.site(run))
        main_s, backfill_s = self._setup["main_pass_s"], self._setup["backfill_pass_s"]
        began_s = round(self._setup["ctld_start_s"] + 0.2)
        self.loops = Loops(
            self.ctl.site.config,
            main_s=began_s + (main_s if main_s is not None else 0.7),
            backfill_s=backfill_s if backfill_s is not None else 0.4,
            main_drift=MAIN_DRIFT,
            backfill_drift=BACKFILL_DRIFT,
            second=_second,
        )
        self.played = {key: Played() for key in recording.jobs}
        self._count = count()
        self._queue: list[tuple[float, int, str, str, int]] = []
        self._number: dict[str, int] = {}
        for job in recording.jobs.values():
            self._at(job.submit_s + 0.01, "submit", job.key)
        tick_s = self._setup["first_priority_tick_s"]
        if tick_s is not None:
            self._at(tick_s, "tick")
        self._at(self._setup["ctld_start_s"] + LIMIT_CHECK_S, "limits")
        for each in self.ctl.site.reservations:
            for time_s in (each.start_s, each.end_s):
                self._at(time_s, "change")

    def _at(self, time_s: float, what: str, key: str = "", number: int = 0) -> None:
        heappush(self._queue, (time_s, next(self._count), what, key, number))

    def play(self, horizon_s: float = 3600.0) -> dict[str, Played]:
        """Run until every job has ended, or nothing can start any more."""
        while self.ctl.waiting or self.ctl.running or any(each[2] == "submit" for each in self._queue):
            loop_s = min(self.loops.next_main_s(), self.loops.next_backfill_s())
            event_s = self._queue[0][0]
            if min(loop_s, event_s) > horizon_s:
                break
            if event_s <= loop_s:
                time_s, _, what, key, number = heappop(self._queue)
                self._happen(time_s, what, key, number)
            elif self.loops.next_main_s() == loop_s:
                self.loops.main_done(loop_s)
                self._apply(loop_s, self.ctl.main_pass(_second(loop_s)))
            else:
                self.loops.backfill_done(loop_s)
                self._apply(loop_s, self.ctl.backfill_pass(_second(loop_s)))
        return self.played

    def _happen(self, time_s: float, what: str, key: str, number: int) -> None:
        now_s = _second(time_s)
        if what == "submit":
            self.ctl.submit(self._recording.jobs[key], now_s)
            self.loops.changed(time_s, queued=True)
            if self.ctl.waiting[key].not_before_s > now_s:
                self._at(self.ctl.waiting[key].not_before_s - 0.2, "change")
        elif what == "tick":
            self.ctl.tick(now_s)
            self.loops.changed(time_s, queued=False)
            self._at(time_s + self.ctl.site.config.calc_period_s, "tick")
        elif what == "limits":
            for run in list(self.ctl.running.values()):
                if run.end_s < now_s:
                    self._end(time_s + LEAVE_S, run.job.key, ok=False)
            self._at(time_s + LIMIT_CHECK_S, "limits")
        elif what == "end":
            if number == self._number[key] and key in self.ctl.running:
                run = self.ctl.running[key]
                self._end(time_s, key, ok=run.told_s is None or now_s <= run.end_s)
        else:
            self.ctl.refresh(now_s)
            self.loops.changed(time_s, queued=False)

    def _end(self, time_s: float, key: str, *, ok: bool) -> None:
        self.ctl.end(key, _second(time_s), ok=ok)
        self.loops.changed(time_s, queued=True)
        for job in self.ctl.never(_second(time_s)):
            if job in self._recording.kills_invalid:
                self.ctl.end(job, _second(time_s), ok=False)

    def _apply(self, time_s: float, found: Decisions) -> None:
        now_s = _second(time_s)
        for run in found.starts:
            self._start(time_s, run)
        for key, by in found.stops:
            if key in self.ctl.running and self.ctl.stop(key, by, now_s):
                self._number[key] += 1
                if self.ctl.requeues(key):
                    self.ctl.requeue(key, _second(time_s + LEAVE_S))
                    self._at(self.ctl.waiting[key].not_before_s - 0.2, "change")
                    self.played[key].restarts += 1
                else:
                    self.ctl.end(key, now_s, ok=False)
                self.loops.changed(time_s + LEAVE_S, queued=True)
                self.loops.kick(time_s + LEAVE_S)
        if found.starts:
            self.loops.changed(time_s, queued=False)

    def _start(self, time_s: float, run: Running) -> None:
        key = run.job.key
        self.ctl.start(Running(run.job, run.start_s, run.end_s, run.nodes, run.masks))
        self._number[key] = self._number.get(key, 0) + 1
        one = self.played[key]
        if one.start_s is None:
            one.start_s, one.node = time_s, self.ctl.site.nodes[run.nodes[0]].name
        self._at(time_s + self._recording.durations_s[key] + END_S, "end", key, self._number[key])


@dataclass(frozen=True, slots=True)
class Score:
    """Starts of a whole run against the recorded ones. A job's tolerance is max(3 s, spread of its starts + 2 s)."""

    jobs: int
    within_tolerance: float
    nearest_within_3_s: float
    inversions: float
    mean_wait_error_s: float
    mean_distance_s: float
    first_miss: str


def _number(text: str | None) -> float | None:
    return None if text in {None, "", "NaN", "nan"} else float(text or 0)


def score(recording: Recording, played: dict[str, Played]) -> Score:
    """Judge a run against the three recorded ones."""
    fine = 0
    kept: list[tuple[float, float, float]] = []
    waits: list[tuple[float, float]] = []
    missed: list[tuple[float, str]] = []
    near = [0.0, 0.0, 0.0]
    for key, row in recording.starts.items():
        runs = [_number(row.get(f"start_{k}")) for k in (1, 2, 3)]
        got, mine = [each for each in runs if each is not None], played.get(key, Played()).start_s
        for k, each in enumerate(runs):
            near[k] += (mine is None) == (each is None) and (
                mine is None or each is None or abs(mine - each) <= FLOOR_S
            )
        if not got or mine is None:
            fine += (not got) == (mine is None)
            if (not got) != (mine is None):
                missed.append((float(row["submit_s"]), key))
            continue
        median, spread = statistics.median(got), max(got) - min(got)
        tolerance = max(FLOOR_S, spread + EXTRA_S)
        outside = 0.0 if min(got) <= mine <= max(got) else min(abs(mine - min(got)), abs(mine - max(got)))
        good = outside <= tolerance - spread or abs(mine - median) <= tolerance
        fine += good
        if not good:
            missed.append((min(median, mine), key))
        kept.append((median, mine, tolerance))
        waits.append((median - float(row["submit_s"]), mine - float(row["submit_s"])))
    pairs = [(a, b) for a, b in combinations(kept, 2) if abs(a[0] - b[0]) > max(a[2], b[2])]
    wrong = sum((a[0] - b[0]) * (a[1] - b[1]) < 0 for a, b in pairs)
    jobs = len(recording.starts)
    return Score(
        jobs,
        fine / jobs,
        max(near) / jobs,
        wrong / len(pairs) if pairs else 0.0,
        statistics.mean(b - a for a, b in waits) if waits else nan,
        statistics.mean(abs(b - a) for a, b in waits) if waits else nan,
        min(missed, default=(inf, ""))[1],
    )
