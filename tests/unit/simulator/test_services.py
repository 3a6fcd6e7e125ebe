from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import isnan
from typing import Any

import numpy as np
import pytest

from autopilot.core.model.errors import InputError
from autopilot.core.model.records import Inventory
from autopilot.core.model.snapshot import QueueTable, SloClass, State, empty
from simulator.baselines.textbook import Textbook, by_submit, fifo, fifo_skip
from simulator.inference.autoscaler import AutoscalerSpec
from simulator.inference.deployments import Services
from simulator.inference.requests import ListedArrivals
from simulator.inference.service_series import MOST_POINTS
from simulator.inference.services import ServiceFleet
from simulator.inference.serving import ServiceSim
from simulator.running.cluster_collector import ClusterCollector
from simulator.running.engine import Scheduler
from simulator.running.simulation import Simulation
from simulator.specs.clusterfile import MigSpec
from simulator.world.facts import Stopped
from simulator.world.physics import IDEAL, REAL, Physics
from simulator.world.work import Jobs
from tests.kits.cluster_kit import gang, inventory, make_jobs, pool, pools
from tests.kits.service_kit import CHAT, calls, deployment, services


class World:
    """A fleet in a simulation that has run, and what was seen of it."""

    def __init__(
        self,
        plan: Services,
        jobs: Jobs | None = None,
        hardware: Inventory | None = None,
        physics: Physics = IDEAL,
        make: Callable[[], Scheduler] = fifo_skip,
        during: Sequence[tuple[float, Callable[[World, float], None]]] = (),
    ) -> None:
        hardware = hardware or inventory(1, 4)
        self.jobs = jobs if jobs is not None else Jobs()
        self.fleet = ServiceFleet(plan, self.jobs, hardware, physics)
        self.stops: list[Stopped] = []
        simulation = Simulation(hardware, self.jobs, lambda _cluster: make(), physics, observers=[self])
        self.engine, self.cluster = simulation.engine, simulation.cluster
        self.fleet.arm(self.engine)
        for at_s, action in during:
            self.engine.at(at_s, partial(action, self), essential=False)
        self.done = simulation.run()
        self.totals = self.fleet.totals(self.done.run.end_s)

    def on_stopped(self, fact: Stopped) -> None:
        self.stops.append(fact)

    def replicas_at(self, t_s: float) -> float:
        """Ready replicas of the first service at a minute."""
        series = self.fleet.series()[0]
        return float(series.replicas[np.searchsorted(series.t_s, t_s, side="right") - 1])


def fail_node(world: World, now_s: float) -> None:
    """The first node goes down."""
    world.cluster.fail_node(0, now_s)


def restore_node(world: World, now_s: float) -> None:
    """The first node is back."""
    world.cluster.restore_node(0, now_s)


def fail_its_gpu(world: World, now_s: float) -> None:
    """The GPU of the only replica breaks."""
    held = world.cluster.held[next(iter(world.cluster.holding))]
    assert held is not None
    world.cluster.fail_gpu(held.gpus[0], now_s)


# --- replicas are jobs ----------------------------------------------------------------------------


def test_a_constant_service_serves_exactly_as_its_queue_does_alone(rng: np.random.Generator) -> None:
    """With fixed replicas and no start-up, fleet and bare queue agree to the last request."""
    t_s = np.sort(rng.uniform(1, 3000, 800))
    arrivals = calls(t_s, rng.integers(1, 12, 800))
    world = World(services(arrivals, 3600.0, deployment(low=2, high=2, initial=2)))
    alone = ServiceSim(CHAT, ListedArrivals(arrivals))
    alone.set_replicas(0.0, 2)
    alone.advance(3600.0)
    assert world.totals is not None
    assert world.done.run.end_s == 3600.0
    assert world.totals.requests == 800
    assert world.totals.p99_latency_s == alone.latencies().quantiles_s(0.99)[0]
    assert world.totals.violation_ratio == alone.violations / 800


def test_requests_wait_until_the_start_up_is_over() -> None:
    """Under real overheads nothing is served before image, container and model are there."""
    world = World(services(calls([0.0], 10), 600.0), physics=REAL)
    start_up_s = REAL.image_pull_s + REAL.container_start_s + REAL.load_s + REAL.weights_gib / REAL.load_gib_per_s
    assert world.totals is not None
    assert world.totals.p99_latency_s == pytest.approx(start_up_s + 10, rel=0.004)


