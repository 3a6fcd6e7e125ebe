"""Telemetry as bytes: by far the largest part of a record, and most of it noise.

Floats are compared as integers with a value predicted from the past (`_Likely`), low bits that no value uses are
shifted out (which makes telemetry that was rounded at the source small), and the differences are split into byte
planes, so that zero bytes are adjacent. Exact, bit for bit.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from autopilot.core.model.signal_table import SignalTable
from autopilot.records.journal.table_codec import UnreadableError

Array = NDArray[Any]

_SAME = 0
_SHIFTED = 1
_PLANES = 2
_WHOLE = 3


def _known(before: Array | None) -> Array:
    if before is None:
        raise UnreadableError("a column refers to a missing tick")
    return before


@dataclass(slots=True)
class Past:
    """Previous telemetry, on either side: the last table, and older frames for predictions."""

    table: SignalTable | None = None
    frames: deque[tuple[float, SignalTable]] = field(default_factory=deque)  # (time, table), oldest first

    def keep(self, now_s: float, table: SignalTable) -> None:
        """Keep a table; frames that no prediction can use are dropped."""
        if self.table is not None and self.table.mean.shape != table.mean.shape:
            self.frames.clear()
        if self.table is None or self.table.mean is not table.mean:
            self.frames.append((now_s, table))
        reach_s = table.windows_s[1] if len(table.windows_s) > 1 else 0.0
        while len(self.frames) > MOST_FRAMES or (self.frames and self.frames[0][0] < now_s - reach_s):
            self.frames.popleft()
        self.table = table

    def parts_of(self, now_s: float, name: str, windows_s: tuple[float, ...], window: int) -> list[Array] | None:
        """The columns of the next shorter window that together cover this one up to now, without the newest.

        None unless every part has one.
        """
        if window != 1 or self.table is None or self.table.windows_s != windows_s:
            return None
        part_s = windows_s[0]
        count = round(windows_s[1] / part_s)
        found = []
        for step in range(1, count):
            wanted_s = now_s - step * part_s
            at_s, table = min(self.frames, key=lambda frame: abs(frame[0] - wanted_s), default=(-np.inf, self.table))
            if abs(at_s - wanted_s) > TOLERANCE * part_s:
                return None
            found.append(getattr(table, name)[:, 0])
        return found


MOST_FRAMES = 64
"""Maximum number of frames kept for predictions."""

TOLERANCE = 0.1
"""Maximum distance of a frame from the end of a window's part, in parts."""


class _Likely:
    """Predicts each window of a column from the shorter windows and the past."""

    def __init__(
        self, name: str, now_s: float, windows_s: tuple[float, ...], shape: tuple[int, ...], past: Past
    ) -> None:
        self.name, self.now_s, self.windows_s, self.past = name, now_s, windows_s, past
        before = None if past.table is None else getattr(past.table, name)
        usable = before is not None and before.shape == shape and before.dtype == np.float32
        self.before = before if usable else None

    def bits(self, window: int, shorter: Array | None) -> Array | int:
        """Predicted bits [signals, entities] of one window; `shorter` is the window before it.

        A longer window is the mean (or the maximum) of the shorter ones that cover it. Where the past is too short it
        is predicted to be unchanged, and no maximum is below that of a shorter window.
        """
        if self.before is None:
            return 0 if shorter is None else shorter.view(np.int32)
        before = np.ascontiguousarray(self.before[:, window])
        if shorter is None:
            return before.view(np.int32)
        parts = self.past.parts_of(self.now_s, self.name, self.windows_s, window)
        if self.name == "maximum":
            for part in parts or (before,):
                shorter = np.fmax(shorter, part)
            return shorter.view(np.int32)
        if parts is None:
            return before.view(np.int32)
        total = shorter.astype(np.float64)
        for part in parts:
            total = total + part
        return (total / (len(parts) + 1)).astype(np.float32).view(np.int32)


def pack_floats(column: Array, likely: _Likely) -> list[Any]:
    """float32 [signals, windows, entities]: the difference of the bits from the predicted ones."""
    if likely.before is not None and np.array_equal(column.view(np.int32), likely.before.view(np.int32)):
        return [_SAME]
    bits = np.ascontiguousarray(column).view(np.int32)
    unused = _unused_bits(bits)
    difference = np.empty((bits.shape[1], bits.shape[0], bits.shape[2]), np.int32)
    shorter = None
    with np.errstate(all="ignore"):
        for window in range(bits.shape[1]):
            difference[window] = (bits[:, window] >> unused) - (likely.bits(window, shorter) >> unused)
            shorter = np.ascontiguousarray(column[:, window])
    return [_PLANES, list(column.shape), unused, _pack_planes(_zigzag(difference))]


def unpack_floats(part: Sequence[Any], likely: _Likely) -> Array:
    """The inverse of `pack_floats`."""
    if part[0] == _SAME:
        return _known(likely.before)
    signals, windows, entities = part[1]
    unused = part[2]
    difference = _unzigzag(_unpack_planes(part[3], (windows, signals, entities)))
    column = np.empty((signals, windows, entities), np.float32)
    shorter = None
    with np.errstate(all="ignore"):
        for window in range(windows):
            bits = (difference[window] + (likely.bits(window, shorter) >> unused)) << unused
            shorter = np.ascontiguousarray(bits.astype(np.int32)).view(np.float32)
            column[:, window] = shorter
    return column


def _unused_bits(bits: Array) -> int:
    """How many low bits are 0 in every number."""
    used = int(np.bitwise_or.reduce(bits.reshape(-1), initial=0)) & 0xFFFFFFFF
    return (used & -used).bit_length() - 1 if used else 0


