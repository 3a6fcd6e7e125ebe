"""Telemetry as bytes: by far the largest part of a record, and most of it noise.

Floats are compared as integers with the value that the tick before makes likely, low bits that no
value uses are shifted out (telemetry that was rounded on its way in is small here), and the
differences are cut into byte planes, so that the many zero bytes lie together. Exact, bit for bit.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from autopilot.core.snapshot import SignalTable
from autopilot.journal.tables import UnreadableError

Array = NDArray[Any]

_SAME = 0
_SHIFTED = 1
_PLANES = 2
_WHOLE = 3


def _known(before: Array | None) -> Array:
    if before is None:
        raise UnreadableError("a column refers to a tick that is not there")
    return before


def pack_floats(column: Array, before: Array | None) -> list[Any]:
    """float32 of any shape: what differs from `before`, which has the same shape or is None."""
    if before is not None and before.shape != column.shape:
        before = None
    bits = np.ascontiguousarray(column).view(np.int32)
    if before is None:
        likely = np.zeros_like(bits)
        if bits.ndim == 3:  # a longer window resembles the next shorter one
            likely[:, 1:] = bits[:, :-1]
    else:
        likely = np.ascontiguousarray(before).view(np.int32)
        if np.array_equal(bits, likely):
            return [_SAME]
    unused = _unused_bits(bits)
    zigzag = _zigzag((bits >> unused) - (likely >> unused))
    return [_PLANES, list(column.shape), unused, _pack_planes(zigzag)]


def unpack_floats(part: Sequence[Any], before: Array | None) -> Array:
    """The inverse of `pack_floats`."""
    if part[0] == _SAME:
        return _known(before)
    shape, unused = tuple(part[1]), part[2]
    difference = _unzigzag(_unpack_planes(part[3], shape))
    if before is not None and before.shape != shape:
        before = None
    if before is not None:
        bits = (difference + (np.ascontiguousarray(before).view(np.int32) >> unused)) << unused
    elif len(shape) == 3:
        bits = np.cumsum(difference, axis=1, dtype=np.int32) << unused
    else:
        bits = difference << unused
    return np.ascontiguousarray(bits.astype(np.int32)).view(np.float32)


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
    """Byte planes of unsigned numbers [signals, windows, entities], windows of one length together."""
    if number.ndim == 3:
        number = number.transpose(1, 0, 2)
    number = np.ascontiguousarray(number)
    width = (int(number.max(initial=0)).bit_length() + 7) // 8
    planes = number.view(np.uint8).reshape(-1, 4).T[:width]
    return bytes((width,)) + _squeeze(planes.tobytes())


def _unpack_planes(packed: bytes, shape: tuple[int, ...]) -> Array:
    turned = len(shape) == 3
    order = (shape[1], shape[0], shape[2]) if turned else shape
    count = int(np.prod(order))
    planes = np.zeros((4, count), np.uint8)
    planes[: packed[0]] = np.frombuffer(zlib.decompress(packed[1:], -15), np.uint8).reshape(packed[0], count)
    number = np.ascontiguousarray(planes.T).view(np.uint32).reshape(order)
    return np.ascontiguousarray(number.transpose(1, 0, 2) if turned else number)


def _squeeze(data: bytes) -> bytes:
    # Runs and Huffman codes: nothing repeats in noise, so that a search for repeats only costs time.
    squeezer = zlib.compressobj(1, zlib.DEFLATED, -15, 9, zlib.Z_RLE)
    return squeezer.compress(data) + squeezer.flush()


def pack_plain(column: Array, before: Array | None) -> list[Any]:
    """Any other small column: nothing when equal, else as it is."""
    if before is column or (
        before is not None and before.dtype == column.dtype and np.array_equal(before, column)
    ):
        return [_SAME]
    return [_WHOLE, column.dtype.str, list(column.shape), _squeeze(np.ascontiguousarray(column).tobytes())]


def unpack_plain(part: Sequence[Any], before: Array | None) -> Array:
    """The inverse of `pack_plain`."""
    if part[0] == _SAME:
        return _known(before)
    return np.frombuffer(zlib.decompress(part[3], -15), part[1]).reshape(part[2])


def pack_age(column: Array, before: Array | None) -> list[Any]:
    """Ages: all grow alike while nothing new comes."""
    if before is None or before.shape != column.shape or column.dtype != np.float32:
        return pack_plain(column, None)
    if before is column:
        return [_SAME]
    finite = np.flatnonzero(np.isfinite(column) & np.isfinite(before))
    step = column[finite[0]] - before[finite[0]] if len(finite) else np.float32(0)
    if np.array_equal((before + step).view(np.int32), column.view(np.int32)):
        return [_SHIFTED, float(step)]
    return pack_floats(column, before)


def unpack_age(part: Sequence[Any], before: Array | None) -> Array:
    """The inverse of `pack_age`."""
    if part[0] == _SHIFTED:
        return _known(before) + np.float32(part[1])
    return unpack_floats(part, before) if part[0] == _PLANES else unpack_plain(part, before)


def pack_signals(table: SignalTable, before: SignalTable | None) -> bytes:
    """One signal table as bytes, relative to the one before."""
    same_names = before is not None and (before.signals, before.windows_s) == (table.signals, table.windows_s)
    part = [
        None if same_names else [table.signals, table.windows_s],
        table.collected_s,
        _pack_ratio(table.mean, None if before is None else before.mean),
        _pack_ratio(table.maximum, None if before is None else before.maximum),
        pack_plain(table.samples, None if before is None else before.samples),
        pack_age(table.age_s, None if before is None else before.age_s),
        pack_plain(table.quality, None if before is None else before.quality),
    ]
    return msgspec.msgpack.encode(part)


def _pack_ratio(column: Array, before: Array | None) -> list[Any]:
    if before is column:
        return [_SAME]
    if column.dtype != np.float32 or (before is not None and before.dtype != np.float32):
        return pack_plain(column, None)
    return pack_floats(column, before)


def _unpack_ratio(part: Sequence[Any], before: Array | None) -> Array:
    return unpack_plain(part, before) if part[0] == _WHOLE else unpack_floats(part, before)


def unpack_signals(data: bytes, before: SignalTable | None) -> SignalTable:
    """The inverse of `pack_signals`."""
    names, collected_s, mean, maximum, samples, age_s, quality = msgspec.msgpack.decode(data)
    if names is None:
        if before is None:
            raise UnreadableError("telemetry refers to a tick that is not there")
        signals, windows_s = before.signals, before.windows_s
    else:
        signals, windows_s = tuple(names[0]), tuple(names[1])
    return SignalTable(
        signals,
        windows_s,
        collected_s,
        _unpack_ratio(mean, None if before is None else before.mean),
        _unpack_ratio(maximum, None if before is None else before.maximum),
        unpack_plain(samples, None if before is None else before.samples),
        unpack_age(age_s, None if before is None else before.age_s),
        unpack_plain(quality, None if before is None else before.quality),
    )
