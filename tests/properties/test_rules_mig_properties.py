"""What holds of every re-plan of MIG geometry, and that small ones are as good as trying everything."""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from autopilot.core.geometry.mig_recut import CutGpu, MigRequest, Replan, replan
from autopilot.core.hardware.mig import MODELS, GpuModel, Placement

FACTS = {model.name: model for model in MODELS}
Cut = frozenset[Placement]


def overlap_free(model: GpuModel, placements: Iterable[Placement]) -> bool:
    """Legality by the rules alone, slice by slice, independent of the product's tables."""
    facts = {profile.name: profile for profile in model.profiles}
    slices: list[int] = []
    names: list[str] = []
    for name, start in placements:
        if start not in facts[name].starts:
            return False
        slices += range(start, start + facts[name].memory_slices)
        names.append(name)
    few = all(names.count(name) <= facts[name].max_instances for name in names)
    media = sum(facts[name].media_extension for name in names)
    return few and media <= 1 and len(set(slices)) == len(slices)


@st.composite
def cut_gpus(draw: st.DrawFn, node: str, index: int, model: GpuModel) -> CutGpu:
    """A GPU with a legal geometry of any profiles, some of it in use."""
    options = [Placement(profile.name, start) for profile in model.profiles for start in profile.starts]
    used: list[Placement] = []
    free: list[Placement] = []
    for option, busy in draw(st.lists(st.tuples(st.sampled_from(options), st.booleans()), max_size=6)):
        if overlap_free(model, [*used, *free, option]):
            (used if busy else free).append(option)
    return CutGpu(node, index, model.name, tuple(used), tuple(free))


@st.composite
def clusters(draw: st.DrawFn, gpus_per_node: int = 3) -> tuple[list[CutGpu], list[MigRequest]]:
    """Up to three nodes, each GPU of one of two models, and requests for a few instances of their profiles."""
    models = draw(st.lists(st.sampled_from(MODELS), min_size=1, max_size=2))
    gpus = [
        draw(cut_gpus(f"n{node}", index, draw(st.sampled_from(models))))
        for node in range(draw(st.integers(1, 3)))
        for index in range(draw(st.integers(1, gpus_per_node)))
    ]
    # few profiles, so that requests meet each other
    every = sorted({profile.name for model in models for profile in model.profiles})
    names = draw(st.lists(st.sampled_from(every), min_size=1, max_size=3, unique=True))
    scenarios = st.dictionaries(st.sampled_from(names), st.integers(1, 3), min_size=1, max_size=2)
    requests = [MigRequest(f"r{row}", scenario) for row, scenario in enumerate(draw(st.lists(scenarios, max_size=4)))]
    return gpus, requests


def by_counts(gpu: CutGpu) -> CutGpu:
    """The same GPU when the places of its instances are unknown."""
    used, free = (Counter(name for name, _start in part) for part in (gpu.used, gpu.free))
    return CutGpu.from_counts(gpu.node, gpu.index, gpu.model, used, free)


def free_after(gpus: list[CutGpu], plan: Replan) -> dict[str, Counter[str]]:
    """{node: free instances by profile} once the plan is carried out."""
    new = {(cut.node, cut.index): cut.free for cut in plan.changed}
    free: dict[str, Counter[str]] = {gpu.node: Counter() for gpu in gpus}
    for gpu in gpus:
        free[gpu.node].update(name for name, _start in new.get((gpu.node, gpu.index), gpu.free))
    return free


