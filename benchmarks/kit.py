"""Shared by the benchmarks: options, measured rows that survive an interruption, tables, goals and JSON files."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from autopilot.app.runs.simulate import SimulationOutcome

R = TypeVar("R", bound="DataclassInstance")
T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent
OUT = Path(__file__).resolve().parent / "out"
"""Folder of the JSON files; not kept in the repository."""
MISSED = "MISSED"
FIGURE = ("figure", "measured")
"""Heading of a table with a figure a line."""


def data_folder() -> Path:
    """The folder of real traces: AUTOPILOT_SHARED_DATA, else `../shared/data` beside the checkout."""
    return Path(os.environ.get("AUTOPILOT_SHARED_DATA", ROOT.parent / "shared" / "data"))


def options(description: str | None, arguments: Sequence[str] | None, **more: Any) -> argparse.Namespace:
    """Parse `--quick`, `--json` and the options in `more` (`rounds=5` makes `--rounds`, of the default's type;
    a list takes the paths without a name).
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less of the same, to see that it works")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    for name, default in more.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, list):
            parser.add_argument(name, nargs="*", type=Path, default=default)
        else:
            parser.add_argument(flag, type=type(default), default=default)
    return parser.parse_args(arguments)


def measured(
    calls: Mapping[str, T], measure: Callable[[T], R], kind: type[R], workers: int = 1, keep: str = ""
) -> list[R]:
    """The row of each call, in the order of `calls`, which are named by label. Each runs in a process of its own.

    With `keep`, a file of JSON lines, a row is written as soon as it is measured, and is not measured again.
    """
    found: dict[str, R] = {}
    if keep and Path(keep).exists():
        for line in Path(keep).read_text(encoding="utf-8").splitlines():
            label, row = json.loads(line)
            found[label] = kind(**row)
    left, began_s = {label: call for label, call in calls.items() if label not in found}, time.perf_counter()
    with ProcessPoolExecutor(workers) as pool:
        running = {pool.submit(measure, call): label for label, call in left.items()}
        for done, future in enumerate(as_completed(running), 1):
            label, took_s = running[future], time.perf_counter() - began_s
            found[label] = future.result()
            print(f"  {done}/{len(left)} after {took_s:.0f} s: {label}", file=sys.stderr, flush=True)
            if keep:
                with Path(keep).open("a", encoding="utf-8") as file:
                    file.write(json.dumps([label, asdict(found[label])]) + "\n")
    return [found[label] for label in calls]


def tell_violations(what: str, outcome: SimulationOutcome) -> None:
    """Print violations at once, so that a run of an hour need not be repeated to learn them."""
    for policy in outcome.policies:
        for each in policy.simulated.found.violations[:5]:
            told = f"{what}: violated {each.checker} at {each.at_s:.0f} s: {each.object}: {each.message}"
            print(f"  {told}", file=sys.stderr, flush=True)


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns: the first left-aligned, the others right-aligned."""
    widths = [max(len(line[place]) for line in (heading, *rows)) for place in range(len(heading))]
    for first, *others in (heading, *rows):
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        print("  ".join([first.ljust(widths[0]), *cells]).rstrip())


def judged(value: float, bar: float, *, least: bool = False, digits: int = 2) -> str:
    """A figure beside its bar, by default the most that it may be: `0.85 <= 0.90`, or `0.92 > 0.90 MISSED`."""
    kept = value >= bar if least else value <= bar
    sign = (">=" if least else "<=") if kept else ("<" if least else ">")
    return f"{value:,.{digits}f} {sign} {bar:,.{digits}f}{'' if kept else f' {MISSED}'}"


def ended(
    given: argparse.Namespace,
    heading: Sequence[str],
    lines: Sequence[Sequence[str]],
    figures: Mapping[str, Any],
    *,
    sound: bool = True,
) -> int:
    """Print the table and write the figures; the exit code is 1 where a cell missed its goal, or the run is unsound."""
    table(heading, lines)
    write_json(given.json, figures)
    return int(not sound or any(MISSED in cell for line in lines for cell in line))


def write_json(path: Path | None, figures: Mapping[str, Any]) -> None:
    """Write the figures atomically; nothing without a path."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    part.replace(path)
