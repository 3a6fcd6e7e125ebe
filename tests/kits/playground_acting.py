"""The playground in which the autopilot acts against `simulate --policy autopilot`: mean wait, lost work, invariants.

Both sides run the same scenario, seed, policy, rules (Kueue's cohort) and forecasters, and the physical checkers of the
simulator watch both. One side acts on the simulator, the other through the API over HTTP, with levers as beside a
real cluster: gates, admission checks, evictions.

Work that a scenario submits at one moment comes `APART_S` after each other: gangs that are equal in all else are served
by the order of rows, which is that of the scenario in a simulation, and that of names beside an API.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import fsum, inf, isfinite
from pathlib import Path
from typing import Any

from actuators.kubernetes.levers import LEVERS
from apiserver.http.faults import Faults as ServerFaults
from autopilot.app.options import SimulateOptions
from autopilot.app.runs.wiring import Managed, manage
from autopilot.app.runs.world import World, build_world
from autopilot.controller import Controller, Wiring
from autopilot.core.model.policy import Policy, RuleSetName
from autopilot.core.model.records import Decision, Observation, Outcome, OutcomeKind
from autopilot.playground.agreement import disagreements
from autopilot.playground.live import controller_site, go_live
from autopilot.playground.stage import Stage, open_stage
from autopilot.service.capping import Capped
from autopilot.service.site import Site
from autopilot.settings import load_policy
from benchmarks.playground import INTERVAL_S, START, exporter_of, wiring_of
from simulator.baselines.kueue import cohort_specs
from simulator.checkers import Violation
from simulator.running.accounting import gpu_s
from simulator.running.engine import Scheduler
from simulator.running.simulation import Simulation
from simulator.scenarios import policy_values
from simulator.signals.occupants import Occupants
from simulator.world.cluster import Cluster
from simulator.world.physics import PHYSICS, up_to_grid
from tests.kits.playground_sides import arm, faults_of

LISTS = -1.0
"""After an outage everything is listed again. A watch that resumes would wait for a bookmark, which the server sends by
its own clock, and that clock stands in a tick."""
PATIENT_S = 60.0
"""Real time for which a tick waits until the watches have told everything: virtual time would pass without them."""
REFUSED_S = 0.2
"""The same while the server refuses every request: watches deliver nothing, and a longer wait only lets the client's
retry delay grow."""
MOST_TICKS = 16
"""Ticks at one moment before time goes on, as in a simulation: an effect of several steps needs several."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What came of one run."""

    started: int
    submitted: int
    mean_wait_s: float  # from submission to the first start, of those that started
    lost_gpu_s: float
    useful_gpu_s: float
    preemptions: int
    migrations: int
    violations: tuple[Violation, ...]
    cpu_s: float
    ticks: int = 0
    outcomes: tuple[Outcome, ...] = ()  # failed or declined effects
    disagreements: int = 0


def figures(simulation: Simulation, end_s: float, **more: Any) -> Figures:
    """Read them from the accounts of a run that ended at `end_s`, with the progress of running work published."""
    cluster = simulation.cluster
    totals = simulation.accounts.totals(end_s)
    found = simulation.checkers.close(end_s, totals.capacity, totals.idle, totals.by_tenant)
    jobs = cluster.jobs
    rows = [job for job, at_s in enumerate(jobs.submit_s) if jobs.service[job] < 0 and at_s <= end_s]
    waits = [cluster.first_start_s[job] - jobs.submit_s[job] for job in rows if isfinite(cluster.first_start_s[job])]
    return Figures(
        len(waits),
        len(rows),
        fsum(waits) / len(waits) if waits else float("nan"),
        gpu_s(totals.all.lost),
        gpu_s(totals.all.useful),
        simulation.accounts.preemptions,
        simulation.accounts.migrations,
        found.violations,
        **more,
    )


def policy_of(name: str = "autopilot") -> Policy:
    """A shipped policy under the rules of Kueue's cohorts, without what has no lever on a cluster."""
    kinds = frozenset(kind for lever in LEVERS for kind in lever.kinds)
    return Capped(kinds).of(replace(load_policy(name, policy_values(None)), rules=RuleSetName.COHORT_CLASSIC))


def simulated(world: World, until_s: float, policy: Policy) -> Figures:
    """`simulate --policy autopilot` with the queues of Kueue."""
    began_s = time.process_time()
    jobs = world.jobs()
    services = world.fleet(jobs)
    faults = faults_of(world)
    occupants: list[Occupants] = []

    def make(cluster: Cluster) -> Scheduler:
        managed = Managed(
            name="autopilot",
            policy=policy,
            seed=world.seed,
            durations="last-two",
            telemetry="full",
            queues=cohort_specs(world.spec.queues, cluster),
            faults=faults,
            services=services.table if services is not None else None,
            scale=services.set_floor if services is not None else None,
        )
        scheduler, running = manage(cluster, managed)
        occupants.extend([running.occupants] if running.occupants is not None else [])
        return scheduler

    simulation = Simulation(world.inventory, jobs, make, PHYSICS[world.physics], horizon_s=until_s)
    arm(simulation, world, services, faults, occupants)
    run = simulation.engine.run()
    return figures(simulation, run.end_s, cpu_s=time.process_time() - began_s)


