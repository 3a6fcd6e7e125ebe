"""The search for victims against trying everything, on worlds that are small enough for that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopilot.core.quota.rules.base import RankedTarget, Target
from autopilot.core.search.clearing import Clearing
from tests.kits.core_world import Item, holds
from tests.kits.victims_world import Bid, VictimsWorld, victims_world

PER_NODE = 4
ROUNDING = 0.05
"""Costs are compared with this slack in GPU-seconds: the search counts parts of one."""

Allowed = Callable[[Sequence[Target]], bool]


@dataclass(frozen=True)
class Case:
    """A world, what is offered in it, and what quotas allow."""

    world: VictimsWorld
    ranked_targets: list[RankedTarget]
    allowed: Allowed


@st.composite
def gangs(draw: st.DrawFn, nodes: int) -> tuple[list[Item], list[Bid]]:
    """Up to five gangs on one or two nodes each, some of them elastic, some not offered, and up to two halves of a GPU
    each on one that they may share; GPUs may stay free.
    """
    free = {node: list(range(node * PER_NODE, (node + 1) * PER_NODE)) for node in range(nodes)}
    items, bids = [], []
    for number in range(draw(st.integers(1, 5))):
        homes = draw(st.lists(st.integers(0, nodes - 1), min_size=1, max_size=2, unique=True))
        part = draw(st.integers(1, 3))
        if any(len(free[node]) < part for node in homes):
            continue
        on = [free[node].pop(0) for node in homes for _ in range(part)]
        member = draw(st.sampled_from([1, part])) if len(homes) == 1 else part
        least = draw(st.sampled_from([len(on), member]))
        items.append(holds(f"g{number}", len(on), on=on, gpus_per_member=member, min_gpus=least))
        if draw(st.integers(0, 9)):
            bids.append(Bid(f"g{number}", float(len(on) * draw(st.integers(0, 30))), draw(st.integers(0, 2))))
    shared = next((gpus.pop(0) for gpus in free.values() if gpus), None)
    for half in range(draw(st.integers(0, 2))):
        if shared is not None:
            items.append(holds(f"h{half}", 1, on=[shared], gpu_milli=500))
        if shared is not None and draw(st.integers(0, 4)):
            bids.append(Bid(f"h{half}", float(draw(st.integers(0, 30))), draw(st.integers(0, 2))))
    return items, bids


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A world of up to four nodes, with quotas of any kind."""
    nodes = draw(st.integers(1, 4))
    items, bids = draw(gangs(nodes))
    need = draw(st.integers(1, 2 * PER_NODE))
    member = draw(st.integers(1, min(need, PER_NODE)))
    shape = draw(st.sampled_from(["", "", "", "domain", "spread", "suits"]))
    world = victims_world(
        f"{nodes}x{PER_NODE}",
        items,
        need,
        member,
        domain=[node % 2 for node in range(nodes)] if shape == "domain" and need > member else None,
        spread=shape == "spread",
        suits=[node != 0 for node in range(nodes)] if shape == "suits" else None,
    )
    kind = draw(st.sampled_from(["open", "spare", "owed", "beside"]))
    first = {row for row in range(len(items)) if draw(st.booleans())}
    gpus = float(draw(st.integers(1, 6)))
    return Case(world, world.ranked_targets(sorted(bids, key=lambda bid: bid.rank)), _quotas(kind, first, gpus))


def _quotas(kind: str, first: set[int], gpus: float) -> Allowed:
    """`spare`: without the largest victim, the GPUs taken from the rows `first` stay below `gpus`. `owed`: GPUs taken
    in all. `beside`: a preemption of other rows takes at least this number from `first`.
    """

    def allowed(targets: Sequence[Target]) -> bool:
        mine = sorted(target.gpus for target in targets if target.row in first)
        if kind == "spare":
            return sum(mine[:-1]) < gpus
        if kind == "owed":
            return sum(target.gpus for target in targets) >= gpus
        return kind == "open" or len(mine) == len(targets) or sum(mine) >= gpus

    return allowed


