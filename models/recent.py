"""The last similar jobs: what ended lately, and what was submitted next to a job, for each kind of job.

A *kin* is a set of jobs that share some of (tenant, user, name stem, GPUs); a job belongs to one kin at each level of
`LEVELS_OF_KIN`, from the narrowest to all jobs. Each kin keeps the log run times of its last `ENDED` ended jobs and of
its last `SUBMITTED` submitted ones (unknown until they end). The statistics of all models come from these, and so does
the floor: the median of the last ten to end (recent-kNN; Tsafrir, Etsion and Feitelson 2007 took two).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autopilot.core.model.snapshot import F64, I32, I64

F32 = NDArray[np.float32]

ENDED = 40
"""Ended jobs kept of each kin: sharp opinions need ten, the shape of a distribution some tens."""

SUBMITTED = 32
"""Submitted jobs kept of each kin: neighbours in submit order are similar over minutes, not over days."""

FLOOR_JOBS = 10
"""Ended jobs in the median of the floor (recent-kNN)."""

MODE_WIDTH = 0.35
"""Width of the kernel of `modes` in logs: run times within a factor of 1.4 count as the same."""

MODE_DECAY = 0.9
"""Weight of each job relative to the next newer one in `modes`."""

MOST_KINS = 60_000
"""Kins kept at once; beyond that the less recently used half is dropped (10,000 new names an hour)."""

LEVELS_OF_KIN = ("exact", "name", "user", "width", "tenant", "all")
"""exact: tenant, user, name, GPUs; name: name and GPUs of any tenant; user: tenant, user, GPUs; width: tenant, GPUs."""

CHAIN = (0, 2, 3, 4, 5)
"""The back-off chain: levels of kin at which ended jobs are searched, narrowest first."""

STATISTICS = (
    "last",
    "median3",
    "median10",
    "median40",
    "mean10",
    "spread10",
    "low40",
    "high40",
    "count",
    "age",
    "gap1",
    "gap20",
    "neighbour",
    "neighbours10",
    "neighbour_place",
    "neighbour_spread",
)
"""Statistics of one kin, in logs of seconds; `count` and `neighbour_place` are counts (the first as log(1 + n))."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The attributes of jobs at their submission. All of one length; `other` is [jobs, more] (NaN: not stated)."""

    tenant: NDArray[np.object_]
    user: NDArray[np.object_]
    stem: NDArray[np.object_]
    gpus: F64
    submit_s: F64
    other: F64

    def __len__(self) -> int:
        return len(self.submit_s)


def taken(asked: Asked, rows: NDArray[np.intp] | slice) -> Asked:
    """The jobs at `rows`."""
    return Asked(
        asked.tenant[rows],
        asked.user[rows],
        asked.stem[rows],
        asked.gpus[rows],
        asked.submit_s[rows],
        asked.other[rows],
    )


@dataclass(frozen=True, slots=True)
class Kept:
    """The history of the kins of some jobs: log run times, newest first, NaN where missing.

    `ended` [jobs, kins, ENDED] by their end, `submitted` [jobs, kins, SUBMITTED] by their submission; `count` and
    `age_s` [jobs, kins] how many ended and how long ago the last did, `submitted_ago_s` as `submitted`.
    """

    ended: F32
    count: I64
    age_s: F64
    submitted: F32
    submitted_ago_s: F64


def kins_of(tenant: Hashable, user: Hashable, stem: Hashable, gpus: float) -> tuple[Hashable, ...]:
    """Keys of the kins that a job belongs to, in the order of `LEVELS_OF_KIN`."""
    return (
        (0, tenant, user, stem, gpus),
        (1, stem, gpus),
        (2, tenant, user, gpus),
        (3, tenant, gpus),
        (4, tenant),
        (5,),
    )


