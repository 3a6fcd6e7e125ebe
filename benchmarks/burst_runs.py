"""Runs of the scenario `burst-full`, judged on its second day: what the benchmarks burst_full and burst_fill measure.

A run is a policy on one draw of the scenario, with as many jobs as asked for. Everything is counted between `FROM_S`
and `TO_S`; the run ends there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.wiring import Managed, manage
from autopilot.app.runs.world import World, build_world
from autopilot.settings import load_policy
from benchmarks.kit import each_of, keep_row, kept_rows
from models.burst_demand import HORIZONS_S
from simulator.baselines.static import Static
from simulator.checkers import CHECKERS, PHYSICAL, Rules
from simulator.running.engine import Scheduler
from simulator.running.oracle import DemandOracle
from simulator.running.simulation import Simulation
from simulator.scenarios import load_scenario
from simulator.traces.job_trace import JobTrace
from simulator.world.cluster import Cluster
from simulator.world.facts import Evicting, Stopped
from simulator.world.physics import PHYSICS
from simulator.world.work import Jobs, jobs_from_trace

SCENARIO = "burst-full"
FROM_S, TO_S = 86_400.0, 2 * 86_400.0
STATIC, REACTIVE, AUTOPILOT, TRUE_DEMAND = "static", "reactive", "autopilot", "true demand"


@dataclass(frozen=True, slots=True)
class Call:
    """One run: a policy, a seed, and the jobs as a multiple of the scenario's (0: none)."""

    policy: str
    seed: int
    jobs: float = 1.0


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one run, on the second day."""

    policy: str
    seed: int
    jobs: float
    requests: float
    late: float
    useful_gpu_h: float  # of jobs
    held_gpu_h: float  # of jobs
    lost_gpu_h: float  # of jobs
    service_gpu_h: float
    idle_gpu_h: float
    stops: int  # of jobs, moves included
    moves: int
    violated: int
    cpu_s: float

    @property
    def late_ratio(self) -> float:
        """Requests over their objective / requests."""
        return self.late / self.requests

    @property
    def lost_ratio(self) -> float:
        """Progress of jobs that was lost / GPU time that they held."""
        return self.lost_gpu_h / self.held_gpu_h if self.held_gpu_h else 0.0


def rows_of(calls: Sequence[Call], workers: int, kept: str) -> list[Row]:
    """The rows of `calls`, in their order; those in the file `kept` are not played again."""
    found = {Call(row.policy, row.seed, row.jobs): row for row in kept_rows(kept, Row)}
    for row in each_of({f"{call}": call for call in calls if call not in found}, play, workers):
        keep_row(kept, row)
        found[Call(row.policy, row.seed, row.jobs)] = row
    return [found[call] for call in calls]


class Window:
    """Observes a cluster: GPU time of jobs and services between `FROM_S` and `TO_S`, and stops of jobs."""

    def __init__(self, jobs: Jobs) -> None:
        self._service = jobs.service
        self.useful = self.held = self.lost = self.served = 0.0  # GPU-seconds
        self.stops = self.moves = 0

    def on_evicting(self, fact: Evicting) -> None:
        """Count stops of jobs."""
        if FROM_S <= fact.at_s < TO_S and self._service[fact.job] < 0:
            self.stops += 1
            self.moves += fact.why.name == "MOVE"

    def on_stopped(self, fact: Stopped) -> None:
        """Count a stay. Progress is even between the end of the start-up and the end of useful work."""
        held = _overlap_s(fact.start_s, fact.at_s) * fact.milli / 1000
        if self._service[fact.job] >= 0:
            self.served += held
            return
        self.held += held
        if fact.gain_s > 0:
            part = _overlap_s(fact.ready_s, fact.halt_s) / max(fact.halt_s - fact.ready_s, 1e-9)
            self.useful += part * fact.gain_s * fact.full_milli / 1000
        if fact.lost_s and FROM_S <= fact.at_s < TO_S:
            self.lost += fact.lost_s * fact.full_milli / 1000
            self.useful -= fact.lost_s * fact.full_milli / 1000


def _overlap_s(from_s: float, to_s: float) -> float:
    return max(min(to_s, TO_S) - max(from_s, FROM_S), 0.0)


def world_of(call: Call) -> World:
    """The world of one run: the scenario, with its jobs drawn anew at the size asked for."""
    world = build_world(SimulateOptions(scenario=SCENARIO, seed=call.seed))
    return world if call.jobs == 1.0 else replace(world, _jobs=_jobs(world, call))


def _jobs(world: World, call: Call) -> Jobs:
    if not call.jobs:
        return Jobs()
    scenario = load_scenario(SCENARIO)
    groups = tuple(replace(group, count=max(round(group.count * call.jobs), 1)) for group in scenario.job_groups)
    trace: JobTrace = replace(scenario, job_groups=groups).jobs(call.seed)
    return jobs_from_trace(trace, world.inventory, seed=call.seed)


def offered_gpu_h(seed: int) -> float:
    """GPU-hours of the scenario's jobs, over both days."""
    jobs = world_of(Call(STATIC, seed)).jobs()
    return sum(gpus * length_s for gpus, length_s in zip(jobs.gpus, jobs.duration_s, strict=True)) / 3600.0


def play(call: Call) -> Row:
    """Run it."""
    began_s, world = time.process_time(), world_of(call)
    jobs = world.jobs()
    fleet = world.fleet(jobs)
    if fleet is None:
        raise RuntimeError(f"scenario {SCENARIO} has no services")
    window = Window(jobs)
    policy = None if call.policy == STATIC else load_policy(AUTOPILOT if call.policy == TRUE_DEMAND else call.policy)

    def make(cluster: Cluster) -> Scheduler:
        if policy is None:
            return Static(world.guaranteed_nodes)
        managed = Managed(
            name=call.policy,
            policy=policy,
            seed=world.seed,
            durations=world.durations,
            queues=world.spec.queues,
            services=fleet.table,
            scale=fleet.set_floor,
            demand=DemandOracle(world.services, HORIZONS_S) if call.policy == TRUE_DEMAND else None,
        )
        return manage(cluster, managed)[0]

    simulation = Simulation(
        world.inventory,
        jobs,
        make,
        PHYSICS[world.physics],
        checkers=PHYSICAL if policy is None else CHECKERS,
        rules=None if policy is None else Rules.of_policy(policy, queues=world.spec.queues),
        services=fleet.table,
        observers=[window],
        horizon_s=TO_S,
        ready_wakes=True,
    )
    fleet.arm(simulation.engine)
    simulated = simulation.run()
    for each in simulated.found.violations[:5]:
        print(f"  {call.policy}, seed {call.seed}: {each.checker} at {each.at_s:.0f} s: {each.object}: {each.message}")
    fleet.totals(TO_S)
    late = requests = 0.0
    for row in fleet.series():
        judged = (row.t_s >= FROM_S) & (row.t_s < TO_S)
        late += float(row.late[judged].sum())
        requests += float(np.nansum(row.rate_rps[judged])) * float(row.t_s[1] - row.t_s[0])
    capacity = simulation.cluster.hardware.capacity_milli / 1000 * (TO_S - FROM_S)
    hours = 1 / 3600.0
    return Row(
        call.policy,
        call.seed,
        call.jobs,
        requests,
        late,
        window.useful * hours,
        window.held * hours,
        window.lost * hours,
        window.served * hours,
        (capacity - window.held - window.served) * hours,
        window.stops,
        window.moves,
        len(simulated.found.violations),
        time.process_time() - began_s,
    )
