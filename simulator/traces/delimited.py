"""Delimited text: one bounded pass validates the content before anything is parsed.

The separator (comma, semicolon, tab, vertical bar) and the encoding (UTF-8, Latin-1) are detected from the file.
"""

from __future__ import annotations

import csv
import gzip
import os
import re
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from autopilot.core.model.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

UNKNOWN_WORDS = ["", "nan", "NaN", "NULL", "null", "None", "<NA>", "N/A"]
MOST_ROWS = 50_000_000
MOST_COLUMNS = 1000
MOST_BYTES = 2 << 30
MOST_HEADER_BYTES = 1 << 18
MOST_GZIP_RATIO = 200
"""Text that compresses better is no table: a small file may expand without bound."""

SEPARATORS = (",", ";", "\t", "|")
_CHUNK_BYTES = 1 << 22
_QUOTED = re.compile(r'"[^"]*"')
_OPEN_QUOTE = re.compile(r"EOF inside string starting at row (\d+)")


def read_csv(path: Path, names: Sequence[str] | None, separator: str | None) -> pd.DataFrame:
    """The rows as text cells; without `separator` the most frequent one in the first line.

    `attrs` of the table hold `separator` and `encoding`. Raises `InputError`.
    """
    _check_content(path)
    with _opened(path) as handle:
        head = handle.readline(MOST_HEADER_BYTES + 1)
    if len(head) > MOST_HEADER_BYTES:
        raise InputError(
            f"{path}: line 1 has more than {MOST_HEADER_BYTES:,} bytes; no table has such a header. Give a file of "
            "one row a line"
        )
    separator = separator or separator_of(head.decode("utf-8", "replace"))
    cells = _cells(head, separator, path)
    if len(cells) > MOST_COLUMNS:
        raise InputError(f"{path}: {len(cells):,} columns; at most {MOST_COLUMNS:,} are read")
    _check_first_row(path, len(names or cells), separator, header=not names)
    _check_ends(path, cells, separator, len(names) if names else None)
    try:
        frame, encoding = _parsed(path, names, separator, "utf-8-sig"), "utf-8"
    except UnicodeDecodeError:
        frame, encoding = _parsed(path, names, separator, "latin-1"), "latin-1"
    frame = frame.dropna(how="all")  # blank lines; the index keeps the line numbers of the others
    frame.attrs = {"separator": separator, "encoding": encoding}
    return frame


def _check_first_row(path: Path, columns: int, separator: str, *, header: bool) -> None:
    """Refuse a first row wider than the header: parsing a million columns would take too long."""
    with _opened(path) as handle:
        line = 1 + int(header and bool(handle.readline()))
        row = handle.readline(MOST_HEADER_BYTES + 1)
        while row and not row.strip():
            line, row = line + 1, handle.readline(MOST_HEADER_BYTES + 1)
    if len(row) > MOST_HEADER_BYTES or len(_cells(row, separator, path)) > columns:
        raise InputError(f"{path}: line {line} has more columns than the header; not a readable CSV file")


def separator_of(head: str) -> str:
    """The most frequent separator in a header, outside quotes; a comma by default."""
    text = _QUOTED.sub("", head)
    return max(SEPARATORS, key=text.count)


def _parsed(path: Path, names: Sequence[str] | None, separator: str, encoding: str) -> pd.DataFrame:
    import pandas as pd

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            return pd.read_csv(
                path,
                sep=separator,
                dtype=str,
                keep_default_na=False,
                na_values=UNKNOWN_WORDS,
                header=None if names else 0,
                names=list(names) if names else None,
                nrows=MOST_ROWS,
                encoding=encoding,
                skip_blank_lines=False,
                index_col=False,
                skipinitialspace=separator != "\t",
            )
    except UnicodeDecodeError:
        raise
    except pd.errors.ParserWarning as error:
        raise InputError(f"{path}: line 2 has more columns than the header; not a readable CSV file") from error
    except pd.errors.EmptyDataError as error:
        raise InputError(f"{path}: nothing but blank lines in the file") from error
    except (pd.errors.ParserError, UnicodeError, ValueError) as error:
        raise InputError(f"{path}: {_words(error)}") from error


def _words(error: Exception) -> str:
    """The parser's message, with line numbers starting from 1 instead of 0."""
    reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
    if (found := _OPEN_QUOTE.search(reason)) is not None:
        return f"line {int(found[1]) + 1}: a quote is opened and never closed; close it, or remove it"
    reason = reason.removeprefix("Error tokenizing data. C error: ")
    reason = re.sub(r"\brow (\d+)", lambda row: f"line {int(row[1]) + 1}", reason)
    return f"not a readable CSV file: {reason}"


def _opened(path: Path) -> IO[bytes]:
    return gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")  # type: ignore[return-value]


def _check_content(path: Path) -> None:
    """Refuse oversized files, and bytes foreign to any text; reads the file once, in chunks."""
    packed, most = path.stat().st_size, MOST_BYTES
    if path.suffix.lower() == ".gz":
        most = min(most, packed * MOST_GZIP_RATIO + _CHUNK_BYTES)
    read, lines, first = 0, 0, True
    try:
        with _opened(path) as handle:
            while piece := handle.read(_CHUNK_BYTES):
                read += len(piece)
                if first and piece[:2] in (b"\xff\xfe", b"\xfe\xff"):
                    raise InputError(f"{path}: the text is UTF-16; save it as UTF-8")
                if b"\0" in piece:
                    line = lines + piece[: piece.index(b"\0")].count(b"\n") + 1
                    raise InputError(f"{path}: line {line:,}: a NUL byte; this is no text, or it is damaged")
                if read > most:
                    raise InputError(
                        f"{path}: more than {most:,} bytes of text; no such table is read. Split it, or write Parquet"
                    )
                lines += piece.count(b"\n")
                first = False
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path}: cannot be read: {why}") from error


def _check_ends(path: Path, first: Sequence[str], separator: str, columns: int | None) -> None:
    """Refuse a header naming a column twice, and a file truncated during its writing.

    A truncated file has a last line without its end and with fewer fields than the first.
    """
    seen: set[str] = set()
    for name in first:
        if columns is None and name in seen:
            raise InputError(f"{path}: the header has the column {name!r} twice")
        seen.add(name)
    if path.suffix.lower() == ".gz":  # a truncated archive was refused when it was unpacked
        return
    with path.open("rb") as handle:
        handle.seek(0, os.SEEK_END)
        size = handle.tell()
        handle.seek(max(0, size - 65536))
        tail = handle.read()
    if tail.endswith((b"\n", b"\r")):
        return
    wanted = columns or len(first)
    last = tail.splitlines()[-1] if tail else b""
    given = len(_cells(last, separator, path))
    if len(tail.splitlines()) > 1 and given < wanted:
        raise InputError(
            f"{path}: the file ends in the middle of its last row ({given} of {wanted} columns); it is truncated"
        )


def _cells(line: bytes, separator: str, path: Path) -> list[str]:
    try:
        return next(csv.reader([line.decode("utf-8-sig", "replace")], delimiter=separator), [])
    except csv.Error as error:
        raise InputError(f"{path}: not a readable CSV file: {error}") from error
