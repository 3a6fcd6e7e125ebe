"""Shared by the benchmarks: the location of the traces, printed tables, and JSON files."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from autopilot.app.runs.simulate import SimulationOutcome

R = TypeVar("R")
T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent
OUT = Path(__file__).resolve().parent / "out"
"""Folder of the JSON files; not kept in the repository."""

FILES = {"P1": ("vc_6c71a0", "7x8"), "P2": ("vc_b436b2", "10x8")}
"""Tenant and cluster of the two Philly traces that most figures use."""


def data_folder() -> Path:
    """The folder of real traces: AUTOPILOT_SHARED_DATA, else `../shared/data` beside the checkout."""
    return Path(os.environ.get("AUTOPILOT_SHARED_DATA", ROOT.parent / "shared" / "data"))


def philly_jobs() -> Path | None:
    """The job file of P1 and P2; None, and a message, where this machine has none."""
    path = data_folder() / "philly_jobs" / "jobs.parquet"
    if path.exists():
        return path
    print(
        f"SKIPPED: {path} is absent. docs/data-sources.md names the publisher of the Philly jobs; put the imported\n"
        "file there, or name another folder in AUTOPILOT_SHARED_DATA."
    )
    return None


def options(description: str, arguments: Sequence[str] | None, **more: Any) -> argparse.Namespace:
    """Parse `--quick`, `--json` and the options in `more` (`rounds=5` makes `--rounds`, of the default's type)."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less of the same, to see that it works")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    for name, default in more.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(flag, type=type(default), default=default)
    return parser.parse_args(arguments)


def write_json(path: Path | None, figures: dict[str, Any]) -> None:
    """Write the figures atomically."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def kept_rows(path: str, kind: type[R]) -> list[R]:
    """Rows (dataclasses) of an interrupted run, from a file of JSON lines; none where the file does not exist."""
    if not path or not Path(path).exists():
        return []
    return [kind(**json.loads(line)) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def keep_row(path: str, row: DataclassInstance) -> None:
    """Add one measured row to such a file; nothing without a path."""
    if path:
        with Path(path).open("a", encoding="utf-8") as kept:
            kept.write(json.dumps(asdict(row)) + "\n")


def each_of(calls: Mapping[str, T], measure: Callable[[T], R], workers: int) -> Iterator[R]:
    """Yield the result of `measure` for each call as it arrives, in processes, with a line of progress; `calls` by
    label.
    """
    began_s = time.perf_counter()
    with ProcessPoolExecutor(workers) as pool:
        running = {pool.submit(measure, task): words for words, task in calls.items()}
        for done, future in enumerate(as_completed(running), 1):
            print(
                f"  {done}/{len(calls)} after {time.perf_counter() - began_s:.0f} s: {running[future]}",
                file=sys.stderr,
                flush=True,
            )
            yield future.result()


def tell_violations(what: str, outcome: SimulationOutcome) -> None:
    """Print violations at once, so that a run of an hour need not be repeated to learn them."""
    for policy in outcome.policies:
        for each in policy.simulated.found.violations[:5]:
            print(
                f"  {what}: violated {each.checker} at {each.at_s:.0f} s: {each.object}: {each.message}",
                file=sys.stderr,
                flush=True,
            )


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns: the first left-aligned, the others right-aligned."""
    widths = [max(len(line[place]) for line in (heading, *rows)) for place in range(len(heading))]
    for line in (heading, *rows):
        cells = [
            cell.ljust(width) if not place else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def judged(value: float, bar: float, *, least: bool, digits: int = 2) -> str:
    """A figure beside its bar: `0.93 >= 0.90`, or `0.88 < 0.90 MISSED`."""
    kept = value >= bar if least else value <= bar
    sign = (">=" if least else "<=") if kept else ("<" if least else ">")
    return f"{value:.{digits}f} {sign} {bar:.{digits}f}{'' if kept else ' MISSED'}"