class Recent:
    """Rings of the last jobs of each kin."""

    def __init__(self) -> None:
        self._slot: dict[Hashable, int] = {}
        self._ended = np.full((0, ENDED), np.nan, np.float32)
        self._ended_s = np.zeros(0)
        self._submitted = np.full((0, SUBMITTED), np.nan, np.float32)
        self._submitted_s = np.zeros((0, SUBMITTED))
        self._ends = np.zeros(0, np.int64)
        self._submits = np.zeros(0, np.int64)
        self._used = np.zeros(0, np.int64)
        self._clock = 0

    def slots(self, kins: Sequence[Hashable]) -> I32:
        """Rows of the kins, created where needed; valid until the next call. Shape [kins]."""
        if len(self._slot) > MOST_KINS:
            self._forget()
        rows = np.array([self._slot.setdefault(kin, len(self._slot)) for kin in kins], np.int32)
        while len(self._slot) > len(self._ends):
            self._grow()
        self._clock += 1
        self._used[rows] = self._clock
        return rows

    def _grow(self) -> None:
        more = max(len(self._ends), 64)
        self._ended = np.vstack([self._ended, np.full((more, ENDED), np.nan, np.float32)])
        self._submitted = np.vstack([self._submitted, np.full((more, SUBMITTED), np.nan, np.float32)])
        self._submitted_s = np.vstack([self._submitted_s, np.zeros((more, SUBMITTED))])
        self._ended_s = np.concatenate([self._ended_s, np.zeros(more)])
        for name in ("_ends", "_submits", "_used"):
            setattr(self, name, np.concatenate([getattr(self, name), np.zeros(more, np.int64)]))

    def _forget(self) -> None:
        """Keep the more recently used half of the kins."""
        kept = sorted(self._slot.items(), key=lambda item: -int(self._used[item[1]]))[: MOST_KINS // 2]
        rows = np.array([row for _, row in kept], np.int64)
        self._slot = {kin: place for place, (kin, _) in enumerate(kept)}
        for name in ("_ended", "_ended_s", "_submitted", "_submitted_s", "_ends", "_submits", "_used"):
            setattr(self, name, getattr(self, name)[rows])

    def submit(self, rows: I32, submit_s: float) -> I64:
        """Record a submission in the kins `rows`; the result [kins] is passed to `end`."""
        turn = self._submits[rows]
        place = turn % SUBMITTED
        self._submitted[rows, place] = np.nan
        self._submitted_s[rows, place] = submit_s
        self._submits[rows] += 1
        return np.asarray(turn)

    def end(self, kins: Sequence[Hashable], turn: I64, submit_s: float, log_s: float, now_s: float) -> None:
        """Record that a job of `kins`, submitted at `submit_s`, ended after exp(`log_s`) seconds of run time."""
        rows = self.slots(kins)
        self._ended[rows, self._ends[rows] % ENDED] = log_s
        self._ended_s[rows] = now_s
        self._ends[rows] += 1
        place = turn % SUBMITTED
        behind = self._submits[rows] - turn
        still = (behind > 0) & (behind <= SUBMITTED) & (self._submitted_s[rows, place] == submit_s)
        self._submitted[rows[still], place[still]] = log_s

    def gather(self, rows: I32, now_s: F64) -> Kept:
        """The history of the kins `rows` [jobs, kins], as of `now_s` [jobs]."""
        newest = np.arange(ENDED)
        ends, submits = self._ends[rows][..., None], self._submits[rows][..., None]
        ended = self._ended[rows[..., None], (ends - 1 - newest) % ENDED]
        ended[newest >= ends] = np.nan
        newest = np.arange(SUBMITTED)
        place = (submits - 1 - newest) % SUBMITTED
        submitted = self._submitted[rows[..., None], place]
        ago_s = now_s[:, None, None] - self._submitted_s[rows[..., None], place]
        submitted[newest >= submits] = np.nan
        ago_s[newest >= submits] = np.nan
        age_s = np.where(ends[..., 0] > 0, now_s[:, None] - self._ended_s[rows], np.nan)
        return Kept(ended, ends[..., 0], age_s, submitted, ago_s)


def joined(parts: Sequence[Kept]) -> Kept:
    """Several `Kept` one after the other."""
    return Kept(
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("ended", "count", "age_s", "submitted", "submitted_ago_s")
        )
    )


def quantiles(values: NDArray[np.floating], levels: Sequence[float]) -> F64:
    """Quantiles of the last axis without its NaN, by linear interpolation. Shape [..., levels]; NaN where empty."""
    ordered = np.sort(values, axis=-1)
    count = (~np.isnan(ordered)).sum(axis=-1)
    answer = np.empty((*values.shape[:-1], len(levels)))
    for number, level in enumerate(levels):
        reach = level * np.maximum(count - 1, 0)
        lower = np.floor(reach).astype(np.int64)
        upper = np.minimum(lower + 1, np.maximum(count - 1, 0))
        low = np.take_along_axis(ordered, lower[..., None], axis=-1)[..., 0].astype(float)
        high = np.take_along_axis(ordered, upper[..., None], axis=-1)[..., 0].astype(float)
        answer[..., number] = low + (reach - lower) * (high - low)
    return answer


