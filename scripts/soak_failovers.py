"""Force failovers over many seeds: `make soak` does it, and goes on where it was stopped.

    python scripts/soak_failovers.py [--failovers 100] [--workers 2] [--minutes 30] [--seed N] [--fresh]

A seed is FAILOVERS_A_SEED failovers of a 2 s lease on virtual time, with pauses, clocks that differ and lost requests
(tests/kits/failovers.py). A violation is two controllers that acted at once, by the audit log of the server.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.soaking import Found, Soak, parser, soak  # the checkout first, not an installed copy
from tests.kits.failovers import run

FAILOVERS_A_SEED = 10
SOURCES = ("autopilot/service/leading", "autopilot/readiness/fence.py", "apiserver", "tests/kits/failovers.py")


def run_seed(number: int) -> Found:
    """What one seed found."""
    return asdict(run(number, FAILOVERS_A_SEED))


def summary(kept: dict[str, Found]) -> str:
    """Figures of all seeds."""
    total = {name: sum(each[name] for each in kept.values()) for name in ("failovers", "writes", "refused")}
    longest_s = max((each["longest_s"] for each in kept.values()), default=0.0)
    return (
        f"{total['failovers']} failovers, {total['writes']} writes, {total['refused']} late writes refused; the "
        f"longest took {longest_s:.1f} s"
    )


def main() -> int:
    """The exit status."""
    options = parser(__doc__ or "")
    options.add_argument("--failovers", type=int, default=100, help="failovers in all (default 100)")
    asked = options.parse_args()
    seeds = -(-asked.failovers // FAILOVERS_A_SEED)
    given = Soak("failover-soak", SOURCES, seeds, run_seed, lambda found: f"{found['failovers']} failovers", summary)
    return soak(given, asked)


if __name__ == "__main__":
    sys.exit(main())
