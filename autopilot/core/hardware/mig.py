"""MIG legality of one GPU: legal placements, the remaining capacity, and the change from one geometry to another.

The facts (profiles, starts) are in `mig_facts`, their names in `mig_profiles`; the rules are NVIDIA's:

- a placement occupies the memory slices `start .. start + memory_slices - 1`. Two placements may not overlap, and
  `start` is one of the profile's starts. If the memory slices fit, the compute slices fit too.
- a profile appears at most `max_instances` times. A GPU has at most one media extension (`+me`, `+me.all`) of any
  size.
- a GPU instance in use is never moved or resized; only free instances may be destroyed.

Every function takes the GPU model as a name (`gpu_model` lists the spellings) or as facts, which may come from a live
node. Placements name profiles as the facts do (`find_profile` converts other spellings). The occupied memory slices of
a GPU are also a bit mask (bit i = slice i), for vectorized use: see `placement_masks` and `capacity_table`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from autopilot.core.hardware.mig_facts import MODELS, GpuModel, Profile
from autopilot.core.hardware.mig_profiles import (
    ProfileName,
    compute_share,
    find_gpu_model,
    find_profile,
    find_profile_name,
    gpu_model,
    memory_mib,
    model_profile,
    parse_profile_name,
    resource_name,
)
from autopilot.core.model.errors import InputError

__all__ = [
    "MODELS",
    "GpuModel",
    "MaskedPlacement",
    "Placement",
    "Profile",
    "ProfileName",
    "Scope",
    "Transition",
    "all_sets",
    "capacity_table",
    "compute_share",
    "find_gpu_model",
    "find_profile",
    "find_profile_name",
    "fits",
    "free_capacity",
    "gpu_model",
    "is_legal",
    "mask_of",
    "maximal_sets",
    "memory_mib",
    "model_profile",
    "parse_profile_name",
    "placement_masks",
    "resource_name",
    "transition",
    "why_illegal",
]

Scope = Literal["none", "instance", "gpu"]


class Placement(NamedTuple):
    """A GPU instance: a profile, named as in the facts, at its first memory slice."""

    profile: str
    start: int


class MaskedPlacement(NamedTuple):
    """A possible placement: index into the model's `profiles`, start, and its memory slices as bits."""

    profile_index: int
    start: int
    mask: int


@dataclass(frozen=True, eq=False)
class _Table:
    """Facts of a model in the form of the searches; compared by identity, so it keys caches."""

    model: GpuModel
    profiles: dict[str, Profile]
    masks: tuple[MaskedPlacement, ...]
    options: dict[str, tuple[tuple[int, int], ...]]  # profile -> (start, mask) by start
    bits: dict[tuple[str, int], int]  # placement -> mask
    packing: npt.NDArray[np.int8]  # [mask, profile index]: how many more of that profile fit
    by_size: tuple[int, ...]  # indices of the plain profiles (no variants), largest first
    remainder: tuple[tuple[int, ...], ...]  # mask -> packing of `by_size`


def _table(model: str | GpuModel) -> _Table:
    return _named_table(model) if isinstance(model, str) else _facts_table(model)


@lru_cache(maxsize=256)
def _named_table(name: str) -> _Table:
    return _facts_table(gpu_model(name))


@lru_cache(maxsize=64)
def _facts_table(model: GpuModel) -> _Table:
    masks = tuple(
        MaskedPlacement(index, start, (1 << profile.memory_slices) - 1 << start)
        for index, profile in enumerate(model.profiles)
        for start in profile.starts
    )
    options: dict[str, tuple[tuple[int, int], ...]] = {profile.name: () for profile in model.profiles}
    for index, start, mask in masks:
        options[model.profiles[index].name] += ((start, mask),)
    packing = _packing(model, masks)
    plain = [
        index
        for index, profile in enumerate(model.profiles)
        if (name := find_profile_name(profile.name)) and not name.variant
    ]
    by_size = tuple(sorted(plain, key=lambda index: _size(model.profiles[index]), reverse=True))
    return _Table(
        model=model,
        profiles={profile.name: profile for profile in model.profiles},
        masks=masks,
        options=options,
        bits={(model.profiles[index].name, start): mask for index, start, mask in masks},
        packing=packing,
        by_size=by_size,
        remainder=tuple(map(tuple, packing[:, by_size].tolist())),
    )


