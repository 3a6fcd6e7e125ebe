"""Elastic gangs share what is left in turns: those that start, and those that run below their width."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopilot.core.model.policy import Mode
from tests.kits.core_world import (
    AUTO,
    decide,
    holds,
    observe,
    queue_tree,
    snapshot,
    started,
    waits,
    with_policy,
)
from tests.kits.ticking_world import tenants

SHAPES = st.sampled_from(["1x8", "2x8", "5x8"])


def widths(shape: str, gangs: list[tuple[int, int]], queues: list[int] | None = None) -> list[int]:
    """GPUs that elastic gangs of (minimum, width) start with, in the order of submission; 0 for one that waits."""
    tree = tenants(("a", 0, 4), ("b", 0, 4)) if queues else queue_tree()
    work = [
        waits(
            f"w{n}",
            wide,
            min_gpus=least,
            gpus_per_member=1,
            submit_s=float(n),
            queue=queues[n] if queues else 0,
        )
        for n, (least, wide) in enumerate(gangs)
    ]
    step = decide(observe(snapshot(shape, work, queues=tree), 100.0), AUTO)
    slots = started(step)
    return [len(slots.get(f"w{n}", ())) for n in range(len(gangs))]


@given(SHAPES, st.integers(2, 6), st.integers(2, 40))
def test_equal_gangs_differ_by_one_member_at_most(shape: str, count: int, wide: int) -> None:
    """All GPUs are used, and the older gang has the odd member, also where many members are shared at once."""
    free = 8 * int(shape[0])
    got = widths(shape, [(1, wide)] * count)
    assert sum(got) == min(free, count * wide)
    assert max(got) - min(got) <= 1
    assert got == sorted(got, reverse=True)


@given(SHAPES, st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9)), min_size=1, max_size=6))
def test_no_gang_has_less_than_its_minimum_or_more_than_its_width(shape: str, gangs: list[tuple[int, int]]) -> None:
    """And while GPUs are left every gang that started is at its full width."""
    wanted = [(least, least + more) for least, more in gangs]
    got = widths(shape, wanted)
    assert all(width == 0 or least <= width <= wide for width, (least, wide) in zip(got, wanted, strict=True))
    if sum(got) < 8 * int(shape[0]):
        assert all(width == wide for width, (_, wide) in zip(got, wanted, strict=True) if width)


def test_two_queues_share_before_their_gangs_do() -> None:
    """One gang of one queue has as much as the two of the other together."""
    assert widths("1x8", [(1, 8), (1, 8), (1, 8)], [1, 1, 2]) == [2, 2, 4]


@pytest.mark.parametrize(("resize", "more"), [(Mode.AUTO, 4), (Mode.OFF, 7)])
def test_a_start_leaves_a_running_gang_its_members(resize: Mode, more: int) -> None:
    """Seven GPUs are free: the newcomer leaves three to the gang that runs with one, unless nothing may grow."""
    work = [
        holds("r", 8, on=[0], min_gpus=1, gpus_per_member=1, submit_s=0.0),
        waits("w", 8, min_gpus=1, gpus_per_member=1, submit_s=1.0),
    ]
    step = decide(observe(snapshot("1x8", work), 100.0), with_policy(AUTO, modes={"resize": resize}))
    assert len(started(step)["w"]) == more
