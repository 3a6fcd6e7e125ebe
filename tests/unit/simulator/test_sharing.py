"""Work on GPUs shared by software: rates, progress, faults, telemetry, and nodes that turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from autopilot.app.runs.recorder import StayRecorder
from autopilot.core.model.objects import Sharing, SharingConfig, Subject, SubjectKind
from autopilot.core.model.records import Instruction, OutcomeKind
from autopilot.core.model.snapshot import NodeTable, QueueTable, State, make
from autopilot.core.sharing.set_sharing import SetSharing
from simulator.checkers import PHYSICAL, CheckerSet
from simulator.checkers import World as Judged
from simulator.running.accounting import Accounts
from simulator.running.cluster_actuator import ClusterActuator
from simulator.running.cluster_collector import ClusterCollector
from simulator.running.engine import Engine
from simulator.signals.occupants import Occupants
from simulator.specs.clusterfile import UNSHARED
from simulator.world.cluster import Cluster
from simulator.world.facts import Evicting
from simulator.world.hardware import Refusal
from simulator.world.interference.rates import Sharer, active_parts, rates_of, slice_rate
from simulator.world.physics import IDEAL, REAL, Physics
from simulator.world.work import Jobs
from tests.kits.cluster_kit import gang, make_jobs, pool, pools

SLICED, MPS = (SharingConfig(f"{kind.name}-2", kind, 2) for kind in (Sharing.TIME_SLICING, Sharing.MPS))
HEAVY, MIDDLE, LIGHT = (0.75, 1.0), (0.4, 0.55), (0.03, 0.1)


class Loads:
    """Work of these (SM activity, busy ratio, MiB), by row."""

    slow: Mapping[int, float] = MappingProxyType({})

    def __init__(self, rows: Sequence[tuple[float, float, float]]) -> None:
        self.rows = rows

    def sharer(self, job: int) -> Sharer:
        return Sharer(f"program-{job}", *self.rows[job][:2])

    def footprint_mib(self, job: int, _gpu_model: str) -> float:
        return self.rows[job][2]

    def memory_mib(self, _gpu_model: str) -> float:
        return 80_000.0


class Idle:
    """A scheduler that does nothing: the test acts."""

    name = "idle"

    def attach(self, cluster: Cluster) -> None:
        """Nothing."""

    on_submit = on_end = on_requeue = on_change = lambda *_: None

    def decide(self, _now_s: float) -> None:
        """Nothing."""


class Shared:
    """One node of two GPUs, shared, with checkers, accounts and stays."""

    def __init__(
        self,
        jobs: Jobs,
        loads: Sequence[tuple[float, float, float]],
        config: SharingConfig | None = SLICED,
        physics: Physics = IDEAL,
    ) -> None:
        self.inventory = pools(pool(sharing=config, sharing_offers=(UNSHARED, SLICED, MPS)))
        self.cluster, self.jobs = Cluster(self.inventory, jobs, physics), jobs
        self.cluster.sharings.loads = Loads(loads)
        self.checkers = CheckerSet(Judged(self.inventory, jobs, physics=physics), PHYSICAL)
        self.accounts, self.stays = Accounts(self.cluster, 0.0), StayRecorder(self.cluster)
        for observer in (self.accounts, *self.checkers.checkers):
            self.cluster.observe(observer)
        self.engine = Engine(self.cluster, Idle())

    def at(self, at_s: float, act: Callable[[float], Any]) -> None:
        self.engine.at(at_s, act)

    def starts(self, *rows: tuple[float, int, list[int]]) -> None:
        for at_s, job, gpus in rows:
            self.at(at_s, partial(self._start, job, gpus))

    def _start(self, job: int, gpus: list[int], now_s: float) -> None:
        self.cluster.submit(job, now_s)
        assert self.cluster.start(job, gpus, now_s) is None

    def run(self) -> None:
        """To the end; nothing may be violated."""
        end_s = self.engine.run().end_s
        totals = self.accounts.totals(end_s)
        found = self.checkers.close(end_s, totals.capacity, totals.idle, totals.by_tenant)
        assert found.violations == ()


def pair(kind: Sharing, one: tuple[float, float], other: tuple[float, float], tries: int = 40) -> list[float]:
    """The sums of the rates of many pairs of programs that look like these."""
    return [
        sum(rates_of([Sharer(f"{at}/a", *one), Sharer(f"{at}/b", *other)], kind, 2, "H100-80GB")) for at in range(tries)
    ]


@pytest.mark.parametrize(
    ("kind", "one", "other", "low", "high"),
    [
        (Sharing.TIME_SLICING, HEAVY, HEAVY, 0.9, 1.1),  # nothing but turns
        (Sharing.TIME_SLICING, HEAVY, LIGHT, 1.7, 1.95),
        (Sharing.TIME_SLICING, MIDDLE, MIDDLE, 1.4, 1.75),
        (Sharing.MPS, HEAVY, HEAVY, 1.0, 1.4),  # each at most on half of the threads
        (Sharing.MPS, MIDDLE, MIDDLE, 1.2, 1.7),
        (Sharing.MPS, LIGHT, LIGHT, 1.85, 2.0),
    ],
)
def test_rates_lie_where_pairs_were_measured(
    kind: Sharing, one: tuple[float, float], other: tuple[float, float], low: float, high: float
) -> None:
    """Sums by mechanism and load; every pair of programs has its own, and keeps it."""
    sums = pair(kind, one, other)
    assert low <= fmean(sums) <= high
    assert max(sums) - min(sums) > 0.01
    assert sums == pair(kind, one, other)


def test_the_threads_of_an_mps_client_are_capped_and_priority_protects() -> None:
    """Alone on its half heavy work is slower; beside work below its priority it loses less."""
    heavy, other = Sharer("a", 0.9, 1.0), Sharer("b", 0.9, 1.0)
    assert rates_of([heavy], Sharing.MPS, 2, "H100-80GB") == [slice_rate(heavy, 0.5)]
    assert 0.4 < slice_rate(heavy, 0.25) < slice_rate(heavy, 0.5) < 0.9 or slice_rate(heavy, 0.25) < 0.4
    pairs = ([heavy, other], [heavy, replace(other, below=True)])
    plain, first = (rates_of(each, Sharing.MPS, 1, "A100-80GB") for each in pairs)
    assert first[0] > plain[0]
    assert first[1] < plain[1]
    assert rates_of([replace(each, below=True) for each in pairs[0]], Sharing.MPS, 1, "A100-80GB") == plain


def test_three_on_a_time_sliced_gpu_take_turns() -> None:
    """More neighbours cost more, and the GPU is never more than active."""
    sharers = [Sharer(name, 0.6, 0.9) for name in "abc"]
    two, three = (rates_of(sharers[:count], Sharing.TIME_SLICING, 4, "H100-80GB") for count in (2, 3))
    assert three[0] < two[0]
    assert sum(active_parts(sharers, three, Sharing.TIME_SLICING)) <= 1.0


def test_work_on_a_shared_gpu_progresses_at_its_pace_and_ends_late() -> None:
    """Each ends when its work is done, the longer one goes on faster, and useful is below active."""
    world = Shared(make_jobs([(0, 1000, 1), (0, 3000, 1)]), [(0.7, 1.0, 0.0)] * 2)
    world.starts((0, 0, [0]), (0, 1, [0]))
    world.run()
    first, second = world.cluster.end_s
    assert 1700 < first < 2300
    assert first + 1500 < second < 4700  # alone for the rest
    world.stays.know(np.full(2, 1, np.int8), np.full(2, 0.7, np.float32))
    useful, active = world.stays.useful_gpu_s(), world.stays.active_gpu_s()
    assert useful is not None
    assert useful == pytest.approx(0.7 * 4000, rel=1e-3)
    assert active is not None
    assert useful < active <= 1.02 * useful + 0.1 * 0.7 * 2000
    assert sum(stay[4] * (stay[2] - stay[1]) for stay in world.stays.stays) == pytest.approx(second)


def test_a_gang_goes_at_the_pace_of_its_slowest_share() -> None:
    """Work of two GPUs beside a job on one of them."""
    world = Shared(make_jobs([(0, 1000, 2), (0, 9000, 1)]), [(0.7, 1.0, 0.0)] * 2)
    world.starts((0, 0, [0, 1]), (0, 1, [1]))
    world.run()
    assert world.cluster.end_s[0] > 1700


@pytest.mark.parametrize(
    ("gpus", "refused"),
    [([0, 0], Refusal.GPU_TWICE), ([0], Refusal.WRONG_COUNT), ([0, 7], Refusal.UNKNOWN_GPU)],
)
def test_shares_that_cannot_be_held_are_refused(gpus: list[int], refused: Refusal) -> None:
    """Each share is on another GPU, and all are there."""
    world = Shared(make_jobs([(0, 1000, 2)]), [(0.5, 0.5, 0.0)])
    world.cluster.submit(0, 0.0)
    assert world.cluster.start(0, gpus, 0.0) is refused


def test_a_full_gpu_and_parts_of_a_gpu_are_refused() -> None:
    """Two shares hold two jobs; work that asks for thousandths gets none."""
    jobs = make_jobs([(0, 1000, 1)] * 3)
    jobs.add("part", "t", gang(1, milli=500), 0.0, 100.0)
    world = Shared(jobs, [(0.1, 0.1, 0.0)] * 4)
    for job in range(4):
        world.cluster.submit(job, 0.0)
    assert [world.cluster.start(job, [0], 0.0) for job in (0, 1, 2)] == [None, None, Refusal.GPU_BUSY]
    assert world.cluster.start(3, [1], 0.0) is Refusal.SPLIT


@pytest.mark.parametrize(
    ("config", "mib", "failed"),
    [
        (SLICED, (30_000, 30_000), set()),
        (SLICED, (50_000, 50_000), None),  # one of the two
        (MPS, (30_000, 45_000), {1}),  # over its half, alone
        (MPS, (39_000, 39_000), set()),
    ],
)
def test_work_over_the_memory_fails(config: SharingConfig, mib: tuple[int, int], failed: set[int] | None) -> None:
    """Under time slicing one of those on the GPU, under MPS the client over its part, alone."""
    world = Shared(make_jobs([(0, 1000, 1)] * 2), [(0.1, 0.1, each) for each in mib], config)
    for job in (0, 1):
        world.cluster.submit(job, 0.0)
        assert world.cluster.start(job, [0], 0.0) is None
    waits = {job for job in (0, 1) if world.cluster.state[job] == State.PENDING}
    assert waits == failed if failed is not None else len(waits) == 1


@pytest.mark.parametrize(("config", "beside"), [(SLICED, State.RUNNING), (MPS, State.PENDING)])
def test_a_fatal_fault_takes_the_clients_of_an_mps_server(config: SharingConfig, beside: State) -> None:
    """The neighbour on the same GPU; work on the other GPU goes on."""
    world = Shared(make_jobs([(0, 1000, 1)] * 3), [(0.3, 0.3, 0.0)] * 3, config)
    for job, gpu in ((0, 0), (1, 0), (2, 1)):
        world.cluster.submit(job, 0.0)
        world.cluster.start(job, [gpu], 0.0)
    world.cluster.fail(0, 50.0)
    assert [world.cluster.state[job] for job in range(3)] == [State.PENDING, beside, State.RUNNING]


@pytest.mark.parametrize(("saves", "least", "most"), [(True, 0, 0), (False, 3, 17)])
def test_an_mps_server_may_die_with_a_client_that_is_ended_by_a_signal(saves: bool, least: int, most: int) -> None:
    """About every second one of twenty, and none that saves its progress and exits."""
    assert least <= sum(dies_with(5000.0 + number, saves) for number in range(20)) <= most


def dies_with(at_s: float, saves: bool) -> bool:
    """True if work fails beside a client that is evicted then; the fact of it tells how the client is ended."""
    jobs = make_jobs([(0, 9000, 1)] * 2, saves_on_request=saves)
    world, told = Shared(jobs, [(0.3, 0.3, 0.0)] * 2, MPS, REAL), Told()
    world.cluster.observe(told)
    world.starts((0, 0, [0]), (0, 1, [0]))
    world.at(at_s, lambda now_s: world.cluster.evict(0, now_s))
    world.engine.advance(at_s + 300.0)
    assert told.by_signal == [not saves]
    return world.cluster.state[1] == State.PENDING


class Told:
    """What evictions tell."""

    def __init__(self) -> None:
        self.by_signal: list[bool] = []

    def on_evicting(self, fact: Evicting) -> None:
        """Keep it."""
        self.by_signal.append(fact.by_signal)


def test_a_node_is_turned_when_it_is_empty_and_after_a_while() -> None:
    """Refused with work, without an offer, and twice; nothing starts meanwhile; the snapshot shows the result."""
    world = Shared(make_jobs([(0, 100, 1), (500, 100, 1)]), [(0.5, 0.5, 0.0)] * 2, None)
    cluster = world.cluster
    collector = ClusterCollector(cluster, make(QueueTable, id=np.array(["t"], object)), {"t": 0})
    said: list[object] = []

    def turn(now_s: float, sharing: Sharing = Sharing.TIME_SLICING, replicas: int = 2) -> None:
        said.append(cluster.set_sharing(0, sharing, replicas, now_s))

    world.starts((0, 0, [0]))
    world.at(50, turn)
    world.at(200, lambda now_s: turn(now_s, replicas=4))
    world.at(200, turn)
    world.at(201, turn)
    world.at(209, lambda now_s: said.append(nodes_of(collector, now_s).replicas.tolist()))
    world.engine.advance(209)
    cluster.submit(1, 209.0)
    assert cluster.start(1, [0], 209.0) is Refusal.OTHER_SHARING
    world.engine.advance(231)
    nodes = nodes_of(collector, 231)
    assert (nodes.sharing.tolist(), nodes.replicas.tolist()) == ([Sharing.TIME_SLICING], [2])
    assert said == [Refusal.NOT_IDLE, Refusal.NO_OFFER, None, Refusal.OTHER_SHARING, [1]]
    assert cluster.start(1, [0], 231.0) is None
    work = collector.peek(231).work
    assert work is not None
    assert work.placements.milli.tolist() == [500]
    turn(232, Sharing.WHOLE, 1)
    assert said[-1] is Refusal.NOT_IDLE


def test_the_actuator_turns_a_node_as_it_was_when_that_was_decided() -> None:
    """Under way until the plugin is back; a conflict with work on it, another sharing, or a change under way."""
    world = Shared(make_jobs([(0, 100, 1)]), [(0.5, 0.5, 0.0)], None)
    cluster, names = world.cluster, world.inventory.nodes.id
    actuator, said = ClusterActuator(cluster), list[OutcomeKind]()

    def turn(number: int, to: SharingConfig, was: SharingConfig, now_s: float) -> None:
        operation = SetSharing(
            config=to.key,
            sharing=to.sharing,
            replicas=to.replicas,
            single=False,
            was_sharing=was.sharing,
            was_replicas=was.replicas,
        )
        subject = Subject(SubjectKind.NODE, str(names[0]), str(names[0]), 0)
        said.append(actuator.apply(Instruction(f"{number}", subject, operation, 900.0, 1, "p"), now_s).kind)

    world.starts((0, 0, [0]))
    for number, (at_s, to, was) in enumerate(
        ((50, SLICED, UNSHARED), (200, MPS, SLICED), (200, SLICED, UNSHARED), (201, SLICED, UNSHARED))
    ):
        world.at(at_s, partial(turn, number, to, was))
    world.engine.advance(300)
    turn(2, SLICED, UNSHARED, 300.0)
    assert said == [OutcomeKind.CONFLICT] * 2 + [OutcomeKind.ACCEPTED, OutcomeKind.CONFLICT, OutcomeKind.ACCEPTED]
    assert (cluster.sharings.kind[0], cluster.sharings.replicas()[0]) == (Sharing.TIME_SLICING, 2)


def nodes_of(collector: ClusterCollector, now_s: float) -> NodeTable:
    """The nodes as the snapshot has them."""
    inventory = collector.peek(now_s).inventory
    assert inventory is not None
    return inventory.nodes


def test_a_shared_gpu_shows_the_sum_of_its_work_with_the_pods_of_all() -> None:
    """As exporters do: the values of the device, memory added up, and as many pods as there are."""
    jobs = make_jobs([(0, 9000, 1)] * 2, peak_memory_gib=10.0)
    world = Shared(jobs, [(0.3, 0.3, 10_240.0)] * 2)
    occupants = Occupants(world.cluster, 1)
    world.starts((0, 0, [0]), (10, 1, [0]))
    world.engine.advance(100)
    state = occupants.state
    assert 0.5 < state.level[0] <= 0.6
    assert state.memory_mib[0] == 2 * 10_240
    assert len(occupants.pods[0]) == 2
    world.cluster.retire(1, 200.0)
    assert state.level[0] == pytest.approx(0.3)
    assert len(occupants.pods[0]) == 1
    world.cluster.retire(0, 300.0)
    assert (state.job_code[0], occupants.pods[0]) == (-1, ())
