"""Inference services in the simulated cluster: replicas are jobs that hold GPUs and serve requests.

Each service has a queue of requests (`ServiceSim`) and an autoscaler. A replica is a job without an end: it waits until
the scheduler starts it, serves from the end of its start-up, and is removed when the autoscaler wants fewer (after
finishing the requests it holds). A replica hit by a fault is pending again by the cluster's own rule; its requests
return to the head of the queue. The queue of a service is advanced only where something changes or a caller reads it.

Not modelled: a draining replica that is hit by a fault still finishes the requests it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import isnan, nan

import numpy as np
from numpy.typing import NDArray

from autopilot.core.model.errors import InputError
from autopilot.core.model.latencies import ReplicaLatency
from autopilot.core.model.records import Inventory
from autopilot.core.model.snapshot import ServiceTable, empty, make
from simulator.inference.autoscaler import metric_between
from simulator.inference.deployments import Services
from simulator.inference.service_series import ServiceSeriesRow, series_row
from simulator.inference.service_state import WINDOW_S, Service
from simulator.inference.serving import serving_totals
from simulator.inference.serving_records import Served, ServingTotals
from simulator.inference.slowed import LOOK_S, latency_table, slowed
from simulator.running.engine import Engine
from simulator.world.facts import REQUEUED, Ceiled, Floored, Paced, Scaled, Started, Stopped, Why
from simulator.world.physics import IDEAL, Physics
from simulator.world.placing import never_fits
from simulator.world.work import Jobs, uid_of, uids_of

Floats = NDArray[np.float64]

AFTERWARDS_S = 3600.0
"""The autoscalers keep running for this long after the last request; then replicas stay as they are."""

KIND = "inference"

GENERATION = 1
"""Services do not change during a run."""


class ServiceFleet:
    """The services of one run. Create it, create the simulation with the same jobs, `arm` it, run, `totals`."""

    def __init__(
        self,
        services: Services,
        jobs: Jobs,
        inventory: Inventory,
        physics: Physics = IDEAL,
        queue_of_tenant: Mapping[str, int] | None = None,
        on_served: Callable[[str], Callable[[Served], None]] | None = None,
    ) -> None:
        """Adds the first replicas to `jobs`, and later ones as they are needed: one `Jobs` per run.

        `queue_of_tenant` gives the row of each tenant's queue (0, the root, for missing tenants). `on_served` returns
        the receiver of the completed requests of a service. Raises `InputError` when a service requires a GPU model
        that `inventory` lacks.
        """
        self._jobs, self._physics, self.horizon_s = jobs, physics, services.horizon_s
        self._services = [
            Service(
                row, deployment, deployment.shape(inventory), source, on_served(deployment.name) if on_served else None
            )
            for row, (deployment, source) in enumerate(zip(services.deployments, services.sources(), strict=True))
        ]
        queues = queue_of_tenant or {}
        self._queue = [queues.get(service.deployment.tenant, 0) for service in self._services]
        self._first = [
            [self._new_job(service, 0.0) for _ in range(service.deployment.initial_replicas)]
            for service in self._services
        ]

    def arm(self, engine: Engine) -> None:
        """Schedule the first replicas, the autoscalers and the end of the requests on the engine.

        The end of the requests is the one essential event: the run lasts at least until then. Raises `InputError` when
        a service could never have a replica on this cluster.
        """
        self._engine, self._cluster = engine, engine.cluster
        for service in self._services:
            reason = never_fits(engine.cluster.hardware, service.shape)
            if reason:
                raise InputError(f"service {service.deployment.name}: a replica never fits on this cluster: {reason}")
        if not self._services:
            return
        engine.cluster.observe(self)
        engine.at(0.0, self._submit_first)
        engine.at(self.horizon_s, lambda _now_s: None)
        for period_s in sorted({service.autoscaler.spec.period_s for service in self._services}):
            self._look_later(period_s, 0.0)
        self._look_beside(0.0)

    # --- replicas -------------------------------------------------------------------------

    def _new_job(self, service: Service, now_s: float) -> int:
        deployment, physics = service.deployment, self._physics
        load_s = deployment.load_s
        if isnan(load_s) and not physics.free_start:
            load_s = physics.load_s + physics.weights_gib / physics.load_gib_per_s
        service.made += 1
        job = self._jobs.add(
            f"{deployment.name}/{service.made}",
            deployment.tenant,
            service.shape,
            now_s,
            slo_class=deployment.slo_class,
            preemptible=deployment.preemptible,
            service=service.row,
            kind=KIND,
            checkpoint_interval_s=0.0,  # completed requests stay completed: a replica has no progress to lose
            checkpoint_gib=0.0,
            restart_s=load_s,
        )
        self._jobs.name[job] = deployment.name
        return job

    def _submit_first(self, now_s: float) -> None:
        for service, jobs in zip(self._services, self._first, strict=True):
            for job in jobs:
                self._submit(service, job, now_s)
            # As in Kubernetes, the history starts with the replica count that the autoscaler found.
            service.needed = service.autoscaler.decide(now_s, 0, service.wanted, nan, 0.0).needed

    def _submit(self, service: Service, job: int, now_s: float) -> None:
        service.waiting[job] = None
        self._engine.submit(job, now_s)

    def on_started(self, fact: Started) -> None:
        """A replica got its GPUs; it serves when its start-up is over."""
        row = self._jobs.service[fact.job]
        if row < 0:
            return
        service, job = self._services[row], fact.job
        if job in service.surplus:
            self._engine.at(fact.at_s, partial(self._drop_surplus, service, job), essential=False)
            return
        service.waiting.pop(job, None)
        service.starting[job] = None
        ready_s = self._cluster.ready_s[job]
        if ready_s <= fact.at_s:
            self._serve(service, job, fact.incarnation, fact.at_s)
        else:
            self._engine.at(ready_s, partial(self._serve, service, job, fact.incarnation), essential=False)

    def _serve(self, service: Service, job: int, incarnation: int, now_s: float) -> None:
        """The start-up of a replica is over, unless it was stopped meanwhile."""
        if job not in service.starting or self._cluster.incarnation[job] != incarnation:
            return
        del service.starting[job]
        service.ready[job] = None
        service.sim.set_replicas(now_s, len(service.ready))
        self._set_rates(service, now_s)
        service.log_ready(now_s)

    def on_paced(self, fact: Paced) -> None:
        """A replica on shared GPUs goes on at another rate; one that halts serves what it holds at its last one."""
        row = self._jobs.service[fact.job]
        if row < 0 or fact.rate <= 0:
            return
        service = self._services[row]
        service.rates[fact.job] = fact.rate
        if fact.job in service.ready:
            self._set_rates(service, fact.at_s)

    def _set_rates(self, service: Service, now_s: float) -> None:
        if service.rates or service.slowed:
            service.sim.set_rates(now_s, [service.rate(job) for job in service.ready])

    def _look_beside(self, now_s: float) -> None:
        """Replicas go at the speed that the work on their nodes lets them."""
        touched = [service for service in self._services if service.deployment.slowed_by]
        for service in touched:
            service.slowed = slowed(self._cluster, service)
            service.sim.set_rates(now_s, [service.rate(job) for job in service.ready])
        if touched and now_s <= self.horizon_s + AFTERWARDS_S:
            self._engine.at(now_s + LOOK_S, self._look_beside, essential=False)

    def latencies(self, now_s: float) -> ReplicaLatency:
        """The last whole minute of each replica."""
        return latency_table(self._services, self._jobs.id, now_s)

    def on_stopped(self, fact: Stopped) -> None:
        """A replica left its GPUs: withdrawn by us, or by a fault or an eviction; then it waits again."""
        row = self._jobs.service[fact.job]
        if row < 0 or fact.why == Why.CUT:
            return
        service, job = self._services[row], fact.job
        was_wanted = job in service.starting or job in service.ready
        service.starting.pop(job, None)
        service.rates.pop(job, None)
        if job in service.ready:
            del service.ready[job]
            service.sim.lose(fact.at_s)
            self._set_rates(service, fact.at_s)
            service.log_ready(fact.at_s)
        drained = job in service.draining
        service.draining.pop(job, None)
        if fact.why not in REQUEUED:
            service.surplus.pop(job, None)
        elif was_wanted:
            service.waiting[job] = None
        elif drained:
            self._engine.at(fact.at_s, partial(self._withdraw, service, job), essential=False)

    # --- replica control ------------------------------------------------------------------

    def _look_later(self, period_s: float, now_s: float) -> None:
        if now_s <= self.horizon_s + AFTERWARDS_S:
            self._engine.at(now_s + period_s, partial(self._look, period_s), essential=False)

    def _look(self, period_s: float, now_s: float) -> None:
        """The decisions of each autoscaler with that period."""
        for service in self._services:
            if service.autoscaler.spec.period_s != period_s or service.stopped:
                continue
            sim, spec = service.sim, service.autoscaler.spec
            sim.advance(now_s)
            counters, ready = sim.counters(), len(service.ready)
            metric = metric_between(service.looked_at, counters, sim.queue_depth, ready, spec.metric)
            service.looked_at = counters
            self._restore(service, now_s)  # a ceiling that lapsed
            floor, _ = service.floor(now_s)
            ceiling, _ = service.ceiling(now_s)
            scaling = service.autoscaler.decide(now_s, ready, service.wanted - ready, metric, 0.0, floor, ceiling)
            service.needed, service.load_ratio = scaling.needed, metric / spec.target
            self._cluster.publish(Scaled(now_s, service.row, scaling.replicas, scaling.needed, floor))
            self._scale(service, scaling.replicas, now_s)
        self._look_later(period_s, now_s)

    def set_floor(
        self,
        name: str,
        replicas: int,
        until_s: float,
        generation: int,
        now_s: float,
        effect: str = "",
        uid: str | None = None,
    ) -> str:
        """Keep at least this many replicas of a service (its maximum at most) from now until then; 0: the need of its
        load.

        More replicas are requested at once, fewer at the autoscaler's next sync. Returns the reason for a refusal, ""
        on success.
        """
        service = self._found(name, generation, uid)
        if isinstance(service, str):
            return service
        self._cluster.decided(effect, "scale", service.row, now_s)
        service.set_floor(replicas, until_s)
        self._cluster.publish(Floored(now_s, service.row, replicas, until_s, effect))
        least = min(replicas, service.autoscaler.spec.max_replicas)
        if least > service.wanted:
            self._scale(service, least, now_s)
        return ""

    def set_ceiling(
        self,
        name: str,
        replicas: int,
        until_s: float,
        generation: int,
        now_s: float,
        effect: str = "",
        uid: str | None = None,
    ) -> str:
        """Keep at most this many replicas of a service from now until then; -1: those that it had again.

        Both take effect at once. Returns the reason for a refusal, "" on success.
        """
        service = self._found(name, generation, uid)
        if isinstance(service, str):
            return service
        kept = service.deployment.kept
        self._cluster.decided(effect, "ceiling", service.row, now_s)
        service.sim.advance(now_s)
        busy = service.sim.in_service + service.sim.queue_depth > 0
        service.set_ceiling(replicas, until_s, now_s)
        self._cluster.publish(Ceiled(now_s, service.row, replicas, until_s, kept, kept == 0, busy, effect))
        if 0 <= replicas < service.wanted:
            self._scale(service, replicas, now_s)
        self._restore(service, now_s)
        return ""

    def _found(self, name: str, generation: int, uid: str | None) -> Service | str:
        """The service that is meant, or why there is none."""
        found = [service for service in self._services if service.deployment.name == name]
        if not found:
            return f"there is no service {name}"
        if uid is not None and uid != uid_of("service", found[0].row):
            return f"the name {name} belongs to another service"
        return found[0] if generation == GENERATION else f"service {name} was changed since"

    def _restore(self, service: Service, now_s: float) -> None:
        """Request what a service had before its ceiling, once that has ended."""
        least = min(service.restored(now_s), service.autoscaler.spec.max_replicas)
        if least > service.wanted:
            self._scale(service, least, now_s)

    def set_replicas(self, name: str, replicas: int, now_s: float) -> None:
        """Somebody sets the number of replicas; the autoscaler goes on from there at its next sync, but for zero."""
        for service in self._services:
            if service.deployment.name == name:
                service.stopped = replicas == 0
                self._scale(service, replicas, now_s)

    def _scale(self, service: Service, replicas: int, now_s: float) -> None:
        """Add replicas, or remove the youngest: first waiting, then starting, then ready ones."""
        for _ in range(replicas - service.wanted):
            if service.surplus:
                job, _ = service.surplus.popitem()
                service.waiting[job] = None
            else:
                self._submit(service, self._new_job(service, now_s), now_s)
        fewer = service.wanted - replicas
        for job in sorted(service.waiting, reverse=True)[: max(fewer, 0)]:
            del service.waiting[job]
            self._withdraw(service, job, now_s)
            fewer -= 1
        for job in sorted(service.starting, reverse=True)[: max(fewer, 0)]:
            self._cluster.retire(job, now_s)
            fewer -= 1
        if fewer > 0:
            self._drain(service, sorted(service.ready, reverse=True)[:fewer], now_s)

    def _drain(self, service: Service, jobs: list[int], now_s: float) -> None:
        idle_s = service.sim.set_replicas(now_s, len(service.ready) - len(jobs))
        for job, at_s in zip(jobs, idle_s.tolist(), strict=True):
            del service.ready[job]
            service.draining[job] = None
            if at_s <= now_s:
                self._retire_drained(service, job, now_s)
            else:
                self._engine.at(at_s, partial(self._retire_drained, service, job), essential=False)
        self._set_rates(service, now_s)
        service.log_ready(now_s)

    def _retire_drained(self, service: Service, job: int, now_s: float) -> None:
        if job in service.draining:
            self._cluster.retire(job, now_s)

    def _withdraw(self, service: Service, job: int, now_s: float) -> None:
        """Withdraw a pending replica.

        A scheduler with a queue of its own that cannot forget a job will start it some time; then it is removed at
        once.
        """
        forget = getattr(self._engine.scheduler, "on_withdraw", None)
        if forget is None:
            service.surplus[job] = None
        else:
            self._cluster.retire(job, now_s)
            forget(job, now_s)

    def _drop_surplus(self, service: Service, job: int, now_s: float) -> None:
        if job in service.surplus and job in self._cluster.holding:
            self._cluster.retire(job, now_s)

    # --- what it shows --------------------------------------------------------------------

    def table(self, now_s: float) -> ServiceTable:
        """The services as a collector of service metrics reports them: the last five whole minutes."""
        services = self._services
        if not services:
            nothing: ServiceTable = empty(ServiceTable)
            return nothing
        for service in services:
            service.sim.advance(now_s)
        recent = np.array([service.recent(now_s) for service in services], np.float64).T
        floors = [service.floor(now_s) for service in services]
        ceilings = [service.ceiling(now_s) for service in services]
        ids = np.empty(len(services), object)
        ids[:] = [service.deployment.name for service in services]
        specs, tokens = ([each.deployment.serving for each in services], [each.tokens(now_s) for each in services])
        objectives = (
            [nan if (value := getattr(spec, name)) is None else value for spec in specs]
            for name in ("objective_s", "ttft_objective_s", "itl_objective_s")
        )
        latency_s, ttft_s, itl_s = (np.array(column, np.float64) for column in objectives)
        age_s = now_s % WINDOW_S if now_s >= WINDOW_S else np.inf
        table: ServiceTable = make(
            ServiceTable,
            id=ids,
            uid=uids_of("service", len(services)),
            queue=np.array(self._queue, np.int32),
            replicas=np.array([service.wanted for service in services], np.int32),
            ready_replicas=np.array([len(service.ready) for service in services], np.int32),
            min_replicas=np.array([service.deployment.kept for service in services], np.int32),
            max_replicas=np.array([service.autoscaler.spec.max_replicas for service in services], np.int32),
            objective_s=latency_s,
            p99_s=recent[0].copy(),
            violation_ratio=recent[2].copy(),
            rate_rps=recent[1].copy(),
            queue_depth=np.array([service.sim.queue_depth for service in services], np.float64),
            age_s=np.full(len(services), age_s),
            generation=np.full(len(services), GENERATION, np.int32),
            needed_replicas=np.array([service.needed for service in services], np.int32),
            floor=np.array([replicas for replicas, _ in floors], np.int32),
            floor_until_s=np.array([until_s for _, until_s in floors], np.float64),
            load_ratio=np.array([service.load_ratio for service in services], np.float64),
            recent_rps=recent[3].copy(),
            recent_violation_ratio=recent[4].copy(),
            tokens_per_s=recent[5].copy(),
            wake_rps=recent[3].copy(),  # a gateway in front counts all arrivals
            wake_age_s=np.array([age_s if each.deployment.kept == 0 else nan for each in services], np.float64),
            ceiling=np.array([replicas for replicas, _ in ceilings], np.int32),
            ceiling_until_s=np.array([until_s for _, until_s in ceilings], np.float64),
            ceiling_way=np.zeros(len(services), np.int8),
            role=np.array([spec.role for spec in specs], np.int8),
            ttft_objective_s=ttft_s,
            itl_objective_s=itl_s,
            ttft_p99_s=np.array([each.ttft_p99_s for each in tokens], np.float64),
            itl_p99_s=np.array([each.itl_p99_s for each in tokens], np.float64),
            recent_ttft_violation_ratio=np.array([each.ttft_late_ratio for each in tokens], np.float64),
            recent_itl_violation_ratio=np.array([each.itl_late_ratio for each in tokens], np.float64),
        )
        return table

    def wanted(self, name: str) -> int:
        """Replicas that a service is to have."""
        return next(each.wanted for each in self._services if each.deployment.name == name)

    def load(self, name: str, now_s: float) -> tuple[int, int, int]:
        """Waiting and running requests of a service, and the slots of its ready replicas."""
        service = next(each for each in self._services if each.deployment.name == name)
        service.sim.advance(max(now_s, service.sim.now_s))
        slots = len(service.ready) * service.deployment.serving.slots
        return service.sim.queue_depth, service.sim.in_service, slots

    def totals(self, end_s: float) -> ServingTotals | None:
        """All services from the start to the end of the run; None when there are none."""
        if not self._services:
            return None
        for service in self._services:
            service.sim.advance(max(end_s, service.sim.now_s))
        return serving_totals([service.sim for service in self._services])

    def series(self) -> tuple[ServiceSeriesRow, ...]:
        """Each service over time, up to the last time it was advanced (`totals` advances to the end)."""
        return tuple(
            series_row(service.deployment.serving, service.sim.windows(), WINDOW_S, service.ready_log)
            for service in self._services
        )
