"""One proposal for each action, kind and reason: from a decision where a small world makes it, else built by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from autopilot.core.model.forecast import ExpectedMix, Forecasts
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.memory.nodes import NodesMemory
from autopilot.core.model.memory.recovery import CordonRecord, RecoveryMemory
from autopilot.core.model.memory.replicas import ReplicasMemory
from autopilot.core.model.memory.sharing import SharingMemory
from autopilot.core.model.policy.bounds import DAY_S
from autopilot.core.model.records import Evidence, Proposal, Slot, Victim
from autopilot.core.model.snapshot import QueueOrder, State
from autopilot.core.recovery.follow_spending import remember_spending
from tests.kits.core_world import AUTO, HOLDING, decide, holds, observe, queue_tree, snapshot, waits, with_policy, world
from tests.kits.demand_world import LEARNED, expecting, forecast, serving
from tests.kits.expected_world import PATIENT, island_expected
from tests.kits.geometry_world import stating
from tests.kits.held_up_world import held_up, slow
from tests.kits.idle_services import GRACE_S, POLICY, due, scene, shrunk
from tests.kits.idle_world import NOW_S, idle_scene, look, notified
from tests.kits.noisy_world import VICTIM_MOVES, Noisy, after_pause
from tests.kits.proposals import propose
from tests.kits.room_world import ROOM_ONLY
from tests.kits.room_world import due as room_due
from tests.kits.room_world import scene as room_scene
from tests.kits.sharing_world import SHARING, SLICED, book, known, seen, shared, sits
from tests.kits.story_kit import tree, with_columns
from tests.kits.ticking_world import EAGER, tenants
from tests.kits.ticks import follow

HOUR_S = 3600.0
GPUS = tuple(Slot("node-0", f"GPU-{number}") for number in range(8))
SAVES = {"checkpoint_interval_s": 1800.0, "checkpoint_write_s": 20.0}
SUBMITTED = Evidence("submitted", 3480.0, "time")
VICTIM = Victim("v", 0, 8, 90.0, contract=False)
OWN = Victim("w", 0, 8, 90.0, contract=False)
ROOM_FACTS = (
    Evidence("source", "batch work that saves a checkpoint"),
    Evidence("expected_cost", 2310.0, "GPU-s"),
    Evidence("others", "free GPUs: too little; idle work above the guarantee of its queue: none may be suspended now"),
)
MOVED = Victim("v", 0, 2, 10.0, False, "move", tuple(Slot("node-1", f"GPU-{number}") for number in range(8, 10)))

Key = tuple[str, str, str]


def _on_one_node(work: list, now_s: float = 600.0, **more: object) -> Step:  # type: ignore[type-arg]
    return decide(world("1x8", work, now_s, **more), EAGER)  # type: ignore[arg-type]


def _shared(work: list, on: dict[int, int], memory: ControllerMemory | None = None, now_s: float = 7200.0) -> Step:  # type: ignore[type-arg]
    """Two nodes of two GPUs; what the work does alone is known."""
    snap = shared("2x2", work, on)
    profiles = known(snap, now_s)
    return decide(
        seen(snap, now_s), SHARING, profiles if memory is None else replace(memory, profiles=profiles.profiles)
    )


def _unused(**slices: object) -> ControllerMemory:
    return ControllerMemory(sharing=SharingMemory(**slices))  # type: ignore[arg-type]


def _narrow(**columns: object) -> Step:
    """A gang of eight that holds four."""
    seen = world("1x8", [holds("g", 4, gpus_per_member=2)], 600.0)
    return decide(with_columns(seen, gpus=8, **columns), EAGER)


def _called_back(work: list) -> Step:  # type: ignore[type-arg]
    nodes = {"reclaim_at_s": [1000.0, np.nan]}
    return decide(observe(snapshot("2x8", work, nodes=nodes), 940.0), EAGER)


def _guarantee() -> Step:
    queues = tree(("a", 0, -1, 4), ("b", 0, -1, 4))
    big = holds("big", 8, queue=2, gpus_per_member=2, min_gpus=2)
    return _on_one_node([big, waits("w", 4, gpus_per_member=2, queue=1)], queues=queues)


def _runaway() -> Step:
    memory = follow(remember_spending, ControllerMemory(), observe(snapshot("1x8", [holds("g", 4)]), 0.0), AUTO)
    memory = follow(remember_spending, memory, observe(snapshot("1x8", [holds("g", 8)]), 20 * DAY_S), AUTO)
    memory = follow(remember_spending, memory, observe(snapshot("1x8", []), 20.5 * DAY_S), AUTO)
    work = [holds("g", 8, queue=1, start_s=20.5 * DAY_S - 100.0)]
    queues = tenants(("a", 0, 4), ("b", 0, 0))
    policy = with_policy(EAGER, enforcement={"spend_suspends": True})
    return decide(observe(snapshot("1x8", work, queues=queues), 20.5 * DAY_S), policy, memory)


def _time_sharing() -> Step:
    policy = with_policy(EAGER, preemption={"time_sharing": True})
    queues = queue_tree(order=QueueOrder.INDEX)
    work = [holds("long", 8), waits("short", 8)]
    total_s = {"long": 10 * DAY_S, "short": HOUR_S}
    return decide(world("1x8", work, 1000.0, total_s=total_s, queues=queues), policy)


def _together() -> Step:
    """Nine of 24 GPUs are free, three on each node; queues share time, and guarantees are strict."""
    queues = tree(("a", 0, -1, 12), ("b", 0, -1, 12))
    queues = replace(queues, order=np.full(3, QueueOrder.INDEX, np.int8))
    work = [holds(f"four-{node}", 4, on=range(8 * node, 8 * node + 4), queue=2) for node in range(3)]
    work += [holds(f"one-{node}", 1, on=[8 * node + 4], queue=1) for node in range(3)]
    policy = with_policy(EAGER, tenancy={"time_sharing": True})
    return decide(world("3x8", [*work, waits("w", 8, gpus_per_member=8, queue=1)], 5000.0, queues=queues), policy)


def _shared_time() -> Step:
    policy = with_policy(EAGER, preemption={"time_sharing": True}, tenancy={"time_sharing": True})
    queues = tenants(("a", 0, 4), ("b", 0, 4), order=QueueOrder.INDEX)
    work = [holds("kept", 4, queue=1), holds("long", 4, queue=1), waits("short", 4, queue=2), holds("own", 4, queue=2)]
    total_s = {"kept": 10 * DAY_S, "long": 10 * DAY_S, "own": 10 * DAY_S, "short": HOUR_S}
    return decide(world("1x12", work, 1000.0, total_s=total_s, queues=queues), policy)


def _floor() -> Step:
    seen = serving(world("1x8", []), forecast({"chat": 9.0}))
    return decide(seen, EAGER, ControllerMemory(replicas=ReplicasMemory(services=LEARNED)))


def _no_floor() -> Step:
    seen = serving(world("1x8", [], 900.0), forecast({"chat": 2.0}, 900.0), floor=[6], floor_until_s=[9000.0])
    record = replace(LEARNED["chat"], desired=((0.0, 6), (300.0, 4)), floor=6)
    return decide(seen, EAGER, ControllerMemory(replicas=ReplicasMemory(services={"chat": record})))


def _lapsed_floor() -> Step:
    seen = serving(world("1x8", [], 900.0), floor=[6], floor_until_s=[600.0])
    return decide(seen, EAGER, ControllerMemory(replicas=ReplicasMemory(services=LEARNED)))


def _coordinator() -> Step:
    work = [holds("head", 1, [0], gpus_per_member=1, coordinates="job"), waits("w", 8, job_group="job")]
    memory = decide(observe(snapshot("1x8", work), 100.0), EAGER).memory
    return decide(observe(snapshot("1x8", work), 1000.0), EAGER, memory)


def _stuck() -> Step:
    stuck = snapshot("1x8", [holds("g", 8, state=State.CHECKPOINTING, stuck=True)])
    memory = decide(observe(stuck, 100.0), EAGER).memory
    return decide(observe(stuck, 1000.0), EAGER, memory)


def _gap(run_s: float) -> Step:
    work = [holds("a", 8), waits("big", 16, priority=9), waits("s", 8)]
    return decide(world("2x8", work, 60.0, total_s={"a": 1000.0, "big": 500.0, "s": run_s}), HOLDING)


def _due() -> Step:
    work = [holds("filler", 4, backfilled=True, gpus_per_member=4), waits("big", 8, submit_s=-10.0)]
    return decide(observe(snapshot("1x8", work), 60.0, total_s={"filler": 4000.0}), HOLDING)


def _scattered() -> Step:
    half = [holds(f"v{node}", 4, range(8 * node, 8 * node + 4), gpus_per_member=4) for node in range(2)]
    policy = with_policy(EAGER, preemption={"blast_ratio": 1e6})
    return decide(world("2x8", [*half, waits("w", 8)], 600.0), policy)


def _cut(work: list, *profiles: str) -> Step:  # type: ignore[type-arg]
    """A GPU with seven small instances; requests for `profiles` are expected."""
    seen = world("1x8", work, 600.0, cuts={0: [("1g.10gb", start) for start in range(7)]})
    return decide(expecting(seen, *profiles) if profiles else seen, EAGER)


def _cut_foreseen() -> Step:
    """The same GPU; a replica on a larger instance waits, and only a forecast calls for it."""
    replica = {"service": 0, "mig_profile": 1}
    seen = world("1x8", [waits("chat/1", 1, **replica)], 600.0, cuts={0: [("1g.10gb", start) for start in range(7)]})
    columns = {"ready_replicas": [0], "replicas": [1], "needed_replicas": [0]}
    memory = ControllerMemory(replicas=ReplicasMemory(services=LEARNED))
    return decide(serving(seen, forecast({"chat": (1.0, 1.5, 2.0)}, 600.0), **columns), EAGER, memory)


def _cut_whole(scope: str, work: list, *profiles: str) -> Step:  # type: ignore[type-arg]
    """Two nodes whose first GPU has seven small instances; the engine changes whole GPUs or nodes."""
    cuts = {gpu: [("1g.10gb", start) for start in range(7)] for gpu in (0, 2)}
    seen = stating(world("2x2", work, 600.0, cuts=cuts), scope)
    return decide(expecting(seen, *profiles) if profiles else seen, EAGER)


def _left(*, per_h: float) -> Step:
    """A node with a GPU in use, and one cut into seven small instances; a whole GPU is asked for, or is foreseen."""
    cuts = {1: [("1g.10gb", start) for start in range(7)]}
    work = [holds("h", 1, [0], preemptible=False), *([] if per_h else [waits("w", 1, gpus_per_member=1)])]
    seen = stating(world("1x2", work, 600.0, cuts=cuts), "instance", "gpu")
    return decide(expecting(seen, "", per_h=per_h), EAGER)


BOTH_IN_USE = [holds("a", 1, [0], mig_profile=0), holds("b", 1, [7], mig_profile=0)]


def _idle_node(*, offered: bool) -> Step:
    """A node that nothing has needed for two hours; or one that was offered back, and is used now."""
    mix = ExpectedMix("m", 7200.0, (), (3600.0,), (0.9,), np.empty((0, 1)), np.empty((0, 1, 1)))
    memory = ControllerMemory(
        nodes=NodesMemory(idle_nodes_s={"node-0": 0.0}, offered_s={"node-0": 3600.0} if offered else {})
    )
    seen = world("1x8", [holds("h", 8)] if offered else [], 7200.0)
    policy = with_policy(EAGER, capacity={"pools": {"pool": 1}, "spare_nodes": 0})
    return decide(replace(seen, forecasts=Forecasts(mix=mix)), policy, memory)


def _repaired() -> Step:
    """A node that the autopilot cordoned is sound again."""
    memory = ControllerMemory(recovery=RecoveryMemory(cordons={"node-0": CordonRecord(0.0, seen=True)}))
    return decide(world("1x8", [], 600.0, nodes={"cordoned": [True]}), EAGER, memory)


def _idle(guarantee: int, graces: int) -> Step:
    """Idle work after its notice and this many graces."""
    snap = idle_scene(guarantee)
    step = notified(snap)
    for number in range(1, graces + 1):
        step = look(snap, NOW_S + number * (HOUR_S + 300.0), step)
    return step


def _marked_replicas() -> Step:
    told = look(scene(8), NOW_S + 200.0, look(scene(8), NOW_S, policy=POLICY), POLICY)
    return look(scene(8), NOW_S + GRACE_S + 300.0, told, POLICY)


def _under_ceiling(**changed: Any) -> Step:
    return shrunk(due(), NOW_S + GRACE_S + 1000.0, **changed)


REAL: dict[Key, Callable[[], Step]] = {
    ("admit_gang", "admit", ""): lambda: _on_one_node([waits("w", 8)]),
    ("admit_gang", "reserve", ""): lambda: _gap(2000.0),
    ("backfill", "admit", ""): lambda: _gap(500.0),
    ("backfill", "evict", "due"): _due,
    ("share", "admit", ""): lambda: _shared([holds("g", 2, [0, 1]), sits("ann", [2]), book("ben")], {1: SLICED}),
    ("share", "admit", "alone"): lambda: _shared([holds("g", 2, [0, 1]), book("ann"), book("ben")], {1: SLICED}),
    ("share", "pipeline", ""): lambda: _shared(
        [*(sits(f"dev{each}", [at]) for at, each in enumerate("abcd")), waits("own", 2, gpus_per_member=2)], {1: SLICED}
    ),
    ("share", "set_sharing", ""): lambda: _shared(
        [sits("deva", [0]), sits("devb", [1]), waits("own", 4, gpus_per_member=4)], {}
    ),
    ("share", "set_sharing", "ahead"): lambda: _shared([sits("deva", [0]), sits("devb", [1])], {}),
    ("unshare", "set_sharing", ""): lambda: _shared(
        [waits("own", 4, gpus_per_member=4)], {1: SLICED}, _unused(unused_s={"node-1": 3600.0})
    ),
    ("regeometry", "recut", "waiting"): lambda: _cut([waits("w", 1, mig_profile=2)]),
    ("regeometry", "recut", "foreseen"): _cut_foreseen,
    ("regeometry", "recut", "expected"): lambda: _cut([], "3g.40gb"),
    ("regeometry", "recut", "waiting_whole"): lambda: _cut_whole("node", [waits("w", 1, mig_profile=2)]),
    ("regeometry", "recut", "expected_whole"): lambda: _cut_whole("gpu", [], "3g.40gb"),
    ("regeometry", "recut", "leave_waiting"): lambda: _left(per_h=0.0),
    ("regeometry", "recut", "leave_expected"): lambda: _left(per_h=40.0),
    ("regeometry", "drain", "gpu"): lambda: _cut_whole("gpu", [*BOTH_IN_USE, waits("w", 1, mig_profile=3)]),
    ("regeometry", "drain", "node"): lambda: _cut_whole("node", [*BOTH_IN_USE, waits("w", 1, mig_profile=3)]),
    ("defragment", "pipeline", ""): _scattered,
    ("notify_idle", "notify", ""): lambda: look(idle_scene(), NOW_S),
    ("mark_idle", "mark", ""): lambda: _idle(8, 1),
    ("suspend_idle", "pipeline", ""): lambda: _idle(0, 1),
    ("notify_idle", "notify", "replica"): lambda: look(scene(), NOW_S, policy=POLICY),
    ("mark_idle", "mark", "replica"): _marked_replicas,
    ("shrink_idle", "ceiling", "idle"): due,
    ("shrink_idle", "ceiling", "renewed"): lambda: _under_ceiling(ceiling_until_s=NOW_S + GRACE_S + 1600.0),
    ("shrink_idle", "ceiling", "returned"): lambda: _under_ceiling(wake_rps=0.2),
    ("reclaim_borrowed", "pipeline", "guarantee"): _guarantee,
    ("isolate", "pause", ""): lambda: Noisy().tick(),
    ("isolate", "pause", "hold"): lambda: after_pause(150.0, float("nan")),
    ("isolate", "resume", ""): lambda: after_pause(380.0, 1.5),
    ("isolate", "move", "neighbour"): lambda: after_pause(200.0, 1.1),
    ("isolate", "move", "harden"): lambda: after_pause(200.0, 1.0, VICTIM_MOVES),
    ("preempt", "pipeline", "priority"): lambda: _on_one_node([holds("v", 8, priority=1), waits("w", 8, priority=9)]),
    ("preempt", "pipeline", "time_sharing"): _time_sharing,
    ("reclaim_borrowed", "pipeline", "together"): _together,
    ("preempt", "pipeline", "shared_time"): _shared_time,
    ("make_room", "pipeline", "foreseen_on_idle"): lambda: room_due(room_scene()),
    ("make_room", "pipeline", "breach_on_idle"): lambda: room_due(room_scene(), ROOM_ONLY, breach=True),
    ("resize", "grow", ""): lambda: _narrow(min_gpus=2),
    ("scale_ahead", "scale", "floor"): _floor,
    ("scale_ahead", "scale", "give_back"): _no_floor,
    ("scale_ahead", "scale", "lapsed"): _lapsed_floor,
    ("defragment_ahead", "move", ""): lambda: decide(island_expected(), PATIENT),
    ("replace", "move", "away"): lambda: held_up(slow()),
    ("offer_idle", "offer", "unneeded"): lambda: _idle_node(offered=False),
    ("offer_idle", "offer", "needed"): lambda: _idle_node(offered=True),
    ("request_capacity", "provision", ""): lambda: decide(
        world("2x8", [waits("g", 32)], 600.0), with_policy(EAGER, capacity={"pools": {"pool": 8}})
    ),
    ("recover", "evict", "broken"): lambda: _narrow(min_gpus=8, stale_since_s=100.0),
    ("recover", "evict", "bad_gpu"): lambda: _on_one_node([holds("g", 8)], xids={3: 79}),
    ("recover", "cordon", "condemned"): lambda: _on_one_node([], xids={3: 79}),
    ("recover", "cordon", "repaired"): _repaired,
    ("recover", "evict", "spot_stop"): lambda: _called_back([holds("g", 8, range(8), **SAVES)]),
    ("recover", "evict", "spot_shrink"): lambda: _called_back(
        [holds("e", 16, range(16), min_gpus=8, gpus_per_member=8, **SAVES)]
    ),
    ("recover", "evict", "coordinator"): _coordinator,
    ("recover", "evict", "stuck"): _stuck,
    ("recover", "evict", "check"): lambda: _on_one_node([holds("g", 8, gate=2)]),
    ("enforce_limit", "evict", "run_time"): lambda: _on_one_node([holds("g", 8, limit_s=HOUR_S)], 2 * HOUR_S),
    ("enforce_limit", "evict", "spending"): _runaway,
}
"""Small worlds whose decision has the proposal."""


def _built(key: Key, **more: object) -> Proposal:
    action, kind, reason = key
    return propose(kind, action, **{"accepted": True, "reason": reason, "evidence": (SUBMITTED,)} | more)  # type: ignore[arg-type]


BUILT: dict[Key, Proposal] = {
    **{
        (action, "pipeline", "leaving"): _built((action, "pipeline", "leaving"), slots=GPUS)
        for action in ("admit_gang", "defragment", "reclaim_borrowed", "preempt", "make_room")
    },
    **{
        (action, "admit", ""): _built((action, "admit", ""), slots=GPUS)
        for action in ("defragment", "reclaim_borrowed", "preempt", "make_room")
    },
    ("backfill", "evict", "advance"): _built(
        ("backfill", "evict", "advance"), victims=(replace(VICTIM, workload="w"),)
    ),
    ("reclaim_borrowed", "pipeline", "share"): _built(
        ("reclaim_borrowed", "pipeline", "share"), slots=GPUS, victims=(VICTIM,)
    ),
    ("reclaim_borrowed", "pipeline", "moves"): _built(
        ("reclaim_borrowed", "pipeline", "moves"), slots=GPUS, victims=(MOVED,)
    ),
    ("make_room", "pipeline", "breach"): _built(
        ("make_room", "pipeline", "breach"),
        slots=GPUS,
        victims=(VICTIM,),
        evidence=(SUBMITTED, *ROOM_FACTS, Evidence("chance_needed", 1.0)),
    ),
    ("make_room", "pipeline", "foreseen"): _built(
        ("make_room", "pipeline", "foreseen"),
        slots=GPUS,
        victims=(VICTIM,),
        evidence=(
            SUBMITTED,
            *ROOM_FACTS,
            Evidence("chance_needed", 0.72),
            Evidence("delay", 20.0, "s"),
            Evidence("lead_time", 300.0, "s"),
            Evidence("if_not_needed", 1230.0, "GPU-s"),
        ),
    ),
    ("recover", "evict", "hung"): _built(
        ("recover", "evict", "hung"),
        victims=(OWN,),
        evidence=(
            Evidence("did_nothing", 3600.0, "s on all its GPUs, by fresh telemetry"),
            Evidence("gpus", 8, "GPUs"),
        ),
    ),
}
"""Proposals that only a large world makes, with the evidence that their action gives."""


def proposal_for(key: Key) -> Proposal:
    """The proposal of a key."""
    if key in BUILT:
        return BUILT[key]
    found = REAL[key]().decision.plan.proposals
    made = [each for each in found if (each.action, each.kind, each.reason) == key]
    assert made, f"{key}: the decision has {[(each.action, each.kind, each.reason) for each in found]}"
    return made[0]
