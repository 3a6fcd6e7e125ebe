"""Tables on disk: reads and writes CSV and Parquet, never half a file.

An unusable file is one `InputError` with the file and, if applicable, the column and the row. Rows are
numbered as in an editor: the line of a CSV file (its header is line 1), the row from 1 of a Parquet file.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from autopilot.core.model.errors import InputError
from autopilot.files import replace_file
from autopilot.printable import printable
from simulator.traces.delimited import read_csv
from simulator.traces.parquet import read_parquet

if TYPE_CHECKING:
    import pandas as pd

Progress = Callable[[str, float], None]
"""Called with the current step and its finished fraction, in [0, 1]."""


def no_progress(_what: str, _done: float) -> None:
    """A progress callback without effect."""


def read_table(path: Path, *, names: Sequence[str] | None = None, separator: str | None = None) -> pd.DataFrame:
    """The table at `path` by its suffix: text cells (CSV) or typed cells (Parquet).

    `names` are the columns of a CSV file without a header. Without `separator` it is detected. Raises `InputError` if
    the file is missing, empty, truncated, too large, or of another type than its suffix.
    """
    check_file(path)
    try:
        return _read_table(path, names, separator)
    except MemoryError as error:
        raise InputError(
            f"{path}: the table does not fit into the memory that this process may use; write fewer rows, or only the "
            "columns that are used, or raise the limit"
        ) from error


def _read_table(path: Path, names: Sequence[str] | None, separator: str | None) -> pd.DataFrame:
    if path.suffix.lower() in (".parquet", ".pq"):
        frame = read_parquet(path)
    elif Path(path.name.lower().removesuffix(".gz")).suffix in (".csv", ".txt", ".tsv"):
        frame = read_csv(path, names, "," if names and separator is None else separator)
    else:
        raise InputError(
            f"{path}: a table is read from a .csv or .parquet file; {path.suffix or 'no ending'} is neither"
        )
    if not len(frame):
        raise InputError(f"{path}: no row in the file, only its header")
    return frame


def check_file(path: Path) -> None:
    """Raise `InputError` without a readable file."""
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a folder; give a file")
        if not path.exists():
            raise InputError(f"{path}: no such file")
        if not path.is_file():  # opening a pipe would wait for its writer
            raise InputError(f"{path}: is a pipe or a device; give a file")
        size = path.stat().st_size
        with path.open("rb") as handle:
            handle.read(1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if size == 0:
        raise InputError(f"{path}: the file is empty")


def row_label(path: Path, index: int) -> str:
    """`line 17` of a CSV file or `row 16` of a Parquet file, for the index label of the row (from 0)."""
    return f"row {index + 1}" if path.suffix.lower() in (".parquet", ".pq") else f"line {index + 2}"


def number_column(frame: pd.DataFrame, name: str, path: Path) -> pd.Series[float]:
    """The column as float64, NaN if it is empty; dates and durations of a typed file are converted to seconds.

    Raises `InputError` naming the file, row and column of the first cell without a number.
    """
    import pandas as pd

    raw = frame[name]
    if pd.api.types.is_datetime64_any_dtype(raw.dtype):
        raw = raw - pd.Timestamp(0, tz=getattr(raw.dtype, "tz", None))
    if pd.api.types.is_timedelta64_dtype(raw.dtype):
        raw = pd.Series(raw.dt.total_seconds(), index=raw.index)
    values = pd.to_numeric(raw, errors="coerce").astype("float64")
    wrong = (values.isna() & raw.notna()).to_numpy()
    if wrong.any():
        words = raw.astype("string").str.strip().str.lower().isin(["nan", "+nan", "-nan"])
        wrong = wrong & ~words.fillna(False).to_numpy(dtype=bool)
    if wrong.any():
        first = int(wrong.argmax())
        where = row_label(path, int(frame.index[first]))
        raise InputError(f"{path}: {where}, column {name}: {raw.iloc[first]!r} is not a number")
    return values


def number_array(frame: pd.DataFrame, name: str, path: Path) -> npt.NDArray[np.float64]:
    """As `number_column`, as a writable array."""
    return np.array(number_column(frame, name, path), dtype=np.float64)


def require_columns(frame: pd.DataFrame, names: Sequence[str], path: Path, what: str) -> None:
    """Raise `InputError` if `frame` lacks one of `names`; the message lists the present ones."""
    missing = [name for name in names if name not in frame.columns]
    if missing:
        there = ", ".join(str(name) for name in list(frame.columns)[:20])
        raise InputError(
            f"{path}: {what} needs the column {', '.join(missing)}; the file has {there}. Map one of them "
            f"with --columns {missing[0]}=..."
        )


FORMULA_STARTS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""A spreadsheet interprets a text cell that starts with one of these as a formula, some of them after blanks."""


