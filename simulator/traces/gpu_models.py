"""The GPU models allowed in a job or cluster file.

Products come from the table for the labels of nodes (core/hardware/gpu_products.py). Names from traces alone are listed
here with their vendor's figure for memory, or None if their publisher does not disclose the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from autopilot.core.hardware.gpu_products import PRODUCTS, find_product
from autopilot.core.hardware.mig import MODELS as MIG_MODELS
from autopilot.core.hardware.mig import find_gpu_model

OF_TRACES: dict[str, int | None] = {
    "P100": 16,
    "V100": 32,
    "V100M16": 16,  # Alibaba openb: V100 with 16 GB
    "V100M32": 32,
    "H800": 80,
    "H20": 96,
    "RTX-4090": 24,
    "MI250X": 128,
    "MI300X": 192,
    "G1": None,  # Alibaba openb: internal codes, not disclosed
    "G2": None,
    "G3": None,
    "GPU-series-1": None,  # Alibaba spot-gpu 2026: not disclosed
    "GPU-series-2": None,
    "generic": None,
}
"""Names of traces that leave the memory of a card open, or that no label of a node has."""

KNOWN_GPU_MODELS: dict[str, int | None] = {**{each.name: each.memory_gb for each in PRODUCTS}, **OF_TRACES}
"""Memory in GB by model name; None is not known."""

MIG_MODEL_NAMES = frozenset(name for name in KNOWN_GPU_MODELS if find_gpu_model(name) is not None)
_PROFILES = frozenset(profile.name for model in MIG_MODELS for profile in model.profiles)


def is_mig_profile(name: str) -> bool:
    """True if any GPU model has the MIG profile `name`."""
    return name in _PROFILES


def model_for_label(label: str) -> str | None:
    """The model of a name as files write it: our own name in any case, or a vendor's product label."""
    wanted = label.strip().lower()
    for name in KNOWN_GPU_MODELS:
        if name.lower() == wanted:
            return name
    product, model = find_product(label), find_gpu_model(label)
    if product is not None and product.name in KNOWN_GPU_MODELS:
        return product.name
    return model.name if model is not None else None


def models_like(name: str, here: Iterable[str]) -> list[str]:
    """The models of a cluster behind a short name (`a100`, `nvidia_h100`); the name as it is if none fits."""
    if name in KNOWN_GPU_MODELS:
        return [name]
    wanted = _short(name)
    like = [model for model in here if wanted and _short(model).startswith(wanted)]
    label = model_for_label(name)
    return like or [label or name]


def _short(name: str) -> str:
    return re.sub(r"[^a-z0-9]|nvidia|tesla|geforce|quadro|amd|instinct", "", name.lower())
