"""What stopping work costs: expected and at worst, what it really lost afterwards, and what is learned from that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autopilot.core.effects.evict import EvictOperation
from autopilot.core.model.capability import Tick
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.effects import EffectsMemory, InFlight
from autopilot.core.model.memory.losses import LossesMemory, Stop
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Cause, Loss, Outcome, OutcomeKind, Save
from autopilot.core.model.snapshot import QueueTable, make
from autopilot.core.model.stops import StopReason
from autopilot.core.planning.losses import REQUESTS, Losses, saves_ratio, settle_stops, share, stop_losses
from autopilot.records.journal.decisions import DecisionDecoder, DecisionEncoder
from autopilot.records.memory import memory_text, read_memory_text
from simulator.running.cluster_collector import ClusterCollector
from simulator.world.cluster import Cluster
from simulator.world.facts import Stopped
from simulator.world.physics import CHARGED, IDEAL, REAL, Physics
from simulator.world.work import Jobs
from tests.kits.cluster_kit import gang, inventory
from tests.kits.core_world import AUTO, Disrupt, decide, done, holds, snapshot, waits, with_policy, world
from tests.kits.instructions import instruct
from tests.kits.ticking_world import EAGER, Ticking

NOW_S = 9000.0
SAVES: dict[str, Any] = {"checkpoint_on_request": True, "checkpoint_write_s": 30.0}
HOPEFUL = with_policy(EAGER, preemption={"saves_prior": 0.75})
BOUND = with_policy(HOPEFUL, preemption={"checkpoint_writers": 1})


def ratio(columns: dict[str, Any], policy: Policy = HOPEFUL, memory: ControllerMemory | None = None) -> float:
    """How likely one gang saves."""
    snap = snapshot("1x8", [holds("v", 8, **columns)])
    return float(saves_ratio(snap, memory or ControllerMemory(), policy, NOW_S)[0])


def losses(columns: dict[str, Any], saves: float = 0.0) -> Losses:
    """What stopping one gang of eight would cost."""
    return stop_losses(snapshot("1x8", [holds("v", 8, **columns)]), NOW_S, np.array([saves]))


def test_the_expected_loss_is_the_mean_of_saving_and_not_saving() -> None:
    """Nine minutes since its last checkpoint; it saves three times of four."""
    found = losses({**SAVES, "last_checkpoint_s": NOW_S - 540.0, "restart_s": 100.0}, 0.75)
    assert found.worst_gpu_s[0] == 8 * 540.0
    assert found.expected_gpu_s[0] == 8 * 540.0 * 0.25
    assert found.overhead_gpu_s[0] == 8 * (0.75 * 30.0 + 100.0)
    assert found.price_gpu_s[0] == found.expected_gpu_s[0] + found.overhead_gpu_s[0]


def test_without_a_checkpoint_in_time_all_since_the_last_one_or_the_start_is_lost() -> None:
    """Where none was seen but its interval is stated, at most one interval."""
    assert losses({"start_s": 1000.0}).expected_gpu_s[0] == 8 * 8000.0
    assert losses({"start_s": 1000.0, "last_checkpoint_s": 8000.0}).expected_gpu_s[0] == 8 * 1000.0
    assert losses({"start_s": 1000.0, "checkpoint_interval_s": 600.0}).worst_gpu_s[0] == 8 * 600.0
    assert losses({"start_s": 8900.0, "checkpoint_interval_s": 600.0}).worst_gpu_s[0] == 8 * 100.0
    assert losses({"start_s": 8000.0, "checkpoint_interval_s": float("inf")}).worst_gpu_s[0] == 8 * 1000.0


@pytest.mark.parametrize(
    "columns",
    [
        {"checkpoint_on_request": False, "checkpoint_write_s": 30.0},
        {"checkpoint_on_request": True},
        {"checkpoint_on_request": True, "checkpoint_write_s": EAGER.preemption.grace_s + 1.0},
    ],
    ids=["undeclared", "unknown", "slow"],
)
def test_nobody_counts_on_a_checkpoint_that_is_not_declared_or_does_not_fit(columns: dict[str, Any]) -> None:
    """All three are needed: the owner's word, a known time of the write, and that it fits."""
    assert ratio(columns) == 0.0


