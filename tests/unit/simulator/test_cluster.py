from __future__ import annotations

from math import inf, isnan, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopilot.core.hardware.mig import Placement
from autopilot.core.model.snapshot import SloClass, State, Topology
from simulator.specs.clusterfile import MigSpec
from simulator.world.cluster import Cluster
from simulator.world.facts import Started, Stopped, Why
from simulator.world.gains import END, READY, VACATE
from simulator.world.hardware import BROKEN, FREE, Refusal
from simulator.world.jobstate import UNSUBMITTED
from simulator.world.physics import CHARGED, IDEAL, REAL, TICKS_PER_S, on_grid, up_to_grid
from simulator.world.work import Jobs, Shape
from tests.kits.cluster_kit import cluster_of, gang, inventory, make_jobs, one_job, pool, pools


class Notes:
    """Keeps facts and asked-for events."""

    def __init__(self, cluster: Cluster) -> None:
        self.started: list[Started] = []
        self.stopped: list[Stopped] = []
        self.events: list[tuple[float, int, int, int]] = []
        cluster.observe(self)
        cluster.schedule = lambda *event: self.events.append(event)

    def on_started(self, fact: Started) -> None:
        self.started.append(fact)

    def on_stopped(self, fact: Stopped) -> None:
        self.stopped.append(fact)


# --- taking and giving ----------------------------------------------------------------------------


def test_a_job_takes_its_gpus_and_gives_them_back() -> None:
    """Start and finish change ownership, counts and state, and are stated as facts."""
    cluster = cluster_of(make_jobs([(0, 100, 3)]))
    notes = Notes(cluster)
    assert cluster.start(0, [1, 2, 3], 5.0) is None
    assert (cluster.state[0], cluster.hardware.free) == (State.RUNNING, [5, 8])
    assert [cluster.hardware.holder[gpu] for gpu in range(4)] == [FREE, 0, 0, 0]
    assert notes.events == [(105.0, END, 0, 0)]
    assert cluster.finish(0, 105.0) is None
    assert (cluster.state[0], cluster.end_s[0], cluster.hardware.free) == (State.SUCCEEDED, 105.0, [8, 8])
    assert (notes.started[0].gpus, notes.stopped[0].gain_s, notes.stopped[0].why) == (
        (1, 2, 3),
        100.0,
        Why.END,
    )


@pytest.mark.parametrize(
    ("gpus", "refusal"),
    [
        ([0, 0, 1], Refusal.GPU_TWICE),
        ([0, 1], Refusal.WRONG_COUNT),
        ([0, 1, 2, 3], Refusal.WRONG_COUNT),
        ([6, 7, 8], Refusal.SPLIT_MEMBER),
        ([0, 1, 99], Refusal.UNKNOWN_GPU),
        ([0, 1, -1], Refusal.UNKNOWN_GPU),
        ([0, 1, 15], Refusal.GPU_BUSY),
        ([0, 1, 14], Refusal.GPU_BROKEN),
    ],
)
def test_a_start_that_cannot_be_is_refused_and_changes_nothing(gpus: list[int], refusal: Refusal) -> None:
    """All or none: after a refusal everything is as it was."""
    cluster = cluster_of(make_jobs([(0, 100, 3), (0, 100, 1)]))
    assert cluster.start(1, [15], 0.0) is None
    cluster.fail_gpu(14, 0.0)
    before = (cluster.hardware.holder.copy(), cluster.hardware.free.copy(), cluster.hardware.by_free.copy())
    assert cluster.start(0, gpus, 0.0) is refusal
    assert before == (cluster.hardware.holder, cluster.hardware.free, cluster.hardware.by_free)
    assert cluster.state[0] == State.PENDING


def test_only_pending_work_of_the_named_incarnation_starts() -> None:
    """Unsubmitted, running and restarted work is refused with the reason."""
    cluster = Cluster(inventory(), make_jobs([(0, 100, 1)]))
    assert (cluster.state[0], cluster.start(0, [0], 0.0)) == (UNSUBMITTED, Refusal.NOT_PENDING)
    cluster.submit(0, 0.0)
    assert cluster.start(0, [0], 0.0, incarnation=1) is Refusal.OTHER_INCARNATION
    assert cluster.start(0, [0], 0.0, incarnation=0) is None
    assert cluster.start(0, [1], 0.0) is Refusal.NOT_PENDING
    assert cluster.evict(0, 10.0, incarnation=7) is Refusal.OTHER_INCARNATION
    assert cluster.evict(0, 10.0) is None
    assert cluster.evict(0, 10.0) is Refusal.NOT_HOLDING
    assert cluster.finish(0, 10.0) is Refusal.NOT_HOLDING
    assert (cluster.incarnation[0], cluster.evictions[0]) == (1, 1)


