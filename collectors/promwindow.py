"""Converts Prometheus answers by field to windows by signal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autopilot.core.hardware import dcgm
from autopilot.core.model.policy.bounds import ClockRules
from autopilot.core.model.records import Gap, Telemetry
from autopilot.core.model.snapshot import F32, F64, I8, I32, Bools
from collectors.entities import PROFILED, Entities, activity, fill_boards, gaps_of, missing_gaps

_PROFILED_ROWS = [
    row for row, signal in enumerate(dcgm.SIGNALS) if all(known.id in PROFILED for known in dcgm.fields_of(signal))
]
"""Rows of the signals that the profiling counters give."""


@dataclass(slots=True)
class WindowAnswer:
    """Answers for one window: by DCGM field id, then by column of the entities (NaN: no series)."""

    at_s: float
    mean: dict[int, F64] = field(default_factory=dict)
    maximum: dict[int, F64] = field(default_factory=dict)
    count: dict[int, F64] = field(default_factory=dict)


def widen(column: F64, size: int) -> F64:
    """`column` extended with NaN for the entities that were added after the query."""
    return np.concatenate([column, np.full(size - len(column), np.nan)])


def prefer_fuller(device: WindowAnswer, shared: WindowAnswer, size: int) -> None:
    """Where pods share a GPU: keep the device's own series unless the pods' copies hold more samples.

    New exporters send the device's sample beside the copies; old ones send only the copies while the GPU is shared, and
    then the device's series covers the idle time only. `device` is changed in place.
    """
    unknown = np.full(size, np.nan)
    counts = [
        np.fmax.reduce([unknown, *(widen(c, size) for c in answer.count.values())]) for answer in (device, shared)
    ]
    fuller = np.nan_to_num(counts[1]) > np.nan_to_num(counts[0])
    for kept, other in (
        (device.mean, shared.mean),
        (device.maximum, shared.maximum),
        (device.count, shared.count),
    ):
        for number in {*kept, *other}:
            own, copies = (widen(table.get(number, np.empty(0)), size) for table in (kept, other))
            kept[number] = np.where(fuller & ~np.isnan(copies), copies, own)


def assemble(
    source: str,
    windows_s: tuple[float, ...],
    windows: Sequence[WindowAnswer],
    entities: Entities,
    alive: Bools,
    age_s: F64,
    dead_s: F64,
) -> tuple[Telemetry, list[Gap]]:
    """Telemetry of all windows, and its gaps.

    `alive` [entities] marks entities whose series are not stale, `age_s` the age of their newest sample (NaN: none
    alive; its age is then the shortest window with a sample). `dead_s`: the time since their profiling counters last
    contradicted GPU_UTIL (NaN: never). A window longer than that takes its values from the next shorter one.
    """
    size = len(entities.ids)
    shape = (len(dcgm.SIGNALS), len(windows_s), size)
    named = [entities.ids[column] for column in np.flatnonzero(widen(dead_s, size) < max(windows_s))]
    text = f"{dcgm.FIELDS[1002].names[0]} {dcgm.FAULT_TEXT[dcgm.Fault.CONTRADICTED]}"
    mean, maximum = np.empty(shape, np.float32), np.empty(shape, np.float32)
    samples, quality = np.zeros(shape[1:], np.int32), np.zeros(shape[1:], np.int8)
    gaps = gaps_of(source, dcgm.SIGNALS[0], text, named) if named else []
    age_s = widen(age_s, size)
    for place, (width, window) in enumerate(zip(windows_s, windows, strict=True)):
        blank = _poisoned(window, size)
        gaps += _blank_gaps(source, blank, entities)
        mean[:, place], quality[place] = _signals(window.mean, blank, size)
        maximum[:, place], graded = _signals(window.maximum, blank, size)
        samples[place] = _samples(window, quality[place], size)
        dead = np.flatnonzero(widen(dead_s, size) < width)
        _take_shorter(mean, maximum, samples, quality, place, dead)
        age_s = np.where(np.isnan(age_s) & (samples[place] > 0), width, age_s)
        own = quality[place].copy()
        fill_boards(mean[:, place], quality[place], entities, alive)
        fill_boards(maximum[:, place], graded, entities, alive)
        made = (own == dcgm.Quality.NONE) & (quality[place] > dcgm.Quality.NONE)
        _board_samples(samples[place], age_s, made, entities, alive)
    near_s = np.where(
        age_s < -ClockRules().max_skew_s, age_s, np.maximum(age_s, 0.0)
    )  # assemble judges samples from the future
    age_s = np.where(np.isnan(age_s) | (samples[-1] == 0), np.inf, near_s)
    worst = np.where(quality > dcgm.Quality.NONE, quality, 127).min(axis=0)
    worst[worst == 127] = dcgm.Quality.NONE
    kept = np.flatnonzero(~np.isnan(mean).all(axis=(0, 1)))
    ids = np.array(entities.ids, dtype=object)[kept]
    missing = missing_gaps(source, list(ids), mean[:, -1, kept], f"no sample in {windows_s[-1]:.0f} s")
    told = {(entity, dcgm.SIGNALS[row]) for entity in named for row in _PROFILED_ROWS}
    gaps += [gap for gap in missing if (gap.object_id, gap.signal) not in told]
    telemetry = Telemetry(
        dcgm.SIGNALS,
        windows_s,
        ids,
        mean[..., kept],
        maximum[..., kept],
        samples[:, kept],
        age_s[kept].astype(np.float32),
        worst[kept].astype(np.int8),
    )
    return telemetry, gaps


def _take_shorter(mean: F32, maximum: F32, samples: I32, quality: I8, place: int, dead: NDArray[np.intp]) -> None:
    """Give the window at `place` the values of the next shorter one for the entities `dead`. Changed in place."""
    for table in (mean, maximum):
        for row in _PROFILED_ROWS:
            table[row, place, dead] = table[row, place - 1, dead] if place else np.nan
    samples[place, dead] = samples[place - 1, dead] if place else 0
    quality[place, dead] = quality[place - 1, dead] if place else dcgm.Quality.NONE


def _poisoned(window: WindowAnswer, size: int) -> dict[int, Bools]:
    """Windows that contain a blank: their mean and maximum are invalid."""
    found: dict[int, Bools] = {}
    for number, column in window.maximum.items():
        peak = widen(column, size)
        found[number] = ~np.isnan(peak) & ~dcgm.in_range(dcgm.FIELDS[number], peak)
    return found


def _blank_gaps(source: str, blank: dict[int, Bools], entities: Entities) -> list[Gap]:
    gaps: list[Gap] = []
    for number, mask in blank.items():
        given = dcgm.FIELDS[number]
        named = [entities.ids[int(column)] for column in np.flatnonzero(mask)]
        gaps += gaps_of(source, given.signal, f"{given.names[0]} was blank or out of range in the window", named)
    return gaps


def _signals(table: dict[int, F64], blank: dict[int, Bools], size: int) -> tuple[F32, I8]:
    """Signals [signals, entities] and quality [entities] from fields."""
    unknown = np.full(size, np.nan)
    cleaned = {}
    for number, column in table.items():
        values, _ = dcgm.clean(dcgm.FIELDS[number], widen(column, size))
        cleaned[number] = np.where(blank[number], np.nan, values) if number in blank else values
    signals = np.full((len(dcgm.SIGNALS), size), np.nan, np.float32)
    signals[0], quality = activity([(grade, cleaned.get(number, unknown)) for number, grade in dcgm.ACTIVITY])
    for row, signal in enumerate(dcgm.SIGNALS[1:], start=1):
        signals[row] = dcgm.joined(signal, [cleaned.get(f.id, unknown) for f in dcgm.fields_of(signal)])
    return signals, quality


def _samples(window: WindowAnswer, quality: I8, size: int) -> I32:
    """Samples of the counter behind each entity's activity."""
    samples = np.zeros(size, np.int32)
    for number, grade in dcgm.ACTIVITY:
        if number in window.count:
            counted = np.nan_to_num(widen(window.count[number], size)).astype(np.int32)
            samples = np.where(quality == grade, counted, samples)
    return samples


def _board_samples(samples: I32, age_s: F64, made: Bools, entities: Entities, alive: Bools) -> None:
    """A board derived from its instances is as fresh as the least fresh of them. Changed in place."""
    parent = np.array(entities.parent, np.intp)
    rows = np.flatnonzero((parent >= 0) & alive)
    fewest, oldest = np.full(len(parent), np.iinfo(np.int32).max, np.int32), np.zeros(len(parent))
    np.minimum.at(fewest, parent[rows], samples[rows])
    np.maximum.at(oldest, parent[rows], np.nan_to_num(age_s[rows], nan=np.inf))
    samples[made] = fewest[made]
    age_s[made] = oldest[made]
