from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Any

import numpy as np
import pytest

from autopilot.core.hardware.mig import Placement
from autopilot.core.model.snapshot import Topology
from simulator.baselines import BASELINES, TEXTBOOK
from simulator.baselines.easy import Easy, limits_s
from simulator.baselines.las import level
from simulator.baselines.static import Static, largest_remainder
from simulator.checkers import PHYSICAL
from simulator.running.engine import Scheduler
from simulator.running.simulation import Simulated, Simulation
from simulator.specs.clusterfile import MigSpec
from simulator.world.physics import CHARGED, IDEAL, REAL, Physics
from simulator.world.placing import find_spot, never_fits
from simulator.world.work import Jobs, Shape
from tests.kits.cluster_kit import cluster_of, gang, inventory, make_jobs, one_job, pool, pools

ROWS = list[tuple[float, float, int]]


def run(rows: ROWS, scheduler: Scheduler, nodes: int = 2, physics: Physics = IDEAL) -> Simulated:
    """One run on nodes of 8 GPUs, checked."""
    simulated = Simulation(inventory(nodes, 8), make_jobs(rows), lambda _cluster: scheduler, physics).run()
    assert simulated.found.violations == ()
    return simulated


def starts(simulated: Simulated) -> list[float]:
    """First starts by job."""
    return simulated.cluster.first_start_s


# --- the textbook orders against the rules, written down a second time without any data structure -----------


