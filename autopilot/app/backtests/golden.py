"""The golden set: small, synthetic, locked. Every change of the models is judged on it.

`scripts/generate_golden.py` writes it. A digest locks its content: other content is another version. `scores.json`
beside it, written by `scripts/record_golden_scores.py`, records the scores of the models: a change of the code must not
make them worse. This is a weaker condition than promotion (models/backtest.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autopilot.app.backtests import from_jobs, from_requests
from autopilot.core.model.errors import InputError
from models.backtest import METRIC_VERSION

GOLDEN_VERSION = "1"
FOLDER = Path(__file__).resolve().parents[3] / "models" / "golden"
TOLERANCES = {
    "bursts": {"pinball_p99": 0.08, "pinball_p90": 0.03, "mae_vs_naive": 0.03, "headroom_p99": 0.05},
    "runtimes": {"pinball_p90": 0.02, "mae_log": 0.02, "median_relative_error": 0.02},
}
"""By how much, relative to its recorded value, a score may rise. Three seeds of the same code differ by up to 6 % in
0.99 pinball, 3 % in headroom and 1.5 % in the other scores of bursts: each tolerance is above that, since such a
difference is no change of quality, and at most twice as high. Run times use no random draws: their tolerance covers
rounding on other machines.
"""

BOUNDS = {
    "bursts": {
        "coverage_p90": (0.88, 0.95),
        "coverage_p99": (0.983, 1.0),
        "coverage_p99_worst_eighth": (0.95, 1.0),
    },
    "runtimes": {"coverage_p90": (0.88, 0.95), "coverage_p90_worst_tenth": (0.82, 1.0)},
}
"""Bounds that hold whatever was recorded: those of the gate (models/backtest.py: GateRules). A nominal 0.9 bound that
covers more than 0.95 is too wide.
"""

_FIX = "restore it from the release, or regenerate it with scripts/generate_golden.py"


def golden_file(kind: str) -> Path:
    """The file of `bursts` or `runtimes`. Raises `InputError` when it is missing or differs from the locked content."""
    lock = _lock()
    if lock.get("version") != GOLDEN_VERSION:
        raise InputError(f"{FOLDER}: the golden set has version {lock.get('version')}, not {GOLDEN_VERSION}; {_FIX}")
    about = lock["files"][kind]
    path = FOLDER / str(about["file"])
    if not path.exists():
        raise InputError(f"{path}: missing; {_FIX}")
    found = content_digest(path)
    if found != about["content_sha256"]:
        raise InputError(f"{path}: its content is not that of version {GOLDEN_VERSION}; {_FIX}")
    return path


def content_digest(path: Path) -> str:
    """SHA-256 of the rows as CSV, independent of the version of the file format. Raises `InputError` for no table."""
    import pandas as pd

    try:
        text = pd.read_parquet(path).to_csv(index=False, lineterminator="\n")
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error}); {_FIX}") from error
    return hashlib.sha256(text.encode()).hexdigest()


def _lock() -> dict[str, Any]:
    path = FOLDER / "golden.json"
    try:
        lock: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error}); {_FIX}") from error
    return lock


def scores_in(document: Mapping[str, Any], kind: str) -> dict[str, float]:
    """The scores of a backtest's document that are recorded: `NAME` or, by horizon, `SECONDS NAME`."""
    parts = {f"{each} ": found for each, found in document["horizons"].items()} if "horizons" in document else {}
    names = (*TOLERANCES[kind], *BOUNDS[kind])
    return {
        f"{prefix}{name}": round(float(part[name]), 6)
        for prefix, part in (parts or {"": document}).items()
        for name in names
    }


def recorded_scores() -> dict[str, dict[str, float]]:
    """The recorded scores of each kind. Raises `InputError` for a record of another golden set or metric."""
    path = FOLDER / "scores.json"
    fix = "regenerate it with scripts/record_golden_scores.py, and review the difference"
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error}); {fix}") from error
    for name, version in (("golden_version", GOLDEN_VERSION), ("metric_version", METRIC_VERSION)):
        if record.get(name) != version:
            raise InputError(f"{path}: has {name} {record.get(name)}, not {version}; {fix}")
    scores: dict[str, dict[str, float]] = record["scores"]
    return scores


def worse_than(recorded: Mapping[str, float], scores: Mapping[str, float], kind: str) -> list[str]:
    """What a change of the code made worse, as text: scores beyond their tolerance, out of their bounds, or missing."""
    found = [f"{kind}, {name}: is no longer measured" for name in recorded if name not in scores]
    for name, value in scores.items():
        score = name.split()[-1]
        if score in BOUNDS[kind]:
            least, most = BOUNDS[kind][score]
            if not least <= value <= most:  # NaN too
                found.append(f"{kind}, {name}: {value:.4f} is not within {least:g} to {most:g}")
            continue
        before = recorded.get(name)
        if before is None or not value <= before * (1.0 + TOLERANCES[kind][score]):
            was = "nothing" if before is None else f"{before:.4f}"
            found.append(
                f"{kind}, {name}: {value:.4f}; {was} is recorded, and {TOLERANCES[kind][score]:.0%} more is allowed"
            )
    return found


def golden_document(kind: str) -> dict[str, Any]:
    """The document of a backtest on the golden set, as `autopilot backtest` without a file produces it."""
    from autopilot.app.backtests.backtest_options import BurstsOptions, RuntimesOptions
    from autopilot.worker import one_thread

    with one_thread():
        if kind == "bursts":
            return from_requests.run(BurstsOptions(series=golden_file(kind)), lambda *_: None)
        return from_jobs.run(RuntimesOptions(jobs=golden_file(kind)), lambda *_: None)
