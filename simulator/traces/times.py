"""Times and amounts as people and programs write them: dates, epoch seconds and milliseconds, clocks, decimal commas.

A column has one format. Cells of two formats in one column are an error with the row.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autopilot.core.model.errors import InputError, shown

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
Label = Callable[[int], str]
"""The label of the row at a position in the file: `line 17`."""

SILENT = ("", "unknown", "none", "nat", "nan", "+nan", "-nan", "n/a", "null", "<na>")
"""Words for an unknown time or amount, as `sacct` and others write it."""

UNLIMITED = ("unlimited", "partition_limit", "infinite")
EARLIEST_EPOCH_S = 1e8
"""March 1973: smaller numbers are seconds from an arbitrary zero."""
EARLIEST_EPOCH_MS = 1e11
LATEST_EPOCH_MS = 1e14
LONGEST_NUMBER = 60

_ZONE = r"(?i:z|[+-]\d{2}:?\d{2})$"
_CLOCK = r"^(?:(\d{1,6})-)?(?:(\d{1,6}):)?(\d{1,6}):(\d{1,2}(?:\.\d+)?)$"
_DAYS_AND_HOURS = r"^(\d{1,6})-(\d{1,2})$"


def read_times(
    raw: pd.Series[Any], name: str, path: Path, label: Label, *, comma: bool = False, lenient: bool = False
) -> tuple[Floats, str]:
    """Seconds (NaN if unknown) and the format of the column: "", "epoch", "epoch ms", "date" or "date with zone".

    Dates and epoch times count from 1970; a date without a zone is read as UTC. With `lenient` an invalid cell is
    unknown. Raises `InputError`.
    """
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(raw.dtype):
        zone = getattr(raw.dtype, "tz", None)
        since = (raw - pd.Timestamp(0, tz=zone)) / pd.Timedelta(seconds=1)
        return _floats(since), "date" if zone is None else "date with zone"
    if _is_number(raw):
        return _epoch(_floats(raw), raw, name, path, label)
    text, there = _texts(raw)
    if comma:
        text = with_points(text, raw, name, path, label)
    numbers = _floats(_numbers(text, there))
    given = there.to_numpy(dtype=bool)
    dated = given & np.isnan(numbers)
    if not dated.any():
        return _epoch(numbers, raw, name, path, label)
    times = pd.to_datetime(text.where(dated), errors="coerce", format="ISO8601", utc=True)
    wrong = times.isna().to_numpy(dtype=bool) & dated
    if wrong.any() and not lenient:
        row = int(wrong.argmax())
        raise InputError(
            f"{path}: {label(row)}, column {name}: {shown(raw.iloc[row])} is no time; write 2026-01-31T09:00:00, "
            "with or without a zone, or seconds or milliseconds since 1970"
        )
    dated &= ~wrong
    if not dated.any():
        return _epoch(numbers, raw, name, path, label)
    counted = given & ~dated & ~wrong
    if counted.any():
        rows = (int(dated.argmax()), int(counted.argmax()))
        raise _mixed(raw, name, path, label, rows, "dates and numbers")
    zoned = text.str.contains(_ZONE, regex=True).fillna(False).to_numpy(dtype=bool) & dated
    if zoned.any() and (dated & ~zoned).any():
        rows = (int(zoned.argmax()), int((dated & ~zoned).argmax()))
        raise _mixed(raw, name, path, label, rows, "times with and without a zone")
    since = (times - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(seconds=1)
    return _floats(since), "date with zone" if zoned.any() else "date"


def _epoch(values: Floats, raw: pd.Series[Any], name: str, path: Path, label: Label) -> tuple[Floats, str]:
    known = np.isfinite(values) & (values > 0)
    millis = known & (values >= EARLIEST_EPOCH_MS) & (values < LATEST_EPOCH_MS)
    seconds = known & (values >= EARLIEST_EPOCH_S) & (values < EARLIEST_EPOCH_MS)
    if known.any() and bool((values[known] >= LATEST_EPOCH_MS).all()):
        row = int(known.argmax())
        raise InputError(
            f"{path}: {label(row)}, column {name}: {shown(raw.iloc[row])} is neither seconds nor milliseconds since "
            "1970; divide it (microseconds by 1,000,000)"
        )
    if millis.any() and seconds.any():
        rows = (int(millis.argmax()), int(seconds.argmax()))
        raise _mixed(raw, name, path, label, rows, "milliseconds and seconds since 1970")
    if known.any() and millis.sum() == known.sum():
        return values / 1000.0, "epoch ms"
    return values, "epoch" if known.any() and seconds.sum() == known.sum() else ""


def read_amounts(
    raw: pd.Series[Any], name: str, path: Path, label: Label, *, comma: bool = False, clock: bool = False
) -> Floats:
    """Numbers, NaN if unknown. `comma`: a comma is the decimal sign; `clock`: also [D-]HH:MM:SS in seconds.

    Raises `InputError` naming the first row with none of these.
    """
    import pandas as pd

    if pd.api.types.is_timedelta64_dtype(raw.dtype):
        return _floats(raw.dt.total_seconds())
    if _is_number(raw):
        return _floats(raw)
    text, given = _texts(raw)
    if comma:
        text = with_points(text, raw, name, path, label)
    numbers = _floats(_numbers(text, given))
    if clock:
        numbers = np.where(np.isnan(numbers), _clocks(text), numbers)
        given &= ~text.str.lower().isin(UNLIMITED)
    wrong = np.isnan(numbers) & given.to_numpy(dtype=bool)
    if wrong.any():
        row = int(wrong.argmax())
        fix = "; write seconds or [days-]hours:minutes:seconds" if clock else ""
        raise InputError(f"{path}: {label(row)}, column {name}: {shown(raw.iloc[row])} is not a number{fix}")
    return numbers


def _clocks(text: pd.Series[Any]) -> Floats:
    parts = text.str.extract(_CLOCK).astype("float64").fillna({0: 0.0, 1: 0.0})
    seconds = parts[0] * 86_400 + parts[1] * 3600 + parts[2] * 60 + parts[3]
    whole = text.str.extract(_DAYS_AND_HOURS).astype("float64")
    return _floats(seconds.fillna(whole[0] * 86_400 + whole[1] * 3600))


def with_points(text: pd.Series[Any], raw: pd.Series[Any], name: str, path: Path, label: Label) -> pd.Series[Any]:
    """Decimal commas as points, if no cell may mean thousands. Raises `InputError`."""
    with_comma = text.str.fullmatch(r"[+-]?\d*,\d+").fillna(False).to_numpy(dtype=bool)
    if not with_comma.any():
        return text
    points = text.str.contains(".", regex=False).fillna(False).to_numpy(dtype=bool)
    vague = text.str.fullmatch(r"[+-]?[1-9]\d{0,2},\d{3}").fillna(False).to_numpy(dtype=bool)
    if points.any() or (vague.sum() == with_comma.sum()):
        row = int((points if points.any() else vague).argmax())
        raise InputError(
            f"{path}: {label(row)}, column {name}: {shown(raw.iloc[row])}: the comma may separate decimals "
            "or thousands; write decimals with a point, thousands without a separator"
        )
    return text.where(~with_comma, text.str.replace(",", ".", regex=False))


def _floats(values: pd.Series[Any]) -> Floats:
    return np.array(values.to_numpy(dtype=np.float64, na_value=np.nan), dtype=np.float64)


def _is_number(raw: pd.Series[Any]) -> bool:
    import pandas as pd

    return bool(pd.api.types.is_numeric_dtype(raw.dtype) and not pd.api.types.is_bool_dtype(raw.dtype))


def _texts(raw: pd.Series[Any]) -> tuple[pd.Series[Any], pd.Series[Any]]:
    """Stripped texts, and a mask of non-empty cells."""
    text = raw.astype("string").str.strip()
    return text, text.notna() & ~text.str.lower().isin(SILENT)


def _numbers(text: pd.Series[Any], given: pd.Series[Any]) -> pd.Series[Any]:
    """As float64; NaN for any other text and for numbers out of range."""
    import pandas as pd

    return pd.to_numeric(text.where(given & (text.str.len() <= LONGEST_NUMBER)), errors="coerce").astype("float64")


def _mixed(raw: pd.Series[Any], name: str, path: Path, label: Label, rows: tuple[int, int], what: str) -> InputError:
    first, second = sorted(rows)
    return InputError(
        f"{path}: {label(second)}, column {name}: {shown(raw.iloc[second])} beside "
        f"{shown(raw.iloc[first])} ({label(first)}): {what} in one column; use one format"
    )
