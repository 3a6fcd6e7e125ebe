"""GPU products by their names in labels, drivers and clouds: family, memory, and MIG geometry.

Feature discovery writes the driver's name with dashes (`NVIDIA-A800-SXM4-80GB`), GKE its own names
(`nvidia-tesla-a100`), Karpenter and the auto mode of EKS the family alone (`a10g`). Instance types of Azure contain the
family (`Standard_NC24ads_A100_v4`). Family and memory identify a product. Sources: the product names of NVIDIA's driver
(supported products), mig-parted's deviceids and its default configuration, and the documentation of accelerators of
GKE, EKS and AKS and of instance types of AWS.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

UNKNOWN_CUTS = "?"
"""The card has MIG; its profiles and places are not known."""

NO_MIG = ""

FAMILIES: dict[str, dict[int, str]] = {
    "A100": {40: "A100-40GB", 64: UNKNOWN_CUTS, 80: "A100-80GB"},
    "A100X": {80: "A100-80GB"},
    "A800": {40: "A100-40GB", 80: "A100-80GB"},
    "A30": {24: "A30-24GB"},
    "H100": {64: UNKNOWN_CUTS, 80: "H100-80GB", 94: "H100-94GB", 96: "H100-96GB"},
    "H800": {80: "H100-80GB", 94: "H100-94GB"},
    "H20": {96: "H100-96GB", 141: "H200-141GB"},
    "GH200": {96: "H100-96GB", 144: "GH200-144GB"},
    "H200": {141: "H200-141GB"},
    "B200": {180: "B200"},
    "GB200": {186: "GB200"},
    "B300": {269: "B300"},
    "GB300": {277: "GB300"},
    "RTX-PRO-6000": {96: "RTX-PRO-6000-Blackwell"},
    "RTX-PRO-5000": {48: UNKNOWN_CUTS, 72: UNKNOWN_CUTS},
    "RTX-PRO-4500": {32: UNKNOWN_CUTS},
    "A2": {16: NO_MIG},
    "A10": {24: NO_MIG},
    "A10G": {24: NO_MIG},
    "A10M": {24: NO_MIG},
    "A16": {16: NO_MIG},
    "A40": {48: NO_MIG},
    "L2": {24: NO_MIG},
    "L4": {24: NO_MIG},
    "L20": {48: NO_MIG},
    "L40": {48: NO_MIG},
    "L40S": {48: NO_MIG},
    "L40G": {24: NO_MIG},
    "T4": {16: NO_MIG},
    "T4G": {16: NO_MIG},
    "V100": {16: NO_MIG, 32: NO_MIG},
    "V100S": {32: NO_MIG},
    "P4": {8: NO_MIG},
    "P40": {24: NO_MIG},
    "P100": {12: NO_MIG, 16: NO_MIG},
    "K80": {12: NO_MIG},
    "M60": {8: NO_MIG},
    "RTX-A6000": {48: NO_MIG},
    "RTX-A5500": {24: NO_MIG},
    "RTX-A5000": {24: NO_MIG},
    "RTX-A4500": {20: NO_MIG},
    "RTX-A4000": {16: NO_MIG},
    "RTX-6000-Ada": {48: NO_MIG},
    "RTX-5000-Ada": {32: NO_MIG},
    "RTX-6000": {24: NO_MIG},
    "RTX-8000": {48: NO_MIG},
    "RTX-3090": {24: NO_MIG},
    "RTX-4090": {24: NO_MIG},
    "RTX-5090": {32: NO_MIG},
}
"""Memory of the cards of each family in GB -> the model of `mig_facts` that is cut in the same way."""

_SPELLINGS = {
    "tesla-a100": "A100-40GB",
    "h100-pcie": "H100-80GB",
    "h100-nvl": "H100-94GB",
    "h800-nvl": "H800-94GB",
    "h800": "H800-80GB",
    "h800-pcie": "H800-80GB",
    "h20": "H20-96GB",
    "h20-3e": "H20-141GB",
    "gh200-480gb": "GH200-96GB",
    "gh200-120gb": "GH200-96GB",
    "gh200-144g-hbm3e": "GH200-144GB",
    "tesla-v100": "V100-16GB",
    "tesla-p100": "P100-16GB",
    "rtx-pro-6000-blackwell-server-edition": "RTX-PRO-6000-Blackwell",
    "rtx-pro-6000-blackwell": "RTX-PRO-6000-Blackwell",
    "rtx-pro-server-6000": "RTX-PRO-6000-Blackwell",
    "rtx-6000-ada-generation": "RTX-6000-Ada",
    "rtx-5000-ada-generation": "RTX-5000-Ada",
}
"""Names that do not state the memory of their family, or state the memory of the CPU beside it."""

_OF_INSTANCE_TYPES = (
    (re.compile(r"standard_nd\d+asr_v4"), "A100-40GB"),
    (re.compile(r"standard_n[cd]\d+\w*_a100_v4"), "A100-80GB"),
    (re.compile(r"standard_ncc?\d+\w*_h100_v5"), "H100-94GB"),
    (re.compile(r"standard_nd\d+\w*_h100_v5"), "H100-80GB"),
    (re.compile(r"standard_nd\d+\w*_h200_v5"), "H200-141GB"),
    (re.compile(r"standard_nd\d+\w*_mi\d+\w*_v5"), ""),
    (re.compile(r"standard_nc\d+as_t4_v3"), "T4"),
    (re.compile(r"standard_nd\d+\w*_gb200_v6"), "GB200"),
    (re.compile(r"standard_nd\d+\w*_gb300_v6"), "GB300"),
    (re.compile(r"standard_nv(?:36|72)adm?s_a10_v5"), "A10"),
    (re.compile(r"standard_nc\d+r?s_v3"), "V100-16GB"),
    (re.compile(r"standard_nd40rs_v2"), "V100-32GB"),
    (re.compile(r"p3\.\d*xlarge"), "V100-16GB"),
    (re.compile(r"p3dn\.24xlarge"), "V100-32GB"),
    (re.compile(r"p4d\.24xlarge"), "A100-40GB"),
    (re.compile(r"p4de\.24xlarge"), "A100-80GB"),
    (re.compile(r"p5\.\d+xlarge"), "H100-80GB"),
    (re.compile(r"p5en?\.\d+xlarge"), "H200-141GB"),
    (re.compile(r"p6-b200\.\d+xlarge"), "B200"),
    (re.compile(r"p6-b300\.\d+xlarge"), "B300"),
    (re.compile(r"g4dn\.(?:\d*xlarge|metal)"), "T4"),
    (re.compile(r"g5g\.(?:\d*xlarge|metal)"), "T4G"),
    (re.compile(r"g5\.\d*xlarge"), "A10G"),
    (re.compile(r"gr?6\.\d*xlarge"), "L4"),
    (re.compile(r"g6e\.\d*xlarge"), "L40S"),
)
"""Instance types of Azure and AWS that have whole GPUs of one product: AKS and the node groups of EKS have no label for
the GPU itself.
"""

_LINE = re.compile(r"^(?:tesla|quadro|geforce)-")
_SHARING = re.compile(r"(?:-mig-.*|-shared)+$")
_FORM = re.compile(r"sxm\d?|pcie|nvl|hbm\d?e?|mega|dgxs|ac|lc|nvlink|ts\d")
_MEMORY = re.compile(r"(\d{1,3})gb?")
_BY_LENGTH = sorted(FAMILIES, key=len, reverse=True)


class Product(NamedTuple):
    """One product. `sure`: its whole name is known; else its family and memory matched, and `name` is a guess."""

    name: str
    memory_gb: int
    cuts: str  # a model of `mig_facts`, NO_MIG or UNKNOWN_CUTS
    sure: bool = True


def product_key(text: str) -> str:
    """One spelling for `NVIDIA H100 80GB HBM3`, `NVIDIA-H100-80GB-HBM3-SHARED` and the like."""
    key = re.sub(r"[\s_-]+", "-", text.strip().lower())
    while key.startswith("nvidia-"):
        key = key.removeprefix("nvidia-")
    return _SHARING.sub("", key)


def _name(family: str, memory_gb: int) -> str:
    """Our name: that of the facts behind the product, else the family and its memory."""
    cuts = FAMILIES[family][memory_gb]
    if f"{cuts}-".startswith(f"{family}-"):
        return cuts
    return family if len(FAMILIES[family]) == 1 and not cuts else f"{family}-{memory_gb}GB"


_BY_NAME = {
    _name(family, memory_gb).lower(): Product(_name(family, memory_gb), memory_gb, cuts)
    for family, sizes in FAMILIES.items()
    for memory_gb, cuts in sizes.items()
}
PRODUCTS = tuple(_BY_NAME.values())
"""Every product, under our name for it."""

_KNOWN = _BY_NAME | {spelling: _BY_NAME[name.lower()] for spelling, name in _SPELLINGS.items()}


@lru_cache(maxsize=4096)
def find_product(text: str, memory_mib: int = 0) -> Product | None:
    """The product with this name; None for an unknown or ambiguous one.

    `memory_mib`: the memory of one GPU by another label, 0 for unknown.
    """
    key = product_key(text)
    known = _KNOWN.get(key)
    if known is not None and (not memory_mib or _near(known.memory_gb, memory_mib)):
        return known
    key = _LINE.sub("", key)
    family = next((each for each in _BY_LENGTH if f"{key}-".startswith(f"{each.lower()}-")), None)
    if family is None:
        return known
    words = [word for word in key[len(family) :].split("-") if word]
    stated = [int(found[1]) for word in words if (found := _MEMORY.fullmatch(word))]
    strange = [word for word in words if not _MEMORY.fullmatch(word) and not _FORM.fullmatch(word)]
    sizes = [size for size in stated if size in FAMILIES[family]] if stated else _sizes(family, memory_mib)
    if len(sizes) != 1 or (strange and not stated and not _near(sizes[0], memory_mib)):
        return known  # a card of a virtual machine has a part of the memory
    sure = not strange and bool(stated or len(FAMILIES[family]) == 1)
    return _BY_NAME[_name(family, sizes[0]).lower()]._replace(sure=sure)


def find_product_of_instance_type(text: str) -> Product | None:
    """The product of an instance type of Azure or AWS; None for any other text, and for types with parts of GPUs."""
    found = next((name for pattern, name in _OF_INSTANCE_TYPES if pattern.fullmatch(text.lower())), "")
    return _BY_NAME[found.lower()] if found else None


def _sizes(family: str, memory_mib: int) -> list[int]:
    """The sizes of a family for this memory in MiB: the nearest one, if it is near enough."""
    sizes = sorted(FAMILIES[family])
    if not memory_mib or len(sizes) == 1:
        return sizes
    nearest = min(sizes, key=lambda size: abs(size - memory_mib / 1024))
    return [nearest] if _near(nearest, memory_mib) else []


def _near(memory_gb: int, memory_mib: int) -> bool:
    """Drivers list up to 8 % less than the name says, and 2 % more."""
    return 0.92 * memory_gb <= memory_mib / 1024 <= 1.02 * memory_gb
