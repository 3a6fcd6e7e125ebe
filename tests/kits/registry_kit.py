"""Small models and registries for tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from autopilot.core.model.forecast import LEVELS
from autopilot.registry import Manifest, Registry
from models.forest import Forest
from models.runtime_boosting import Boosted

LIBRARIES = {"numpy": "2.0", "scikit-learn": "1.9.1", "scipy": "1.14", "skops": "0.16", "statsmodels": "0.15"}


@cache
def estimator() -> Any:
    """A small fitted model of the kind that the registry is made for."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    rng = np.random.default_rng(0)
    columns = rng.normal(size=(200, 3))
    model = HistGradientBoostingRegressor(loss="quantile", quantile=0.9, max_iter=5, random_state=0)
    return model.fit(columns, columns[:, 0])


def content(number: int = 0, *, rows: int = 4) -> dict[str, Any]:
    """The content of a model without estimators."""
    return {"model": "test/1", "number": number, "weights": np.arange(rows, dtype=float) + number, "levels": (0.5, 0.9)}


def manifest(kind: str = "bursts", **changed: Any) -> Manifest:
    """A manifest to be filled in by `put`."""
    given: dict[str, Any] = {
        "kind": kind,
        "model": "test/1",
        "artifact": "",
        "artifact_bytes": 0,
        "data": {"name": "a.csv", "digest": "d"},
        "feature_schema": ("lag_1",),
        "parameters": {"trees": 5},
        "libraries": LIBRARIES,
        "code": "0.1.0",
        "seed": 0,
        "scores": {"pinball_p99": 0.5},
        "created_by": "test",
    }
    return Manifest(**{**given, **changed})


def registry(folder: Path, **changed: Any) -> Registry:
    """A registry whose clock counts its own calls."""
    ticks = iter(range(1, 1_000_000))
    given: dict[str, Any] = {"now_s": lambda: float(next(ticks)), "libraries": LIBRARIES}
    return Registry(folder, **{**given, **changed})


def stocked(folder: Path, count: int = 3, kind: str = "bursts", **changed: Any) -> tuple[Registry, list[str]]:
    """A registry in which `count` versions were promoted one after the other: (registry, their names)."""
    made = registry(folder, **changed)
    names = []
    for number in range(count):
        stored = made.put(content(number), manifest(kind, seed=number, libraries={}))
        made.promote(kind, stored.version, by="test", why=f"number {number}")
        names.append(stored.version)
    return made, names


@cache
def small_boosted(width: int, columns: tuple[int, ...] = (0, 3)) -> Boosted:
    """A model of run times, two trees a level, that looks at `columns` of `width`."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    rows = np.random.default_rng(1).normal(5.0, 2.0, size=(60, len(columns)))
    models = tuple(
        HistGradientBoostingRegressor(loss="quantile", quantile=level, max_iter=2).fit(rows, rows[:, 0])
        for level in LEVELS
    )
    return Boosted(LEVELS, models, np.array(columns, np.int32), width, 60, Forest(models))
