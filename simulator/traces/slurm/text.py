"""The text of an accounting: unpacked by its content, its separator found, and its broken lines repaired.

`sacct` quotes nothing, so names and comments with a vertical bar or a newline break rows. A row is put together again
if its job number, state, times and lists fit their columns, and is skipped and counted if they do not.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from autopilot.core.model.errors import InputError
from simulator.traces.delimited import MOST_BYTES, MOST_COLUMNS, MOST_GZIP_RATIO
from simulator.traces.slurm.fields import ASK, CLOCKS, COUNTS, KNOWN, LISTS, TIMES, field_of

PACKED: tuple[tuple[bytes, Any], ...] = (
    (b"\x1f\x8b", gzip.open),
    (b"BZh", bz2.open),
    (b"\xfd7zXZ\x00", lzma.open),
)
_FAILURES = (OSError, EOFError, zlib.error, lzma.LZMAError)
LONGEST_HEAD = 1 << 18
MOST_LINES_OF_A_ROW = 60
MOST_EXTRA_CELLS = 60
_MUST = 1000

_NUMBER = re.compile(r"[\d.]*[KMGT]?")
_MATCHES = {
    "jobid": re.compile(r"\d+(?:_\d+|_\[[^\]]*\]?|\+\d+)*(?:\.\w+(?:\+\d+)?)?"),
    "state": re.compile(r"[A-Za-z_]+(?: by \S+)?\+?"),
    "time": re.compile(r"|Unknown|None|N/A|INVALID|[+-]?\d+(?:\.\d+)?|.*\d:\d\d.*", re.IGNORECASE),
    "clock": re.compile(r"|[\d:.-]+|UNLIMITED|Partition_Limit|INVALID|Unknown|None|INFINITE", re.IGNORECASE),
    "list": re.compile(
        r"|(?:[\w/:.+-]+(?:[=:][\w.:+-]+)?(?:\([^)]*\))?)(?:,[\w/:.+-]+(?:[=:][\w.:+-]+)?(?:\([^)]*\))?)*"
    ),
    "exit": re.compile(r"\d+:\d+"),
}
_STRICT = {
    "jobid": "jobid",
    "jobidraw": "jobid",
    "state": "state",
    "exitcode": "exit",
    "derivedexitcode": "exit",
    **dict.fromkeys(TIMES, "time"),
    **dict.fromkeys(CLOCKS, "clock"),
    **dict.fromkeys(LISTS, "list"),
}
FREE = frozenset(
    ("jobname", "comment", "admincomment", "systemcomment", "submitline", "workdir", "extra", "reason", "constraints")
)


@dataclass(slots=True)
class Rows:
    """Cells by row under the names of `fields`. `headers`: the names of the file; `lines`: the first line of each row;
    `broken`: lines outside any row; `repaired`: rows put together again.
    """

    headers: list[str]
    cells: list[list[str]]
    lines: list[int]
    broken: list[int] = field(default_factory=list)
    repaired: int = 0
    separator: str = "|"
    encoding: str = "utf-8"


def opened(path: Path) -> IO[bytes]:
    """The bytes of a file, unpacked if its first bytes say gzip, bzip2 or xz; its ending does not count."""
    with path.open("rb") as handle:
        head = handle.read(8)
    for magic, opener in PACKED:
        if head.startswith(magic):
            unpacked: IO[bytes] = opener(path, "rb")
            return unpacked
    return path.open("rb")


_DASHES = re.compile(r"[-\s]*-[-\s]*")


def first_line(path: Path, *, second: bool = False) -> str:
    """The first non-blank line, or the `second` one; empty if the file cannot be read as text."""
    try:
        with opened(path) as handle:
            head = handle.read(LONGEST_HEAD)
    except _FAILURES:
        return ""
    lines = head.decode("utf-8-sig", "replace").lstrip().splitlines()
    return "" if b"\0" in head or len(lines) <= second else lines[second]


def is_fixed_width(header: str, below: str) -> bool:
    """True for the first lines of sacct's output without --parsable: names above dashes."""
    return bool(_DASHES.fullmatch(below)) and "jobid" in {field_of(name) for name in header.split()}


