"""Registers in which device plugins list the GPUs of their node."""

from __future__ import annotations

import pytest
from msgspec import convert

from collectors.kubernetes.sharing import layer_of
from collectors.kubernetes.wire import Node


def entry(number: int, memory_mib: int, parts: int = 1) -> str:
    """One GPU in the older form of HAMi."""
    return f"GPU-0000000{number}-0000-0000-0000-000000000000,{parts},{memory_mib},100,NVIDIA-NVIDIA A40,0,true:"


@pytest.mark.parametrize(
    ("text", "gpus", "clients", "memory_mib", "uuids"),
    [
        pytest.param(entry(0, 46068) + entry(1, 46068), 2, 1, 46068, 2, id="two alike"),
        pytest.param(entry(0, 46068) + entry(1, 23034), 2, 1, 0, 0, id="of two sizes: none is that of all"),
        pytest.param(entry(0, 46068) + entry(0, 46068), 2, 1, 0, 0, id="one is there twice"),
        pytest.param(entry(0, 46068, 2) + entry(1, 46068, 10), 2, 10, 46068, 2, id="the most parts count"),
    ],
)
def test_a_register_says_what_is_the_same_for_all(
    text: str, gpus: int, clients: int, memory_mib: int, uuids: int
) -> None:
    """Number of GPUs, parts of each, memory and UUIDs."""
    node = convert({"metadata": {"name": "n", "annotations": {"hami.io/node-nvidia-register": text}}}, Node)
    layer = layer_of(node)
    assert (layer.gpus, layer.clients, layer.memory_mib, len(layer.uuids)) == (gpus, clients, memory_mib, uuids)
    assert bool(layer.barred) == (clients > 1)
