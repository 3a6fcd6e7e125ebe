"""Force failovers over many seeds: `make soak` does it, and goes on where it was stopped.

    python scripts/soak_failovers.py [--failovers 100] [--workers 2] [--minutes 30] [--fresh]

A seed is FAILOVERS_A_SEED failovers of a 2 s lease on virtual time, with pauses, clocks that differ and lost requests
(tests/kits/failovers.py). What each seed found is kept in build/failover-soak.json, under a digest of the source, so
that a changed source begins anew. Ends with 1 where two controllers acted at once, by the audit log of the server, and
with 3 when the minutes are over before the failovers are: run it again.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import structlog  # the checkout first, not an installed copy

from scripts.soak_hostile import ROOT, digest, read_record
from tests.kits.failovers import run

FAILOVERS_A_SEED = 10
SOURCES = ("autopilot/service/leading", "autopilot/readiness/fence.py", "apiserver", "tests/kits/failovers.py")


def run_seed(number: int) -> dict[str, Any]:
    """What one seed found, with its seconds."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    begun_s = time.monotonic()
    return {**asdict(run(number, FAILOVERS_A_SEED)), "seconds": round(time.monotonic() - begun_s, 1)}


def main() -> None:
    """Run the seeds that are missing, until the minutes are over; print the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--failovers", type=int, default=100, help="failovers in all (default 100)")
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--minutes", type=float, default=30.0, help="no seed begins after this long (default 30)")
    parser.add_argument("--fresh", action="store_true", help="forget earlier seeds")
    asked = parser.parse_args()
    source, record = digest(SOURCES), ROOT / "build" / "failover-soak.json"
    found = read_record(record, source, fresh=asked.fresh)
    seeds = -(-asked.failovers // FAILOVERS_A_SEED)
    todo = [number for number in range(seeds) if str(number) not in found]
    ends_s = time.monotonic() + 60.0 * asked.minutes
    record.parent.mkdir(exist_ok=True)
    with ProcessPoolExecutor(asked.workers) as pool:
        running: dict[Future[dict[str, Any]], int] = {}
        while running or (todo and time.monotonic() < ends_s):
            while todo and len(running) < asked.workers and time.monotonic() < ends_s:
                number = todo.pop(0)
                running[pool.submit(run_seed, number)] = number
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                number = running.pop(future)
                found[str(number)] = result = future.result()
                record.write_text(json.dumps({"source": source, "seeds": found}, indent=1), "utf-8")
                print(f"seed {number}: {result['failovers']} failovers, {result['seconds']} s, {result['violation']}")
    sys.exit(summary(found, seeds))


def summary(found: dict[str, dict[str, Any]], seeds: int) -> int:
    """Print what all seeds found; the exit status."""
    bad = {number: each["violation"] for number, each in found.items() if each["violation"]}
    total = {name: sum(each[name] for each in found.values()) for name in ("failovers", "writes", "refused")}
    longest_s = max((each["longest_s"] for each in found.values()), default=0.0)
    print(
        f"{total['failovers']} failovers, {total['writes']} writes, {total['refused']} late writes refused; the "
        f"longest took {longest_s:.1f} s; {len(bad)} seeds with a violation"
    )
    for number, violation in bad.items():
        print(f"  seed {number}: {violation}")
    if bad:
        return 1
    if len(found) < seeds:
        print("the time is over before the failovers are: run the same command again to go on")
        return 3
    return 0


if __name__ == "__main__":
    main()
