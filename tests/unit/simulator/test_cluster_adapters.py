"""The simulated cluster as a controller sees it, and what becomes of a controller's instructions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from autopilot.core.effects.admit import AdmitOperation
from autopilot.core.effects.evict import EvictOperation
from autopilot.core.model.records import Instruction, OutcomeKind, Slot
from autopilot.core.model.snapshot import (
    NodeTable,
    PlacementTable,
    QueueTable,
    SloClass,
    State,
    WorkloadTable,
    make,
)
from autopilot.core.model.stops import StopReason
from autopilot.core.model.verb import Operation
from autopilot.core.sharing_time.resize_members import ResizeOperation
from simulator.running.accounting import Accounts
from simulator.running.cluster_actuator import ClusterActuator
from simulator.running.cluster_collector import ClusterCollector
from simulator.world.cluster import Cluster
from simulator.world.facts import Evicting, Started, Why
from simulator.world.hardware import Refusal
from simulator.world.physics import CHARGED, IDEAL, REAL, Physics
from simulator.world.work import Jobs, uid_of
from tests.kits.cluster_kit import cluster_of, gang, inventory, make_jobs
from tests.kits.instructions import instruct


class Notes:
    """Keeps starts and requests to leave."""

    def __init__(self, cluster: Cluster) -> None:
        self.started: list[Started] = []
        self.evicting: list[Evicting] = []
        self.on_started, self.on_evicting = self.started.append, self.evicting.append
        cluster.observe(self)


def seen(collector: ClusterCollector, now_s: float) -> tuple[WorkloadTable, PlacementTable, NodeTable]:
    """Work, placements and nodes at a time."""
    batch = collector.collect(now_s)
    assert batch.work is not None
    assert batch.inventory is not None
    return batch.work.workloads, batch.work.placements, batch.inventory.nodes


def collector_of(cluster: Cluster) -> ClusterCollector:
    """A collector with one queue."""
    queues = make(QueueTable, id=["root"], parent=[-1], guarantee=np.zeros((1, 1), np.int32))
    return ClusterCollector(cluster, queues, {})


def elastic(physics: Physics = IDEAL) -> tuple[Cluster, Notes, ClusterActuator]:
    """Two gangs of one to three members of four; the first runs with one, the second waits."""
    jobs = Jobs()
    for name in "ab":
        jobs.add(name, "t", gang(12, 4, min_gpus=4), 0.0, 9000.0)
    cluster = cluster_of(jobs, inventory(3, 8), physics)
    notes = Notes(cluster)
    cluster.start(0, range(4), 0.0)
    cluster.ready(0, 0)
    return cluster, notes, ClusterActuator(cluster)


def told(
    cluster: Cluster,
    kind: str,
    gpus: Sequence[int] = (),
    *,
    reason: StopReason = StopReason.PREEMPT,
    job: int = 0,
    **subject: object,
) -> Instruction:
    """An instruction to a gang, by default the first."""
    inventory_ = cluster.inventory
    slots = tuple(Slot(inventory_.nodes.id[inventory_.gpus.node[gpu]], inventory_.gpus.uuid[gpu]) for gpu in gpus)
    operations: dict[str, Operation] = {
        "admit": AdmitOperation(slots=slots),
        "evict": EvictOperation(reason=reason, grace_s=0.0),
        "resize": ResizeOperation(slots=slots),
    }
    given = instruct("ab"[job], operations[kind], str(subject.pop("id", f"1/{kind}")), deadline_s=120.0)
    return replace(given, subject=replace(given.subject, **{"uid": uid_of("job", job)} | subject))  # type: ignore[arg-type]


# --- instructions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["evict", "resize", "admit"])
def test_an_instruction_for_another_object_of_that_name_is_a_conflict(kind: str) -> None:
    """The name and the restart count agree, the uid does not: nothing is done, and it is not blamed."""
    cluster, notes, actuator = elastic()
    before = (len(notes.started), len(notes.evicting))
    outcome = actuator.apply(told(cluster, kind, range(2), uid="job-9"), 100.0)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.CONFLICT, "the name belongs to another object")
    assert outcome.kind is actuator.apply(told(cluster, kind, uid="", id="2"), 100.0).kind
    assert (len(notes.started), len(notes.evicting)) == before
    assert not actuator.changed


def test_a_resize_names_the_whole_new_set() -> None:
    """It is done at once, once per id; the controller is asked again, for what it frees or leaves free."""
    cluster, notes, actuator = elastic()
    grow = told(cluster, "resize", range(8))
    assert actuator.apply(grow, 100.0).kind is OutcomeKind.DONE
    assert actuator.changed
    assert (notes.started[-1].gpus, notes.started[-1].effect) == (tuple(range(8)), "1/resize")
    assert actuator.apply(grow, 101.0).at_s == 100.0
    assert (cluster.incarnation[0], len(notes.started), notes.evicting) == (1, 2, [])


@pytest.mark.parametrize(
    ("gpus", "incarnation", "kind", "words"),
    [
        (range(8), 3, OutcomeKind.CONFLICT, Refusal.OTHER_INCARNATION),
        (range(4, 12), 0, OutcomeKind.FAILED, Refusal.NOT_NESTED),
        (range(6), 0, OutcomeKind.FAILED, Refusal.WRONG_COUNT),
    ],
)
def test_a_resize_that_is_refused_says_why(
    gpus: Sequence[int], incarnation: int, kind: OutcomeKind, words: Refusal
) -> None:
    """An object that changed is a conflict; the rest is a failure that a retry does not fix."""
    cluster, _, actuator = elastic()
    outcome = actuator.apply(told(cluster, "resize", gpus, revision=incarnation), 100.0)
    assert (outcome.kind, outcome.reason, outcome.retryable) == (kind, words.value, False)
    assert not actuator.changed


@pytest.mark.parametrize(
    ("reason", "why", "contract", "counted"),
    [
        ("preempt", Why.PREEMPT, False, "preemptions"),
        ("reclaim", Why.PREEMPT, True, "preemptions"),
        ("backfill", Why.PREEMPT, True, "preemptions"),
        ("move", Why.MOVE, False, "migrations"),
        ("reclaim-move", Why.MOVE, True, "migrations"),
        ("recover", Why.RECOVER, True, "recoveries"),
        ("restart", Why.RECOVER, False, "recoveries"),
    ],
)
def test_the_reason_of_an_eviction_is_how_it_counts(reason: str, why: Why, contract: bool, counted: str) -> None:
    """A move is a migration, a recovery neither; an eviction of backfilled work is by contract."""
    cluster, notes, actuator = elastic()
    accounts = Accounts(cluster, 0.0)
    cluster.observe(accounts)
    assert actuator.apply(told(cluster, "evict", reason=StopReason(reason)), 100.0).kind is OutcomeKind.DONE
    assert (notes.evicting[-1].why, notes.evicting[-1].contract) == (why, contract)
    counts = {name: getattr(accounts, name) for name in ("preemptions", "migrations", "recoveries")}
    assert counts == {"preemptions": 0, "migrations": 0, "recoveries": 0} | {counted: 1}


def test_a_gap_filler_gives_way_by_contract_whatever_the_reason() -> None:
    """It was started on that promise."""
    cluster, notes, actuator = elastic()
    cluster.start(1, range(8, 20), 0.0, backfill=True)
    evict = told(cluster, "evict", job=1)
    assert actuator.apply(evict, 100.0).kind is OutcomeKind.DONE
    assert notes.evicting[-1].contract


def test_stuck_work_goes_by_force_when_it_is_recovered() -> None:
    """The first eviction is under way for good; a second one only helps where it recovers."""
    cluster, _, actuator = elastic(REAL)
    cluster.linger_s = lambda _job, _number, _now_s: 9000.0
    assert actuator.apply(told(cluster, "evict", id="1"), 4000.0).kind is OutcomeKind.ACCEPTED
    late_s = 4000.0 + REAL.grace_s + 1.0
    assert actuator.apply(told(cluster, "evict", id="2"), late_s).kind is OutcomeKind.CONFLICT
    assert actuator.apply(told(cluster, "evict", id="3", reason=StopReason.RECOVER), late_s).kind is OutcomeKind.DONE
    assert (cluster.hardware.free, cluster.state[0]) == ([8, 8, 8], State.PENDING)


# --- tables -----------------------------------------------------------------------------------------


def test_the_time_of_a_checkpoint_is_stated() -> None:
    """Where one is written and the job can resume from it; unknown elsewhere, at any width that it holds now."""
    for physics in (IDEAL, REAL):
        jobs = make_jobs([(0, 9000, 8)], checkpoint_gib=18.6)
        jobs.add("notebook", "t", gang(1), 0.0, slo_class=SloClass.INTERACTIVE)
        work, _, _ = seen(collector_of(cluster_of(jobs, physics=physics)), 0.0)
        expected = [18.6 / REAL.checkpoint_gib_per_s, np.nan] if physics is REAL else [np.nan, np.nan]
        np.testing.assert_array_equal(work.checkpoint_write_s, expected)


def test_leaving_and_stuck_work_is_seen() -> None:
    """Told to leave: it is leaving; past its grace: stuck, until it is gone."""
    cluster, _, _ = elastic(REAL)
    cluster.linger_s = lambda _job, _number, _now_s: 9000.0
    cluster.start(1, range(8, 20), 0.0)
    collector = collector_of(cluster)
    cluster.evict(0, 4000.0)
    for at_s, stuck in ((4000.0 + REAL.grace_s, False), (4001.0 + REAL.grace_s, True)):
        work, placed, _ = seen(collector, at_s)
        assert work.stuck.tolist() == [stuck, False]
        assert placed.leaving.tolist() == [True] * 4 + [False] * 12
    cluster.evict(0, 4500.0, recover=True)
    work, placed, _ = seen(collector, 4500.0)
    assert work.stuck.tolist() == [False, False]
    assert not placed.leaving.any()


def test_a_gang_that_lost_a_member_is_stale_since_then() -> None:
    """Until it is stopped."""
    cluster, _, _ = elastic()
    cluster.start(1, range(8, 20), 0.0)
    collector = collector_of(cluster)
    cluster.lose_member(1, 70.0, 600.0)
    np.testing.assert_array_equal(seen(collector, 90.0)[0].stale_since_s, [np.nan, 70.0])
    cluster.evict(1, 100.0)
    np.testing.assert_array_equal(seen(collector, 100.0)[0].stale_since_s, [np.nan, np.nan])


def test_an_announced_reclaim_is_seen_until_the_node_is_back() -> None:
    """The node takes no work, and when it goes is known; other nodes have no such time."""
    cluster, _, _ = elastic()
    collector = collector_of(cluster)
    assert np.isnan(seen(collector, 0.0)[2].reclaim_at_s).all()
    cluster.announce_reclaim(1, 50.0, 170.0)
    nodes = seen(collector, 50.0)[2]
    np.testing.assert_array_equal(nodes.reclaim_at_s, [np.nan, 170.0, np.nan])
    assert nodes.cordoned.tolist() == [False, True, False]
    assert nodes.ready.tolist() == [True, True, True]
    cluster.restore_node(1, 900.0)
    assert np.isnan(seen(collector, 900.0)[2].reclaim_at_s).all()


def test_a_resized_gang_is_seen_at_its_new_width() -> None:
    """Same ask, another incarnation, more GPUs, and the progress that it kept."""
    cluster, _, actuator = elastic()
    collector = collector_of(cluster)
    actuator.apply(told(cluster, "resize", range(8)), 90.0)
    work, placed, _ = seen(collector, 90.0)
    assert (work.incarnation[0], work.start_s[0], work.served_s[0]) == (1, 90.0, 30.0)
    assert (work.gpus[0], work.min_gpus[0], work.state[0]) == (12, 4, State.RUNNING)
    assert placed.gpu.tolist() == list(range(8))


def test_a_gang_that_lost_progress_is_seen_to_have_outlived_it() -> None:
    """A minute is lost at each stop; how far it had come before stays known, however little it makes the next time."""
    cluster, _, _ = elastic(CHARGED)
    collector = collector_of(cluster)
    seen_s = []
    for start_s, stop_s in ((1000.0, 1540.0), (2000.0, 2070.0)):
        cluster.start(1, range(12, 24), start_s)
        cluster.ready(1, cluster.incarnation[1])
        cluster.evict(1, stop_s)
        work = seen(collector, stop_s)[0]
        seen_s.append((work.served_s[1], work.outlived_s[1]))
    (kept_s, reached_s), (kept_later_s, reached_later_s) = seen_s
    assert reached_s == kept_s + CHARGED.flat_loss_s
    assert (kept_later_s, reached_later_s) == (kept_s - 20.0, reached_s)
