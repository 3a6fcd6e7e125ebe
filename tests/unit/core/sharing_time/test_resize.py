from __future__ import annotations

from functools import partial
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopilot.core.model.snapshot import State, Topology
from simulator.baselines import BASELINES
from simulator.checkers import CHECKERS, CheckerSet, World
from simulator.outcome.results import policy_result
from simulator.running.simulation import Simulation
from simulator.world.cluster import Cluster
from simulator.world.facts import Evicting, Started, Stopped, Why
from simulator.world.gains import END, READY
from simulator.world.hardware import BROKEN, FREE, Refusal
from simulator.world.physics import CHARGED, IDEAL, REAL, Physics, up_to_grid
from simulator.world.work import Jobs, Shape
from tests.kits.cluster_kit import cluster_of, gang, inventory, one_job, pool, pools


class Notes:
    """Keeps facts in their order, and asked-for events."""

    def __init__(self, cluster: Cluster) -> None:
        self.facts: list[Started | Stopped | Evicting] = []
        self.on_started = self.on_stopped = self.on_evicting = self.facts.append
        self.events: list[tuple[float, int, int, int]] = []
        cluster.observe(self)
        cluster.schedule = lambda *event: self.events.append(event)

    def stopped(self) -> list[Stopped]:
        return [fact for fact in self.facts if isinstance(fact, Stopped)]


def elastic(physics: Physics = IDEAL, duration_s: float = 100.0, nodes: int = 3) -> tuple[Cluster, Notes]:
    """A gang of two members of eight that may run with one, on the first node."""
    cluster = cluster_of(one_job(gang(16, 8, min_gpus=8), duration_s), inventory(nodes, 8), physics)
    notes = Notes(cluster)
    assert cluster.start(0, range(8), 0.0) is None
    return cluster, notes


# --- growing and shrinking --------------------------------------------------------------------------


def test_a_gang_grows_and_keeps_what_it_has_done() -> None:
    """Half the width for 50 s is 25 s of progress; the other 75 s go at full width, in a new incarnation."""
    cluster, notes = elastic()
    assert cluster.resize(0, range(16), 50.0, effect="tick/grow", incarnation=0) is None
    stop, start = notes.facts[1:]
    assert isinstance(stop, Stopped)
    assert isinstance(start, Started)
    assert (stop.at_s, stop.why, stop.gain_s, stop.lost_s, stop.milli, stop.incarnation) == (
        50.0,
        Why.RESIZE,
        25.0,
        0.0,
        8000,
        0,
    )
    assert (start.at_s, start.gpus, start.milli, start.incarnation, start.effect) == (
        50.0,
        tuple(range(16)),
        16_000,
        1,
        "tick/grow",
    )
    assert (cluster.served_s[0], cluster.evictions[0], cluster.state[0]) == (25.0, 0, State.RUNNING)
    assert (cluster.pending, list(cluster.holding), cluster.hardware.free) == ({}, [0], [0, 0, 8])
    assert (cluster.first_start_s[0], cluster.start_s[0], cluster.nodes_used[0]) == (0.0, 50.0, 2)
    assert notes.events == [(200.0, END, 0, 0), (125.0, END, 0, 1)]
    assert cluster.finish(0, 125.0, 1) is None
    assert cluster.hardware.free == [8, 8, 8]


def test_a_gang_shrinks_and_runs_longer() -> None:
    """What it gives up is free at once, and the rest of its work takes twice the time; an old end means nothing."""
    cluster, notes = elastic()
    cluster.resize(0, [*range(8), *range(16, 24)], 20.0)
    assert cluster.resize(0, range(16, 24), 60.0) is None
    assert cluster.hardware.free == [8, 8, 0]
    assert [cluster.hardware.holder[gpu] for gpu in (0, 16)] == [FREE, 0]
    assert cluster.progress_s(0, 80.0) == 10.0 + 40.0 + 10.0
    assert notes.events[-1] == (160.0, END, 0, 2)
    assert cluster.finish(0, 110.0, 1) is Refusal.OTHER_INCARNATION
    assert cluster.finish(0, 160.0, 2) is None
    assert [fact.gain_s for fact in notes.stopped()] == [10.0, 40.0, 50.0]


@pytest.mark.parametrize(("physics", "still_s"), [(IDEAL, 0.0), (CHARGED, CHARGED.resize_s), (REAL, REAL.resize_s)])
def test_a_resize_costs_its_time_and_no_progress(physics: Physics, still_s: float) -> None:
    """It stands still for the time that the physics state; nothing is lost under any of them."""
    cluster, notes = elastic(physics, 10_000.0)
    cluster.ready(0, 0)
    begun_s = cluster.ready_s[0]
    cluster.resize(0, range(16), begun_s + 600.0)
    assert (cluster.served_s[0], notes.stopped()[-1].lost_s) == (300.0, 0.0)
    assert cluster.ready_s[0] == begun_s + 600.0 + still_s
    assert notes.events[-1] == (begun_s + 600.0 + still_s + 9700.0, END, 0, 1)
    if still_s:
        assert cluster.state[0] == State.STARTING
        assert notes.events[-2] == (begun_s + 600.0 + still_s, READY, 0, 1)
        assert cluster.progress_s(0, begun_s + 600.0 + still_s) == 300.0
        assert cluster.ready(0, 1)


