"""The ring buffer of every source that delivers samples one scrape at a time.

Direct scrape, NVML and the simulator add samples at scrape times; `windowed` returns mean, maximum, number of fresh
samples and age per window. Samples are kept in slots of at least `slot_s`, in blocks of slots: float32 [signals, slots,
entities], NaN where nothing was measured. Running sums make the mean incremental (each slot is added once and removed
once per window), block maxima make the maximum a few dozen vector operations; without changes nothing is computed.

A failed scrape is simply absent. A number that is repeated because the exporter has not refreshed (its watch interval
is usually longer than ours) counts again: it cannot be told from a fresh one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autopilot.core.hardware.dcgm import SIGNALS, WINDOWS_S, Quality
from autopilot.core.model.errors import InputError, invariant
from autopilot.core.model.records import Telemetry
from autopilot.core.model.snapshot import F32, F64, I8, Texts

BLOCK_SLOTS = 12
"""Slots per block: about the square root of the slots in the longest window at a scrape each 15 s."""

_NO_QUALITY = 127
Columns = NDArray[np.intp] | slice


@dataclass(slots=True)
class _Block:
    """Consecutive slots. `values` is [signals, BLOCK_SLOTS, entities]."""

    first: int  # number of its first slot since the start
    times_s: list[float]
    values: F32
    maximum: F32  # [signals, entities], over its slots so far
    quality: I8  # [entities], the lowest of its slots so far


@dataclass(slots=True)
class _Window:
    """Running sums of the slots inside one window."""

    width_s: float
    first: int  # number of the oldest slot inside
    total: F64  # [signals, entities]
    count: NDArray[np.int16]


class WindowBuffer:
    """Sliding windows over samples of many entities that may come and go.

    `signals` names the rows of every array; the first is the SM activity, whose samples, age and quality represent the
    entity. `slot_s` is the shortest distance between two samples of an entity: two closer ones share a slot and the
    newer wins. Raises `InputError` when a window is shorter than a slot.
    """

    def __init__(
        self,
        signals: Sequence[str] = SIGNALS,
        windows_s: Sequence[float] = WINDOWS_S,
        slot_s: float = 10.0,
    ) -> None:
        if not slot_s > 0 or min(windows_s) < slot_s:
            raise InputError(f"slot_s: {slot_s} must be above 0 and at most the shortest window ({min(windows_s)} s)")
        self.signals = tuple(signals)
        self.windows_s = tuple(windows_s)
        self.slot_s = slot_s
        self._ids: list[str] = []
        self._columns: dict[str, int] = {}
        self._last_ids: Texts | None = None
        self._last_columns: Columns = slice(0)
        self._blocks: deque[_Block] = deque()
        self._slots = 0  # numbered from the start
        self._capacity = 0
        self._seen_s: F64 = np.empty(0)
        self._activity_s: F64 = np.empty(0)
        self._windows = [self._empty_window(width) for width in self.windows_s]
        self._spare: list[_Block] = []
        self._answer: Telemetry | None = None  # while no entity was added or removed

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def nbytes(self) -> int:
        """Bytes held by the arrays."""
        blocks = sum(b.values.nbytes + b.maximum.nbytes + b.quality.nbytes for b in self._blocks)
        return blocks + sum(w.total.nbytes + w.count.nbytes for w in self._windows)

    # --- samples in ----------------------------------------------------------------------------

    def put(self, now_s: float, entity_ids: Texts, values: F32, quality: I8) -> None:
        """Take in one scrape.

        `values` is [signals, entities] in the order of `entity_ids` (distinct), NaN for unknown; `quality` [entities].
        A late sample joins the newest slot; one that is later than the shortest window is dropped.
        """
        invariant(values.shape == (len(self.signals), len(entity_ids)), f"samples of shape {values.shape}")
        if not len(entity_ids) or (self._blocks and now_s <= self._blocks[-1].times_s[-1] - self.windows_s[0]):
            return
        columns = self._columns_of(entity_ids)
        block, place = self._slot(now_s)
        number = block.first + place
        before = block.values[:, place, columns].copy()
        given = np.where(np.isnan(values), before, values).astype(np.float32)
        for window in self._windows:
            if number >= window.first:
                _change(window, columns, before, given)
        block.values[:, place, columns] = given
        if np.isnan(before).all():
            block.maximum[:, columns] = np.fmax(block.maximum[:, columns], given)
        else:
            slots = block.values[:, : len(block.times_s), columns]
            block.maximum[:, columns] = np.fmax.reduce(slots, axis=1)
        graded = np.where(quality > Quality.NONE, quality, _NO_QUALITY).astype(np.int8)
        block.quality[columns] = np.minimum(block.quality[columns], graded)
        self._seen_s[columns] = np.maximum(self._seen_s[columns], now_s)
        latest = np.where(np.isnan(values[0]), -np.inf, now_s)
        self._activity_s[columns] = np.maximum(self._activity_s[columns], latest)
        self._answer = None

    def _columns_of(self, entity_ids: Texts) -> Columns:
        """Column of each entity; new ones get one. The same order as last time costs nothing."""
        same = self._last_ids is entity_ids or (
            self._last_ids is not None and np.array_equal(self._last_ids, entity_ids)
        )
        if not same:
            for entity in entity_ids:
                if entity not in self._columns:
                    self._columns[entity] = len(self._ids)
                    self._ids.append(entity)
            if len(self._ids) > self._capacity:
                self._grow(max(len(self._ids), int(self._capacity * 1.25)))
            self._last_columns = np.fromiter(map(self._columns.__getitem__, entity_ids), np.intp, len(entity_ids))
            self._last_ids = entity_ids
        return self._last_columns

    def _slot(self, now_s: float) -> tuple[_Block, int]:
        """The slot that a sample of `now_s` belongs to, opened when needed."""
        if self._blocks:
            block = self._blocks[-1]
            if now_s < block.times_s[-1] + self.slot_s - 1e-9:
                return block, len(block.times_s) - 1
        if not self._blocks or len(self._blocks[-1].times_s) == BLOCK_SLOTS:
            self._blocks.append(self._new_block())
        block = self._blocks[-1]
        block.times_s.append(now_s)
        self._slots += 1
        return block, len(block.times_s) - 1

    def _new_block(self) -> _Block:
        if self._spare:
            block = self._spare.pop()
            block.first, block.times_s = self._slots, []
            block.values.fill(np.nan)
            block.maximum.fill(np.nan)
            block.quality.fill(_NO_QUALITY)
            return block
        size = (len(self.signals), BLOCK_SLOTS, self._capacity)
        maximum = np.full((len(self.signals), self._capacity), np.nan, np.float32)
        quality = np.full(self._capacity, _NO_QUALITY, np.int8)
        return _Block(self._slots, [], np.full(size, np.nan, np.float32), maximum, quality)

    # --- windows out ---------------------------------------------------------------------------

    def windowed(self, now_s: float) -> Telemetry:
        """Every entity seen within the longest window, by window.

        A window of width w holds the slots opened after `now_s - w`. `mean` and `maximum` are NaN
        where no sample of the signal lies inside; `samples` and `age_s` are those of the SM activity,
        `quality` is the lowest of its samples in the longest window (up to a block more).
        """
        if self._blocks and now_s < self._blocks[-1].times_s[-1] - self.slot_s:
            self._clear()  # the clock went backwards: ages are unknown
        self._expire(now_s)
        if self._answer is None:
            self._answer = self._compute()
        age_s = np.maximum(now_s - self._activity_s[: len(self._ids)], 0.0).astype(np.float32)
        return replace(self._answer, age_s=age_s)

    def _compute(self) -> Telemetry:
        """The windows as they stand, without ages."""
        size = len(self._ids)
        shape = (len(self.signals), len(self.windows_s), size)
        mean, maximum = np.empty(shape, np.float32), np.empty(shape, np.float32)
        samples = np.empty(shape[1:], np.int32)
        for index, window in enumerate(self._windows):
            count = window.count[:, :size]
            with np.errstate(invalid="ignore", divide="ignore"):
                mean[:, index] = np.where(count > 0, np.maximum(window.total[:, :size], 0.0) / count, np.nan)
            maximum[:, index] = self._maximum(window)[:, :size]
            samples[index] = count[0]
        quality = np.full(size, _NO_QUALITY, np.int8)
        for block in self._blocks:
            np.minimum(quality, block.quality[:size], out=quality)
        quality[(quality == _NO_QUALITY) | (samples[-1] == 0)] = Quality.NONE
        ids, no_age = np.array(self._ids, dtype=object), np.empty(0, np.float32)
        return Telemetry(self.signals, self.windows_s, ids, mean, maximum, samples, no_age, quality)

    def _maximum(self, window: _Window) -> F32:
        """Maximum over the slots of a window: whole blocks by their maxima, the oldest part by slot."""
        pieces: list[F32] = []
        for block in self._blocks:
            skip = window.first - block.first
            if skip <= 0:
                pieces.append(block.maximum)
            else:
                pieces.extend(block.values[:, place] for place in range(skip, len(block.times_s)))
        if not pieces:
            return np.full((len(self.signals), self._capacity), np.nan, np.float32)
        result = pieces[0].copy()
        for piece in pieces[1:]:
            np.fmax(result, piece, out=result)
        return result

    def _expire(self, now_s: float) -> None:
        """Remove expired slots from the windows, blocks from the buffer and entities from both."""
        for window in self._windows:
            self._leave(window, now_s - window.width_s)
        oldest = min((window.first for window in self._windows), default=0)
        while self._blocks and self._blocks[0].first + len(self._blocks[0].times_s) <= oldest:
            block = self._blocks.popleft()
            if len(self._spare) < 1:
                self._spare.append(block)
        horizon_s = now_s - max(self.windows_s)
        gone = self._seen_s[: len(self._ids)] <= horizon_s
        if gone.any():
            self._compact(np.flatnonzero(~gone))

    def forget(self, entity_ids: Collection[str]) -> None:
        """Drop the past of some entities: their id now belongs to another object."""
        dropped = [self._columns[entity] for entity in entity_ids if entity in self._columns]
        if dropped:
            self._compact(np.delete(np.arange(len(self._ids)), dropped))

    def _clear(self) -> None:
        self._blocks.clear()
        self._compact(np.empty(0, np.intp))
        self._windows = [self._empty_window(width) for width in self.windows_s]

    def _leave(self, window: _Window, before_s: float) -> None:
        for block in self._blocks:
            for place in range(max(window.first - block.first, 0), len(block.times_s)):
                if block.times_s[place] > before_s:
                    return
                values = block.values[:, place]
                known = ~np.isnan(values)
                window.count -= known
                window.total -= np.where(known, values, 0.0)
                # a sum without samples is zero: rounding errors must not outlive them
                window.total[window.count == 0] = 0.0
                window.first = block.first + place + 1
                self._answer = None

    # --- entities come and go ------------------------------------------------------------------

    def _empty_window(self, width_s: float) -> _Window:
        shape = (len(self.signals), self._capacity)
        return _Window(width_s, self._slots, np.zeros(shape), np.zeros(shape, np.int16))

    def _grow(self, capacity: int) -> None:
        more = capacity - self._capacity
        self._capacity = capacity
        self._spare.clear()
        for block in self._blocks:
            block.values = _widen(block.values, more, np.nan)
            block.maximum = _widen(block.maximum, more, np.nan)
            block.quality = _widen(block.quality, more, _NO_QUALITY)
        for window in self._windows:
            window.total = _widen(window.total, more, 0.0)
            window.count = _widen(window.count, more, 0)
        self._seen_s = _widen(self._seen_s, more, -np.inf)
        self._activity_s = _widen(self._activity_s, more, -np.inf)

    def _compact(self, kept: NDArray[np.intp]) -> None:
        """Keep the columns `kept` only."""
        self._answer = None
        self._ids = [self._ids[column] for column in kept]
        self._columns = {entity: column for column, entity in enumerate(self._ids)}
        self._last_ids = None
        self._capacity = len(kept)
        self._spare.clear()
        for block in self._blocks:
            block.values = np.ascontiguousarray(block.values[..., kept])
            block.maximum = np.ascontiguousarray(block.maximum[..., kept])
            block.quality = block.quality[kept]
        for window in self._windows:
            window.total = np.ascontiguousarray(window.total[..., kept])
            window.count = np.ascontiguousarray(window.count[..., kept])
        self._seen_s = self._seen_s[kept]
        self._activity_s = self._activity_s[kept]


def _change(window: _Window, columns: Columns, before: F32, after: F32) -> None:
    """Replace samples `before` of one slot by `after` in the sums of a window. Both [signals, columns]."""
    known, knew = ~np.isnan(after), ~np.isnan(before)
    window.count[:, columns] += known.astype(np.int16) - knew
    window.total[:, columns] += np.where(known, after, 0.0).astype(float) - np.where(knew, before, 0.0)


def _widen(array: NDArray[Any], more: int, fill: float) -> NDArray[Any]:
    """`array` with `more` columns of `fill` on its last axis."""
    width = [(0, 0)] * (array.ndim - 1) + [(0, more)]
    return np.pad(array, width, constant_values=fill)
