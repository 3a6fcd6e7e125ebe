"""Free capacity as histograms: as it is, and with one obstacle after another removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from autopilot.core.hardware.mig import capacity_table, placement_masks
from autopilot.core.hardware.mig_profiles import find_gpu_model
from autopilot.core.model.pairs import pairs_of
from autopilot.core.model.snapshot import GPU_MILLI, I64, Bools, Topology
from autopilot.core.placement.fragmentation.demand import UNITS, profile_units
from autopilot.core.placement.shapes import level_of
from autopilot.core.placement.whatif import WhatIf

COARSE_FIRST = (Topology.ZONE, Topology.BLOCK, Topology.LEAF, Topology.ISLAND)


@dataclass(frozen=True, slots=True)
class Domains:
    """Nodes of one GPU model in one of the domains that some gang needs, in an order in which larger domains are
    contiguous.
    """

    of_node: I64  # [nodes]; -1: not in the pool
    model: I64  # [domains]
    node_gpus: I64  # [domains] GPUs of its largest node
    nodes: I64  # [domains]
    starts: dict[int, I64]  # first domain of each group, by level of topology


@dataclass(frozen=True, slots=True)
class Supply:
    """Free capacity. `nodes` [domains, free GPUs + 1] counts nodes, `parts` [models, free units + 1] GPUs that are in
    part in use.

    `idle` [models, profiles] counts MIG instances; `cuts` counts MIG GPUs that may be cut anew by model and occupied
    slices. It is None where MIG requests take existing instances only.
    """

    nodes: I64
    parts: I64
    idle: I64
    cuts: dict[tuple[int, int], int] | None


def domains_of(whatif: WhatIf, inside: Bools, levels: Sequence[int]) -> Domains:
    """The domains of the nodes `inside`, split by the `levels` of topology that gangs need."""
    table = whatif.snapshot.nodes
    asked = [level for level in COARSE_FIRST if level in levels]
    columns = [column for level in asked if (column := level_of(table, level)) is not None]
    rows = np.flatnonzero(inside)
    key = np.stack([*(column[rows] for column in columns), table.gpu_model[rows]], axis=1).astype(np.int64)
    if key.shape[1] == 1:  # the usual case, and several times as fast
        models, place = np.unique(key[:, 0], return_inverse=True)
        found = models[:, None]
    else:
        found, place = np.unique(key, axis=0, return_inverse=True)
    of_node = np.full(len(table.id), -1, np.int64)
    of_node[rows] = place
    node_gpus = np.zeros(len(found), np.int64)
    np.maximum.at(node_gpus, place, table.gpus[rows])
    starts = {}
    for depth, level in enumerate(asked, 1):
        changes = (np.diff(found[:, :depth], axis=0) != 0).any(axis=1)
        starts[int(level)] = np.concatenate([[0], np.flatnonzero(changes) + 1]).astype(np.int64)
    return Domains(of_node, found[:, -1], node_gpus, np.bincount(place, minlength=len(found)), starts)


class Stock:
    """The free capacity of the nodes of one pool, to be shown with more and more obstacles removed."""

    def __init__(self, whatif: WhatIf, inside: Bools, domains: Domains) -> None:
        gpus = whatif.snapshot.gpus
        self._domains = domains
        self._rows = np.flatnonzero(inside)
        self._models = len(whatif.snapshot.names.gpu_models)
        self._most = int(domains.node_gpus.max(initial=0))
        self._free = whatif.node_free.astype(np.int64)
        self._model_of_node = whatif.snapshot.nodes.gpu_model
        part = np.flatnonzero(
            inside[gpus.node] & whatif.gpu_whole & (whatif.gpu_used > 0) & (whatif.gpu_used < GPU_MILLI)
        )
        self._part_node = gpus.node[part]
        self._part_units = (GPU_MILLI - whatif.gpu_used[part].astype(np.int64)) * UNITS // GPU_MILLI
        self._idle = np.zeros((self._models, len(whatif.snapshot.names.profiles)), np.int64)
        self._cut = np.flatnonzero(inside[gpus.node] & gpus.mig & whatif.gpu_ok & whatif.node_ok[gpus.node])
        self._cut_node, self._cut_units = gpus.node[self._cut], np.full(len(self._cut), UNITS, np.int64)
        self._cut_mask = np.zeros(len(self._cut), np.int64)
        if len(self._cut):
            self._read_cuts(whatif)
        units = self._free * UNITS
        np.add.at(units, self._part_node, self._part_units)
        np.add.at(units, self._cut_node, self._cut_units)
        self.units = np.where(inside, units, 0)

    def _read_cuts(self, whatif: WhatIf) -> None:
        """Idle instances, and what instances in use leave of their GPUs."""
        snapshot = whatif.snapshot
        place = np.full(len(snapshot.gpus.uuid), -1, np.int64)
        place[self._cut] = np.arange(len(self._cut))
        there = np.flatnonzero(whatif.instance_alive & (place[whatif.instance_gpu] >= 0))
        profile, gpu = whatif.instance_profile[there], whatif.instance_gpu[there]
        used = whatif.instance_used[there] > 0
        model = self._model_of_node[snapshot.gpus.node[gpu]]
        np.add.at(self._idle, (model[~used], profile[~used]), 1)
        units = np.array(
            [profile_units(snapshot.names, each) for each in range(len(snapshot.names.profiles))], np.int64
        )
        np.subtract.at(self._cut_units, place[gpu[used]], units[profile[used]])
        self._cut_units = np.maximum(self._cut_units, 0)
        slices = np.array(
            [
                [_slices(name, profile_name) for profile_name in snapshot.names.profiles]
                for name in snapshot.names.gpu_models
            ],
            np.int64,
        ).reshape(self._models, -1)
        taken = ((1 << slices[model[used], profile[used]]) - 1) << whatif.instance_start[there[used]].astype(np.int64)
        np.bitwise_or.at(self._cut_mask, place[gpu[used]], taken)

    @property
    def gpus(self) -> float:
        """Free GPUs in all."""
        return float(self.units.sum()) / UNITS

    @property
    def cut(self) -> bool:
        """True if MIG GPUs have free capacity."""
        return bool(self._cut_units.any())

    @property
    def parted(self) -> bool:
        """True if free capacity is spread over parts of GPUs."""
        return bool(len(self._part_units)) or self.cut

    def as_is(self) -> Supply:
        """Nothing removed."""
        return Supply(self._by_domain(self._free), self._parts(), self._idle, None)

    def recut(self) -> Supply:
        """MIG GPUs may be cut anew around the instances in use; those without any are whole GPUs again."""
        empty = self._cut_mask == 0
        more = np.bincount(self._cut_node[empty], minlength=len(self._free))
        pairs, pair_of = pairs_of(self._model_of_node[self._cut_node[~empty]], self._cut_mask[~empty])
        cuts = dict(zip(pairs, np.bincount(pair_of, minlength=len(pairs)).tolist(), strict=True))
        return Supply(self._by_domain(self._free + more), self._parts(), np.zeros_like(self._idle), cuts)

    def whole_gpus(self) -> Supply:
        """The free parts of each node joined in whole GPUs."""
        return self._joined(self._by_domain(self.units // UNITS), self.units[self._rows], self._rows)

    def whole_nodes(self) -> Supply:
        """The free capacity of each domain joined in whole nodes."""
        units = np.bincount(self._domains.of_node[self._rows], self.units[self._rows], len(self._domains.model))
        bins = np.zeros((len(units), self._most + 1), np.int64)
        whole = units.astype(np.int64) // UNITS
        _fill(bins, np.arange(len(units)), whole, self._domains.node_gpus)
        return self._joined(bins, units.astype(np.int64), None)

    def one_domain(self, *, any_model: bool = False) -> Supply:
        """The free capacity of each GPU model, or of all, joined in whole nodes of as few domains as possible."""
        domains, bins = self._domains, np.zeros((len(self._domains.model), self._most + 1), np.int64)
        of_domain = np.bincount(domains.of_node[self._rows], self.units[self._rows], len(domains.model))
        group = np.zeros_like(domains.model) if any_model else domains.model
        parts = np.zeros((self._models, UNITS + 1), np.int64)
        for each in np.unique(group).tolist():
            members = np.flatnonzero(group == each)
            units = int(of_domain[members].sum())
            members = members[np.argsort(-domains.nodes[members] * domains.node_gpus[members], kind="stable")]
            room = (domains.nodes * domains.node_gpus)[members]
            whole = np.clip(units // UNITS - (np.cumsum(room) - room), 0, room)
            _fill(bins, members, whole, domains.node_gpus[members])
            parts[domains.model[members[0]], units % UNITS] += 1
        return Supply(bins, _without_empty(parts), np.zeros_like(self._idle), {})

    def _by_domain(self, free: I64) -> I64:
        bins = np.zeros((len(self._domains.model), self._most + 1), np.int64)
        np.add.at(bins, (self._domains.of_node[self._rows], free[self._rows]), 1)
        return bins

    def _parts(self) -> I64:
        parts = np.zeros((self._models, UNITS + 1), np.int64)
        np.add.at(parts, (self._model_of_node[self._part_node], self._part_units), 1)
        return _without_empty(parts)

    def _joined(self, bins: I64, units: I64, nodes: I64 | None) -> Supply:
        model = self._domains.model if nodes is None else self._model_of_node[nodes]
        parts = np.zeros((self._models, UNITS + 1), np.int64)
        np.add.at(parts, (model, units % UNITS), 1)
        return Supply(bins, _without_empty(parts), np.zeros_like(self._idle), {})


def _fill(bins: I64, domain: I64, gpus: I64, node_gpus: I64) -> None:
    """Add to `bins` as many whole nodes as `gpus` GPUs of each domain make, and one node with the rest."""
    size = np.maximum(node_gpus, 1)
    np.add.at(bins, (domain, size), gpus // size)
    np.add.at(bins, (domain, gpus % size), 1)


def _without_empty(parts: I64) -> I64:
    parts[:, 0] = 0
    return parts


@lru_cache(maxsize=256)
def _slices(model: str, profile: str) -> int:
    """Memory slices of a profile on a GPU model; those of a whole GPU where it is unknown, so that nothing is free."""
    facts = find_gpu_model(model)
    if facts is None:
        return 8
    return next((each.memory_slices for each in facts.profiles if each.name == profile), facts.memory_slices)


@lru_cache(maxsize=256)
def _steps(model: str, profile: str) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """By occupied slices: how many instances of the profile still fit, and the slices occupied with one more."""
    facts = find_gpu_model(model)
    index = (
        None if facts is None else next((at for at, each in enumerate(facts.profiles) if each.name == profile), None)
    )
    if facts is None or index is None:
        return None
    table = capacity_table(facts)
    ways = [each.mask for each in placement_masks(facts) if each.profile_index == index]
    after = [next((mask | way for way in ways if not mask & way), mask) for mask in range(len(table))]
    return tuple(table[:, index].tolist()), tuple(after)


def recut_for(cuts: dict[tuple[int, int], int], names: Sequence[str], profile: str, models: int, wanted: int) -> int:
    """Place up to `wanted` instances of a profile on MIG GPUs that may be cut anew; `cuts` is updated.

    GPUs that hold few more go first. `models`: bit set, 0: any.
    """
    placed = 0
    usable = [key for key in cuts if (not models or models >> key[0] & 1) and _steps(names[key[0]], profile)]
    room = {key: _steps(names[key[0]], profile)[0][key[1]] for key in usable}  # type: ignore[index]
    for model, mask in sorted((key for key in usable if room[key]), key=lambda key: (room[key], key)):
        steps = _steps(names[model], profile)
        each = room[model, mask]
        while steps is not None and cuts[model, mask] and placed < wanted:
            gpus = max(min(cuts[model, mask], (wanted - placed) // each), 1)
            take, after = min(each, wanted - placed), mask
            for _ in range(take):
                after = steps[1][after]
            cuts[model, mask] -= gpus
            cuts[model, after] = cuts.get((model, after), 0) + gpus
            placed += gpus * take
    return placed


def copies(supply: Supply, draws: int) -> Supply:
    """The same for each draw: `nodes` and `parts` get an axis of draws."""
    return replace(supply, nodes=np.repeat(supply.nodes[None], draws, 0), parts=np.repeat(supply.parts[None], draws, 0))
