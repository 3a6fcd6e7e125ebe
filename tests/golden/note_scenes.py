"""One note of each code, from a decision that a small world makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.memory.halt import HaltMemory
from autopilot.core.model.memory.replicas import ReplicasMemory
from autopilot.core.model.memory.trust import StormRecord, TrustMemory
from autopilot.core.model.policy import Mode
from autopilot.core.model.policy.bounds import DAY_S
from autopilot.core.model.promises import PromiseRecord
from autopilot.core.model.records import Command, CommandKind, Note, NoteCode, Observation
from autopilot.core.model.snapshot import AdvanceTable, Recut, ServiceTable, make
from autopilot.core.recovery.follow_spending import remember_spending
from autopilot.core.sharing import share
from tests.kits.core_world import AUTO, Item, decide, holds, observe, snapshot, waits, with_policy, world
from tests.kits.demand_world import LEARNED, forecast, serving
from tests.kits.geometry_world import stating
from tests.kits.hang_world import fleet, measured, training
from tests.kits.held_up_world import SUSPECT, held_up, slow
from tests.kits.idle_world import NOW_S, idle_scene, look
from tests.kits.idle_world import measured as resting_on
from tests.kits.noisy_world import Noisy, after_pause, record
from tests.kits.sharing_world import SHARING, SLICED, book, known, seen, shared, sits
from tests.kits.ticking_world import EAGER, Ticking, tenants
from tests.kits.ticks import follow

HOUR_S = 3600.0
GANG: Sequence[Item] = (holds("g", 8),)


def _clock() -> Step:
    step = decide(world("1x8", GANG, 1000.0), EAGER)
    for tick in range(1, 4):
        seen = world("1x8", GANG, 4600.0 + 10.0 * tick, tick=tick)
        step = decide(replace(seen, elapsed_s=10.0), EAGER, step.memory)
    return step


def _commanded(kind: CommandKind, subject: str = "", memory: ControllerMemory | None = None) -> Step:
    command = Command(kind, "ann", 100.0, subject, sequence=2)
    return decide(world("1x8", GANG, 200.0, commands=(command,)), EAGER, memory)


def _victim_cannot_save() -> Step:
    play = Ticking("1x8", [holds("v", 8, start_s=5000.0), waits("w", 8, priority=5)], EAGER)
    play.unable = {"v"}
    play.tick(9000.0)
    return play.tick(9001.0)


def _no_turn() -> Step:
    policy = with_policy(EAGER, preemption={"checkpoint_writers": 1, "grace_s": 100.0})
    work = [holds(name, 8, queue=2, checkpoint_write_s=60.0) for name in "vx"]
    queues = tenants(("a", 0, 16), ("b", 0, 0))
    return decide(world("2x8", [*work, waits("w", 16, queue=1)], 9000.0, queues=queues), policy)


def _protection_lent() -> Step:
    queues = tenants(("owner", 0, 8), ("guest", 0, 0))
    seen = decide(world("1x8", [holds("g", 8, queue=2)], 5000.0, queues=queues), EAGER)
    late = [holds("g", 8, queue=2, preemptible=False)]
    return decide(world("1x8", late, 5010.0, queues=queues, tick=1), EAGER, seen.memory)


def _protection_kept() -> Step:
    queues = tenants(("owner", 0, 8), ("guest", 0, 0))
    return decide(world("1x8", [holds("g", 8, queue=2, preemptible=False)], 5000.0, queues=queues), EAGER)


def _storm(record: StormRecord) -> Step:
    return decide(world("1x8", GANG, 660.0), EAGER, ControllerMemory(trust=TrustMemory(storms={"defragment": record})))


def _capped(record: PromiseRecord, *commands: Command) -> Step:
    return decide(
        world("1x8", GANG, 660.0, commands=commands),
        EAGER,
        ControllerMemory(trust=TrustMemory(kept_promises={"defragment": record})),
    )


POOR = PromiseRecord(((3600.0, 900.0),) * 20)
LIFT = Command(CommandKind.LIFT, "ann", 660.0, "defragment", sequence=1)


def _retried(now_s: float, gpus: int) -> Step:
    """A start that failed is due again: its action may not act now, and perhaps its gang changed."""
    play = Ticking("1x8", [waits("a", 8)], AUTO)
    play.tick(0.0)
    held = with_policy(AUTO, modes={"admit_gang": Mode.OFF})
    entries = {key: replace(entry, state="held") for key, entry in play.memory.effects.in_flight.items()}
    memory = replace(play.memory, effects=replace(play.memory.effects, in_flight=entries))
    return decide(world("1x8", [waits("a", gpus)], now_s, tick=1), held, memory)


def _start_given_up() -> Step:
    """The only victim has not left within `preemption.pipelined_timeout_s`."""
    work = [holds("v", 8, queue=2), waits("w", 8, queue=1)]
    play = Ticking("1x8", work, queues=tenants(("a", 0, 8), ("b", 0, 0)))
    play.tick(100.0)
    return play.tick(700.0)


def _advance(work: Sequence[Item]) -> Step:
    columns = {"id": ["launch"], "queue": [1], "gpu_model": [0], "gpus": [8], "start_s": [1000.0], "grace_s": [1800.0]}
    snap = replace(
        snapshot("1x8", work, queues=tenants(("a", 0, 0), ("b", 0, 0))), advance=make(AdvanceTable, **columns)
    )
    return decide(observe(snap, 1060.0), EAGER)


def _hang(see: Callable[[float], Observation]) -> Step:
    """Everything works at 8,000 s; from 10,000 s on it is as `see` has it, for long enough to be judged."""
    step = decide(replace(measured(see(8000.0), {}), now_s=8000.0), EAGER)
    for now_s in (10_000.0, 12_000.0):
        step = decide(see(now_s), EAGER, replace(step.memory, effects=replace(step.memory.effects, in_flight={})))
    return step


def _idle(now_s: float, **columns: object) -> Observation:
    return replace(measured(training(**columns), dict.fromkeys(range(4), 0.0)), now_s=now_s)


def _never_worked() -> Step:
    return decide(_idle(20_000.0), EAGER, decide(_idle(10_000.0), EAGER).memory)


def _hung_again() -> Step:
    memory = _hang(_idle).memory
    first = decide(
        _idle(20_000.0, incarnation=1, start_s=13_000.0),
        EAGER,
        replace(memory, effects=replace(memory.effects, in_flight={})),
    )
    return decide(
        _idle(24_000.0, incarnation=1, start_s=13_000.0),
        EAGER,
        replace(first.memory, effects=replace(first.memory.effects, in_flight={})),
    )


def _called_back(**columns: object) -> Step:
    nodes = {"reclaim_at_s": [1000.0, np.nan]}
    return decide(observe(snapshot("2x8", [holds("g", 8, range(8), **columns)], nodes=nodes), 880.0), EAGER)


def _spending() -> Step:
    memory = follow(remember_spending, ControllerMemory(), observe(snapshot("1x8", [holds("g", 4)]), 0.0), AUTO)
    memory = follow(remember_spending, memory, observe(snapshot("1x8", [holds("g", 8)]), 20 * DAY_S), AUTO)
    memory = follow(remember_spending, memory, observe(snapshot("1x8", []), 20.5 * DAY_S), AUTO)
    return decide(observe(snapshot("1x8", []), 20.5 * DAY_S), EAGER, memory)


def _floor(peak_rps: Mapping[str, float], memory: ControllerMemory | None = None, **columns: object) -> Step:
    known = memory or ControllerMemory(replicas=ReplicasMemory(services=LEARNED))
    demand = forecast(peak_rps, reasons=("3 points of history",))
    return decide(serving(world("1x8", []), demand, **columns), EAGER, known)


def _replicas_held() -> Step:
    """One replica serves, three are expected, and GPUs are free."""
    work = [holds("chat/1", 1, [0], service=0)]
    at_work = world("1x8", work)
    return decide(
        serving(at_work, forecast({"chat": 5.5}), needed_replicas=[1], replicas=[1]),
        EAGER,
        ControllerMemory(replicas=ReplicasMemory(services=LEARNED)),
    )


def _instances_held() -> Step:
    """The same on MIG instances."""
    cuts = {0: [("2g.20gb", start) for start in (0, 2, 4)]}
    at_work = world("1x8", [holds("chat/1", 1, [0], service=0, mig_profile=1)], cuts=cuts)
    columns = {"needed_replicas": [1], "replicas": [1]}
    return decide(
        serving(at_work, forecast({"chat": 5.5}), **columns),
        EAGER,
        ControllerMemory(replicas=ReplicasMemory(services=LEARNED)),
    )


SMALL = tuple(("1g.10gb", start) for start in range(7))


def _recut_world(now_s: float, tick: int, recut: int, work: Sequence[Item] = (), **more: object) -> Observation:
    return world("1x8", work, now_s, tick=tick, cuts={0: SMALL}, recuts={0: recut}, **more)  # type: ignore[arg-type]


def _idle_service() -> Step:
    """Two replicas rest, and their owner lets the service go to zero."""
    work = [
        holds(name, 4, [place + each for each in range(4)], service=0, user="ann", start_s=0.0)
        for place, name in ((0, "chat-0"), (4, "chat-1"))
    ]
    named = {"id": ["chat"], "uid": ["chat"], "min_replicas": [0], "wake_rps": [0.0], "wake_age_s": [5.0]}
    resting = replace(resting_on(snapshot("1x8", work), {}), services=make(ServiceTable, **named))
    return look(resting, NOW_S)


def _quarantined() -> Step:
    """A change begins for a request that waits, and fails half-way."""
    step = decide(_recut_world(0.0, 0, Recut.SETTLED, [waits("w", 1, mig_profile=2)]), EAGER)
    return decide(_recut_world(60.0, 1, Recut.FAILED), EAGER, step.memory)


def _used_again() -> Step:
    step = _quarantined()
    for tick in range(2, 5):
        step = decide(_recut_world(60.0 * tick, tick, Recut.SETTLED), EAGER, step.memory)
    return step


def _drain_given_up() -> Step:
    cuts = {gpu: [("1g.10gb", start) for start in range(7)] for gpu in (0, 2)}
    work = [holds("a", 1, [0], mig_profile=0), holds("b", 1, [7], mig_profile=0), waits("w", 1, mig_profile=3)]
    step = decide(stating(world("2x2", work, 0.0, cuts=cuts), "gpu"), EAGER)
    return decide(stating(world("2x2", work, 1200.0, cuts=cuts, tick=1), "gpu"), EAGER, step.memory)


def _search_ended() -> Step:
    policy = with_policy(EAGER, regeometry={"steps": 1})
    return decide(_recut_world(0.0, 0, Recut.SETTLED, [waits("w", 1, mig_profile=2)]), policy)


def _left_out() -> Step:
    seen = world("1x8", [waits("w", 1, mig_profile=2)], cuts={0: [("3g.40gb", 0), ("3g.40gb", 2)]})
    return decide(seen, EAGER)


def _share_barred() -> Step:
    snap = shared("1x1", [sits("ann", [0], trust=0), book("ben")], {0: SLICED})
    return decide(seen(snap, 7200.0), SHARING, known(snap, 7200.0))


NOTE_SCENES: Mapping[str, Callable[[], Step]] = {
    share.BARRED.code: _share_barred,
    NoteCode.CLOCK_MOVED: _clock,
    NoteCode.RESUME_REFUSED: lambda: _commanded(
        CommandKind.RESUME, memory=ControllerMemory(halt=HaltMemory(killed=True, kill_sequence=2))
    ),
    NoteCode.APPROVAL_REFUSED: lambda: _commanded(CommandKind.APPROVE, "admit-w-1"),
    NoteCode.REJECTION_REFUSED: lambda: _commanded(CommandKind.REJECT, "admit-w-1"),
    NoteCode.REVOKE_REFUSED: lambda: _commanded(CommandKind.REVOKE, "workload/admit-w-1"),
    NoteCode.CONFIRM_REFUSED: lambda: _commanded(CommandKind.CONFIRM, "kubernetes"),
    NoteCode.VICTIM_CANNOT_SAVE: _victim_cannot_save,
    NoteCode.NO_TURN_TO_SAVE: _no_turn,
    NoteCode.PROTECTION_LENT: _protection_lent,
    NoteCode.PROTECTION_KEPT: _protection_kept,
    NoteCode.STORM_BEGAN: lambda: _storm(StormRecord(((600.0, 61),), last_s=600.0)),
    NoteCode.STORM_ENDED: lambda: _storm(StormRecord(last_s=600.0 - 7200.0, since_s=-6000.0, events=61)),
    NoteCode.ACTION_CAPPED: lambda: _capped(POOR),
    NoteCode.CAP_LIFTED: lambda: _capped(replace(POOR, capped_s=600.0), LIFT),
    NoteCode.LIFT_REFUSED: lambda: _commanded(CommandKind.LIFT, "defragment"),
    NoteCode.EFFECT_WAITS: lambda: _retried(1.0, 8),
    NoteCode.EFFECT_WITHDRAWN: lambda: _retried(1.0, 4),
    NoteCode.START_GIVEN_UP: _start_given_up,
    NoteCode.ADVANCE_HELD: lambda: _advance([]),
    NoteCode.ADVANCE_NOT_FREE: lambda: _advance([holds("x", 3, queue=2, gpus_per_member=3)]),
    NoteCode.REPLICAS_HELD: _replicas_held,
    NoteCode.INSTANCES_HELD: _instances_held,
    NoteCode.HANG_TOO_MANY: lambda: _hang(lambda now_s: fleet(now_s, set(), zeros=True)),
    NoteCode.HANG_FEW_AT_WORK: lambda: _hang(lambda now_s: fleet(now_s, {0}, count=1)),
    NoteCode.HANG_DARK_NODE: lambda: _hang(lambda now_s: fleet(now_s, {0, 1})),
    NoteCode.NO_FORECAST: lambda: _floor({"other": 9.0}),
    NoteCode.FORECAST_ABSTAINS: lambda: _floor({"chat": float("nan")}),
    NoteCode.REPLICA_LOAD_UNKNOWN: lambda: _floor({"chat": 9.0}, ControllerMemory()),
    NoteCode.LOAD_UNKNOWN: lambda: _floor({"chat": 9.0}, needed_replicas=[-1]),
    NoteCode.GPU_QUARANTINED: _quarantined,
    NoteCode.GPU_USED_AGAIN: _used_again,
    NoteCode.DRAIN_GIVEN_UP: _drain_given_up,
    NoteCode.RELEASE_REFUSED: lambda: _commanded(CommandKind.RELEASE, "GPU-0"),
    "recut_search_ended_early": _search_ended,
    "recut_gpu_left_out": _left_out,
    "too_slow_to_save": lambda: _called_back(checkpoint_interval_s=1800.0, checkpoint_write_s=600.0),
    "makes_no_checkpoint": lambda: _called_back(checkpoint_interval_s=np.inf),
    "neighbour_unconfirmed": lambda: Noisy(found=(record(suspect="", suspect_uid=""),)).tick(),
    "neighbour_confirmed": lambda: after_pause(200.0, 1.1, {"suspect": {"checkpoint_on_request": False}}),
    "straggler": lambda: held_up(slow(cost_gpu_s_per_h=100.0)),
    "slow_gpu": lambda: held_up(suspects=(SUSPECT,)),
    "never_worked": _never_worked,
    "half_started": lambda: decide(world("1x8", [holds("g", 16, on=range(8), lacking_pods=1)], HOUR_S), EAGER),
    "gpu_out_of_use": lambda: decide(world("1x8", GANG, xids={3: 154}), EAGER),
    "elsewhere": lambda: decide(
        world("1x8", [waits("w", 16)], 7200.0), with_policy(EAGER, capacity={"elsewhere_s": 3600.0})
    ),
    "hung_again": _hung_again,
    "limit_warning": lambda: decide(world("1x8", [holds("g", 8, limit_s=HOUR_S)], HOUR_S + 60.0), EAGER),
    "spending_warning": _spending,
    "idle_score": lambda: look(idle_scene(guarantee=4), NOW_S + 3600.0, look(idle_scene(guarantee=4), NOW_S)),
    "idle_size": lambda: look(idle_scene(), 8 * DAY_S, look(idle_scene(), NOW_S)),
    "idle_service": _idle_service,
    "idle_advice": lambda: look(idle_scene(guarantee=8, preemptible=False), NOW_S),
}
"""Small worlds whose decision has the note."""


def note_for(code: str) -> Note:
    """The first note of a code."""
    notes = NOTE_SCENES[code]().decision.notes
    found = [note for note in notes if note.code == code]
    assert found, f"{code}: the decision has {[note.code for note in notes]}"
    return found[0]