def _place(free: list[int], gpus: int) -> dict[int, int] | None:
    taken: dict[int, int] = {}
    if gpus >= 8:
        whole = [node for node, count in enumerate(free) if count == 8][: gpus // 8]
        if len(whole) < gpus // 8:
            return None
        taken = dict.fromkeys(whole, 8)
        gpus %= 8
    if gpus:
        fitting = [(count, node) for node, count in enumerate(free) if count >= gpus and node not in taken]
        if not fitting:
            return None
        taken[min(fitting)[1]] = gpus
    return taken


def by_the_rules(rows: ROWS, nodes: int, key: Callable[[int], float], skip: bool) -> list[float]:
    """Starts by the rules of the textbook baselines, trying every job in every pass."""
    free, queue, ends = [8] * nodes, list[int](), list[tuple[float, int, dict[int, int]]]()
    started = [float("nan")] * len(rows)
    times = sorted({row[0] for row in rows})
    while times:
        now_s = heappop(times)
        while times and times[0] == now_s:
            heappop(times)
        while ends and ends[0][0] == now_s:
            for node, count in heappop(ends)[2].items():
                free[node] += count
        queue += [job for job, row in enumerate(rows) if row[0] == now_s]
        for job in sorted(queue, key=lambda each: (key(each), each)):
            taken = _place(free, rows[job][2])
            if taken is None and not skip:
                break
            if taken is not None:
                for node, count in taken.items():
                    free[node] -= count
                started[job] = now_s
                queue.remove(job)
                heappush(ends, (now_s + rows[job][1], job, taken))
                heappush(times, now_s + rows[job][1])
    return started


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", TEXTBOOK)
def test_a_textbook_order_follows_its_rules_to_the_second(name: str, seed: int) -> None:
    """On random work with ties, every start equals that of the rules applied naively."""
    rng = np.random.default_rng(seed)
    rows: ROWS = [
        (
            float(rng.integers(0, 300)),
            float(rng.integers(1, 90)),
            int(rng.choice([1, 1, 2, 3, 4, 8, 9, 12, 16])),
        )
        for _ in range(60)
    ]
    rows.sort(key=lambda row: row[0])
    keys: dict[str, Callable[[int], float]] = {
        "fifo": float,
        "sjf": lambda job: rows[job][1],
        "gpu-time": lambda job: rows[job][1] * rows[job][2],
    }
    expected = by_the_rules(rows, 3, keys[name.removesuffix("-skip")], name.endswith("-skip"))
    assert starts(run(rows, BASELINES[name](), nodes=3)) == expected


def test_strict_stops_where_skip_ahead_passes() -> None:
    """Behind a gang that waits, a small job waits under fifo and starts under fifo-skip."""
    rows: ROWS = [(0, 100, 12), (1, 10, 8), (2, 10, 2)]
    assert starts(run(rows, BASELINES["fifo"]())) == [0, 100, 100]
    assert starts(run(rows, BASELINES["fifo-skip"]())) == [0, 100, 2]


def test_the_table_refuses_nothing_it_lists() -> None:
    """Every baseline of the table finishes mixed work under every price, without a violation."""
    rows: ROWS = [(7.0 * k, 30.0 + 11 * k % 400, (1, 2, 4, 8, 16)[k % 5]) for k in range(60)]
    for name, make in BASELINES.items():
        for physics in (IDEAL, CHARGED):
            simulated = run(rows, make(), physics=physics)
            assert simulated.run.complete, (name, physics.name)


@pytest.mark.parametrize("name", sorted(BASELINES))
def test_waiting_work_that_is_taken_away_blocks_nobody(name: str) -> None:
    """A replica retired while it waits at the head is forgotten; the next one starts."""
    jobs = make_jobs([(0, 100, 8), (200, 10, 8)])
    simulation = Simulation(inventory(1, 8), jobs, lambda _cluster: BASELINES[name]())
    simulation.engine.at(
        1.0, lambda now_s: simulation.engine.submit(jobs.add("svc-0", "t", gang(8), now_s, inf, service=0), now_s)
    )
    simulation.engine.at(2.0, lambda now_s: simulation.cluster.retire(2, now_s))
    simulated = simulation.run()
    assert simulated.run.complete
    assert simulated.cluster.end_s[1] == 210.0


# --- placement ----------------------------------------------------------------------------------------


def test_narrow_work_goes_to_the_fullest_node_that_fits() -> None:
    """Lowest index on ties, GPUs of lowest row, never over two nodes."""
    cluster = cluster_of(make_jobs([(0, 9, 3), (0, 9, 6), (0, 9, 2), (0, 9, 4), (0, 9, 8)]), inventory(3, 8))
    hardware, shapes = cluster.hardware, cluster.jobs.shape_of
    for job, gpus in ((0, [0, 1, 2]), (1, [8, 9, 10, 11, 12, 13]), (2, [14, 15]), (3, [3, 4, 5, 6])):
        spot = find_spot(hardware, shapes(job))
        assert spot is not None
        assert spot.gpus == gpus
        cluster.start(job, spot.gpus, 0.0)
    assert find_spot(hardware, shapes(4)) is not None
    assert find_spot(hardware, shapes(4), allowed=0b011) is None


def test_shares_and_slices_are_packed() -> None:
    """A share goes to the fullest shared GPU; MIG work to a free instance of its profile."""
    cut = MigSpec(1, (Placement("3g.40gb", 0), Placement("3g.40gb", 4)))
    jobs = Jobs()
    for number, shape in enumerate(
        [
            Shape(1, 1, 1, milli=700),
            Shape(1, 1, 1, milli=500),
            Shape(1, 1, 1, milli=300),
            Shape(2, 1, 2, profile="3g.40gb"),
        ]
    ):
        jobs.add(f"j{number}", "t", shape, 0.0, 10.0)
    cluster = cluster_of(jobs, pools(pool(nodes=1, gpus=3, mig=(cut,))))
    chosen = []
    for job in range(4):
        spot = find_spot(cluster.hardware, jobs.shape_of(job))
        assert spot is not None
        assert cluster.start(job, spot.gpus, 0.0, instances=spot.instances) is None
        chosen.append((spot.gpus, spot.instances))
    assert chosen == [([1], ()), ([2], ()), ([1], ()), ([0, 0], (0, 1))]


def test_constraints_choose_the_domain() -> None:
    """A gang that must share a leaf takes one that holds it; spread members take different nodes."""
    hardware = pools(pool(nodes=4, gpus=4, nodes_per_leaf=2, leaves_per_block=2, cpus=8))
    jobs = Jobs()
    for number, shape in enumerate(
        [gang(1), gang(8, 4, topology=int(Topology.LEAF)), gang(2, 1, spread=True), gang(2, cpu_milli=9000)]
    ):
        jobs.add(f"j{number}", "t", shape, 0.0, 10.0)
    cluster = cluster_of(jobs, hardware)
    cluster.start(0, [0], 0.0)
    leaf = find_spot(cluster.hardware, jobs.shape_of(1))
    spread = find_spot(cluster.hardware, jobs.shape_of(2))
    assert leaf is not None
    assert spread is not None
    assert leaf.gpus == list(range(8, 16))
    assert spread.gpus == [1, 4]
    assert find_spot(cluster.hardware, jobs.shape_of(3)) is None


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (gang(16, 8), ""),
        (gang(17, 8), "room for at most 2 of its 3 members"),
        (gang(24, 8, min_gpus=16), ""),
        (gang(2, models=1 << 5), "no GPU of a model"),
        (Shape(1, 1, 1, profile="3g.40gb"), ""),
        (Shape(5, 1, 5, profile="7g.80gb"), ""),
        (Shape(1, 1, 1, profile="4g.24gb"), "MIG profile 4g.24gb"),
        (Shape(99, 1, 99, profile="3g.40gb"), "32 instances"),
        (Shape(1, 1, 1, milli=500), ""),
    ],
)
def test_what_can_never_fit_is_known_beforehand(shape: Shape, words: str) -> None:
    """The reason names what is missing; what could fit an empty cluster has none."""
    reason = never_fits(cluster_of(one_job(shape)).hardware, shape)
    assert (reason == "") if not words else (words in reason)


