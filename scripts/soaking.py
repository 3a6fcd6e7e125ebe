"""What the soaks share: seeds in processes, a record that is resumed, a limit of minutes, a summary.

A soak runs seeds from 0 on. What each seed found is kept in build/NAME.json, under a digest of the source that it
depends on, so that a changed source begins anew. The exit status is 1 after a violation, and 3 where the minutes are
over before the seeds are: run the same command again to go on.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import structlog

ROOT = Path(__file__).resolve().parent.parent
Found = dict[str, Any]
"""What one seed found: its figures, `seconds`, and `violation`, "" where there is none."""


@dataclass(frozen=True)
class Soak:
    """One soak. `run` is called with the number of a seed, in another process; `words` shows what it found."""

    name: str  # of its record
    sources: Sequence[str]  # files and folders that a seed depends on
    seeds: int
    run: Callable[[int], Found]
    words: Callable[[Found], str]
    summary: Callable[[dict[str, Found]], str]


def parser(words: str) -> argparse.ArgumentParser:
    """A parser with the options of every soak."""
    found = argparse.ArgumentParser(description=words, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    found.add_argument("--minutes", type=float, default=30.0, help="no seed begins after this long (default 30)")
    found.add_argument("--fresh", action="store_true", help="forget earlier seeds")
    found.add_argument("--seed", type=int, default=None, help="run this seed alone, in this process, and print it")
    return found


def soak(given: Soak, asked: argparse.Namespace) -> int:
    """Run the seeds that are missing, until the minutes are over; print the summary. The exit status."""
    if asked.seed is not None:
        found = timed(given.run, asked.seed)
        print(f"seed {asked.seed}: {given.words(found)}, {found['seconds']} s")
        return _violations({str(asked.seed): found})
    source, record = digest(given.sources), ROOT / "build" / f"{given.name}.json"
    kept = read_record(record, source, fresh=asked.fresh)
    todo = [number for number in range(given.seeds) if str(number) not in kept]
    ends_s = time.monotonic() + 60.0 * asked.minutes
    record.parent.mkdir(exist_ok=True)
    with ProcessPoolExecutor(asked.workers) as pool:
        running: dict[Future[Found], int] = {}
        while running or (todo and time.monotonic() < ends_s):
            while todo and len(running) < asked.workers and time.monotonic() < ends_s:
                number = todo.pop(0)
                running[pool.submit(timed, given.run, number)] = number
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                number = running.pop(future)
                kept[str(number)] = found = future.result()
                record.write_text(json.dumps({"source": source, "seeds": kept}, indent=1), "utf-8")
                bad = f", {found['violation']}" if found["violation"] else ""
                print(f"seed {number}: {given.words(found)}, {found['seconds']} s{bad}", flush=True)
    print(f"{len(kept)} of {given.seeds} seeds: {given.summary(kept)}")
    if status := _violations(kept):
        return status
    if len(kept) < given.seeds:
        print("the time is over before the seeds are: run the same command again to go on")
        return 3
    return 0


def _violations(kept: dict[str, Found]) -> int:
    """Print them; 1 where there are any."""
    bad = {number: found["violation"] for number, found in kept.items() if found["violation"]}
    print(f"{len(bad)} seeds with a violation")
    for number, violation in bad.items():
        print(f"  seed {number}: {violation}")
    return 1 if bad else 0


def timed(run: Callable[[int], Found], number: int) -> Found:
    """What one seed found, with its seconds; its log lines are left out."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.disable(logging.CRITICAL)
    begun_s = time.monotonic()
    found = run(number)
    sys.stdout.flush()
    return {**found, "seconds": round(time.monotonic() - begun_s, 1)}


def digest(sources: Sequence[str]) -> str:
    """Of all source that a run depends on."""
    made = blake2b(digest_size=8)
    for name in sources:
        path = ROOT / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            made.update(file.read_bytes())
    return made.hexdigest()


def read_record(record: Path, source: str, *, fresh: bool) -> dict[str, Found]:
    """Seeds that were run on this very source."""
    if fresh or not record.exists():
        return {}
    kept = json.loads(record.read_text("utf-8"))
    return dict(kept["seeds"]) if kept["source"] == source else {}