def _zigzag(difference: Array) -> Array:
    """Signed to unsigned, small to small."""
    return ((difference << 1) ^ (difference >> 31)).view(np.uint32)


def _unzigzag(number: Array) -> Array:
    return ((number >> np.uint32(1)) ^ (np.uint32(0) - (number & np.uint32(1)))).view(np.int32)


def _pack_planes(number: Array) -> bytes:
    """Byte planes of unsigned numbers."""
    width = (int(number.max(initial=0)).bit_length() + 7) // 8
    planes = np.ascontiguousarray(number).view(np.uint8).reshape(-1, 4).T[:width]
    return bytes((width,)) + _squeeze(planes.tobytes())


def _unpack_planes(packed: bytes, shape: tuple[int, ...]) -> Array:
    count = int(np.prod(shape))
    planes = np.zeros((4, count), np.uint8)
    planes[: packed[0]] = np.frombuffer(zlib.decompress(packed[1:], -15), np.uint8).reshape(packed[0], count)
    return np.ascontiguousarray(planes.T).view(np.uint32).reshape(shape)


def _squeeze(data: bytes) -> bytes:
    # Runs and Huffman codes: noise has no repetitions, so that a search for them only costs time.
    squeezer = zlib.compressobj(1, zlib.DEFLATED, -15, 9, zlib.Z_RLE)
    return squeezer.compress(data) + squeezer.flush()


def pack_plain(column: Array, before: Array | None) -> list[Any]:
    """Any other small column: nothing when equal, else verbatim."""
    if before is column or (before is not None and before.dtype == column.dtype and np.array_equal(before, column)):
        return [_SAME]
    return [_WHOLE, column.dtype.str, list(column.shape), _squeeze(np.ascontiguousarray(column).tobytes())]


def unpack_plain(part: Sequence[Any], before: Array | None) -> Array:
    """The inverse of `pack_plain`."""
    if part[0] == _SAME:
        return _known(before)
    return np.frombuffer(zlib.decompress(part[3], -15), part[1]).reshape(part[2])


def pack_age(column: Array, before: Array | None) -> list[Any]:
    """Ages: all grow by the same amount while no new samples arrive."""
    if before is None or before.shape != column.shape or not column.dtype == before.dtype == np.float32:
        return pack_plain(column, None)
    if before is column:
        return [_SAME]
    finite = np.flatnonzero(np.isfinite(column) & np.isfinite(before))
    step = column[finite[0]] - before[finite[0]] if len(finite) else np.float32(0)
    if np.array_equal((before + step).view(np.int32), column.view(np.int32)):
        return [_SHIFTED, float(step)]
    return pack_plain(column, None)


def unpack_age(part: Sequence[Any], before: Array | None) -> Array:
    """The inverse of `pack_age`."""
    return _known(before) + np.float32(part[1]) if part[0] == _SHIFTED else unpack_plain(part, before)


def pack_signals(table: SignalTable, now_s: float, past: Past) -> bytes:
    """One signal table as bytes, relative to its predecessors, which `past` keeps."""
    before = past.table
    same_names = before is not None and (before.signals, before.windows_s) == (table.signals, table.windows_s)
    part = [
        None if same_names else [table.signals, table.windows_s],
        table.collected_s,
        _pack_ratio("mean", table, now_s, past),
        _pack_ratio("maximum", table, now_s, past),
        pack_plain(table.samples, None if before is None else before.samples),
        pack_age(table.age_s, None if before is None else before.age_s),
        pack_plain(table.quality, None if before is None else before.quality),
        table.sources,
        pack_plain(table.source, None if before is None else before.source),
    ]
    past.keep(now_s, table)
    return msgspec.msgpack.encode(part)


def _pack_ratio(name: str, table: SignalTable, now_s: float, past: Past) -> list[Any]:
    column = getattr(table, name)
    if past.table is not None and getattr(past.table, name) is column:
        return [_SAME]
    if column.dtype != np.float32 or column.ndim != 3 or column.shape[1] != len(table.windows_s):
        return pack_plain(column, None)
    return pack_floats(column, _Likely(name, now_s, table.windows_s, column.shape, past))


def _origin(part: Sequence[Any], before: SignalTable | None) -> tuple[Any, ...]:
    """Sources and their column; empty where the record predates them."""
    return (tuple(part[0]), unpack_plain(part[1], None if before is None else before.source)) if part else ()


def unpack_signals(data: bytes, now_s: float, past: Past) -> SignalTable:
    """The inverse of `pack_signals`."""
    names, collected_s, mean, maximum, samples, age_s, quality, *origin = msgspec.msgpack.decode(data)
    before = past.table
    if names is not None:
        signals, windows_s = tuple(names[0]), tuple(names[1])
    elif before is None:
        raise UnreadableError("telemetry refers to a missing tick")
    else:
        signals, windows_s = before.signals, before.windows_s

    def ratio(name: str, part: Sequence[Any]) -> Array:
        if part[0] != _PLANES:
            return unpack_plain(part, None if before is None else getattr(before, name))
        return unpack_floats(part, _Likely(name, now_s, windows_s, tuple(part[1]), past))

    table = SignalTable(
        signals,
        windows_s,
        collected_s,
        ratio("mean", mean),
        ratio("maximum", maximum),
        unpack_plain(samples, None if before is None else before.samples),
        unpack_age(age_s, None if before is None else before.age_s),
        unpack_plain(quality, None if before is None else before.quality),
        *_origin(origin, before),
    )
    past.keep(now_s, table)
    return table
