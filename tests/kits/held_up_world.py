"""A gang with a member that holds it up, as a detector reports it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autopilot.core.model.memory import Step
from autopilot.core.model.neighbours import SlowGpu, Straggler
from autopilot.core.model.policy import Policy
from tests.kits.core_world import Item, decide, holds, observe, snapshot
from tests.kits.idle_world import measured
from tests.kits.ticking_world import EAGER

NOW_S = 20_000.0
GANG = holds("train", 8, range(8), start_s=0.0, last_checkpoint_s=NOW_S - 60.0, restart_s=120.0)
SUSPECT = SlowGpu("node-1", "GPU-9", 3, 1.4, ("step-time", "remap"))


def slow(**more: Any) -> Straggler:
    """Member 3 needs 1.3 times as long since two hours, at a quarter of the time of eight GPUs."""
    found = Straggler(
        gang="train",
        gang_uid="train",
        rank=3,
        node="node-0",
        gpu="GPU-3",
        slow_ratio=1.3,
        evidence=("step-time", "clocks"),
        confidence=0.93,
        since_s=NOW_S - 7200.0,
        found_s=NOW_S - 6600.0,
        cost_gpu_s_per_h=7200.0,
    )
    return replace(found, **more)


def held_up(
    *found: Straggler,
    shape: str = "3x8",
    work: tuple[Item, ...] = (GANG,),
    suspects: tuple[SlowGpu, ...] = (),
    policy: Policy = EAGER,
    total_s: float = 80_000.0,
) -> Step:
    """The decision on these verdicts."""
    snap = snapshot(shape, work)
    works = {gpu: {"sm_active_ratio": 0.7, "power_w": 400.0} for gpu in range(len(snap.gpus.uuid))}
    seen = observe(measured(snap, works), NOW_S, total_s={"train": total_s})
    forecasts = replace(seen.forecasts, stragglers=found, slow_gpus=suspects)
    return decide(replace(seen, forecasts=forecasts), policy)
