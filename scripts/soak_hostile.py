"""Run a hostile world over many seeds: `make soak` does it, and goes on where it was stopped.

    python scripts/soak_hostile.py [--world cuts] [--runs 10000] [--workers 2] [--minutes 30] [--seed N] [--fresh]

A seed is RUNS_A_SEED runs of 50 steps in tests/hostile.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hypothesis import HealthCheck, Phase, seed, settings  # the checkout first, not an installed copy
from hypothesis.stateful import run_state_machine_as_test

from scripts.soaking import Found, Soak, parser, soak
from tests.hostile.cut_machine import HostileCuts
from tests.hostile.machine import Hostile

RUNS_A_SEED = 50
STEPS_A_RUN = 50
WORLDS: dict[str, type[Hostile]] = {"plain": Hostile, "cuts": HostileCuts}
SOURCES = ("autopilot/core", "autopilot/controller.py", "autopilot/memory_store.py", "tests/hostile")


def run_seed(number: int, world: str) -> Found:
    """RUNS_A_SEED runs: steps, and the first violation, "" where there is none."""
    Hostile.steps = 0
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
    return {"steps": Hostile.steps, "violation": violation}


def summary(kept: dict[str, Found]) -> str:
    """Figures of all seeds."""
    return f"{len(kept) * RUNS_A_SEED} runs, {sum(each['steps'] for each in kept.values())} steps"


def main() -> int:
    """The exit status."""
    options = parser(__doc__ or "")
    options.add_argument("--world", choices=WORLDS, default="plain", help="cuts: with MIG geometry and idle work")
    options.add_argument("--runs", type=int, default=10_000, help="runs of 50 steps in all (default 10000)")
    asked = options.parse_args()
    seeds, run = -(-asked.runs // RUNS_A_SEED), partial(run_seed, world=asked.world)
    given = Soak(f"hostile-soak-{asked.world}", SOURCES, seeds, run, lambda found: f"{found['steps']} steps", summary)
    return soak(given, asked)


if __name__ == "__main__":
    sys.exit(main())