def _packing(model: GpuModel, masks: Iterable[MaskedPlacement]) -> npt.NDArray[np.int8]:
    """Per occupied mask and profile: the most instances for the free slices.

    The first free start is optimal, because all instances of a profile have the same length.
    """
    occupied = np.tile(np.arange(1 << model.memory_slices)[:, None], len(model.profiles))
    count = np.zeros(occupied.shape, dtype=np.int8)
    for index, _start, mask in sorted(masks, key=lambda option: option.start):
        free = (occupied[:, index] & mask) == 0
        count[free, index] += 1
        occupied[free, index] |= mask
    most = [1 if profile.media_extension else profile.max_instances for profile in model.profiles]
    packing: npt.NDArray[np.int8] = np.minimum(count, np.array(most, dtype=np.int8))
    packing.flags.writeable = False
    return packing


def _size(profile: Profile) -> tuple[int, int, str]:
    return (profile.memory_slices, profile.compute_slices, profile.name)


def placement_masks(model: str | GpuModel) -> tuple[MaskedPlacement, ...]:
    """Every possible placement, by profile and start; one is free if `occupied_mask & mask == 0`.

    The limits on counts (media extensions) are not in the masks.
    """
    return _table(model).masks


def capacity_table(model: str | GpuModel) -> npt.NDArray[np.int8]:
    """[occupied mask, profile index] -> number of further instances of that profile alone (read-only).

    `capacity_table(m)[masks]` answers for a whole column of GPUs. The table ignores present media extensions;
    `free_capacity` counts them.
    """
    return _table(model).packing


def mask_of(model: str | GpuModel, placements: Iterable[Placement | tuple[str, int]]) -> int:
    """The memory slices under legal `placements`, as bits. Raises `InputError` if illegal."""
    table = _table(model)
    return _mask(table, _legal(table, placements))


def _mask(table: _Table, placements: Iterable[Placement]) -> int:
    mask = 0
    for placement in placements:
        mask |= table.bits[placement]
    return mask


def is_legal(model: str | GpuModel, placements: Iterable[Placement | tuple[str, int]]) -> bool:
    """True if these instances may exist together on one GPU. The empty set is legal."""
    return why_illegal(model, placements) is None


def why_illegal(model: str | GpuModel, placements: Iterable[Placement | tuple[str, int]]) -> str | None:
    """The first reason against these instances, naming profile and start; None if they are legal."""
    table = _table(model)
    occupied: dict[Placement, int] = {}
    for placement in (Placement(*given) for given in placements):
        text = f"{placement.profile} at {placement.start}"
        profile = table.profiles.get(placement.profile)
        if profile is None:
            return f"{text}: {table.model.name} has no such profile, only {', '.join(table.profiles)}"
        mask = table.bits.get(placement)
        if mask is None:
            starts = ", ".join(map(str, profile.starts))
            return f"{text}: on {table.model.name} a {profile.name} starts at {starts} only"
        for other, other_mask in occupied.items():
            if mask & other_mask:
                return f"{text}: overlaps {other.profile} at {other.start}"
        occupied[placement] = mask
        if reason := _over_count(table, Counter(each.profile for each in occupied)):
            return f"{text}: {reason}"
    return None


def _over_count(table: _Table, counts: Counter[str]) -> str | None:
    """The reason against these numbers of instances in every placement."""
    for name, count in counts.items():
        if count > table.profiles[name].max_instances:
            most = table.profiles[name].max_instances
            return f"{count} of {name}, but {table.model.name} takes at most {most}"
    media = sorted(name for name in counts.elements() if table.profiles[name].media_extension)
    if len(media) > 1:
        return f"two media extensions ({' and '.join(media)}), but a GPU has the media engines once"
    return None


