"""The GPU model of a node, by the labels of feature discovery and of clouds, its sharing layer or its instance type."""

from __future__ import annotations

import re

from autopilot.contract.notes import shown
from autopilot.core.hardware.gpu_products import find_product, find_product_of_instance_type
from collectors.kubernetes import quantity
from collectors.kubernetes.sharing import Layer
from collectors.kubernetes.wire import Node

UNKNOWN_MODEL = "unknown"
PRODUCT = (
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "eks.amazonaws.com/instance-gpu-name",
)
MEMORY_MIB = (
    "nvidia.com/gpu.memory",
    "karpenter.k8s.aws/instance-gpu-memory",
    "eks.amazonaws.com/instance-gpu-memory",
)
"""Labels of feature discovery, GKE, Karpenter and the auto mode of EKS; the first present one counts."""

_DECORATION = re.compile(r"-(?:SHARED|MIG-.*)$")
_VENDOR = re.compile(r"^(?:NVIDIA|Tesla)[- ]", re.IGNORECASE)


def model_of(product: str, memory_mib: int = 0) -> str:
    """Our name of a GPU model from the product label: `H100-80GB` for `NVIDIA-H100-80GB-HBM3-MIG-1g.10gb`."""
    if not product:
        return UNKNOWN_MODEL
    known = find_product(product, memory_mib)
    return known.name if known is not None else _VENDOR.sub("", _DECORATION.sub("", product))[:63]


def same_model(model: str, driver: str, memory_mib: int) -> bool:
    """True if a GPU with this name by its driver is of a model, or if that is not known.

    `memory_mib`: the memory of one GPU of the node; 0: unknown.
    """
    name = model_of(driver.replace(" ", "-"), memory_mib)
    return model == UNKNOWN_MODEL or f"{name}-".lower().startswith(f"{model}-".lower())


def model_by_labels(node: Node, layer: Layer, problems: list[tuple[str, str]]) -> tuple[str, int]:
    """The GPU model of a node, and the memory of a GPU in MiB.

    By the labels of feature discovery and of clouds, its layer or its instance type.
    """
    key = next((key for key in PRODUCT if node.metadata.label(key)), "")
    product = node.metadata.label(key) if key else layer.product
    if not product:
        bought = find_product_of_instance_type(node.metadata.label("node.kubernetes.io/instance-type"))
        if bought is not None:
            return bought.name, bought.memory_gb * 1024
        text = "the label is missing, so its GPU model is unknown; install GPU feature discovery"
        problems.append((PRODUCT[0], text))
        return UNKNOWN_MODEL, layer.memory_mib
    memory_mib = quantity.whole(first_label(node, MEMORY_MIB)) if key else layer.memory_mib
    if "-MIG-" in product:  # then the memory is that of an instance
        memory_mib = 0
    found = find_product(product, memory_mib)
    if found is not None and not found.sure:
        text = f"{shown(product)} is taken for {found.name}, by its first word and a memory of {found.memory_gb} GB"
        problems.append((key or "model", text))
    elif found is None:
        text = f"{shown(product)} is an unknown product: so are the memory and the MIG profiles of its GPUs"
        problems.append((key or "model", text))
    known_mib = memory_mib or (found.memory_gb * 1024 if found is not None else 0)
    return model_of(product, memory_mib), layer.memory_mib or known_mib


def first_label(node: Node, keys: tuple[str, ...]) -> str:
    """The value of the first present label; "" for none."""
    return next((value for key in keys if (value := node.metadata.label(key))), "")
