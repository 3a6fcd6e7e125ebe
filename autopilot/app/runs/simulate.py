"""Set up and run a simulation: one world, each policy on it, all results in one document."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from autopilot.app.decisions.decision_log import DecisionLog
from autopilot.app.options import FULL_TELEMETRY_S, SimulateOptions
from autopilot.app.runs.advised import DEFAULT_ADVICE, Advice, advise, check_advisors
from autopilot.app.runs.capacity_use import measured_idle_use, measured_real_use, measured_shared_use
from autopilot.app.runs.group_use import group_use
from autopilot.app.runs.metered import Metered
from autopilot.app.runs.named import SHIPPED, PolicyValues, check_policies, scheduler_of, values_of
from autopilot.app.runs.people import People
from autopilot.app.runs.recorder import DecisionRecorder, StayRecorder
from autopilot.app.runs.wiring import Managed, NoInbox, Running, manage
from autopilot.app.runs.world import World, build_world
from autopilot.app.when import When
from autopilot.core.model.errors import InputError
from autopilot.core.model.policy import Policy
from autopilot.core.model.snapshot import ServiceTable
from autopilot.report.data import PolicyRun, ServiceSeries
from autopilot.settings import policy_diff, policy_values
from simulator.baselines import BASELINES
from simulator.baselines.textbook import fifo_skip
from simulator.checkers import CHECKERS, PHYSICAL, Rules
from simulator.inference.services import ServiceFleet
from simulator.outcome.fared import compare, reference_name
from simulator.outcome.reproduced import reproduced, reproduction
from simulator.outcome.results import Measured, Setting, document, job_rows, policy_result
from simulator.plugins.plugged import Plugged
from simulator.running.engine import Scheduler
from simulator.running.faults import Faults
from simulator.running.owners import Owners
from simulator.running.simulation import Simulated, Simulation, alone_jct_s
from simulator.signals.programs import DrawnLoads, behaviours_of
from simulator.specs.clusterqueues import QueueSpec
from simulator.world.cluster import Cluster
from simulator.world.physics import PHYSICS
from simulator.world.work import Jobs

Progress = Callable[[str, float, int, int], None]
"""Called with (policy, virtual seconds, jobs ended, jobs in total)."""


@dataclass(slots=True)
class PolicyOutcome:
    """One policy's run: its block of the document and the data for plots and tables."""

    name: str
    result: dict[str, Any]
    simulated: Simulated
    run: PolicyRun | None = None
    journal: Path | None = None
    reproduced: Mapping[str, Any] = field(default_factory=dict)  # a baseline beside recorded starts
    passed_over: tuple[str, ...] = ()  # unusable versions in the registry, with the reason


@dataclass(slots=True)
class SimulationOutcome:
    """All policies of one call."""

    options: SimulateOptions
    world: World
    setting: Setting
    policies: list[PolicyOutcome] = field(default_factory=list)
    interrupted: bool = False
    failure: str = ""  # reason for an early end of the run, after an earlier policy was done
    not_run: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """The JSON of `--json`."""
        result = document(self.setting, {outcome.name: outcome.result for outcome in self.policies})
        result |= {"as_recorded": dict(self.world.recorded)} if self.world.recorded else {}
        return result | ({"reproduction": found} if (found := self.reproduction()) is not None else {})

    def reproduction(self) -> dict[str, Any] | None:
        """Agreement of the baselines with the starts in the job file; None if it has none, or no baseline ran."""
        if self.world.starts is None or not any(outcome.reproduced for outcome in self.policies):
            return None
        found = {outcome.name: outcome.reproduced for outcome in self.policies if outcome.reproduced}
        return reproduction(found, self.world.starts)

    def job_frames(self) -> list[Any]:
        """A table of jobs per policy, for `--jobs-out`."""
        return [job_rows(outcome.name, outcome.simulated) for outcome in self.policies]