def _acts(text: str) -> bool:
    return text.startswith(("\t", "\r")) or printable(text).lstrip(" \u00a0\u3000?").startswith(FORMULA_STARTS)


def read_exact(path: Path) -> pd.DataFrame:
    """The table as `write_table` wrote it for spreadsheets: cells of a CSV file are texts, "" if empty.

    Raises `InputError` as `read_table` does.
    """
    import pandas as pd

    frame = read_table(path)
    if path.suffix.lower() in (".parquet", ".pq"):
        return frame
    frame = pd.read_csv(path, dtype=str, na_filter=False, encoding="utf-8-sig", sep=frame.attrs["separator"])
    return frame.map(lambda cell: cell[1:] if cell.startswith("'") and _acts(cell.lstrip("'")) else cell)


def without_formulas(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with an apostrophe before each text a spreadsheet would evaluate, and without control characters.

    Numbers are unchanged. A text that looks as if it had such an apostrophe gets one more: `read_exact` removes one.
    """

    def plain(cell: object) -> object:
        return printable(f"'{cell}" if _acts(cell.lstrip("'")) else cell) if isinstance(cell, str) else cell

    safe: pd.DataFrame = frame.apply(lambda column: column.map(plain) if column.dtype.kind == "O" else column)
    return safe


def _has_returns(frame: pd.DataFrame) -> bool:
    """True if a text has a carriage return (`to_csv` does not quote it on its own)."""
    return any(
        bool(frame[name].astype("string").str.contains("\r", regex=False).any())
        for name in frame.columns
        if frame[name].dtype.kind == "O"
    )


def write_table(
    frame: pd.DataFrame,
    path: Path,
    check: Callable[[Path], None] | None = None,
    *,
    for_spreadsheets: bool = False,
) -> None:
    """Write the table by its suffix, atomically; see `autopilot.files`.

    `check` may refuse the temporary file by raising; then nothing is left. `for_spreadsheets`: a CSV file holds no
    formulas (`without_formulas`). Raises `InputError` if the suffix is unknown or the folder cannot be written.
    """
    ending = path.suffix.lower()
    if ending not in (".csv", ".parquet", ".pq"):
        raise InputError(f"{path}: a table is written to a .csv or .parquet file; {ending or 'no ending'} is neither")

    def fill(temporary: Path) -> None:
        if ending == ".csv":
            table = without_formulas(frame) if for_spreadsheets else frame
            quoting: Literal[0, 2] = csv.QUOTE_NONNUMERIC if _has_returns(table) else csv.QUOTE_MINIMAL
            with temporary.open("w", encoding="utf-8", newline="") as file:
                table.to_csv(file, index=False, lineterminator="\n", quoting=quoting)
        else:
            _write_parquet(frame, temporary, path)
        if check is not None:
            check(temporary)

    replace_file(path, fill)


def _write_parquet(frame: pd.DataFrame, temporary: Path, path: Path) -> None:
    import pyarrow as pa

    try:
        frame.to_parquet(temporary, index=False, compression="zstd")
    except pa.ArrowException as error:
        raise InputError(f"{path}: a column has no Parquet type: {str(error).splitlines()[0]}; write CSV") from error
