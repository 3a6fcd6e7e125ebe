"""The baseline `slurm` against recorded decisions of a real Slurm scheduler."""

from __future__ import annotations

import pytest

from benchmarks.slurm import KEPT, Tally
from benchmarks.slurm_figures import figures
from benchmarks.slurm_play import Player, score
from benchmarks.slurm_recordings import read
from benchmarks.slurm_states import passes, preemptions

LEAST = {"backfill-accurate": 0.92, "preempt-qos": 0.93, "topology": 1.0, "fair-tree": 0.99}


@pytest.mark.parametrize("name", sorted(LEAST))
def test_passes_start_what_the_real_scheduler_started(name: str) -> None:
    """From each recorded state, both loops start the recorded jobs on the recorded nodes; at quiet moments nothing."""
    tally = Tally()
    for one in passes(read(KEPT / name)):
        tally.add(one)
    assert tally.passes > 40
    assert tally.same_set >= LEAST[name] * tally.passes
    assert tally.same_nodes >= 0.97 * tally.predicted


def test_preemptions_take_the_recorded_victims() -> None:
    """For each recorded preemption the baseline stops the same job for the same other one."""
    found = [each.job in stops for each, stops in preemptions(read(KEPT / "preempt-qos"))]
    assert len(found) == 15
    assert all(found)


@pytest.mark.parametrize("name", ["backfill-accurate", "preempt-qos"])
def test_a_whole_run_follows_the_recorded_ones(name: str) -> None:
    """With the loop phases of run 1 nearly all jobs start when they started."""
    recording = read(KEPT / name)
    assert score(recording, Player(recording, 1).play()).within_tolerance >= 0.9


def test_priority_and_share_figures_equal_what_was_printed() -> None:
    """Computed from events, accounts and settings, they equal sprio and sshare to the last digit."""
    found = list(figures(read(KEPT / "fair-tree")))
    assert len(found) > 2000
    assert [each for each in found if each[1] != each[2]] == []
