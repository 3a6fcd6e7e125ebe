"""Proposals of the playground and of `simulate --engine kueue`, at equal virtual moments.

Both sides run the same scenario, seed, policy and forecasters, and decide at the same virtual moments. One reads the
simulator, the other the API over HTTP with the collectors for Kubernetes and Kueue. A proposal is equal when action,
kind, work, nodes (with the GPUs of each), and victims are. What no source of the playground tells (measurements of
services) is left out on both sides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from autopilot.app.runs.advised import advise
from autopilot.app.runs.wiring import Managed
from autopilot.app.runs.world import World
from autopilot.controller import Controller
from autopilot.core.model.records import Decision, Observation, Proposal
from autopilot.core.model.snapshot import ClusterSnapshot, ServiceTable
from autopilot.playground.agreement import disagreements
from autopilot.playground.live import controller_site, go_live
from autopilot.playground.projection import Projection
from autopilot.playground.stage import open_stage
from autopilot.settings import load_policy
from benchmarks.playground import INTERVAL_S, START, exporter_of, wiring_of
from simulator.running.engine import Scheduler
from simulator.running.simulation import Simulation
from simulator.scenarios import policy_values
from simulator.signals.occupants import Occupants
from simulator.world.cluster import Cluster
from simulator.world.physics import PHYSICS
from tests.kits.playground_sides import arm, faults_of

UNMEASURED = (
    "p99_s",
    "violation_ratio",
    "rate_rps",
    "queue_depth",
    "recent_rps",
    "recent_violation_ratio",
    "tokens_per_s",
)
Key = tuple[Any, ...]
Ticks = dict[float, Counter[Key]]
"""Virtual time -> proposals of the tick."""


@dataclass(slots=True)
class Agreement:
    """What both sides proposed at the same moments."""

    equal: int = 0
    simulated_only: list[tuple[float, Key]] = field(default_factory=list)
    playground_only: list[tuple[float, Key]] = field(default_factory=list)
    ticks: int = 0

    @property
    def ratio(self) -> float:
        """Equal proposals / all proposals of either side; NaN where nobody proposed anything."""
        total = self.equal + max(len(self.simulated_only), len(self.playground_only))
        return self.equal / total if total else float("nan")


def key_of(proposal: Proposal, snapshot: ClusterSnapshot, name: Callable[[str], str]) -> Key:
    """What makes two proposals equal. GPUs count by node: the API does not say which GPU of a node a pod got."""
    node_of = {
        str(uuid): str(snapshot.nodes.id[node])
        for uuid, node in zip(snapshot.gpus.uuid, snapshot.gpus.node, strict=True)
    }
    places = Counter(node_of.get(slot.gpu, slot.gpu) for slot in proposal.slots)
    victims = sorted((name(each.workload), str(getattr(each, "how", ""))) for each in proposal.victims)
    return (proposal.action, proposal.kind, name(proposal.subject.name), tuple(sorted(places.items())), tuple(victims))


def simulated(world: World, until_s: float) -> Ticks:
    """The proposals of `simulate --engine kueue --policy recommend`."""
    found: Ticks = {}

    def watch(observation: Observation, decision: Decision) -> None:
        snapshot = observation.snapshot
        found[observation.now_s] = Counter(
            key_of(each, snapshot, lambda text: text) for each in decision.plan.proposals
        )

    jobs = world.jobs()
    services = world.fleet(jobs)
    faults = faults_of(world)
    policy = load_policy("recommend", policy_values(None))
    table = (lambda now_s: unmeasured(services.table(now_s))) if services is not None else None
    managed = Managed(
        name="kueue",
        policy=policy,
        seed=world.seed,
        durations="last-two",
        telemetry="full",
        faults=faults,
        services=table,
        watch=watch,
    )
    occupants: list[Occupants] = []

    def make(cluster: Cluster) -> Scheduler:
        scheduler, running = advise("kueue", world.spec.queues, cluster, managed, INTERVAL_S)
        occupants.extend([running.occupants] if running.occupants is not None else [])
        return scheduler

    simulation = Simulation(
        world.inventory,
        jobs,
        make,
        PHYSICS[world.physics],
        checkers=(),
        ready_wakes=True,
        horizon_s=until_s,
    )
    arm(simulation, world, services, faults, occupants)
    simulation.run()
    return found


def unmeasured(table: ServiceTable) -> ServiceTable:
    """Services as the API tells them: nothing measured, and no range of replicas."""
    nothing = {name: np.full(len(table.id), np.nan) for name in UNMEASURED if hasattr(table, name)}
    return replace(table, **nothing)


def shown(world: World, until_s: float, folder: Path, *, check: bool = False) -> tuple[Ticks, int]:
    """The proposals of the playground, and the moments at which API and simulator disagreed."""
    found: Ticks = {}
    wrong = 0
    stage = open_stage(world, start=START)
    with go_live(stage, tls=False) as live, stage.clock.hold():
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(live.api.kubeconfig())
        site = controller_site(live, kubeconfig)
        end_watch = site.watch(lambda _hurry: None)
        exporter = exporter_of(live)
        site.join(exporter)
        names = Names(stage.projection)

        def watch(observation: Observation, decision: Decision) -> None:
            now_s = observation.now_s - stage.projection.start_s
            proposals = decision.plan.proposals
            found[now_s] = Counter(key_of(each, observation.snapshot, names.of) for each in proposals)

        controller = Controller(wiring_of(site, exporter, load_policy("recommend", policy_values(None)), watch))
        for number in range(int(until_s / INTERVAL_S) + 1):
            stage.clock.run_to(number * INTERVAL_S)
            with site.still():
                names.learn()
                controller.tick(site.now_s())
            if check:
                wrong += bool(disagreements(stage.cluster, stage.projection, stage.clock.virtual_s))
        end_watch()
    return found, wrong


class Names:
    """The simulator's names of the work that the API shows."""

    def __init__(self, projection: Projection) -> None:
        self._projection = projection
        self._known: dict[str, str] = {}

    def learn(self) -> None:
        """Take in the objects that there are now."""
        jobs = self._projection.cluster.jobs
        for job, gang in self._projection.gangs.items():
            self._known[f"{gang.namespace}/{gang.name}"] = jobs.id[job]

    def of(self, name: str) -> str:
        """The simulator's name; the given one where it is no work (a service)."""
        return self._known.get(name, name.rpartition("/")[2])


def compare(one: Mapping[float, Counter[Key]], other: Mapping[float, Counter[Key]]) -> Agreement:
    """Both at the moments at which both decided."""
    result = Agreement()
    for at_s in sorted(one.keys() & other.keys()):
        result.ticks += 1
        both = one[at_s] & other[at_s]
        result.equal += both.total()
        result.simulated_only += [(at_s, key) for key in (one[at_s] - both).elements()]
        result.playground_only += [(at_s, key) for key in (other[at_s] - both).elements()]
    return result
