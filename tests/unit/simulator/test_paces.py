"""The steps that simulated programs report."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.signals.paces import NOISE, WINDOW_S, Paces
from tests.kits.cluster_kit import make_jobs
from tests.unit.simulator.test_sharing import HEAVY, Shared


def test_a_program_reports_the_true_pace_of_the_last_five_minutes() -> None:
    """Nothing before it has run for as long; beside another it is slower; those without the helper report nothing."""
    jobs = make_jobs([(0, 9000, 1)] * 2, saves_on_request=True)
    world = Shared(jobs, [(*HEAVY, 0.0)] * 2)
    paces, found = Paces(world.cluster, 1), {}
    world.starts((0, 0, [0]), (1000, 1, [0]))
    for at_s in (WINDOW_S - 1.0, 900.0, 1150.0, 2000.0):
        world.at(at_s, lambda now_s: found.update({now_s: paces.steps_per_s(np.array([0, 1]), now_s)}))
    world.engine.advance(2001.0)
    first = [each[0] for each in found.values()]
    alone, rate = first[1], world.cluster.sharings._paces[0].fact.rate
    assert np.isnan(first[0])
    assert np.isnan(found[1150.0][1])
    assert rate < 0.9
    assert first[2:] == pytest.approx([alone * (1.0 + rate) / 2.0, alone * rate], rel=3 * NOISE)
    jobs.saves_on_request[:] = [False] * 2
    silent = [Paces(world.cluster, seed).steps_per_s(np.array([0]), 2000.0)[0] for seed in range(20)]
    assert 4 < np.isnan(silent).sum() < 16
