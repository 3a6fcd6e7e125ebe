"""What saving and losing cost: checkpoints, leaving, pods that do not go, gangs that lost a member."""

from __future__ import annotations

from math import inf, isnan

import pytest

from autopilot.core.model.snapshot import SloClass, State
from simulator.baselines import BASELINES
from simulator.outcome.results import policy_result
from simulator.running.accounting import UNITS_PER_GPU_S, Accounts
from simulator.running.simulation import Simulation
from simulator.world.cluster import Cluster
from simulator.world.facts import Evicting, Stopped, Why
from simulator.world.gains import GIVE_UP, VACATE
from simulator.world.hardware import Refusal
from simulator.world.physics import CHARGED, IDEAL, REAL, TICKS_PER_S, Physics, up_to_grid
from simulator.world.progress import Checkpoints, Leaving, Write
from simulator.world.work import Jobs
from tests.kits.cluster_kit import cluster_of, gang, inventory, make_jobs, one_job

RATE = REAL.checkpoint_gib_per_s


class Notes:
    """Keeps stops and requests to leave, and asked-for events."""

    def __init__(self, cluster: Cluster) -> None:
        self.stopped: list[Stopped] = []
        self.evicting: list[Evicting] = []
        self.events: list[tuple[float, int, int, int]] = []
        self.on_stopped, self.on_evicting = self.stopped.append, self.evicting.append
        cluster.observe(self)
        cluster.schedule = lambda *event: self.events.append(event)


def working(jobs: Jobs, physics: Physics = REAL, done_s: float = 2500.0) -> tuple[Cluster, Notes, float]:
    """Every job runs on the first GPUs that are free, and has made `done_s` of progress at the time returned."""
    cluster = cluster_of(jobs, inventory(4, 8), physics)
    notes = Notes(cluster)
    first = 0
    for job in range(len(jobs)):
        cluster.start(job, range(first, first + jobs.gpus[job]), 0.0)
        first += jobs.gpus[job]
        cluster.ready(job, 0)
    return cluster, notes, max(cluster.ready_s) + done_s


# --- checkpoints ------------------------------------------------------------------------------------


def test_the_time_of_a_write_is_known_where_there_is_one() -> None:
    """By size at the rate of one writer; unknown where nothing is written or the job cannot resume."""
    jobs = Jobs()
    jobs.add("stated", "t", gang(4), 0.0, checkpoint_gib=9.3)
    jobs.add("by-width", "t", gang(8), 0.0)
    jobs.add("notebook", "t", gang(1), 0.0, slo_class=SloClass.INTERACTIVE)
    jobs.add("saves", "t", gang(1), 0.0, slo_class=SloClass.INTERACTIVE, checkpoint_interval_s=60.0)
    times = [Checkpoints(jobs, REAL).write_s(job) for job in range(4)]
    assert times[:2] == [9.3 / RATE, 8 * REAL.checkpoint_gib_per_gpu / RATE]
    assert isnan(times[2])
    assert times[3] == REAL.checkpoint_gib_per_gpu / RATE
    for physics in (IDEAL, CHARGED):
        assert all(isnan(Checkpoints(jobs, physics).write_s(job)) for job in range(4))


def test_a_write_is_given_a_time_or_none_within_the_grace() -> None:
    """Five writers at once, the next five behind them, then none; a size that never fits is not caused by other
    writers.
    """
    jobs = make_jobs([(0, 50_000, 1)] * 11, checkpoint_gib=55.8)
    jobs.add("huge", "t", gang(1), 0.0, checkpoint_gib=200.0)
    checkpoints = Checkpoints(jobs, REAL)
    writes = [checkpoints.ask(job, 1000.0) for job in range(12)]
    assert [round(write.done_s - 1000, 3) for write in writes[:10]] == pytest.approx([60.0] * 5 + [120.0] * 5, abs=0.01)
    assert [write.done_s for write in writes[10:]] == [inf, inf]
    assert [round(write.alone_s - 1000) for write in writes[:11]] == [60] * 11
    assert writes[11] == Write(inf, inf)


