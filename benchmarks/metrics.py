"""The controller's own metrics at 4,000 GPUs, 300 tenants and 30 services: series, and the time of a scrape.

The cluster of `python -m benchmarks tick` with eight pools, services with forecasts, a mix of expected work and more
recommendations than have series. The samples of a tick are computed once, beside the loop; a scrape writes them as
text. The goal is a scrape within 100 ms and fewer than 5,000 series.

    python -m benchmarks metrics [--quick] [--rounds 7] [--json OUT]
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from autopilot.core.decision.reconciler import reconcile
from autopilot.core.intake.assemble import assemble
from autopilot.core.intake.signals import measure
from autopilot.core.model.forecast import ExpectedMix, Forecast, Forecasts, MixKind
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.records import Observation
from autopilot.core.model.snapshot import ServiceTable, make
from autopilot.core.placement.whatif import WhatIf
from autopilot.metrics.exposition import Exposition
from autopilot.metrics.table import MOST_SERIES, STAGES
from autopilot.settings import shipped_policy
from benchmarks.kit import FIGURE, ended, judged, options
from benchmarks.tick import NOW_S, build_fleet

NODES, GANGS, TENANTS, SERVICES, POOLS = 500, 400, 300, 30, 8
GOAL_MS = 100.0


def large_observation(seed: int = 1) -> Observation:
    """What a tick of the large cluster observes."""
    fleet = build_fleet(NODES, GANGS, TENANTS, seed, distinct=False)
    names = replace(fleet.inventory.names, pools=tuple(f"pool-{number}" for number in range(POOLS)))
    nodes = replace(fleet.inventory.nodes, pool=(np.arange(NODES) % POOLS).astype(np.int32))
    fleet.inventory = replace(fleet.inventory, names=names, nodes=nodes)
    snapshot, gaps = assemble(fleet.batches(NOW_S), NOW_S)
    services = [f"service-{number:02d}" for number in range(SERVICES)]
    ones = np.ones(SERVICES)
    columns = {
        "p99_s": ones,
        "objective_s": 2.0 * ones,
        "recent_rps": 5.0 * ones,
        "recent_violation_ratio": 0.01 * ones,
        "replicas": ones,
        "ready_replicas": ones,
        "needed_replicas": ones,
    }
    snapshot = replace(snapshot, services=make(ServiceTable, id=services, uid=services, **columns))
    shape = (SERVICES, 3, 3)
    demand = Forecast(
        "demand",
        NOW_S,
        tuple(services),
        (120.0, 300.0, 900.0),
        (0.5, 0.9, 0.99),
        np.ones(shape),
        coverage=np.ones(shape),
        outcomes=np.full(shape[:2], 100, np.int32),
        drifting=np.zeros(SERVICES, np.bool_),
    )
    kinds = tuple(MixKind((), gpus, min(gpus, 8)) for gpus in (1, 2, 4, 8, 16, 32))
    mix = ExpectedMix("mix", NOW_S, kinds, (3600.0,), (0.5,), np.full((6, 1), 9.0), np.full((6, 1, 1), 9.0))
    signals = measure(snapshot, WhatIf(snapshot))
    return Observation(1, NOW_S, snapshot, signals, Forecasts(demand=(demand,), mix=mix), gaps=gaps)


def large_step(observation: Observation) -> Step:
    """The decision on it under the policy `recommend`: every start is a recommendation."""
    return reconcile(replace(ControllerMemory(), fence=1), observation, shipped_policy("recommend"))


def series_of(text: bytes) -> int:
    """Series in the text of a scrape."""
    return sum(not line.startswith(b"#") for line in text.splitlines())


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 where a figure misses its goal."""
    given = options(__doc__, arguments, rounds=7)
    observation = large_observation()
    step = large_step(observation)
    policy = shipped_policy("recommend")
    samples_ms: list[float] = []
    scrape_ms: list[float] = []
    text = b""
    for _ in range(2 if given.quick else given.rounds):
        exposition = Exposition(None, "benchmark")
        exposition.tick(observation, step.decision, step.memory, policy, dict.fromkeys(STAGES, 0.1))
        began_s = time.perf_counter()
        exposition.prepare()
        prepared_s = time.perf_counter()
        text = exposition.render(NOW_S + 1.0)
        samples_ms.append(1000.0 * (prepared_s - began_s))
        scrape_ms.append(1000.0 * (time.perf_counter() - prepared_s))
    figures = {
        "series": series_of(text),
        "samples_ms": median(samples_ms),
        "scrape_ms": median(scrape_ms),
        "bytes": len(text),
    }
    rows = [
        ("series", judged(figures["series"], MOST_SERIES - 1, digits=0)),
        ("a scrape, ms", judged(figures["scrape_ms"], GOAL_MS, digits=0)),
        ("samples of a tick, ms", f"{figures['samples_ms']:.0f}"),
        ("size of the text, kB", f"{figures['bytes'] / 1000:.0f}"),
    ]
    return ended(given, FIGURE, rows, figures)


if __name__ == "__main__":
    raise SystemExit(main())