def simulate(
    options: SimulateOptions, progress: Progress | None = None, people: Callable[[Policy], People] | None = None
) -> SimulationOutcome:
    """Run every policy of `options` on the same world. `people`: the approving people, made for each policy.

    Raises `InputError` before anything starts, and if the first policy's journal cannot be written; after such a
    failure of a later one, the outcome holds those before it and `failure` gives the reason.
    """
    world = build_world(options)
    where = "--policy" if options.policies else f"scenario {world.title}: policies"
    values = values_of(options, world)
    if options.engine is None:
        policies = check_policies(options.policies or world.policies, where, world.names, values)
    else:
        advisors = check_advisors(options.policies or (DEFAULT_ADVICE,), world.names, values)
        policies = {f"{options.engine} + {name}": policy for name, policy in advisors.items()}
    telemetry = _telemetry(options, world)
    managed = any(policy is not None for policy in policies.values())
    setting = Setting(
        seed=world.seed,
        physics=world.physics,
        durations=_durations(options, world) if managed else None,
        jitter_ratio=options.jitter_ratio,
        telemetry=telemetry,
        engine=options.engine,
        nodes=world.spec.nodes,
        gpus=world.spec.gpus,
        assumed=world.assumed,
        unusable_by_reason=world.unusable_by_reason,
    )
    outcome = SimulationOutcome(options, world, setting)
    if options.registry is not None and sum(policy is not None for policy in policies.values()) != 1:
        raise InputError(
            "--registry: one policy at a time can fill a registry, and a baseline has no models; name it with --policy"
        )
    journals = _journals(options.journal, policies)
    alone = _alone(world)
    for name, policy in policies.items():
        report = (lambda now_s, ended, total, shown=name: progress(shown, now_s, ended, total)) if progress else None
        try:
            one = _run(name, policy, options, world, telemetry, alone, journals.get(name), report, people)
        except InputError as error:
            if not outcome.policies:
                raise
            outcome.failure = str(error)
            break
        outcome.policies.append(one)
        if one.simulated.run.interrupted:
            outcome.interrupted = True
            break
        if report is not None:
            jobs = sum(service < 0 for service in one.simulated.cluster.jobs.service)
            report(one.simulated.run.end_s, jobs, jobs)
    compare(
        {one.name: one.result for one in outcome.policies},
        {one.name: one.simulated for one in outcome.policies},
        reference_name([one.name for one in outcome.policies], tuple(BASELINES)),
    )
    done = {one.name for one in outcome.policies}
    outcome.not_run = tuple(name for name in policies if name not in done)
    return outcome


def _telemetry(options: SimulateOptions, world: World) -> str:
    """`auto` renders and parses every scrape of runs up to a day, and fills windows directly beyond that."""
    chosen = options.telemetry or world.telemetry
    if chosen != "auto":
        return chosen
    return "full" if world.span_s <= FULL_TELEMETRY_S and world.spec.gpus <= 1024 else "windowed"


def _durations(options: SimulateOptions, world: World) -> str:
    """The autopilot's source of run times."""
    return options.durations or world.durations


def _alone(world: World) -> Mapping[str, float]:
    """The mean job time of each tenant with guaranteed nodes, had it been alone on them under fifo-skip."""
    guaranteed = world.guaranteed_nodes
    return alone_jct_s(world.inventory, world.jobs(), guaranteed, fifo_skip) if guaranteed else {}


def _run(
    name: str,
    policy: Policy | None,
    options: SimulateOptions,
    world: World,
    telemetry: str,
    alone: Mapping[str, float],
    journal: Path | None,
    progress: Callable[[float, int, int], None] | None,
    people: Callable[[Policy], People] | None,
) -> PolicyOutcome:
    """One policy on a fresh copy of the world."""
    faults = Faults(world.faults, world.seed) if world.faults is not None else None
    recorder = DecisionRecorder(DecisionLog(When(world.start_s)) if options.series else None) if policy else None
    running: list[Running] = []
    advice = Advice() if options.engine is not None else None
    approving = people(policy) if people and policy else None
    jobs = world.jobs()
    services = world.fleet(jobs)
    metered = Metered.of(journal, world.start_s) if policy is not None else None
    table, replicas = (services.table, services.latencies) if services is not None else (None, None)

    def make(cluster: Cluster) -> Scheduler:
        if policy is None:
            return scheduler_of(name, world, cluster)
        managed = Managed(
            name=name,
            policy=policy,
            seed=world.seed,
            durations=_durations(options, world),
            telemetry=telemetry,
            queues=world.spec.queues,
            advance=world.spec.advance,
            journal=journal,
            run=_describe(name, options, world),
            faults=faults,
            services=table,
            latencies=replicas,
            **_bounds(services),
            recorder=recorder,
            meter=metered.meter if metered is not None else None,
            registry=options.registry,
            watch=next((each.on_tick for each in (advice, approving) if each is not None), None),
            inbox=approving or NoInbox(),
        )
        scheduler, run = _scheduler(options, cluster, managed)
        running.append(run)
        return scheduler

    judged = policy if options.engine is None else None  # an engine is not held to the limits of a policy
    simulation = _built(metered, lambda: _simulation(world, jobs, make, judged, table, progress, _works(running)))
    stays = StayRecorder(simulation.cluster) if options.series or telemetry != "off" else None
    owners = _owners(simulation, world.seed, running)
    _arm(simulation, services, faults)
    try:
        simulated = simulation.run()
    finally:  # what was recorded stays readable however the run ends
        for run in running:
            run.journal.close()
        if metered is not None:
            metered.close(simulation.engine.now_s)
    if stays is not None and telemetry != "off" and options.jobs is None:  # that of a job file is drawn, not known
        stays.know(*behaviours_of(world.seed, jobs), owners.absences)
    measured = _measured(simulated, stays, owners, recorder, services, alone, world.spec.queues)
    result = policy_result(simulated, measured, world.unusable_by_reason) | _more(advice, simulation.engine.scheduler)
    over = running[0].passed_over if running else ()
    outcome = PolicyOutcome(name, result, simulated, journal=journal, passed_over=over)
    outcome.reproduced = _reproduced(world, simulated, stays) if policy is None else {}
    if options.series and stays is not None:
        outcome.run = _pictures(outcome, policy, stays, recorder, services, PolicyValues(world.policy).of(SHIPPED))
    return outcome


