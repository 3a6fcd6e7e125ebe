"""What is metered between two ticks that were made by hand."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import numpy as np

from autopilot.core.effects.admit import AdmitOperation
from autopilot.core.model.objects import Slot, Subject, SubjectKind
from autopilot.core.model.records import Instruction, Observation
from autopilot.core.model.snapshot import State
from autopilot.metering.amounts import GRAINS_PER_GPU_S
from autopilot.metering.meter import Meter
from tests.kits.core_world import decide, holds, observe, snapshot, waits
from tests.kits.metering_kit import Memory, sums_of
from tests.kits.usage_world import measured


def seen(start_s: float | None, now_s: float) -> Observation:
    """Eight GPUs, four of them held since `start_s`; None: all are free."""
    work = [] if start_s is None else [holds("x", 4, start_s=start_s)]
    return replace(observe(snapshot("1x8", work), now_s), tick=int(now_s))


def gpu_s(*ticks: Observation, amount: str = "gpu_time") -> dict[str, float]:
    """GPU-seconds by kind over these ticks."""
    memory = Memory()
    meter = Meter(memory, begin_s=ticks[0].now_s)
    for tick in ticks:
        meter.take(tick, decide(tick).instructions)
    meter.close()
    return {key[0]: sum_ / GRAINS_PER_GPU_S for key, sum_ in sums_of(memory.rows).items() if key[1] == amount}


def test_work_is_held_from_its_start_not_from_the_tick_before() -> None:
    """It started 40 s after the first tick: 60 s of four GPUs."""
    found = gpu_s(seen(None, 1000.0), seen(1040.0, 1100.0))
    assert (found["held"], found["capacity"]) == (240.0, 800.0)


def test_a_start_that_waited_for_its_victims_is_metered_though_no_tick_shows_it_running() -> None:
    """Sent at one tick, ended at the next: the instruction tells of its GPUs, for no proposal of that tick does."""
    before = snapshot("1x8", [waits("x", 4, uid="u")])
    after = snapshot("1x8", [waits("x", 4, uid="u", state=State.SUCCEEDED, incarnation=1, ended_s=1067.0)])
    first, second = observe(before, 1000.0), replace(observe(after, 1100.0), tick=2)
    slots = tuple(Slot("", uuid) for uuid in before.gpus.uuid.tolist()[:4])
    sent = Instruction("i", Subject(SubjectKind.WORKLOAD, "x", "u", 0), AdmitOperation(slots=slots), 1e9, 1, "p")
    memory = Memory()
    meter = Meter(memory, begin_s=1000.0)
    meter.take(first, [sent])
    meter.take(second)
    meter.close()
    assert sums_of(memory.rows)["held", "gpu_time"] / GRAINS_PER_GPU_S == 4 * 67.0


def test_time_that_was_counted_is_not_counted_again_after_the_clock_was_set_back() -> None:
    """It was set back by 60 s, and passes the same minute a second time: 120 s of four GPUs in all."""
    ticks = [seen(0.0, at_s) for at_s in (1000.0, 1100.0, 1040.0, 1080.0, 1120.0)]
    found = gpu_s(*ticks)
    assert (found["held"], found["capacity"]) == (480.0, 960.0)


def test_shares_of_whole_gpus_are_billed_by_part() -> None:
    """Work that requested four GPUs and holds a quarter of each pays for one, and saves three."""
    ticks = []
    for tick in (seen(0.0, 5000.0), seen(0.0, 5060.0)):
        held = replace(tick.snapshot.placements, milli=np.full(4, 250, np.int32))
        ticks.append(replace(tick, snapshot=replace(tick.snapshot, placements=held)))
    assert gpu_s(*ticks)["held"] == 60.0
    assert gpu_s(*ticks, amount="saved")["held"] == 180.0
    assert gpu_s(seen(0.0, 5000.0), seen(0.0, 5060.0), amount="saved").get("held", 0.0) == 0.0


def test_either_end_that_was_not_seen_whole_makes_a_gap() -> None:
    """Nothing is billed where one of the two views was incomplete."""
    ticks = [seen(0.0, 1000.0), seen(0.0, 1100.0)]
    assert gpu_s(*ticks)["held"] == 400.0
    for at in range(2):
        blind = list(ticks)
        blind[at] = replace(ticks[at], signals=replace(ticks[at].signals, capacity_gpus=nan))
        found = gpu_s(*blind)
        assert found.get("held", 0.0) == 0.0
        assert found["gap"] == found["capacity"] > 0


def test_what_work_does_on_gpus_that_it_may_not_hold_is_not_measured() -> None:
    """Its GPU time counts; activity and energy may be those of another workload."""
    busy = {"sm_active_ratio": [0.5] * 8, "power_w": [400.0] * 8}
    for assumed in (False, True):
        ticks = [
            replace(seen(0.0, at_s), snapshot=measured(seen(0.0, at_s).snapshot, busy)) for at_s in (5000.0, 5060.0)
        ]
        held = ticks[0].snapshot.placements
        held = replace(held, assumed=np.full(len(held.gpu), assumed))
        ticks = [replace(each, snapshot=replace(each.snapshot, placements=held)) for each in ticks]
        memory = Memory()
        meter = Meter(memory, begin_s=5000.0)
        for tick in ticks:
            meter.take(tick, decide(tick).instructions)
        meter.close()
        sums = {name: sums_of(memory.rows)["held", name] for name in ("gpu_time", "measured", "active", "powered")}
        known = 0 if assumed else 240 * GRAINS_PER_GPU_S
        assert sums == {"gpu_time": 240 * GRAINS_PER_GPU_S, "measured": known, "active": known // 2, "powered": known}
