"""Power of a GPU by its model: with memory in use and no work, and at most.

Measured: A100-80GB 96.5 W (fleet-wide plateau of loaded GPUs, AcmeTrace), H100-SXM 120 W (run b1 of
h100_telemetry_runs; 126 W on one in tests/data/nvml) and H200 119 W (tests/data/nvml). The others are their board limit
times the ratio of their generation: an assumption.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

LOADED_IDLE_W = {
    "P100": 60.0,
    "V100": 72.0,
    "T4": 17.0,
    "A10": 36.0,
    "A30": 40.0,
    "A40": 72.0,
    "RTX-A6000": 72.0,
    "A100": 96.5,
    "A800": 96.5,
    "L4": 20.0,
    "L20": 77.0,
    "L40": 84.0,
    "RTX-6000-ADA": 84.0,
    "H20": 68.0,
    "H100": 120.0,
    "H800": 120.0,
    "H200": 120.0,
    "RTX-PRO-6000": 103.0,
    "B200": 171.0,
    "B300": 205.0,
}
"""Watts by the longest key inside the name of a GPU model."""

WORKS_POWER = 1.6
"""Least power of a GPU at work, over that of a loaded one at rest. Loaded ones at rest differ by up to a half between
boards of one model; dense work draws four to six times as much.
"""

LIMIT_W = {
    "P100": 250.0,
    "V100": 300.0,
    "T4": 70.0,
    "A10": 150.0,
    "A30": 165.0,
    "A40": 300.0,
    "RTX-A6000": 300.0,
    "A100": 400.0,
    "A100-PCIE": 300.0,
    "A800": 400.0,
    "L4": 72.0,
    "L20": 275.0,
    "L40": 300.0,
    "L40S": 350.0,
    "RTX-6000-ADA": 300.0,
    "H20": 400.0,
    "H100": 700.0,
    "H100-PCIE": 350.0,
    "H100-NVL": 400.0,
    "H800": 700.0,
    "H200": 700.0,
    "RTX-PRO-6000": 600.0,
    "B200": 1000.0,
    "B300": 1200.0,
}
"""Limit of the board in watts by the longest key inside the name of a GPU model: the data sheets of NVIDIA."""


@lru_cache(maxsize=512)
def loaded_idle_w(gpu_model: str) -> float:
    """Watts of a loaded GPU at rest; NaN for a model outside the table."""
    return _by_model(LOADED_IDLE_W, gpu_model)


@lru_cache(maxsize=512)
def limit_w(gpu_model: str) -> float:
    """Watts that a board may draw; NaN for a model outside the table."""
    return _by_model(LIMIT_W, gpu_model)


def _by_model(table: Mapping[str, float], gpu_model: str) -> float:
    keys = [key for key in table if key in gpu_model.upper()]
    return table[max(keys, key=len)] if keys else float("nan")