def test_a_gang_over_nodes_keeps_its_members_whole() -> None:
    """Two members of eight may not be spread as 4 + 8 + 4; a smaller last member may lie anywhere."""
    cluster = cluster_of(make_jobs([(0, 10, 16), (0, 10, 10)]), inventory(4, 8))
    assert cluster.start(0, [*range(4), *range(8, 16), *range(16, 20)], 0.0) is Refusal.SPLIT_MEMBER
    assert cluster.start(0, [*range(8), *range(16, 24)], 0.0) is None
    assert cluster.nodes_used[0] == 2
    assert cluster.start(1, [*range(8, 13), *range(24, 29)], 0.0) is Refusal.SPLIT_MEMBER
    assert cluster.start(1, [*range(8, 16), 30, 31], 0.0) is None


def test_an_elastic_gang_starts_narrow_and_runs_longer() -> None:
    """Half the members take twice the time; its work is counted at full width."""
    jobs = one_job(gang(16, 8, min_gpus=8), duration_s=100.0)
    cluster = cluster_of(jobs)
    notes = Notes(cluster)
    assert cluster.start(0, range(4), 0.0) is Refusal.WRONG_COUNT
    assert cluster.start(0, range(8), 0.0) is None
    assert notes.events == [(200.0, END, 0, 0)]
    assert cluster.progress_s(0, 50.0) == 25.0
    cluster.finish(0, 200.0)
    assert (notes.stopped[0].gain_s, notes.stopped[0].milli, notes.stopped[0].full_milli) == (
        100.0,
        8000,
        16000,
    )


def test_shares_fill_a_gpu_up_to_its_whole() -> None:
    """Several jobs share a GPU; it is neither given whole nor over-filled, and free again after the last."""
    jobs = Jobs()
    for number, milli in enumerate((600, 400, 300)):
        jobs.add(f"s{number}", "t", Shape(1, 1, 1, milli=milli), 0.0, 100.0)
    jobs.add("whole", "t", gang(1), 0.0, 100.0)
    cluster = cluster_of(jobs)
    assert cluster.start(0, [0], 0.0) is None
    assert cluster.start(2, [0], 0.0) is None
    assert cluster.start(1, [0], 0.0) is Refusal.GPU_BUSY
    assert cluster.start(3, [0], 0.0) is Refusal.GPU_BUSY
    assert (cluster.hardware.free_milli(0), cluster.hardware.holders(0)) == (100, [0, 2])
    cluster.evict(0, 10.0)
    cluster.evict(2, 10.0)
    assert (cluster.hardware.free[0], cluster.hardware.holder[0]) == (8, FREE)


def _mig_pool() -> Any:
    cut = MigSpec(1, (Placement("3g.40gb", 0), Placement("3g.40gb", 4)))
    return pools(pool(nodes=1, gpus=2, mig=(cut,)))


def test_mig_work_takes_instances_of_its_profile_only() -> None:
    """An instance is held once, has the right profile, and a cut GPU is never allocated whole."""
    jobs = Jobs()
    shapes = (
        Shape(1, 1, 1, profile="3g.40gb"),
        Shape(2, 1, 2, profile="3g.40gb"),
        Shape(1, 1, 1, profile="1g.10gb"),
        gang(1),
    )
    for number, shape in enumerate(shapes):
        jobs.add(f"m{number}", "t", shape, 0.0, 100.0)
    cluster = cluster_of(jobs, _mig_pool())
    assert cluster.start(3, [0], 0.0) is Refusal.GPU_CUT
    assert cluster.start(2, [0], 0.0, instances=[0]) is Refusal.WRONG_PROFILE
    assert cluster.start(0, [0], 0.0) is Refusal.WRONG_COUNT
    assert cluster.start(0, [1], 0.0, instances=[0]) is Refusal.UNKNOWN_GPU
    assert cluster.start(1, [0, 0], 0.0, instances=[1, 1]) is Refusal.GPU_TWICE
    assert cluster.start(0, [0], 0.0, instances=[1]) is None
    assert cluster.start(1, [0, 0], 0.0, instances=[0, 1]) is Refusal.GPU_BUSY
    held = cluster.held[0]
    assert held is not None
    assert held.milli == 1000 * 3 // 7


