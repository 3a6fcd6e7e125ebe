"""Deployments of inference services: the hardware of a replica, the range of replica counts, and the requests.

A `Deployment` is one service with its replica control; `requests_for` joins deployments with the requests of a run,
from a file or synthetic, and states its assumptions as text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, nan
from pathlib import Path

import numpy as np

from autopilot.core.model.errors import InputError
from autopilot.core.model.records import Inventory
from autopilot.core.model.snapshot import SloClass
from simulator.inference.autoscaler import AutoscalerSpec
from simulator.inference.requests import (
    Arrivals,
    ArrivalSource,
    ListedArrivals,
    Requests,
    read_requests,
    thin,
)
from simulator.inference.serving_records import ServiceSpec
from simulator.inference.synthetic_requests import ServiceLoad, SyntheticArrivals, service_rng
from simulator.running.faults import child_generator
from simulator.world.work import Shape

UNKNOWN_TENANT = "serving"
"""Tenant of a service that appears in a request file only."""

# A replica of an unnamed model: assumptions in the range of an 8B model on one data-centre GPU with
# continuous batching, not measurements. They only set how much work a token is.
DEFAULT_SLOTS = 16
DEFAULT_PREFILL_TOKENS_PER_S = 8000.0
DEFAULT_DECODE_TOKENS_PER_S = 40.0
DEFAULT_TARGET = 0.6
_SIZING_BIN_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One service: the speed of a replica, the hardware of a replica, and how many there are."""

    serving: ServiceSpec
    tenant: str
    autoscaler: AutoscalerSpec
    initial_replicas: int
    gpus_per_replica: int = 1
    """whole GPUs on one node; 1 with `gpu_milli` or `mig_profile`"""
    gpu_milli: int = 0
    """share of one GPU in thousandths; 0: whole GPUs"""
    mig_profile: str = ""
    gpu_models: tuple[str, ...] = ()
    """GPU models that it may use; (): any"""
    load_s: float = nan
    """time to load the model after the container started; NaN: from the physics"""
    load: ServiceLoad | None = None
    """its synthetic requests; None: it has requests only where a file names it"""
    slo_class: SloClass = SloClass.LATENCY_CRITICAL
    preemptible: bool = False
    least_replicas: int | None = None
    """replicas that its owner keeps while it is idle; None: the minimum of its autoscaler. With 0 a gateway wakes it"""
    slowed_by: Mapping[str, float] = field(default_factory=dict)
    """names of jobs that slow a replica on their node, and how many times as slow it is then"""
    calls_from_s: float = 0.0
    """synthetic requests before this are dropped: its first replicas need that long to start"""

    @property
    def name(self) -> str:
        """The service's name."""
        return self.serving.name

    def __post_init__(self) -> None:
        """Raise `InputError` naming the field that is out of range."""
        if self.gpus_per_replica < 1 or (self.gpus_per_replica > 1 and (self.gpu_milli or self.mig_profile)):
            raise InputError(
                f"service {self.name}: gpus_per_replica = {self.gpus_per_replica}: write 1 or more whole GPUs, "
                "and only 1 beside gpu_milli or mig_profile"
            )
        if not 0 <= self.gpu_milli < 1000 or (self.gpu_milli and self.mig_profile):
            raise InputError(
                f"service {self.name}: gpu_milli = {self.gpu_milli}: write 1 to 999 thousandths of one GPU, "
                "and not beside mig_profile"
            )
        if self.least_replicas is not None and not 0 <= self.least_replicas <= self.autoscaler.min_replicas:
            raise InputError(
                f"service {self.name}: least_replicas = {self.least_replicas}: write 0 or more, and at most "
                f"min_replicas {self.autoscaler.min_replicas}"
            )
        low, high = self.autoscaler.min_replicas, self.autoscaler.max_replicas
        if not low <= self.initial_replicas <= high:
            raise InputError(
                f"service {self.name}: initial_replicas = {self.initial_replicas} is not between "
                f"min_replicas {low} and max_replicas {high}"
            )

    @property
    def kept(self) -> int:
        """Replicas that its owner keeps, at the least."""
        return self.autoscaler.min_replicas if self.least_replicas is None else self.least_replicas

    def shape(self, inventory: Inventory) -> Shape:
        """The hardware request of one replica on `inventory`."""
        names = inventory.names.gpu_models
        models = sum(1 << names.index(model) for model in self.gpu_models if model in names)
        if self.gpu_models and not models:
            raise InputError(
                f"service {self.name}: gpu_models = {', '.join(self.gpu_models)}: the cluster has none of "
                f"them; it has {', '.join(names)}"
            )
        gpus = self.gpus_per_replica
        return Shape(
            gpus=gpus, per_member=gpus, min_gpus=gpus, milli=self.gpu_milli, profile=self.mig_profile, models=models
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The services of a simulation and their requests, opened anew by each run.

    `horizon_s` is the time of the last request (file) or the end of generated requests (synthetic); `notes` lists what
    was assumed or dropped.
    """

    deployments: tuple[Deployment, ...] = ()
    horizon_s: float = 0.0
    sources: Callable[[], list[ArrivalSource]] = list
    """new sources, one per deployment: the same requests at every call"""
    notes: tuple[str, ...] = ()
    unusable_by_reason: Mapping[str, int] = field(default_factory=dict)


def requests_for(
    deployments: Sequence[Deployment],
    path: str | Path | None = None,
    *,
    horizon_s: float,
    seed: int = 0,
    rate_scale: float = 1.0,
    columns: Mapping[str, str] | None = None,
) -> Services:
    """The services that have requests, from the file `path` or, without one, synthetic up to `horizon_s`.

    A service in a file uses the deployment of its name; without one it gets a default sized from its traffic.
    Deployments without requests are dropped. `rate_scale` in (0, 1] keeps that fraction of the requests and scales the
    numbers of replicas with it. Raises `InputError`.
    """
    if not 0 < rate_scale <= 1:
        raise InputError(f"rate-scale: {rate_scale!r} is not in (0, 1]; 0.1 keeps every tenth request")
    _check_names(deployments)
    notes = []
    if rate_scale < 1:
        notes.append(
            f"{rate_scale:g} of the requests are kept, each with that probability, and numbers of replicas "
            "are scaled with them (rounded up): gaps are closer to Poisson than in the whole trace"
        )
    if path is None:
        return _synthetic(deployments, horizon_s, seed, rate_scale, notes)
    requests = read_requests(path, columns)
    return _listed(deployments, requests, str(path), seed, rate_scale, [*requests.notes, *notes])


class _From:
    """The requests of another source from a given time on."""

    def __init__(self, source: ArrivalSource, from_s: float) -> None:
        self._source, self._from_s = source, from_s

    def upto(self, to_s: float) -> Arrivals:
        """Like the other source, without earlier requests."""
        arrivals = self._source.upto(to_s)
        first = int(np.searchsorted(arrivals.t_s, self._from_s, side="left"))
        return Arrivals._make(column[first:] for column in arrivals) if first else arrivals


def _check_names(deployments: Sequence[Deployment]) -> None:
    names = [deployment.name for deployment in deployments]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"services: {twice[0]!r} occurs twice; services need different names")


def _synthetic(
    deployments: Sequence[Deployment], horizon_s: float, seed: int, rate_scale: float, notes: list[str]
) -> Services:
    called = [(each, each.load) for each in deployments if each.load is not None]
    silent = [each.name for each in deployments if each.load is None]
    if silent:
        notes.append(f"dropped, because no requests exist for them: {', '.join(silent)}")
    loads = [replace(load, mean_rps=load.mean_rps * rate_scale) for _, load in called]
    return Services(
        deployments=tuple(_scaled(each, rate_scale) for each, _ in called),
        horizon_s=horizon_s if called else 0.0,
        sources=lambda: [
            _From(SyntheticArrivals(service_rng(seed, load.name), load, horizon_s), deployment.calls_from_s)
            for (deployment, _), load in zip(called, loads, strict=True)
        ],
        notes=tuple(notes),
    )


def _listed(
    deployments: Sequence[Deployment],
    requests: Requests,
    path: str,
    seed: int,
    rate_scale: float,
    notes: list[str],
) -> Services:
    last_s = float(requests.t_s[-1])
    arrivals = {name: requests.arrivals(name) for name in requests.services}
    known = {each.name: each for each in deployments}
    silent = [name for name in known if name not in arrivals]
    if silent:
        notes.append(f"dropped, because {path} has no requests for them: {', '.join(silent)}")
    chosen = []
    for name in requests.services:
        deployment = known.get(name)
        if deployment is None:
            deployment, note = sized_deployment(name, arrivals[name])
            notes.append(note)
        chosen.append(_scaled(deployment, rate_scale))
    if rate_scale < 1:
        requests = thin(requests, rate_scale, child_generator(seed, "rate-scale"))
        arrivals = {name: requests.arrivals(name) for name in requests.services}
    return Services(
        deployments=tuple(chosen),
        horizon_s=last_s,
        sources=lambda: [ListedArrivals(arrivals[each.name]) for each in chosen],
        notes=tuple(notes),
        unusable_by_reason=requests.unusable_by_reason,
    )


def _scaled(deployment: Deployment, rate_scale: float) -> Deployment:
    """Its numbers of replicas x `rate_scale`, rounded up."""
    if rate_scale == 1:
        return deployment
    spec = deployment.autoscaler
    scaled = replace(
        spec,
        min_replicas=ceil(spec.min_replicas * rate_scale),
        max_replicas=ceil(spec.max_replicas * rate_scale),
    )
    return replace(deployment, autoscaler=scaled, initial_replicas=ceil(deployment.initial_replicas * rate_scale))


def sized_deployment(name: str, arrivals: Arrivals) -> tuple[Deployment, str]:
    """A deployment for a service without a description, and a sentence on how it was sized.

    One GPU per replica with the default speed. Replicas: at most twice what the busiest five minutes need at the target
    utilization; at the start what the first five minutes need. Objective: twice the 99th percentile of the time that
    requests take without waiting, so that violations are due to waiting.
    """
    spec = ServiceSpec(
        name=name,
        slots=DEFAULT_SLOTS,
        prefill_tokens_per_s=DEFAULT_PREFILL_TOKENS_PER_S,
        decode_tokens_per_s=DEFAULT_DECODE_TOKENS_PER_S,
    )
    service_s = spec.service_s(arrivals.input_tokens, arrivals.output_tokens)
    work_s = np.bincount((arrivals.t_s // _SIZING_BIN_S).astype(np.int64), weights=service_s, minlength=1)
    replicas = np.ceil(work_s / (_SIZING_BIN_S * DEFAULT_SLOTS * DEFAULT_TARGET)).astype(int)
    most = max(2, 2 * int(replicas.max()))
    first = max(1, int(replicas[0]))
    objective_s = round(2 * float(np.quantile(service_s, 0.99)), 3) if len(service_s) else 0.0
    deployment = Deployment(
        serving=replace(spec, objective_s=objective_s or None),
        tenant=UNKNOWN_TENANT,
        autoscaler=AutoscalerSpec(target=DEFAULT_TARGET, min_replicas=1, max_replicas=most, period_s=30.0),
        initial_replicas=first,
    )
    objective = f"{objective_s:g} s (twice the p99 without waiting)" if objective_s else "none"
    note = (
        f"service {name} has no description: assumed 1 GPU per replica, {DEFAULT_SLOTS} slots, "
        f"{DEFAULT_PREFILL_TOKENS_PER_S:g} input and {DEFAULT_DECODE_TOKENS_PER_S:g} output tokens/s per "
        f"slot, 1 to {most} replicas from its traffic, objective {objective}, tenant {UNKNOWN_TENANT}"
    )
    return deployment, note
