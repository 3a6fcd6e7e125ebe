"""The exact search of the fragmentation benchmark, against a plain enumeration of tiny cases."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from autopilot.core.fragmentation.demand import UNITS, Kind
from benchmarks.fragmentation import LEAST_STATES, Judged, correlations
from benchmarks.fragmentation_exact import Free, joined, most_gpus

HALF = UNITS // 2


def fits(bins: tuple[int, ...], members: tuple[int, ...]) -> bool:
    """True if all members find a bin, tried one by one."""
    if not members:
        return True
    first, rest = members[0], members[1:]
    return any(
        fits((*bins[:at], free - first, *bins[at + 1 :]), rest)
        for at, free in enumerate(bins)
        if free >= first and free not in bins[:at]
    )


def enumerated(nodes: tuple[int, ...], parts: tuple[int, ...], kinds: list[Kind], count: list[int]) -> float:
    """The most GPUs: every number of gangs of each kind, on bins in units. A share may use a whole GPU."""
    best = 0.0
    for chosen in product(*(range(number + 1) for number in count)):
        gpus = sum(kind.gpus * number for kind, number in zip(kinds, chosen, strict=True))
        if gpus <= best:
            continue
        whole = tuple(
            kind.size
            for kind, number in zip(kinds, chosen, strict=True)
            for _ in range(number * kind.members)
            if not kind.units
        )
        shares = tuple(
            kind.units
            for kind, number in zip(kinds, chosen, strict=True)
            for _ in range(number * kind.members)
            if kind.units
        )
        opened = 0
        while not fits(parts + (UNITS,) * opened, shares) and opened <= len(shares):
            opened += 1
        if fits(nodes, tuple(sorted(whole, reverse=True)) + (1,) * opened):
            best = gpus
    return best


def classes(values: tuple[int, ...]) -> dict[tuple[int, int], int]:
    """Of model 0."""
    return {(0, value): values.count(value) for value in sorted(set(values)) if value}


@pytest.mark.parametrize("seed", range(40))
def test_it_finds_the_most_that_fits(seed: int) -> None:
    """Nodes of up to four free GPUs, gangs of one to three members, and shares."""
    rng = np.random.default_rng(seed)
    nodes = tuple(rng.integers(1, 5, rng.integers(1, 4)).tolist())
    parts = tuple((rng.integers(1, 4, rng.integers(0, 3)) * UNITS // 4).tolist())
    pairs = {(int(rng.integers(1, 4)), int(rng.integers(1, 4))) for _ in range(2)}
    kinds = [Kind(members, size) for members, size in sorted(pairs)]
    kinds += [Kind(1, 1, HALF), Kind(2, 1, 3 * UNITS // 4)]
    count = rng.integers(0, 3, len(kinds)).tolist()
    free = Free(classes(nodes), classes(parts), {}, cut=False)
    assert most_gpus(free, kinds, count) == pytest.approx(enumerated(nodes, parts, kinds, count))


def test_models_are_kept_apart() -> None:
    """A gang that may use one model only takes none of the other."""
    free = Free({(0, 4): 1, (1, 4): 1}, {}, {}, cut=False)
    assert most_gpus(free, [Kind(2, 4, models=0b01)], [1]) == 0.0
    assert most_gpus(free, [Kind(2, 4)], [1]) == 8.0
    assert most_gpus(free, [Kind(1, 4, models=0b10)], [2]) == 4.0


def test_joined_capacity_is_in_whole_nodes() -> None:
    """Two halves of nodes and two halves of GPUs are one node and one GPU."""
    free = joined({0: 9 * UNITS}, {0: 8})
    assert free.nodes == {(0, 8): 1, (0, 1): 1}
    assert most_gpus(free, [Kind(1, 8), Kind(1, 1, HALF)], [1, 2]) == 9.0


def test_a_band_with_few_states_is_not_judged() -> None:
    """Its correlation is shown with its number of states."""
    rows = [Judged("mixed", 4, float(at), float(at)) for at in range(6)]
    (first, *_rest) = correlations(rows)
    assert first[:2] == (4, 6)
    assert first[1] < LEAST_STATES
