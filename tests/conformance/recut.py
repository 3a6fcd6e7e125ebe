"""Plans for `mig_replan` cases, made of answers of the planner that runs (core/geometry/cutting.py).

A case asks more than the planner knows: requests have an order and no value, and each goes whole to one node. So the
planner is asked about one node at a time, for each assignment of the requests to nodes, and under several values of an
instance. The best assignment stands: earlier requests first, then the fewest changed GPUs. Instances in use whose place
a case does not state may be anywhere legal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np

from autopilot.core.geometry.cutting import PoolState, Prices, Wishes, choose_cuts
from autopilot.core.geometry.layouts import bits_of, layouts_of, placements_of, profiles_for
from autopilot.core.hardware import mig
from autopilot.core.hardware.mig import GpuModel, Placement
from autopilot.core.model.errors import InputError

Instance = tuple[str, int | None]
"""A profile and its first memory slice; None: unknown."""
Seat = tuple[tuple[Placement, ...], tuple[Placement, ...]]
"""Places of the instances of one GPU: in use, and free."""

VALUES: tuple[Callable[[float], float], ...] = (
    lambda share: share,
    lambda _share: 1.0,
    lambda share: share * share,
    lambda share: 1.0 / share,
)
"""Values of an instance by its part of a GPU: a case states none."""

ARRANGEMENTS = 64
"""Most arrangements of one GPU that are listed, and of one node that are tried."""


@dataclass(frozen=True, slots=True)
class CutGpu:
    """One GPU of a case."""

    node: str
    index: int
    model: str
    used: tuple[Instance, ...] = ()
    free: tuple[Instance, ...] = ()


@dataclass(frozen=True, slots=True)
class MigRequest:
    """A request: the number of instances of each profile that it needs on one node."""

    name: str
    profiles: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class NewCut:
    """The geometry of one GPU afterwards, in use and free."""

    node: str
    index: int
    used: tuple[Placement, ...]
    free: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class Replan:
    """Requests with and without a place, the node of each, and the GPUs that change."""

    placed: tuple[str, ...]
    unplaced: tuple[str, ...]
    nodes: Mapping[str, str]
    changed: tuple[NewCut, ...]


def check_gpu(gpu: CutGpu) -> None:
    """Raise `InputError`, naming the GPU, for an unknown model or an impossible set of instances."""
    where = f"GPU {gpu.index} of node {gpu.node}"
    try:
        possible = bool(_legal(gpu.model, gpu.used, gpu.free))
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    if not possible:
        raise InputError(f"{where} ({gpu.model}): its instances cannot exist together; read them anew")


def replan(gpus: Sequence[CutGpu], requests: Sequence[MigRequest]) -> Replan:
    """The best plan that the planner's answers make."""
    by_node: dict[str, list[CutGpu]] = {}
    for gpu in sorted(gpus, key=lambda each: (each.node, each.index)):
        by_node.setdefault(gpu.node, []).append(gpu)
    answers: dict[tuple[str, tuple[tuple[str, int], ...]], tuple[NewCut, ...] | None] = {}

    def answer(node: str, load: Counter[str]) -> tuple[NewCut, ...] | None:
        key = (node, tuple(sorted((+load).items())))
        if key not in answers:
            answers[key] = _serve(by_node[node], +load)
        return answers[key]

    best: tuple[tuple[list[bool], int], tuple[str | None, ...], list[NewCut]] | None = None
    for homes in product([*by_node, None], repeat=len(requests)):
        load = {node: Counter[str]() for node in by_node}
        for request, home in zip(requests, homes, strict=True):
            if home is not None:
                load[home] += Counter(request.profiles)
        found = [answer(node, each) for node, each in load.items()]
        if any(each is None for each in found):
            continue
        changed = [cut for each in found for cut in each or ()]
        rank = [home is None for home in homes], len(changed)
        if best is None or rank < best[0]:
            best = rank, homes, changed
    assert best is not None, "an assignment of nothing always stands"
    nodes = {request.name: home for request, home in zip(requests, best[1], strict=True) if home is not None}
    placed = [request.name for request in requests if request.name in nodes or not any(request.profiles.values())]
    unplaced = [request.name for request in requests if request.name not in placed]
    return Replan(tuple(placed), tuple(unplaced), nodes, tuple(best[2]))