def test_gpus_that_are_cut_hold_no_whole_work() -> None:
    """Two of four GPUs of each node are cut: two whole ones a node are all that there ever is, and no share is cut
    from them.
    """
    cut = MigSpec(2, (Placement("3g.40gb", 0), Placement("3g.40gb", 4)))
    hardware = cluster_of(one_job(gang(1)), pools(pool(nodes=2, gpus=4, mig=(cut,)))).hardware
    assert never_fits(hardware, gang(4, 2)) == ""
    assert "room for at most 2 of its 3 members" in never_fits(hardware, gang(6, 2))
    assert "room for at most 0 of its 1 member" in never_fits(hardware, gang(3, 3))
    whole = MigSpec(4, cut.placements)
    hardware = cluster_of(one_job(gang(1)), pools(pool(nodes=2, gpus=4, mig=(whole,)))).hardware
    assert "not partitioned for MIG" in never_fits(hardware, Shape(1, 1, 1, milli=500))


# --- easy -----------------------------------------------------------------------------------------------


def test_easy_fills_in_what_does_not_delay_the_head() -> None:
    """A job that ends before the reservation, or leaves the head its room, starts; one that would delay it does not."""
    rows: ROWS = [(0, 100, 10), (1, 50, 16), (2, 90, 4), (3, 99, 4), (4, 98, 2)]
    assert starts(run(rows, Easy(exact=True))) == [0, 100, 2, 150, 150]


def test_easy_lets_late_work_use_what_the_head_leaves() -> None:
    """The head will need one node; on the other a long job may start now."""
    rows: ROWS = [(0, 100, 8), (0, 300, 4), (1, 50, 8), (2, 500, 2)]
    assert starts(run(rows, Easy(exact=True))) == [0, 0, 100, 2]


class _Interrupting(Easy):
    """Evicts job 0 once, at 50 s."""

    def decide(self, now_s: float) -> None:
        """Stop it, and go on by the rules."""
        if now_s == 50.0 and self._cluster.incarnation[0] == 0:
            self._cluster.evict(0, now_s)
        super().decide(now_s)


def test_easy_counts_the_progress_of_work_that_was_stopped_before() -> None:
    """A job that was stopped half-way needs half of its limit: the head is promised room at 100 s, and gets it."""
    rows: ROWS = [(0, 100, 8), (50, 100, 16), (50, 80, 8)]
    assert starts(run(rows, _Interrupting(exact=True))) == [0, 100, 200]


def test_easy_uses_declared_limits_and_makes_usual_ones_where_none_is() -> None:
    """Limits are the same in every run, at or above the duration, and on the usual ladder."""
    jobs = make_jobs([(0, 3000, 1)] * 200)
    jobs.limit_s[7] = 4000.0
    limits = limits_s(cluster_of(jobs))
    assert limits == limits_s(cluster_of(jobs))
    assert limits[7] == 4000.0
    assert set(limits) == {4000.0, 3600.0, 14400.0, 43200.0}


def test_easy_gives_away_what_the_head_leaves_once() -> None:
    """The head of twenty will leave four GPUs: one long job of four may use them, the next one waits."""
    rows: ROWS = [(0, 100, 8), (0, 100, 8), (1, 50, 20), (2, 500, 4), (2, 500, 4)]
    assert starts(run(rows, Easy(exact=True), nodes=3)) == [0, 0, 100, 2, 150]


# --- las ------------------------------------------------------------------------------------------------


def test_las_lets_newcomers_in_and_takes_turns() -> None:
    """New work preempts what has run longest; the displaced job goes on later and nothing is lost."""
    rows: ROWS = [(0, 40_000, 16), (10_000, 100, 16)]
    simulated = run(rows, BASELINES["las"]())
    assert starts(simulated) == [0, 10_000]
    assert simulated.cluster.end_s == [40_100, 10_100]
    assert simulated.accounts.preemptions == 1