def test_a_gpu_is_recut_only_legally_and_around_what_runs() -> None:
    """Instances in use stay with their rows; an illegal geometry is refused."""
    jobs = one_job(Shape(1, 1, 1, profile="3g.40gb"))
    cluster = cluster_of(jobs, _mig_pool())
    assert cluster.start(0, [0], 0.0, instances=[0]) is None
    assert cluster.recut(0, [("3g.40gb", 0), ("3g.40gb", 2)], 1.0) is Refusal.ILLEGAL_GEOMETRY
    assert cluster.recut(0, [("7g.80gb", 0)], 1.0) is Refusal.NOT_IDLE
    assert cluster.recut(0, [("3g.40gb", 0), ("2g.20gb", 4), ("1g.10gb", 6)], 1.0) is None
    assert cluster.hardware.instance_holder[0] == 0
    assert [cluster.hardware.instances[row].profile for row in cluster.hardware.cut[0]] == [
        "3g.40gb",
        "2g.20gb",
        "1g.10gb",
    ]
    cluster.evict(0, 2.0)
    assert cluster.recut(0, [], 3.0) is None
    assert (cluster.hardware.free, cluster.hardware.holder[0]) == ([2], FREE)
    assert cluster.recut(1, [("1g.10gb", 0)], 4.0) is None
    assert cluster.hardware.free == [1]


def test_stated_needs_are_held_against_the_node() -> None:
    """Model, GPU memory, CPUs, main memory, topology and spread are preconditions; what is not stated is none."""
    hardware = pools(
        pool("a", nodes=2, gpus=4, cpus=16, memory_mib=1000, nodes_per_leaf=1, leaves_per_block=2),
        pool("b", nodes=1, gpus=4, model="T4"),
    )
    memory = {"A100-80GB": 80 * 1024, "T4": 16 * 1024}
    cases = [
        (gang(2, models=1 << 1), [0, 1], Refusal.WRONG_MODEL),
        (gang(2, gpu_memory_mib=40 * 1024), [8, 9], Refusal.GPU_MEMORY),
        (gang(2, cpu_milli=17_000), [0, 1], Refusal.CPU),
        (gang(2, memory_mib=1001), [0, 1], Refusal.MEMORY),
        (gang(2, 1, topology=int(Topology.LEAF)), [0, 4], Refusal.TOPOLOGY),
        (gang(2, 1, spread=True), [0, 1], Refusal.TOPOLOGY),
        (gang(2, 1, spread=True), [0, 4], None),
        (gang(2, cpu_milli=17_000), [8, 9], None),
        (gang(2, 1, topology=int(Topology.BLOCK)), [0, 4], None),
        (gang(2, 2, cpu_milli=16_000), [0, 1], None),
    ]
    for shape, gpus, refusal in cases:
        cluster = cluster_of(one_job(shape), hardware, gpu_memory_mib=memory)
        assert cluster.start(0, gpus, 0.0) is refusal, shape
        if refusal is None:
            cluster.evict(0, 1.0)
            assert cluster.hardware.cpu_free == [16_000, 16_000, -1]


# --- time and loss ----------------------------------------------------------------------------------


def test_ideal_preemption_is_free() -> None:
    """Progress is kept to the second, and the rest takes what is left."""
    cluster = cluster_of(make_jobs([(0, 100, 1)]))
    notes = Notes(cluster)
    cluster.start(0, [0], 0.0)
    cluster.evict(0, 30.0)
    assert (cluster.served_s[0], cluster.state[0]) == (30.0, State.PENDING)
    cluster.start(0, [3], 50.0)
    assert notes.events[-1] == (120.0, END, 0, 1)


def test_charged_preemption_costs_a_minute_and_half_a_minute() -> None:
    """60 s of progress are lost and 30 s are added to the restart; never more than was done."""
    cluster = cluster_of(make_jobs([(0, 1000, 2)]), physics=CHARGED)
    notes = Notes(cluster)
    cluster.start(0, [0, 1], 0.0)
    cluster.evict(0, 40.0)
    assert (cluster.served_s[0], notes.stopped[-1].lost_s) == (0.0, 40.0)
    cluster.start(0, [0, 1], 100.0)
    assert cluster.state[0] == State.STARTING
    assert notes.events[-2:] == [(130.0, READY, 0, 1), (1130.0, END, 0, 1)]
    assert cluster.finish(0, 110.0) is Refusal.NOT_HOLDING
    assert cluster.ready(0, 1)
    cluster.evict(0, 330.0, moving=True)
    assert (cluster.served_s[0], notes.stopped[-1].why) == (140.0, Why.MOVE)
    cluster.start(0, [0, 1], 330.0)
    assert notes.events[-1] == (330.0 + 30 + 860, END, 0, 2)
    assert not cluster.ready(0, 1), "an event of an earlier incarnation does nothing"


