"""GPU models and MIG profiles by any of their names, and what share of a GPU a profile is.

Labels, exporters, resource names and drivers use different spellings. This module maps each to the name in
`mig_facts`. The rules of placement are in `mig`.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from autopilot.core.hardware.gpu_products import find_product, product_key
from autopilot.core.hardware.mig_facts import MODELS, GpuModel, Profile
from autopilot.core.model.errors import InputError

_PROFILE = re.compile(
    r"(?:nvidia\.com/)?(?:mig[- ])?(?:([1-9])c\.)?([1-9][0-9]?)g\.([1-9][0-9]{0,3})gb"
    r"(?:([-+.])([a-z]+(?:[.,][a-z]+)*))?"
)
_PCI_ID = re.compile(r"(?:0x)?([0-9a-f]{4})10de|10de:([0-9a-f]{4})|0x([0-9a-f]{4})")


class ProfileName(NamedTuple):
    """The parts of a profile's name: `1c.3g.40gb+me` is (1, 3, 40, "+me"); no `1c.` is None."""

    compute_instance_slices: int | None
    slices: int
    memory_gb: int
    variant: str

    def __str__(self) -> str:
        """The name as the facts and nvidia-smi write it."""
        compute = "" if self.compute_instance_slices is None else f"{self.compute_instance_slices}c."
        return f"{compute}{self.gpu_instance}"

    @property
    def gpu_instance(self) -> str:
        """The name of the GPU instance alone, without the share that a compute instance takes of it."""
        return f"{self.slices}g.{self.memory_gb}gb{self.variant}"


def find_profile_name(text: str) -> ProfileName | None:
    """The parts of a profile's name, or None for any other text.

    It accepts `1g.10gb`, `1g.10gb+me`, `1g.24gb-me`, `1c.3g.40gb`, `MIG 1g.10gb`, and resources such as
    `nvidia.com/mig-1g.24gb.me.all`, which write `+` as `.`.
    """
    match = _PROFILE.fullmatch(text.strip().lower())
    if not match:
        return None
    compute, slices, memory_gb, sign, variant = match.groups()
    if compute is not None and int(compute) > int(slices):
        return None
    suffix = ("-" if sign == "-" else "+") + variant if variant else ""
    return ProfileName(int(compute) if compute else None, int(slices), int(memory_gb), suffix)


def parse_profile_name(text: str, field: str = "mig_profile") -> ProfileName:
    """As `find_profile_name`. Raises `InputError` naming `field` for any other text."""
    name = find_profile_name(text)
    if name is None:
        raise InputError(f"{field}: {text!r} is not a MIG profile; write for example 1g.10gb or 3g.40gb")
    return name


def resource_name(profile: str) -> str:
    """The Kubernetes resource of a profile: `nvidia.com/mig-1g.10gb.me` for `1g.10gb+me`."""
    return f"nvidia.com/mig-{profile.replace('+', '.')}"


_BY_LABEL = {product_key(label): model for model in MODELS for label in (model.name, *model.product_labels)}
_BY_PCI_ID = {device_id[2:6].lower(): model for model in MODELS for device_id in model.pci_device_ids}


@lru_cache(maxsize=4096)
def find_gpu_model(name: str) -> GpuModel | None:
    """The facts of a GPU model. None for an unknown one and for one without MIG (V100, T4, L40S, ...).

    `name` is our name (`H100-80GB`), a product label (`NVIDIA-H100-80GB-HBM3`, with or without
    `-MIG-1g.10gb` and `-SHARED`), an exporter's modelName (`NVIDIA H100 80GB HBM3`) or a PCI device id
    (`0x233010DE`, `10de:2330`, `0x2330`). A product cut like another one (an A800 like an A100) has its facts.
    """
    if model := _BY_LABEL.get(product_key(name)):
        return model
    match = _PCI_ID.fullmatch(name.strip().lower())
    if match:
        return _BY_PCI_ID.get(match[1] or match[2] or match[3])
    product = find_product(name)
    return _BY_LABEL.get(product.cuts.lower()) if product is not None else None


def gpu_model(name: str | GpuModel) -> GpuModel:
    """As `find_gpu_model` (facts are returned as they are).

    Raises `InputError` with the known models for an unknown one.
    """
    if isinstance(name, GpuModel):
        return name
    model = find_gpu_model(name)
    if model is None:
        known = ", ".join(model.name for model in MODELS)
        raise InputError(f"GPU model {name!r} is not known to support MIG; known are {known}")
    return model


def find_profile(model: str | GpuModel, text: str) -> Profile | None:
    """The profile of this model with the name `text` (any spelling of `find_profile_name`), or None.

    A compute instance (`1c.3g.40gb`) gives its GPU instance. Drivers differ by a GB or two in the memory of the whole
    GPU: 7g.79gb and 7g.80gb are the same profile. That profile matches within 2 %.
    Raises `InputError` for an unknown model.
    """
    facts, name = gpu_model(model), find_profile_name(text)
    if name is None:
        return None
    for profile in facts.profiles:
        if profile.name == name.gpu_instance:
            return profile
    if name.slices != facts.compute_slices:
        return None
    for profile in facts.profiles:
        known = parse_profile_name(profile.name)
        scheduling_signatures = (known.slices, known.variant) == (name.slices, name.variant)
        if scheduling_signatures and abs(known.memory_gb - name.memory_gb) * 50 <= known.memory_gb:
            return profile
    return None


def model_profile(model: str | GpuModel, text: str) -> Profile:
    """As `find_profile`. Raises `InputError` with the model's profiles for an unknown one."""
    profile = find_profile(model, text)
    if profile is None:
        facts = gpu_model(model)
        known = ", ".join(profile.name for profile in facts.profiles)
        raise InputError(f"MIG profile {text!r} does not exist on {facts.name}; it has {known}")
    return profile


def compute_share(model: str | GpuModel, profile: str) -> Fraction:
    """Share of the GPU's compute slices, exact: 1/7 for a 1g (and for a `1c.3g`) of a 7-slice GPU.

    It is the weight of the SM_ACTIVE of an instance in that of its board. Raises `InputError` for an unknown
    profile or model.
    """
    facts, name = model_profile(model, profile), parse_profile_name(profile)
    return Fraction(name.compute_instance_slices or facts.compute_slices, gpu_model(model).compute_slices)


def memory_mib(model: str | GpuModel, profile: str) -> int:
    """Memory of an instance: the usable memory by the driver, if known (`usable_mib`).

    Otherwise an upper bound: the GB in the profile name, at most the share of its memory slices in the GPU's GB.
    Raises `InputError` for an unknown profile or model.
    """
    facts, gpu = model_profile(model, profile), gpu_model(model)
    if facts.usable_mib is not None:
        return facts.usable_mib
    return min(facts.memory_gb * 1024, gpu.memory_gb * 1024 * facts.memory_slices // gpu.memory_slices)
