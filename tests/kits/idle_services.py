"""A small world with a service whose replicas rest, walked along the ladder until it is scaled down."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from typing import Any

from autopilot.core.model.memory import Step
from autopilot.core.model.objects import CeilingWay
from autopilot.core.model.policy import Policy
from autopilot.core.model.snapshot import ClusterSnapshot, ServiceTable, make
from tests.kits.core_world import holds, snapshot, waits, with_policy
from tests.kits.idle_world import NOW_S, QUICK, look, measured
from tests.kits.ticking_world import tenants

POLICY = with_policy(QUICK, modes={"shrink_idle": "auto"})
GRACE_S = 3600.0
UNUSED: dict[str, Any] = {
    "queue": 1,
    "replicas": 2,
    "ready_replicas": 2,
    "min_replicas": 0,
    "max_replicas": 4,
    "needed_replicas": 2,
    "generation": 1,
    "violation_ratio": nan,
    "load_ratio": 0.0,
    "rate_rps": 0.0,
    "queue_depth": 0.0,
    "recent_rps": 0.0,
    "age_s": 10.0,
    "wake_rps": 0.0,
    "wake_age_s": 10.0,
    "ceiling_way": CeilingWay.AUTOSCALER,
}


def scene(
    guarantee: int = 0, *, waiting: bool = True, replicas: int = 2, pending: int = 0, **changed: Any
) -> ClusterSnapshot:
    """Service `chat` with replicas of 4 GPUs that rest, and a gang that waits for them."""
    columns = {name: changed.pop(name, value) for name, value in UNUSED.items()}
    services = {
        name: [changed.pop(name, value)]
        for name, value in {**columns, "floor": 0, "ceiling": -1, "ceiling_until_s": nan}.items()
    }
    own: dict[str, Any] = {"queue": 1, "start_s": 0.0, "user": "ann", "gpus_per_member": 4, "service": 0, **changed}
    work = [holds(f"chat/{n}", 4, **own) for n in range(replicas)]
    work += [waits(f"chat/{n + 10}", 4, queue=1, service=0, gpus_per_member=4) for n in range(pending)]
    work += [waits("p", 8, queue=2, priority=0)] if waiting else []
    snap = snapshot("1x8", work, queues=tenants(("a", 0, guarantee), ("b", 0, 0)))
    return measured(replace(snap, services=make(ServiceTable, id=["chat"], uid=["chat-uid"], **services)), {})


def due(guarantee: int = 0, policy: Policy = POLICY, **changed: Any) -> Step:
    """The decision after notices and graces, with what has changed by then."""
    told = look(scene(guarantee), NOW_S + 200.0, look(scene(guarantee), NOW_S, policy=policy), policy)
    if guarantee:
        told = look(scene(guarantee), NOW_S + GRACE_S + 300.0, told, policy)
    return look(scene(guarantee, **changed), NOW_S + (2 if guarantee else 1) * GRACE_S + 900.0, told, policy)


def shrunk(before: Step, now_s: float, replicas: int = 0, **changed: Any) -> Step:
    """The service under its ceiling at a later time."""
    state: dict[str, Any] = {
        "ceiling": replicas,
        "ceiling_until_s": now_s + 1700.0,
        "load_ratio": nan,
        "recent_rps": nan,
    }
    state |= {"replicas": replicas, "ready_replicas": replicas, "needed_replicas": replicas, **changed}
    return look(scene(waiting=False, **{**state, "replicas": replicas}), now_s, before, POLICY)
