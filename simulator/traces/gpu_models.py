"""The GPU models that a job or cluster file may name.

Models with MIG come from the MIG facts; the others are listed here with the memory that their vendor states, or None
where the publisher of a trace does not disclose the model.
"""

from __future__ import annotations

from autopilot.core.hardware.gpu_products import find_product
from autopilot.core.hardware.mig import MODELS as MIG_MODELS
from autopilot.core.hardware.mig import find_gpu_model

OTHER_MODELS: dict[str, int | None] = {
    "K80": 12,
    "P4": 8,
    "P40": 24,
    "P100": 16,
    "T4": 16,
    "V100": 32,
    "V100M16": 16,  # Alibaba openb: V100 with 16 GB
    "V100M32": 32,
    "A10": 24,
    "A10G": 24,
    "A40": 48,
    "A800-80GB": 80,
    "H800": 80,
    "H20": 96,
    "L4": 24,
    "L40": 48,
    "L40S": 48,
    "RTX-6000-Ada": 48,
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

KNOWN_GPU_MODELS: dict[str, int | None] = {
    **{model.name: model.memory_gb for model in MIG_MODELS},
    **OTHER_MODELS,
}
"""Memory in GB by model name; None is not known."""

MIG_MODEL_NAMES = frozenset(model.name for model in MIG_MODELS)
_PROFILES = frozenset(profile.name for model in MIG_MODELS for profile in model.profiles)


def is_mig_profile(name: str) -> bool:
    """Whether any GPU model has the MIG profile `name`."""
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
