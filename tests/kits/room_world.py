"""A small world in which a foreseen replica finds no place, and work that rests could make room for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.memory.replicas import ReplicasMemory
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Outcome, OutcomeKind
from autopilot.core.model.snapshot import ClusterSnapshot, SloClass
from tests.kits.core_world import decide, holds, observe, snapshot, waits, with_policy
from tests.kits.demand_world import LEARNED, forecast, serving
from tests.kits.idle_world import NOW_S, QUICK, measured
from tests.kits.ticking_world import tenants

HOUR_S = 3600.0
POLICY = with_policy(QUICK, scale_ahead={"level": 0.9}, preemption={"saves_prior": 1.0})
ROOM_ONLY = with_policy(POLICY, preemption={"priority_weight": 0.0}, modes={"reclaim_borrowed": "off"})
"""A start is worth too little to `suspend_idle`, and nothing reclaims a guarantee."""
REPLICA: dict[str, Any] = {"queue": 1, "service": 0, "slo_class": SloClass.LATENCY_CRITICAL, "preemptible": False}
OWN: dict[str, Any] = {"checkpoint_on_request": True, "checkpoint_write_s": 10.0, "restart_s": 20.0}
BUSY = {"sm_active_ratio": 0.8, "power_w": 350.0}


def scene(*, guarantee: int = 0, **idle: Any) -> ClusterSnapshot:
    """Two replicas serve and a third waits; `w` of ann rests, `b` is busy, and the node is full."""
    lab = {"queue": 2, "start_s": 0.0, "gpus_per_member": 1, "user": "ann", **OWN, **idle}
    work = [
        holds("chat/1", 1, [0], **REPLICA),
        holds("chat/2", 1, [1], **REPLICA),
        holds("w", 2, [2, 3], **lab),
        holds("b", 4, range(4, 8), queue=3, gpus_per_member=1, start_s=9000.0, **OWN),
        waits("chat/3", 1, submit_s=NOW_S - 10.0, **REPLICA),
    ]
    queues = tenants(("web", 0, 8), ("lab", 0, guarantee), ("batch", 0, 0))
    return measured(snapshot("1x8", work, queues=queues), dict.fromkeys((0, 1, 4, 5, 6, 7), BUSY))


def look(
    snap: ClusterSnapshot,
    now_s: float,
    before: Step | None = None,
    policy: Policy = POLICY,
    *,
    breach: bool = False,
    peak_rps: tuple[float, float, float] = (5.5, 6.0, 6.0),
) -> Step:
    """The decision at a time, after the effects of the one before it were done. The load needs a third replica, or is
    foreseen to need it; before the first grace nothing of that is known.
    """
    known = now_s > NOW_S + HOUR_S
    memory = ControllerMemory(replicas=ReplicasMemory(services=LEARNED)) if before is None else before.memory
    sent = () if before is None else before.instructions
    columns: dict[str, Any] = {"queue": [1], "replicas": [3], "needed_replicas": [3 if breach else 2]}
    columns |= {"floor": [3], "floor_until_s": [now_s + 1700.0], "p99_s": [99.0 if breach and known else 1.0]}
    told = (forecast({"chat": peak_rps}, now_s),) if known and not breach else ()
    seen = serving(observe(snap, now_s), *told, **columns)
    outcomes = tuple(Outcome(each.id, OutcomeKind.DONE, now_s - 1.0) for each in sent)
    return decide(
        replace(seen, outcomes=outcomes), policy, replace(memory, replicas=replace(memory.replicas, services=LEARNED))
    )


def noticed(snap: ClusterSnapshot, policy: Policy = POLICY) -> Step:
    """After the notice was given."""
    return look(snap, NOW_S + 200.0, look(snap, NOW_S, policy=policy), policy)


def due(snap: ClusterSnapshot, policy: Policy = POLICY, before: Step | None = None, **more: Any) -> Step:
    """After the notice and its grace."""
    return look(snap, NOW_S + HOUR_S + 300.0, before or noticed(snap, policy), policy, **more)