def read_text(path: Path) -> tuple[str, str]:
    """The whole text and its encoding. Raises `InputError` if it is no text, damaged or too large."""
    try:
        with opened(path) as handle:
            most = min(MOST_BYTES, path.stat().st_size * MOST_GZIP_RATIO + (1 << 22))
            data = handle.read(most + 1)
    except _FAILURES as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > most:
        raise InputError(f"{path}: more than {most:,} bytes of text; no such accounting is read. Split it by month")
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise InputError(f"{path}: the text is UTF-16; save it as UTF-8")
    if b"\0" in data:
        line = data[: data.index(b"\0")].count(b"\n") + 1
        raise InputError(f"{path}: line {line:,}: a NUL byte; this is no text, or it is damaged")
    try:
        return data.decode("utf-8-sig"), "utf-8"
    except UnicodeDecodeError:
        return data.decode("latin-1"), "latin-1"


def separator_of(header: str) -> str:
    """The separator of the names in a header: the one with most names known to `sacct`."""
    runs = re.findall(r"[^\w\s\"'/%.]+|\t", header)
    candidates: dict[str, None] = dict.fromkeys(("|", *runs, *(run[0] for run in runs), "\t", ";", ",", " "))

    def score(separator: str) -> int:
        return sum(field_of(name.strip().strip('"')) in KNOWN for name in header.split(separator))

    return max(candidates, key=score)


def split_header(header: str) -> list[str]:
    """The names of a header line."""
    return [name.strip().strip('"').strip() for name in header.split(separator_of(header))]


def read_rows(path: Path, text: str) -> Rows:
    """The rows of a text with a header. Raises `InputError` without a header, or for columns of fixed widths."""
    lines = text.replace("\r\n", "\n").split("\n")
    start = next((at for at, line in enumerate(lines) if line.strip()), None)
    if start is None:
        raise InputError(f"{path}: nothing but blank lines in the file")
    header, body = lines[start], lines[start + 1 :]
    if body and _DASHES.fullmatch(body[0]):
        raise InputError(
            f"{path}: columns of fixed width, which cut what is longer; ask sacct for --parsable2 (-P): {ASK}"
        )
    separator = separator_of(header)
    headers = split_header(header)
    open_end = len(headers) > 1 and not headers[-1]  # --parsable ends each line with a separator
    headers = headers[:-1] if open_end else headers
    if len(headers) > MOST_COLUMNS:
        raise InputError(f"{path}: {len(headers):,} columns; at most {MOST_COLUMNS:,} are read")
    if sum(field_of(name) in KNOWN for name in headers) < 2:
        raise InputError(f"{path}: no header of sacct in line {start + 1}; do not use --noheader. {ASK}")
    quoted = _quoted(lines[start:], separator, len(headers)) if not open_end else None
    if quoted is not None:
        return Rows(headers, quoted, list(range(start + 2, start + 2 + len(quoted))), separator=separator)
    rows = Rows(headers, [], [], separator=separator)
    _Reader(rows, header, open_end).read(body, start + 2)
    return rows


def _quoted(lines: Sequence[str], separator: str, columns: int) -> list[list[str]] | None:
    """The cells of a file written with quotes by another program; None for any other file."""
    if len(separator) != 1 or not any(line.startswith('"') or f'{separator}"' in line for line in lines):
        return None
    try:
        rows = [row for row in csv.reader(io.StringIO("\n".join(lines)), delimiter=separator, strict=True) if row]
    except csv.Error:
        return None
    return rows[1:] if all(len(row) == columns for row in rows) else None