def assert_sound(gpus: list[CutGpu], requests: list[MigRequest], plan: Replan) -> None:
    """Legal, used instances kept, every placed request covered whole on its node, no GPU changed without need."""
    asked = {request.name: Counter(request.profiles) for request in requests}
    assert sorted((*plan.placed, *plan.unplaced)) == sorted(asked)
    assert set(plan.nodes) == set(plan.placed)
    by_place = {(gpu.node, gpu.index): gpu for gpu in gpus}
    assert [(cut.node, cut.index) for cut in plan.changed] == sorted({(cut.node, cut.index) for cut in plan.changed})
    for cut in plan.changed:
        gpu = by_place[cut.node, cut.index]
        assert overlap_free(FACTS[str(gpu.model)], [*cut.used, *cut.free])
        assert Counter(name for name, _start in cut.used) == Counter(name for name, _start in gpu.used)
        if all(start is not None for _name, start in gpu.used):
            assert set(cut.used) == set(gpu.used)
        before, after = (Counter(name for name, _start in part) for part in (gpu.free, cut.free))
        assert before != after
        assert not (before - after) - Counter(cut.destroyed)
    needed: dict[str, Counter[str]] = {gpu.node: Counter() for gpu in gpus}
    for name, node in plan.nodes.items():
        needed[node].update(asked[name])
    free = free_after(gpus, plan)
    assert all(needed[node] <= free[node] for node in needed)
    assert len(plan.changed) <= sum(sum(asked[name].values()) for name in plan.placed)


# --- trying everything --------------------------------------------------------------------------


@lru_cache(maxsize=64)
def geometries(model: str, names: frozenset[str]) -> tuple[Cut, ...]:
    """Every legal geometry of a model out of some profiles."""
    options = [
        Placement(profile.name, start)
        for profile in FACTS[model].profiles
        if profile.name in names
        for start in profile.starts
    ]

    def grow(chosen: list[Placement], first: int) -> Iterator[Cut]:
        yield frozenset(chosen)
        for index in range(first, len(options)):
            if overlap_free(FACTS[model], [*chosen, options[index]]):
                yield from grow([*chosen, options[index]], index + 1)

    return tuple(grow([], 0))


Offers = dict[tuple[int, ...], tuple[int, int]]  # free instances of each profile -> (changed, destroyed)


def keep_cheapest(offers: Offers, vector: tuple[int, ...], price: tuple[int, int]) -> None:
    """Note the price unless the same is to be had for less."""
    offers[vector] = min(price, offers.get(vector, price))


def offers_of_gpu(gpu: CutGpu, profiles: list[str], most: tuple[int, ...]) -> Offers:
    """What one GPU can offer, as it is or with any other geometry around its used instances."""

    def vector(names: Counter[str]) -> tuple[int, ...]:
        return tuple(min(names[name], limit) for name, limit in zip(profiles, most, strict=True))

    used, free = (Counter(name for name, _start in part) for part in (gpu.used, gpu.free))
    known = all(start is not None for _name, start in (*gpu.used, *gpu.free))
    offers: Offers = {vector(free): (0, 0)}
    for geometry in geometries(str(gpu.model), frozenset({*profiles, *used, *free})):
        names = Counter(name for name, _start in geometry)
        if (known and not set(gpu.used) <= geometry) or not used <= names:
            continue
        destroyed = len(set(gpu.free) - geometry) if known else (free - (names - used)).total()
        keep_cheapest(offers, vector(names - used), (1, destroyed))
    return offers


def best_by_trying_all(gpus: list[CutGpu], requests: list[MigRequest]) -> tuple[list[bool], int, int]:
    """(placed or not by request, GPUs changed, free instances destroyed) of the best of all plans."""
    profiles = sorted({name for request in requests for name in request.profiles})
    demands = [tuple(request.profiles.get(name, 0) for name in profiles) for request in requests]
    most = tuple(map(sum, zip(*demands, strict=True)))
    nodes: dict[str, Offers] = {}
    for gpu in gpus:
        together: Offers = {}
        known = nodes.get(gpu.node, {(0,) * len(profiles): (0, 0)})
        for (a, price), (b, other) in product(known.items(), offers_of_gpu(gpu, profiles, most).items()):
            summed = tuple(min(x + y, limit) for x, y, limit in zip(a, b, most, strict=True))
            keep_cheapest(together, summed, (price[0] + other[0], price[1] + other[1]))
        nodes[gpu.node] = together
    plans = []
    for homes in product([None, *nodes], repeat=len(requests)):
        total = (0, 0)
        for node in set(homes) - {None}:
            mine = [demand for demand, home in zip(demands, homes, strict=True) if home == node]
            load = tuple(map(sum, zip(*mine, strict=True)))
            prices = [
                price
                for offered, price in nodes[str(node)].items()
                if all(has >= needs for has, needs in zip(offered, load, strict=True))
            ]
            if not prices:
                break
            total = (total[0] + min(prices)[0], total[1] + min(prices)[1])
        else:
            plans.append(([home is None for home in homes], *total))
    unplaced, changed, destroyed = min(plans)
    return [not each for each in unplaced], changed, destroyed


