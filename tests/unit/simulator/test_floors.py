"""Floors in the simulated cluster: replicas come at once, stay, and go when the floor ends; the actuator in front of
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from autopilot.core.model.objects import Subject, SubjectKind
from autopilot.core.model.records import Instruction, Outcome, OutcomeKind
from autopilot.core.model.snapshot import ServiceTable
from autopilot.core.replicas.scale import Scale
from simulator.baselines.textbook import fifo_skip
from simulator.inference.services import GENERATION, ServiceFleet
from simulator.running.cluster_actuator import ClusterActuator
from simulator.running.simulation import Simulation
from simulator.world.cluster import Cluster
from simulator.world.facts import Decided, Floored, Scaled
from simulator.world.work import Jobs, uid_of
from tests.kits.cluster_kit import inventory
from tests.kits.service_kit import calls, deployment, services

QUIET = calls(np.arange(60.0, 3000.0, 60.0), 10)
"""One request of ten seconds a minute: one replica is enough."""


class Seen:
    """A service of one to four replicas through an hour, and every fact about its floors."""

    def __init__(self, *during: tuple[float, Callable[[ServiceFleet, float], object]]) -> None:
        jobs = Jobs()
        hardware = inventory(1, 4)
        self.fleet = ServiceFleet(services(QUIET, 3600.0, deployment()), jobs, hardware)
        self.facts: list[NamedTuple] = []
        self.on_floored = self.on_scaled = self.on_decided = self.facts.append
        simulation = Simulation(hardware, jobs, lambda _cluster: fifo_skip(), observers=[self])
        self.cluster: Cluster = simulation.cluster
        self.fleet.arm(simulation.engine)
        for at_s, action in during:
            simulation.engine.at(at_s, self._later(action), essential=False)
        self.done = simulation.run()

    def _later(self, action: Callable[[ServiceFleet, float], object]) -> Callable[[float], None]:
        def act(now_s: float) -> None:
            action(self.fleet, now_s)

        return act

    def replicas_at(self, times_s: Sequence[float]) -> list[float]:
        """Ready replicas at some minutes."""
        self.fleet.totals(self.done.run.end_s)
        series = self.fleet.series()[0]
        at = np.searchsorted(series.t_s, np.array(times_s), side="right") - 1
        return [float(each) for each in series.replicas[at]]


def floor(fleet: ServiceFleet, now_s: float, replicas: int = 3, until_s: float = 1800.0) -> str:
    """Ask for a floor of the only service."""
    return fleet.set_floor("chat", replicas, until_s, GENERATION, now_s, "e1")


def test_a_floor_adds_replicas_at_once_and_ends_with_its_lease() -> None:
    """Three from 600 s to 1800 s, then what the load needs at the next look, and never less than that."""
    seen = Seen((600.0, floor))
    assert seen.replicas_at([540.0, 660.0, 1740.0, 1860.0]) == [1.0, 3.0, 3.0, 1.0]
    looks = [fact for fact in seen.facts if isinstance(fact, Scaled)]
    assert {fact.floor for fact in looks if 600.0 <= fact.at_s < 1800.0} == {3}
    assert {fact.floor for fact in looks if not 600.0 <= fact.at_s < 1800.0} == {0}
    assert all(fact.wanted >= fact.needed for fact in looks)
    assert {fact.needed for fact in looks} == {1}
    assert [fact for fact in seen.facts if not isinstance(fact, Scaled)] == [
        Decided(600.0, "e1", "scale", 0),
        Floored(600.0, 0, 3, 1800.0, "e1"),
    ]


def test_a_floor_is_given_back_before_its_lease_is_over() -> None:
    """Zero takes it back; the autoscaler sees to the rest."""
    seen = Seen((600.0, floor), (900.0, partial(floor, replicas=0, until_s=900.0)))
    assert seen.replicas_at([840.0, 1020.0]) == [3.0, 1.0]


def test_a_floor_above_the_owners_maximum_stops_there() -> None:
    """Four replicas at most."""
    assert Seen((600.0, partial(floor, replicas=9))).replicas_at([720.0]) == [4.0]


def test_the_table_shows_the_floor_the_need_and_the_load() -> None:
    """As a collector sees it: while it stands, and after it has lapsed."""
    tables: list[ServiceTable] = []
    keep = [(at_s, lambda fleet, now_s: tables.append(fleet.table(now_s))) for at_s in (610.0, 1810.0)]
    Seen((600.0, floor), *keep)
    stands, over = tables
    assert (stands.floor[0], stands.floor_until_s[0], stands.needed_replicas[0]) == (3, 1800.0, 1)
    assert (stands.replicas[0], stands.generation[0]) == (3, GENERATION)
    assert over.floor[0] == 0
    assert np.isnan(over.floor_until_s[0])
    assert stands.recent_rps[0] == pytest.approx(1 / 60)
    assert stands.tokens_per_s[0] == pytest.approx(10 / 60)
    assert stands.recent_violation_ratio[0] == 0.0
    # The one request of 540 s was over before the latest look began.
    assert stands.load_ratio[0] == 0.0


def instruction(replicas: int = 3, **subject: Any) -> Instruction:
    """A floor of three of the only service."""
    service = Subject(SubjectKind.SERVICE, "chat", uid_of("service", 0), GENERATION)
    operation = Scale(replicas=replicas, until_s=1800.0)
    return Instruction("e1", replace(service, **subject), operation, 720.0, 1, "p")


def test_the_actuator_sets_a_floor_once() -> None:
    """A repeated id answers as before and changes nothing; the replicas are pending at once, which is told."""
    answers: list[Outcome] = []

    def act(fleet: ServiceFleet, now_s: float) -> None:
        actuator = ClusterActuator(seen_cluster[0], scale=fleet.set_floor)
        answers.extend(actuator.apply(each, now_s) for each in (instruction(), instruction(replicas=4)))
        assert actuator.changed

    seen_cluster: list[Cluster] = []
    jobs, hardware = Jobs(), inventory(1, 4)
    fleet = ServiceFleet(services(QUIET, 3600.0, deployment()), jobs, hardware)
    simulation = Simulation(hardware, jobs, lambda _cluster: fifo_skip())
    seen_cluster.append(simulation.cluster)
    fleet.arm(simulation.engine)
    simulation.engine.at(600.0, partial(act, fleet), essential=False)
    simulation.run()
    assert [answer.kind for answer in answers] == [OutcomeKind.DONE, OutcomeKind.DONE]
    assert fleet.series()[0].replicas.max() == 3.0


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"name": "nobody"}, "there is no service nobody"),
        ({"revision": GENERATION + 1}, "service chat was changed since"),
    ],
)
def test_a_service_that_is_another_one_by_now_is_a_conflict(more: dict[str, Any], reason: str) -> None:
    """Nothing is changed; the reason is returned."""
    answers: list[Outcome] = []

    def act(fleet: ServiceFleet, now_s: float) -> None:
        answers.append(ClusterActuator(seen_cluster[0], scale=fleet.set_floor).apply(instruction(**more), now_s))

    seen_cluster: list[Cluster] = []
    seen_cluster.append(Seen().cluster)
    seen = Seen((600.0, act))
    assert [(answer.kind, answer.reason) for answer in answers] == [(OutcomeKind.CONFLICT, reason)]
    assert seen.replicas_at([720.0]) == [1.0]


def test_without_services_there_is_no_floor() -> None:
    """A cluster of jobs alone refuses for good."""
    answer = ClusterActuator(Seen().cluster).apply(instruction(), 0.0)
    assert (answer.kind, answer.retryable) == (OutcomeKind.FAILED, False)