def test_a_resize_does_not_shorten_the_start_up() -> None:
    """Work that is still starting starts for as long as it would have, and then meets anew."""
    cluster, _ = elastic(REAL, 10_000.0)
    ready_s = cluster.ready_s[0]
    cluster.resize(0, range(16), 5.0)
    assert cluster.ready_s[0] == ready_s + REAL.resize_s
    assert (cluster.served_s[0], cluster.state[0]) == (0.0, State.STARTING)
    assert not cluster.ready(0, 0)


def test_what_a_resize_saved_is_not_lost_again() -> None:
    """A later stop without a checkpoint loses what came after the resize, at most."""
    cluster, notes = elastic(REAL, 10_000.0)
    cluster.ready(0, 0)
    at_s = cluster.ready_s[0] + 1000.0
    cluster.resize(0, range(16), at_s)
    cluster.ready(0, 1)
    cluster.fail(0, at_s + REAL.resize_s + 200.0)
    assert notes.stopped()[-1].lost_s == 200.0
    assert cluster.served_s[0] == 500.0


# --- what is refused --------------------------------------------------------------------------------


def crowded() -> Cluster:
    """Job 0 holds nodes 0 and 1 and may have three members; node 2 is partly taken, 3 partly broken, 4 cordoned."""
    jobs = Jobs()
    jobs.add("elastic", "t", gang(24, 8, min_gpus=8), 0.0, 1000.0)
    jobs.add("other", "t", gang(1), 0.0, 1000.0)
    jobs.add("rigid", "t", gang(2), 0.0, 1000.0)
    cluster = cluster_of(jobs, inventory(6, 8))
    cluster.start(0, range(16), 0.0)
    cluster.start(1, [16], 0.0)
    cluster.start(2, [40, 41], 0.0)
    cluster.fail_gpu(31, 0.0)
    cluster.cordon(4, 0.0)
    return cluster


@pytest.mark.parametrize(
    ("gpus", "refusal"),
    [
        (range(16), Refusal.NOT_NESTED),
        ([*range(8), *range(24, 31)], Refusal.NOT_NESTED),
        (range(4), Refusal.WRONG_COUNT),
        ([], Refusal.WRONG_COUNT),
        (range(12), Refusal.WRONG_COUNT),
        (range(25), Refusal.WRONG_COUNT),
        ([*range(16), 17, 18, 19, 20, 42, 43, 44, 45], Refusal.SPLIT_MEMBER),
        ([*range(4), *range(8, 12)], Refusal.SPLIT_MEMBER),
        (range(24), Refusal.GPU_BUSY),
        ([*range(16), *range(24, 32)], Refusal.GPU_BROKEN),
        ([*range(16), *range(32, 40)], Refusal.NODE_UNFIT),
        ([*range(16), *range(46, 54)], Refusal.UNKNOWN_GPU),
        ([*range(8), 0], Refusal.GPU_TWICE),
    ],
)
def test_a_resize_that_cannot_be_is_refused_and_changes_nothing(gpus: Any, refusal: Refusal) -> None:
    """All or none: after a refusal everything is as it was, and nothing was stated."""
    cluster = crowded()
    notes, hardware = Notes(cluster), cluster.hardware
    before = (hardware.holder.copy(), hardware.free.copy(), hardware.by_free.copy(), cluster.held[0])
    assert cluster.resize(0, list(gpus), 10.0) is refusal
    assert before == (hardware.holder, hardware.free, hardware.by_free, cluster.held[0])
    assert (cluster.incarnation[0], notes.facts, notes.events) == (0, [], [])


