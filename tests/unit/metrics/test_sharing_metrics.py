"""What is exposed of GPUs that software shares."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.profiles import ProfilesMemory
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.metrics.samples import Samples
from autopilot.metrics.sharing_samples import put_sharing
from autopilot.metrics.table import METRICS
from tests.kits.core_world import observe, snapshot
from tests.kits.shared_gpus import KNOWN, NOW_S, WORK, on_shares, profiles, sharer
from tests.kits.usage_world import measured


def samples(snap: ClusterSnapshot, known: ProfilesMemory) -> dict[str, float]:
    """The samples by name and labels."""
    out = Samples()
    put_sharing(out, observe(snap, NOW_S), replace(ControllerMemory(), profiles=known))
    return {f"{name}{list(labels)}": value for name, rows in out.values.items() for labels, value in rows.items()}


def test_a_pool_shows_its_shared_gpus_rates_and_the_largest_shortfall() -> None:
    """What is not known has no sample, and neither has a cluster without shares."""
    snap = on_shares(sharer("two", [0, 1], 1.2), *WORK[1:])
    known = profiles(snap, **KNOWN)
    assert samples(snap, known) == pytest.approx(
        {
            "pool_shared_gpus['pool']": 1,
            "pool_shared_rate_ratio['pool', 'predicted']": 2.6 / 3,
            "pool_shared_rate_ratio['pool', 'measured']": 0.75,
            "pool_shared_shortfall_ratio['pool']": 0.2,
        }
    )
    seen = measured(snap, {"sm_active_ratio": [0.8, 0.6, 0.9, 0.5]})
    assert samples(seen, known)["fleet_useful_utilization_ratio[]"] == pytest.approx(
        (2 * 0.5 * 0.6 + 0.4 * 0.9 + 0.9) / 4
    )
    assert samples(seen, ProfilesMemory()) == {"pool_shared_gpus['pool']": 1}
    assert samples(snap, ProfilesMemory()) == {"pool_shared_gpus['pool']": 1}
    assert samples(snapshot("1x4", WORK), known) == {}
    assert len([each for each in METRICS if each.name.startswith("pool_shared")]) == 3