def _bounds(services: ServiceFleet | None) -> dict[str, Any]:
    """How floors and ceilings of services are set."""
    return {} if services is None else {"scale": services.set_floor, "ceil": services.set_ceiling}


def _reproduced(world: World, simulated: Simulated, stays: StayRecorder | None) -> dict[str, Any]:
    """The starts of a run beside those in the job file."""
    if world.starts is None or simulated.run.interrupted:
        return {}
    start_s = np.array(simulated.cluster.first_start_s[: len(world.starts.submit_s)], float)
    held = [(from_s, to_s, gpus) for _, from_s, to_s, _, gpus in stays.stays] if stays is not None else None
    return reproduced(world.starts, start_s, held)


def _more(advice: Advice | None, scheduler: Scheduler) -> dict[str, Any]:
    """Optional entries of a result: the recommendations beside an engine, the refusals of a registered policy's
    orders.
    """
    found = {"advice": advice.result()} if advice is not None else {}
    return found | (scheduler.result() if isinstance(scheduler, Plugged) else {})


def _works(running: Sequence[Running]) -> Callable[[int, float], bool]:
    """True if the GPUs of a job worked, according to the run."""

    def works(job: int, now_s: float) -> bool:
        return running[0].works(job, now_s)

    return works


def _arm(simulation: Simulation, services: ServiceFleet | None, faults: Faults | None) -> None:
    """Schedule the events of services and faults."""
    if services is not None:
        services.arm(simulation.engine)
    if faults is not None:
        faults.arm(simulation.engine, simulation.cluster)


def _scheduler(options: SimulateOptions, cluster: Cluster, managed: Managed) -> tuple[Scheduler, Running]:
    """The controller in charge of the cluster, or beside the engine in charge."""
    if options.engine is None:
        return manage(cluster, managed)
    return advise(options.engine, managed.queues, cluster, managed, options.interval_s)


def _built(metered: Metered | None, make: Callable[[], Simulation]) -> Simulation:
    """The simulation; after a failure to make it, the next run may use the folder of the meter."""
    try:
        return make()
    except BaseException:
        if metered is not None:
            metered.segments.close()
        raise


def _simulation(
    world: World,
    jobs: Jobs,
    make: Callable[[Cluster], Scheduler],
    policy: Policy | None,
    services: Callable[[float], ServiceTable] | None,
    progress: Callable[[float, int, int], None] | None,
    works: Callable[[int, float], bool],
) -> Simulation:
    """The run of one policy, not started; a baseline is checked by the physical checkers only."""
    return Simulation(
        world.inventory,
        jobs,
        make,
        PHYSICS[world.physics],
        checkers=CHECKERS if policy is not None else PHYSICAL,
        rules=_rules(policy, world),
        services=services,
        works=works,
        loads=DrawnLoads(world.seed, jobs, world.slow_gpus),
        queues=world.spec.queues,
        ready_wakes=services is not None,
        recuts=policy is not None,
        on_progress=progress,
    )


def _rules(policy: Policy | None, world: World) -> Rules | None:
    """The checkers' rules for a policy; None for a baseline."""
    if policy is None:
        return None
    spec = world.spec
    return Rules.of_policy(policy, queues=spec.queues, advance=spec.advance, effects_fail=world.effects_fail)


