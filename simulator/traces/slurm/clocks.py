"""Times of `sacct` as seconds since 1970: epoch times, dates in the formats of strftime, and local dates of a zone.

Local dates repeat an hour as the clocks go back. The right one of the two follows from the order of job numbers
(later numbers were submitted later), from submit <= eligible <= start <= end, and from Elapsed.
"""

from __future__ import annotations

import warnings
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from autopilot.core.model.errors import InputError, shown
from simulator.traces.job_trace import Floats
from simulator.traces.slurm.fields import TIMES

if TYPE_CHECKING:
    import pandas as pd

UNKNOWN = ("", "unknown", "none", "n/a", "invalid", "nat", "nan", "null")
PREFER_SHORT = 1e-5
"""Where nothing else tells, the shorter wait is taken: its weight for a second against a contradiction of 2 to 10."""
NO_TIME_S = 4_294_967_294.0
"""Slurm writes "no value" as this number or the next one."""

FORMATS = (
    *(
        f"{day}{between}{clock}"
        for day in (
            "%d/%m/%Y",
            "%m/%d/%Y",
            "%d.%m.%Y",
            "%d-%m-%Y",
            "%m-%d-%Y",
            "%Y/%m/%d",
            "%Y.%m.%d",
            "%d/%m/%y",
            "%m/%d/%y",
            "%y-%m-%d",
            "%d %b %Y",
            "%d-%b-%Y",
            "%b %d %Y",
            "%b %d, %Y",
            "%a %d %b %Y",
            "%a, %d %b %Y",
            "%Y%m%d",
        )
        for between in (" ", "T", "-", "_", ", ", ":", "")
        for clock in ("%H:%M:%S", "%H:%M", "%I:%M:%S %p", "%H%M%S", "%H.%M.%S")
    ),
    "%a %b %d %H:%M:%S %Y",
    "%b %d %H:%M:%S %Y",
    "%a %d %b %Y %I:%M:%S %p",
)


@dataclass(slots=True)
class Times:
    """Seconds since 1970 by field, NaN if unknown. `local`: dates without a zone; `way`: their format."""

    s: dict[str, Floats]
    local: bool = False
    way: str = "epoch"
    settled: int = 0
    notes: list[str] = field(default_factory=list)


def check_zone(name: str) -> None:
    """Raise `InputError` for a name of no time zone; empty is UTC."""
    try:
        ZoneInfo(name or "UTC")
    except (ValueError, OSError, ZoneInfoNotFoundError) as error:
        raise InputError(
            f"--timezone: {shown(name)} is no time zone; write for example Europe/Berlin or UTC"
        ) from error


def read_clock(frame: pd.DataFrame, path: Path, zone: str, label: Any) -> Times:
    """The times of all rows; dates without a zone are those of `zone` (empty: UTC). Raises `InputError`."""
    import pandas as pd

    there = [name for name in TIMES if name in frame.columns]
    words = {name: frame[name].astype("string").str.strip().fillna("") for name in there}
    given = {name: ~words[name].str.lower().isin(UNKNOWN).to_numpy(dtype=bool) for name in there}
    whole = pd.Series(pd.unique(pd.concat([words[name][given[name]] for name in there])), dtype="string")
    numbers = pd.to_numeric(whole, errors="coerce")
    if numbers.notna().all():
        scaled = _scaled(numbers.to_numpy(np.float64), path)
        return Times(_spread(whole, scaled, words))
    local = _dates(whole, frame, words, path, label, given)
    seconds, zoned = local
    found = _spread(whole, seconds, words)
    if zoned:
        return Times(found, way="date with zone")
    times = Times(found, local=True, way="date")
    if zone:
        _localize(times, ZoneInfo(zone), zone, frame)
    return times


def _spread(whole: pd.Series[Any], seconds: Floats, words: Mapping[str, pd.Series[Any]]) -> dict[str, Floats]:
    by_word = dict(zip(whole.tolist(), seconds.tolist(), strict=True))
    return {
        name: np.array([by_word.get(word, np.nan) for word in each.tolist()], np.float64)
        for name, each in words.items()
    }


def _scaled(values: Floats, path: Path) -> Floats:
    values = np.where((values <= 0) | ((values >= NO_TIME_S) & (values < NO_TIME_S + 2)), np.nan, values)
    largest = float(np.nanmax(values)) if np.isfinite(values).any() else 0.0
    if largest >= 1e17:
        raise InputError(
            f"{path}: times of {largest:.0f} are no seconds since 1970; write SLURM_TIME_FORMAT=%s sacct ..."
        )
    return values / (1e6 if largest >= 1e14 else 1e3 if largest >= 1e11 else 1.0)