def newest_known(values: F32, most: int) -> F32:
    """The first `most` entries of the last axis that are not NaN, in order; padded with NaN."""
    order = np.argsort(np.isnan(values), axis=-1, kind="stable")[..., :most]
    return np.take_along_axis(values, order, axis=-1)


def statistics(kept: Kept) -> F64:
    """`STATISTICS` of each kin. Shape [jobs, kins, statistics]; NaN where the kin has no data."""
    ended, submitted = kept.ended, kept.submitted
    ten = ended[..., :10]
    known = ~np.isnan(ten)
    count = np.maximum(known.sum(axis=-1), 1)
    mean = np.where(known, ten, 0.0).sum(axis=-1) / count
    spread = np.sqrt(np.where(known, (ten - mean[..., None]) ** 2, 0.0).sum(axis=-1) / count)
    empty = ~known[..., 0]
    wide = quantiles(ended, (0.1, 0.5, 0.9))
    near = newest_known(submitted, 10)
    beside = quantiles(near, (0.1, 0.5, 0.9))
    alive = np.isnan(submitted)
    place = np.where(alive.all(axis=-1), SUBMITTED, alive.argmin(axis=-1))
    gaps = np.log1p(np.maximum(kept.submitted_ago_s[..., [0, 19]], 0.0))
    columns = (
        ended[..., 0],
        quantiles(ended[..., :3], (0.5,))[..., 0],
        quantiles(ten, (0.5,))[..., 0],
        wide[..., 1],
        np.where(empty, np.nan, mean),
        np.where(empty, np.nan, spread),
        wide[..., 0],
        wide[..., 2],
        np.log1p(kept.count),
        np.log1p(np.maximum(kept.age_s, 0.0)),
        gaps[..., 0],
        gaps[..., 1],
        near[..., 0],
        beside[..., 1],
        place,
        beside[..., 2] - beside[..., 0],
    )
    return np.stack([np.asarray(column, float) for column in columns], axis=-1)


def first_known(kept: Kept, least: int = 1) -> NDArray[np.intp]:
    """The narrowest level of `CHAIN` of which at least `least` jobs ended, else the widest. Shape [jobs]."""
    enough = kept.count[:, list(CHAIN)] >= least
    return np.where(enough.any(axis=1), np.asarray(CHAIN)[enough.argmax(axis=1)], CHAIN[-1])


def floor_forecast(kept: Kept, levels: Sequence[float]) -> F64:
    """The floor: quantiles of the log run times of the last ten to end, of the narrowest kin. [jobs, levels]."""
    rows = np.arange(len(kept.count))
    return quantiles(kept.ended[rows, first_known(kept), :FLOOR_JOBS], levels)


def modes(values: F32, width: float = MODE_WIDTH, decay: float = MODE_DECAY) -> F64:
    """Most likely value of each row (newest first, NaN ignored): the mean around the densest of its values.

    Density by a Gaussian kernel of `width`, the k-th newest weighted by decay^k. Shape [rows].
    """
    answer = np.full(len(values), np.nan)
    fade = decay ** np.arange(values.shape[1])
    for start in range(0, len(values), 4096):
        part = values[start : start + 4096]
        known = ~np.isnan(part)
        filled = np.where(known, part, np.float32(0.0))
        weight = np.where(known, fade, 0.0).astype(np.float32)
        near = np.exp(-(((filled[:, :, None] - filled[:, None, :]) / np.float32(width)) ** 2))
        density = np.where(known, np.einsum("nij,nj->ni", near, weight), -1.0)
        best = density.argmax(axis=1)[:, None, None]
        chosen = np.take_along_axis(near, best, axis=1)[:, 0] * weight
        with np.errstate(invalid="ignore", divide="ignore"):
            answer[start : start + 4096] = (chosen * filled).sum(axis=1) / chosen.sum(axis=1)
    return answer