def test_a_run_lasts_until_the_last_request_and_no_longer() -> None:
    """Replicas have no end, yet the run has one: the end of the requests or of the jobs, the later one."""
    alone = World(services(calls([5.0], 1), 900.0))
    assert alone.done.run.end_s == 900.0
    assert alone.done.run.complete
    beside = World(services(calls([5.0], 1), 900.0), make_jobs([(0, 20_000, 1)]))
    assert beside.done.run.end_s == 20_000.0


def test_a_run_with_work_that_can_never_start_ends_though_services_go_on() -> None:
    """A gang that needs the replica's GPU is named as stuck; the autoscalers do not keep the run alive."""
    world = World(services(calls([5.0], 1), 900.0), make_jobs([(10, 100, 4)], per_member=4))
    assert "1 job waits" in world.done.run.stuck


def test_autoscaler_adds_replicas_under_load_and_drains_them_after_it() -> None:
    """More slots when busy, fewer when idle; what a drained replica holds is finished."""
    arrivals = calls(np.arange(60, 1200, 2.0), 11)
    world = World(services(arrivals, 3000.0))
    assert world.replicas_at(1100) == 4
    assert world.replicas_at(2900) == 1
    assert world.totals is not None
    sim = world.fleet._services[0].sim
    assert (sim.completed, sim.requeued, sim.queue_depth) == (len(arrivals.t_s), 0, 0)
    retired = [stop for stop in world.stops if stop.why.name == "RETIRE"]
    assert len(retired) == 3
    assert len(world.cluster.holding) == 1


def test_a_drained_replica_keeps_its_gpus_until_its_last_request_is_done() -> None:
    """Scale-down takes no new request on the youngest replica and frees its GPU when it is idle."""
    never = AutoscalerSpec(target=0.5, max_replicas=2, period_s=86_400.0)
    arrivals = calls([100, 100, 100, 110, 300], [1000, 1000, 1000, 500, 10])
    plan = services(arrivals, 1500.0, deployment(autoscaler=never, initial_replicas=2))
    hardware, jobs = inventory(1, 4), Jobs()
    fleet = ServiceFleet(plan, jobs, hardware)
    simulation = Simulation(hardware, jobs, lambda _cluster: fifo_skip())
    fleet.arm(simulation.engine)
    service = fleet._services[0]
    simulation.engine.at(200.0, lambda now_s: fleet._scale(service, 1, now_s), essential=False)
    fleet.totals(simulation.run().run.end_s)
    # the two slots that get free first (at 610 and 1100 s) leave: the replica is idle at 1100 s
    assert jobs.id == ["chat/1", "chat/2"]
    assert simulation.cluster.end_s[1] == 1100.0
    assert service.sim.completed == 5
    assert service.sim.latencies().quantiles_s(1.0)[0] == pytest.approx(1000.0, rel=0.004)


def test_a_replica_hit_by_a_fault_waits_again_and_its_requests_are_not_lost() -> None:
    """The node fails: the replica is pending, its requests start afresh when it is back."""
    world = World(
        services(calls([100.0, 100.0], 50), 1000.0, deployment(high=1)),
        hardware=inventory(1, 2),
        physics=REAL,
        during=[
            (400.0, fail_node),
            (500.0, restore_node),
        ],
    )
    sim = world.fleet._services[0].sim
    assert (sim.completed, sim.queue_depth) == (2, 0)
    assert [stop.why.name for stop in world.stops if stop.why.name != "CUT"] == ["FAULT"]
    assert world.done.totals.all.lost == 0, "a replica has no progress to lose"
    assert world.replicas_at(420) == 0
    assert world.replicas_at(960) == 1


def test_requests_of_a_lost_replica_go_back_to_the_queue() -> None:
    """A fault in the middle of a request: it is served again, and its latency counts from its arrival."""
    world = World(
        services(calls([100.0], 200), 1000.0),
        hardware=inventory(2, 1),
        during=[(200.0, fail_its_gpu)],
    )
    sim = world.fleet._services[0].sim
    assert sim.requeued == 1
    assert world.totals is not None
    assert world.totals.p99_latency_s == pytest.approx(300.0, rel=0.004)


