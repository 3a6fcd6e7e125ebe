"""The scenes whose decisions are kept as golden files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autopilot.core.model.policy import Mode, Modes, Policy
from autopilot.core.model.records import Observation
from tests.kits.core_world import AUTO, HOLDING, holds, waits, with_policy, world
from tests.kits.demand_world import forecast, serving
from tests.kits.story_kit import tree, with_columns
from tests.kits.ticking_world import EAGER

RECOMMENDING = replace(AUTO, name="recommending", modes=Modes(Mode.RECOMMEND, Mode.RECOMMEND))
CUT = {15: [("1g.10gb", 0), ("1g.10gb", 1), ("3g.40gb", 4)]}


def busy() -> Observation:
    """A reservation, work in its gap, work kept out of it, a share, a slice and an opted-out gang."""
    work = [
        holds("train", 8),
        waits("big", 12, priority=5, gpus_per_member=4, submit_s=-600.0),
        waits("fits", 4, submit_s=-300.0),
        waits("outlives", 4, submit_s=-200.0),
        waits("unknown", 2, preemptible=False, submit_s=-100.0),
        waits("share", 1, gpu_milli=250, submit_s=-90.0),
        waits("slice", 1, mig_profile=0, submit_s=-80.0),
        waits("mine", 1, excluded=True, submit_s=-70.0),
    ]
    total_s = {
        "train": 3600.0,
        "big": 7200.0,
        "fits": 1800.0,
        "outlives": 86_400.0,
        "share": 60.0,
        "slice": 60.0,
    }
    return world("2x8", work, 0.0, total_s=total_s, cuts=CUT)


def due() -> Observation:
    """The reserved gang fits once the cheaper of two backfilled gangs leaves."""
    work = [
        holds("young", 4, on=range(4), backfilled=True, start_s=5000.0),
        holds("old", 4, on=range(4, 8), backfilled=True, start_s=100.0),
        waits("big", 12, gpus_per_member=4, submit_s=-600.0),
    ]
    return world("2x8", work, 6000.0, total_s={"young": 9000.0, "old": 9000.0, "big": 100.0})


def dark() -> Observation:
    """Nothing is known, and the kill switch cannot be read."""
    return world("1x8", [waits("a", 8), waits("b", 8)], 50.0, kill_switch=True)


def disturbed() -> Observation:
    """A weighed preemption, a gang that grows, one past its limit, and one on a GPU with a fatal error."""
    work = [
        holds("low", 8, range(8), priority=1),
        holds("late", 4, range(8, 12), priority=9, limit_s=60.0),
        holds("hurt", 4, range(16, 20)),
        waits("high", 8, priority=9, submit_s=-600.0),
    ]
    return world("3x8", work, 7200.0, xids={16: 79})


def owed() -> Observation:
    """A queue below its guarantee takes back from the one that borrows."""
    queues = tree(("a", 0, -1, 4), ("b", 0, -1, 4))
    borrows = holds("big", 8, queue=2, gpus_per_member=2, min_gpus=2)
    return world("1x8", [borrows, waits("w", 4, gpus_per_member=2, queue=1)], 600.0, queues=queues)


def foreseen() -> Observation:
    """Load that is forecast for a service, beside an elastic gang that may grow."""
    elastic = with_columns(world("2x8", [holds("e", 4, gpus_per_member=2)], 0.0), gpus=8, min_gpus=2)
    return serving(elastic, forecast({"chat": 9.0}))


SCENES: dict[str, tuple[Callable[[], Observation], Policy]] = {
    "busy": (busy, with_policy(HOLDING)),
    "due": (due, with_policy(HOLDING)),
    "dark": (dark, with_policy(HOLDING)),
    "recommended": (busy, RECOMMENDING),
    "disturbed": (disturbed, EAGER),
    "owed": (owed, EAGER),
    "foreseen": (foreseen, EAGER),
}
