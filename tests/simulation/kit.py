"""The shipped controller on a simulated world, as `autopilot simulate` wires it, open for tests to look inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.recorder import DecisionRecorder
from autopilot.app.runs.wiring import Managed, Running, manage
from autopilot.app.runs.world import World, build_world
from autopilot.controller import Controller
from autopilot.core.capabilities.actions import ACTIONS
from autopilot.core.capabilities.guards import GUARDS
from autopilot.core.effects.action import Action
from autopilot.core.guards.base import Check
from autopilot.core.model.policy import BackfillKind, Policy
from autopilot.core.model.ports import Forecaster
from autopilot.core.model.records import Decision, Observation
from simulator.checkers import CHECKERS, Rules
from simulator.running.engine import Scheduler
from simulator.running.faults import Faults
from simulator.running.simulation import Simulated, Simulation
from simulator.signals.signal_faults import SignalFaults
from simulator.world.cluster import Cluster
from simulator.world.physics import PHYSICS
from tests.kits.policies import WAITING, simulated

AUTOPILOT = simulated()
ADMISSION = WAITING

FAULTY = """
name: small-faulty
horizon: {horizon_min}m
cluster:
  pools:
    - {{name: reserved, nodes: {nodes}, gpus_per_node: 4, gpu_model: A100-80GB}}
    - {{name: spot, nodes: 1, gpus_per_node: 4, gpu_model: H100-80GB, spot: true}}
    - {{name: cut, nodes: 1, gpus_per_node: 2, gpu_model: A100-80GB,
       mig: [{{gpus_per_node: 1, geometry: {{2g.20gb: 3}}}}]}}
jobs:
  synthetic: {{load: {load}, tenants: [red, green, blue], max_duration: 40m, max_width: 4}}
  groups:
    - {{kind: train, count: 3, tenants: [red, green], gpus: [6, 8], duration: 15m, spread: 0.3, to: {busy_min}m}}
    - {{kind: train, count: 4, tenants: [blue], gpus: [1, 2, 3], duration: 10m, to: {busy_min}m}}
    - {{kind: notebook, count: 3, tenants: [green], gpus: [1], gpu_milli: 500, duration: 20m, to: {busy_min}m}}
    - {{kind: train, count: 3, tenants: [blue], gpus: [1], mig_profile: 2g.20gb, duration: 10m, to: {busy_min}m}}
    - {{kind: train, count: 1, tenants: [red], gpus: [64], duration: 10m, from: 10m, to: 20m}}
services:
  - name: chat
    tenant: serving
    slots: 8
    prefill_tokens_per_s: 8000
    decode_tokens_per_s: 40
    objective: 40s
    replicas: {{initial: 1, min: 1, max: 3}}
    autoscaler: {{target: 0.6, period: 120s}}
    requests: {{mean_rps: 0.6, shape: azure, swing: 2.0, peak_at: {peak_min}m, from: 5m}}
faults:
  until: {horizon_min}m
  node_mtbf: 2h
  node_mttr: 8m
  gpu_mtbf: 12h
  gpu_mttr: 15m
  spot_mtbr: 40m
  spot_notice: 2m
  spot_away: 10m
  scrape_loss_ratio: 0.05
  view_loss_ratio: 0.02
  view_part_ratio: 0.02
  conflict_ratio: 0.05
  failure_ratio: 0.05
  delay_ratio: 0.05
  delay: 20s
  runs_on_ratio: 0.3
  runs_on: 40s
physics: {physics}
telemetry: {telemetry}
durations: {durations}
policies: [autopilot]
"""
"""A small cluster on which everything goes wrong; one job is wider than all of it."""


STALL_S = 6 * 3600.0
"""A run in which nothing happens for this long has ended, though work waits. Shipped simulations wait ten days."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One tick as it was: what was seen and what was decided."""

    observation: Observation
    decision: Decision


class Tape(DecisionRecorder):
    """Keeps every tick of a run."""

    def __init__(self) -> None:
        super().__init__()
        self.moments: list[Moment] = []

    def on_tick(self, observation: Observation, decision: Decision) -> None:
        """Keep it, and count as ever."""
        super().on_tick(observation, decision)
        self.moments.append(Moment(observation, decision))


@dataclass(frozen=True, slots=True)
class Ran:
    """A run that is over."""

    world: World
    simulated: Simulated
    running: Running
    tape: Tape

    @property
    def violated(self) -> set[str]:
        """The checkers that found something."""
        return {violation.checker for violation in self.simulated.found.violations}

    @property
    def controller(self) -> Controller:
        """The controller, ready to be asked again."""
        return self.running.controller

    def close(self) -> None:
        """Close the journal, if there is one."""
        self.running.journal.close()

    @property
    def cluster(self) -> Cluster:
        """The cluster at the end."""
        return self.simulated.cluster


