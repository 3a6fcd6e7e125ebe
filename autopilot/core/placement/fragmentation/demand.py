"""Demand as kinds of gangs with their numbers: what is pending, and what the expected mix brings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from autopilot.core.hardware.mig import compute_share, find_gpu_model
from autopilot.core.model.forecast import ExpectedMix
from autopilot.core.model.snapshot import F64, GPU_MILLI, I64, Bools, ClusterSnapshot, Names, State, Topology
from autopilot.core.model.work import held_gpus

UNITS = 140
"""Units of a GPU: a compute slice of seven is 20, a twentieth is 7."""

DRAWS = 64
"""Draws of the expected mix over which its fit is a mean: a power of two."""

LONGEST = 256
"""Gangs of a draw; a larger one repeats them."""

GOLDEN, SILVER = 0.6180339887498949, 0.4142135623730951
"""Parts of the golden and the silver ratio, whose multiples spread evenly."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Gangs of `members` x `size` GPUs; with `units` > 0 each member is that part of one GPU, with a `profile` on one
    MIG instance.
    """

    members: int
    size: int
    units: int = 0
    profile: int = -1  # code of Names.profiles
    models: int = 0  # bit set over Names.gpu_models; 0: any
    topology: int = int(Topology.NONE)

    @property
    def gpus(self) -> float:
        """GPUs of a gang."""
        return self.members * (self.units / UNITS if self.units else float(self.size))


@dataclass(frozen=True, slots=True)
class Demand:
    """Kinds, the hardest first, and how many of each: `count` [draws, kinds], and without quota `free_of_quota`."""

    kinds: tuple[Kind, ...]
    count: I64
    free_of_quota: I64

    @property
    def sizes(self) -> F64:
        """GPUs of a gang of each kind. Shape [kinds]."""
        return _sizes(self.kinds)

    @property
    def gpus(self) -> float:
        """GPUs in all, as a mean over the draws and without quota."""
        return float((self.free_of_quota @ self.sizes).mean()) if self.kinds else 0.0


def _sizes(kinds: tuple[Kind, ...]) -> F64:
    return np.array([kind.gpus for kind in kinds], float)


def _hardest_first(kind: Kind) -> tuple[int, ...]:
    """Order of packing: whole GPUs before parts, large members before small ones, wide gangs before narrow ones."""
    bound = int(kind.topology not in (Topology.NONE, Topology.SPREAD))
    return (-int(kind.units == 0), -kind.size, -kind.units, -bound, -kind.members, kind.models, kind.profile)


def pending_demand(snapshot: ClusterSnapshot) -> Demand:
    """What waits, at its least width; without quota, and as far as the limits of queues let it start."""
    work = snapshot.workloads
    rows = np.flatnonzero((work.state == State.PENDING) & (work.min_gpus > 0))
    if not len(rows):
        return Demand((), np.zeros((1, 0), np.int64), np.zeros((1, 0), np.int64))
    columns = (
        work.min_gpus,
        np.minimum(np.maximum(work.gpus_per_member, 1), work.min_gpus),
        work.gpu_milli,
        work.mig_profile,
        work.gpu_models,
        work.topology,
    )
    asked = list(zip(*(column[rows].tolist() for column in columns), strict=True))
    found = {row: place for place, row in enumerate(sorted(set(asked)))}
    kind_of = np.array([found[row] for row in asked], np.int64)
    kinds = [kind_of_columns(row[0], row[1], row[2], row[3], row[4], row[5], snapshot.names) for row in found]
    gpus = _sizes(tuple(kinds))[kind_of]
    allowed = within_limits(snapshot, work.queue[rows].astype(np.int64), gpus)
    order = sorted(range(len(kinds)), key=lambda place: _hardest_first(kinds[place]))
    every = np.bincount(kind_of, minlength=len(kinds))[order]
    some = np.bincount(kind_of[allowed], minlength=len(kinds))[order]
    return Demand(tuple(kinds[place] for place in order), some[None, :], every[None, :])


def kind_of_columns(gpus: int, each: int, milli: int, profile: int, models: int, topology: int, names: Names) -> Kind:
    """The kind of a gang from its columns. A last member that is smaller counts as a whole one."""
    if profile >= 0:
        return Kind(gpus, 1, profile_units(names, profile), profile, models, topology)
    if milli > 0:
        return Kind(gpus, 1, -(-milli * UNITS // GPU_MILLI), -1, models, topology)
    return Kind(-(-gpus // each), each, 0, -1, models, topology)


def profile_units(names: Names, profile: int) -> int:
    """Units of a MIG instance: its compute slices on the first GPU model that has the profile, else a whole GPU."""
    return _units(names.gpu_models, names.profiles[profile])


@lru_cache(maxsize=256)
def _units(gpu_models: tuple[str, ...], profile: str) -> int:
    for model in map(find_gpu_model, gpu_models):
        if model is not None and any(each.name == profile for each in model.profiles):
            return round(UNITS * float(compute_share(model, profile)))
    return UNITS


def mix_kinds(mix: ExpectedMix, names: Names, models: int) -> tuple[tuple[Kind, ...], F64]:
    """The kinds of a mix that may use one of these `models`, the hardest first, and their arrivals [kinds]."""
    found: list[tuple[Kind, float]] = []
    for kind, arrivals in zip(mix.kinds, mix.expected[:, -1].tolist(), strict=True):
        may = sum(1 << place for place, name in enumerate(names.gpu_models) if name in kind.gpu_models)
        if (kind.profile and kind.profile not in names.profiles) or (kind.gpu_models and not may & models):
            continue
        profile = names.profiles.index(kind.profile) if kind.profile else -1
        columns = (kind.gpus, kind.gpus_per_member, kind.gpu_milli, profile, may, kind.topology)
        found.append((kind_of_columns(*columns, names), arrivals))
    found.sort(key=lambda each: _hardest_first(each[0]))
    return tuple(kind for kind, _ in found), np.array([arrivals for _, arrivals in found])


def expected_demand(
    mix: ExpectedMix, names: Names, models: int, free_gpus: float, allowed_gpus: float, draws: int = DRAWS
) -> Demand:
    """The expected mix at the size of the free capacity: gangs of the kinds that may use one of these `models`, one by
    one until they have as many GPUs as are free, `draws` times (a power of two).

    `allowed_gpus` is what limits of queues leave.
    """
    kinds, weight = mix_kinds(mix, names, models)
    if not weight.any() or free_gpus <= 0.0:
        return Demand((), np.zeros((1, 0), np.int64), np.zeros((1, 0), np.int64))
    share, size = np.cumsum(weight) / weight.sum(), _sizes(kinds)
    chosen = np.minimum(np.searchsorted(share, _points(draws), side="right"), len(kinds) - 1)
    before = np.cumsum(size[chosen], axis=1) - size[chosen]

    def within(gpus: float) -> I64:
        count = np.zeros((draws, len(kinds)), np.int64)
        taken = before < gpus
        np.add.at(count, (np.nonzero(taken)[0], chosen[taken]), 1)
        short = gpus / np.maximum(before[:, -1:], 1e-9)  # more than LONGEST gangs: as many times as it takes
        return np.where(taken[:, -1:], np.rint(count * short), count).astype(np.int64)

    every = within(free_gpus)
    return Demand(kinds, every if allowed_gpus >= free_gpus else within(allowed_gpus), every)


@lru_cache(maxsize=8)
def _points(draws: int) -> F64:
    """Numbers from 0 to 1 that spread evenly over the draws at each place of a sequence (a Latin hypercube), the same
    each time. Shape [draws, LONGEST].
    """
    place = np.arange(1, LONGEST + 1)
    step = 2 * (place * GOLDEN % 1.0 * draws).astype(np.int64) + 1
    first = (place * SILVER % 1.0 * draws).astype(np.int64)
    return np.asarray(((np.arange(draws)[:, None] * step + first) % draws + 0.5) / draws)


def queue_use(snapshot: ClusterSnapshot) -> F64:
    """GPUs that each queue and those below it hold. Shape [queues]."""
    queues = snapshot.queues
    use = held_gpus(snapshot, snapshot.workloads.queue, len(queues.id))
    for queue in range(len(use) - 1, 0, -1):  # children come after their parents
        use[queues.parent[queue]] += use[queue]
    return use


def limit_room(snapshot: ClusterSnapshot) -> float:
    """GPUs that may still start before every queue is at a limit; inf without limits."""
    queues = snapshot.queues
    limit = np.where(queues.limit >= 0, queues.limit, np.inf)
    if not len(limit) or not np.isfinite(limit).any():
        return float("inf")
    own = np.maximum(limit - queue_use(snapshot), 0.0)
    below = np.zeros(len(own))
    leaf = np.ones(len(own), np.bool_)
    leaf[queues.parent[1:]] = False
    for queue in range(len(own) - 1, -1, -1):
        own[queue] = own[queue] if leaf[queue] else min(own[queue], below[queue])
        if queue:
            below[queues.parent[queue]] += own[queue]
    return float(own[0])


def within_limits(snapshot: ClusterSnapshot, queue: I64, gpus: F64) -> Bools:
    """Which gangs could start under the hard limits of their queues, taken in this order. Shape [gangs]."""
    queues = snapshot.queues
    allowed = np.ones(len(queue), np.bool_)
    bound = np.flatnonzero(queues.limit >= 0).tolist()
    if not bound:
        return allowed
    use, paths = queue_use(snapshot), _paths(snapshot)
    for each in reversed(bound):  # inner limits first
        inside = paths[queue, each] & allowed
        allowed[inside] = use[each] + np.cumsum(gpus[inside]) <= queues.limit[each] + 1e-9
    return allowed


def _paths(snapshot: ClusterSnapshot) -> Bools:
    """True where the second queue is the first one or above it. Shape [queues, queues]."""
    parent = snapshot.queues.parent
    paths = np.eye(len(parent), dtype=np.bool_)
    for queue in range(1, len(parent)):  # children come after their parents
        paths[queue] |= paths[parent[queue]]
    return paths