class ActingRun:
    """The playground with its controller acting through the API, moved by the caller."""

    def __init__(self, world: World, folder: Path, policy: Policy, **more: Any) -> None:
        self.stage: Stage = open_stage(world, start=START, acts=True, **more)
        self.ticks = 0
        self.bad: list[Outcome] = []
        self.decisions: list[Callable[[Observation, Decision], None]] = []
        self._policy = policy
        self._stack = ExitStack()
        self.faults = ServerFaults()
        self._stack.enter_context(self.stage.clock.hold())  # before the server listens: a start takes real time
        self._live = live = self._stack.enter_context(go_live(self.stage, tls=False, faults=self.faults))
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(live.api.kubeconfig())
        self._exporter = exporter_of(live)
        self._begin()

    def _begin(self) -> None:
        """The process of the controller starts: `_end` ends it."""
        self._site = site = controller_site(self._live, self.kubeconfig, self._delivered_s, LISTS)
        self._process = ExitStack()
        self._process.callback(site.watch(lambda _hurry: None))
        site.join(self._exporter)
        self.controller = Controller(self._wiring(site))

    def _delivered_s(self) -> float:
        """A busy machine may take long; where the server refuses everything there is nothing to wait for."""
        return REFUSED_S if self.faults.plan.error == 1.0 else PATIENT_S

    def _wiring(self, site: Site) -> Wiring:
        """What the controller is built from."""
        if site.actuator is None:
            raise ValueError("the site of a playground in which the autopilot acts has no actuator")
        return wiring_of(site, self._exporter, self._policy, self._decided)

    def _end(self) -> None:
        """The process of the controller ends."""
        self._process.close()

    def _decided(self, observation: Observation, decision: Decision) -> None:
        usual = {OutcomeKind.DONE, OutcomeKind.ACCEPTED}
        self.bad += [each for each in observation.outcomes if each.kind not in usual]
        for each in self.decisions:
            each(observation, decision)

    @property
    def now_s(self) -> float:
        """Virtual time."""
        return self.stage.clock.virtual_s

    def tick(self) -> None:
        """Decide until nothing more is written at this moment."""
        store = self.stage.server.store
        for _ in range(MOST_TICKS):
            before = store.version
            with self._site.still():
                self.controller.tick(self._site.now_s())
            self.ticks += 1
            self.stage.clock.run_to(self.now_s)
            if store.version == before:
                break

    def run_to(self, until_s: float) -> None:
        """Tick whenever something happened, and at the times that the controller asks for."""
        store = self.stage.server.store
        seen, due_s = -1, self.now_s
        while True:
            if store.version != seen or self.now_s >= due_s:
                self.tick()
                seen = store.version
                wake_s = self.controller.wake_at_s - self.stage.projection.start_s
                due_s = up_to_grid(min(max(wake_s, self.now_s + 1.0), self.now_s + INTERVAL_S))
            to_s = min(self.stage.engine.next_s(), due_s)
            if to_s > until_s or to_s == inf:
                break
            self.stage.clock.run_to(to_s)
        self.stage.clock.run_to(until_s)

    def close(self) -> None:
        """Stop listening."""
        self._end()
        self._stack.close()


def acted(world: World, until_s: float, folder: Path, policy: Policy, **more: Any) -> Figures:
    """The same through the API of the playground."""
    began_s = time.process_time()
    run = ActingRun(world, folder, policy, **more)
    try:
        wrong, at_s = 0, 0.0
        while at_s < until_s:
            at_s = min(at_s + INTERVAL_S, until_s)
            run.run_to(at_s)
            wrong += bool(disagreements(run.stage.cluster, run.stage.projection, run.now_s))
        cpu_s = time.process_time() - began_s
        bad = tuple(run.bad)
        run.stage.cluster.settle(until_s)
        return figures(run.stage.simulation, until_s, cpu_s=cpu_s, ticks=run.ticks, outcomes=bad, disagreements=wrong)
    finally:
        run.close()


GOAL_RATIO = 0.05
APART_S = 1.0
"""Between two arrivals. Creation times of Kubernetes have whole seconds."""
RESOLUTION_S = 1.0
"""Differences of the mean wait that do not count: creation times of Kubernetes have whole seconds."""


def one_by_one(world: World) -> World:
    """The world with at least `APART_S` between two arrivals; later ones move back."""
    jobs, before_s = world.jobs(), -inf
    for job in sorted(range(len(jobs.submit_s)), key=lambda each: (jobs.submit_s[each], each)):
        before_s = jobs.submit_s[job] = max(jobs.submit_s[job], before_s + APART_S)
    return replace(world, _jobs=jobs)


def compare(scenario: str, hours: float, policy: Policy, **more: Any) -> tuple[Figures, Figures]:
    """Simulation and playground."""
    world = one_by_one(build_world(SimulateOptions(scenario=scenario)))
    one = simulated(world, hours * 3600.0, policy)
    with tempfile.TemporaryDirectory() as folder:
        return one, acted(world, hours * 3600.0, Path(folder), policy, **more)
