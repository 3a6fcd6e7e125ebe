"""The idle score of tenants: what can be judged, what rests, and whether its queue is guaranteed it."""

from __future__ import annotations

import json

import numpy as np

from autopilot.core.hardware.dcgm import Quality
from autopilot.core.model.records import Observation
from autopilot.explain.idle import idle_document, idle_lines
from tests.kits.core_world import holds, observe, snapshot
from tests.kits.idle_world import NOW_S, QUICK, measured
from tests.kits.ticking_world import tenants

WORK = {"sm_active_ratio": 0.8, "dram_active_ratio": 0.4, "power_w": 320.0}
QUEUES = tenants(("a", 0, 2), ("b", 0, 8))


def scene(busy: dict[int, dict[str, float]]) -> Observation:
    """Tenant 0 holds four GPUs, of which its queue is guaranteed two; tenant 1 holds two of its own."""
    work = [
        holds("x", 4, queue=1, tenant=0, start_s=0.0),
        holds("y", 2, queue=2, tenant=1, start_s=0.0),
    ]
    return observe(measured(snapshot("1x8", work, queues=QUEUES), busy), NOW_S)


def test_idle_gpus_are_split_by_the_guarantee() -> None:
    """Half of what tenant 0 holds is borrowed, and all of it rests; tenant 1 works."""
    found = idle_document(scene({4: WORK, 5: WORK}), QUICK)
    assert json.loads(json.dumps(found, allow_nan=False)) == {
        "window_s": 1800.0,
        "tenants": [
            {
                "name": "t0",
                "held_gpus": 4.0,
                "judged_gpus": 4.0,
                "idle_guaranteed_gpus": 2.0,
                "idle_borrowed_gpus": 2.0,
                "idle_gpu_h": 2.0,
                "score_ratio": 1.0,
            },
            {
                "name": "t1",
                "held_gpus": 2.0,
                "judged_gpus": 2.0,
                "idle_guaranteed_gpus": 0.0,
                "idle_borrowed_gpus": 0.0,
                "idle_gpu_h": 0.0,
                "score_ratio": 0.0,
            },
        ],
    }


def test_the_table_has_the_tenants_with_idle_work() -> None:
    """Most idle GPUs first; tenants at work are not listed."""
    assert idle_lines(scene({4: WORK, 5: WORK}), QUICK) == [
        "idle work over 30 min:",
        "             held GPUs  judged  idle, guaranteed  idle, borrowed  idle GPU-h    score",
        "  tenant t0          4       4                 2               2         2.0  100.0 %",
    ]


def test_without_telemetry_nothing_is_judged() -> None:
    """Unknown is not idle, and says so."""
    blind = observe(snapshot("1x8", [holds("x", 4)]), NOW_S)
    assert idle_document(blind, QUICK)["tenants"] == []
    assert "can be judged" in idle_lines(blind, QUICK)[0]


def test_weak_evidence_is_judged_and_counts_as_no_idle_time() -> None:
    """A counter that says only whether a kernel ran: its work can be judged, and scores nothing."""
    work = [holds("x", 4, queue=1, tenant=0, start_s=0.0)]
    coarse = np.full(8, Quality.GPU_UTIL, np.int8)
    seen = observe(measured(snapshot("1x8", work, queues=QUEUES), {}, quality=coarse), NOW_S)
    (tenant,) = idle_document(seen, QUICK)["tenants"]
    assert (tenant["judged_gpus"], tenant["idle_guaranteed_gpus"], tenant["idle_borrowed_gpus"]) == (4.0, 0.0, 0.0)


def test_no_idle_work_is_one_line() -> None:
    """All of it works."""
    everything = dict.fromkeys(range(8), WORK)
    assert idle_lines(scene(everything), QUICK) == ["idle work: none, of 2 tenants over 30 min"]