def _has_media(table: _Table, placements: Iterable[Placement]) -> bool:
    return any(table.profiles[placement.profile].media_extension for placement in placements)


def _legal(table: _Table, placements: Iterable[Placement | tuple[str, int]]) -> tuple[Placement, ...]:
    given = tuple(Placement(*placement) for placement in placements)
    if reason := why_illegal(table.model, given):
        raise InputError(f"illegal MIG placement on {table.model.name}: {reason}")
    return given


def fits(
    model: str | GpuModel,
    occupied: Iterable[Placement | tuple[str, int]],
    wanted: Sequence[str],
    existing: Iterable[Placement | tuple[str, int]] = (),
) -> tuple[Placement, ...] | None:
    """Placements for all of `wanted` beside `occupied`, in the order of `wanted`; None if they do not fit.

    The search is exact. It chooses the layout by these criteria, in order:

    1. It destroys the fewest of the `existing` free instances, and then uses the most of them. Pass none if free slices
       may be cut in any way.
    2. It leaves the most valuable remainder: the number of each plain profile beside it, compared from the largest
       profile down (keep a 4g before a 3g before a 2g).
    3. It starts latest, larger profiles first, as the driver does.

    An unknown profile does not fit. Raises `InputError` if `occupied`, alone or with `existing`, is illegal.
    """
    table = _table(model)
    held = _legal(table, occupied)
    free = _legal(table, (*held, *existing))[len(held) :]
    if any(name not in table.profiles for name in wanted):
        return None
    ordered = sorted(wanted, key=lambda name: _size(table.profiles[name]), reverse=True)
    layout = _best_layout(table, tuple(sorted(held)), tuple(ordered), tuple(sorted(free)))
    if layout is None:
        return None
    places = list(layout)
    return tuple(
        places.pop(next(index for index, place in enumerate(places) if place.profile == name)) for name in wanted
    )


@lru_cache(maxsize=16384)
def _best_layout(
    table: _Table, held: tuple[Placement, ...], wanted: tuple[str, ...], existing: tuple[Placement, ...]
) -> tuple[Placement, ...] | None:
    if _over_count(table, Counter([*wanted, *(placement.profile for placement in held)])):
        return None
    occupied = _mask(table, held)

    def value(layout: tuple[Placement, ...]) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
        mask, media = _mask(table, layout), _has_media(table, layout)
        spared = sum(
            not (table.bits[free] & mask or (media and table.profiles[free.profile].media_extension))
            for free in existing
            if free not in layout
        )
        reused = sum(free in layout for free in existing)
        starts = tuple(placement.start for placement in layout)
        return spared + reused, reused, table.remainder[occupied | mask], starts

    return max(_layouts(table, occupied, wanted, -1), key=value, default=None)


def _layouts(table: _Table, occupied: int, wanted: tuple[str, ...], after: int) -> Iterator[tuple[Placement, ...]]:
    """Every way to place `wanted`; equal neighbours by rising start (first one past `after`)."""
    if not wanted:
        yield ()
        return
    name, rest = wanted[0], wanted[1:]
    for start, mask in table.options[name]:
        if start > after and not occupied & mask:
            least = start if rest and rest[0] == name else -1
            for others in _layouts(table, occupied | mask, rest, least):
                yield (Placement(name, start), *others)


def free_capacity(model: str | GpuModel, occupied: Iterable[Placement | tuple[str, int]]) -> dict[str, int]:
    """{profile: number of further instances of it alone}, every profile of the model. Raises `InputError`."""
    table = _table(model)
    held = _legal(table, occupied)
    row = table.packing[_mask(table, held)]
    counts = Counter(placement.profile for placement in held)
    media = _has_media(table, held)
    return {
        name: 0
        if media and profile.media_extension
        else max(0, min(int(row[index]), profile.max_instances - counts[name]))
        for index, (name, profile) in enumerate(table.profiles.items())
    }