class _Reader:
    """Puts lines together to rows."""

    def __init__(self, rows: Rows, header: str, open_end: bool) -> None:
        self.rows, self.header, self.open_end = rows, header, open_end
        self.names = [field_of(name) for name in rows.headers]
        self.width = len(rows.headers)
        self.wholes: list[list[str] | None] = []
        self.shapes: list[set[str]] = []
        self.sure = [
            (at, _MATCHES[_STRICT[name]])
            for at, name in enumerate(self.names)
            if name in ("jobid", "jobidraw", "state")
        ]
        self.sure += [(at, _MATCHES["time"]) for at, name in enumerate(self.names) if name in ("submit", "end")]

    def read(self, lines: Sequence[str], number: int) -> None:
        """Read all `lines`; `number` is the line number of the first in the file."""
        at, rows = 0, self.rows
        self.wholes = [self._whole(line) for line in lines]
        while at < len(lines):
            if not lines[at].strip() or lines[at] == self.header:
                at += 1
                continue
            cells, used = self.wholes[at], 1
            if cells is None:
                cells, used = self._repaired(lines, at)
            if cells is None and rows.cells and self.names[-1] in FREE:  # more of a text that ends the row before
                rows.cells[-1][-1] += "\n" + "\n".join(lines[at : at + used])
            elif cells is None:
                rows.broken.append(number + at)
            else:
                rows.cells.append(cells)
                rows.lines.append(number + at)
            at += used

    def _split(self, text: str) -> list[str]:
        separator = self.rows.separator
        if self.open_end and text.endswith(separator):
            text = text[: -len(separator)]
        return text.split(separator)

    def _whole(self, line: str) -> list[str] | None:
        cells = self._split(line)
        if len(cells) != self.width or not all(match.fullmatch(cells[at].strip()) for at, match in self.sure):
            return None
        return cells

    def _repaired(self, lines: Sequence[str], at: int) -> tuple[list[str] | None, int]:
        """The row beginning at a line, and its number of lines; None and the lines to skip without one."""
        text = ""
        for used in range(1, MOST_LINES_OF_A_ROW + 1):
            line = at + used - 1
            begins = used > 1 and line < len(lines) and self.wholes[line] is not None
            if line >= len(lines) or (begins and self.names[0] not in FREE):
                return None, used - 1
            text = lines[line] if used == 1 else f"{text}\n{lines[line]}"
            parts = self._split(text)
            if len(parts) < self.width:
                continue
            if len(parts) > self.width + MOST_EXTRA_CELLS:
                break
            cells = self._aligned(parts)
            if cells is not None:
                self.rows.repaired += 1
                return cells, used
            if begins:
                return None, used - 1
        return None, 1

    def _aligned(self, parts: Sequence[str]) -> list[str] | None:
        """The parts joined to as many cells as there are columns, at the least cost; None if one cannot be right."""
        if not self.shapes:
            known = [cells for cells in self.wholes if cells is not None][:2000]
            self.shapes = [{_shape(cells[column]) for cells in known} for column in range(self.width)]
        width, extra, separator = self.width, len(parts) - self.width, self.rows.separator
        best: list[dict[int, tuple[int, int]]] = [{0: (0, 0)}]  # by column: parts used -> (cost, parts of the cell)
        for column in range(width):
            found: dict[int, tuple[int, int]] = {}
            for used, (cost, _) in best[-1].items():
                for take in range(1, extra - (used - column) + 2):
                    cell = separator.join(parts[used : used + take])
                    total = cost + self._cost(column, cell.strip(), take)
                    if total < _MUST and total < found.get(used + take, (_MUST, 0))[0]:
                        found[used + take] = (total, take)
            best.append(found)
        if len(parts) not in best[-1]:
            return None
        cells, used = [], len(parts)
        for column in range(width, 0, -1):
            take = best[column][used][1]
            cells.append(separator.join(parts[used - take : used]))
            used -= take
        return cells[::-1]

    def _cost(self, column: int, cell: str, parts: int) -> int:
        """The misfit of a cell in its column, by whole rows; `_MUST` for an impossible cell."""
        name = self.names[column]
        if name in _STRICT:
            fits = _MATCHES[_STRICT[name]].fullmatch(cell) is not None
            if not fits or (parts > 1 and _STRICT[name] != "list"):
                return _MUST
            return 0 if parts == 1 else _repeated(cell)
        if name in COUNTS:
            return 0 if parts == 1 and _NUMBER.fullmatch(cell) else _MUST
        odd = 0 if _shape(cell) in self.shapes[column] else 2
        return odd if name in FREE and parts == 1 else 1 if name in FREE else odd + 5 * (parts - 1)


def _repeated(cell: str) -> int:
    """Number of items of a list with the name of another one: with commas as separators, it is of two lists."""
    names = [item.partition("=")[0] for item in cell.split(",")]
    return len(names) - len(set(names))


def _shape(cell: str) -> str:
    """Numbers and words of a cell alike: `9:9`, `a_9`."""
    return re.sub(r"[^\W\d_]+", "a", re.sub(r"\d+", "9", cell.strip()))
