"""The same cluster under other numbers: names interned in another order, and rows in another order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autopilot.core.model.snapshot import ClusterSnapshot, Names, take


@dataclass(frozen=True)
class _Codes:
    """New codes of the old names; `names` in the order of the new codes."""

    of: tuple[int, ...]
    names: tuple[str, ...]

    def codes(self, old: Any) -> Any:
        """A column of codes; -1 and -2 stay."""
        table = np.array([*self.of, -2, -1])  # negative codes count from the end
        return table[old].astype(old.dtype)

    def columns(self, old: Any) -> Any:
        """The bits of labels of nodes."""
        bits = np.unpackbits(old, axis=1, count=len(self.of), bitorder="little")
        new = np.zeros((len(old), len(self.names)), np.uint8)
        new[:, list(self.of)] = bits
        return np.packbits(new, axis=1, bitorder="little")

    def bits(self, old: Any) -> Any:
        """A column of bit sets."""
        new = np.zeros_like(old)
        for before, after in enumerate(self.of):
            new |= ((old >> before) & 1) << after
        return new


def _interned(names: Sequence[str], more: Sequence[str], rng: np.random.Generator) -> _Codes:
    every = [*names, *more]
    order = rng.permutation(len(every))
    place = np.argsort(order)
    return _Codes(tuple(place[: len(names)].tolist()), tuple(every[each] for each in order))


def renumbered(snap: ClusterSnapshot, rng: np.random.Generator, more: int = 3) -> ClusterSnapshot:
    """Every table of names in another order, with `more` names beside them that nothing uses."""
    names, work, queues = snap.names, snap.workloads, snap.queues
    kinds = ("gpu_models", "pools", "tenants", "profiles", "labels")
    models, pools, tenants, profiles, labels = (
        _interned(getattr(names, kind), [f"{kind}-{number}" for number in range(more)], rng) for kind in kinds
    )
    order = [0, *(1 + rng.permutation(len(names.selectors) - 1))]  # the first one asks for nothing
    chosen = tuple(tuple(sorted(labels.of[each] for each in names.selectors[old])) for old in order)
    places = np.argsort(order)
    by_model = {
        name: _columns(getattr(queues, name), models, empty)
        for name, empty in (("guarantee", 0), ("limit_by_model", -1), ("weight_by_model", np.nan))
    }
    return replace(
        snap,
        names=Names(models.names, pools.names, tenants.names, profiles.names, labels.names, chosen),
        nodes=replace(
            snap.nodes,
            pool=pools.codes(snap.nodes.pool),
            gpu_model=models.codes(snap.nodes.gpu_model),
            labels=labels.columns(snap.nodes.labels),
        ),
        instances=replace(snap.instances, profile=profiles.codes(snap.instances.profile)),
        workloads=replace(
            work,
            tenant=tenants.codes(work.tenant),
            mig_profile=profiles.codes(work.mig_profile),
            gpu_models=models.bits(work.gpu_models),
            selector=places[work.selector].astype(np.int32),
        ),
        members=replace(
            snap.members,
            selector=places[snap.members.selector].astype(np.int32),
            mig_profile=profiles.codes(snap.members.mig_profile),
        ),
        queues=replace(queues, **by_model),
    )


def _columns(old: Any, models: _Codes, empty: float) -> Any:
    """A table with one column for each model."""
    if not old.shape[1]:
        return old
    new = np.full((len(old), len(models.names)), empty, old.dtype)
    new[:, list(models.of)] = old
    return new


def shuffled(snap: ClusterSnapshot, rng: np.random.Generator) -> ClusterSnapshot:
    """The rows of nodes, GPUs, instances, workloads, members and placements in another order."""
    nodes, work = rng.permutation(len(snap.nodes.id)), rng.permutation(len(snap.workloads.id))
    first, count = snap.nodes.first_gpu, snap.nodes.gpus
    gpus = np.concatenate([np.arange(first[node], first[node] + count[node]) for node in nodes.tolist()])
    cuts = np.argsort(_places(gpus)[snap.instances.gpu], kind="stable") if len(snap.instances.id) else np.arange(0)
    node_of, gpu_of, cut_of, work_of = map(_places, (nodes, gpus, cuts, work))
    held, members = snap.placements, snap.members
    some, each = rng.permutation(len(held.workload)), rng.permutation(len(members.id))
    held = take(held, some)
    return replace(
        snap,
        nodes=replace(take(snap.nodes, nodes), first_gpu=(np.cumsum(count[nodes]) - count[nodes]).astype(first.dtype)),
        gpus=replace(take(snap.gpus, gpus), node=node_of[snap.gpus.node[gpus]]),
        instances=replace(take(snap.instances, cuts), gpu=gpu_of[snap.instances.gpu[cuts]]),
        workloads=take(snap.workloads, work),
        members=replace(take(members, each), workload=work_of[members.workload[each]]),
        placements=replace(
            held,
            workload=work_of[held.workload],
            node=node_of[held.node],
            gpu=gpu_of[held.gpu],
            instance=np.append(cut_of, -1)[held.instance].astype(np.int32),
        ),
    )


def _places(order: Any) -> Any:
    """The new row of each old one."""
    return np.argsort(order).astype(np.int32)
