"""The baseline `slurm` against recorded decisions of a real Slurm scheduler."""

from __future__ import annotations

import pytest

from benchmarks.slurm import KEPT, Tally
from benchmarks.slurm_recordings import read
from benchmarks.slurm_states import passes

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
