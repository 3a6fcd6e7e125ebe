"""The geometries of one GPU model as bit sets, the form in which a pool of GPUs is planned.

Bit i of a bit set stands for row i of `mig.placement_masks`: a profile at a start slice. A GPU has two bit sets: its
instances in use, and its free ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from autopilot.core.hardware import mig
from autopilot.core.hardware.mig import GpuModel, Placement
from autopilot.core.model.snapshot import F64, I64

MOST_LAYOUTS = 512
"""Most geometries that are compared for one GPU. The models of today have at most 458 maximal ones."""


@dataclass(frozen=True, slots=True, eq=False)
class Layouts:
    """The possible cuts of one GPU model, from the profiles that matter.

    `bits` [layouts] are the maximal geometries, `counts` [layouts, profiles] their instances. `of_bit` [bits, profiles]
    is 1 at the profile of a bit. `share` [bits] is an instance's part of a GPU, by compute slices.
    """

    model: GpuModel
    profiles: tuple[str, ...]
    bits: I64
    counts: I64
    of_bit: I64
    share: F64


@lru_cache(maxsize=64)
def layouts_of(model_name: str, profiles: tuple[str, ...]) -> Layouts:
    """The geometries of a model from `profiles` (its names). Raises `InputError` for an unknown model or profile."""
    model = mig.gpu_model(model_name)
    masks = mig.placement_masks(model)
    names = [model.profiles[each.profile_index].name for each in masks]
    place = {Placement(name, each.start): bit for bit, (name, each) in enumerate(zip(names, masks, strict=True))}
    sets = mig.maximal_sets(model, profiles=profiles)[:MOST_LAYOUTS]
    bits = np.array(sorted(sum(1 << place[each] for each in chosen) for chosen in sets), np.int64)
    of_bit = np.array([[int(name == profile) for profile in profiles] for name in names], np.int64)
    share = [mig.compute_share(model, name) for name in names]
    return Layouts(
        model, profiles, bits, unpacked(bits, len(masks)) @ of_bit, of_bit, np.array([float(each) for each in share])
    )


def unpacked(bits: I64, width: int) -> I64:
    """[sets, width] 1 at each bit that is set."""
    return np.asarray(bits[:, None] >> np.arange(width) & 1, np.int64)


def bit_of(model: GpuModel, profile: str, start: int) -> int:
    """The bit of a placement; -1 for one unknown to the model."""
    return _bits(model.name).get((profile, start), -1)


@lru_cache(maxsize=64)
def _bits(model_name: str) -> dict[tuple[str, int], int]:
    model = mig.gpu_model(model_name)
    return {
        (model.profiles[each.profile_index].name, each.start): bit
        for bit, each in enumerate(mig.placement_masks(model))
    }


def placements_of(model: GpuModel, bits: int) -> tuple[Placement, ...]:
    """The placements of a bit set, by start."""
    masks = mig.placement_masks(model)
    found = [masks[bit] for bit in range(len(masks)) if bits >> bit & 1]
    return tuple(
        sorted(
            (Placement(model.profiles[each.profile_index].name, each.start) for each in found),
            key=lambda place: (place.start, place.profile),
        )
    )


def bits_of(model: GpuModel, placements: Iterable[Placement | tuple[str, int]]) -> int:
    """The bit set of placements known to the model."""
    return sum(1 << bit_of(model, profile, start) for profile, start in placements)


def profiles_for(model: GpuModel, names: Sequence[str]) -> tuple[str, ...]:
    """The plain profiles of a model, and its profiles among `names`, in the order of its facts."""
    return tuple(each.name for each in model.profiles if each.name in model.core_profiles or each.name in names)
