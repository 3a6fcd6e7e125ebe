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
    "sim_speed": "jobs simulated per second (B6)",
    "serving_speed": "requests simulated per second",
    "tick": "CPU of one tick at 100,000 GPUs",
    "tick_cut": "CPU of one tick of 50,000 GPUs with a fifth of them cut and every action on",
    "forecast_speed": "CPU of a minute's forecasts, of a job's, and of a retrain, and the memory of it",
    "checkpoint_step": "cost of the checkpoint helper in a training step, beside API servers that do not help",
    "kube_sync": "CPU and memory of list and watch at 20,000 pods on 2,000 nodes",
    "kube_latency": "from a pending latency-critical pod to its recommendation, and to the release of its gate",
    "metrics": "the controller's own metrics at 4,000 GPUs: series, and the time of a scrape",
    "page": "the status page at 4,000 GPUs and 300 tenants in a browser: first paint and bytes",
    "alerts": "a thousand alerts in a minute on a running service: lost, doubled, time until the page has them",
    "journal_size": "size of the journal of a day",
    "showback": "a month of metering of 10,000 GPUs: showback, FOCUS, spending; and CPU of the meter",
    "opencost": "OpenCost's allocation model beside metering, on a playground (minutes)",
    "field": "signals by way in, and reported situations that come out right (minutes, where they are at hand)",
    "colocation": "predicted against true rates of work on one GPU, on families of programs that were not seen",
    "neighbours": "interference and stragglers on generated days: precision, recall, false verdicts (minutes)",
    "slurm": "the baseline slurm against recordings of a real Slurm scheduler",
    "reclaim_storm": "every owner returns at once, on 4,000 GPUs",
    "preemption": "preemption, moves and fill at a price, on seven tenants, and the trade-off curve (long)",
    "tenants": "many tenants against kueue and easy, on P12 and P10 (long)",
    "stops": "stops of one job for other work, on P1, P2, P12 and demo, and the cost of a bound (long)",
    "scenarios": "policies on the scenarios: waiting, real utilization and its bound, late requests, idle work (long)",
    "sharing": "shared GPUs beside sharing off: useful utilization, slowdown, GPUs returned for the same work (long)",
    "approvals": "approvals of a simulated person: carried out, and their cost against acting at once (long)",
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
