"""Profiling counters that stand at 0 while GPU_UTIL says that kernels run, on one GPU and beside it."""

from __future__ import annotations

import numpy as np
import pytest

from collectors.entities import dead_counters

NAN = float("nan")
DEAD, LIT, ZERO, FAINT, UNSEEN = (0.0, 0.99), (0.7, 0.99), (0.0, 0.03), (0.0004, 0.03), (NAN, 0.03)
"""SM activity and GPU_UTIL of GPUs whose counters fail, work, stand at 0, count a little, and are not there."""


@pytest.mark.parametrize(
    ("gpus", "nodes", "dead"),
    [
        pytest.param((DEAD, ZERO, FAINT, UNSEEN), "aaaa", [True, True, False, False], id="zeros beside it"),
        pytest.param((DEAD, ZERO, ZERO, ZERO), "aabb", [True, True, False, False], id="on its node alone"),
        pytest.param((DEAD, LIT, ZERO, ZERO), "aaaa", [True, False, False, False], id="other counters work"),
        pytest.param((DEAD, DEAD, LIT, ZERO), "aaaa", [True, True, False, True], id="fewer counters work"),
        pytest.param((LIT, ZERO, ZERO, ZERO), "aaaa", [False] * 4, id="nothing fails"),
    ],
)
def test_zeros_beside_counters_that_fail_are_unknown(
    gpus: tuple[tuple[float, float], ...], nodes: str, dead: list[bool]
) -> None:
    """One service of a node reads them all."""
    sm, util = np.array(gpus).T
    assert dead_counters({1002: sm, 203: util}, list(nodes)).tolist() == dead


def test_traffic_of_memory_shows_that_a_gpu_is_counted() -> None:
    """Its SM activity of 0 is one."""
    fields = {1002: np.zeros(2), 1005: np.array([0.0, 0.2]), 203: np.array([0.99, 0.03])}
    assert dead_counters(fields, ["a", "a"]).tolist() == [True, False]
