"""Telemetry of small worlds whose GPUs rest, and a ladder walked to its next step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from autopilot.core.hardware.dcgm import SIGNALS, Quality
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Outcome, OutcomeKind
from autopilot.core.model.signal_table import SignalTable
from autopilot.core.model.snapshot import ClusterSnapshot
from tests.kits.core_world import decide, holds, observe, snapshot, waits, with_policy
from tests.kits.ticking_world import EAGER, tenants

NOW_S = 10_000.0
MEMORY = SIGNALS.index("fb_used_mib")
QUICK = with_policy(EAGER, idle={"gone_s": 0.0})
"""Only the graces of the steps delay a suspension."""
STILL = {
    "sm_active_ratio": 0.0,
    "tensor_active_ratio": 0.0,
    "dram_active_ratio": 1e-5,
    "nvlink_bytes_s": 0.0,
    "pcie_bytes_s": 1e6,
    "fb_used_mib": 20_000.0,
    "power_w": 96.0,
}


def measured(snap: ClusterSnapshot, gpus: dict[int, dict[str, float]], **table: Any) -> ClusterSnapshot:
    """The snapshot with telemetry: GPUs rest, except for the means named by row.

    A maximum is 2 % above its mean, except for the memory, which does not change.
    """
    count = len(snap.gpus.uuid) + len(snap.instances.id)
    mean = np.full((len(SIGNALS), 2, count), np.nan, np.float32)
    for row in range(count):
        for name, value in {**STILL, **gpus.get(row, {})}.items():
            mean[SIGNALS.index(name), :, row] = value
    most = mean * 1.02
    most[MEMORY] = mean[MEMORY]
    samples = np.repeat(np.array([[2], [60]], np.int32), count, axis=1)
    columns: dict[str, Any] = {
        "samples": samples,
        "age_s": np.full(count, 30.0, np.float32),
        "quality": np.full(count, Quality.SM_ACTIVE, np.int8),
        "maximum": most,
        **table,
    }
    return replace(snap, telemetry=SignalTable(SIGNALS, (60.0, 1800.0), 0.0, mean, **columns))


def idle_scene(guarantee: int = 0, **columns: Any) -> ClusterSnapshot:
    """`w` holds a node and rests, and `p` of another queue waits for it."""
    own: dict[str, Any] = {
        "queue": 1,
        "start_s": 0.0,
        "checkpoint_interval_s": 600.0,
        "checkpoint_write_s": 20.0,
        "user": "ann",
    }
    own |= {"checkpoint_on_request": True, "gpus_per_member": 8, **columns}
    work = [holds("w", 8, **own), waits("p", 8, queue=2, priority=0)]
    return measured(snapshot("1x8", work, queues=tenants(("a", 0, guarantee), ("b", 0, 0))), {})


def look(snap: ClusterSnapshot, now_s: float, before: Step | None = None, policy: Policy = QUICK) -> Step:
    """The decision at a time, after the effects of the one before it were done."""
    memory = ControllerMemory() if before is None else before.memory
    sent = () if before is None else before.instructions
    outcomes = tuple(Outcome(each.id, OutcomeKind.DONE, now_s - 1.0) for each in sent)
    return decide(replace(observe(snap, now_s), outcomes=outcomes), policy, memory)


def notified(snap: ClusterSnapshot, policy: Policy = QUICK) -> Step:
    """After the notice was given."""
    return look(snap, NOW_S + 200.0, look(snap, NOW_S, policy=policy), policy)
