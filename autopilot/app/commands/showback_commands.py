"""The work of `showback`: sum, price, print and write."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from autopilot.app.commands.run_commands import out, print_rows
from autopilot.app.when import When, parse_moment_s
from autopilot.core.model.errors import InputError, nearest, shown
from autopilot.core.model.units import format_duration, format_ratio
from autopilot.metering.amounts import TICKS_PER_S, to_ticks
from autopilot.metering.calendar import Calendar, zone_of
from autopilot.metering.corrections import corrected
from autopilot.metering.focus import OLDER, VERSION, as_1_0, focus_rows
from autopilot.metering.focus_rules import check_focus
from autopilot.metering.prices import Prices, load_prices
from autopilot.metering.segments import Store, open_store
from autopilot.metering.showback import LABEL, Asked, Bill, Showback, check_by, showback
from autopilot.metering.spend import LEAST_WEEKS, MonthForecast, month_forecasts
from simulator.traces.table_files import number_column, read_exact, without_formulas, write_table

if TYPE_CHECKING:
    import pandas as pd

FORMATS = ("table", "csv", "parquet", "focus")
ENDINGS = {"csv": (".csv",), "parquet": (".parquet", ".pq"), "focus": (".csv", ".parquet", ".pq")}
DATED = "%Y-%m-%d %H:%M:%S"


@dataclass(frozen=True, slots=True)
class Words:
    """The options of the command, as written."""

    since: str | None = None
    until: str | None = None
    by: str | None = None
    form: str | None = None
    focus: str | None = None
    zone: str | None = None
    prices: Path | None = None
    target: Path | None = None
    corrects: tuple[Path, ...] = ()
    forecast: bool = False

    @property
    def shown(self) -> str:
        """The format: as written, else by the ending of the file."""
        if self.form is not None or self.focus is not None:
            return self.form or "focus"
        ending = self.target.suffix.lower() if self.target is not None else ""
        return next((form for form in ("csv", "parquet") if ending in ENDINGS[form]), "table")

    def check(self) -> None:
        """Raise `InputError` for unknown words, and for words in contradiction."""
        form = self.shown
        for flag, value, allowed in (("--format", form, FORMATS), ("--focus", self.focus or VERSION, (VERSION, OLDER))):
            if value not in allowed:
                near = nearest(value, allowed)
                raise InputError(f"{flag}: {value!r} is not one of {', '.join(allowed)}{near and '; ' + near}")
        check_by(self.by or "tenant")
        for wrong, words in (
            (self.focus and form != "focus", f"--focus, --format: FOCUS rows are not written as {form}; leave out one"),
            (form == "focus" and self.by, "--by: FOCUS rows have every group as a column; leave out --by, or --format"),
            (self.corrects and form != "focus", "--corrects: corrections are FOCUS rows; add --format focus"),
            (self.corrects and self.focus == OLDER, "--corrects: corrections are of FOCUS 1.2; leave out --focus"),
            (
                self.forecast and (self.since or self.until or self.by or form == "focus"),
                "--forecast: it is of the present month by tenant; leave out --since, --until, --by and FOCUS",
            ),
            (
                form == "parquet" and self.target is None,
                "--out: a Parquet file needs a name, for example --out showback.parquet",
            ),
            (
                self.target is not None and self.target.suffix.lower() not in ENDINGS.get(form, (".csv", ".parquet")),
                f"--out: {self.target} is no file of the format {form}; "
                f"name one that ends in {' or '.join(ENDINGS.get(form, ('.csv', '.parquet')))}",
            ),
            (form == "table" and self.target is not None, "--out: a table is printed; add --format csv or parquet"),
        ):
            if wrong:
                raise InputError(words)


def run_showback(folder: Path, words: Words) -> None:
    """Show use and cost by group. Exit code 1 if the rows do not add up to capacity x time."""
    words.check()
    prices = load_prices(words.prices)
    store = open_store(folder)
    if words.zone is not None and store.start_s is None:
        raise InputError("--zone: this run has no dates, so its days are those of no zone; leave out --zone")
    calendar = Calendar(store.start_s, zone_of(words.zone or prices.zone, "--zone" if words.zone else "zone"))
    if words.forecast:
        _forecast(store, prices, words)
        return
    asked = Asked(store, prices, calendar, *_moments(store, calendar, words))
    answer = showback(asked, words.by or "tenant")
    _check_label(answer)
    end = answer.period.end
    if answer.by == "month" and calendar.ticks(calendar.month_of(end)[0]) != end:
        month = f"{calendar.moment(end):%Y-%m}"
        sys.stderr.write(f"autopilot: {month} is not whole: its rows end at {_moment(calendar, end)} {calendar.name}\n")
    if words.shown == "focus":
        _write_focus(asked, words)
    elif words.shown in ("csv", "parquet"):
        _write(_frame(answer, asked), words.target, words.shown)
    else:
        _print(answer, asked, words.prices is None)
    if not answer.reconciled.good:
        found = answer.reconciled
        sys.stderr.write(
            f"autopilot: the rows do not add up: {found.rows_gpu_h:,.2f} GPU-h of {found.capacity_gpu_h:,.2f} GPU-h of "
            "capacity x time; a segment was changed or removed, or metering has a defect\n"
        )
        sys.exit(1)


def _check_label(answer: Showback) -> None:
    """Say so if no work has the requested label."""
    if not answer.by.startswith(LABEL) or any(not bill.name.startswith("(") for bill in answer.bills):
        return
    key = answer.by.removeprefix(LABEL)
    known = sorted({name for text in answer.charges["labels"].unique() if text for name in json.loads(text)})
    words = f"this period has {', '.join(known)}{nearest(key, known) and '; ' + nearest(key, known)}"
    words = words if known else "none was metered; the setting metering.labels names those to meter from then on"
    sys.stderr.write(f"autopilot: --by: no work of this period has the label {shown(key)}; {words}\n")


def _write_focus(asked: Asked, words: Words) -> None:
    """FOCUS rows, checked, or the corrections to earlier exports."""
    frame = focus_rows(asked)
    if words.corrects:
        frame = corrected(frame, _read_exported(words.corrects, frame))
        if frame.empty:
            out.print("nothing has changed since these exports, and no day follows them: no rows are written")
            return
    problems = check_focus(frame)
    if problems:
        raise InputError(f"--format focus: {'; '.join(problems[:3])}")
    if asked.calendar.start_s is None:
        sys.stderr.write("autopilot: this run has no dates; its FOCUS rows count from 1970-01-01\n")
    _write(as_1_0(frame) if words.focus == OLDER else frame, words.target, f"FOCUS {words.focus or VERSION}")


def _read_exported(paths: Sequence[Path], like: pd.DataFrame) -> pd.DataFrame:
    """The rows of earlier exports, with the column types of `like`. Raises `InputError` for any other file."""
    import pandas as pd

    frames = []
    numbers = [name for name in like.columns if like[name].dtype.kind == "f"]
    for path in paths:
        frame = read_exact(path)
        missing = [name for name in like.columns if name not in frame.columns]
        if missing:
            raise InputError(
                f"{path}: no FOCUS rows of this version: column {missing[0]} is missing; give the file that "
                "`showback --format focus` wrote"
            )
        frame = frame[list(like.columns)]
        frame = frame.astype(object).where(frame.notna() & (frame != ""), None)
        frame = frame.assign(**{name: number_column(frame, name, path) for name in numbers})
        problems = check_focus(frame)
        if problems:
            raise InputError(f"{path}: {problems[0]}; give the file as `showback --format focus` wrote it")
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def _moments(store: Store, calendar: Calendar, words: Words) -> tuple[int | None, int | None]:
    """The asked times in 1/1,024 s of the store."""
    last = store.segments[-1].end if store.segments else 0
    when = When(store.start_s)
    found = [
        None if text is None else to_ticks(parse_moment_s(text, flag, when, last / TICKS_PER_S, calendar.zone))
        for flag, text in (("--since", words.since), ("--until", words.until))
    ]
    if found[0] is not None and found[1] is not None and found[0] >= found[1]:
        raise InputError(f"--since, --until: {words.since} is not before {words.until}")
    if store.segments:
        first = store.segments[0].begin
        has = f"rows begin at {_moment(calendar, first)} and end at {_moment(calendar, last)} {_zone(calendar)}"
        if (found[0] is not None and found[0] >= last) or (found[1] is not None and found[1] <= first):
            raise InputError(f"--since, --until: nothing was metered in this time; {has}")
        if found[1] is not None and found[1] > last:
            sys.stderr.write(f"autopilot: --until {words.until} is after the data: {has}; the rest is missing\n")
    return found[0], found[1]


def _zone(calendar: Calendar) -> str:
    return calendar.name if calendar.start_s is not None else "since the start of the run"


def _moment(calendar: Calendar, at: int) -> str:
    """A time in words: date and time in the zone, else since the start of the run."""
    if calendar.start_s is None:
        return format_duration(at / TICKS_PER_S)
    return f"{calendar.moment(at):{DATED}}"


def _frame(answer: Showback, asked: Asked) -> pd.DataFrame:
    """The bills as a table, without a total, each with its period."""
    import pandas as pd

    calendar, period = asked.calendar, answer.period
    dated = calendar.start_s is not None
    texts = [
        calendar.moment(at).isoformat(timespec="seconds") if dated else _moment(calendar, at)
        for at in (period.begin, period.end)
    ]
    about = {
        "period_start": texts[0],
        "period_end": texts[1],
        "zone": calendar.name if dated else "time since the start of the run",
        "currency": answer.currency,
    }
    rows = [{answer.by: bill.name, **asdict(bill), "charge": bill.charge, **about} for bill in answer.bills]
    numbers = [name for name in Bill.__dataclass_fields__ if name != "name"]
    return pd.DataFrame(rows).drop(columns=["name"]).astype(dict.fromkeys(numbers, float))


def _write(frame: pd.DataFrame, target: Path | None, form: str) -> None:
    """Write a table to a file, or as CSV to standard output; no cell is a formula."""
    if target is not None:
        write_table(frame, target, for_spreadsheets=True)
        out.print(f"{form}: {target}")
        return
    without_formulas(frame).to_csv(sys.stdout, index=False, lineterminator="\n")


def _print(answer: Showback, asked: Asked, example: bool) -> None:
    """The table as text."""
    period, calendar = answer.period, asked.calendar
    out.print(
        f"{_moment(calendar, period.begin)} to {_moment(calendar, period.end)} {_zone(calendar)} "
        f"({format_duration(period.span_s)}), prices in {answer.currency}"
    )
    if example:
        out.print("prices: those of the shipped example; give your own with --prices FILE")
    shared = answer.total.saved_gpu_h > 0.0
    heads = [answer.by, "GPU-h", "active", "idle", "unknown", "unused", "borrowed", "lost", *(["saved"] * shared)]
    heads += [
        "measured",
        "kept",
        "MFU",
        "kWh",
        "kWh by",
        "kg CO2",
        "reservation",
        "burst",
        "premium",
        "charge",
        "list cost",
    ]
    print_rows(heads, [_cells(bill, shared=shared) for bill in (*answer.bills, answer.total)], figures=True)
    for line in _closing(answer):
        out.print(line)


def _cells(bill: Bill, *, shared: bool) -> list[str]:
    free = bill.name.startswith("(") and not bill.allocated_gpu_h
    hours = [bill.active_gpu_h, bill.idle_gpu_h, bill.unknown_gpu_h, bill.unused_gpu_h]
    hours += [bill.borrowed_gpu_h, bill.lost_gpu_h, *([bill.saved_gpu_h] * shared)]
    return [
        bill.name,
        f"{bill.allocated_gpu_h:,.1f}",
        *("-" if free and not value else f"{value:,.1f}" for value in hours),
        format_ratio(bill.measured_ratio),
        format_ratio(bill.kept_ratio),
        format_ratio(bill.mfu_ratio),
        _or_dash(bill.energy_kwh),
        _source_of_energy(bill),
        _or_dash(bill.carbon_kg),
        *("-" if free and not value else f"{value:,.2f}" for value in (bill.reservation, bill.burst, bill.premium)),
        "-" if free and not bill.charge else f"{bill.charge:,.2f}",
        f"{bill.list_cost:,.2f}",
    ]


def _or_dash(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _source_of_energy(bill: Bill) -> str:
    """The source of the energy figure: the energy counter, the mean power, or the part of the time by the counter."""
    known = bill.counted_energy_gpu_h + bill.averaged_energy_gpu_h
    if not known:
        return "-"
    if not bill.counted_energy_gpu_h or not bill.averaged_energy_gpu_h:
        return "counter" if bill.counted_energy_gpu_h else "power"
    return f"counter {bill.counted_energy_gpu_h / known:.0%}"


def _closing(answer: Showback) -> Sequence[str]:
    """The basis of the figures, and the missing parts."""
    found, total = answer.reconciled, answer.total
    lines = [
        f"capacity x time {found.capacity_gpu_h:,.1f} GPU-h, rows {found.rows_gpu_h:,.1f} GPU-h "
        f"(difference {found.difference_ratio:.3%}); cost of the capacity {answer.capacity_cost:,.2f}, "
        f"charged {total.charge:,.2f}"
    ]
    if found.missing_s:
        lines.append(f"not in this table: {format_duration(found.missing_s)} for which there is no segment")
    if total.energy_kwh is not None:
        lines.append(
            f"energy: {total.counted_energy_gpu_h:,.1f} GPU-h by the energy counter, "
            f"{total.averaged_energy_gpu_h:,.1f} GPU-h by mean power x time; with the PUE of the site"
        )
    if total.unknown_energy_gpu_h > 0.05:
        lines.append(f"energy is not known for {total.unknown_energy_gpu_h:,.1f} GPU-h; kWh and CO2 are of the rest")
    return lines


def _forecast(store: Store, prices: Prices, words: Words) -> None:
    """The present month of each tenant against its budget."""
    if store.start_s is None:
        raise InputError("--forecast: this run has no dates, so it has no months; meter one with a date")
    if words.zone is not None and words.zone != prices.zone:
        raise InputError("--forecast: budgets are of months in the zone of the price file; leave out --zone")
    found = month_forecasts(store, prices)
    if not found:
        raise InputError(f"{store.folder}: no interval is written yet; ask again later, or after the run has ended")
    end = Calendar(store.start_s, zone_of(prices.zone, "zone")).moment(store.segments[-1].end)
    if words.shown != "table":
        _write(_forecast_frame(found, end, prices.zone), words.target, words.shown)
        return
    out.print(f"{found[0].month} up to {end:{DATED}} {prices.zone}, charges in {prices.currency}")
    rows = [
        [
            each.tenant or "all",
            f"{each.so_far:,.2f}",
            _or_dash(each.middle, 2),
            "-" if each.low is None else f"{each.low:,.2f} to {each.high:,.2f}",
            _or_dash(each.budget, 2),
            format_ratio(each.ratio),
        ]
        for each in found
    ]
    print_rows(["tenant", "so far", "forecast", "8 of 10 months", "budget", "of the budget"], rows, figures=True)
    if any(each.middle is None for each in found):
        out.print(f"no forecast: it needs {LEAST_WEEKS} observed days of each weekday among the 8 weeks before")


def _forecast_frame(found: Sequence[MonthForecast], end: datetime, zone: str) -> pd.DataFrame:
    import pandas as pd

    about = {"period_end": end.isoformat(timespec="seconds"), "zone": zone}
    rows = [{**asdict(each), "tenant": each.tenant or "all", "budget_ratio": each.ratio, **about} for each in found]
    return pd.DataFrame(rows).astype(dict.fromkeys(("low", "middle", "high", "budget", "budget_ratio"), float))