def test_a_fault_during_the_start_up_starts_it_anew() -> None:
    """The replica serves after its second start-up, not when the first one would have been over."""
    world = World(
        services(calls([0.0], 10), 600.0, deployment(high=1)),
        hardware=inventory(1, 1),
        physics=REAL,
        during=[
            (200.0, fail_node),
            (240.0, restore_node),
        ],
    )
    load_s = REAL.load_s + REAL.weights_gib / REAL.load_gib_per_s  # the image is on the node by now
    assert world.totals is not None
    assert world.totals.p99_latency_s == pytest.approx(240 + load_s + 10, rel=0.004)


def scaled_by_hand(low: int, at_s: float, physics: Physics, breaks_at_s: float = 0.0) -> World:
    """Two replicas with a request of 1000 s each from 300 s on, brought down to `low` at `at_s`."""
    never = AutoscalerSpec(target=0.5, min_replicas=0, max_replicas=2, period_s=86_400.0)
    plan = services(calls([300.0] * 4, 1000), 1500.0, deployment(autoscaler=never, initial_replicas=2))

    def scale(world: World, now_s: float) -> None:
        world.fleet._scale(world.fleet._services[0], low, now_s)

    def break_youngest(world: World, now_s: float) -> None:
        held = world.cluster.held[max(world.cluster.holding)]
        assert held is not None
        world.cluster.fail_gpu(held.gpus[0], now_s)

    during = [(at_s, scale)] + ([(breaks_at_s, break_youngest)] if breaks_at_s else [])
    return World(plan, physics=physics, during=during)


def test_a_replica_that_starts_up_is_given_back_at_once() -> None:
    """It goes before the one that is ready already (its image was on the node)."""
    world = scaled_by_hand(1, 100.0, REAL)
    assert (world.cluster.end_s[0], world.replicas_at(1400)) == (100.0, 1)


def test_a_draining_replica_hit_by_a_fault_does_not_come_back() -> None:
    """It is not wanted: its place in the queue is given up."""
    world = scaled_by_hand(1, 400.0, IDEAL, breaks_at_s=600.0)
    assert [stop.why.name for stop in world.stops if stop.job == 1] == ["FAULT", "RETIRE"]
    assert world.cluster.state[1] == State.SUCCEEDED
    assert list(world.cluster.holding) == [0]


def test_autoscalers_stop_looking_an_hour_after_the_last_request() -> None:
    """A long tail of jobs is not woken every period for services without requests."""
    world = World(services(calls([5.0], 1), 900.0), make_jobs([(0, 1e6, 1)]))
    assert world.done.run.end_s == 1e6
    assert world.done.run.passes < (900 + 3600) / 30 + 20


@pytest.mark.parametrize("make", [fifo, fifo_skip])
def test_a_replica_nobody_wants_any_more_never_blocks_the_queue(make: Callable[[], Scheduler]) -> None:
    """Replicas that still wait when the load is over let the jobs behind them run, and hold nothing."""
    jobs = make_jobs([(0, 3000, 1), (0, 3000, 1), (0, 3000, 1), (2000, 500, 1), (2500, 500, 1)])
    arrivals = calls(np.arange(60, 600, 2.0), 11)
    world = World(services(arrivals, 2000.0, deployment(high=6)), jobs, make=make)
    assert world.done.run.complete
    assert world.fleet._services[0].made > 1, "the load must have asked for replicas that could not start"
    assert all(world.cluster.state[job] == State.SUCCEEDED for job in range(5))
    assert len(world.cluster.holding) == world.fleet._services[0].wanted == 1
    assert sum(stop.at_s - stop.start_s for stop in world.stops if stop.why.name == "RETIRE") == 0


class Forgetful(Textbook):
    """A policy that can forget a job."""

    def __init__(self) -> None:
        super().__init__("forgetful", by_submit, skip=True)
        self.forgotten: list[int] = []

    def on_withdraw(self, job: int, _now_s: float) -> None:
        for queue in self._queues.values():
            queue[:] = [entry for entry in queue if entry[1] != job]
        self.forgotten.append(job)


def test_a_scheduler_that_can_forget_is_told_at_once() -> None:
    """A pending replica that is not wanted leaves the queue when the autoscaler says so."""
    policy = Forgetful()
    jobs = make_jobs([(0, 3000, 1), (0, 3000, 1), (0, 3000, 1)])
    arrivals = calls(np.arange(60, 600, 2.0), 11)
    world = World(services(arrivals, 2000.0, deployment(high=6)), jobs, make=lambda: policy)
    assert policy.forgotten
    assert all(world.cluster.state[job] == State.SUCCEEDED for job in policy.forgotten)
    assert not world.cluster.pending


