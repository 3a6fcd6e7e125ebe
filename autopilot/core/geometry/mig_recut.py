"""Which GPUs get a new MIG geometry, and which, so that pending requests for MIG instances fit.

The rules, in this order:

1. Used instances are never destroyed or moved.
2. A request is placed whole on one node; its instances may sit on several GPUs of it.
3. Earlier requests come first. Plans are compared by the position of their first unplaced request (later is better),
   then of the second, and so on.
4. As few GPUs change as possible; none if the free instances suffice.
5. As few free instances as possible are destroyed. An instance that is requested, or that blocks no other, stays.
6. Among equally good places, the first by node name and GPU index wins.

`mig` decides what one GPU may hold, `mig_recut_cover` what a node can offer at which price, and `mig_recut_shares`
which node serves each request. The assignment is a vector bin packing problem, so the search is exact only within
bounds: see `replan`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from autopilot.core.geometry.mig_recut_cover import Cover, Cut, Instance, Vector
from autopilot.core.geometry.mig_recut_shares import Shares, share_out
from autopilot.core.hardware import mig
from autopilot.core.hardware.mig import GpuModel, Placement
from autopilot.core.model.errors import InputError, InvariantError, invariant


@dataclass(frozen=True, slots=True)
class CutGpu:
    """One GPU as it is: its instances in use and its free ones, each a profile and its first memory slice.

    A start of None is unknown. The search assumes the legal arrangement of such used instances that suits the requests
    best. `model` is any name that `mig.gpu_model` accepts, or facts; profiles are named as in the facts.
    """

    node: str
    index: int
    model: str | GpuModel
    used: tuple[Instance, ...] = ()
    free: tuple[Instance, ...] = ()

    @classmethod
    def from_counts(
        cls, node: str, index: int, model: str | GpuModel, used: Mapping[str, int], free: Mapping[str, int]
    ) -> CutGpu:
        """A GPU known only by {profile: count}. Raises `InputError` unless counts are integers >= 0."""
        where = f"GPU {index} of node {node}"
        return cls(node, index, model, _unplaced(where, used), _unplaced(where, free))


@dataclass(frozen=True, slots=True)
class MigRequest:
    """A waiting request: its unique name, and the number of instances of each profile that it needs together."""

    name: str
    profiles: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class NewCut:
    """The new geometry of one GPU: instances in use stay in `used`; `free` are for requests or were spared.

    `destroyed` are the profiles of the present free instances that are not in `free`.
    """

    node: str
    index: int
    used: tuple[Placement, ...]
    free: tuple[Placement, ...]
    destroyed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SkippedGpu:
    """A GPU that is left out of the plan, and the reason."""

    node: str
    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class Replan:
    """The plan: names of requests in their order, and the GPUs to cut anew by node and index.

    `nodes` is the node of each placed request. A request for no instances is placed without a node. GPUs that are not
    in `changed` stay as they are. `exact` is False if a bound on work ended a search; a better plan may then exist.
    """

    placed: tuple[str, ...]
    unplaced: tuple[str, ...]
    nodes: Mapping[str, str]
    changed: tuple[NewCut, ...]
    skipped: tuple[SkippedGpu, ...]
    exact: bool


def check_gpu(gpu: CutGpu) -> None:
    """Raise `InputError`, naming the GPU and the fix, for an unknown model or an impossible set of instances."""
    where = f"GPU {gpu.index} of node {gpu.node}"
    try:
        model = mig.gpu_model(gpu.model)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    known, unknown = _known((*gpu.used, *gpu.free))
    reason = mig.why_illegal(model, known)
    names = [profile.name for profile in model.profiles]
    if reason is None and (strange := [name for name in unknown if name not in names]):
        reason = f"{strange[0]}: {model.name} has no such profile, only {', '.join(names)}"
    if reason is None and unknown and mig.fits(model, known, unknown) is None:
        beside = "".join(f" beside {name} at {start}" for name, start in known)
        reason = f"there is no room for {', '.join(sorted(unknown))}{beside}"
    if reason is not None:
        raise InputError(f"{where} ({model.name}): {reason}; read its instances anew")


def replan(gpus: Sequence[CutGpu], requests: Sequence[MigRequest]) -> Replan:
    """The best plan by the rules above. Pure and deterministic; the order of `gpus` does not matter.

    A GPU is left alone if its model is unknown, its instances cannot exist together (`check_gpu`), or it is listed more
    than once. It is in `skipped` with the reason, and the other GPUs are planned. Raises `InputError` for two requests
    of the same name, and for counts that are not whole numbers >= 0.

    Work, with R requests, N nodes of G GPUs, O offers per GPU (a few dozen at most), and D the product of 1 + instances
    over the profiles requested of a node: an exact dynamic program computes the price of a node in O(G O D). Each
    request first goes where it adds least, O(R N G O D) in total. Prices are cached, and equal GPUs and nodes are
    evaluated once. A request without a place is tried again with the earlier ones free to move. Then the whole plan is
    made cheaper. Both steps are depth-first searches. Tables and searches have fixed bounds in cells and steps, not in
    time (`mig_recut_cover`, `mig_recut_shares`). A search that reaches its bound returns the best plan so far; an
    earlier request never loses its place.
    """
    asked = _asked(requests)
    good, skipped = _usable(gpus)
    profiles = sorted({name for counts in asked for name in counts})
    by_node: dict[str, list[CutGpu]] = {}
    for gpu in good:
        by_node.setdefault(gpu.node, []).append(gpu)
    names, rows = list(by_node), list(by_node.values())
    cuts: dict[Cut, int] = {}
    kinds: dict[tuple[int, ...], int] = {}
    kind_of = [
        kinds.setdefault(tuple(cuts.setdefault(_cut(gpu), len(cuts)) for gpu in row), len(kinds)) for row in rows
    ]
    cover = Cover(profiles, list(cuts), list(kinds))
    demands = [tuple(counts[name] for name in profiles) for counts in asked]
    plan = Shares(cover, kind_of, demands)
    exact = share_out(plan)
    changed: list[NewCut] = []
    for node, row in enumerate(rows):
        if any(plan.load[node]):
            offers = cover.choice(kind_of[node], plan.load[node])
            changed += _new_cuts(row, offers, dict(zip(profiles, plan.load[node], strict=True)))
    placed = [bool(any(demands[row]) <= (row in plan.home)) for row in range(len(requests))]
    return Replan(
        placed=tuple(each.name for each, done in zip(requests, placed, strict=True) if done),
        unplaced=tuple(each.name for each, done in zip(requests, placed, strict=True) if not done),
        nodes={requests[row].name: names[node] for row, node in sorted(plan.home.items())},
        changed=tuple(changed),
        skipped=skipped,
        exact=exact and cover.exact,
    )


def _unplaced(where: str, counts: Mapping[str, int]) -> tuple[Instance, ...]:
    return tuple((name, None) for name, count in _whole(where, counts).items() for _ in range(count))


def _whole(where: str, counts: Mapping[str, int]) -> dict[str, int]:
    for name, count in counts.items():
        if count < 0 or count % 1:
            raise InputError(f"{where}: {count!r} of {name}; give a whole number of instances, 0 or more")
    return {name: int(count) for name, count in counts.items() if count}


def _asked(requests: Sequence[MigRequest]) -> list[Counter[str]]:
    """The instances of each request, after a check of the names and counts."""
    for name, times in Counter(request.name for request in requests).items():
        if times > 1:
            raise InputError(f"request {name}: {times} requests have this name; give each its own")
    return [Counter(_whole(f"request {request.name}", request.profiles)) for request in requests]


def _usable(gpus: Sequence[CutGpu]) -> tuple[list[CutGpu], tuple[SkippedGpu, ...]]:
    """The GPUs to plan, by node and index, and the skipped GPUs with the reason."""
    listed = Counter((gpu.node, gpu.index) for gpu in gpus)
    good: list[CutGpu] = []
    skipped: dict[tuple[str, int], SkippedGpu] = {}
    sound: set[Cut] = set()
    for gpu in sorted(gpus, key=lambda gpu: (gpu.node, gpu.index)):
        place = gpu.node, gpu.index
        if listed[place] > 1:
            reason = f"GPU {gpu.index} of node {gpu.node}: listed {listed[place]} times; list it once"
            skipped[place] = SkippedGpu(*place, reason)
            continue
        try:
            if (cut := _cut(gpu)) not in sound:
                check_gpu(gpu)
                sound.add(cut)
            good.append(gpu)
        except InputError as error:
            skipped[place] = SkippedGpu(*place, str(error))
    return good, tuple(skipped.values())


def _cut(gpu: CutGpu) -> Cut:
    """The GPU without its location, in a canonical order, so that equal GPUs compare equal."""

    def place(instance: Instance) -> tuple[str, int]:
        name, start = instance
        return name, -1 if start is None else start

    return Cut(gpu.model, tuple(sorted(gpu.used, key=place)), tuple(sorted(gpu.free, key=place)))


def _new_cuts(gpus: Sequence[CutGpu], offers: Sequence[Vector | None], asked: Mapping[str, int]) -> list[NewCut]:
    """The new geometries of the GPUs of one node, cut for no more than `asked`.

    `offers` is the most that each GPU can be cut for, in the order of `asked`; None: the GPU stays as it is.
    """
    left = Counter(asked)
    for gpu, offer in zip(gpus, offers, strict=True):
        if offer is None:
            left -= Counter(name for name, _start in gpu.free)
    cuts = []
    for gpu, offer in zip(gpus, offers, strict=True):
        if offer is not None:
            wanted = left & Counter(dict(zip(asked, offer, strict=True)))
            left -= wanted
            if not wanted <= Counter(name for name, _start in gpu.free):
                cuts.append(_new_cut(gpu, sorted(wanted.elements())))
    return cuts


def _new_cut(gpu: CutGpu, wanted: Sequence[str]) -> NewCut:
    """The GPU cut for `wanted` beside what is in use, so that most of the present free instances stay."""
    used, somewhere = _known(gpu.used)
    free, uncertain = _known(gpu.free)
    if somewhere or uncertain:
        return _assumed_cut(gpu, used, somewhere, wanted)
    places = mig.fits(gpu.model, used, wanted, existing=free)
    invariant(places is not None, f"{wanted} was offered by GPU {gpu.index} of {gpu.node} and does not fit")
    new = list(places or ())
    for place in free:
        if place not in new and mig.is_legal(gpu.model, [*used, *new, place]):
            new.append(place)
    return _cut_to(gpu, used, new, [place.profile for place in free if place not in new])


def _assumed_cut(gpu: CutGpu, used: Sequence[Placement], somewhere: Sequence[str], wanted: Sequence[str]) -> NewCut:
    """As `_new_cut` for unknown starts: instances are kept by profile, whatever start is assumed."""
    present = [name for name, _start in gpu.free]
    spare = sorted((Counter(present) - Counter(wanted)).elements())
    # rather an arrangement that leaves the present free instances a place, as the true one does
    likely = (mig.fits(gpu.model, used, [*somewhere, *present]) or ())[: len(somewhere)]
    for size in range(len(spare), -1, -1):
        for spared in sorted(set(combinations(spare, size))):
            for arranged in (likely, ()):
                open_ = somewhere[len(arranged) :]
                places = mig.fits(gpu.model, [*used, *arranged], [*open_, *wanted, *spared])
                if places is not None:
                    now_used = [*used, *arranged, *places[: len(open_)]]
                    destroyed = (Counter(spare) - Counter(spared)).elements()
                    return _cut_to(gpu, now_used, places[len(open_) :], list(destroyed))
    raise InvariantError(f"{wanted} was offered by GPU {gpu.index} of {gpu.node} and does not fit")


def _known(instances: Sequence[Instance]) -> tuple[list[Placement], list[str]]:
    """Instances whose place is known, and the profiles of the others."""
    placed = [Placement(name, start) for name, start in instances if start is not None]
    return placed, [name for name, start in instances if start is None]


def _cut_to(gpu: CutGpu, used: Sequence[Placement], free: Sequence[Placement], destroyed: Sequence[str]) -> NewCut:
    def by_start(place: Placement) -> tuple[int, str]:
        return place.start, place.profile

    ordered = tuple(sorted(used, key=by_start)), tuple(sorted(free, key=by_start))
    return NewCut(gpu.node, gpu.index, *ordered, tuple(sorted(destroyed)))
