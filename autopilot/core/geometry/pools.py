"""The GPUs of a snapshot that can be cut, by pool and model, in the form planned by `cutting`.

A GPU whose instances cannot be together, have no known place, or have a profile missing from its model is left out,
with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autopilot.core.geometry.layouts import Layouts, bit_of, layouts_of, profiles_for
from autopilot.core.hardware import mig
from autopilot.core.model.objects import MIG_SCOPES
from autopilot.core.model.pairs import pairs_of
from autopilot.core.model.snapshot import F64, I32, I64, Bools, ClusterSnapshot


@dataclass(frozen=True, slots=True)
class Pool:
    """The GPUs of one model in one pool. Columns are [gpus], in the order of `rows` (rows of GpuTable)."""

    name: str
    model: int  # code of Names.gpu_models
    layouts: Layouts
    rows: I32
    used: I64
    free: I64
    in_mig: Bools
    sound: Bools  # False: left out
    scopes: int  # in which all of its nodes that change can change: bits over MIG_SCOPES

    def has(self, scope: str) -> bool:
        """Whether its engine changes geometries in this scope."""
        return bool(self.scopes >> MIG_SCOPES.index(scope) & 1)

    @property
    def scope(self) -> str:
        """The smallest scope in which it changes; "" for none."""
        return next(filter(self.has, MIG_SCOPES), "")

    @property
    def drained(self) -> str:
        """The smallest scope for which it is worth draining; "" for none."""
        return next(filter(self.has, MIG_SCOPES[1:]), "")


@dataclass(frozen=True, slots=True)
class Books:
    """Instances and GPUs in the capacity books of a tick (placement/whatif.py)."""

    gpu: I32  # of each instance
    profile: I32
    start: I32
    alive: Bools
    used: Bools
    gpu_used: Bools  # whole GPUs or shares of them


def pools_of(snapshot: ClusterSnapshot, books: Books, wanted: tuple[str, ...]) -> tuple[Pool, ...]:
    """Every pool and model with MIG; `wanted` are further profile names that matter."""
    nodes, gpus, names = snapshot.nodes, snapshot.gpus, snapshot.names
    pairs, pair_of = pairs_of(nodes.pool[gpus.node], nodes.gpu_model[gpus.node])
    found = []
    for place, (pool, model) in enumerate(pairs):
        facts = mig.find_gpu_model(names.gpu_models[model]) if model >= 0 else None
        rows = np.flatnonzero(pair_of == place).astype(np.int32)
        mine = books.alive & np.isin(books.gpu, rows)
        if facts is None or not (gpus.mig[rows].any() or wanted):
            continue
        profile = {
            code: mig.find_profile(facts, names.profiles[code]) for code in np.unique(books.profile[mine]).tolist()
        }
        present = tuple(each.name for each in profile.values() if each is not None)
        own = tuple(each.name for name in wanted if (each := mig.find_profile(facts, name)) is not None)
        if not (gpus.mig[rows].any() or own):
            continue
        layouts = layouts_of(facts.name, profiles_for(facts, (*present, *own)))
        used, free, sound = _bits(
            layouts, books, mine, {code: each.name for code, each in profile.items() if each}, rows
        )
        name = names.pools[pool] if 0 <= pool < len(names.pools) else ""
        stated = nodes.mig_scopes[gpus.node[rows]]
        scopes = int(np.bitwise_and.reduce(stated[stated > 0])) if stated.any() else 0
        found.append(Pool(name, model, layouts, rows, used, free, gpus.mig[rows], sound, scopes))
    return tuple(found)


def _bits(layouts: Layouts, books: Books, mine: Bools, profile: dict[int, str], rows: I32) -> tuple[I64, I64, Bools]:
    """Instances in use, free ones, and True for a legal geometry. [gpus] each."""
    at = np.flatnonzero(mine)
    pairs, pair_of = pairs_of(books.profile[at], books.start[at])
    bit = np.array([bit_of(layouts.model, profile.get(code, ""), start) for code, start in pairs], np.int64)[pair_of]
    gpu = np.searchsorted(rows, books.gpu[at])
    masks = np.array([each.mask for each in mig.placement_masks(layouts.model)], np.int64)
    known = bit >= 0
    bits, mask = np.where(known, 1 << np.maximum(bit, 0), 0), np.where(known, masks[np.maximum(bit, 0)], 0)
    used, free, slices, total = (np.zeros(len(rows), np.int64) for _ in range(4))
    busy = books.used[at]
    np.bitwise_or.at(used, gpu[busy], bits[busy])
    np.bitwise_or.at(free, gpu[~busy], bits[~busy])
    np.bitwise_or.at(slices, gpu, mask)
    np.add.at(total, gpu, mask)  # equal where nothing overlaps
    sound = slices == total
    sound[gpu[~known]] = False
    for row in np.flatnonzero(sound & _has_variant(layouts, used | free)).tolist():
        places = [(profile[int(books.profile[each])], int(books.start[each])) for each in at[gpu == row].tolist()]
        sound[row] = mig.is_legal(layouts.model, places)
    return used, free, sound


def _has_variant(layouts: Layouts, bits: I64) -> Bools:
    """GPUs with a media extension: their number is limited, so overlap alone does not decide if they are legal."""
    limited = sum(
        1 << bit
        for bit, each in enumerate(mig.placement_masks(layouts.model))
        if layouts.model.profiles[each.profile_index].media_extension
    )
    return np.asarray((bits & limited) != 0)


def shares_of(layouts: Layouts) -> F64:
    """[profiles] the part of a GPU in one instance."""
    return np.array([float(mig.compute_share(layouts.model, name)) for name in layouts.profiles])
