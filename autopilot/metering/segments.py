"""The rows of metering as Parquet files in a folder beside the journal.

A file `s-BEGIN-END.parquet` has all rows of that time (1/1,024 s since the start of the run, or since 1970). It is
written whole or not at all. A finished day (UTC) is merged into one file with hourly rows; the merged file is in place
before the others are removed, and a reader skips a file with its time covered by another one. So no time is counted
twice, and missing time is known. Rows of a merged day are also divided at the begin of a day in any time zone, so a
bill of any zone has whole rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from autopilot.core.model.errors import InputError
from autopilot.files import Lock, lock_beside, replace_file, write_bytes
from autopilot.metering.amounts import AMOUNTS, KEYS, TICKS_PER_S, Row, to_ticks

SCHEMA = "gpu-autopilot/metering/3"
OLDER = ("gpu-autopilot/metering/2", "gpu-autopilot/metering/1")
"""Their rows have no GPU time saved by sharing; those of 1 have no user and no labels either."""
ABOUT = "about.json"
HOUR = 3600 * TICKS_PER_S
DAY = 24 * HOUR
CUTS = (
    np.array(sorted({*range(0, 1440, 60), *(150, 210, 570, 615, 675, 810, 870, 915, 1050, 1095, 1110, 1170, 1230)}))
    * 60
    * TICKS_PER_S
)
"""Edges inside a merged day (UTC): each hour, and 00:00 of the zones not whole hours from UTC."""

_NAME = re.compile(r"s-(-?\d{1,19})-(-?\d{1,19})\.parquet")
_COLUMNS = pa.schema(
    [
        ("begin", pa.int64()),
        ("end", pa.int64()),
        *((name, pa.string()) for name in KEYS),
        *((name, pa.int64()) for name in AMOUNTS),
    ]
)


LATER: dict[str, str | int] = {"user": "", "labels": "", "saved": 0}
"""Columns absent from older segments, and their values there."""


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """One file: its time in 1/1,024 s."""

    begin: int
    end: int
    path: Path


@dataclass(frozen=True, slots=True)
class Store:
    """A folder of segments for reading. `start_s`: its time 0 since 1970; None: not known."""

    folder: Path
    start_s: float | None
    segments: tuple[Segment, ...]

    @property
    def holes(self) -> list[tuple[int, int]]:
        """Times without a segment between the first and the last one."""
        return [(one.end, two.begin) for one, two in pairwise(self.segments) if two.begin > one.end]


def open_store(folder: Path) -> Store:
    """The segments in a folder, in order, without those covered by a merged one. Raises `InputError`."""
    about = _about(folder)
    kept: list[Segment] = []
    for each in sorted(_files(folder), key=lambda segment: (segment.begin, -segment.end)):
        if kept and each.begin < kept[-1].end:
            if each.end > kept[-1].end:
                raise InputError(
                    f"{each.path}: overlaps {kept[-1].path.name}, so time would be counted twice; move one of them away"
                )
            continue
        kept.append(each)
    return Store(folder, about["start_s"], tuple(kept))


def metering_folder(journal: Path) -> Path:
    """The folder of the metering of a journal."""
    return journal.with_name(f"{journal.name.removesuffix('.journal')}.metering")


class Segments:
    """The sink of a meter (`meter.Sink`): one process writes to a folder at a time."""

    def __init__(self, folder: Path, *, start_s: float | None, every: int = 1, replace: bool = False) -> None:
        """`start_s`: time 0 since 1970; None: not known. `every`: intervals in a file; a crash loses those of the last.

        `replace` removes the files of another run. Raises `InputError` for an unusable folder.
        """
        self.folder, self._every = folder, every
        self._waiting: list[tuple[int, int, Sequence[Row]]] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock: Lock | None = lock_beside(folder / "segments")
            if replace:
                for path in (*(each.path for each in _files(folder)), folder / ABOUT):
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"{folder}: metering cannot be written: {error.strerror}; name another folder") from error
        if (folder / ABOUT).exists():
            start_s = _about(folder)["start_s"]
            self._ended = max((each.end for each in _files(folder)), default=None)
        else:
            write_bytes(json.dumps({"schema": SCHEMA, "start_s": start_s}).encode(), folder / ABOUT)
            self._ended = None
        self.shift = to_ticks(start_s or 0.0) % DAY

    @property
    def end(self) -> int | None:
        """End of its last interval."""
        return self._ended

    def put(self, begin: int, end: int, rows: Sequence[Row]) -> None:
        """Keep one interval; a file is written after `every` of them, and at the end of a day."""
        self._waiting.append((begin, end, rows))
        self._ended = end
        if len(self._waiting) >= self._every or (end + self.shift) % DAY == 0:
            self.flush()
        if (end + self.shift) % DAY == 0:
            merge(self.folder, end - DAY, end, self.shift)

    def flush(self) -> None:
        """Write the waiting intervals."""
        if self._waiting:
            begin, end = self._waiting[0][0], self._waiting[-1][1]
            _write(self.folder, begin, end, _table(row for _, _, rows in self._waiting for row in rows))
            self._waiting = []

    def close(self) -> None:
        """Write the waiting intervals, and let another process write."""
        if self._lock is not None:
            self.flush()
            self._lock.free()
            self._lock = None


def merge(folder: Path, begin: int, end: int, shift: int = 0) -> None:
    """Replace the segments within a time by one with the rows of each part of a day (`CUTS`).

    `shift`: time of the day (UTC) at time 0.
    """
    mine = sorted(each for each in _files(folder) if begin <= each.begin and each.end <= end)
    if len(mine) < 2:
        return
    table = pa.concat_tables([_read(each.path) for each in mine])
    days, at = np.divmod(table["begin"].to_numpy() + shift, DAY)
    part = pa.array(days * len(CUTS) + np.searchsorted(CUTS, at, side="right"))
    sums = [("begin", "min"), ("end", "max"), *((name, "sum") for name in AMOUNTS)]
    merged = table.append_column("part", part).group_by(["part", *KEYS], use_threads=False).aggregate(sums)
    merged = merged.rename_columns(["part", *KEYS, "begin", "end", *AMOUNTS]).select(_COLUMNS.names)
    _write(folder, mine[0].begin, mine[-1].end, merged.cast(_COLUMNS))
    for each in mine:
        if (each.begin, each.end) != (mine[0].begin, mine[-1].end):
            each.path.unlink(missing_ok=True)


def _table(rows: Iterable[Row]) -> pa.Table:
    kept = list(rows)
    columns: list[list[Any]] = [[row.begin for row in kept], [row.end for row in kept]]
    columns += [list(column) for column in zip(*(row.key for row in kept), strict=True)] or [[] for _ in KEYS]
    columns += [list(column) for column in zip(*(row.amounts for row in kept), strict=True)] or [[] for _ in AMOUNTS]
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _COLUMNS, strict=True)], schema=_COLUMNS
    )


def _write(folder: Path, begin: int, end: int, table: pa.Table) -> None:
    path = folder / f"s-{begin}-{end}.parquet"
    replace_file(path, lambda temporary: pq.write_table(table, temporary, compression="zstd"), durable=True)


def _read(path: Path) -> pa.Table:
    """One segment, checked for its columns. Raises `InputError`."""
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        why = str(error).splitlines()[0]
        raise InputError(f"{path}: damaged ({why}); restore it, or remove it: its time is then a gap") from error
    for name in (name for name in LATER if name not in table.schema.names):
        table = table.append_column(name, pa.array([LATER[name]] * len(table), _COLUMNS.field(name).type))
    if set(table.schema.names) == set(_COLUMNS.names):
        table = table.select(_COLUMNS.names)
    else:
        raise InputError(f"{path}: not a segment of this version; read it with the version that wrote it")
    return table


def _files(folder: Path) -> list[Segment]:
    found = []
    for path in folder.glob("s-*.parquet"):
        match = _NAME.fullmatch(path.name)
        if match and int(match[1]) < int(match[2]):
            found.append(Segment(int(match[1]), int(match[2]), path))
    return found


def _about(folder: Path) -> dict[str, Any]:
    """The description of a folder. Raises `InputError` if it has no metering, or that of another version."""
    try:
        about = json.loads((folder / ABOUT).read_bytes())
        known = about["schema"] in (SCHEMA, *OLDER) and (
            about["start_s"] is None or isinstance(about["start_s"], int | float)
        )
    except FileNotFoundError as error:
        raise InputError(f"{folder}: no metering here; `autopilot simulate` writes it beside its journal") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder / ABOUT}: damaged ({error}); restore it") from error
    if not known:
        raise InputError(f"{folder / ABOUT}: metering of another version; read it with the version that wrote it")
    return dict(about)