def _dates(
    whole: pd.Series[Any],
    frame: pd.DataFrame,
    words: Mapping[str, pd.Series[Any]],
    path: Path,
    label: Any,
    given: Mapping[str, Any],
) -> tuple[Floats, bool]:
    """Seconds of each date as if its clock were UTC, and True if the dates have a zone."""
    import pandas as pd

    def seconds(parsed: Any) -> Floats:
        return np.array(
            ((parsed - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(seconds=1)).to_numpy(np.float64, na_value=np.nan)
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parsed = pd.to_datetime(whole, errors="coerce", format="ISO8601", utc=True)
        if parsed.notna().all():
            zoned = whole.str.contains(r"(?:Z|[+-]\d{2}:?\d{2})$", regex=True).to_numpy(dtype=bool)
            if zoned.any() and not zoned.all():
                raise _unreadable(whole[~zoned].iloc[0], words, given, path, label)
            return seconds(parsed), bool(zoned.all())
        fits = []
        sample = whole.iloc[:: max(1, len(whole) // 200)]
        for form in FORMATS:
            if pd.to_datetime(sample, errors="coerce", format=form, utc=True).notna().all():
                every = pd.to_datetime(whole, errors="coerce", format=form, utc=True)
                if every.notna().all():
                    fits.append(seconds(every))
    if not fits:
        raise _unreadable(whole[parsed.isna()].iloc[0], words, given, path, label)
    if len(fits) > 1:  # day and month may be exchanged: the run times tell
        fits.sort(key=lambda each: _misfits(_spread(whole, each, words), frame))
    return fits[0], False


def _misfits(times: Mapping[str, Floats], frame: pd.DataFrame) -> float:
    """Rows out of order, or with another run time than from start to end; then the span of all times."""
    wrong = 0.0
    for first, second in (("submit", "start"), ("start", "end")):
        if first in times and second in times:
            wrong += float((times[second] < times[first]).sum())
    if "start" in times and "end" in times and "elapsed_s" in frame:
        wrong += float((np.abs(times["end"] - times["start"] - frame["elapsed_s"].to_numpy(np.float64)) > 60).sum())
    spans = [float(np.nanmax(each) - np.nanmin(each)) for each in times.values() if np.isfinite(each).any()]
    return wrong + max(spans, default=0.0) / 1e12


def _unreadable(
    word: str, words: Mapping[str, pd.Series[Any]], given: Mapping[str, Any], path: Path, label: Any
) -> InputError:
    for name, each in words.items():
        here = (each == word).to_numpy(dtype=bool) & given[name]
        if here.any():
            return InputError(
                f"{path}: {label(int(here.argmax()))}, column {name}: {shown(str(word))} is no time; seconds since "
                "1970 are read, and dates with year, month and day in one format: write SLURM_TIME_FORMAT=%s sacct ..."
            )
    return InputError(f"{path}: {shown(str(word))} is no time; write SLURM_TIME_FORMAT=%s sacct ...")


def _localize(times: Times, zone: ZoneInfo, name: str, frame: pd.DataFrame) -> None:
    """Local clocks as seconds since 1970."""
    first: dict[str, Floats] = {}
    second: dict[str, Floats] = {}
    for field_name, clock in times.s.items():
        first[field_name], second[field_name] = (_since(clock, zone, fold) for fold in (True, False))
    times.s = first
    times.way = f"date of {name}"
    twice = {each: (early != second[each]) & np.isfinite(early) for each, early in first.items()}
    rows = np.flatnonzero(np.logical_or.reduce(list(twice.values())))
    if len(rows):
        times.settled = len(rows)
        _settle(first, second, twice, rows, frame)


def _since(clock: Floats, zone: ZoneInfo, first: bool) -> Floats:
    import pandas as pd

    known = np.isfinite(clock)
    naive = pd.to_datetime(pd.Series(np.where(known, clock, 0.0)), unit="s")
    aware = naive.dt.tz_localize(str(zone), ambiguous=np.full(len(naive), first), nonexistent="shift_forward")
    seconds = ((aware - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(seconds=1)).to_numpy(np.float64)
    return np.where(known, seconds, np.nan)


def _settle(
    first: dict[str, Floats],
    second: Mapping[str, Floats],
    twice: Mapping[str, Any],
    rows: Any,
    frame: pd.DataFrame,
) -> None:
    """Choose for each row with two possible times of its clock; changes `first`."""
    elapsed = frame["elapsed_s"].to_numpy(np.float64)
    suspended = frame["suspended_s"].to_numpy(np.float64)
    options: dict[int, list[tuple[float, dict[str, float]]]] = {}
    for row in rows.tolist():
        names = [name for name in TIMES if name in first]
        choices = [(first[name][row], second[name][row]) if twice[name][row] else (first[name][row],) for name in names]
        found = []
        for each in product(*choices):
            chosen = dict(zip(names, each, strict=True))
            found.append((_cost(chosen, elapsed[row], suspended[row]), chosen))
        options[row] = found
    later = _submitted_after(first, twice, rows, options, frame)
    for row in rows.tolist():
        wanted = (second if row in later else first)["submit"][row] if "submit" in first else None
        allowed = [each for each in options[row] if wanted is None or each[1]["submit"] == wanted]
        _, chosen = min(allowed, key=lambda each: (each[0], _wait(each[1])))
        for name, value in chosen.items():
            first[name][row] = value


def _wait(chosen: Mapping[str, float]) -> float:
    wait = chosen.get("start", np.nan) - chosen.get("eligible", chosen.get("submit", np.nan))
    return wait if np.isfinite(wait) else 0.0


def _cost(chosen: Mapping[str, float], elapsed_s: float, suspended_s: float) -> float:
    """The degree of contradiction among the times of a row."""
    cost = 0.0
    known = [chosen[name] for name in TIMES if name in chosen and np.isfinite(chosen[name])]
    cost += 10.0 * sum(later < earlier - 1 for earlier, later in pairwise(known))
    between = chosen.get("end", np.nan) - chosen.get("start", np.nan)
    if np.isfinite(between) and np.isfinite(elapsed_s):
        over = between - elapsed_s - (suspended_s if np.isfinite(suspended_s) else 0.0)
        cost += 5.0 if over < -1 else 0.0
        cost += (5.0 if np.isfinite(suspended_s) else 2.0) if over > 1 else 0.0
    return cost


def _submitted_after(
    first: Mapping[str, Floats],
    twice: Mapping[str, Any],
    rows: Any,
    options: Mapping[int, Sequence[tuple[float, Mapping[str, float]]]],
    frame: pd.DataFrame,
) -> set[int]:
    """The rows submitted after the clocks went back.

    In the order of job numbers all before one of them were submitted before, and all from it on after. The number
    with most rows in order is taken: a requeued job has the time of the requeue. Later records of a requeued job are
    judged by their own times.
    """
    if "submit" not in first:
        return set()
    submit = first["submit"]
    order = frame["order"].to_numpy(np.float64)
    again = np.zeros(len(frame), dtype=bool)
    by_submit = np.argsort(np.nan_to_num(submit, nan=np.inf), kind="stable")
    again[by_submit] = frame["id"].iloc[by_submit].duplicated().to_numpy(dtype=bool)

    def least(row: int, shift: float) -> float:
        costs = [
            cost + _wait(chosen) * PREFER_SHORT
            for cost, chosen in options[row]
            if abs(chosen["submit"] - submit[row] - shift) < 1
        ]
        return min(costs, default=50.0)

    mine = [row for row in rows.tolist() if twice["submit"][row]]
    shifts = {row: max(chosen["submit"] for _, chosen in options[row]) - submit[row] for row in mine}
    after: set[int] = set()
    seasons: dict[int, list[int]] = {}
    for row in mine:
        seasons.setdefault(round(submit[row] / 86_400 / 90), []).append(row)
    for season in seasons.values():
        line = sorted((row for row in season if not again[row]), key=lambda row: (order[row], submit[row]))
        before = [least(row, 0.0) for row in line]
        behind = [least(row, shifts[row]) for row in line]
        ahead = _in_order([submit[row] for row in line])
        back = _in_order([-submit[row] for row in reversed(line)])[::-1]
        costs = [
            sum(before[:cut]) + sum(behind[cut:]) + 2.0 * (len(line) - ahead[cut] - back[cut])
            for cut in range(len(line) + 1)
        ]
        cut = len(line) - int(np.argmin(costs[::-1])) if costs else 0
        after.update(line[cut:])
        after.update(row for row in season if again[row] and least(row, shifts[row]) < least(row, 0.0))
    return after


def _in_order(values: Sequence[float]) -> list[int]:
    """Of the first 0, 1, 2, ... values: the length of the longest non-falling part."""
    ends: list[float] = []
    lengths = [0]
    for value in values:
        at = bisect_right(ends, value)
        ends[at : at + 1] = [value]
        lengths.append(len(ends))
    return lengths
