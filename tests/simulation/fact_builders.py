"""Facts, and a small world to judge them in, for the tests of the checkers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autopilot.core.hardware.mig import Placement
from autopilot.core.model.hours import parse_hours
from autopilot.core.model.objects import Share, Sharing, SharingConfig, Trust
from autopilot.core.model.snapshot import ServiceTable, make
from simulator.checkers import CHECKERS, Rules, World
from simulator.specs.advance_spec import AdvanceSpec
from simulator.specs.clusterfile import MigSpec
from simulator.specs.clusterqueues import QueueSpec
from simulator.world.facts import (
    HOOKS,
    Ceiled,
    Evicting,
    Fact,
    Floored,
    Recutting,
    Started,
    Stopped,
    Why,
)
from simulator.world.sharing import Unknown
from simulator.world.work import Jobs, Shape
from tests.kits.cluster_kit import gang, pool, pools

RULES = Rules(
    min_runtime_s=900.0,
    dwell_s=300.0,
    window_s=3600.0,
    per_cluster=3,
    per_tenant=2,
    per_node=1,
    cool_down_s=1800.0,
    most_stops=3,
    blast_ratio=2.0,
    landing_s=600.0,
    grace_s=120.0,
    guarantee_within_s=130.0,
    recover_within_s=10.0,
    floor_dwell_s=600.0,
    floor_lease_s=1800.0,
    room_dwell_s=900.0,
    room_reversal_s=3600.0,
    ahead_dwell_s=5000.0,
    peak_hours=parse_hours("Thu 02:00-03:00", "peak_hours"),
    recuts_per_hour=2,
    recut_dwell_s=900.0,
    recut_return_s=3600.0,
    queues=(QueueSpec("a", "root", {"A100-80GB": 16}, 17, 1.0, 0, None, {"T4": 0}),),
    advance=(AdvanceSpec("launch", "a", "A100-80GB", 20, 1000.0, 600.0),),
)


HELD = frozenset(
    {
        "backfill",
        "preempt",
        "make_room",
        "reclaim_borrowed",
        "defragment",
        "defragment_ahead",
        "replace",
        "isolate",
        "resize",
        "scale_ahead",
        "recover",
        "regeometry",
        "suspend_idle",
        "shrink_idle",
    }
)


END_S = 90_000.0

SHARING_WORK = (
    (Trust.TRUSTED, Share.DEV),
    (Trust.ACROSS, Share.DEV),
    (Trust.TRUSTED, Share.PAIR),
    (Trust.UNTRUSTED, Share.DEV),
    (Trust.ACROSS, Share.DEV),
    (Trust.ACROSS, Share.PAIR),
    *((Trust.TRUSTED, Share.DEV),) * 4,
    *((Trust.TRUSTED, Share.PAIR),) * 2,
)
"""Declarations of jobs 12 to 21."""


def recut(
    gpu: int,
    at_s: float,
    before: tuple[tuple[str, int], ...],
    after: tuple[tuple[str, int], ...],
    *,
    ends: bool = False,
) -> Recutting:
    """The begin or the end of a change of geometry."""
    return Recutting(at_s, gpu, not ends, before, after, f"e-{gpu}")


def services(_now_s: float) -> ServiceTable:
    """One service that misses its objective, one that keeps it."""
    table: ServiceTable = make(
        ServiceTable,
        id=["slow", "quick"],
        uid=["slow", "quick"],
        objective_s=[5.0, 5.0],
        p99_s=[5.1, 4.9],
        itl_objective_s=[0.05, 0.05],
        itl_p99_s=[0.1, 0.04],
    )
    return table


def world(rules: Rules = RULES) -> World:
    """Twelve jobs of two tenants on three nodes of eight; job 3 is latency-critical, 4 not preemptible, 5 opted out;
    and ten that declare trust, with GPUs shared by software for them (planted_sharing.py).

    Job 5 is elastic, 8 names its GPU model, 4 and 10 are replicas. Tenant a is guaranteed two of the three nodes.
    """
    jobs = Jobs()
    for number in range(12):
        jobs.add(
            f"job-{number}",
            "ab"[number % 2],
            gang((1, 2, 16)[number % 3]),
            0.0,
            5000.0,
            slo_class=0 if number == 3 else 2,
            preemptible=number not in {3, 4},
        )
    for number, (trust, share) in enumerate(SHARING_WORK, 12):
        gpus = 8 if number == 21 else 1
        jobs.add(f"job-{number}", "b" if number in {16, 17} else "a", gang(gpus), 0.0, 5000.0, trust=trust, share=share)
    jobs.service[4], jobs.service[10] = 0, 1
    jobs.shape[5] = jobs.shape_code(gang(16, min_gpus=8))
    jobs.shape[8] = jobs.shape_code(gang(16, models=1))
    jobs.shape[6] = jobs.shape_code(Shape(1, 1, 1, milli=600))
    jobs.shape[7] = jobs.shape_code(Shape(1, 1, 1, profile="3g.40gb"))
    jobs.shape[9] = jobs.shape_code(gang(1, models=1 << 1))
    cut = MigSpec(1, (Placement("3g.40gb", 0), Placement("3g.40gb", 4)))
    hardware = pools(
        pool("main", nodes=3, gpus=8),
        pool("cut", nodes=1, gpus=1, mig=(cut,)),
        pool("t4", gpus=1, model="T4"),
        pool("sliced", gpus=8, model="H100-80GB", sharing=SharingConfig("time-slicing-4", Sharing.TIME_SLICING, 4)),
        pool("mps", gpus=2, model="H100-80GB", sharing=SharingConfig("mps-4", Sharing.MPS, 4)),
    )
    held = {"excluded": frozenset({5}), "held_actions": HELD}
    return World(
        hardware,
        jobs,
        Rules(**{name: getattr(rules, name) for name in rules.__slots__} | held),
        services,
        works=lambda job, _at_s: job % 2 == 1,
        loads=Thirds(),
    )


class Thirds(Unknown):
    """All work holds 30,000 of 80,000 MiB."""

    def footprint_mib(self, _job: int, _gpu_model: str) -> float:
        """The same for all."""
        return 30_000.0

    def memory_mib(self, _gpu_model: str) -> float:
        """Room for two."""
        return 80_000.0


def started(job: int, gpus: Sequence[int], at_s: float = 10.0, **more: Any) -> Started:
    """A start."""
    return Started(
        at_s,
        job,
        more.pop("incarnation", 0),
        tuple(gpus),
        more.pop("instances", ()),
        more.pop("milli", 1000 * len(gpus)),
        more.pop("backfill", False),
        more.pop("effect", ""),
    )


def stopped(job: int, why: Why = Why.PREEMPT, at_s: float = 100.0, start_s: float = 10.0, **more: Any) -> Stopped:
    """A stop."""
    values: dict[str, Any] = {
        "ready_s": start_s,
        "halt_s": at_s,
        "gain_s": at_s - start_s,
        "lost_s": 0.0,
        "milli": 1000,
        "full_milli": 1000,
    } | more
    return Stopped(at_s, job, 0, why, start_s, **values)


def evicting(
    job: int,
    at_s: float = 2000.0,
    contract: bool = False,
    effect: str = "",
    why: Why = Why.PREEMPT,
    ahead: bool = False,
) -> Evicting:
    """Told to leave."""
    return Evicting(at_s, job, 0, why, contract, effect, ahead)


def resized(job: int, gpus: Sequence[int], at_s: float = 100.0, **more: Any) -> tuple[Stopped, Started]:
    """Goes on with other GPUs at the same instant; `more` are fields of the stop."""
    return stopped(job, Why.RESIZE, at_s, **more), started(job, gpus, at_s)


def floored(replicas: int, at_s: float = 10.0, until_s: float = 1000.0, effect: str = "") -> Floored:
    """Service 0 has at least this many replicas until then."""
    return Floored(at_s, 0, replicas, until_s, effect)


def ceiled(replicas: int, at_s: float = 10.0, until_s: float = 1000.0, effect: str = "", **more: Any) -> Ceiled:
    """Service 0 has at most this many replicas until then; its owner keeps one, and nothing wakes it."""
    return Ceiled(at_s, 0, replicas, until_s, **{"least": 1, "wakes": False, "busy": False, **more, "effect": effect})


def check(name: str, *facts: Fact) -> list[str]:
    """What checker `name` says of these facts."""
    checker = CHECKERS[name](world())
    for fact in facts:
        hook: Callable[[Any], None] | None = getattr(checker, HOOKS[type(fact)], None)
        if hook is not None:
            hook(fact)
    checker.at_end(END_S)
    return [f"{violation.object}: {violation.message}" for violation in checker.violations]