def test_its_turn_at_the_store_must_come_within_the_grace() -> None:
    """Another writes for 100 s of a grace of 120 s."""
    told = instruct("o", EvictOperation(reason=StopReason.PREEMPT, grace_s=120.0))
    memory = ControllerMemory(
        effects=EffectsMemory(
            in_flight={"0/o": InFlight(told, "accepted", NOW_S, "preempt", "t0", 0.0, contract=False)}
        )
    )
    work = [holds("v", 4, **SAVES), holds("o", 4, **SAVES | {"checkpoint_write_s": 100.0})]
    snap = snapshot("1x8", work)
    assert saves_ratio(snap, memory, HOPEFUL, NOW_S)[0] == 0.75
    assert saves_ratio(snap, memory, BOUND, NOW_S)[0] == 0.0
    assert saves_ratio(snap, memory, BOUND, NOW_S + 10.0)[0] == 0.75


def test_the_shipped_prior_counts_on_nobody() -> None:
    """On a real cluster a declaration alone proves nothing."""
    assert ratio(SAVES, Policy()) == 0.0


def test_answers_of_the_tenant_and_of_the_workload_count() -> None:
    """The prior is worth one request of the tenant, the tenant's share one request of the workload."""
    assert share(None, 0.75) == 0.75
    assert share((3.0, 3.0), 0.0) == 0.75
    tenant = ControllerMemory(losses=LossesMemory(tenant_saves={"t0": (3.0, 3.0)}))
    both = ControllerMemory(losses=LossesMemory(tenant_saves={"t0": (3.0, 3.0)}, workload_saves={"v": (2.0, 0.0)}))
    assert ratio(SAVES, Policy(), tenant) == 0.75
    assert ratio(SAVES, Policy(), both) == 0.25


# --- afterwards -------------------------------------------------------------------------------------


def stop(**more: Any) -> Stop:
    """`v` was evicted an hour of work ago."""
    given: dict[str, Any] = {
        "instruction_id": "0/p/evict-v",
        "proposal_id": "p",
        "workload": "v",
        "incarnation": 0,
        "tenant": "t0",
        "at_s": NOW_S,
        "gpus": 8.0,
        "expected_gpu_s": 500.0,
        "worst_gpu_s": 2000.0,
        "asked": True,
    }
    return Stop(**given | more)


def settled(
    memory: ControllerMemory, *work: Any, now_s: float = NOW_S + 60.0, **more: Any
) -> tuple[ControllerMemory, tuple[Loss, ...]]:
    """One look at the cluster."""
    tick = Tick(memory, world("1x8", work, now_s, **more), AUTO)
    return settle_stops(memory, tick), tick.losses


def test_what_was_really_lost_is_told_once_the_victim_has_left() -> None:
    """Not before; and only once."""
    memory = ControllerMemory(losses=LossesMemory(stops=(stop(),)))
    memory, losses = settled(memory, holds("v", 8))
    assert (losses, len(memory.losses.stops)) == ((), 1)
    memory, losses = settled(memory, waits("v", 8, incarnation=1, lost_gpu_s=120.0))
    assert losses == (Loss("p", "v", 0, 120.0, 500.0, 2000.0),)
    assert settled(memory, waits("v", 8, incarnation=1, lost_gpu_s=120.0))[1] == ()
    assert memory.losses.tenant_saves == {"t0": (1.0, 0.0)}


def test_who_lost_nothing_had_saved() -> None:
    """Also where it runs again at the next look."""
    memory, _ = settled(
        ControllerMemory(losses=LossesMemory(stops=(stop(),))), holds("v", 8, incarnation=1, lost_gpu_s=0.0)
    )
    assert (memory.losses.tenant_saves, memory.losses.workload_saves) == ({"t0": (1.0, 1.0)}, {"v": (1.0, 1.0)})


def test_what_nobody_reported_proves_nothing() -> None:
    """The loss stays unknown, and so does whether it saved."""
    memory, losses = settled(ControllerMemory(losses=LossesMemory(stops=(stop(),))), waits("v", 8, incarnation=1))
    assert np.isnan(losses[0].lost_gpu_s)
    assert memory.losses.tenant_saves == {}
    memory, losses = settled(
        ControllerMemory(losses=LossesMemory(stops=(stop(),))), waits("v", 8, incarnation=2, lost_gpu_s=9.0)
    )
    assert np.isnan(losses[0].lost_gpu_s)  # of a later stop


def test_who_was_not_asked_says_nothing_about_saving() -> None:
    """Stopped immediately, because the store has no turn for it."""
    memory, losses = settled(
        ControllerMemory(losses=LossesMemory(stops=(stop(asked=False),))), waits("v", incarnation=1, lost_gpu_s=9.0)
    )
    assert losses[0].lost_gpu_s == 9.0
    assert memory.losses.tenant_saves == {}