def test_only_running_work_of_the_named_incarnation_is_resized() -> None:
    """Pending, leaving and restarted work, rigid gangs, shares and gangs with a dead member are refused."""
    jobs = Jobs()
    jobs.add("elastic", "t", gang(16, 8, min_gpus=8), 0.0, 90_000.0)
    jobs.add("share", "t", Shape(1, 1, 1, milli=500), 0.0, 1000.0)
    jobs.add("rigid", "t", gang(2, 1), 0.0, 1000.0)
    cluster = cluster_of(jobs, inventory(4, 8), REAL)
    assert cluster.resize(0, range(16), 0.0) is Refusal.NOT_HOLDING
    cluster.start(0, range(16), 0.0)
    cluster.start(1, [16], 0.0)
    cluster.start(2, [24, 25], 0.0)
    assert cluster.resize(0, range(8), 1.0, incarnation=1) is Refusal.OTHER_INCARNATION
    assert cluster.resize(1, [16, 17], 1.0) is Refusal.NOT_ELASTIC
    assert cluster.resize(2, [24], 1.0) is Refusal.WRONG_COUNT
    cluster.ready(0, 0)
    assert cluster.resize(0, range(8), 4000.0, incarnation=0) is None
    assert cluster.resize(0, range(16), 5000.0, incarnation=0) is Refusal.OTHER_INCARNATION
    cluster.lose_member(2, 5000.0, 600.0)
    assert cluster.resize(2, [24], 5001.0) is Refusal.STALE
    cluster.evict(0, 5000.0)
    assert cluster.resize(0, range(16), 5001.0) is Refusal.LEAVING


def test_what_it_keeps_may_be_unfit_for_new_work() -> None:
    """A gang shrinks off a cordoned node, or on it; a broken GPU that it gives up is not free."""
    cluster = crowded()
    cluster.cordon(0, 1.0)
    cluster.hardware.set_gpu(9, healthy=False)
    assert cluster.resize(0, range(8), 2.0) is None
    assert (cluster.hardware.free[1], cluster.hardware.holder[9]) == (7, BROKEN)
    assert cluster.resize(0, range(16), 3.0) is Refusal.GPU_BROKEN
    assert cluster.resize(0, [*range(8), *range(42, 46), *range(20, 24)], 3.0) is Refusal.SPLIT_MEMBER


def test_the_last_member_may_be_smaller() -> None:
    """A gang of 8 + 2 goes on with its eight, and takes the two back."""
    cluster = cluster_of(one_job(gang(10, 8, min_gpus=8)), inventory(2, 8))
    cluster.start(0, [*range(8), 8, 9], 0.0)
    assert cluster.resize(0, [*range(6), 8, 9], 1.0) is Refusal.SPLIT_MEMBER
    assert cluster.resize(0, range(8), 1.0) is None
    assert cluster.resize(0, [*range(8), 14, 15], 2.0) is None


def test_members_find_the_host_and_the_place_that_they_need() -> None:
    """CPUs, memory, model, spread and topology are asked of the whole new set; what leaves gives its CPUs back."""
    hardware = pools(
        pool("a", nodes=3, gpus=4, cpus=16, memory_mib=1000, nodes_per_leaf=2, leaves_per_block=2),
        pool("b", nodes=1, gpus=4, model="T4"),
    )
    cases = [
        (gang(4, 2, min_gpus=2, cpu_milli=9000), [0, 1, 2, 3], Refusal.CPU),
        (gang(4, 2, min_gpus=2, memory_mib=600), [0, 1, 2, 3], Refusal.MEMORY),
        (gang(4, 2, min_gpus=2, models=1), [0, 1, 12, 13], Refusal.WRONG_MODEL),
        (gang(4, 2, min_gpus=2, spread=True), [0, 1, 2, 3], Refusal.TOPOLOGY),
        (gang(4, 2, min_gpus=2, topology=int(Topology.LEAF)), [0, 1, 8, 9], Refusal.TOPOLOGY),
        (gang(4, 2, min_gpus=2, cpu_milli=9000), [0, 1, 4, 5], None),
    ]
    for shape, gpus, refusal in cases:
        cluster = cluster_of(one_job(shape), hardware)
        before = cluster.hardware.cpu_free.copy()
        cluster.start(0, [0, 1], 0.0)
        narrow = cluster.hardware.cpu_free.copy()
        assert cluster.resize(0, gpus, 1.0) is refusal, shape
        if refusal is None:
            assert cluster.hardware.cpu_free == [7000, 7000, 16_000, -1]
            cluster.resize(0, [0, 1], 2.0)
        assert cluster.hardware.cpu_free == narrow
        cluster.evict(0, 3.0)
        assert cluster.hardware.cpu_free == before


# --- a whole run ------------------------------------------------------------------------------------


def test_resizes_are_counted_as_nothing_else_and_no_second_is_lost() -> None:
    """A gang that changes its width six times does exactly its work, and every checker agrees."""
    jobs = one_job(gang(16, 8, min_gpus=8), 5000.0)
    checkers = [name for name in CHECKERS if name not in {"effects", "modes"}]  # nobody decides here
    simulation = Simulation(inventory(2, 8), jobs, lambda _cluster: BASELINES["fifo"](), REAL, checkers=checkers)

    def change(width: int, now_s: float) -> None:
        assert simulation.cluster.resize(0, range(width), now_s) is None

    for number, width in enumerate((8, 16, 8, 16, 8, 16)):
        simulation.engine.at(700.0 * (number + 1), partial(change, width))
    simulated = simulation.run()
    assert simulated.found.violations == ()
    entry = policy_result(simulated)
    assert entry["disruptions"]["resizes"] == 6
    assert entry["disruptions"]["preemptions"] == entry["disruptions"]["migrations"] == 0
    assert (entry["gpu_s"]["useful"], entry["gpu_s"]["lost"]) == (5000.0 * 16, 0.0)
    assert simulated.accounts.faults == simulated.accounts.reversals == simulated.cluster.evictions[0] == 0
    still_gpu_s = 3 * REAL.resize_s * (8 + 16)
    startup_gpu_s = 16 * up_to_grid(REAL.image_pull_s + REAL.container_start_s + REAL.load_s)
    assert entry["gpu_s"]["overhead"] == pytest.approx(still_gpu_s + startup_gpu_s, abs=1.0)


