"""Run the hostile world over many seeds: `make soak` does it, and goes on where it was stopped.

    python scripts/soak_hostile.py [--world cuts] [--runs 10000] [--workers 2] [--minutes 30] [--fresh]

A seed is RUNS_A_SEED runs of 50 steps in tests/hostile. What each seed found is kept in
build/hostile-soak-WORLD.json, under a digest of the source, so that a changed source begins anew. Ends with 1 on a
violation, and with 3 when the minutes are over before the runs are: run it again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from hashlib import blake2b
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hypothesis import HealthCheck, Phase, seed, settings  # the checkout first, not an installed copy
from hypothesis.stateful import run_state_machine_as_test

from tests.hostile.cut_machine import HostileCuts
from tests.hostile.machine import Hostile

ROOT = Path(__file__).resolve().parent.parent
RUNS_A_SEED = 50
STEPS_A_RUN = 50
WORLDS: dict[str, type[Hostile]] = {"plain": Hostile, "cuts": HostileCuts}
SOURCES = ("autopilot/core", "autopilot/controller.py", "autopilot/memory_store.py", "tests/hostile")


def run_seed(number: int, world: str) -> dict[str, Any]:
    """RUNS_A_SEED runs: steps, seconds and the first violation, "" where there is none."""
    begun_s, Hostile.steps = time.monotonic(), 0
    rules = settings(
        max_examples=RUNS_A_SEED,
        stateful_step_count=STEPS_A_RUN,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    violation = ""
    try:
        run_state_machine_as_test(seed(number)(WORLDS[world]), settings=rules)
    except Exception as error:  # noqa: BLE001 - every kind of failure is a finding
        violation = f"{type(error).__name__}: {error}"
    return {"steps": Hostile.steps, "seconds": round(time.monotonic() - begun_s, 1), "violation": violation}


def digest(sources: tuple[str, ...] = SOURCES) -> str:
    """Of all source that a run depends on."""
    made = blake2b(digest_size=8)
    for name in sources:
        path = ROOT / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            made.update(file.read_bytes())
    return made.hexdigest()


def read_record(record: Path, source: str, *, fresh: bool) -> dict[str, dict[str, Any]]:
    """Seeds that were run on this very source."""
    if fresh or not record.exists():
        return {}
    kept = json.loads(record.read_text("utf-8"))
    return dict(kept["seeds"]) if kept["source"] == source else {}


def main() -> None:
    """Run the seeds that are missing, until the minutes are over; print the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", choices=WORLDS, default="plain", help="cuts: with MIG geometry and idle work")
    parser.add_argument("--runs", type=int, default=10_000, help="runs of 50 steps in all (default 10000)")
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--minutes", type=float, default=30.0, help="no seed begins after this long (default 30)")
    parser.add_argument("--fresh", action="store_true", help="forget earlier seeds")
    asked = parser.parse_args()
    source, record = digest(), ROOT / "build" / f"hostile-soak-{asked.world}.json"
    found = read_record(record, source, fresh=asked.fresh)
    seeds = -(-asked.runs // RUNS_A_SEED)
    todo = [number for number in range(seeds) if str(number) not in found]
    ends_s = time.monotonic() + 60.0 * asked.minutes
    record.parent.mkdir(exist_ok=True)
    with ProcessPoolExecutor(asked.workers) as pool:
        running: dict[Future[dict[str, Any]], int] = {}
        while running or (todo and time.monotonic() < ends_s):
            while todo and len(running) < asked.workers and time.monotonic() < ends_s:
                number = todo.pop(0)
                running[pool.submit(run_seed, number, asked.world)] = number
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                number = running.pop(future)
                found[str(number)] = result = future.result()
                record.write_text(json.dumps({"source": source, "seeds": found}, indent=1), "utf-8")
                print(
                    f"seed {number}: {result['steps']} steps, {result['seconds']} s"
                    f"{', ' + result['violation'] if result['violation'] else ''}",
                    flush=True,
                )
    sys.exit(summary(found, seeds))


def summary(found: dict[str, dict[str, Any]], seeds: int) -> int:
    """Print what all seeds found; the exit status."""
    bad = {number: each["violation"] for number, each in found.items() if each["violation"]}
    steps = sum(each["steps"] for each in found.values())
    print(
        f"hostile world: {len(found)} of {seeds} seeds, {len(found) * RUNS_A_SEED} runs, {steps} steps, "
        f"{len(bad)} seeds with a violation"
    )
    for number, violation in bad.items():
        print(f"  seed {number}: {violation}")
    if bad:
        return 1
    if len(found) < seeds:
        print("the time is over before the runs are: run the same command again to go on")
        return 3
    return 0


if __name__ == "__main__":
    main()
