"""Power of a GPU with memory in use and no work, by GPU model.

Measured: A100-80GB 96.5 W (fleet-wide plateau of loaded GPUs, AcmeTrace), H100-SXM 120 W (run b1 of
h100_telemetry_runs; 126 W on one in tests/data/nvml) and H200 119 W (tests/data/nvml). The others are their board limit
times the ratio of their generation: an assumption.
"""

from __future__ import annotations

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


@lru_cache(maxsize=512)
def loaded_idle_w(gpu_model: str) -> float:
    """Watts of a loaded GPU at rest; NaN for a model outside the table."""
    keys = [key for key in LOADED_IDLE_W if key in gpu_model.upper()]
    return LOADED_IDLE_W[max(keys, key=len)] if keys else float("nan")
