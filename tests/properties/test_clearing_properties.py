"""The branch and bound behind the search for victims against trying everything, in plain numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from autopilot.core.search.clearing import Clearing
from autopilot.core.search.relaxation import Candidate, Demand, Levels, Region

MANY = 10**9
"""More steps than any of these take."""


@dataclass(frozen=True)
class Case:
    """What a search is asked."""

    candidates: list[Candidate]
    regions: list[Region]
    demand: Demand
    allowed: Callable[[Mapping[int, int]], bool]
    owed: int


@st.composite
def candidates(draw: st.DrawFn, nodes: int) -> Candidate:
    """A gang on up to three nodes (some possibly outside all regions), in up to three levels."""
    homes = draw(st.lists(st.integers(0, nodes), min_size=1, max_size=3, unique=True))
    freed = {node: draw(st.integers(1, 3)) for node in homes}
    levels: list[dict[int, int]] = [{}]
    for node in homes[: draw(st.integers(0, 2))]:
        levels.append({**levels[-1], node: freed[node]})
    if levels[-1] != freed:
        levels.append(freed)
    cost = draw(st.integers(1, 40))
    pays = draw(st.booleans())
    gpus = [sum(level.values()) for level in levels]
    return Candidate(
        tuple(cost * each for each in gpus),
        tuple(levels),
        tuple(each * pays for each in gpus),
        bound=draw(st.booleans()),
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Up to six gangs; quotas keep a sum of levels small, and some gangs are open only where what is owed is paid."""
    nodes = draw(st.integers(1, 4))
    found = draw(st.lists(candidates(nodes), min_size=1, max_size=6))
    size = draw(st.integers(1, 4))
    demand = Demand(draw(st.integers(0, 4)), size, draw(st.integers(0, size - 1)), draw(st.sampled_from([1, 9])))
    split = draw(st.integers(0, nodes))
    parts = [range(nodes)] if split in {0, nodes} else [range(split), range(split, nodes)]
    regions = [
        Region(
            {node: draw(st.integers(0, 4)) for node in part},
            draw(st.integers(0, 1)),
            draw(st.booleans()) and demand.tail > 0,
        )
        for part in parts
    ]
    owed = draw(st.sampled_from([0, 0, 2, 4]))
    most = draw(st.sampled_from([99, 99, 2, 3]))

    def allowed(levels: Mapping[int, int]) -> bool:
        paid = sum(found[index].pays[level] for index, level in levels.items())
        bound = any(found[index].bound for index in levels)
        return sum(index % 2 for index in levels) < most and (not owed or not bound or paid >= owed)

    return Case(found, regions, demand, allowed, owed)


def everything(case: Case) -> Iterator[Levels]:
    """All levels of all candidates."""
    yield from product(*(range(len(each.costs)) for each in case.candidates))


def suffices(case: Case, levels: Levels) -> bool:
    """Do all members and the tail fit in one region?"""
    demand = case.demand
    for region in case.regions:
        members, beside = region.members, region.beside
        for node, free in region.free.items():
            freed = sum(each.frees[level].get(node, 0) for each, level in zip(case.candidates, levels, strict=True))
            hosts = min((free + freed) // demand.size, demand.most)
            members += hosts
            beside |= free + freed - hosts * demand.size >= demand.tail
        if members > demand.members or (members == demand.members and (beside or not demand.tail)):
            return True
    return False


def cost(case: Case, levels: Levels) -> int:
    """The sum over all candidates."""
    return sum(each.costs[level] for each, level in zip(case.candidates, levels, strict=True))


def is_allowed(case: Case, levels: Levels) -> bool:
    """`allowed`, of levels of all candidates."""
    return case.allowed({index: level for index, level in enumerate(levels) if level})


@settings(max_examples=300)
@given(cases())
def test_the_cheapest_levels_are_found(case: Case) -> None:
    """They make room, are allowed, and nothing that does both costs less; None only where nothing does."""
    found = Clearing(case.candidates, case.regions, case.demand, case.allowed, case.owed).solve(MANY, MANY)
    best = min(
        (cost(case, levels) for levels in everything(case) if suffices(case, levels) and is_allowed(case, levels)),
        default=None,
    )
    assert (found is None) == (best is None)
    if found is not None:
        assert suffices(case, found)
        assert is_allowed(case, found)
        assert cost(case, found) == best


@settings(max_examples=300)
@given(cases())
def test_the_first_bound_is_not_above_the_optimum(case: Case) -> None:
    """Of all roots together, whatever quotas forbid."""
    clearing = Clearing(case.candidates, case.regions, case.demand, case.allowed, case.owed)
    roots = [root for root in clearing.relaxation.roots(case.owed) if clearing.relaxation.relax(root)]
    for levels in everything(case):
        if suffices(case, levels) and is_allowed(case, levels):
            assert min(root.bound for root in roots) <= cost(case, levels)