@dataclass(slots=True, kw_only=True)
class Setup:
    """How to run a world; what is not set is as shipped."""

    policy: Policy = AUTOPILOT
    journal: Path | None = None
    telemetry: str | None = None
    durations: str | None = None
    demand: Forecaster | None = None
    actions: tuple[Action, ...] = ACTIONS
    guards: tuple[tuple[str, Check], ...] = GUARDS
    rules: Rules | None = None
    signals: SignalFaults | None = None
    change: Callable[[Simulation, Controller], None] | None = None  # a last word before the run
    made: list[Running] = field(default_factory=list)


def run(world: World, setup: Setup | None = None) -> Ran:
    """Play `world` under the controller, all checkers on."""
    setup = setup or Setup()
    faults = Faults(world.faults, world.seed) if world.faults is not None else None
    jobs = world.jobs()
    services = world.fleet(jobs)
    tape = Tape()

    def make(cluster: Cluster) -> Scheduler:
        scheduler, running = manage(
            cluster,
            Managed(
                name=setup.policy.name,
                policy=setup.policy,
                seed=world.seed,
                durations=setup.durations or world.durations,
                telemetry=setup.telemetry or world.telemetry,
                queues=world.spec.queues,
                advance=world.spec.advance,
                journal=setup.journal,
                run={"seed": world.seed},
                faults=faults,
                services=services.table if services is not None else None,
                scale=services.set_floor if services is not None else None,
                ceil=services.set_ceiling if services is not None else None,
                demand=setup.demand,
                recorder=tape,
                actions=setup.actions,
                guards=setup.guards,
                signals=setup.signals,
            ),
        )
        setup.made.append(running)
        return scheduler

    def works(job: int, now_s: float) -> bool:
        return setup.made[-1].works(job, now_s)

    simulation = Simulation(
        world.inventory,
        jobs,
        make,
        PHYSICS[world.physics],
        checkers=CHECKERS,
        rules=setup.rules
        or Rules.of_policy(
            setup.policy, queues=world.spec.queues, advance=world.spec.advance, effects_fail=world.effects_fail
        ),
        services=services.table if services is not None else None,
        works=works,
        queues=world.spec.queues,
        ready_wakes=services is not None,
    )
    simulation.engine.stall_s = STALL_S
    if services is not None:
        services.arm(simulation.engine)
    if faults is not None:
        faults.arm(simulation.engine, simulation.cluster)
    controller = setup.made[-1].controller
    if setup.change is not None:
        setup.change(simulation, controller)
    simulated = simulation.run()
    return Ran(world, simulated, setup.made[-1], tape)


def scenario(text: str, folder: Path, seed: int = 0) -> World:
    """The world of a scenario given as YAML text."""
    path = folder / "scenario.yaml"
    path.write_text(text, encoding="utf-8")
    return build_world(SimulateOptions(scenario=str(path), seed=seed))


def faulty_world(seed: int, folder: Path, telemetry: str = "windowed", horizon_min: int = 90) -> World:
    """A small faulty world; its size, load, physics and predictions differ from seed to seed.

    `horizon_min`: how long work comes and faults happen, in minutes.
    """
    rng = np.random.default_rng(seed)
    return scenario(
        FAULTY.format(
            horizon_min=horizon_min,
            busy_min=horizon_min * 2 // 3,
            peak_min=horizon_min // 2,
            nodes=rng.integers(2, 5),
            load=rng.choice([0.5, 0.8, 1.1]),
            physics=rng.choice(["real", "real", "charged", "ideal"]),
            telemetry=telemetry,
            durations=rng.choice(["last-two", "exact"]),
        ),
        folder,
        seed,
    )


def faulty_policy(seed: int) -> Policy:
    """The shipped policy, or one that promises room early, by easy or by conservative backfill, on bold predictions."""
    if seed % 4 == 0:
        return AUTOPILOT
    bold = seed % 4 == 3
    return replace(
        ADMISSION,
        name="early",
        reservation=replace(
            ADMISSION.reservation,
            firm_after_s=180.0,
            whole_nodes_only=False,
            max_spread_ratio=1e6,
            level=0.25 if bold else 0.5,
            timeout_s=600.0 if bold else 3600.0,
            conservative_depth=4,
        ),
        backfill=replace(
            ADMISSION.backfill,
            level=0.5 if bold else 0.9,
            kind=BackfillKind.CONSERVATIVE if seed % 4 == 2 else BackfillKind.EASY,
        ),
    )


def without(guard: str) -> tuple[tuple[str, Check], ...]:
    """All guards, that one replaced by one which allows everything."""
    from autopilot.core.guards.base import allow

    assert guard in dict(GUARDS)
    return tuple(
        (name, (lambda *_, said=name: allow(said, 0.0, "", 0.0)) if name == guard else check) for name, check in GUARDS
    )


def verdict_codes(moments: Sequence[Moment], guard: str) -> set[str]:
    """The reasons for which a guard refused something."""
    return {
        verdict.code.value
        for moment in moments
        for proposal in moment.decision.plan.proposals
        for verdict in proposal.verdicts
        if verdict.guard == guard and not verdict.allowed
    }
