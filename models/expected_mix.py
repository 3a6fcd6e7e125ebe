"""The demand mix in the controller: the submitted gangs, learned from snapshots.

An arrival is a new object with its submit time. Each whole hour is learned once, at its end, regardless of the ticks in
between; then the mix of the next hours is forecast (models/mix.py). Work in a first snapshot was submitted before,
and is no arrival of the observed time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autopilot.core.model.forecast import ExpectedMix, Forecasts, MixKind, abstaining_mix, kind_words
from autopilot.core.model.snapshot import ClusterSnapshot, Names, WorkloadTable
from models.mix import HOUR_S, LARGEST_GANG, LEAST_H, DemandMix

HORIZONS_S = (HOUR_S, 4 * HOUR_S, 24 * HOUR_S)
LEVELS = (0.5, 0.9, 0.99)

LATE_S = 900.0
"""Work that is first seen longer than this after its submission is not counted: the list was incomplete before, and
work that disappeared and came back would count twice.
"""

EXACT_MEMBER = 8
"""Members up to this size count by their exact number of GPUs, because it decides what is left on a node; larger ones,
and the number of members, by powers of two.
"""

MILLI_STEP = 50
"""Shares count by steps of this many thousandths, rounded up."""

MOST_KINDS, MOST_POOLS = 64, 32
"""Most kinds and pools that are distinguished. Arrivals of other kinds or pools are not counted."""


class MixForecaster:
    """Forecaster of the demand mix."""

    name = "demand-mix"

    def __init__(self) -> None:
        self._mix: DemandMix | None = None
        self._pools: dict[tuple[str, ...], int] = {}
        self._kinds: dict[MixKind, int] = {}  # with any GPU model
        self._seen: dict[str, float] = {}  # uid and submit time of work that counted lately
        self._waiting: list[tuple[float, int, int]] = []  # arrivals of hours that are not over: time, pool, kind
        self._pairs: dict[tuple[int, int], MixKind] = {}  # pools and kinds that arrived
        self._from_s = self._until_s = self._learned_s = float("nan")
        self._record: ExpectedMix | None = None

    def update(self, now_s: float, snapshot: ClusterSnapshot) -> None:
        """Count new work; at the end of an hour, learn it and look ahead."""
        if not np.isfinite(now_s) or now_s < self._until_s:
            return
        if self._mix is None:
            self._from_s = self._learned_s = now_s
            self._mix = DemandMix(0, ())
            self._mix.learn(now_s, np.empty(0), np.empty(0, np.int32), np.empty(0, np.int32))
        work = snapshot.workloads
        earliest_s = max(self._from_s, now_s - LATE_S)
        for row in np.flatnonzero((work.submit_s >= earliest_s) & (work.service < 0) & (work.gpus > 0)).tolist():
            if work.uid[row] not in self._seen:
                self._seen[work.uid[row]] = float(work.submit_s[row])
                self._count(work, row, snapshot.names, now_s)
        self._until_s = now_s
        over_s = float(np.floor(now_s / HOUR_S) * HOUR_S)
        if over_s > self._learned_s:
            self._learn(self._mix, over_s)
            self._seen = {uid: at_s for uid, at_s in self._seen.items() if at_s >= earliest_s}
            self._record = self._look_ahead(self._mix, over_s)

    def _count(self, work: WorkloadTable, row: int, names: Names, now_s: float) -> None:
        models = tuple(name for place, name in enumerate(names.gpu_models) if int(work.gpu_models[row]) >> place & 1)
        models = () if len(models) == len(names.gpu_models) else models
        profile = names.profiles[int(work.mig_profile[row])] if work.mig_profile[row] >= 0 else ""
        kind = kind_of(
            int(work.gpus[row]),
            int(work.gpus_per_member[row]),
            int(work.gpu_milli[row]),
            profile,
            int(work.topology[row]),
        )
        if len(self._pools) < MOST_POOLS:
            self._pools.setdefault(models, len(self._pools))
        if len(self._kinds) < MOST_KINDS:
            self._kinds.setdefault(kind, len(self._kinds))
        pool, place = self._pools.get(models), self._kinds.get(kind)
        if pool is None or place is None:
            return
        at_s = min(max(float(work.submit_s[row]), self._learned_s), now_s)
        self._waiting.append((at_s, pool, place))
        self._pairs.setdefault((pool, place), replace(kind, gpu_models=models))

    def _learn(self, mix: DemandMix, to_s: float) -> None:
        """Take in the hours up to `to_s`."""
        mix.grow(len(self._pools), tuple(f"{place} {kind_words(kind)}" for kind, place in self._kinds.items()))
        due = [each for each in self._waiting if each[0] < to_s]
        self._waiting = [each for each in self._waiting if each[0] >= to_s]
        columns = np.array(due, float).reshape(-1, 3)
        mix.learn(to_s, columns[:, 0], columns[:, 1].astype(np.int32), columns[:, 2].astype(np.int32))
        self._learned_s = to_s

    def _look_ahead(self, mix: DemandMix, made_s: float) -> ExpectedMix:
        pairs = sorted(self._pairs, key=lambda pair: _order(self._pairs[pair]))
        shape = (len(pairs), len(HORIZONS_S))
        kinds = tuple(self._pairs[pair] for pair in pairs)
        record = ExpectedMix(
            self.name, made_s, kinds, HORIZONS_S, LEVELS, np.zeros(shape), np.zeros((*shape, len(LEVELS)))
        )
        watched_h = (made_s - self._from_s) / HOUR_S
        if watched_h < LEAST_H:
            return abstaining_mix(record, "no whole hour of data yet; hours are those of the clock")
        if not pairs:
            return abstaining_mix(record, "no gang was submitted yet")
        rows = np.array(pairs, np.int64).T
        for place, horizon_s in enumerate(HORIZONS_S):
            found = mix.forecast(made_s, made_s + horizon_s, LEVELS)
            record.expected[:, place] = found.expected[rows[0], rows[1]]
            record.counts[:, place] = found.counts[rows[0], rows[1]]
        return replace(record, watched_h=float(found.watched_h[0]))

    def forecast(self, now_s: float, snapshot: ClusterSnapshot) -> Forecasts:
        """The mix as of the last whole hour; the same record until the next is over."""
        return Forecasts(mix=self._record)


def _order(kind: MixKind) -> tuple[object, ...]:
    return (kind.gpu_models, kind.profile, kind.gpu_milli, kind.gpus, kind.gpus_per_member, kind.topology)


def kind_of(gpus: int, each: int, gpu_milli: int, profile: str, topology: int) -> MixKind:
    """The kind of a gang of `gpus` in members of `each`, with any GPU model."""
    if profile:
        return MixKind((), _power(gpus), 1, 0, profile, topology)
    if gpu_milli > 0:
        return MixKind((), _power(gpus), 1, -(-gpu_milli // MILLI_STEP) * MILLI_STEP, "", topology)
    each = min(max(each, 1), gpus)
    members = _power(-(-gpus // each))
    each = each if each <= EXACT_MEMBER else _power(each)
    return MixKind((), members * each, each, 0, "", topology)


def _power(number: int) -> int:
    """The smallest power of two at or above `number`, at most `LARGEST_GANG`."""
    return min(1 << max(number - 1, 0).bit_length(), LARGEST_GANG)