def test_who_declines_was_asked_in_vain() -> None:
    """It keeps its place, and loses nothing."""
    asked = instruct("v", id=stop().instruction_id)
    outcomes = done([asked], NOW_S, OutcomeKind.DECLINED)
    memory, losses = settled(ControllerMemory(losses=LossesMemory(stops=(stop(),))), holds("v", 8), outcomes=outcomes)
    assert (losses, memory.losses.stops, memory.losses.workload_saves) == ((), (), {"v": (1.0, 0.0)})


def test_work_that_could_not_be_asked_counts_as_not_saving() -> None:
    """The next plan prices it so; its tenant is not judged by that."""
    outcomes = (Outcome(stop().instruction_id, OutcomeKind.DECLINED, NOW_S, "no", cause=Cause.UNASKED),)
    before = ControllerMemory(losses=LossesMemory(stops=(stop(),), workload_saves={"v": (4.0, 4.0)}))
    memory, _ = settled(before, holds("v", 8), outcomes=outcomes)
    assert (memory.losses.workload_saves, memory.losses.tenant_saves) == ({"v": (float(REQUESTS), 0.0)}, {})
    assert ratio(SAVES, memory=memory) < 0.05 < ratio(SAVES, memory=before)


@pytest.mark.parametrize(("retryable", "left"), [(True, 1), (False, 0)])
def test_a_failed_effect_is_forgotten_unless_it_is_tried_again(retryable: bool, left: int) -> None:
    """Nothing was stopped."""
    asked = instruct("v", id=stop().instruction_id)
    outcomes = done([asked], NOW_S, OutcomeKind.FAILED, retryable=retryable)
    memory, losses = settled(ControllerMemory(losses=LossesMemory(stops=(stop(),))), holds("v", 8), outcomes=outcomes)
    assert (losses, len(memory.losses.stops), memory.losses.tenant_saves) == ((), left, {})


def test_one_blind_look_forgets_nothing_and_what_never_ends_is_forgotten_late() -> None:
    """Absence is no evidence of a loss."""
    memory = ControllerMemory(losses=LossesMemory(stops=(stop(),)))
    assert len(settled(memory)[0].losses.stops) == 1
    assert settled(memory, now_s=NOW_S + 3600.0)[0].losses.stops == ()


def test_counts_are_bounded_and_gone_workloads_are_not_kept() -> None:
    """The older half of many requests counts half."""
    memory = ControllerMemory(
        losses=LossesMemory(tenant_saves={"t0": (float(REQUESTS), 16.0)}, workload_saves={"gone": (1.0, 1.0)})
    )
    memory, _ = settled(
        ControllerMemory(
            losses=LossesMemory(
                stops=(stop(),), tenant_saves=memory.losses.tenant_saves, workload_saves=memory.losses.workload_saves
            )
        ),
        waits("v", 8, incarnation=1, lost_gpu_s=5000.0),
    )
    assert memory.losses.tenant_saves == {"t0": (9.0, 8.0)}
    assert set(memory.losses.workload_saves) == {"v"}


def test_stops_for_other_work_are_counted_once_they_happened() -> None:
    """Those by contract are not, and neither are those that came to nothing; a restart forgets none."""
    memory = ControllerMemory(
        losses=LossesMemory(
            stops=(
                stop(uid="v", weighed=True),
                stop(uid="by", workload="by", weighed=False),
                stop(uid="stays", workload="stays", weighed=True),
            ),
            weighed_stops={"v": 1, "gone": 4},
        ),
    )
    work = [waits("v", 8, incarnation=1), waits("by", 8, incarnation=1), holds("stays", 8)]
    memory = read_memory_text(memory_text(settled(memory, *work)[0]), "memory")
    assert memory.losses.weighed_stops == {"v": 2}


@pytest.mark.parametrize(
    ("contract", "takes", "counts"),
    [
        (False, StopReason.PREEMPT, True),
        (False, StopReason.MOVE, True),
        (True, StopReason.RECLAIM, False),
        (False, StopReason.IDLE, False),
        (False, StopReason.RESTART, False),
    ],
)
def test_what_counts_is_told_when_it_is_instructed(*, contract: bool, takes: StopReason, counts: bool) -> None:
    """A stop for other work that had to be worth it; not one by contract, and none of idle work."""
    action = Disrupt("w", ("v",), contract=contract, takes=takes)
    step = decide(world("1x8", [holds("v", 8), waits("w", 8)], NOW_S), HOPEFUL, actions=action.table)
    assert [(each.uid, each.weighed) for each in step.memory.losses.stops] == [("v", counts)]


