"""A case whose work another action of the controller stops: how much of its promise is left."""

from __future__ import annotations

from math import inf

from autopilot.core.model.capability import Tick
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.trust import TrustMemory
from autopilot.core.model.promises import Beneficiary, Promise, Realised
from autopilot.core.model.records import Loss
from autopilot.core.trust.follow_promises import follow_promises
from tests.kits.core_world import holds, waits, world
from tests.kits.ticking_world import EAGER

FULL = Promise("p", "preempt", 1000.0, 5000.0, 24_000.0, (Beneficiary("w", "w", 4000.0, counted_s=1000.0, gpus=8.0),))
"""Eight GPUs for 3,000 s."""
PAUSE = Loss("q", "w", 0, 50.0, 0.0, 0.0)
"""What another action lost when it stopped the work."""


def played(loss: Loss | None, back_s: float) -> list[tuple[float, float, float]]:
    """Promised, used and lost when the work holds nothing from 1,600 s until it is back."""
    memory, over = ControllerMemory(trust=TrustMemory(promises=(FULL,))), list[Realised]()
    for now_s in (1000.0, 1500.0, 1600.0, 2000.0, 3000.0, 9000.0):
        first = now_s <= 1500.0
        there = first or now_s > back_s
        work = [holds("w", 8, start_s=1000.0 if first else back_s) if there else waits("w", 8)]
        losses = (loss,) if loss is not None and now_s == 1500.0 else ()
        tick = Tick(memory, world("2x8", work, now_s), EAGER, losses=losses)
        memory = follow_promises(memory, tick)
        over += tick.realised
    return [(case.promised_gpu_s, case.used_gpu_s, case.lost_gpu_s) for case in over]


def test_a_promise_shrinks_while_another_action_keeps_the_work_waiting() -> None:
    """What it could use in 600 s is left of it. The loss counts."""
    assert played(PAUSE, inf) == [(8 * 600.0, 8 * 600.0, 50.0)]


def test_a_promise_stands_while_work_is_on_its_way_or_waits_for_another_reason() -> None:
    """A move costs the time on the way only, and a stop that no action made is no excuse."""
    assert played(PAUSE, 1600.0) == [(8 * 3000.0, 8 * 3000.0, 50.0)]
    assert played(None, inf) == [(8 * 3000.0, 8 * 600.0, 0.0)]