def test_who_starved_for_bandwidth() -> None:
    """Work without a place in the queue, and work whose place came later than the time that it had alone."""
    queued = Leaving(Why.PREEMPT, 0.0, Write(done_s=120.0, alone_s=60.0))
    assert [queued.starved(at_s) for at_s in (59.0, 60.0, 119.0, 120.0)] == [False, True, True, False]
    assert [queued.saved(at_s) for at_s in (119.0, 120.0)] == [False, True]
    assert Leaving(Why.PREEMPT, 0.0, Write(inf, 60.0)).starved(0.0)
    assert not Leaving(Why.PREEMPT, 0.0, Write()).starved(1e9)


def test_lost_work_is_split_by_its_cause() -> None:
    """Of thirteen victims at once ten save; two starve for bandwidth, one could not have saved anyway."""
    jobs = make_jobs([(0, 50_000, 1)] * 12, checkpoint_gib=55.8)
    jobs.add("huge", "t", gang(1), 0.0, 50_000.0, checkpoint_gib=200.0)
    cluster, notes, now_s = working(jobs)
    accounts = Accounts(cluster, 0.0)
    cluster.observe(accounts)
    for job in range(13):
        cluster.evict(job, now_s)
    assert [fact.job for fact in notes.stopped] == [10, 11, 12]
    assert [fact.no_bandwidth for fact in notes.stopped] == [True, True, False]
    lost = [fact.lost_s for fact in notes.stopped]
    assert min(lost) > 0
    for at_s, kind, job, number in notes.events:
        if kind == VACATE:
            assert cluster.vacate(job, at_s, number)
    assert sum(fact.no_bandwidth for fact in notes.stopped) == 2
    assert accounts.lost_no_bandwidth == (lost[0] + lost[1]) * UNITS_PER_GPU_S
    total = sum(share.lost for share in accounts.shares)
    assert total - accounts.lost_no_bandwidth == lost[2] * UNITS_PER_GPU_S


@pytest.mark.parametrize(("after_s", "lost", "starved"), [(30, 6, 0), (90, 1, 1), (121, 0, 0)])
def test_a_node_that_dies_under_the_writers(after_s: float, lost: int, starved: int) -> None:
    """Who was writing loses since its last checkpoint; who waited although its time was up starved; the rest is
    safe.
    """
    cluster, notes, now_s = working(make_jobs([(0, 50_000, 1)] * 6, checkpoint_gib=55.8))
    for job in range(6):
        cluster.evict(job, now_s)
    for at_s, kind, job, number in notes.events:
        if kind == VACATE and at_s <= now_s + after_s:
            cluster.vacate(job, at_s, number)
    cluster.fail_node(0, now_s + after_s)
    assert sum(fact.lost_s > 0 for fact in notes.stopped) == lost
    assert sum(fact.no_bandwidth for fact in notes.stopped) == starved
    assert len(notes.stopped) == 6


# --- pods that do not go ----------------------------------------------------------------------------


def stuck_one(physics: Physics = REAL, linger_s: float = 500.0) -> tuple[Cluster, Notes, float]:
    """One job that was evicted and stays `linger_s` past its grace."""
    cluster, notes, now_s = working(one_job(gang(4), 50_000.0, checkpoint_gib=9.3), physics)
    stays_s = physics.grace_s + linger_s
    cluster.linger_s = lambda job, number, _now_s: stays_s if (job, number) == (0, 0) else 0.0
    assert cluster.evict(0, now_s) is None
    return cluster, notes, now_s