# --- hardware of a replica ------------------------------------------------------------------------


def test_replicas_take_shares_instances_and_several_gpus() -> None:
    """Shares sit together on one GPU, a MIG replica takes an instance, a wide one GPUs of one node."""
    share = World(services(calls([1.0], 1), 60.0, deployment(initial=3, gpu_milli=300)))
    assert len(gpus_held(share)) == 1
    cut = pools(pool(mig=(MigSpec(1, tuple(placements())),)))
    mig = World(services(calls([1.0], 1), 60.0, deployment(initial=2, mig_profile="3g.40gb")), hardware=cut)
    assert len(mig.cluster.holding) == 2
    wide = World(services(calls([1.0], 1), 60.0, deployment(initial=2, gpus_per_replica=2)))
    assert len(gpus_held(wide)) == 4


def placements() -> list[Any]:
    """Two instances of half an A100."""
    from autopilot.core.hardware import mig

    found = mig.fits("A100-80GB", (), ["3g.40gb", "3g.40gb"])
    assert found is not None
    return list(found)


def gpus_held(world: World) -> set[int]:
    """GPU rows that hold something at the end."""
    held = [world.cluster.held[job] for job in world.cluster.holding]
    return {gpu for each in held if each is not None for gpu in each.gpus}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gpus_per_replica": 16}, "a replica never fits"),
        ({"gpu_models": ("H100-80GB",)}, "the cluster has none of them"),
        ({"mig_profile": "1g.12gb"}, "a replica never fits"),
    ],
)
def test_a_service_that_no_hardware_can_hold_is_one_clear_error(change: dict[str, Any], message: str) -> None:
    """The message names the service and what is missing."""
    with pytest.raises(InputError, match=f"service chat.*{message}"):
        World(services(calls([1.0], 1), 60.0, deployment(**change)))


@pytest.mark.parametrize(
    "change",
    [
        {"gpus_per_replica": 0},
        {"gpus_per_replica": 2, "gpu_milli": 500},
        {"gpu_milli": 1000},
        {"gpu_milli": 500, "mig_profile": "1g.10gb"},
        {"initial": 9},
    ],
)
def test_a_deployment_that_contradicts_itself_is_refused(change: dict[str, Any]) -> None:
    """Shares, instances and whole GPUs exclude each other; the start lies between minimum and maximum."""
    with pytest.raises(InputError, match="service chat"):
        deployment(**change)


# --- what it shows --------------------------------------------------------------------------------


def test_the_service_table_shows_the_last_five_minutes() -> None:
    """Rate, latency and violations are those of the last closed windows; before the first, unknown."""
    seen: list[Any] = []
    arrivals = calls(np.concatenate([np.arange(0.5, 300), [400.0]]), 1)
    plan = services(arrivals, 2000.0, deployment(low=2, high=2, initial=2))
    looks = (30.0, 300.0, 480.0, 1300.0)
    hardware, jobs = inventory(1, 4), Jobs()
    fleet = ServiceFleet(plan, jobs, hardware, queue_of_tenant={"web": 3})
    simulation = Simulation(hardware, jobs, lambda _cluster: fifo_skip())
    fleet.arm(simulation.engine)
    for at_s in looks:
        simulation.engine.at(at_s, lambda now_s: seen.append(fleet.table(now_s)), essential=False)
    simulation.run()
    first, busy, fading, silent = seen
    assert isnan(first.p99_s[0])
    assert isnan(first.rate_rps[0])
    assert np.isinf(first.age_s[0])
    assert busy.rate_rps[0] == 1.0
    assert busy.p99_s[0] == pytest.approx(1.0, rel=0.004)
    assert busy.violation_ratio[0] == 0.0
    assert 0 < fading.rate_rps[0] < 1.0
    assert silent.rate_rps[0] == 0.0
    assert isnan(silent.p99_s[0]), "nothing completed: unknown, not zero"
    assert silent.age_s[0] == 1300 % 60
    assert (busy.queue[0], busy.replicas[0], busy.ready_replicas[0]) == (3, 2, 2)
    assert (busy.min_replicas[0], busy.max_replicas[0], busy.objective_s[0]) == (2, 2, 30.0)


