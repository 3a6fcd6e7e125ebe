"""The MIG instances of a node with a difference between its exporter and its device plugin.

The plugin gives the number of instances of each profile on a node, and the exporter their GPUs. An exporter lags behind
a change of geometry, and spells profiles in other ways or not at all. Its instances count as far as they agree with the
plugin. Others of the same profile keep their ids; the rest is laid out. A GPU with a guessed layout takes no new work.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import lru_cache

from autopilot.core.hardware import mig
from autopilot.core.hardware.mig_facts import GpuModel
from autopilot.core.hardware.mig_profiles import find_gpu_model, find_profile
from collectors.kubernetes.devices import Gpu, Part, Problems
from collectors.kubernetes.nodes import NodeFacts

FIRST_GUESS = 100
"""GI id of the first instance without a known one: above those of any GPU."""


@dataclass(slots=True)
class _Cut:
    """One GPU in MIG mode: the exporter's counted instances, its dropped ones, and the added profiles."""

    gpu: Gpu
    kept: list[Part] = field(default_factory=list)
    dropped: list[Part] = field(default_factory=list)
    added: list[str] = field(default_factory=list)

    @property
    def profiles(self) -> list[str]:
        return [*(part.profile for part in self.kept), *self.added]

    def made(self, model: GpuModel, *, sure: bool) -> Gpu:
        """The GPU with its instances. Unnamed dropped instances get the added profile, if there is one profile and as
        many.
        """
        unnamed = not any(part.profile for part in self.dropped) and len(self.dropped) == len(self.added)
        same = unnamed and len(set(self.added)) <= 1
        ids = [part.gi_id for part in self.kept]
        ids += [part.gi_id for part in self.dropped] if same else range(FIRST_GUESS, FIRST_GUESS + len(self.added))
        places = mig.fits(model, (), self.profiles) or ()
        parts = tuple(Part(gi_id, each.profile, each.start) for gi_id, each in zip(ids, places, strict=True))
        return replace(self.gpu, mig=True, parts=parts, usable=self.gpu.usable and sure and same)


def agreed(facts: NodeFacts, known: tuple[Gpu, ...]) -> tuple[tuple[Gpu, ...], Problems]:
    """The GPUs of a source, with the instances of the node. Problems are (signal, reason)."""
    if facts.by_claims or not (facts.profiles or any(gpu.parts for gpu in known)):
        return known, ()
    want = Counter(dict(facts.profiles))
    have = Counter(part.profile for gpu in known for part in gpu.parts)
    missing = len(known) < facts.gpus  # the others may have the rest
    if all(part.start >= 0 for gpu in known for part in gpu.parts):
        if have == want or (missing and have <= want):
            return known, ()
        if want <= have:  # it offers fewer than there are, because some are unhealthy or its geometry changes
            return known, (("mig", f"{_unlike(have, want)}; those of the exporter count"),)
    all_cut = facts.cut == facts.gpus
    cuts = {gpu.uuid: _Cut(gpu) for gpu in known if gpu.mig or all_cut}
    left = Counter(want)
    for cut in cuts.values():
        for part in cut.gpu.parts:
            counts = left[part.profile] > 0
            left[part.profile] -= counts
            (cut.kept if counts else cut.dropped).append(part)
    model, problem = find_gpu_model(facts.model), (("mig", f"{_unlike(have, want)}; those of the plugin count"),)
    if model is None:
        return tuple(replace(gpu, parts=(), usable=not gpu.mig and gpu.usable) for gpu in known), problem
    lost = any(
        [not _added(model, list(cuts.values()), name) for name in _widest_first(model, left)] if not missing else ()
    )
    return tuple(cuts[gpu.uuid].made(model, sure=not lost) if gpu.uuid in cuts else gpu for gpu in known), problem


def _widest_first(model: GpuModel, left: Counter[str]) -> list[str]:
    def slices(name: str) -> int:
        profile = find_profile(model, name)
        return profile.memory_slices if profile is not None else 0

    return sorted(left.elements(), key=lambda name: (-slices(name), name))


def _added(model: GpuModel, cuts: list[_Cut], name: str) -> bool:
    """True if one more instance fits on one of these GPUs; GPUs with the most dropped instances come first."""
    for cut in sorted(cuts, key=lambda each: len(each.added) - len(each.dropped)):
        if mig.fits(model, (), [*cut.profiles, name]) is not None:
            cut.added.append(name)
            return True
    return False


def _unlike(have: Counter[str], want: Counter[str]) -> str:
    return f"an exporter shows the MIG instances {_named(have)}, and the device plugin offers {_named(want)}"


def _named(profiles: Counter[str]) -> str:
    """`2 x 3g.40gb`, for a message."""
    found = [f"{count} x {name or 'without a profile'}" for name, count in sorted(profiles.items()) if count]
    return ", ".join(found) or "none"


@lru_cache(maxsize=4096)
def on_demand(model_name: str, parts: tuple[Part, ...], places: tuple[tuple[str, int], ...] | None) -> int:
    """Possible places of further instances beside the existing ones, as in `GpuTable`; -1 for static MIG."""
    model = find_gpu_model(model_name)
    if places is None:
        return -1
    held = [(part.profile, part.start) for part in parts]
    if model is None or not mig.is_legal(model, held):
        return 0
    options = [(model.profiles[each.profile_index].name, each.start) for each in mig.placement_masks(model)]
    may = (option in places and mig.is_legal(model, [*held, option]) for option in options)
    return sum(1 << number for number, made in enumerate(may) if made)