@pytest.mark.parametrize("physics", [IDEAL, CHARGED, REAL], ids=lambda physics: physics.name)
def test_a_stuck_pod_holds_its_gpus_past_the_grace(physics: Physics) -> None:
    """It holds them until it goes by itself; its work ended when it was evicted."""
    cluster, notes, now_s = stuck_one(physics)
    assert (cluster.state[0], cluster.hardware.free[0]) == (State.CHECKPOINTING, 4)
    grace_s = now_s + physics.grace_s
    assert [cluster.stuck(0, at_s) for at_s in (now_s, grace_s, grace_s + 1 / TICKS_PER_S)] == [
        False,
        False,
        True,
    ]
    at_s, kind, job, number = notes.events[-1]
    assert (at_s, kind) == (up_to_grid(now_s + physics.grace_s + 500.0), VACATE)
    assert cluster.evict(0, grace_s + 1.0) is Refusal.LEAVING
    assert cluster.vacate(job, at_s, number)
    assert (cluster.state[0], cluster.hardware.free[0]) == (State.PENDING, 8)
    assert (notes.stopped[-1].halt_s, notes.stopped[-1].gain_s) == (now_s, now_s - notes.stopped[-1].ready_s)
    assert notes.stopped[-1].lost_s == physics.flat_loss_s
    assert not cluster.stuck(0, at_s + 1.0)


def test_a_stuck_pod_is_removed_by_force_only_past_its_grace() -> None:
    """Recovery takes it off its GPUs, with the progress that it saved; before that it is left to write."""
    cluster, notes, now_s = stuck_one()
    assert cluster.evict(0, now_s + 5.0, recover=True) is Refusal.LEAVING
    assert cluster.evict(0, now_s + 130.0, recover=True, incarnation=1) is Refusal.OTHER_INCARNATION
    assert cluster.evict(0, now_s + 130.0, recover=True, effect="force") is None
    assert [(fact.why, fact.effect) for fact in notes.evicting] == [(Why.PREEMPT, ""), (Why.RECOVER, "force")]
    assert (notes.stopped[-1].why, notes.stopped[-1].lost_s) == (Why.PREEMPT, 0.0)
    assert (cluster.state[0], cluster.hardware.free[0], cluster.leaving) == (State.PENDING, 8, {})
    assert not cluster.vacate(0, now_s + 620.0, 0), "it left before"


def test_a_checkpoint_that_is_written_survives_what_comes_after() -> None:
    """The node of a stuck pod dies: before the write is done that costs progress, afterwards nothing."""
    for after_s, lost_s in ((5.0, 700.0), (11.0, 0.0)):
        cluster, notes, now_s = stuck_one()
        cluster.fail_node(0, now_s + after_s)
        assert (notes.stopped[-1].why, notes.stopped[-1].lost_s) == (Why.FAULT, lost_s)


def test_recovery_is_its_own_reason() -> None:
    """Work that is evicted to be saved from a bad place is neither preempted nor moved."""
    cluster, notes, now_s = working(one_job(gang(4), 50_000.0, checkpoint_gib=9.3))
    accounts = Accounts(cluster, 0.0)
    cluster.observe(accounts)
    cluster.evict(0, now_s, recover=True)
    at_s, kind, job, number = notes.events[-1]
    assert (kind, cluster.vacate(job, at_s, number)) == (VACATE, True)
    assert (notes.stopped[-1].why, notes.stopped[-1].lost_s) == (Why.RECOVER, 0.0)
    assert (accounts.recoveries, accounts.preemptions, accounts.migrations, accounts.faults) == (1, 0, 0, 0)
    assert list(cluster.pending) == [0]
    cluster.start(0, range(4), at_s + 1.0)
    cluster.evict(0, at_s + 2.0, recover=True)
    cluster.start(0, range(4), at_s + 3.0)
    assert (accounts.recoveries, accounts.reversals) == (2, 0), "it was not taken away in vain"


