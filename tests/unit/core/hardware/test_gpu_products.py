"""Products by the names that labels, drivers and clouds give them."""

from __future__ import annotations

import pytest

from autopilot.core.hardware.gpu_products import UNKNOWN_CUTS, find_product, find_product_of_instance_type
from autopilot.core.hardware.mig_profiles import find_gpu_model

NAMES = """
NVIDIA-H800                                              81559  H800-80GB               H100-80GB
NVIDIA-H800-PCIe                                         81559  H800-80GB               H100-80GB
NVIDIA-H800-NVL                                          95830  H800-94GB               H100-94GB
NVIDIA-H20                                               97871  H20-96GB                H100-96GB
NVIDIA-H20-3e                                           143771  H20-141GB               H200-141GB
NVIDIA-A800-SXM4-80GB                                    81920  A800-80GB               A100-80GB
NVIDIA-A800-80GB-PCIe                                    81920  A800-80GB               A100-80GB
NVIDIA-A800-SXM4-40GB                                    40960  A800-40GB               A100-40GB
NVIDIA-A100-SXM-64GB                                     65536  A100-64GB               ?
NVIDIA-A100-SXM4-80GB-MIG-1g.10gb                            0  A100-80GB               A100-80GB
NVIDIA-A100-PCIE-40GB-SHARED                             40960  A100-40GB               A100-40GB
NVIDIA-A100X                                             81920  A100X-80GB              A100-80GB
NVIDIA-H100-80GB-HBM3                                    81559  H100-80GB               H100-80GB
NVIDIA-H100-PCIe                                         81559  H100-80GB               H100-80GB
NVIDIA-H100-NVL                                          95830  H100-94GB               H100-94GB
NVIDIA-H200                                             143771  H200-141GB              H200-141GB
NVIDIA-H200-NVL                                         143771  H200-141GB              H200-141GB
NVIDIA-GH200-480GB                                       97871  GH200-96GB              H100-96GB
NVIDIA-GH200-144G-HBM3e                                 147456  GH200-144GB             GH200-144GB
NVIDIA-B200                                             183359  B200                    B200
NVIDIA-GB200                                            189471  GB200                   GB200
NVIDIA-B300-SXM6-AC                                     275040  B300                    B300
NVIDIA-GB300                                            284208  GB300                   GB300
NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition             97887  RTX-PRO-6000-Blackwell  RTX-PRO-6000-Blackwell
NVIDIA-A10                                               23028  A10                     -
NVIDIA-A10G                                              23028  A10G                    -
NVIDIA-L4                                                23034  L4                      -
NVIDIA-L40                                               46068  L40                     -
NVIDIA-L40S                                              46068  L40S                    -
Tesla-T4                                                 15360  T4                      -
Tesla-V100-SXM2-32GB                                     32768  V100-32GB               -
Tesla-V100-PCIE-16GB                                     16384  V100-16GB               -
Quadro-RTX-6000                                          24576  RTX-6000                -
NVIDIA-RTX-6000-Ada-Generation                           49140  RTX-6000-Ada            -
NVIDIA-GeForce-RTX-4090                                  24564  RTX-4090                -
nvidia-tesla-a100                                            0  A100-40GB               A100-40GB
nvidia-a100-80gb                                             0  A100-80GB               A100-80GB
nvidia-h100-mega-80gb                                        0  H100-80GB               H100-80GB
nvidia-h200-141gb                                            0  H200-141GB              H200-141GB
nvidia-rtx-pro-6000                                          0  RTX-PRO-6000-Blackwell  RTX-PRO-6000-Blackwell
nvidia-tesla-v100                                            0  V100-16GB               -
rtx-pro-server-6000                                      98304  RTX-PRO-6000-Blackwell  RTX-PRO-6000-Blackwell
"""
"""Lines with the label or the name of a cloud, the memory in MiB beside it (0: none), our name, and the model of the
MIG facts that is cut alike (-: no MIG, ?: not known).
"""


@pytest.mark.parametrize("line", NAMES.strip().splitlines())
def test_products_by_their_labels(line: str) -> None:
    """Feature discovery, GKE and EKS write the product in their own way; the whole name is known."""
    label, memory_mib, name, cuts = line.split()
    found = find_product(label, int(memory_mib))
    assert found is not None
    assert (found.name, found.sure, found.cuts or "-") == (name, True, cuts)
    assert (find_gpu_model(found.name) is not None) == (found.cuts not in {"", UNKNOWN_CUTS})


@pytest.mark.parametrize(
    ("label", "memory_mib", "name"),
    [
        ("a100", 40960, "A100-40GB"),
        ("NVIDIA-A100-NEXT", 81920, "A100-80GB"),
        ("NVIDIA-H20-NVLink", 97871, "H20-96GB"),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Workstation-Edition", 97887, "RTX-PRO-6000-Blackwell"),
        ("Tesla-V100-SXM2-32GB-LS", 32768, "V100-32GB"),
    ],
)
def test_a_family_and_its_memory_are_a_guess(label: str, memory_mib: int, name: str) -> None:
    """The name is not known as a whole, and only one product of the family has this memory."""
    found = find_product(label, memory_mib)
    assert found is not None
    assert (found.name, found.sure) == (name, False)


@pytest.mark.parametrize(
    ("label", "memory_mib"),
    [
        ("a100", 0),
        ("NVIDIA-A100-NEXT", 60000),
        ("NVIDIA-A40-8Q", 8192),
        ("NVIDIA-GeForce-RTX-4090-Laptop-GPU", 16376),
        ("NVIDIA-H1000", 81559),
        ("NVIDIA-X900", 81559),
        ("AMD-Instinct-MI300X-OAM", 196592),
    ],
)
def test_what_could_be_several_products_or_none_is_unknown(label: str, memory_mib: int) -> None:
    """Without a memory that decides, with one that no product of the family has, and in a family of its own."""
    assert find_product(label, memory_mib) is None


@pytest.mark.parametrize(
    ("bought", "name"),
    [
        ("Standard_ND96asr_v4", "A100-40GB"),
        ("Standard_ND96amsr_A100_v4", "A100-80GB"),
        ("Standard_ND96isr_H100_v5", "H100-80GB"),
        ("Standard_NC40ads_H100_v5", "H100-94GB"),
        ("Standard_ND96isr_H200_v5", "H200-141GB"),
        ("Standard_ND128isr_NDR_GB200_v6", "GB200"),
        ("Standard_ND128isr_GB300_v6", "GB300"),
        ("Standard_NC24rs_v3", "V100-16GB"),
        ("Standard_ND40rs_v2", "V100-32GB"),
        ("Standard_NV36ads_A10_v5", "A10"),
        ("Standard_NV12ads_A10_v5", ""),
        ("Standard_ND96isr_MI300X_v5", ""),
        ("Standard_D8s_v5", ""),
    ],
)
def test_instance_types_of_azure(bought: str, name: str) -> None:
    """Nodes of AKS without feature discovery have no other label; parts of a GPU, and GPUs of others, are unknown."""
    found = find_product_of_instance_type(bought)
    assert (found.name if found is not None else "") == name