def test_real_eviction_waits_for_the_checkpoint() -> None:
    """The job holds its GPUs while it writes, loses nothing, and pays the read at its restart."""
    jobs = one_job(gang(4), 10_000.0, checkpoint_gib=9.3, restart_s=nan)
    cluster = cluster_of(jobs, physics=REAL)
    notes = Notes(cluster)
    cluster.start(0, range(4), 0.0)
    ready_s = REAL.image_pull_s + REAL.container_start_s + REAL.load_s
    assert notes.events[0][:2] == (up_to_grid(ready_s), READY)
    cluster.ready(0, 0)
    cluster.evict(0, 1000.0)
    assert (cluster.state[0], cluster.evict(0, 1001.0)) == (State.CHECKPOINTING, Refusal.LEAVING)
    done_s, kind, _, number = notes.events[-1]
    assert (kind, done_s) == (VACATE, up_to_grid(1000 + 9.3 / REAL.checkpoint_gib_per_s))
    assert cluster.finish(0, 1000.0) is Refusal.NOT_HOLDING
    assert cluster.vacate(0, done_s, number)
    assert not cluster.vacate(0, done_s, number)
    assert cluster.served_s[0] == 1000.0 - up_to_grid(ready_s)
    assert (notes.stopped[-1].lost_s, notes.stopped[-1].halt_s) == (0.0, 1000.0)
    cluster.start(0, range(4), 2000.0)
    assert cluster.ready_s[0] == 2000 + up_to_grid(
        REAL.container_start_s + REAL.load_s + 9.3 / REAL.checkpoint_gib_per_s
    )


def test_checkpoints_share_the_bandwidth_of_the_store() -> None:
    """Writers queue; one whose turn cannot come within the grace leaves from its last periodic checkpoint."""
    jobs = make_jobs([(0, 50_000, 1)] * 12, checkpoint_gib=55.8)
    cluster = cluster_of(jobs, inventory(2, 8), REAL)
    notes = Notes(cluster)
    for job in range(12):
        cluster.start(job, [job], 0.0)
        cluster.ready(job, 0)
    now_s = max(cluster.ready_s[:12]) + 2500.0
    for job in range(12):
        cluster.evict(job, now_s)
    ends = [at_s - now_s for at_s, kind, _, _ in notes.events if kind == VACATE]
    assert [round(end) for end in ends] == [60] * 5 + [120] * 5
    assert [cluster.state[job] for job in (10, 11)] == [State.PENDING, State.PENDING]
    lost = [fact.lost_s for fact in notes.stopped]
    gain = [fact.gain_s for fact in notes.stopped]
    assert lost == [g % 1800 for g in gain]


def test_a_fault_costs_what_came_after_the_last_checkpoint() -> None:
    """Periodic checkpoints bound the loss; work that cannot resume loses everything."""
    jobs = Jobs()
    jobs.add("train", "t", gang(1), 0.0, 10_000.0, checkpoint_interval_s=600.0)
    jobs.add("notebook", "t", gang(1), 0.0, 10_000.0, slo_class=SloClass.INTERACTIVE)
    cluster = cluster_of(jobs, physics=REAL)
    cluster.start(0, [0], 0.0)
    cluster.start(1, [1], 0.0)
    cluster.ready(0, 0)
    cluster.ready(1, 0)
    at_s = cluster.ready_s[0] + 1500.0
    assert cluster.last_checkpoint_s(0, at_s) == cluster.ready_s[0] + 1200.0
    assert isnan(cluster.last_checkpoint_s(1, at_s))
    assert cluster.fail_node(0, at_s) == [0, 1]
    assert (cluster.served_s[0], cluster.served_s[1]) == (1200.0, 0.0)