# --- the properties -----------------------------------------------------------------------------


@given(clusters(), st.booleans())
def test_a_plan_is_as_good_as_the_best_of_all(
    cluster: tuple[list[CutGpu], list[MigRequest]], places_known: bool
) -> None:
    """The same requests placed in order of priority, no GPU more changed, no free instance more destroyed."""
    gpus, requests = cluster
    if not places_known:
        gpus = [by_counts(gpu) for gpu in gpus]
    plan = replan(gpus, requests)
    assert_sound(gpus, requests, plan)
    assert plan.exact
    found = (
        [request.name in plan.placed for request in requests],
        len(plan.changed),
        sum(len(cut.destroyed) for cut in plan.changed),
    )
    assert found == best_by_trying_all(gpus, requests)


@given(clusters(gpus_per_node=8))
def test_plans_are_sound(cluster: tuple[list[CutGpu], list[MigRequest]]) -> None:
    """Larger nodes: nothing in use is touched, and what is placed is really there."""
    gpus, requests = cluster
    assert_sound(gpus, requests, replan(gpus, requests))


@given(clusters(), st.data())
def test_nothing_changes_if_the_free_instances_suffice(
    cluster: tuple[list[CutGpu], list[MigRequest]], data: st.DataObject
) -> None:
    """Requests for parts of what is free on one node or another are all placed, and no GPU is touched."""
    gpus, _requests = cluster
    requests = []
    for node in sorted({gpu.node for gpu in gpus}):
        left = [name for gpu in gpus if gpu.node == node for name, _start in gpu.free]
        while left:
            size = data.draw(st.integers(1, len(left)))
            requests.append(MigRequest(f"{node}-{len(left)}", Counter(left[:size])))
            left = left[size:]
    requests = data.draw(st.permutations(requests))
    plan = replan(gpus, requests)
    assert plan.placed == tuple(request.name for request in requests)
    assert plan.changed == ()


@given(clusters(), st.data())
def test_the_order_of_gpus_does_not_matter(cluster: tuple[list[CutGpu], list[MigRequest]], data: st.DataObject) -> None:
    """Any order of the GPUs, and of the instances on one, gives the same plan."""
    gpus, requests = cluster
    turned = [CutGpu(gpu.node, gpu.index, gpu.model, gpu.used[::-1], gpu.free[::-1]) for gpu in gpus]
    assert replan(data.draw(st.permutations(turned)), requests) == replan(gpus, requests)


@given(clusters())
def test_a_later_request_never_costs_an_earlier_one_its_place(
    cluster: tuple[list[CutGpu], list[MigRequest]],
) -> None:
    """Leaving out the last request changes nothing about who of the others is placed."""
    gpus, requests = cluster
    with_all, without = replan(gpus, requests), replan(gpus, requests[:-1])
    assert set(without.placed) == set(with_all.placed) - {request.name for request in requests[-1:]}


@given(clusters())
def test_carried_out_a_plan_asks_for_no_more(cluster: tuple[list[CutGpu], list[MigRequest]]) -> None:
    """With the new geometries in place the same requests fit without another change."""
    gpus, requests = cluster
    plan = replan(gpus, requests)
    new = {(cut.node, cut.index): cut for cut in plan.changed}
    after = [
        CutGpu(gpu.node, gpu.index, gpu.model, cut.used, cut.free) if (cut := new.get((gpu.node, gpu.index))) else gpu
        for gpu in gpus
    ]
    again = replan(after, [request for request in requests if request.name in plan.placed])
    assert again.placed == plan.placed
    assert again.changed == ()
