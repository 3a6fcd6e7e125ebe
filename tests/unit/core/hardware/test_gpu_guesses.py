"""Guesses at products of GPUs from family and memory, and what is not guessed."""

from __future__ import annotations

import pytest

from autopilot.core.hardware.gpu_products import PRODUCTS, find_product


@pytest.mark.parametrize("product", PRODUCTS, ids=lambda each: each.name)
def test_every_product_is_found_by_our_own_name(product: object) -> None:
    """In any case."""
    name = str(getattr(product, "name"))  # noqa: B009
    assert find_product(name) == find_product(name.lower()) == product


@pytest.mark.parametrize(
    ("label", "memory_mib", "name", "sure"),
    [
        ("NVIDIA-A10G", 0, "A10G", True),
        ("NVIDIA-A10G-24GB", 0, "A10G", True),
        ("NVIDIA-A100-SXM4-80GB", 81920, "A100-80GB", True),
        ("NVIDIA-L40S", 46068, "L40S", True),
        ("NVIDIA-L40", 46068, "L40", True),
        ("NVIDIA-H100-64GB-NEW", 0, "H100-64GB", False),
        ("NVIDIA-A100-NEW-BOARD", 81920, "A100-80GB", False),
        ("NVIDIA-T4-NEW", 15360, "T4", False),
    ],
)
def test_family_and_memory_tell_products_apart(label: str, memory_mib: int, name: str, *, sure: bool) -> None:
    """A family is a whole word. A word that is not known makes the product a guess."""
    found = find_product(label, memory_mib)
    assert found is not None
    assert (found.name, found.sure) == (name, sure)


@pytest.mark.parametrize(
    ("label", "memory_mib"),
    [
        pytest.param("NVIDIA-A10-8Q", 8192, id="a profile of a virtual machine has a part of the card"),
        pytest.param("GRID-T4-2Q", 2048, id="another family"),
        pytest.param("NVIDIA-A100-NEW", 0, id="two sizes, and the memory is not known"),
        pytest.param("NVIDIA-A100-NEW", 49152, id="no size of the family"),
        pytest.param("NVIDIA-H100-48GB", 0, id="a size that the family does not have"),
        pytest.param("NVIDIA-L400", 46068, id="a family that only begins alike"),
    ],
)
def test_what_fits_nothing_or_several_is_unknown(label: str, memory_mib: int) -> None:
    """Nothing is guessed beyond family and memory."""
    assert find_product(label, memory_mib) is None
