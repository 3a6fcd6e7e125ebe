"""Each checker catches the bug planted for it, in a stream of facts or in a cluster that has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from autopilot.core.mig import Placement
from autopilot.core.policy import Policy
from simulator.accounting import Share
from simulator.baselines import BASELINES
from simulator.checkers import CHECKERS, PHYSICAL, CheckerSet, Rules, World
from simulator.cluster import Cluster
from simulator.clusterfile import MigSpec
from simulator.engine import Engine
from simulator.facts import (
    HOOKS,
    Decided,
    Evicting,
    Fact,
    GpuChanged,
    NodeChanged,
    Recut,
    Started,
    Stopped,
    Submitted,
    Why,
)
from simulator.hardware import Hardware, Held, Refusal
from simulator.physics import CHARGED, TICKS_PER_S
from simulator.simulation import Simulation
from simulator.work import Jobs, Shape
from tests.unit.cluster_kit import gang, inventory, make_jobs, pool, pools

RULES = Rules(min_runtime_s=900.0, dwell_s=300.0, window_s=3600.0, per_cluster=3, per_tenant=2, per_node=1)


def world(rules: Rules = RULES) -> World:
    """Twelve jobs of two tenants on three nodes of eight; job 3 is latency-critical, 4 not preemptible, 5 opted out."""
    jobs = Jobs()
    for number in range(12):
        jobs.add(
            f"job-{number}",
            "ab"[number % 2],
            gang((1, 2, 16)[number % 3]),
            0.0,
            5000.0,
            slo_class=0 if number == 3 else 2,
            preemptible=number not in {3, 4},
        )
    jobs.shape[6] = jobs.shape_code(Shape(1, 1, 1, milli=600))
    jobs.shape[7] = jobs.shape_code(Shape(1, 1, 1, profile="3g.40gb"))
    jobs.shape[9] = jobs.shape_code(gang(1, models=1 << 1))
    cut = MigSpec(1, (Placement("3g.40gb", 0), Placement("3g.40gb", 4)))
    hardware = pools(
        pool("main", nodes=3, gpus=8),
        pool("cut", nodes=1, gpus=1, mig=(cut,)),
        pool("t4", gpus=1, model="T4"),
    )
    held = {"excluded": frozenset({5}), "held_actions": frozenset({"backfill"})}
    return World(
        hardware,
        jobs,
        Rules(**{name: getattr(rules, name) for name in rules.__slots__} | held),
    )


def started(job: int, gpus: Sequence[int], at_s: float = 10.0, **more: Any) -> Started:
    """A start."""
    return Started(
        at_s,
        job,
        more.pop("incarnation", 0),
        tuple(gpus),
        more.pop("instances", ()),
        more.pop("milli", 1000 * len(gpus)),
        more.pop("backfill", False),
        more.pop("effect", ""),
    )


def stopped(
    job: int, why: Why = Why.PREEMPT, at_s: float = 100.0, start_s: float = 10.0, **more: Any
) -> Stopped:
    """A stop."""
    values: dict[str, Any] = {
        "ready_s": start_s,
        "halt_s": at_s,
        "gain_s": at_s - start_s,
        "lost_s": 0.0,
        "milli": 1000,
        "full_milli": 1000,
    } | more
    return Stopped(at_s, job, 0, why, start_s, **values)


def evicting(job: int, at_s: float = 2000.0, contract: bool = False, effect: str = "") -> Evicting:
    """Told to leave."""
    return Evicting(at_s, job, 0, Why.PREEMPT, contract, effect)


def check(name: str, *facts: Fact) -> list[str]:
    """What checker `name` says of these facts."""
    checker = CHECKERS[name](world())
    for fact in facts:
        hook: Callable[[Any], None] | None = getattr(checker, HOOKS[type(fact)], None)
        if hook is not None:
            hook(fact)
    return [f"{violation.object}: {violation.message}" for violation in checker.violations]


SUBMITS = [Submitted(0.0, job) for job in range(12)]

PLANTED: list[tuple[str, str, list[Fact]]] = [
    ("capacity", "thousandths", [started(0, [4]), started(1, [4, 5])]),
    ("capacity", "thousandths", [started(6, [4], milli=600), started(0, [4])]),
    ("capacity", "holds GPUs already", [started(0, [4]), started(0, [5])]),
    ("capacity", "without having started", [stopped(0)]),
    (
        "capacity",
        "is held by job job-7",
        [started(7, [24], instances=(0,)), started(10, [24], instances=(0,))],
    ),
    (
        "capacity",
        "was destroyed under",
        [started(7, [24], instances=(0,)), Recut(20.0, 24, ((1, "3g.40gb", 4),))],
    ),
    ("capacity", "was cut while", [started(0, [3]), Recut(20.0, 3, ())]),
    ("geometry", "overlaps", [Recut(5.0, 24, ((0, "3g.40gb", 4), (1, "2g.20gb", 4)))]),
    ("geometry", "cannot be", [Recut(5.0, 24, ((0, "3g.40gb", 2),))]),
    ("geometry", "more instances", [Recut(5.0, 24, tuple((k, "1g.10gb+me", k) for k in range(2)))]),
    ("geometry", "has no MIG", [Recut(5.0, 25, ((0, "1g.10gb", 0),))]),
    ("geometry", "is not a 3g.40gb", [started(7, [24], instances=(9,))]),
    ("gangs", "15 of its 16", [started(2, range(15))]),
    ("gangs", "split over nodes", [started(2, [*range(4), *range(8, 20)])]),
    ("gangs", "may not use", [started(9, [0])]),
    ("order", "without waiting", [started(0, [0])]),
    ("order", "without waiting", [*SUBMITS, started(0, [0]), stopped(0, Why.END), started(0, [0], 200.0)]),
    ("order", "time went back", [*SUBMITS, started(0, [0], 50.0), started(1, [2, 3], 49.0)]),
    ("order", "before its submit", [Submitted(-1.0, 0)]),
    ("nodes", "which is unfit", [NodeChanged(5.0, 0, ready=True, cordoned=True), started(0, [0])]),
    ("nodes", "which is unfit", [NodeChanged(5.0, 0, ready=False, cordoned=False), started(0, [0])]),
    ("nodes", "which is broken", [GpuChanged(5.0, 0, healthy=False), started(0, [0])]),
    ("protected", "class is sheltered", [evicting(3, contract=True)]),
    ("protected", "not preemptible", [evicting(4)]),
    ("protected", "opted out", [evicting(5, contract=True)]),
    ("conservation", "not 5000 s", [started(0, [0]), stopped(0, Why.END, 5009.0)]),
    ("conservation", "more than it had done", [started(0, [0]), stopped(0, lost_s=91.0)]),
    ("conservation", "out of order", [started(0, [0]), stopped(0, ready_s=101.0)]),
    ("min-runtime", "after 899 s", [started(0, [0], 100.0), evicting(0, 999.0)]),
    ("budgets", "the cluster: 4 disruptions", [evicting(job, 2000.0 + job) for job in (0, 1, 2, 9)]),
    ("budgets", "tenant a: 3 disruptions", [evicting(job, 2000.0 + job) for job in (0, 2, 4)]),
    ("budgets", "node main-000: 2", [started(0, [0]), started(1, [1, 2]), evicting(0), evicting(1, 5599.0)]),
    ("flapping", "came back 299 s", [started(0, [0]), evicting(0), started(0, [0], 2299.0)]),
    (
        "flapping",
        "came back 200 s",
        [started(0, [0]), evicting(0), started(0, [8], 2100.0), evicting(0, 2150.0), started(0, [0], 2200.0)],
    ),
    ("effects", "no accepted decision", [started(0, [0], effect="e1")]),
    ("effects", "names no accepted", [started(0, [0])]),
    ("effects", "was accepted to admit", [Decided(1.0, "e1", "admit", 1), started(0, [0], effect="e1")]),
    (
        "effects",
        "used before",
        [Decided(1.0, "e1", "admit", 0), started(0, [0], effect="e1"), started(0, [0], effect="e1")],
    ),
    ("modes", "started although backfill may not", [started(0, [0], backfill=True)]),
    ("modes", "evicted although backfill may not", [evicting(0, contract=True)]),
    ("effects", "evict", [Decided(1.0, "e1", "admit", 0), evicting(0, effect="e1")]),
]


@pytest.mark.parametrize(("name", "words", "facts"), PLANTED)
def test_a_planted_bug_is_caught(name: str, words: str, facts: list[Fact]) -> None:
    """The checker says so, of the right object, in words."""
    found = check(name, *facts)
    assert any(words in line for line in found), found


def test_every_checker_has_a_planted_bug() -> None:
    """No checker is accepted without one."""
    assert {name for name, _, _ in PLANTED} == set(CHECKERS)


FINE: list[tuple[str, list[Fact]]] = [
    ("capacity", [started(6, [4], milli=600), stopped(6, milli=600), started(0, [4]), stopped(0, Why.CUT)]),
    ("geometry", [Recut(5.0, 24, ((0, "4g.40gb", 0), (1, "2g.20gb", 4), (2, "1g.10gb", 6)))]),
    ("gangs", [started(2, range(16)), started(7, [24], instances=(0,))]),
    ("order", [*SUBMITS, started(0, [0]), stopped(0), started(0, [0], 200.0)]),
    (
        "nodes",
        [
            NodeChanged(5.0, 0, ready=False, cordoned=True),
            NodeChanged(6.0, 0, ready=True, cordoned=False),
            GpuChanged(5.0, 1, healthy=False),
            started(0, [0]),
        ],
    ),
    ("protected", [evicting(0), evicting(4, contract=True)]),
    (
        "conservation",
        [
            started(0, [0]),
            stopped(0, lost_s=40.0),
            started(0, [0], 200.0),
            stopped(0, Why.END, 5150.0, 200.0),
        ],
    ),
    (
        "min-runtime",
        [started(0, [0], 100.0), evicting(0, 1000.0), started(1, [1, 2]), evicting(1, 11.0, contract=True)],
    ),
    (
        "budgets",
        [
            evicting(0, 1000.0),
            evicting(2, 1001.0),
            evicting(0, 4600.0),
            evicting(4, 4601.0),
            *[evicting(1, 1002.0, contract=True)] * 9,
        ],
    ),
    (
        "flapping",
        [
            started(0, [0]),
            evicting(0),
            started(0, [0], 2300.0),
            evicting(0, 2301.0, contract=True),
            started(0, [0], 2302.0),
        ],
    ),
    ("modes", [started(0, [0])]),
    (
        "effects",
        [
            Decided(1.0, "e1", "admit", 0),
            started(0, [0], effect="e1"),
            Decided(2.0, "e2", "evict", 0),
            evicting(0, effect="e2"),
        ],
    ),
]


@pytest.mark.parametrize(("name", "facts"), FINE)
def test_what_is_right_is_not_reported(name: str, facts: list[Fact]) -> None:
    """The nearest legal neighbour of each bug passes, and was looked at."""
    assert check(name, *facts) == []
    assert CHECKERS[name](world()) is not None


def test_disruptions_at_once_are_counted_until_the_work_has_left() -> None:
    """Two victims that leave at the same time are one too many; one after the other they are not."""
    rules = Rules(concurrent=1)
    at_once, in_turn = CHECKERS["budgets"](world(rules)), CHECKERS["budgets"](world(rules))
    for checker, facts in (
        (at_once, [evicting(0), evicting(1)]),
        (in_turn, [evicting(0), stopped(0), evicting(1), evicting(2, contract=True)]),
    ):
        for fact in facts:
            getattr(checker, HOOKS[type(fact)])(fact)
    assert [violation.message for violation in at_once.violations] == [
        "2 disruptions under way at once, allowed are 1"
    ]
    assert in_turn.violations == []


def test_accounts_that_do_not_add_up_are_caught() -> None:
    """A second lost between the books is found, by tenant and in all."""
    checkers = CheckerSet(world(), ["conservation"])
    checkers.checkers[0].on_started(started(0, [0]))  # type: ignore[attr-defined]
    checkers.checkers[0].on_stopped(stopped(0, lost_s=40.0))  # type: ignore[attr-defined]
    unit = 1000 * TICKS_PER_S
    right = Share(90 * unit, 50 * unit, 40 * unit, 0)
    capacity = 26 * 100 * unit
    assert checkers.close(100.0, capacity, capacity - 90 * unit, (right, Share())).violations == ()
    for wrong in (Share(90 * unit, 50 * unit, 39 * unit, 0), Share(91 * unit, 51 * unit, 40 * unit, 0)):
        assert checkers.close(100.0, capacity, capacity - 90 * unit, (wrong, Share())).violations
    assert checkers.close(100.0, capacity, capacity, (right, Share())).violations


# --- bugs in the cluster itself ---------------------------------------------------------------------------


class DoubleBooking(Hardware):
    """Gives every fourth job the first GPU, taken or not."""

    def take(
        self, job: int, shape: Shape, gpus: Sequence[int], instances: Sequence[int] = ()
    ) -> Held | Refusal:
        if job % 4 == 1:
            return Held(tuple(range(shape.gpus)), (), {}, 1000 * shape.gpus)
        return super().take(job, shape, gpus, instances)


class HalfGang(Hardware):
    """Starts a wide gang with what there is."""

    def take(
        self, job: int, shape: Shape, gpus: Sequence[int], instances: Sequence[int] = ()
    ) -> Held | Refusal:
        return super().take(job, shape._replace(min_gpus=1, per_member=1), gpus[:8], instances)


class GoesOn(Cluster):
    """Gives a preempted job its progress back twice."""

    def _stop(self, job: int, now_s: float, why: Why, *rest: Any) -> None:
        super()._stop(job, now_s, why, *rest)
        if why == Why.PREEMPT:
            self.served_s[job] += min(50.0, self.jobs.duration_s[job] - self.served_s[job] - 1)


def _run(make: Callable[[Cluster], None], kind: type[Cluster] = Cluster, policy: str = "las") -> set[str]:
    jobs = make_jobs([(50.0 * k, 4000.0 + 100 * k, (1, 2, 4, 8, 16)[k % 5]) for k in range(40)])
    cluster = kind(inventory(2, 8), jobs, CHARGED)
    make(cluster)
    checkers = CheckerSet(World(cluster.inventory, jobs), PHYSICAL)
    for checker in checkers.checkers:
        cluster.observe(checker)
    Engine(cluster, BASELINES[policy](), horizon_s=1e6).run()
    return {violation.checker for checker in checkers.checkers for violation in checker.violations}


def _with(hardware: type[Hardware]) -> Callable[[Cluster], None]:
    def swap(cluster: Cluster) -> None:
        cluster.hardware = hardware(cluster.inventory)

    return swap


def _ignore_cordon(cluster: Cluster) -> None:
    cluster.cordon(1, 0.0)
    usual = cluster.hardware.set_node
    usual(1, ready=True, cordoned=False)
    cluster.publish(NodeChanged(0.0, 1, ready=True, cordoned=True))


@pytest.mark.parametrize(
    ("make", "kind", "caught"),
    [
        (lambda _cluster: None, Cluster, set()),
        (_with(DoubleBooking), Cluster, {"capacity"}),
        (_with(HalfGang), Cluster, {"gangs"}),
        (lambda _cluster: None, GoesOn, {"conservation"}),
    ],
    ids=["sound", "double-booking", "half-gang", "progress-for-nothing"],
)
def test_a_cluster_with_a_bug_is_found_out(
    make: Callable[[Cluster], None], kind: type[Cluster], caught: set[str]
) -> None:
    """The checkers know the cluster only by its facts, and that is enough."""
    assert _run(make, kind) >= caught
    assert bool(_run(make, kind)) == bool(caught)


def test_work_on_a_cordoned_node_is_found_out() -> None:
    """A cluster that states a cordon and does not keep it."""
    jobs = make_jobs([(0, 100, 8), (0, 100, 8)])
    cluster = Cluster(inventory(2, 8), jobs)
    checkers = CheckerSet(World(cluster.inventory, jobs))
    for checker in checkers.checkers:
        cluster.observe(checker)
    _ignore_cordon(cluster)
    Engine(cluster, BASELINES["fifo"]()).run()
    assert {violation.checker for c in checkers.checkers for violation in c.violations} == {"nodes"}


def test_the_promises_come_from_the_policy() -> None:
    """Limits are read from the policy, not chosen by the checker."""
    rules = Rules.of_policy(Policy(), frozenset({1}))
    assert (rules.min_runtime_s, rules.dwell_s, rules.per_node, rules.sheltered_classes) == (
        900.0,
        300.0,
        2,
        (0,),
    )
    assert rules.excluded == {1}


def _fail(cluster: Cluster, node: int, now_s: float) -> None:
    cluster.fail_node(node, now_s)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("policy", ["fifo-skip", "las", "easy", "static"])
def test_random_work_on_a_sound_cluster_violates_nothing(policy: str, seed: int) -> None:
    """Mixed shapes, prices and faults: no checker reports, and all of them looked."""
    rng = np.random.default_rng(seed)
    jobs = Jobs()
    for number in range(150):
        shape = [
            gang(int(rng.choice([1, 1, 2, 4, 8, 16]))),
            Shape(1, 1, 1, milli=int(rng.integers(1, 10)) * 100),
            Shape(1, 1, 1, profile="3g.40gb"),
            gang(2, cpu_milli=4000),
        ][int(rng.choice(4, p=[0.7, 0.1, 0.1, 0.1]))]
        jobs.add(
            f"j{number}",
            "ab"[number % 2],
            shape,
            float(rng.integers(0, 50_000)),
            float(rng.integers(1, 9000)),
        )
    cut = MigSpec(2, (Placement("3g.40gb", 0), Placement("3g.40gb", 4)))
    hardware = pools(pool(nodes=4, gpus=8, cpus=16), pool("cut", nodes=2, gpus=8, mig=(cut,)))
    simulation = Simulation(hardware, jobs, lambda _cluster: BASELINES[policy](), CHARGED)
    for at_s in range(5000, 50_000, 9000):
        node = int(rng.integers(0, 6))
        simulation.engine.at(at_s, partial(_fail, simulation.cluster, node))
        simulation.engine.at(at_s + 3000, partial(simulation.cluster.restore_node, node))
    simulated = simulation.run()
    assert simulated.found.violations == ()
    assert all(checker.checked for checker in simulation.checkers.checkers if checker.name != "protected")
    if policy != "static":
        assert simulated.run.complete, simulated.run.stuck
