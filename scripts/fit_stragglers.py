"""Fits the constants of ranks in one stage to the operation timings of real training jobs, and prints them.

Usage: python -m scripts.fit_stragglers [DATA_DIR]     (default ../shared/data)

Source: straggler_bytedance, ByteDance-Seed/StragglerAnalysis (OSDI'25). Of each step and rank the forward and backward
compute counts. A rank is compared with the median of the other ranks of its stage, as the logarithm of the ratio. A
rank whose median is over `LEAST_SLOW` is a straggler; it is left out of the constants of the healthy ones. Prints the
constants of simulator/signals/rank_times.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from simulator.signals.rank_times import LEAST_SLOW

COMPUTE = ("forward-compute", "backward-compute")


def fit(ops: pd.DataFrame) -> dict[str, float]:
    """The constants of one job: deviations are 1.48 times the median absolute one, of a log."""
    compute = ops[ops["optype"].isin(COMPUTE)].pivot_table("busy_s", "step", "rank", "sum")
    stage: dict[object, int] = dict(zip(ops["rank"], ops["stage"], strict=True))
    logs = compute.apply(np.log)
    ratio = logs.copy()
    for rank in logs:
        peers = [other for other in logs if stage[other] == stage[rank] and other != rank]
        ratio[rank] = logs[rank] - logs[peers].median(axis=1)
    own = ratio.median()
    healthy = own.index[own < np.log(LEAST_SLOW)]
    steps = (ratio - own)[healthy]
    by_stage = compute[healthy].median().groupby(stage).median()
    whole_s = ops.groupby("step")["end_ts"].max()
    return {
        "RANK_SD": float(1.4826 * own[healthy].abs().median()),
        "STEP_SD": float(1.4826 * steps.abs().median().median()),
        "largest single step": float(steps.abs().max().max()),
        "COMMON_SD": float((logs - logs.median()).median(axis=1).std()),
        "LAST_STAGE": float(by_stage.iloc[-1] / by_stage.iloc[:-1].median()),
        "BUSY_SHARE": float((compute[healthy].median() / whole_s.median()).median()),
        "SLOWEST": float(np.exp(own.max())),
    }


def main() -> None:
    """Print the constants of each job."""
    data = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("../shared/data")
    for name in ("st", "ar"):
        found = fit(pd.read_parquet(data / "straggler_bytedance" / f"ops_{name}.parquet"))
        print(name, {key: round(value, 4) for key, value in found.items()})


if __name__ == "__main__":
    main()
