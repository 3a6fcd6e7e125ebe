from __future__ import annotations

from itertools import pairwise
from math import inf

import pytest

from autopilot.core.model.errors import InputError
from autopilot.core.model.snapshot import State
from simulator.baselines import BASELINES
from simulator.baselines.textbook import Textbook, by_submit
from simulator.running.cluster_collector import ClusterCollector
from simulator.running.engine import Engine
from simulator.running.faults import FateKind, FaultOptions, Faults, child_generator
from simulator.running.simulation import Simulated, Simulation
from simulator.world.cluster import Cluster
from simulator.world.facts import GpuChanged, NodeChanged, Started, Stopped, Why
from simulator.world.physics import CHARGED, REAL, TICKS_PER_S, up_to_grid
from simulator.world.work import Jobs
from tests.kits.cluster_kit import cluster_of, gang, inventory, make_jobs, pool, pools
from tests.kits.core_world import queue_tree


class Watch:
    """Keeps every fact about the hardware and every stop."""

    def __init__(self) -> None:
        self.facts: list[NodeChanged | GpuChanged | Stopped | Started] = []
        self.on_node = self.on_gpu = self.on_stopped = self.on_started = self.facts.append


def faulty(options: FaultOptions, seed: int = 1, nodes: int = 4) -> tuple[Simulated, Watch, Faults]:
    """A day of work on nodes that fail, half of them spot."""
    hardware = pools(pool("firm", nodes=nodes // 2, gpus=8), pool("spot", nodes=nodes // 2, gpus=8, spot=True))
    jobs = make_jobs([(600.0 * k, 3000.0 + 500 * (k % 7), (1, 2, 4, 8, 16)[k % 5]) for k in range(120)])
    watch = Watch()
    faults = Faults(options, seed)

    def make(cluster: Cluster) -> object:
        return BASELINES["fifo-skip"]()

    simulation = Simulation(hardware, jobs, make, CHARGED, observers=[watch])  # type: ignore[arg-type]
    faults.arm(simulation.engine, simulation.cluster)
    return simulation.run(), watch, faults


BAD = FaultOptions(node_mtbf_s=20_000, gpu_mtbf_s=200_000, spot_mtbr_s=30_000, until_s=50_000)


def test_faulty_runs_end_with_all_work_done_and_nothing_violated() -> None:
    """Faults stop gangs, cost progress and are repaired; then everything that can run has run."""
    simulated, watch, faults = faulty(BAD)
    assert simulated.run.complete
    assert simulated.found.violations == ()
    assert faults.injected > 10
    assert simulated.accounts.faults == sum(isinstance(f, Stopped) and f.why == Why.FAULT for f in watch.facts) > 0
    assert all(simulated.cluster.hardware.ready)
    assert all(simulated.cluster.hardware.healthy)


def test_one_seed_is_one_run() -> None:
    """The same seed repeats every fact; another one does not."""
    assert faulty(BAD)[1].facts == faulty(BAD)[1].facts
    assert faulty(BAD)[1].facts != faulty(BAD, seed=2)[1].facts


def test_sources_draw_apart() -> None:
    """What one node suffers does not depend on how many others there are."""

    def of_first(nodes: int) -> list[float]:
        facts = faulty(FaultOptions(node_mtbf_s=8_000, until_s=50_000), nodes=nodes)[1].facts
        return [fact.at_s for fact in facts if isinstance(fact, NodeChanged) and fact.node == 0 and fact.at_s < 50_000]

    assert len(of_first(4)) > 1
    assert of_first(4) == of_first(8)
    assert child_generator(1, "a").random() != child_generator(1, "b").random()


def test_a_spot_node_gives_notice() -> None:
    """It is cordoned for the length of the notice, then down, then back; other nodes are left alone."""
    watch = faulty(FaultOptions(spot_mtbr_s=20_000, spot_notice_s=120, until_s=40_000))[1]
    nodes = [fact for fact in watch.facts if isinstance(fact, NodeChanged)]
    assert {fact.node for fact in nodes} <= {2, 3}
    first = nodes[0].node
    notice, down, back = [fact for fact in nodes if fact.node == first][:3]
    assert (notice.ready, notice.cordoned, down.ready, back.ready, back.cordoned) == (
        True,
        True,
        False,
        True,
        False,
    )
    assert down.at_s - notice.at_s == pytest.approx(120, abs=0.001)
    assert (notice.reclaim_at_s, down.reclaim_at_s, back.reclaim_at_s) == (down.at_s, down.at_s, inf)


def test_a_node_that_fails_within_its_notice_is_taken_back_all_the_same() -> None:
    """Its return from the failure does not end the reclaim that was announced."""
    options = FaultOptions(spot_mtbr_s=20_000, spot_notice_s=4000, node_mtbf_s=6000, node_mttr_s=300, until_s=90_000)
    nodes = [fact for fact in faulty(options)[1].facts if isinstance(fact, NodeChanged)]
    seen = 0
    for before, fact in pairwise(nodes):
        if before.ready and not before.cordoned and fact.reclaim_at_s < inf and fact.at_s == before.at_s:
            assert (fact.node, fact.ready, fact.cordoned) == (before.node, True, True)
            assert fact.reclaim_at_s > fact.at_s
            seen += 1
    assert seen > 0


@pytest.mark.parametrize(
    ("ratios", "xids"),
    [
        ({}, {79}),
        ({"gpu_app_ratio": 1.0}, {94}),
        ({"gpu_reset_ratio": 1.0}, {95}),
        ({"gpu_app_ratio": 0.3, "gpu_reset_ratio": 0.3}, {79, 94, 95}),
    ],
)
def test_the_class_of_an_xid_is_what_becomes_of_the_gpu(ratios: dict[str, float], xids: set[int]) -> None:
    """It stays sound, is reset in a minute, or is out for a repair; its work breaks each time."""
    options = FaultOptions(gpu_mtbf_s=60_000, gpu_mttr_s=5000, until_s=90_000, **ratios)
    simulated, watch, faults = faulty(options)
    gpus = [fact for fact in watch.facts if isinstance(fact, GpuChanged)]
    assert {fact.xid for fact in gpus} - {0} == xids
    assert faults.injected == sum(fact.xid > 0 for fact in gpus) > 10
    assert all(fact.healthy == (fact.xid == 94) for fact in gpus if fact.xid)
    out_s: dict[int, list[float]] = {79: [], 95: []}
    for number, fact in enumerate(gpus):
        if fact.xid in out_s:
            back = next(later for later in gpus[number:] if later.gpu == fact.gpu and not later.xid)
            out_s[fact.xid].append(back.at_s - fact.at_s)
    assert out_s[95] == pytest.approx([60.0] * len(out_s[95]), abs=0.01)
    assert not out_s[79] or max(out_s[79]) > 2000
    assert (simulated.run.complete, simulated.found.violations) == (True, ())
    assert simulated.accounts.faults > 0


def test_members_die_and_the_others_hold_on() -> None:
    """Gangs of several members stand still until they notice; then they run again, and all work gets done."""
    options = FaultOptions(member_mtbf_s=8000, member_hang_s=600, until_s=60_000)
    simulated, watch, faults = faulty(options)
    stops = [fact for fact in watch.facts if isinstance(fact, Stopped) and fact.why == Why.FAULT]
    jobs = simulated.cluster.jobs
    assert len(stops) == faults.injected > 5
    assert {jobs.gpus[fact.job] for fact in stops} == {16}
    assert {fact.at_s - fact.halt_s for fact in stops if fact.halt_s > fact.ready_s} == {600.0}
    assert (simulated.run.complete, simulated.found.violations) == (True, ())
    assert simulated.totals.all.overhead > 0


def test_the_death_of_a_member_belongs_to_one_incarnation() -> None:
    """Drawn at the start, sooner with more members; a restart draws anew, one with a member to spare draws none."""
    jobs = Jobs()
    for name, gpus, least in (("rigid", 32, 32), ("spare", 32, 16), ("single", 8, 8)):
        jobs.add(name, "t", gang(gpus, 8, min_gpus=least), 0.0, 1e6)
    cluster = cluster_of(jobs, inventory(9, 8))
    engine = Engine(cluster, BASELINES["fifo"](), horizon_s=1e5)
    Faults(FaultOptions(member_mtbf_s=4000.0, member_hang_s=1e6), 0).arm(engine, cluster)
    first_s, second_s = (float(child_generator(0, f"member/rigid/{number}").exponential(1000.0)) for number in range(2))
    for job, held in enumerate((range(32), range(32, 64), range(64, 72))):
        assert cluster.start(job, held, 0.0) is None

    def restart(now_s: float) -> None:
        assert cluster.stale == {}
        assert cluster.evict(0, now_s) is None
        assert cluster.start(0, range(32), now_s) is None

    engine.at(first_s / 2, restart)
    engine.run()
    assert second_s > first_s / 2, "else the first draw would not be seen to be void"
    assert cluster.stale == {0: up_to_grid(up_to_grid(first_s / 2) + second_s)}


def test_a_scheduler_is_asked_when_a_pod_is_stuck() -> None:
    """At the first instant at which that can be seen, though nothing else happens then."""
    cluster = cluster_of(make_jobs([(0, 50_000.0, 1)]), physics=REAL)
    looks: list[tuple[float, bool]] = []

    class Looking(Textbook):
        def on_change(self, now_s: float) -> None:
            looks.append((now_s, cluster.stuck(0, now_s)))

    engine = Engine(cluster, Looking("looking", by_submit, skip=False), horizon_s=6000.0)
    Faults(FaultOptions(stuck_ratio=1.0, stuck_s=1e6), 0).arm(engine, cluster)

    def evict(now_s: float) -> None:
        assert cluster.evict(0, now_s) is None

    engine.at(5000.0, evict)
    engine.run()
    assert looks == [(5000.0, False), (5000.0 + REAL.grace_s + 1 / TICKS_PER_S, True)]
    assert cluster.hardware.free[0] == 7


def test_an_eviction_is_counted_while_its_pods_run_on() -> None:
    """They go on for ten minutes, longer than their grace: their work is not stuck, and then it is gone."""
    cluster = cluster_of(make_jobs([(0, 50_000.0, 1)]), physics=REAL)
    seen: list[tuple[int, int, bool, bool]] = []

    class Looking(Textbook):
        def on_change(self, now_s: float) -> None:
            work = ClusterCollector(cluster, queue_tree(("t", 0, -1)), {"t": 1}).collect(now_s).work
            assert work is not None
            table, held = work.workloads, work.placements.leaving
            seen.append((int(table.incarnation[0]), int(table.state[0]), bool(held.all()), bool(table.stuck[0])))

    engine = Engine(cluster, Looking("looking", by_submit, skip=False), horizon_s=7000.0)
    Faults(FaultOptions(runs_on_ratio=1.0, runs_on_s=600.0), 0).arm(engine, cluster)

    def evict(now_s: float) -> None:
        assert cluster.evict(0, now_s) is None

    for at_s, what in ((5000.0, evict), (5599.0, lambda _: None)):
        engine.at(at_s, what)
    engine.run()
    assert seen[:2] == [(1, State.CHECKPOINTING, True, False)] * 2
    assert seen[2][:2] == (1, State.PENDING)


def test_stuck_pods_hold_their_gpus_and_go_in_the_end() -> None:
    """Every second eviction hangs for a while, under a policy that does nothing about it."""
    hardware = pools(pool(nodes=2, gpus=8))
    jobs = make_jobs([(300.0 * k, 3000.0 + 500 * (k % 7), (1, 2, 4, 8, 16)[k % 5]) for k in range(60)])
    watch = Watch()
    faults = Faults(FaultOptions(stuck_ratio=0.5, stuck_s=400.0, until_s=20_000), 3)
    simulation = Simulation(
        hardware, jobs, lambda _cluster: BASELINES["las"](), CHARGED, observers=[watch], horizon_s=1e6
    )
    faults.arm(simulation.engine, simulation.cluster)
    simulated = simulation.run()
    stops = [fact for fact in watch.facts if isinstance(fact, Stopped) and fact.why == Why.PREEMPT]
    late = [fact.at_s - fact.halt_s for fact in stops if fact.at_s > fact.halt_s > fact.ready_s]
    assert faults.injected >= len(late) > 10
    assert 0.3 < len(late) / sum(fact.halt_s <= 20_000 for fact in stops) < 0.7
    assert 200 < sum(late) / len(late) < 800
    assert (simulated.run.complete, simulated.found.violations) == (True, ())


def test_effects_and_scrapes_fail_in_the_wished_part() -> None:
    """Fates follow the ratios, repeat by id, and end with the safety phase."""
    faults = Faults(
        FaultOptions(scrape_loss_ratio=0.2, conflict_ratio=0.1, failure_ratio=0.2, delay_ratio=0.3, until_s=1e6),
        7,
    )
    fates = [faults.fate(f"effect-{k}", 5.0) for k in range(2000)]
    parts = {kind: sum(fate.kind is kind for fate in fates) / 2000 for kind in FateKind}
    assert parts == pytest.approx(
        {FateKind.DONE: 0.4, FateKind.CONFLICT: 0.1, FateKind.FAILED: 0.2, FateKind.LATE: 0.3}, abs=0.04
    )
    assert all((fate.delay_s > 0) == (fate.kind is FateKind.LATE) for fate in fates)
    assert faults.fate("effect-3", 9.0) == fates[3]
    assert faults.fate("effect-1999", 1e6).kind is FateKind.DONE


@pytest.mark.parametrize(
    ("field", "value"),
    [("node_mtbf_s", -1.0), ("gpu_mttr_s", inf), ("scrape_loss_ratio", 1.5), ("delay_s", float("nan"))],
)
def test_options_out_of_range_are_named(field: str, value: float) -> None:
    """The message names the field and the value."""
    with pytest.raises(InputError, match=f"faults.{field}"):
        FaultOptions(**{field: value})


def test_ratios_that_exceed_one_together_are_refused() -> None:
    """An effect has one fate."""
    with pytest.raises(InputError, match="exceed 1"):
        FaultOptions(conflict_ratio=0.5, failure_ratio=0.4, delay_ratio=0.2)
    with pytest.raises(InputError, match="gpu_app_ratio, gpu_reset_ratio and gpu_hang_ratio together exceed 1"):
        FaultOptions(gpu_app_ratio=0.6, gpu_reset_ratio=0.5)
