"""Tables of numpy columns as bytes: complete, or as changes since the previous tick.

Between two ticks most rows stay, a few cells change, and rows are added and removed while the others keep their order.
Columns of one item size are stacked as unsigned integers, so that a whole table is compared in a few vector operations
and bit for bit (NaN equals NaN, -0.0 differs from 0.0). A table that cannot be described as a change (another column
type, rows in another order) is written completely.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Layout = tuple[tuple[Any, ...], ...]
"""For each column: dtype, shape after the row axis, and whether it is stored column by column (Fortran)."""


class UnreadableError(Exception):
    """Inconsistent bytes; the reader adds the journal and the tick."""


_UNSIGNED: dict[int, np.dtype[Any]] = {
    1: np.dtype("u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
    8: np.dtype("<u8"),
}
_TEXT: np.dtype[Any] = np.dtype(object)


_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class Rows:
    """How the rows of one tick follow from those of the previous tick.

    `removed` are positions in the old table, `inserted` positions in the new one; all other rows are the same objects
    in the same order.
    """

    removed: Array
    inserted: Array
    before: int
    after: int

    @cached_property
    def kept_before(self) -> Array:
        """Positions in the old table of the rows that stay."""
        return _without(self.before, self.removed)

    @cached_property
    def kept_after(self) -> Array:
        """Their positions in the new table."""
        return _without(self.after, self.inserted)

    @cached_property
    def moved(self) -> Array:
        """New position of each old row, -1 where it is gone. Shape [before]."""
        place = np.full(self.before, -1, np.int32)
        place[self.kept_before] = self.kept_after
        return place

    def pack(self) -> list[Any]:
        """As plain values."""
        return [pack_positions(self.removed), pack_positions(self.inserted), self.before, self.after]


def unpack_rows(packed: Sequence[Any]) -> Rows:
    """The inverse of `Rows.pack`."""
    return Rows(unpack_positions(packed[0]), unpack_positions(packed[1]), packed[2], packed[3])


def _without(length: int, positions: Array) -> Array:
    if not len(positions):
        return np.arange(length)
    mask = np.ones(length, np.bool_)
    mask[positions] = False
    return mask.nonzero()[0]


def pack_positions(positions: Array) -> bytes:
    """Ascending row numbers as bytes: their differences, in one byte each where that suffices."""
    if not len(positions):
        return b""
    steps = positions.astype("<u4")
    steps[1:] -= steps[:-1].copy()
    largest = int(steps.max())
    width = 1 if largest < 1 << 8 else 2 if largest < 1 << 16 else 4
    return bytes((width,)) + steps.astype(_UNSIGNED[width]).tobytes()


def unpack_positions(packed: bytes) -> Array:
    """The inverse of `pack_positions`."""
    if not packed:
        return np.empty(0, np.int64)
    return np.cumsum(np.frombuffer(packed, _UNSIGNED[packed[0]], offset=1), dtype=np.int64)


def rows_by_key(before: Array, after: Array) -> Rows | None:
    """Removed and inserted rows, by names or integer keys; None when the other rows changed their order.

    A key of -1 marks a row that cannot stay.
    """
    old, new = before.tolist(), after.tolist()
    if old == new:
        return Rows(_NONE, _NONE, len(old), len(new))
    start, shortest = 0, min(len(old), len(new))
    while start < shortest and old[start] == new[start]:
        start += 1
    end = 0
    while end < shortest - start and old[-1 - end] == new[-1 - end]:
        end += 1
    old, new = old[start : len(old) - end], new[start : len(new) - end]
    old_keys, new_keys = set(old) - {-1}, set(new)
    removed = [at for at, key in enumerate(old, start) if key not in new_keys]
    inserted = [at for at, key in enumerate(new, start) if key not in old_keys]
    if [key for key in old if key in new_keys] != [key for key in new if key in old_keys]:
        return None
    return Rows(np.array(removed, np.int64), np.array(inserted, np.int64), len(before), len(after))


@dataclass(frozen=True, slots=True)
class Packed:
    """A table as stacked columns: by item size [columns, rows], and its text columns."""

    layout: Layout
    rows: int
    groups: dict[int, Array]
    texts: list[Array]


def column_names(table: type[Any]) -> tuple[str, ...]:
    """The columns of a table type, in order."""
    return tuple(field.name for field in fields(table))


def reader_of(names: Sequence[str]) -> Callable[[Any], tuple[Array, ...]]:
    """A function that returns the columns of a table."""
    if len(names) == 1:
        name = names[0]
        return lambda table: (getattr(table, name),)
    return attrgetter(*names)


def pack_columns(columns: Sequence[Array]) -> Packed:
    """Stack columns of one length by item size."""
    rows = len(columns[0])
    layout = tuple((column.dtype, column.shape[1:], column.ndim > 1 and column.flags.fnc) for column in columns)
    counts = _columns_by_size(layout)
    groups = {size: np.empty((count, rows), _UNSIGNED[size]) for size, count in counts.items() if count}
    at = dict.fromkeys(_UNSIGNED, 0)
    texts: list[Array] = []
    for column in columns:
        if column.dtype == _TEXT:
            texts.append(column)
            continue
        size = column.itemsize
        place = at[size]
        if column.ndim == 1:
            groups[size][place] = column.view(_UNSIGNED[size])
            at[size] = place + 1
        else:
            width = _width(column.shape[1:])
            flat = np.ascontiguousarray(column).view(_UNSIGNED[size]).reshape(rows, width)
            groups[size][place : place + width] = flat.T
            at[size] = place + width
    return Packed(layout, rows, groups, texts)


@lru_cache(maxsize=256)
def _columns_by_size(layout: Layout) -> dict[int, int]:
    """Number of stacked columns by item size."""
    counts = dict.fromkeys(_UNSIGNED, 0)
    for dtype, shape, _ in layout:
        if dtype != _TEXT:
            counts[dtype.itemsize] += _width(shape)
    return counts


def _width(shape: tuple[int, ...]) -> int:
    width = 1
    for length in shape:
        width *= length
    return width


def unpack_columns(packed: Packed) -> list[Array]:
    """The columns of a stacked table, in order."""
    at = dict.fromkeys(_UNSIGNED, 0)
    texts = iter(packed.texts)
    columns = []
    for dtype, shape, fortran in packed.layout:
        if dtype == _TEXT:
            columns.append(next(texts))
            continue
        width, place = _width(shape), at[dtype.itemsize]
        at[dtype.itemsize] = place + width
        if not shape:
            columns.append(packed.groups[dtype.itemsize][place].view(dtype))
            continue
        if not width:
            columns.append(np.empty((packed.rows, *shape), dtype))
            continue
        flat = np.ascontiguousarray(packed.groups[dtype.itemsize][place : place + width].T)
        column = flat.view(dtype).reshape(packed.rows, *shape)
        columns.append(np.asfortranarray(column) if fortran else column)
    return columns


# --- as plain values ---------------------------------------------------------------------------


def whole(packed: Packed, names: Sequence[str]) -> list[Any]:
    """The table with everything needed to read it without another tick."""
    layout = [
        [name, dtype.str, list(shape), bool(fortran)]
        for name, (dtype, shape, fortran) in zip(names, packed.layout, strict=True)
    ]
    groups = {size: _shuffle(group) for size, group in packed.groups.items()}
    return [layout, packed.rows, groups, [text.tolist() for text in packed.texts]]


def read_whole(part: Sequence[Any]) -> tuple[Packed, list[str]]:
    """The inverse of `whole`: the table and the names of its columns."""
    layout = tuple((np.dtype(dtype), tuple(shape), fortran) for _, dtype, shape, fortran in part[0])
    rows = part[1]
    counts = _columns_by_size(layout)
    groups = {size: _unshuffle(data, size, counts[size], rows) for size, data in part[2].items()}
    return Packed(layout, rows, groups, [texts_of(text) for text in part[3]]), [name for name, *_ in part[0]]


def texts_of(values: Sequence[Any]) -> Array:
    """A text column."""
    column = np.empty(len(values), object)
    column[:] = values
    return column


def _shuffle(group: Array) -> bytes:
    """Byte planes of each column: equal high bytes are adjacent and compress well."""
    columns, rows = group.shape
    planes = group.view(np.uint8).reshape(columns, rows, group.itemsize)
    return planes.transpose(0, 2, 1).tobytes()


def _unshuffle(data: bytes, size: int, columns: int, rows: int) -> Array:
    planes = np.frombuffer(data, np.uint8).reshape(columns, size, rows)
    return np.ascontiguousarray(planes.transpose(0, 2, 1)).view(_UNSIGNED[size]).reshape(columns, rows)


def change(before: Packed, after: Packed, rows: Rows | None) -> list[Any] | None:
    """The change from `before` to `after`, given how the rows moved (None: not at all).

    Returns an empty list when nothing changed, and None when the complete table is shorter.
    """
    if before.layout != after.layout or (rows is None and before.rows != after.rows):
        return None
    if rows is not None and not len(rows.removed) and not len(rows.inserted):
        rows = None
    old_at, new_at = (None, None) if rows is None else (rows.kept_before, rows.kept_after)
    groups: dict[int, list[bytes]] = {}
    for size, group in after.groups.items():
        old = before.groups[size] if old_at is None else before.groups[size].take(old_at, axis=1)
        new = group if new_at is None else group.take(new_at, axis=1)
        cells = (old != new).reshape(-1).nonzero()[0]
        if 2 * len(cells) > group.size:
            return None
        fresh = b"" if rows is None else group[:, rows.inserted].tobytes()
        if len(cells) or fresh:
            groups[size] = [pack_positions(cells), new.reshape(-1)[cells].tobytes(), fresh]
    texts: dict[int, list[Any]] = {}
    for number, (old, new) in enumerate(zip(before.texts, after.texts, strict=True)):
        if old is new and rows is None:
            continue
        kept, same = (new, old) if new_at is None else (new[new_at], old[old_at])
        cells = np.flatnonzero(kept != same)
        fresh_texts = [] if rows is None else new[rows.inserted].tolist()
        if len(cells) or fresh_texts:
            texts[number] = [pack_positions(cells), kept[cells].tolist(), fresh_texts]
    if rows is None and not groups and not texts:
        return []
    return [None if rows is None else rows.pack(), groups, texts]


def apply_change(before: Packed, part: Sequence[Any]) -> Packed:
    """The table after a change."""
    packed_rows, group_parts, text_parts = part
    rows = None if packed_rows is None else unpack_rows(packed_rows)
    if rows is not None:
        if rows.before != before.rows:
            raise UnreadableError(f"a change of {rows.before} rows was applied to {before.rows}")
        old_at, new_at = rows.kept_before, rows.kept_after
    groups = {}
    for size, old in before.groups.items():
        given = group_parts.get(size)
        if given is None and rows is None:
            groups[size] = old
            continue
        cells, values, fresh = given or (b"", b"", b"")
        new = old.copy() if rows is None else old.take(old_at, axis=1)
        new.reshape(-1)[unpack_positions(cells)] = np.frombuffer(values, _UNSIGNED[size])
        if rows is not None:
            full = np.empty((len(old), rows.after), _UNSIGNED[size])
            full[:, new_at] = new
            full[:, rows.inserted] = np.frombuffer(fresh, _UNSIGNED[size]).reshape(len(old), -1)
            new = full
        groups[size] = new
    texts = []
    for number, old in enumerate(before.texts):
        cells, values, fresh = text_parts.get(number, (b"", [], []))
        if rows is None and not cells:
            texts.append(old)
            continue
        text = old.copy() if rows is None else old[old_at]
        text[unpack_positions(cells)] = texts_of(values)
        if rows is not None:
            full = np.empty(rows.after, object)
            full[new_at] = text
            full[rows.inserted] = texts_of(fresh)
            text = full
        texts.append(text)
    return Packed(before.layout, before.rows if rows is None else rows.after, groups, texts)


def follow(packed: Packed, rows: Rows | None) -> Packed:
    """A table whose first column holds workload rows, after those moved; -1: the workload was removed."""
    if rows is None or not packed.rows:
        return packed
    dtype = packed.layout[0][0]
    size = dtype.itemsize
    group = packed.groups[size].copy()
    group[0] = rows.moved.astype(dtype)[group[0].view(dtype)].view(group.dtype)
    return Packed(packed.layout, packed.rows, {**packed.groups, size: group}, packed.texts)
