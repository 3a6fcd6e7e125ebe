"""Holders of shared GPUs: physical GPU time, stretch and slowdown by hand."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.outcome.shared_use import Hold, shared_use, useful_part_of_rise


def test_stretch_and_slowdown_by_hand() -> None:
    """Job 0 shares half of its time at half its speed; job 1 is alone; the owner of job 2 is away for half of it."""
    holds = [
        Hold(0, (0,), 0.0, 10.0, 110.0, 0.5),
        Hold(0, (0,), 110.0, 10.0, 210.0, 1.0),
        Hold(0, (0,), 210.0, 10.0, 220.0, 0.0),  # it writes a checkpoint
        Hold(1, (1, 2), 0.0, 0.0, 50.0),
        Hold(2, (0,), 0.0, 0.0, 100.0, 0.8, [(50.0, 500.0)]),
        Hold(2, (0,), 100.0, 0.0, 200.0, 0.5, [(50.0, 150.0)]),
        Hold(3, (3,), 0.0, 0.0, 100.0),  # interactive, alone
    ]
    found = shared_use(holds, batch={0, 1}, owned={2, 3}, finished={1, 2})
    assert found.batch_stretch_mean == pytest.approx((200 / 150 + 1) / 2)
    assert found.batch_stretch_p95 == pytest.approx(200 / 150)
    assert found.owner_slowdown_mean == pytest.approx((1.25 * 50 + 2.0 * 50) / 100)
    assert found.owner_slowdown_p95 == 2.0
    assert found.physical_gpu_s == 220 + 2 * 50 + 100
    assert found.physical_finished_gpu_s == 200 + 2 * 50
    assert found.several_gpu_s == 200


def test_a_run_without_shared_gpus_has_no_stretch() -> None:
    """Its GPU time is known; the slowdown does not apply, so it is null and not 1."""
    found = shared_use([Hold(0, (0, 1), 0.0, 0.0, 10.0)], {0}, set(), {0})
    assert (found.physical_gpu_s, found.several_gpu_s) == (20.0, 0.0)
    assert (found.batch_stretch_mean, found.owner_slowdown_p95) == (None, None)
    assert shared_use([], set(), set(), set()).physical_gpu_s == 0.0


def test_physical_time_is_that_of_each_second() -> None:
    """Against a count second by second, with holds that meet, overlap and repeat."""
    rng = np.random.default_rng(3)
    holds, count = [], np.zeros((4, 60), int)
    for job in range(40):
        from_s, gpus = int(rng.integers(0, 50)), tuple(sorted(rng.choice(4, int(rng.integers(1, 4)), False).tolist()))
        to_s = from_s + int(rng.integers(1, 10))
        holds.append(Hold(job, gpus, from_s, from_s, to_s))
        count[list(gpus), from_s:to_s] += 1
    found = shared_use(holds, set(), set(), set())
    assert found.physical_gpu_s == (count > 0).sum()
    assert found.several_gpu_s == (count > 1).sum()


def test_the_useful_part_of_a_rise_needs_a_rise() -> None:
    """Without more SM-active time there is no part of it."""
    assert useful_part_of_rise(10.0, 10.0, 20.0, 18.0) == pytest.approx(0.8)
    assert useful_part_of_rise(10.0, 10.0, 10.0, 9.0) is None