def test_recovered_work_is_served_again_and_its_losses_are_stated_by_cause() -> None:
    """Thirteen jobs evicted at once wait again and end; what they lost is split in the result."""
    jobs = make_jobs([(0, 9000, 1)] * 12, checkpoint_gib=55.8)
    jobs.add("huge", "t", gang(1), 0.0, 9000.0, checkpoint_gib=200.0)
    simulation = Simulation(inventory(2, 8), jobs, lambda _cluster: BASELINES["fifo-skip"](), REAL)

    def recover(now_s: float) -> None:
        for job in range(13):
            assert simulation.cluster.evict(job, now_s, recover=True) is None

    simulation.engine.at(3000.0, recover)
    simulated = simulation.run()
    assert (simulated.run.complete, simulated.found.violations) == (True, ())
    disruptions = policy_result(simulated)["disruptions"]
    lost = disruptions["lost_gpu_s"]
    assert (disruptions["recoveries"], disruptions["preemptions"]) == (13, 0)
    assert disruptions["lost_no_bandwidth_gpu_s"] == pytest.approx(lost * 2 / 3)
    assert disruptions["lost_since_checkpoint_gpu_s"] == pytest.approx(lost / 3)
    assert lost > 0


# --- gangs that lost a member -----------------------------------------------------------------------


def test_a_gang_without_a_member_makes_no_progress() -> None:
    """The others hold their GPUs; nothing ends it but a stop, which cannot save, or its own patience."""
    cluster, notes, now_s = working(one_job(gang(16), 3000.0))
    assert cluster.lose_member(0, now_s, 600.0) is None
    assert cluster.lose_member(0, now_s, 600.0) is Refusal.STALE
    assert notes.events[-1] == (now_s + 600.0, GIVE_UP, 0, 0)
    assert cluster.progress_s(0, now_s + 400.0) == cluster.progress_s(0, now_s) == 2500.0
    assert cluster.finish(0, now_s + 500.0, 0) is Refusal.STALE
    assert cluster.hardware.free[:2] == [0, 0]
    assert cluster.give_up(0, now_s + 600.0, 0)
    stop = notes.stopped[-1]
    assert (stop.why, stop.halt_s, stop.gain_s, stop.lost_s) == (Why.FAULT, now_s, 2500.0, 700.0)
    assert (cluster.stale, list(cluster.pending), cluster.hardware.free[:2]) == ({}, [0], [8, 8])
    assert not cluster.give_up(0, now_s + 600.0, 0)


def test_a_gang_without_a_member_is_stopped_at_once_and_loses_what_it_did_not_save() -> None:
    """No checkpoint can be written; the gang runs again whole, and its old patience means nothing to it."""
    cluster, notes, now_s = working(one_job(gang(16), 9000.0))
    cluster.lose_member(0, now_s, 600.0)
    assert cluster.evict(0, now_s + 60.0, recover=True) is None
    assert (cluster.state[0], notes.stopped[-1].why, notes.stopped[-1].lost_s) == (
        State.PENDING,
        Why.RECOVER,
        700.0,
    )
    assert not notes.stopped[-1].no_bandwidth
    cluster.start(0, range(16), now_s + 60.0)
    assert not cluster.give_up(0, now_s + 600.0, 0)
    assert cluster.state[0] == State.STARTING
    cluster.ready(0, 1)
    assert cluster.progress_s(0, cluster.ready_s[0] + 100.0) == 1900.0
    cluster.lose_member(0, cluster.ready_s[0] + 100.0, 600.0)
    assert not cluster.give_up(0, cluster.ready_s[0] + 200.0, 0), "the patience of another incarnation"


def test_only_work_that_runs_loses_members() -> None:
    """Pending and leaving work does not."""
    jobs = make_jobs([(0, 9000, 1), (0, 9000, 1)])
    cluster = cluster_of(jobs, physics=REAL)
    assert cluster.lose_member(0, 0.0, 600.0) is Refusal.NOT_HOLDING
    cluster.start(1, [0], 0.0)
    cluster.ready(1, 0)
    cluster.evict(1, 5000.0)
    assert cluster.lose_member(1, 5000.0, 600.0) is Refusal.LEAVING
