"""Forecasts as input of the decision: quantiles, their origin, and abstentions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from scipy.special import log_ndtr, ndtri, ndtri_exp

from autopilot.core.model.colocation import RULE, Colocation
from autopilot.core.model.neighbours import Interference, SlowGpu, Straggler, Unjudged
from autopilot.core.model.snapshot import F64, GPU_MILLI, I32, TOPOLOGY_NAMES, Bools, Topology

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
"""Quantile levels of every run-time forecast."""

REQUESTS = "requests_per_s"
TOKENS = "tokens_per_s"
"""Kinds of demand: requests, and their input and output tokens together, per second."""


@dataclass(frozen=True, slots=True)
class RuntimeForecast:
    """Total run time of each workload, by quantile.

    `total_s` is [workloads, levels] and non-decreasing along a row. For an abstention `known` is False and the row is
    NaN. `history` counts the ended jobs behind a row.

    `hazard_index_per_s` [workloads] is the hazard index at the job's served age, in 1/s: the maximum over horizons h of
    P(it ends within h) / E[time spent within h] (models/hazards.py). NaN: unknown; of length 0 for a model without one.
    """

    model: str
    made_s: float
    levels: tuple[float, ...]
    total_s: F64
    known: Bools
    history: I32
    hazard_index_per_s: F64 = field(default_factory=lambda: np.empty(0))


@dataclass(frozen=True, slots=True)
class Forecast:
    """Upper quantiles of one kind of demand, one record a kind; `values` is [series, horizons, levels].

    A value is the quantile of the highest rate in (made_s, made_s + horizon]. A row of NaN is an abstention, with its
    reason in `reasons` ("" elsewhere). `series` are ids of services.

    Four columns describe the record of the model. `history` counts the observations behind each series. `coverage`
    [series, horizons, levels] is the share of the last week's outcomes at or below the value promised at the time
    (NaN: no outcome yet). `outcomes` [series, horizons] counts these outcomes. `drifting` is True for errors of the
    model outside their usual range. A column of length 0 is unknown.
    """

    model: str
    made_s: float
    series: tuple[str, ...]
    horizons_s: tuple[float, ...]
    levels: tuple[float, ...]
    values: F64
    kind: str = REQUESTS
    chosen: tuple[str, ...] = ()  # the model behind each series, where they differ
    history: I32 = field(default_factory=lambda: np.empty(0, np.int32))
    coverage: F64 = field(default_factory=lambda: np.empty((0, 0, 0)))
    outcomes: I32 = field(default_factory=lambda: np.empty((0, 0), np.int32))
    drifting: Bools = field(default_factory=lambda: np.empty(0, np.bool_))
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MixKind:
    """One kind of gang in the demand mix, as workloads state it: names instead of codes.

    `gpus` counts GPUs in members of `gpus_per_member`; with a `profile`, or `gpu_milli` > 0, it counts members of one
    MIG instance or one share each.
    """

    gpu_models: tuple[str, ...]  # that it may use; (): any
    gpus: int
    gpus_per_member: int = 1
    gpu_milli: int = 0
    profile: str = ""
    topology: int = int(Topology.NONE)  # level that all members must share


@dataclass(frozen=True, slots=True)
class ExpectedMix:
    """The demand mix: the number of gangs of each kind to be submitted in (made_s, made_s + horizon].

    `expected` [kinds, horizons] is the mean, `counts` [kinds, horizons, levels] the quantiles. `watched_h` is the
    (decayed) time of data behind it. With a `reason` the model abstains: it has no rows, and their absence proves
    nothing.
    """

    model: str
    made_s: float
    kinds: tuple[MixKind, ...]
    horizons_s: tuple[float, ...]
    levels: tuple[float, ...]
    expected: F64
    counts: F64
    watched_h: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Forecasts:
    """All forecasts for one tick."""

    runtimes: RuntimeForecast | None = None
    demand: tuple[Forecast, ...] = ()
    mix: ExpectedMix | None = None
    colocation: Colocation = RULE  # what is added to predicted rates of work on shared GPUs
    interference: tuple[Interference, ...] = ()
    unjudged: tuple[Unjudged, ...] = ()  # work on shared hardware that the detector of interference does not judge
    stragglers: tuple[Straggler, ...] = ()
    slow_gpus: tuple[SlowGpu, ...] = ()


JOINED = ("demand", "interference", "unjudged", "stragglers", "slow_gpus")
"""Fields of `Forecasts` in which the records of all forecasters stand together."""


def checked_mix(mix: ExpectedMix, now_s: float) -> ExpectedMix:
    """`mix` itself, or one without rows and with the reason, if no decision may use it."""
    reason = mix.reason or _defect(mix, now_s)
    return mix if not reason or (mix.reason and not mix.kinds) else abstaining_mix(mix, reason)


def abstaining_mix(mix: ExpectedMix, reason: str) -> ExpectedMix:
    """`mix` without its rows."""
    horizons, levels = len(mix.horizons_s), len(mix.levels)
    return replace(
        mix, kinds=(), expected=np.empty((0, horizons)), counts=np.empty((0, horizons, levels)), reason=reason
    )


def _defect(mix: ExpectedMix, now_s: float) -> str:
    """The defect of `mix`; "" for a sound one."""
    shape = (len(mix.kinds), len(mix.horizons_s))
    if mix.expected.shape != shape or mix.counts.shape != (*shape, len(mix.levels)):
        return "its rows, horizons and levels do not match its numbers"
    if not np.isfinite(mix.made_s) or mix.made_s > now_s:
        return "it was made in the future"
    if not all(0.0 < low < high for low, high in zip((1e-9, *mix.horizons_s), mix.horizons_s, strict=False)):
        return "its horizons are not positive and rising"
    if not all(0.0 < low < high < 1.0 for low, high in zip((1e-9, *mix.levels), mix.levels, strict=False)):
        return "its levels are not rising between 0 and 1"
    if not all(_is_gang(kind) for kind in mix.kinds):
        return "a kind of gang is not possible"
    if not (np.isfinite(mix.expected).all() and np.isfinite(mix.counts).all()):
        return "a number is not finite"
    if (mix.expected < 0).any() or (mix.counts < 0).any():
        return "a number is negative"
    if (np.diff(mix.counts, axis=2) < 0).any():
        return "its quantiles fall with the level"
    return "" if mix.expected.any() else "it expects nothing at all"


def _is_gang(kind: MixKind) -> bool:
    shared = kind.gpu_milli > 0 or bool(kind.profile)
    return (
        1 <= kind.gpus_per_member <= kind.gpus
        and 0 <= kind.gpu_milli <= GPU_MILLI
        and not (kind.gpu_milli and kind.profile)
        and not (shared and kind.gpus_per_member > 1)
        and 0 <= kind.topology < len(TOPOLOGY_NAMES)
    )


def kind_words(kind: MixKind) -> str:
    """A kind of gang in a few words, without its GPU models."""
    members = kind.gpus // kind.gpus_per_member
    if kind.profile:
        words = kind.profile
    elif kind.gpu_milli:
        words = f"{kind.gpu_milli / GPU_MILLI:g} GPU"
    else:
        words = f"{kind.gpus_per_member} GPU{'s' if kind.gpus_per_member > 1 else ''}"
    words = words if members == 1 else f"{members} x {words}"
    return words if kind.topology == Topology.NONE else f"{words} in one {TOPOLOGY_NAMES[kind.topology]}"


def pool_words(kind: MixKind) -> str:
    """The GPU models of a kind."""
    return " or ".join(kind.gpu_models) or "any model"


def remaining_quantiles_s(
    levels: tuple[float, ...],
    total_s: F64,
    served_s: F64,
    wanted: tuple[float, ...],
    outlived_s: F64 | None = None,
) -> F64:
    """Quantiles of the remaining run time. Shape [jobs, wanted].

    `total_s` [jobs, levels] is read as a piecewise log-normal distribution: between two levels, the standard normal
    quantile z of a level is linear in the log of the time. Beyond the outer levels it continues with the slope between
    the middle level and the outer one. S(T) is the probability of a run time above T. The result is T minus `served_s`
    for S(T) = (1 - level) S(outlived). A job beyond its forecast therefore has a heavy tail, as log-normal run times
    have. Under a forecast without spread, such a job is expected to run for another tenth of its run time, at least
    one second. NaN rows (the model abstains) stay NaN.

    `outlived_s` is the longest run time below that of each job for certain. It is above `served_s` for a job with lost
    progress: the job repeats that work, and its run time still exceeds this one.
    """
    served = np.maximum(np.asarray(served_s, float), 0.0)
    outlived = served if outlived_s is None else np.maximum(served, outlived_s)
    fresh = outlived <= 0.0
    left = np.empty((len(served), len(wanted)))
    asked = ~fresh if set(wanted) <= set(levels) else np.ones(len(served), np.bool_)
    again = (outlived - served)[asked, None]  # lost progress is repeated
    left[asked] = _conditional(levels, total_s[asked], outlived[asked], wanted) + again
    for column, level in enumerate(wanted):  # bit-exact, not through a logarithm
        if level in levels:
            left[fresh, column] = total_s[fresh, levels.index(level)]
    return np.where(np.isnan(total_s[:, :1]), np.nan, left)


def _conditional(levels: tuple[float, ...], total_s: F64, served: F64, wanted: tuple[float, ...]) -> F64:
    """Quantiles of the remaining time of jobs beyond `served`. Shape [jobs, wanted]."""
    normal = ndtri(np.asarray(levels))
    log_total, log_served = np.log(np.maximum(total_s, 1.0)), np.log(np.maximum(served, 1e-9))
    middle = len(normal) // 2
    low = (log_total[:, middle] - log_total[:, 0]) / (normal[middle] - normal[0])
    high = (log_total[:, -1] - log_total[:, middle]) / (normal[-1] - normal[middle])
    with np.errstate(invalid="ignore", divide="ignore"):
        outlived = log_ndtr(-_normal_at(normal, log_total, log_served, low, high))
        reach = -ndtri_exp(np.log1p(-np.asarray(wanted)) + outlived[:, None])
        left = np.exp(_log_time_at(normal, log_total, reach, low, high)) - served[:, None]
        overdue = (log_served >= log_total[:, -1]) & (high <= 0.0)
    return np.where(overdue[:, None], np.maximum(0.1 * served, 1.0)[:, None], np.maximum(left, 0.0))


def _normal_at(normal: F64, log_total: F64, log_served: F64, low: F64, high: F64) -> F64:
    """The standard normal quantile of the probability of an end by a time. Shape [jobs]."""
    index = (log_served[:, None] >= log_total).sum(axis=1)
    rows, upper = np.arange(len(index)), np.clip(index, 1, len(normal) - 1)
    before, after = log_total[rows, upper - 1], log_total[rows, upper]
    part = (log_served - before) / (after - before)
    inside = normal[upper - 1] + part * (normal[upper] - normal[upper - 1])
    below = normal[0] - (log_total[:, 0] - log_served) / low
    above = normal[-1] + (log_served - log_total[:, -1]) / high
    return np.asarray(np.where(index == 0, below, np.where(index == len(normal), above, inside)))


def _log_time_at(normal: F64, log_total: F64, reach: F64, low: F64, high: F64) -> F64:
    """The inverse of `_normal_at`, for several probabilities per job. Shape [jobs, wanted]."""
    rows, upper = np.arange(len(reach))[:, None], np.clip(np.searchsorted(normal, reach), 1, len(normal) - 1)
    before, after = log_total[rows, upper - 1], log_total[rows, upper]
    inside = before + (reach - normal[upper - 1]) / (normal[upper] - normal[upper - 1]) * (after - before)
    below = log_total[:, :1] - (normal[0] - reach) * low[:, None]
    above = log_total[:, -1:] + (reach - normal[-1]) * high[:, None]
    return np.where(reach < normal[0], below, np.where(reach > normal[-1], above, inside))
