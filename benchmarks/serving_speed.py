"""The speed of simulating services: seconds per day of requests at 1,000 requests/s, on one core.

Usage: python -m benchmarks.serving_speed [--hours 24] [--seed 1] [--quick] [--json OUT]

Each row is one service under synthetic requests (their generation is part of the time), with windows of 60 s. The
replicas are sized for a mean load; the last row has too few, so its queue grows, which is the slowest case.
`us_per_request` is the CPU time of all of it, and `day s` that of 86.4 million requests; the goal is a day at 1,000
requests/s within 60 s on one core.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.kit import ended, judged, options
from simulator.inference.requests import Arrivals
from simulator.inference.serving import ServiceSim, serving_totals
from simulator.inference.serving_records import ServiceSpec
from simulator.inference.synthetic_requests import SHAPES, ServiceLoad, SyntheticArrivals

# name, trace shape, slots per replica, decode tokens/s of a slot, busy share of the slots
CASES = (
    ("small model", "m-small", 32, 50.0, 0.5),
    ("long answers", "azure", 32, 50.0, 0.5),
    ("close to full", "azure", 32, 50.0, 0.75),
    ("too few replicas", "azure", 32, 50.0, 1.05),
)
RATE_RPS = 1000.0
GOAL_S = 60.0


class Timed:
    """Passes requests on and measures the CPU time of generating them."""

    def __init__(self, inner: SyntheticArrivals) -> None:
        self.inner, self.drawn_s = inner, 0.0

    def upto(self, to_s: float) -> Arrivals:
        """As the inner source."""
        started = time.process_time()
        arrivals = self.inner.upto(to_s)
        self.drawn_s += time.process_time() - started
        return arrivals


def measure(case: tuple[str, str, int, float, float], hours: float, seed: int) -> dict[str, Any]:
    """One case, start to end."""
    name, shape_name, slots, decode, load = case
    spec = ServiceSpec(
        name=name, slots=slots, prefill_tokens_per_s=20_000.0, decode_tokens_per_s=decode, objective_s=30.0
    )
    horizon_s, shape = hours * 3600.0, SHAPES[shape_name]
    service_load = ServiceLoad(name=name, mean_rps=RATE_RPS, shape=shape)
    sample = SyntheticArrivals(np.random.default_rng(seed), service_load, 600.0).upto(600.0)
    mean_s = float(spec.service_s(sample.input_tokens, sample.output_tokens).mean())
    replicas = math.ceil(RATE_RPS * mean_s / load / slots)
    source = Timed(SyntheticArrivals(np.random.default_rng(seed), service_load, horizon_s))
    sim = ServiceSim(spec, source, replicas=replicas)
    started, cpu_started = time.perf_counter(), time.process_time()
    sim.advance(horizon_s)
    wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
    return {
        "case": name,
        "replicas": replicas,
        "slots": replicas * slots,
        "requests": sim.arrived,
        "queue_at_end": sim.queue_depth,
        "p99_latency_s": serving_totals([sim]).p99_latency_s,
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "drawing_cpu_s": source.drawn_s,
        "us_per_request": cpu_s / sim.arrived * 1e6,
        "day_at_1000_rps_s": cpu_s / sim.arrived * 86.4e6,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; write JSON on request; 1 when a day takes longer than the goal. `--quick`: one hour."""
    given = options(__doc__, arguments, hours=24.0, seed=1)
    hours = min(given.hours, 1.0) if given.quick else given.hours
    rows = [measure(case, hours, given.seed) for case in CASES]
    lines = [
        (
            str(row["case"]),
            f"{row['slots']}",
            f"{row['requests']:,}",
            *(f"{row[name]:.1f}" for name in ("wall_s", "cpu_s", "drawing_cpu_s")),
            f"{row['us_per_request']:.3f}",
            judged(row["day_at_1000_rps_s"], GOAL_S, digits=1),
        )
        for row in rows
    ]
    heading = ("case", "slots", "requests", "wall s", "CPU s", "drawing s", "us/request", "day s")
    return ended(given, heading, lines, {"rows": rows})


if __name__ == "__main__":
    raise SystemExit(main())
