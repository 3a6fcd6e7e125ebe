"""Shares of one pod on different GPUs, against the device plugin of the tests."""

from __future__ import annotations

import pytest

from autopilot.core.sharing.apart import lands_apart


@pytest.mark.parametrize(
    ("given", "replicas", "count", "apart"),
    [
        ((0, 0), 4, 2, True),
        ((1, 1, 1, 1), 4, 4, True),
        ((1, 0), 4, 2, False),  # after the first share both have one, and it may choose either
        ((2, 0), 4, 2, False),  # the second GPU has fewer still
        ((4, 0), 4, 2, False),  # the first is full
        ((0, 0, 3), 4, 3, False),
        ((4, 4), 4, 1, False),
        ((0,), 1, 1, True),
    ],
)
def test_two_shares_of_one_gpu_are_foreseen(given: tuple[int, ...], replicas: int, count: int, apart: bool) -> None:
    """The plugin takes each share from the GPU with the fewest given out."""
    assert lands_apart(given, replicas, count) == apart
