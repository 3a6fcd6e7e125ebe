"""Run the hostile API world over many seeds: `make soak` does it, and goes on where it was stopped.

    python scripts/soak_api.py [--steps 10000] [--workers 2] [--minutes 30] [--seed N] [--fresh]

A seed is STEPS_A_SEED steps of tests/hostile/api_machine.py, and the quiet time after them.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.soaking import Found, Soak, parser, soak  # the checkout first, not an installed copy
from tests.hostile.api_machine import ApiHostile

STEPS_A_SEED = 100
SOURCES = (
    "autopilot/core",
    "autopilot/controller.py",
    "autopilot/service/leading",
    "actuators/kubernetes",
    "collectors/kubernetes",
    "collectors/kueue",
    "apiserver",
    "tests/hostile",
    "tests/kits/killing.py",
    "tests/kits/kueue_kit.py",
)


def run_seed(number: int) -> Found:
    """STEPS_A_SEED steps: writes of the controller by kind, leaders, and the first violation."""
    world, violation = ApiHostile(number), ""
    try:
        world.run(STEPS_A_SEED)
    except Exception as error:  # noqa: BLE001 - every kind of failure is a finding
        violation = f"{type(error).__name__}: {error}"
    counts = world.watch.counts
    return {
        "steps": world.steps,
        "writes": counts.total(),
        "stops": counts["stops"],
        "leaders": world.fence,
        "violation": violation,
    }


def summary(kept: dict[str, Found]) -> str:
    """Figures of all seeds."""
    total = {name: sum(each[name] for each in kept.values()) for name in ("steps", "writes", "stops", "leaders")}
    return ", ".join(f"{number} {name}" for name, number in total.items())


def main() -> int:
    """The exit status."""
    options = parser(__doc__ or "")
    options.add_argument("--steps", type=int, default=10_000, help="steps in all (default 10000)")
    asked = options.parse_args()
    seeds = -(-asked.steps // STEPS_A_SEED)
    return soak(Soak("api-soak", SOURCES, seeds, run_seed, lambda found: f"{found['steps']} steps", summary), asked)


if __name__ == "__main__":
    sys.exit(main())