def test_a_replica_runs_until_it_is_taken_away() -> None:
    """Work without an end gets no end event; retiring it is no eviction. It is added while the cluster runs."""
    jobs = make_jobs([(0, 10, 1)])
    cluster = cluster_of(jobs)
    notes = Notes(cluster)
    replica = jobs.add("svc-0", "s", gang(1), 5.0, inf, service=0)
    cluster.submit(replica, 5.0)
    cluster.start(replica, [4], 5.0)
    assert notes.events == []
    cluster.retire(replica, 65.0)
    assert (notes.stopped[0].why, notes.stopped[0].gain_s, cluster.evictions[replica]) == (
        Why.RETIRE,
        60.0,
        0,
    )
    assert cluster.hardware.free == [8, 8]


# --- the hardware -----------------------------------------------------------------------------------


def test_a_node_takes_its_gangs_down_whole() -> None:
    """One node lost: the whole gang is pending again, on all its nodes; the node receives nothing until it is back."""
    cluster = cluster_of(make_jobs([(0, 100, 16), (0, 100, 1)]), inventory(3, 8))
    cluster.start(0, range(16), 0.0)
    assert cluster.fail_node(1, 10.0) == [0]
    assert (cluster.state[0], cluster.hardware.free) == (State.PENDING, [8, 8, 8])
    assert cluster.start(1, [8], 10.0) is Refusal.NODE_UNFIT
    assert cluster.start(0, [*range(8), *range(16, 24)], 10.0) is None
    cluster.restore_node(1, 20.0)
    assert cluster.start(1, [8], 20.0) is None
    cluster.cordon(1, 30.0)
    assert (cluster.state[1], cluster.hardware.is_open(1)) == (State.RUNNING, False)


def test_a_broken_gpu_is_out_until_it_is_mended() -> None:
    """Its job is pending again, its GPU is neither free nor counted as such."""
    cluster = cluster_of(make_jobs([(0, 100, 2)]))
    cluster.start(0, [0, 1], 0.0)
    assert cluster.fail_gpu(1, 5.0) == [0]
    assert (cluster.hardware.free[0], cluster.hardware.holder[1]) == (7, BROKEN)
    assert cluster.start(0, [0, 1], 5.0) is Refusal.GPU_BROKEN
    cluster.restore_gpu(1, 9.0)
    assert cluster.start(0, [0, 1], 9.0) is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40), st.integers(0, 11)), max_size=60))
def test_books_agree_whatever_happens(steps: list[tuple[int, int, int]]) -> None:
    """After any sequence of calls the masks, counts, buckets and holders say the same."""
    widths = [1, 2, 3, 4, 8, 1, 2, 16, 5, 9, 1, 4]
    cluster = cluster_of(make_jobs([(0, 50, width) for width in widths]), inventory(3, 8), CHARGED)
    hardware = cluster.hardware
    for now, (what, where, job) in enumerate(steps):
        if what <= 3:
            cluster.start(job, range(where % 24, min(24, where % 24 + widths[job])), now)
            cluster.ready(job, cluster.incarnation[job])
        elif what <= 5:
            cluster.evict(job, now, moving=what == 4)
        elif what == 6:
            cluster.fail_node(where % 3, now)
        elif what == 7:
            cluster.restore_node(where % 3, now)
        elif what == 8:
            cluster.fail_gpu(where % 24, now)
        else:
            cluster.restore_gpu(where % 24, now)
        held = {gpu: row for row, each in enumerate(cluster.held) if each for gpu in each.gpus}
        for gpu, holder in enumerate(hardware.holder):
            assert holder == held.get(gpu, FREE if hardware.healthy[gpu] else BROKEN)
        free = [sum(hardware.holder[gpu] == FREE for gpu in range(8 * n, 8 * n + 8)) for n in range(3)]
        assert free == hardware.free == [mask.bit_count() for mask in hardware.free_mask]
        for count, nodes in enumerate(hardware.by_free):
            assert nodes == sum(1 << n for n in range(3) if hardware.is_open(n) and free[n] == count)
        assert set(cluster.holding) == {row for row, each in enumerate(cluster.held) if each}
        assert all(0 <= served <= 50 for served in cluster.served_s)


def test_the_time_grid_is_exact() -> None:
    """Grid times are exact floats, so that sums and differences lose nothing."""
    assert on_grid(0.1) * TICKS_PER_S == int(on_grid(0.1) * TICKS_PER_S)
    assert up_to_grid(0.1) >= 0.1 > up_to_grid(0.1) - 1 / TICKS_PER_S
    assert up_to_grid(inf) == inf
    assert IDEAL.restart_s(nan, 10.0, image_cached=False) == 0.0
