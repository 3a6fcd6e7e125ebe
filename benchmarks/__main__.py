"""All figures of docs/benchmarks.md: `python -m benchmarks [NAME ...] [--quick]` prints one table each and writes JSON.

Without a name every benchmark runs, in this order. `--quick` runs a smaller version, to check that it works. The JSON
of each benchmark goes to benchmarks/out/NAME.json. The exit code is 1 when a figure misses its goal. One name alone may
be followed by its own arguments: `slurm FOLDER ...`, `approvals --workers 2` (`python -m benchmarks.NAME --help`).
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable, Sequence

from benchmarks.kit import OUT

BENCHMARKS = {
    "parity": "the textbook orders reproduce the published table",
    "sim_speed": "jobs simulated per second (B6)",
    "tick": "CPU of one tick at 100,000 GPUs",
    "tick_cut": "CPU of one tick of 50,000 GPUs with a fifth of them cut and every action on",
    "showback": "a month of metering of 10,000 GPUs: showback, FOCUS, spending; and CPU of the meter",
    "opencost": "OpenCost's allocation model beside metering, on a playground (minutes)",
    "metrics": "the controller's own metrics at 4,000 GPUs: series, and the time of a scrape",
    "alerts": "a thousand alerts in a minute on a running service: lost, doubled, time until the page has them",
    "checkpoint_step": "what the checkpoint helper costs a training step, beside API servers that do not help",
    "kube_latency": "from a pending latency-critical pod to its recommendation, and to the release of its gate",
    "page": "the status page at 4,000 GPUs and 300 tenants in a browser: first paint and bytes",
    "kube_sync": "CPU and memory of list and watch at 20,000 pods on 2,000 nodes",
    "approvals": "approvals of a simulated person: carried out, and their cost against acting at once (long)",
    "field": "signals by way in, and reported situations that come out right (minutes, where they are at hand)",
    "serving_speed": "requests simulated per second",
    "journal_size": "size of the journal of a day",
    "bursts": "burst forecasts against the last value under the same conformal layer, on four traces (long)",
    "forecast_guarantee": "forecasts against their floor on every real series and a zoo of generated ones (long)",
    "victims": "the search for victims against the exact optimum, and its time on 50,000 GPUs",
    "admission": "admission and backfill alone, on P1 and P2 (long)",
    "preemption": "preemption, moves and fill at a price, on seven tenants, and the trade-off curve (long)",
    "runtimes": "run-time forecasts against recent-kNN, and what they promise against what they deliver",
    "forecast_speed": "CPU of a minute's forecasts, of a job's, and of a retrain, and the memory of it",
    "mig_regeometry": "requests for MIG instances accepted, against the best static cuts (B9)",
    "fragmentation": "the fragmentation index against an exact loss, on states of real placements",
    "defragmentation": "moves ahead of demand: waiting of wide gangs, and useful share of other work (long)",
    "promises": "what weighed actions promised and what they realised, by action and scenario",
    "reclaim_storm": "every owner returns at once, on 4,000 GPUs",
    "bursts_slo": "the value of demand forecasts to services: late requests under autopilot and reactive (long)",
    "burst_full": "room before a burst: late requests under reactive, autopilot and the true demand (long)",
    "burst_fill": "batch beside services: idle GPUs used, and stops of batch work (B10) (long)",
    "foresight": "the value of run-time forecasts to decisions: exact, last-two and predicted (long)",
    "hoarding": "the verdict on idle work against the truth of the generator, and on real telemetry",
    "idle_reclaim": "idle GPU-hours returned to others, and owners who come back early (long)",
    "real_use": "real utilization of static, the autopilot and its bound, and the gap by cause (long)",
    "playground": "proposals of the playground against those of simulate --engine kueue, at equal moments (long)",
    "playground_acting": "the acting playground against simulate --policy autopilot: wait, lost work (long)",
    "stops": "how often one job is stopped for other work, on P1, P2, P12 and demo, and what the bound costs (long)",
    "slurm": "the baseline slurm against recordings of a real Slurm scheduler",
    "tenants": "many tenants against kueue and easy, on P12 and P10 (long)",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named benchmarks, or all."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="names:\n" + "\n".join(f"  {name:18}{what}" for name, what in BENCHMARKS.items()),
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--quick", action="store_true")
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = [each for each in words if each.startswith("-") and each not in ("--quick", "-h", "--help")]
    alone = words[:1] == ["slurm"] or (options and words[0] in BENCHMARKS)
    given = parser.parse_args(words[:1] if alone else words)
    names, own = given.names, words[1:] if alone else []
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"{unknown[0]!r} is not one of {', '.join(BENCHMARKS)}")
    missed = []
    for name in names or BENCHMARKS:
        print(f"== {name}: {BENCHMARKS[name]}", flush=True)
        run: Callable[[Sequence[str]], int] = importlib.import_module(f"benchmarks.{name}").main
        began_s = time.perf_counter()
        quick = ["--quick"] if given.quick else []
        if run(["--json", str(OUT / f"{name}.json"), *quick, *own]):
            missed.append(name)
        print(f"-- {name}: {time.perf_counter() - began_s:.0f} s\n", flush=True)
    if missed:
        print(f"a target is missed by {', '.join(missed)}")
    return int(bool(missed))


if __name__ == "__main__":
    raise SystemExit(main())
