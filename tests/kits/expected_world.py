"""Two islands of two nodes, a short straggler on each, and a gang that is expected and needs a whole island."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from autopilot.core.hardware.dcgm import SIGNALS
from autopilot.core.model.forecast import ExpectedMix, MixKind
from autopilot.core.model.policy import Mode, Modes, Policy
from autopilot.core.model.records import Observation
from autopilot.core.model.snapshot import Topology
from tests.kits.core_world import AUTO, Item, holds, observe, snapshot, with_policy
from tests.kits.usage_world import measured

HOUR_S = 3600.0
NOW_S = 5 * HOUR_S
ISLAND = MixKind((), 16, 8, topology=int(Topology.ISLAND))
SAVES = {"checkpoint_on_request": True, "checkpoint_write_s": 20.0, "checkpoint_interval_s": 1800.0, "restart_s": 30.0}
STRAGGLERS = (
    holds("a", 4, range(4), gpus_per_member=4, **SAVES),
    holds("b", 2, range(16, 18), gpus_per_member=2, **SAVES),
)
"""Moving `b` to the island of `a` clears an island, and is cheaper than moving `a`."""

LASTING = {"a": 100 * HOUR_S, "b": 100 * HOUR_S}

PATIENT = with_policy(
    replace(AUTO, modes=Modes(*[Mode.AUTO] * len(Modes.__dataclass_fields__))),
    hysteresis={"dwell_s": 0.0},
    preemption={"saves_prior": 1.0},
)


def mix_of(*kinds: MixKind, each_hour: float = 0.5, made_s: float = NOW_S) -> ExpectedMix:
    """As many arrivals of each kind an hour."""
    horizons_s = (HOUR_S, 4 * HOUR_S, 24 * HOUR_S)
    expected = np.tile(each_hour * np.array(horizons_s) / HOUR_S, (len(kinds), 1))
    return ExpectedMix("m", made_s, kinds, horizons_s, (0.5,), expected, expected[:, :, None], watched_h=24.0)


def island_expected(
    work: Iterable[Item] = STRAGGLERS,
    *,
    now_s: float = NOW_S,
    mix: ExpectedMix | None = None,
    total_s: Mapping[str, Any] | None = None,
    age_s: float = 5.0,
    sm_active: float = 0.5,
    islands: tuple[int, ...] = (0, 0, 1, 1),
) -> Observation:
    """What is observed: busy GPUs, measured a moment ago."""
    snap = snapshot(f"{len(islands)}x8", work, nodes={"island": islands})
    gpus = len(snap.gpus.uuid)
    values = {"sm_active_ratio": sm_active, "dram_active_ratio": sm_active, "fb_used_mib": 20_000.0}
    snap = measured(snap, {name: [value] * gpus for name, value in values.items()}, age_s=age_s)
    windows_s = np.array(snap.telemetry.windows_s)
    samples = np.tile((4 * windows_s / windows_s.min()).astype(np.int32)[:, None], (1, gpus))
    highest = snap.telemetry.mean * np.float32(1.01)
    highest[SIGNALS.index("fb_used_mib")] = 20_000.0
    table = replace(snap.telemetry, maximum=highest, samples=samples)
    snap = replace(snap, telemetry=table)
    seen = observe(snap, now_s, total_s=LASTING if total_s is None else total_s)
    return replace(seen, forecasts=replace(seen.forecasts, mix=mix_of(ISLAND) if mix is None else mix))


def patient(**ahead: Any) -> Policy:
    """Everything automatic, with these fields of `defragment_ahead`."""
    return with_policy(PATIENT, defragment_ahead=ahead)