def _serve(gpus: Sequence[CutGpu], load: Counter[str]) -> tuple[NewCut, ...] | None:
    """Changes of the GPUs of one node that leave it these free instances; None where the planner finds none."""
    if not load:
        return ()
    best: tuple[NewCut, ...] | None = None
    each = max(int(ARRANGEMENTS ** (1.0 / len(gpus))), 1)
    for seats in product(*(_spread(_legal(gpu.model, gpu.used, gpu.free), each) for gpu in gpus)):
        for value in VALUES:
            found = _planned(gpus, seats, load, value)
            if found is not None and (best is None or len(found) < len(best)):
                best = found
        if best == ():
            break
    return best


def _planned(
    gpus: Sequence[CutGpu],
    seats: Sequence[Seat],
    load: Counter[str],
    value: Callable[[float], float],
) -> tuple[NewCut, ...] | None:
    """One answer: the planner takes the GPUs of each model as a pool."""
    left, changed = Counter(load), list[NewCut]()
    pools: dict[str, list[int]] = {}
    for at, gpu in enumerate(gpus):
        pools.setdefault(mig.gpu_model(gpu.model).name, []).append(at)
    for name, members in pools.items():
        model = mig.gpu_model(name)
        asked = {profile: count for profile, count in left.items() if count > 0 and _has(model, profile)}
        there = {place.profile for at in members for part in seats[at] for place in part}
        layouts = layouts_of(name, profiles_for(model, (*asked, *there)))
        used = np.array([bits_of(model, seats[at][0]) for at in members], np.int64)
        free = np.array([bits_of(model, seats[at][1]) for at in members], np.int64)
        none = np.zeros(len(members), np.int64)
        state = PoolState(used, free, none > 0, none == 0, none - 1, none, np.zeros(len(layouts.profiles), np.int64))
        worth = [value(float(mig.compute_share(model, profile))) for profile in layouts.profiles]
        pending = np.array([asked.get(profile, 0) for profile in layouts.profiles], np.int64)
        wishes = Wishes(pending, np.zeros((len(pending), 0)), np.array(worth) * 1000.0)
        cuts = choose_cuts(layouts, state, wishes, Prices(instance_s=1e-3), most=len(members))
        for cut in cuts.changes:
            gpu = gpus[members[cut.gpu]]
            stays = placements_of(model, int(used[cut.gpu]) & ~cut.moved)
            changed.append(NewCut(gpu.node, gpu.index, stays, placements_of(model, cut.after)))
            free[cut.gpu] = cut.after
        left -= Counter(place.profile for bits in free.tolist() for place in placements_of(model, bits))
    return None if left else tuple(changed)


def _has(model: GpuModel, profile: str) -> bool:
    found = mig.find_profile(model, profile)
    return found is not None and found.name == profile


def _spread(found: Sequence[Seat], most: int) -> Sequence[Seat]:
    """At most `most` of them, evenly spread."""
    return found[:: -(-len(found) // most)] if len(found) > most else found


@lru_cache(maxsize=4096)
def _legal(name: str, used: tuple[Instance, ...], free: tuple[Instance, ...]) -> tuple[Seat, ...]:
    model = mig.gpu_model(name)
    starts = {profile.name: profile.starts for profile in model.profiles}
    for profile, _ in (*used, *free):
        if profile not in starts:
            raise InputError(f"{profile}: {model.name} has no such profile, only {', '.join(starts)}")
    found: dict[Seat, None] = {}
    _extend(model, starts, (*used, *free), len(used), (), found)
    return tuple(found)


def _extend(
    model: GpuModel,
    starts: Mapping[str, Sequence[int]],
    instances: tuple[Instance, ...],
    used: int,
    chosen: tuple[Placement, ...],
    found: dict[Seat, None],
) -> None:
    """Add the legal ends of a half-made arrangement."""
    if len(found) >= ARRANGEMENTS:
        return
    if len(chosen) == len(instances):
        found[tuple(sorted(chosen[:used])), tuple(sorted(chosen[used:]))] = None
        return
    profile, start = instances[len(chosen)]
    for each in starts[profile] if start is None else (start,):
        if mig.why_illegal(model, [*chosen, Placement(profile, each)]) is None:
            _extend(model, starts, instances, used, (*chosen, Placement(profile, each)), found)
