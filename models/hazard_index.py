"""The forecaster of hazards: it follows the jobs of the snapshots, and says quantiles and the index of each.

A job is followed from its age at the first sight. It ends once a snapshot shows it as ended. A failed or missing one is
kept for `RESTART_S`: if its name comes back in this time it is the same job and did not end; else a
failed one counts as ended, and a missing one as followed so far. The age is the most progress of any incarnation of an
object, added up over the objects of one name, so a restart makes nothing younger.

With a gate nothing is said until counts have passed it (models/hazard_proving.py), or a stored version serves.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from autopilot.core.model.forecast import LEVELS, Forecasts, RuntimeForecast
from autopilot.core.model.policy.bounds import Forecasting
from autopilot.core.model.snapshot import F64, I32, I64, Bools, ClusterSnapshot, State
from autopilot.core.model.work import gpu_parts, progress_s
from models.backtest import FreshRng
from models.hazard_proving import Followed, HazardFit, HazardWork, Pair, StoredCounts
from models.hazards import (
    BINS,
    EDGES_S,
    LEAST_ENDED,
    MOST_GROUPS,
    NEW_GROUP_S,
    REFRESH_S,
    Groups,
    bins_of,
    index_per_s,
    known_age_s,
    total_quantiles_s,
)
from models.runtime_boosting import LEAST_ROWS
from models.runtime_proving import WINDOW_PART

RESTART_S = 3600.0
"""How long a job that failed or is missing may come back: as MISSING_S of models/runtimes.py."""

SHORTEST_S = 1.0
"""A job that ended below a second did no work and is no end."""

WIDTH_MILLI = 1000
"""Widths are in thousandths of a GPU; a MIG instance counts as one, so that instances are narrower than any share."""

UNNAMED = "?"
"""The tenant of jobs without one."""

TIMES = ("_submit_s", "_entry_s", "_age_s", "_before_s", "_seen_s")
COLUMNS = ("_name", "_uid", "_group", "_followed", "_failed", *TIMES)
"""Columns over places: those of followed jobs, and free ones."""


class Hazards:
    """Forecaster of run times by hazards of (tenant, width)."""

    name = "hazard"

    def __init__(
        self,
        rules: Forecasting | None = None,
        *,
        gate: FreshRng | None = None,
        champion: StoredCounts | None = None,
    ) -> None:
        """`gate` makes the generator of its bootstrap; `champion` are the counts in service before this run."""
        self.rules, self._gate, self._champion = rules or Forecasting(), gate, champion
        self.groups = champion.groups() if champion is not None else Groups()
        self._closed: deque[tuple[Pair, float, float, float, float, bool]] = deque(maxlen=self.rules.most_rows)
        self._ends, self._fitted_ends, self._fitted_s = 0, 0, -np.inf
        self._place: dict[str, int] = {}  # of jobs that are followed
        self._free: list[int] = []
        self._name = np.zeros(0, object)
        self._submit_s = np.zeros(0)
        self._uid = np.zeros(0, object)
        self._group = np.zeros(0, np.int64)
        self._entry_s = np.zeros(0)
        self._age_s = np.zeros(0)
        self._before_s = np.zeros(0)  # age that earlier objects of the name reached
        self._seen_s = np.zeros(0)
        self._followed = np.zeros(0, np.bool_)
        self._failed = np.zeros(0, np.bool_)
        self._renewed_s = -np.inf
        self._hazard = np.zeros((0, BINS))  # in use
        self._index = np.zeros((0, BINS))  # under them, NaN: not computed yet

    # --- learning ---------------------------------------------------------------------------

    def update(self, now_s: float, snapshot: ClusterSnapshot) -> None:
        """Follow the jobs of the snapshot, count ended ones, and renew the due hazards."""
        work = snapshot.workloads
        rows = np.flatnonzero(work.service < 0).astype(np.int32)
        ended = work.state[rows] >= State.SUCCEEDED
        names = work.id[rows].tolist()
        places = np.fromiter((self._place.get(name, -1) for name in names), np.int64, len(names))
        age_s = known_age_s(np.where(ended, work.served_s[rows], progress_s(work, rows, now_s)[1]))
        fresh = (places < 0) & ~ended
        if fresh.any():
            places[fresh] = self._follow(snapshot, rows[fresh], np.nan_to_num(age_s[fresh]))
        known = places >= 0
        rows, places, age_s, state = rows[known], places[known], age_s[known], work.state[rows][known]
        again = self._uid[places] != work.uid[rows]
        if again.any():
            self._before_s[places[again]] = self._age_s[places[again]]
            self._uid[places[again]] = work.uid[rows[again]]
            self._group[places[again]] = self._groups_of(snapshot, rows[again])
        self._age_s[places] = np.fmax(self._age_s[places], self._before_s[places] + age_s)
        self._seen_s[places] = now_s
        self._failed[places] = state == State.FAILED
        done = state == State.SUCCEEDED
        self._close(places[done], age_s[done] >= SHORTEST_S)
        gone = np.flatnonzero(self._followed & (now_s - self._seen_s >= RESTART_S))
        self._close(gone, self._failed[gone] & (self._age_s[gone] >= SHORTEST_S))
        if len(self.groups) > MOST_GROUPS + np.count_nonzero(self._followed):
            self._forget()
        self._renew(now_s)

    def _follow(self, snapshot: ClusterSnapshot, rows: I32, age_s: F64) -> I64:
        """Places of new jobs."""
        work = snapshot.workloads
        while len(self._free) < len(rows):
            self._grow()
        places = np.array([self._free.pop() for _ in rows], np.int64)
        self._group[places] = self._groups_of(snapshot, rows)
        self._entry_s[places] = self._age_s[places] = age_s
        self._followed[places] = True
        self._submit_s[places] = work.submit_s[rows]
        self._name[places], self._uid[places], self._before_s[places] = work.id[rows], work.uid[rows], 0.0
        self._place.update(zip(work.id[rows].tolist(), places.tolist(), strict=True))
        return places

    def _groups_of(self, snapshot: ClusterSnapshot, rows: I32) -> list[int]:
        """The groups of the jobs at `rows`, made if needed."""
        work, tenants = snapshot.workloads, snapshot.names.tenants
        widths = np.rint(work.gpus[rows] * gpu_parts(work, rows) * WIDTH_MILLI)
        widths = np.where(work.mig_profile[rows] >= 0, work.gpus[rows], widths).astype(np.int64)
        codes = work.tenant[rows].tolist()
        return [
            self.groups.row_of(tenants[code] if 0 <= code < len(tenants) else UNNAMED, max(width, 1))
            for code, width in zip(codes, widths.tolist(), strict=True)
        ]

    def _grow(self) -> None:
        size, more = len(self._group), max(len(self._group), 256)
        for name in COLUMNS:
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old, np.zeros(more, old.dtype)]))
        self._free += range(size + more - 1, size - 1, -1)

    def _close(self, places: I64, ended: Bools) -> None:
        """Count jobs no longer followed; `ended` if they ended."""
        if not len(places):
            return
        group = self._group[places]
        self.groups.count(group, self._entry_s[places], self._age_s[places], ended.astype(float))
        self._ends += int(ended.sum())
        if self._gate is not None:
            pairs = self.groups.pairs()
            columns = (self._submit_s, self._entry_s, self._age_s, self._seen_s)
            self._closed.extend(
                zip(
                    (pairs[row] for row in group.tolist()),
                    *(column[places].tolist() for column in columns),
                    ended.tolist(),
                    strict=True,
                )
            )
        self._followed[places] = self._failed[places] = False
        self._free += places.tolist()
        for name in self._name[places].tolist():
            self._place.pop(name, None)

    def _forget(self) -> None:
        """Keep the groups within their bound; those of followed jobs stay."""
        place = self.groups.forget(np.unique(self._group[self._followed]))
        self._group = np.where(self._followed, place[self._group], 0)
        self._renewed_s = -np.inf

    def _renew(self, now_s: float) -> None:
        old_s = now_s - self._renewed_s
        due = old_s >= (REFRESH_S if len(self.groups) == len(self._hazard) else NEW_GROUP_S)
        if not due or self.groups.ended_jobs < LEAST_ENDED:
            return
        self._renewed_s = now_s
        self.groups.fade(now_s)
        followed = np.flatnonzero(self._followed)
        counts = self.groups.with_open(self._group[followed], self._entry_s[followed], self._age_s[followed])
        self._hazard = counts.hazards()
        self._index = np.full(self._hazard.shape, np.nan)

    # --- fitting ----------------------------------------------------------------------------

    def due(self, now_s: float) -> HazardWork | None:
        """The next verdict if it is due, as for the other models of run times. None without a gate: counts serve."""
        rules, ends = self.rules, self._ends
        grown = ends >= self._fitted_ends * (1.0 + rules.growth_ratio)
        aged = ends > self._fitted_ends and now_s - self._fitted_s >= rules.retrain_s
        if self._gate is None or ends < LEAST_ROWS / (1.0 - WINDOW_PART) or not (grown or aged):
            return None
        self._fitted_ends, self._fitted_s = ends, now_s
        open_now = np.flatnonzero(self._followed)
        group, pairs = self._group[open_now], self.groups.pairs()
        owners, submit_s, entry_s, age_s, at_s, ended = zip(*self._closed, strict=True)
        followed = Followed(
            (*owners, *(pairs[row] for row in group.tolist())),
            np.append(submit_s, self._submit_s[open_now]),
            np.append(entry_s, self._entry_s[open_now]),
            np.append(age_s, self._age_s[open_now]),
            np.append(at_s, np.full(len(open_now), now_s)),
            np.append(np.array(ended, np.bool_), np.zeros(len(open_now), np.bool_)),
        )
        self.groups.fade(now_s)
        counts = self.groups.with_open(group, self._entry_s[open_now], self._age_s[open_now])
        stored = StoredCounts(tuple(pairs), counts.ended, counts.risk_s, self.groups.ended_jobs, now_s)
        return HazardWork(followed, stored, self._champion, self._gate, now_s)

    def adopt(self, fit: HazardFit) -> str | None:
        """Serve from now on if the gate let it; returns the refusal otherwise."""
        if fit.verdict.passed:
            self._champion = fit.stored
        return fit.verdict.refusal("hazards by tenant and width")

    # --- forecasting ------------------------------------------------------------------------

    @property
    def serves(self) -> bool:
        """False while a gate has let no counts pass."""
        return self._gate is None or self._champion is not None

    def index_per_s(self, now_s: float, snapshot: ClusterSnapshot) -> F64:
        """The hazard index of every workload, in 1/s; NaN if unknown. Shape [workloads]."""
        rows, group, bins = self._asked(snapshot)
        answer = np.full(len(snapshot.workloads.id), np.nan)
        found = self._index[group, bins]
        missing = np.isnan(found)
        if missing.any():
            pairs = np.unique(group[missing] * BINS + bins[missing])
            self._index[pairs // BINS, pairs % BINS] = index_per_s(self._hazard[pairs // BINS], EDGES_S[pairs % BINS])
            found = self._index[group, bins]
        done_s, outlived_s = progress_s(snapshot.workloads, rows, now_s)
        # in steps, like the age
        again_s = EDGES_S[bins_of(np.maximum(np.nan_to_num(outlived_s - done_s), 0.0))]
        behind = again_s > 0.0
        if behind.any():
            found[behind] = index_per_s(self._hazard[group[behind]], EDGES_S[bins[behind]], again_s[behind])
        answer[rows] = found
        return answer

    def _asked(self, snapshot: ClusterSnapshot) -> tuple[I32, I64, I64]:
        """Rows of known jobs, their groups, and the bins of their age."""
        names = snapshot.workloads.id.tolist()
        places = np.fromiter((self._place.get(name, -1) for name in names), np.int64, len(names))
        open_now = (snapshot.workloads.state < State.SUCCEEDED) & (places >= 0) & self.serves
        rows = np.flatnonzero(open_now)
        rows = rows[self._group[places[rows]] < len(self._hazard)]
        return rows.astype(np.int32), self._group[places[rows]], bins_of(self._age_s[places[rows]])

    def forecast(self, now_s: float, snapshot: ClusterSnapshot) -> Forecasts:
        """Quantiles of the total run time, given the age, and the index; services and unknown jobs abstain."""
        work = snapshot.workloads
        rows, group, bins = self._asked(snapshot)
        total_s = np.full((len(work.id), len(LEVELS)), np.nan)
        history = np.zeros(len(work.id), np.int32)
        if len(rows):
            pairs, place = np.unique(group * BINS + bins, return_inverse=True)
            said_s = total_quantiles_s(self._hazard[pairs // BINS], EDGES_S[pairs % BINS], LEVELS)[place]
            age_s = np.nan_to_num(progress_s(work, rows, now_s)[1])
            total_s[rows] = np.maximum(np.maximum(said_s, age_s[:, None]), SHORTEST_S)
            history[rows] = np.rint(self.groups.ended_of(group)).astype(np.int32)
        known: Bools = ~np.isnan(total_s[:, 0])
        index = self.index_per_s(now_s, snapshot)
        return Forecasts(RuntimeForecast(self.name, now_s, LEVELS, total_s, known, history, index))

    def hazard_of(self, job: str) -> tuple[F64, float, float] | None:
        """Hazards in use by age bin, 1/s, the age in s, and the ended jobs behind them, of a followed job.

        None if unknown.
        """
        place = self._place.get(job, -1)
        if place < 0 or self._group[place] >= len(self._hazard):
            return None
        group = self._group[place : place + 1]
        return self._hazard[group[0]], float(self._age_s[place]), float(self.groups.ended_of(group)[0])