def everything(case: Case) -> Iterator[tuple[Target, ...]]:
    """Every set of takings: each gang not at all, by any number of the members that it offers, or whole."""
    levels: dict[int, list[Target | None]] = {}
    for ranked_target in case.ranked_targets:
        mine = levels.setdefault(ranked_target.target.row, [None])
        last = mine[-1]
        before = 0.0 if last is None or ranked_target.target.whole else last.gpus
        mine.append(Target(ranked_target.target.row, before + ranked_target.target.gpus, ranked_target.target.whole))
    for chosen in product(*levels.values()):
        yield tuple(target for target in chosen if target is not None)


def cost(case: Case, targets: Sequence[Target]) -> list[float]:
    """Lost GPU-seconds and GPUs by rank, the highest first."""
    whole = {
        ranked_target.target.row: ranked_target for ranked_target in case.ranked_targets if ranked_target.target.whole
    }
    found = [0.0] * 3
    for target in targets:
        ranked_target = whole[target.row]
        found[2 - ranked_target.rank] += (
            ranked_target.price_gpu_s * target.gpus / ranked_target.target.gpus + target.gpus
        )
    return found


def dearer(case: Case, targets: Sequence[Target], than: Sequence[float]) -> bool:
    """Is a choice dearer than a cost, the highest rank first?"""
    for mine, other in zip(cost(case, targets), than, strict=True):
        if abs(mine - other) > ROUNDING:
            return mine > other
    return False


def optimum(case: Case) -> list[float] | None:
    """The least cost of any allowed set that makes room; None when there is none."""
    search = case.world.search
    return min(
        (cost(case, targets) for targets in everything(case) if case.allowed(targets) and search(targets)),
        default=None,
    )


@given(cases())
def test_the_answer_is_allowed_makes_room_and_is_the_cheapest(case: Case) -> None:
    """Rank by rank from the highest; and there is an answer exactly when there is one."""
    found, best = case.world.search.cheapest(case.ranked_targets, case.allowed), optimum(case)
    assert (found is None) == (best is None)
    if found is not None and best is not None:
        assert case.allowed(found)
        assert case.world.search(found)
        assert not dearer(case, found, best)


@given(cases())
def test_nobody_can_be_put_back(case: Case) -> None:
    """Not a gang, and not a member of what was taken of an elastic one."""
    found = case.world.search.cheapest(case.ranked_targets, case.allowed)
    rows = [target.row for target in found or ()]
    assert len(rows) == len(set(rows))
    taken = {target.row: target.gpus for target in found or ()}
    for targets in everything(case):
        less = {target.row: target.gpus for target in targets}
        if less != taken and all(gpus <= taken.get(row, 0.0) for row, gpus in less.items()):
            assert not (case.allowed(targets) and case.world.search(targets))


@given(cases())
def test_the_same_question_has_the_same_answer(case: Case) -> None:
    """Nothing is drawn, and nothing is left behind on the what-if."""
    search = case.world.search
    first = search.cheapest(case.ranked_targets, case.allowed)
    assert search.cheapest(case.ranked_targets, case.allowed) == first
    assert not search.whatif.diff()


@given(cases(), st.integers(0, 1))
def test_without_steps_the_answer_is_still_sound(case: Case, steps: int) -> None:
    """With hardly any steps an answer may be dearer or missing, never forbidden, too small, or with somebody
    needless.
    """
    with pytest.MonkeyPatch.context() as patch:
        solve = Clearing.solve
        patch.setattr(Clearing, "solve", lambda self, *_: solve(self, steps, steps))
        found = case.world.search.cheapest(case.ranked_targets, case.allowed)
    if found is not None:
        assert case.allowed(found)
        assert case.world.search(found)
        for gone in found:
            fewer = [target for target in found if target is not gone]
            assert not (case.allowed(fewer) and case.world.search(fewer))