def _measured(
    simulated: Simulated,
    stays: StayRecorder | None,
    owners: Owners,
    recorder: DecisionRecorder | None,
    services: Any,
    alone: Mapping[str, float],
    queues: Sequence[QueueSpec],
) -> Measured:
    """Measurements of the run's observers beyond the cluster."""
    end_s = simulated.run.end_s
    slo = services.totals(end_s) if services is not None else None
    names = services.table(end_s).id.tolist() if services is not None else ()
    return Measured(
        use=group_use(stays, simulated.cluster, queues, names, end_s) if stays is not None else {},
        active_gpu_s=stays.active_gpu_s() if stays is not None else None,
        early_active_gpu_s=stays.active_gpu_s(simulated.run.last_submit_s) if stays is not None else None,
        useful_gpu_s=stays.useful_gpu_s() if stays is not None else None,
        early_useful_gpu_s=stays.useful_gpu_s(simulated.run.last_submit_s) if stays is not None else None,
        requests=slo.requests if slo else None,
        p99_latency_s=slo.p99_latency_s if slo else None,
        violation_ratio=slo.violation_ratio if slo else None,
        stranded_gpu_s=recorder.stranded_gpu_s(end_s) if recorder else None,
        fragmentation=recorder.fragmentation.result() if recorder else {},
        reservations=recorder.reservations() if recorder else None,
        alone_jct_s=alone,
        idle=measured_idle_use(simulated, stays, owners),
        real_use=measured_real_use(simulated, stays, queues),
        shared_use=measured_shared_use(simulated, stays),
    )


def _owners(simulation: Simulation, seed: int, running: Sequence[Running]) -> Owners:
    """The owners of interactive work; the telemetry shows their absences."""
    owners = Owners(simulation.cluster, seed)
    owners.arm(simulation.engine)
    owners.listeners.append(simulation.cluster.sharings.on_owner)
    owners.listeners += [run.occupants.on_owner for run in running if run.occupants is not None]
    return owners


def _pictures(
    outcome: PolicyOutcome,
    policy: Policy | None,
    stays: StayRecorder,
    recorder: DecisionRecorder | None,
    services: Any,
    usual: Policy,
) -> PolicyRun:
    """The run in the report's form."""
    simulated = outcome.simulated
    cluster, end_s = simulated.cluster, simulated.run.end_s
    rows = [job for job, state in enumerate(cluster.state) if state >= 0 and cluster.jobs.service[job] < 0]
    waits = np.array([cluster.first_start_s[job] - cluster.jobs.submit_s[job] for job in rows], float)
    series = tuple(
        ServiceSeries(
            name=row.name,
            t_s=row.t_s,
            p99_s=row.p99_s,
            objective_s=row.objective_s,
            rate_rps=row.rate_rps,
            replicas=row.replicas,
            late=row.late,
            foreseen_rps=band,
            foreseen=words,
        )
        for row in (services.series() if services is not None else ())
        for band, words in (recorder.foreseen(row.name, row.t_s) if recorder else (None, ""),)
    )
    return PolicyRun(
        name=outcome.name,
        result=outcome.result,
        series=stays.series(end_s, cluster.hardware.capacity_milli / 1000, recorder.stranded if recorder else []),
        waits_s=waits,
        heat=stays.heat(end_s),
        services=series,
        decisions=recorder.log.rows() if recorder and recorder.log else (),
        waited_gpu_s=dict(recorder.log.waited_gpu_s) if recorder and recorder.log else {},
        policy={} if policy is None else policy_values(policy),
        policy_diff=tuple(policy_diff(usual, policy)) if policy is not None else (),
    )


def _journals(given: Path | None, policies: Mapping[str, Policy | None]) -> dict[str, Path]:
    """One file per policy with a journal: the given path for the first, with number and policy name added for
    others.
    """
    if given is None:
        return {}
    managed = [name for name, policy in policies.items() if policy is not None]
    safe = ["".join(c if c.isalnum() or c in "-_" else "_" for c in name[:40]) for name in managed]
    return {
        name: given.with_name(f"{given.stem}-{number}-{part}{given.suffix}") if number > 1 else given
        for number, (name, part) in enumerate(zip(managed, safe, strict=True), 1)
    }


def _describe(name: str, options: SimulateOptions, world: World) -> dict[str, Any]:
    """The inputs of a run, kept in its journal and shown by replay."""
    return {
        "policy": name,
        "seed": world.seed,
        "physics": world.physics,
        "durations": _durations(options, world),
        "jobs": str(options.jobs) if options.jobs else world.title,
        "cluster": world.spec.source,
        "nodes": world.spec.nodes,
        "gpus": world.spec.gpus,
        "start_s": world.start_s,
        "engine": options.engine,
    }
