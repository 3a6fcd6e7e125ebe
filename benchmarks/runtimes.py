"""Run-time forecasts on public traces: `python -m benchmarks runtimes`.

Time-ordered 60/15/25 on each file, features only from jobs that had ended before the submission, one calibration for
the model and its floor. On the Philly jobs the model must beat the recent-kNN; on every file its 0.9 quantile must meet
its promised coverage. The time left after one hour is judged against the conditional quantile of all jobs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from autopilot.app.backtests.backtest_options import RuntimesOptions
from autopilot.app.backtests.from_jobs import run
from benchmarks.kit import data_folder, judged, options, table, write_json

FILES = {
    "philly": "philly_jobs/jobs.parquet",
    "philly, first 15k": "philly_jobs/jobs_with_status_first15k.parquet",
    "openb": "openb_2023/pods_default.parquet",
    "gentd26": "gentd26/diffusion_requests.parquet",
    "dlrm": "dlrm_2025/instances.parquet",
    "mit": "mit_supercloud_slurm/jobs.parquet",
}
COVERAGE = {"dlrm": (0.86, 0.94)}
"""Allowed coverage of the promised 0.9; (0.88, 0.92) for the others."""
PRINTED_ONLY = frozenset({"mit"})
AGAINST_FLOOR = frozenset({"philly"})
WORST_TENTH = 0.82
HOUR = "3600"


def main(arguments: Sequence[str] | None = None) -> int:
    """Backtest every file that exists, print the tables, and return 1 when a bar is missed."""
    given = options(__doc__ or "", arguments)
    figures: dict[str, Any] = {}
    for name, file in FILES.items():
        path = data_folder() / file
        if not path.exists():
            print(f"SKIPPED: {path} is absent (docs/data-sources.md names its publisher).")
            continue
        if given.quick and name != "openb":
            continue
        began_s = time.process_time()
        figures[name] = backtest(name, path)
        print(f"{name}: {time.process_time() - began_s:.0f} s of CPU", flush=True)
    if not figures:
        return 0
    rows = [total_row(name, found) for name, found in figures.items()]
    print("\nTotal run time, the 0.9 quantile and the point forecast (in parentheses: recent-kNN)")
    table(("file", "jobs", "relative error", "R2 of log", "0.9 pinball", "coverage", "worst tenth"), rows)
    left = [left_row(name, found) for name, found in figures.items() if found["remaining"][HOUR]["pinball_p90"]]
    print("\nTime left of the jobs that outlived one hour (in parentheses: the quantile of all that did)")
    table(("file", "0.9 pinball / floor's", "coverage", "floor's coverage"), left)
    write_json(given.json, figures)
    return int(any("MISSED" in cell for row in (*rows, *left) for cell in row))


def backtest(name: str, path: Path) -> dict[str, Any]:
    """The document of one file; for openb only the pods with GPUs."""
    if name != "openb":
        return run(RuntimesOptions(jobs=path), lambda *_: None)
    import pandas as pd

    with TemporaryDirectory() as folder:
        part = Path(folder) / path.name
        frame = pd.read_parquet(path)
        frame[frame["gpus"] > 0].to_parquet(part)
        return run(RuntimesOptions(jobs=part), lambda *_: None)


def total_row(name: str, found: dict[str, Any]) -> tuple[str, ...]:
    """One line about total run times."""
    floor = found["floor"]
    error, loss = (found[key] / floor[key] for key in ("median_relative_error", "pinball_p90"))
    ahead = found["r2_log"] - floor["r2_log"]
    low, high = COVERAGE.get(name, (0.88, 0.92))
    covered = f"{found['coverage_p90']:.3f}"
    worst = f"{found['coverage_p90_worst_tenth']:.3f}"
    if name not in PRINTED_ONLY:
        covered += "" if low <= found["coverage_p90"] <= high else " MISSED"
        if name not in COVERAGE:
            worst = judged(found["coverage_p90_worst_tenth"], WORST_TENTH, least=True, digits=3)
    parts = (
        (
            judged(error, 0.92, least=False, digits=3),
            judged(ahead, 0.08, least=True, digits=3),
            judged(loss, 0.97, least=False, digits=3),
        )
        if name in AGAINST_FLOOR
        else (f"{error:.3f}", f"{ahead:+.3f}", f"{loss:.3f}")
    )
    return (
        name,
        f"{found['jobs']:,}",
        f"{found['median_relative_error']:.3f} ({floor['median_relative_error']:.3f}) {parts[0]}",
        f"{found['r2_log']:.3f} ({floor['r2_log']:.3f}) {parts[1]}",
        f"{found['pinball_p90']:.3f} ({floor['pinball_p90']:.3f}) {parts[2]}",
        covered,
        worst,
    )


def left_row(name: str, found: dict[str, Any]) -> tuple[str, ...]:
    """One line about the time left after an hour."""
    own, floor = found["remaining"][HOUR], found["floor"]["remaining"][HOUR]
    ratio, covered = own["pinball_p90"] / floor["pinball_p90"], own["coverage_p90"]
    if name not in AGAINST_FLOOR:
        return name, f"{ratio:.3f}", f"{covered:.3f}", f"{floor['coverage_p90']:.3f}"
    return (
        name,
        judged(ratio, 0.87, least=False, digits=3),
        judged(covered, 0.88, least=True, digits=3),
        f"{floor['coverage_p90']:.3f}",
    )


if __name__ == "__main__":
    raise SystemExit(main())
