"""The five textbook orders on P1 and P2 against the published table, to the printed digits, and the bounds.

It runs the functions behind `autopilot simulate --physics ideal --policy fifo,fifo-skip,...`. A cell is average JCT s /
average wait s / utilization to the last arrival % / p99 wait s.

    python -m benchmarks.parity [--quick] [--json OUT]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.simulate import simulate
from benchmarks.kit import FILES, options, philly_jobs, table, write_json

TABLE = {
    "P1": {
        "fifo": "966,600 / 952,151 / 70.74 / 1,444,290",
        "fifo-skip": "115,169 / 100,719 / 81.65 / 943,033",
        "sjf": "47,060 / 32,610 / 81.10 / 511,233",
        "sjf-skip": "31,818 / 17,368 / 72.99 / 246,074",
        "gpu-time-skip": "31,571 / 17,121 / 71.63 / 245,805",
    },
    "P2": {
        "fifo": "979,188 / 971,195 / 86.92 / 1,748,051",
        "fifo-skip": "75,492 / 67,499 / 88.24 / 252,949",
        "sjf": "58,616 / 50,623 / 84.49 / 243,161",
        "sjf-skip": "113,200 / 105,207 / 85.85 / 340,005",
        "gpu-time-skip": "53,187 / 45,194 / 86.06 / 250,313",
    },
}
BOUND = {"P1": "89.98", "P2": "92.46"}


def printed(entry: dict[str, Any]) -> str:
    """One cell of the table."""
    jobs = entry["jobs"]
    percent = 100 * entry["utilization"]["to_last_arrival_ratio"]
    return (
        f"{jobs['jct_s_mean']:,.0f} / {jobs['queue_wait_s_mean']:,.0f} / {percent:.2f} / "
        f"{jobs['queue_wait_s_p99']:,.0f}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print the table, write the JSON; 1 when a digit differs. `--quick` skips P2."""
    given = options(str(__doc__), arguments)
    jobs = philly_jobs()
    if jobs is None:
        return 0
    rows, figures, differing = [], {}, 0
    for file in ("P1",) if given.quick else FILES:
        tenant, cluster = FILES[file]
        outcome = simulate(
            SimulateOptions(
                jobs=jobs,
                tenants=(tenant,),
                cluster=cluster,
                policies=tuple(TABLE[file]),
                physics="ideal",
                series=False,
            )
        )
        policies = outcome.document()["policies"]
        found = {name: printed(entry) for name, entry in policies.items()}
        bound = f"{100 * policies['fifo']['utilization']['bound_ratio']:.2f}"
        figures[file] = {**found, "bound": bound}
        for name, wanted in (*TABLE[file].items(), ("bound", BOUND[file])):
            same = figures[file][name] == wanted
            differing += not same
            rows.append([f"{file} {name}", figures[file][name], "equal" if same else f"DIFFERS from {wanted}"])
    table(["parity", "JCT / wait / utilization % / p99 wait", "published"], rows)
    write_json(given.json, {"benchmark": "parity", "found": figures, "differing": differing})
    return int(differing > 0)


if __name__ == "__main__":
    raise SystemExit(main())