def test_las_moves_narrow_work_out_of_the_way_of_wide_work() -> None:
    """Enough GPUs are free in count but on no single node: one narrow job is moved, none is preempted."""
    rows: ROWS = [(0, 500, 6), (0, 500, 6), (0, 2000, 2), (0, 3000, 2), (600, 50, 8)]
    simulated = run(rows, BASELINES["las"]())
    assert starts(simulated)[4] == 600
    assert (simulated.accounts.migrations, simulated.accounts.preemptions) == (1, 0)


@pytest.mark.parametrize("sheltered", [{"preemptible": False}, {"slo_class": 0}], ids=str)
def test_las_spares_work_that_may_not_be_stopped(sheltered: dict[str, Any]) -> None:
    """Neither evicted for work that has had less, nor moved out of the way of wider work."""
    jobs = make_jobs([(0, 40_000, 4)], **sheltered)
    jobs.add("narrow", "t", gang(4), 0.0, 40_000.0)
    jobs.add("wide", "t", gang(16), 20_000.0, 100.0)
    jobs.add("node", "t", gang(8), 20_001.0, 100.0)
    simulated = Simulation(inventory(2, 8), jobs, lambda _cluster: BASELINES["las"]()).run()
    assert simulated.found.violations == ()
    assert simulated.cluster.evictions[0] == 0
    assert simulated.accounts.moves[0] == 0
    assert starts(simulated)[2] == 40_000
    assert starts(simulated)[3] == 20_001


def test_las_moves_no_work_that_may_not_be_stopped() -> None:
    """Six GPUs are free on each node; the wide gang waits until one of the two in its way has ended."""
    rows: ROWS = [(0, 500, 6), (0, 500, 6), (0, 2000, 2), (0, 3000, 2), (600, 50, 8)]
    jobs = make_jobs(rows, preemptible=False)
    simulated = Simulation(inventory(2, 8), jobs, lambda _cluster: BASELINES["las"]()).run()
    assert simulated.accounts.migrations == 0
    assert starts(simulated)[4] == 2000


def test_las_counts_the_gpu_time_that_was_given_whatever_became_of_it() -> None:
    """Two wide gangs whose start takes longer than a turn, and that never save: they end, for turns become longer."""
    jobs = Jobs()
    for name in "ab":
        jobs.add(name, "t", gang(16, 8), 0.0, 4000.0, checkpoint_interval_s=inf, restart_s=400.0)
    simulated = Simulation(inventory(2, 8), jobs, lambda _cluster: BASELINES["las"](), REAL, horizon_s=1e6).run()
    assert simulated.run.complete
    assert simulated.accounts.preemptions < 30


def test_las_levels_double() -> None:
    """Up to one GPU-hour is one level, each further level holds twice as much."""
    assert [level(3600.0 * hours) for hours in (0, 0.99, 1, 2.9, 3, 7, 1e6)] == [0, 0, 1, 1, 2, 3, 19]


# --- static ---------------------------------------------------------------------------------------------


def _two_tenants() -> Jobs:
    jobs = Jobs()
    for number in range(4):
        jobs.add(f"a{number}", "a", gang(8), 0.0, 100.0)
    jobs.add("b0", "b", gang(8), 0.0, 100.0)
    return jobs


@pytest.mark.parametrize(("guarantee", "nodes"), [(None, [3, 1]), ({"a": 1, "b": 1}, [2, 2]), ({"a": 4}, [3, 1])])
def test_static_gives_each_tenant_its_nodes(guarantee: dict[str, int] | None, nodes: list[int]) -> None:
    """By guarantee, else by GPU-seconds, at least the widest gang; what a tenant does not use stays idle."""
    policy = Static(guarantee)
    simulated = Simulation(inventory(4, 8), _two_tenants(), lambda _cluster: policy, checkers=PHYSICAL).run()
    assert policy.nodes == nodes
    assert simulated.found.violations == ()
    assert simulated.cluster.end_s[3] == (200.0 if nodes[0] < 4 else 100.0)
    assert simulated.cluster.end_s[4] == 100.0


def test_largest_remainder_adds_up() -> None:
    """Proportional, whole, complete, and no one below the least where that can be."""
    assert largest_remainder([5, 3, 2], 10, [1, 1, 1]) == [5, 3, 2]
    assert largest_remainder([98, 1, 1], 10, [1, 2, 1]) == [7, 2, 1]
    assert largest_remainder([1, 1, 1], 4, [1, 1, 1]) == [2, 1, 1]
    assert sum(largest_remainder([3, 1], 1, [2, 2])) == 1