def all_sets(
    model: str | GpuModel, core_only: bool = True, profiles: Sequence[str] | None = None
) -> tuple[frozenset[Placement], ...]:
    """Every legal non-empty set of placements of the core profiles, of all, or of `profiles`."""
    table = _table(model)
    return _sets(table, _names(table, core_only, profiles))


def maximal_sets(
    model: str | GpuModel, core_only: bool = True, profiles: Sequence[str] | None = None
) -> tuple[frozenset[Placement], ...]:
    """The members of `all_sets` without room for a further placement of the same profiles."""
    table = _table(model)
    return _maximal(table, _names(table, core_only, profiles))


def _names(table: _Table, core_only: bool, profiles: Sequence[str] | None) -> tuple[str, ...]:
    if profiles is not None:
        return tuple(dict.fromkeys(model_profile(table.model, name).name for name in profiles))
    return table.model.core_profiles if core_only else tuple(table.profiles)


@lru_cache(maxsize=64)
def _sets(table: _Table, names: tuple[str, ...]) -> tuple[frozenset[Placement], ...]:
    found: list[frozenset[Placement]] = []
    options = sorted((start, mask, name) for name in names for start, mask in table.options[name])

    def grow(chosen: tuple[Placement, ...], occupied: int, first: int) -> None:
        for index in range(first, len(options)):
            start, mask, name = options[index]
            grown = (*chosen, Placement(name, start))
            if occupied & mask or _over_count(table, Counter(each.profile for each in grown)):
                continue
            found.append(frozenset(grown))
            grow(grown, occupied | mask, index + 1)

    grow((), 0, 0)
    return tuple(found)


@lru_cache(maxsize=64)
def _maximal(table: _Table, names: tuple[str, ...]) -> tuple[frozenset[Placement], ...]:
    sets = _sets(table, names)
    extendable = {each - {placement} for each in sets for placement in each}
    return tuple(each for each in sets if each not in extendable)


@dataclass(frozen=True, slots=True)
class Transition:
    """The change of one GPU to another geometry: first `destroy`, then `create`; `keep` is not touched.

    The GPU is legal after each step in that order. `drain` are the destroyed instances in use; their work must end
    first. Scope: `none` (nothing changes), `instance` (free instances only), `gpu` (instances in use are destroyed, or
    MIG mode is switched; no client may run on the GPU). `resets_gpu`: an Ampere GPU resets at a switch of MIG mode. The
    caller determines the cost, by its actuator.
    """

    destroy: tuple[Placement, ...]
    create: tuple[Placement, ...]
    keep: tuple[Placement, ...]
    drain: tuple[Placement, ...]
    scope: Scope
    switches_mode: bool
    resets_gpu: bool


def transition(
    model: str | GpuModel,
    current: Iterable[Placement | tuple[str, int]] | None,
    wanted: Iterable[Placement | tuple[str, int]] | None,
    in_use: Collection[Placement | tuple[str, int]] = (),
) -> Transition:
    """The least change from `current` to `wanted`; None for either means MIG mode off.

    Instances with the same profile and start in both are kept. Raises `InputError` if either is illegal, or if
    `in_use` names an instance outside `current`.
    """
    table = _table(model)
    now, then = set(_legal(table, current or ())), set(_legal(table, wanted or ()))
    used = {Placement(*placement) for placement in in_use}
    if strangers := sorted(used - now):
        name, start = strangers[0]
        raise InputError(f"{name} at {start} is said to be in use, but is not on the {table.model.name}")
    switches_mode = (current is None) != (wanted is None)
    drain = used - then
    scope: Scope = "gpu" if drain or switches_mode else "instance" if now != then else "none"

    def by_start(placements: set[Placement]) -> tuple[Placement, ...]:
        return tuple(sorted(placements, key=lambda placement: (placement.start, placement.profile)))

    return Transition(
        destroy=by_start(now - then),
        create=by_start(then - now),
        keep=by_start(now & then),
        drain=by_start(drain),
        scope=scope,
        switches_mode=switches_mode,
        resets_gpu=switches_mode and table.model.architecture == "ampere",
    )
