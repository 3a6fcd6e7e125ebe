"""The accounts, from single facts."""

from __future__ import annotations

import pytest

from simulator.running.accounting import Accounts
from simulator.world.facts import Started, Stopped, Why
from tests.kits.cluster_kit import cluster_of, make_jobs


@pytest.mark.parametrize(
    ("away_s", "gpu", "reversals"),
    [(0.0, 0, 1), (299.0, 0, 1), (300.0, 0, 0), (0.0, 1, 0)],
)
def test_a_return_to_the_same_gpus_within_five_minutes_was_in_vain(away_s: float, gpu: int, reversals: int) -> None:
    """Work that was preempted and comes back there soon is counted; later, or elsewhere, it is not."""
    accounts = Accounts(cluster_of(make_jobs([(0, 1000, 1)])), 0.0)
    accounts.on_started(Started(0.0, 0, 0, (0,), (), 1000, backfill=False, effect=""))
    accounts.on_stopped(Stopped(10.0, 0, 0, Why.PREEMPT, 0.0, 0.0, 10.0, 10.0, 0.0, 1000, 1000))
    accounts.on_started(Started(10.0 + away_s, 0, 1, (gpu,), (), 1000, backfill=False, effect=""))
    assert accounts.reversals == reversals
