"""Write the golden set of the gate: models/golden/*.parquet and its lock, golden.json.

    python scripts/generate_golden.py [--check]

Synthetic and drawn from one seed, so that it may be shown to anyone. It holds what forecasts meet: a daily
course, bursts, a level that moves, sparse counts, a random walk, a service that comes and goes; jobs of
tenants with habits, new names, heavy tails, failures. It is not made to resemble one trace, and models are
not tuned to it. Another content needs another version: verdicts name the version that they were reached on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd

Column = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

FOLDER = Path(__file__).resolve().parent.parent / "models" / "golden"
VERSION = "1"
SEED = 20_240_501
STEP_S = 600
DAYS = 20
"""The last fifth is the test: four windows of a day each, so that each window sees the whole course of a day."""

JOBS = 6000
JOB_DAYS = 20
DAY_S = 86_400


def bursts() -> pd.DataFrame:
    """Requests in ten minutes of fourteen services, two of a class (before the #): t_s, service, value."""
    rng = np.random.default_rng(SEED)
    t_s = np.arange(0, DAYS * DAY_S, STEP_S)
    frames = []
    for number in range(14):
        kind = ("daily", "bursty", "sparse", "walk", "shifting", "resting", "daily")[number % 7]
        rate = _rate(kind, t_s.astype(float), rng)
        frames.append(pd.DataFrame({"t_s": t_s, "service": f"{kind}#{number:02d}", "value": rng.poisson(rate)}))
    whole = pd.concat(frames, ignore_index=True)
    return whole.sort_values(["t_s", "service"], kind="stable", ignore_index=True)


def _rate(kind: str, t_s: Column, rng: np.random.Generator) -> Column:
    """Expected requests per step of one kind of service, [steps]."""
    level = float(np.exp(rng.normal(5.0, 0.8)))
    phase = rng.uniform(0, 2 * np.pi)
    day = 2 * np.pi * t_s / DAY_S
    course = 1.0 + 0.6 * np.sin(day + phase) + 0.2 * np.sin(2 * day + 1.7 * phase)
    noise = np.exp(_autoregressive(len(t_s), 0.85, 0.12, rng))
    if kind == "daily":
        return np.asarray(level * course * noise)
    if kind == "bursty":
        starts = rng.random(len(t_s)) < 0.012
        height = np.where(starts, rng.pareto(2.5, len(t_s)) + 0.5, 0.0)
        burst = np.convolve(height, np.exp(-np.arange(18) / 5.0))[: len(t_s)]
        return np.asarray(level * (0.6 * course + burst) * noise)
    if kind == "sparse":
        return np.asarray(2.5 * np.maximum(course, 0.0) ** 2 * noise)
    if kind == "walk":
        return np.asarray(level * np.exp(np.cumsum(rng.normal(0.0, 0.03, len(t_s)))))
    if kind == "shifting":
        at = np.sort(rng.choice(len(t_s), 3, replace=False))
        steps = np.exp(rng.normal(0.0, 0.5, 4))
        height = steps[np.searchsorted(at, np.arange(len(t_s)), side="right")]
        return np.asarray(level * height * course * noise)
    awake = (np.sin(day + phase) > 0.2) & (_autoregressive(len(t_s), 0.97, 0.3, rng) > -0.8)
    return np.where(awake, level * noise, 0.0)


def _autoregressive(count: int, memory: float, spread: float, rng: np.random.Generator) -> Column:
    """A stationary first-order process of `count` values."""
    shocks = rng.normal(0.0, spread, count)
    values = np.empty(count)
    last = 0.0
    for at, shock in enumerate(shocks.tolist()):
        last = memory * last + shock
        values[at] = last
    return values


def runtimes() -> pd.DataFrame:
    """Jobs of nine tenants: job_id, tenant, user, name, submit_s, duration_s, gpus, status."""
    rng = np.random.default_rng(SEED + 1)
    habits = [
        (tenant, user, stem, float(rng.normal(7.0, 1.6)), float(rng.uniform(0.3, 1.1)), int(2 ** rng.integers(0, 5)))
        for tenant in range(9)
        for user in range(4)
        for stem in range(3)
    ]
    weight = rng.pareto(1.2, len(habits)) + 0.1
    chosen = rng.choice(len(habits), JOBS, p=weight / weight.sum())
    # people submit in rows: half of the jobs repeat the one before
    for at in range(1, JOBS):
        if rng.random() < 0.5:
            chosen[at] = chosen[at - 1]
    submit_s = np.sort(rng.uniform(0, JOB_DAYS * DAY_S, JOBS))
    drift = np.cumsum(rng.normal(0.0, 0.25, (JOB_DAYS + 1, len(habits))), axis=0)
    rows = []
    for at, (habit, when_s) in enumerate(zip(chosen.tolist(), submit_s.tolist(), strict=True)):
        tenant, user, stem, centre, spread, gpus = habits[habit]
        log_s = centre + drift[int(when_s // DAY_S), habit] + spread * rng.standard_t(5)
        status = str(rng.choice(["succeeded", "failed", "cancelled"], p=[0.8, 0.12, 0.08]))
        shortened = float(rng.uniform(0.02, 0.9)) if status != "succeeded" else 1.0
        duration_s = round(min(max(np.exp(log_s) * shortened, 5.0), 4 * DAY_S), 1)
        version = int(when_s // (5 * DAY_S))
        rows.append(
            (
                f"job-{at:05d}",
                f"tenant-{tenant}",
                f"user-{tenant}-{user}",
                f"train-{stem}-v{version}-{at}",
                round(when_s, 1),
                duration_s,
                gpus,
                status,
            )
        )
    return pd.DataFrame(rows, columns=["job_id", "tenant", "user", "name", "submit_s", "duration_s", "gpus", "status"])


def digest(frame: pd.DataFrame) -> str:
    """SHA-256 of the content, independent of the version of the file's format."""
    return hashlib.sha256(frame.to_csv(index=False, lineterminator="\n").encode()).hexdigest()


def main() -> None:
    """Write the files, or with --check compare them with the new content."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 when something differs")
    check = parser.parse_args().check
    frames = {"bursts": bursts(), "runtimes": runtimes()}
    lock = {
        "version": VERSION,
        "files": {
            kind: {"file": f"{kind}-{VERSION}.parquet", "rows": len(frame), "content_sha256": digest(frame)}
            for kind, frame in frames.items()
        },
    }
    text = json.dumps(lock, indent=2) + "\n"
    if check:
        same = text == (FOLDER / "golden.json").read_text(encoding="utf-8")
        print("the golden set is what this script writes" if same else "golden.json differs")
        sys.exit(0 if same else 1)
    FOLDER.mkdir(exist_ok=True)
    for kind, frame in frames.items():
        path = FOLDER / f"{kind}-{VERSION}.parquet"
        frame.to_parquet(path, index=False, compression="zstd", compression_level=19)
        print(f"{path.name}: {len(frame):,} rows, {path.stat().st_size:,} bytes")
    (FOLDER / "golden.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