def test_a_resize_needs_a_decision_of_its_own() -> None:
    """An admission does not cover it, nor does a resize cover an admission."""
    for kind, found in (("resize", 0), ("admit", 1)):
        cluster, _ = elastic()
        checkers = CheckerSet(World(cluster.inventory, cluster.jobs), ("effects",))
        cluster.observe(checkers.checkers[0])
        cluster.decided("grow", kind, 0, 1.0)
        cluster.resize(0, range(16), 1.0, effect="grow")
        assert len(checkers.checkers[0].violations) == found
    jobs = one_job(gang(1))
    cluster = cluster_of(jobs)
    checkers = CheckerSet(World(cluster.inventory, jobs), ("effects",))
    cluster.observe(checkers.checkers[0])
    cluster.decided("start", "resize", 0, 1.0)
    cluster.start(0, [0], 1.0, effect="start")
    assert len(checkers.checkers[0].violations) == 1


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 31), st.integers(0, 5)), max_size=60))
def test_books_agree_whatever_is_resized(steps: list[tuple[int, int, int]]) -> None:
    """After any sequence of calls masks, counts and holders say the same, and progress stays within the work."""
    jobs = Jobs()
    for number, (gpus, least) in enumerate(((16, 8), (8, 4), (8, 2), (6, 2), (2, 1), (12, 4))):
        jobs.add(f"j{number}", "t", gang(gpus, least, min_gpus=least), 0.0, 50.0)
    cluster = cluster_of(jobs, inventory(4, 8), REAL)
    hardware = cluster.hardware
    for now, (what, where, job) in enumerate(steps):
        width = jobs.shape_of(job).per_member
        held = cluster.held[job]
        if what <= 2:
            cluster.start(job, range(where, min(32, where + width * (1 + what))), now)
            cluster.ready(job, cluster.incarnation[job])
        elif what <= 4 and held is not None:
            cluster.resize(job, [*held.gpus, *range(where, min(32, where + width))], now)
        elif what <= 6 and held is not None:
            cluster.resize(job, held.gpus[:-width], now)
            cluster.ready(job, cluster.incarnation[job])
        elif what == 7:
            cluster.evict(job, now)
        elif what == 8:
            cluster.fail_gpu(where, now)
        else:
            cluster.restore_gpu(where, now)
        ledger = {gpu: row for row, each in enumerate(cluster.held) if each for gpu in each.gpus}
        for gpu, holder in enumerate(hardware.holder):
            assert holder == ledger.get(gpu, FREE if hardware.healthy[gpu] else BROKEN)
        free = [sum(hardware.holder[gpu] == FREE for gpu in range(8 * n, 8 * n + 8)) for n in range(4)]
        assert free == hardware.free == [mask.bit_count() for mask in hardware.free_mask]
        for count, nodes in enumerate(hardware.by_free):
            assert nodes == sum(1 << n for n in range(4) if free[n] == count)
        assert all(0 <= served <= 50 for served in cluster.served_s)
        for row, each in enumerate(cluster.held):
            shape = jobs.shape_of(row)
            assert each is None or shape.min_gpus <= len(each.gpus) <= shape.gpus


def test_a_resized_gang_ends_although_it_was_never_at_full_width() -> None:
    """Odd widths round to the grid and still add up to the whole work."""
    jobs = one_job(gang(24, 8, min_gpus=8), 1000.0)
    simulation = Simulation(inventory(3, 8), jobs, lambda _cluster: BASELINES["fifo"]())

    def change(nodes: int, now_s: float) -> None:
        assert simulation.cluster.resize(0, range(8 * nodes), now_s) is None

    for number, nodes in enumerate((2, 1, 2, 1, 2, 1)):
        simulation.engine.at(97.3 * (number + 1), partial(change, nodes))
    simulated = simulation.run()
    assert simulated.run.complete
    assert simulated.found.violations == ()
    assert simulated.accounts.resizes == 6
    assert simulated.totals.all.useful == 1000 * 24 * 1000 * 1024
    assert simulated.cluster.end_s[0] < inf