def test_a_taking_is_followed_to_its_loss_and_kept_in_the_record() -> None:
    """Decided, told, left, reported: the loss stands in a later decision under the proposal that caused it."""
    work = [holds("v", 8, start_s=5000.0, **SAVES), waits("w", 8, priority=5)]
    play = Ticking("1x8", work, HOPEFUL)
    first = play.tick(NOW_S)
    (victim,) = first.decision.plan.proposals[0].victims
    assert (victim.lost_gpu_s, victim.worst_gpu_s, victim.overhead_gpu_s) == (8000.0, 32_000.0, 8 * 22.5)
    play.leave("v")
    play.gangs["v"].columns["lost_gpu_s"] = 64.0
    second = play.tick(NOW_S + 60.0)
    (loss,) = second.decision.losses
    assert loss == Loss(first.decision.plan.proposals[0].id, "v", 0, 64.0, 8000.0, 32_000.0)
    data = DecisionEncoder().encode(HOPEFUL, play.memory, second.decision, (), None, lost=True)
    assert DecisionDecoder().decode(data).decision.losses == (loss,)


def test_stopping_a_broken_gang_says_nothing_about_saving() -> None:
    """Its members are gone: that no checkpoint came is no broken word."""
    work = [holds("v", 8, stale_since_s=0.0, **SAVES)]
    play = Ticking("1x8", work, HOPEFUL)
    play.tick(NOW_S)
    assert [asked.asked for asked in play.memory.losses.stops] == [False]


# --- in the simulated cluster -----------------------------------------------------------------------


def stated_and_charged(physics: Physics, **job: Any) -> tuple[Losses, float, float]:
    """What is stated of a gang of four after 4000 s of work; the work that it then loses, the start-up that follows."""
    jobs = Jobs()
    jobs.add("v", "t", gang(4, 4), 0.0, 90_000.0, **job)
    cluster = Cluster(inventory(1, 4), jobs, physics)
    stops: list[Stopped] = []

    class Watch:
        """Looks on."""

        def on_stopped(self, fact: Stopped) -> None:
            """Note it."""
            stops.append(fact)

    cluster.observe(Watch())
    queues = make(QueueTable, id=["root"], parent=[-1], guarantee=np.zeros((1, 1), np.int32))
    collector = ClusterCollector(cluster, queues, {})
    cluster.submit(0, 0.0)
    cluster.start(0, range(4), 0.0)
    cluster.ready(0, 0)
    now_s = cluster.ready_s[0] + 4000.0
    batch = collector.collect(now_s)
    assert batch.work is not None
    snap = snapshot("1x4", [])
    shown = snap.__class__(
        snap.names,
        snap.nodes,
        snap.gpus,
        snap.instances,
        batch.work.workloads,
        batch.work.placements,
        snap.services,
        snap.queues,
        snap.telemetry,
    )
    writes = batch.work.workloads.checkpoint_on_request & ~np.isnan(batch.work.workloads.checkpoint_write_s)
    found = stop_losses(shown, now_s, np.array([1.0 if writes[0] else 0.0]))
    cluster.evict(0, now_s, save=Save.TRY)
    if cluster.leaving:
        cluster.vacate(0, cluster.leaving[0].write.done_s, 0)
    again_s = stops[0].at_s
    cluster.start(0, range(4), again_s)
    assert cluster.lost_gpu_s[0] == 4 * stops[0].lost_s
    held_s = (again_s - now_s) + (cluster.ready_s[0] - again_s)
    return found, 4 * stops[0].lost_s, 4 * held_s


@pytest.mark.parametrize(
    ("physics", "job"),
    [
        (IDEAL, {}),
        (CHARGED, {}),
        (REAL, {}),
        (REAL, {"saves_on_request": False}),
        (REAL, {"restart_s": 70.0}),
    ],
    ids=["ideal", "charged", "real", "not-on-request", "stated-restart"],
)
def test_the_price_is_what_the_physics_charge(physics: Physics, job: dict[str, Any]) -> None:
    """Work lost, the time of saving, and the restart: stated before, and charged."""
    found, lost_gpu_s, held_gpu_s = stated_and_charged(physics, **job)
    assert found.expected_gpu_s[0] == pytest.approx(lost_gpu_s)
    assert found.overhead_gpu_s[0] == pytest.approx(held_gpu_s, abs=0.01)
    if physics is CHARGED:
        assert found.price_gpu_s[0] == 4 * (60.0 + 30.0)