def test_looking_at_the_services_changes_nothing(rng: np.random.Generator) -> None:
    """The same run with and without a collector that asks every few seconds."""
    arrivals = calls(np.sort(rng.uniform(0, 1500, 400)), rng.integers(1, 20, 400))

    def totals(looks: Sequence[float]) -> Any:
        hardware, jobs = inventory(1, 4), Jobs()
        fleet = ServiceFleet(services(arrivals, 2000.0), jobs, hardware)
        simulation = Simulation(hardware, jobs, lambda _cluster: fifo_skip())
        fleet.arm(simulation.engine)
        for at_s in looks:
            simulation.engine.at(at_s, lambda now_s: [fleet.table(now_s)].clear(), essential=False)
        end_s = simulation.run().run.end_s
        return fleet.totals(end_s), fleet.series()[0].p99_s.tolist()

    quiet, noisy = totals(()), totals(np.arange(3, 1990, 7.3).tolist())
    assert quiet[0] == noisy[0]
    np.testing.assert_array_equal(quiet[1], noisy[1])


def test_replicas_stand_in_the_snapshot_as_sheltered_work_of_their_service() -> None:
    """A collector shows them latency-critical, not preemptible, with their service's row."""
    seen: list[Any] = []
    plan, hardware, jobs = services(calls([1.0], 1), 300.0), inventory(1, 4), make_jobs([(0, 500, 1)])
    fleet = ServiceFleet(plan, jobs, hardware)
    simulation = Simulation(hardware, jobs, lambda _cluster: fifo_skip())
    fleet.arm(simulation.engine)
    collector = ClusterCollector(simulation.cluster, empty(QueueTable), {}, fleet.table)
    simulation.engine.at(100.0, lambda now_s: seen.append(collector.collect(now_s)), essential=False)
    simulation.run()
    work = seen[0].work
    row = list(work.workloads.id).index("chat/1")
    assert work.services.id[work.workloads.service[row]] == "chat"
    assert work.workloads.slo_class[row] == SloClass.LATENCY_CRITICAL
    assert work.workloads.state[row] == State.RUNNING
    assert not work.workloads.preemptible[row]
    assert work.workloads.name[row] == "chat"
    other = list(work.workloads.id).index("job-0")
    assert work.workloads.service[other] == -1


def test_without_services_there_is_nothing_to_show() -> None:
    """No services: an empty table, no totals (null in the result, not zero), and no event."""
    world = World(Services(), make_jobs([(0, 10, 1)]))
    assert world.totals is None
    assert world.fleet.series() == ()
    assert len(world.fleet.table(0.0).id) == 0
    assert world.done.run.end_s == 10.0


def test_series_are_bounded_and_keep_the_worst_of_each_step() -> None:
    """A run of three days has at most MOST_POINTS steps; a single bad minute is still there."""
    bad = calls([100_000.0] * 40, 100)
    world = World(services(bad, 3 * 86_400.0, deployment(low=1, high=1)))
    series = world.fleet.series()[0]
    assert len(series.t_s) == len(series.p99_s) == len(series.rate_rps) == len(series.replicas) <= MOST_POINTS
    assert np.nanmax(series.p99_s) == pytest.approx(2000.0, rel=0.01)
    steps_s = np.diff(series.t_s)
    assert (series.rate_rps[:-1] * steps_s).sum() == pytest.approx(40)


# --- together ------------------------------------------------------------------------------------


def test_services_of_two_periods_and_a_gang_share_one_cluster() -> None:
    """Each autoscaler looks at its own period; the gang waits for whole nodes and still runs."""
    embed = replace(CHAT, name="embed", objective_s=None)
    slow = deployment(serving=embed, autoscaler=AutoscalerSpec(target=0.5, max_replicas=3, period_s=45.0))
    plan = Services(
        deployments=(deployment(), slow),
        horizon_s=1200.0,
        sources=lambda: [ListedArrivals(calls(np.arange(60, 900, 3.0), 10)) for _ in range(2)],
    )
    jobs = Jobs()
    jobs.add("gang", "t", gang(4, 4), 100.0, 50.0)
    world = World(plan, jobs, hardware=inventory(3, 4))
    assert world.done.run.complete
    assert [row.name for row in world.fleet.series()] == ["chat", "embed"]
    assert world.totals is not None
    assert world.totals.requests == 2 * len(np.arange(60, 900, 3.0))
    assert not world.done.found.violations
