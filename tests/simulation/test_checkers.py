"""Each checker catches the bug planted for it, in a stream of facts or in a cluster that has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from autopilot.core.hardware.mig import Placement
from autopilot.core.model.policy import Policy
from simulator.baselines import BASELINES
from simulator.checkers import CHECKERS, PHYSICAL, CheckerSet, Rules, World
from simulator.running.accounting import Share
from simulator.running.engine import Engine
from simulator.running.simulation import Simulation
from simulator.specs.clusterfile import MigSpec
from simulator.specs.clusterqueues import QueueSpec
from simulator.world.cluster import Cluster
from simulator.world.facts import HOOKS, Fact, NodeChanged, Why
from simulator.world.hardware import Hardware, Held, Refusal
from simulator.world.physics import CHARGED, TICKS_PER_S
from simulator.world.work import Jobs, Shape
from tests.kits.cluster_kit import gang, inventory, make_jobs, pool, pools
from tests.simulation.fact_builders import RULES, check, evicting, started, stopped, world
from tests.simulation.planted_facts import FINE, PLANTED


@pytest.mark.parametrize(("name", "words", "facts"), PLANTED)
def test_a_planted_bug_is_caught(name: str, words: str, facts: list[Fact]) -> None:
    """The checker says so, of the right object, in words."""
    found = check(name, *facts)
    assert any(words in line for line in found), found


def test_every_checker_has_a_planted_bug() -> None:
    """No checker is accepted without one."""
    assert {name for name, _, _ in PLANTED} == set(CHECKERS)


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
        "2 disruptions under way at once, the limit is 1"
    ]
    assert in_turn.violations == []


@pytest.mark.parametrize(
    ("owner", "guest", "found"), [(8, 16, 0), (9, 16, 1), (8, 15, 1)], ids=["owed", "of the owner", "borrowed"]
)
def test_what_is_owed_leaves_a_reservation_what_its_queue_is_guaranteed(owner: int, guest: int, found: int) -> None:
    """Twenty of twenty-four GPUs are reserved, and a job of another queue takes sixteen, twice."""
    specs = (
        QueueSpec(name, "root", {"A100-80GB": gpus}, None, 1.0, 0, None, {})
        for name, gpus in (("a", owner), ("b", guest))
    )
    checker = CHECKERS["advance"](world(replace(RULES, queues=tuple(specs))))
    for fact in (started(11, range(16), 10.0), stopped(11, at_s=900.0), started(11, range(16), 1000.0)):
        getattr(checker, HOOKS[type(fact)])(fact)
    assert len(checker.violations) == found


def test_accounts_that_do_not_add_up_are_caught() -> None:
    """A second lost between the books is found, by tenant and in all."""
    checkers = CheckerSet(world(), ["conservation"])
    checkers.checkers[0].on_started(started(0, [0]))  # type: ignore[attr-defined]
    checkers.checkers[0].on_stopped(stopped(0, lost_s=40.0))  # type: ignore[attr-defined]
    unit = 1000 * TICKS_PER_S
    right = Share(90 * unit, 50 * unit, 40 * unit, 0)
    capacity = 36 * 100 * unit
    assert checkers.close(100.0, capacity, capacity - 90 * unit, (right, Share())).violations == ()
    for wrong in (Share(90 * unit, 50 * unit, 39 * unit, 0), Share(91 * unit, 51 * unit, 40 * unit, 0)):
        assert checkers.close(100.0, capacity, capacity - 90 * unit, (wrong, Share())).violations
    assert checkers.close(100.0, capacity, capacity, (right, Share())).violations


# --- bugs in the cluster itself ---------------------------------------------------------------------------


class DoubleBooking(Hardware):
    """Gives every fourth job the first GPU, taken or not."""

    def take(self, job: int, shape: Shape, gpus: Sequence[int], instances: Sequence[int] = ()) -> Held | Refusal:
        if job % 4 == 1:
            return Held(tuple(range(shape.gpus)), (), {}, 1000 * shape.gpus)
        return super().take(job, shape, gpus, instances)


class HalfGang(Hardware):
    """Starts a wide gang with what there is."""

    def take(self, job: int, shape: Shape, gpus: Sequence[int], instances: Sequence[int] = ()) -> Held | Refusal:
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
@pytest.mark.parametrize("policy", ["fifo-skip", "las", "easy", "static", "kueue"])
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
