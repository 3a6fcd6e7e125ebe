"""What `showback` does: sum, price, print and write."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from autopilot.app.commands.run_commands import out, print_rows
from autopilot.app.when import When, parse_moment_s
from autopilot.core.model.errors import InputError, nearest
from autopilot.core.model.units import format_duration, format_ratio
from autopilot.metering.amounts import TICKS_PER_S, to_ticks
from autopilot.metering.focus import check_focus, focus_rows
from autopilot.metering.prices import load_prices
from autopilot.metering.segments import Store, open_store
from autopilot.metering.showback import BY, Bill, Showback, lines_of, showback
from simulator.traces.table_files import without_formulas, write_table

if TYPE_CHECKING:
    import pandas as pd

FORMATS = ("table", "csv", "parquet", "focus")
DAY = 86_400 * TICKS_PER_S


def run_showback(
    folder: Path,
    since: str | None,
    until: str | None,
    by: str,
    form: str,
    prices_file: Path | None,
    target: Path | None,
) -> None:
    """Show who used what and what it costs. Exit code 1 where the rows do not add up to capacity x time."""
    check_words(by, form, target)
    prices = load_prices(prices_file)
    store = open_store(folder)
    begin, end = _moments(store, since, until)
    answer = showback(store, prices, by, begin, end)
    if form == "focus":
        frame = focus_rows(lines_of(store, begin, end, DAY), prices, store.start_s or 0.0, answer.period)
        problems = check_focus(frame)
        if problems:
            raise InputError(f"--format focus: {'; '.join(problems[:3])}")
        _write(frame, target, "focus")
    elif form in ("csv", "parquet"):
        _write(_frame(answer), target, form)
    else:
        _print(answer, store, prices_file is None)
    if not answer.reconciled.good:
        found = answer.reconciled
        sys.stderr.write(
            f"autopilot: the rows do not add up: {found.rows_gpu_h:,.2f} GPU-h of {found.capacity_gpu_h:,.2f} GPU-h of "
            "capacity x time; a segment was changed or removed, or metering has a defect\n"
        )
        sys.exit(1)


def check_words(by: str, form: str, target: Path | None) -> None:
    """Raise `InputError` for words that the command does not know."""
    for flag, value, allowed in (("--by", by, tuple(BY)), ("--format", form, FORMATS)):
        if value not in allowed:
            near = nearest(value, allowed)
            raise InputError(f"{flag}: {value!r} is not one of {', '.join(allowed)}{near and '; ' + near}")
    if form == "parquet" and target is None:
        raise InputError("--out: a Parquet file needs a name, for example --out showback.parquet")


def _moments(store: Store, since: str | None, until: str | None) -> tuple[int | None, int | None]:
    """The asked times in 1/1,024 s of the store."""
    last = store.segments[-1].end if store.segments else 0
    when = When(store.start_s)
    found = [
        None if text is None else to_ticks(parse_moment_s(text, flag, when, last / TICKS_PER_S))
        for flag, text in (("--since", since), ("--until", until))
    ]
    if found[0] is not None and found[1] is not None and found[0] >= found[1]:
        raise InputError(f"--since, --until: {since} is not before {until}")
    return found[0], found[1]


def _frame(answer: Showback) -> pd.DataFrame:
    """The bills as a table, the total last."""
    import pandas as pd

    rows = [{answer.by: bill.name, **asdict(bill), "charge": bill.charge} for bill in (*answer.bills, answer.total)]
    frame = pd.DataFrame(rows).drop(columns=["name"])
    frame["currency"] = answer.currency
    return frame


def _write(frame: pd.DataFrame, target: Path | None, form: str) -> None:
    """Write a table to a file, or as CSV to standard output; no cell is a formula."""
    if target is not None:
        write_table(frame, target, for_spreadsheets=True)
        out.print(f"{form}: {target}")
        return
    without_formulas(frame).to_csv(sys.stdout, index=False, lineterminator="\n")


def _print(answer: Showback, store: Store, example: bool) -> None:
    """The table as text."""
    period, when = answer.period, When(store.start_s)
    begin_s, end_s = period.begin / TICKS_PER_S, period.end / TICKS_PER_S
    out.print(
        f"{when.words(begin_s)} to {when.words(end_s)} ({format_duration(period.span_s)}), prices in {answer.currency}"
    )
    if example:
        out.print("prices: those of the shipped example; give your own with --prices FILE")
    heads = [answer.by, "GPU-h", "active", "idle", "unknown", "borrowed", "lost"]
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
    print_rows(heads, [_cells(bill) for bill in (*answer.bills, answer.total)], figures=True)
    for line in _closing(answer):
        out.print(line)


def _cells(bill: Bill) -> list[str]:
    free = bill.name.startswith("(") and not bill.allocated_gpu_h
    hours = [bill.active_gpu_h, bill.idle_gpu_h, bill.unknown_gpu_h, bill.borrowed_gpu_h, bill.lost_gpu_h]
    return [
        bill.name,
        f"{bill.allocated_gpu_h:,.1f}",
        *("-" if free and at != 1 else f"{value:,.1f}" for at, value in enumerate(hours)),
        format_ratio(bill.measured_ratio),
        format_ratio(bill.kept_ratio),
        format_ratio(bill.mfu_ratio),
        f"{bill.energy_kwh:,.1f}",
        _source_of_energy(bill),
        f"{bill.carbon_kg:,.1f}",
        *("-" if free and not value else f"{value:,.2f}" for value in (bill.reservation, bill.burst, bill.premium)),
        "-" if free and not bill.charge else f"{bill.charge:,.2f}",
        f"{bill.list_cost:,.2f}",
    ]


def _source_of_energy(bill: Bill) -> str:
    """By what the energy is known: the energy counter, the mean power, or the part of the time by the counter."""
    known = bill.counted_energy_gpu_h + bill.averaged_energy_gpu_h
    if not known:
        return "-"
    if not bill.counted_energy_gpu_h or not bill.averaged_energy_gpu_h:
        return "counter" if bill.counted_energy_gpu_h else "power"
    return f"counter {bill.counted_energy_gpu_h / known:.0%}"


def _closing(answer: Showback) -> Sequence[str]:
    """What the figures rest on, and what is missing."""
    found, total = answer.reconciled, answer.total
    lines = [
        f"capacity x time {found.capacity_gpu_h:,.1f} GPU-h, rows {found.rows_gpu_h:,.1f} GPU-h "
        f"(difference {found.difference_ratio:.3%}); cost of the capacity {answer.capacity_cost:,.2f}, "
        f"charged {total.charge:,.2f}"
    ]
    if found.missing_s:
        lines.append(f"not in this table: {format_duration(found.missing_s)} for which there is no segment")
    if total.counted_energy_gpu_h + total.averaged_energy_gpu_h > 0:
        lines.append(
            f"energy: {total.counted_energy_gpu_h:,.1f} GPU-h by the energy counter, "
            f"{total.averaged_energy_gpu_h:,.1f} GPU-h by mean power x time"
        )
    if total.unknown_energy_gpu_h > 0:
        lines.append(f"energy is not known for {total.unknown_energy_gpu_h:,.1f} GPU-h; kWh and CO2 are of the rest")
    return lines
