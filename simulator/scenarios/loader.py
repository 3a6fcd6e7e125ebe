"""Reading a scenario file; every error is one message with file, field, value and fix.

name: small-day                 # defaults to the file's name
description: what it shows
seed: 0
horizon: 24h                    # length of the synthetic work and requests; faults go on until the end
cluster: 4x8                    # a shape, the path of a cluster file, or its fields (pools, queues, reservations)
jobs:                           # any of the three together
  file: {path: jobs.parquet, tenants: [a]}
  synthetic: {load: 0.6, tenants: [a, b], max_duration: 8h, max_width: 32, users_per_tenant: 6, start_hour: 8,
              trust: trusted, share: pair}    # of work of up to four GPUs; left out: not stated
  groups:
    - {kind: notebook, count: 20, tenants: [a], gpus: [1], duration: 3h, spread: 0.5, from: 0h, to: 8h}
    - kind: train
      count: 4
      tenants: [b]
      gpus: [16]
      min_gpus: 8               # elastic; left out: full width or nothing
      duration: 2h
      checkpoint_interval: 15m  # or never: a stop loses all progress; left out: from the physics
      checkpoint_gib: 90        # of the whole gang
      limit_ratio: 3            # declared run time over the true one; left out: none is declared
      priority: 10
      preemptible: true
      cpus_per_gpu: 24          # left out: none is requested
      every: 2h                 # one after the other from `from` on; left out: at random times from `from` to `to`
      together: 3               # jobs at each of these times; left out: one
      jitter: 10m               # standard deviation around these times
      name: work                # of its jobs, where the kind (their behaviour) must not show
      users: 6                  # of each tenant; left out: not stated
      slo_class: interactive
      gpu_type: H100-80GB       # left out: any
      trust: trusted            # untrusted | trusted | across-tenants; left out: not stated
      share: pair               # never | dev | pair; left out: not stated
      memory_gib: 30            # peak on each of its GPUs; left out: by the behaviour
      images: 2                 # programs of each user, which behave alike; left out: each job as drawn by its id
services:
  - name: chat
    tenant: a
    gpus_per_replica: 1         # or gpu_milli: 500, or mig_profile: 3g.40gb
    gpu_models: [H100-80GB]     # any when left out
    slots: 16
    prefill_tokens_per_s: 8000
    decode_tokens_per_s: 40
    objective: 20s              # latency; left out: it has none
    ttft_objective: 2s          # time to the first token; left out: it has none
    itl_objective: 100ms        # time from one token to the next; left out: it has none
    role: whole                 # also when left out; a pool of prefill has no decode_tokens_per_s, one of decode no
                                # prefill_tokens_per_s. The formulas: simulator/inference/token_times.py
    load_time: 60s              # of the model; left out: from the physics
    replicas: {initial: 2, min: 1, max: 8}    # least: 0, what its owner keeps while it is idle; left out: min
    slo_class: latency-critical # also when left out
    preemptible: false          # also when left out
    slowed_by: {copy: 1.6}      # factor on its latency beside jobs of that name on its node; default: none
    autoscaler: {target: 0.6, metric: utilization, period: 30s, down_stabilisation: 5m}
    requests: {mean_rps: 2, shape: m-large, swing: 1.0, noise: 1.0, peak_at: 15h, from: 5m,
               bursts: {per_day: 6, factor: 3, spread: 0.4, rise: 10m, length: 30m,    # left out: no bursts
                        daily: [9h, 17h]}}    # these every day, in addition to those at random times
                                # or the name of an earlier service: the same requests, for the other pool
faults: {node_mtbf: 6h}         # fields of simulator.running.faults.FaultOptions; times without their _s
slow_gpus: [{node: h100-001, gpu: 3, ratio: 1.4}]   # busy time there over that on others; left out: none
physics: real                   # ideal | charged | real
telemetry: windowed             # off | windowed | full
durations: predicted            # exact | hazard | last-two | predicted
policies: [fifo-skip, autopilot]
policy: {idle.window_s: 45m}    # values of policy fields for this work, by path; a policy file may set others
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from autopilot.core.model.errors import InputError, unknown_name
from autopilot.core.model.policy import Policy
from autopilot.policies.changing import changed_policy
from simulator.inference.deployments import Deployment
from simulator.running.faults import FaultOptions
from simulator.scenarios.parts import (
    SlowSpec,
    inside,
    read_faults,
    read_job_sources,
    read_service,
    read_slow_gpus,
    seconds,
    texts,
)
from simulator.scenarios.scenario_jobs import FileJobs, JobGroup, SyntheticJobs, scenario_jobs
from simulator.specs.clusterfile import ClusterSpec, parse_cluster, read_cluster
from simulator.specs.fields import Fields, load_yaml
from simulator.traces.job_trace import JobTrace
from simulator.world.physics import PHYSICS

SHIPPED = Path(__file__).parent
SIMULATED_WORK = SHIPPED.parent / "simulated_work.yaml"
TELEMETRY = ("off", "windowed", "full")
DURATIONS = ("exact", "hazard", "last-two", "predicted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One situation: hardware, work, services, faults, and its usual settings."""

    name: str
    description: str
    source: str
    cluster: ClusterSpec
    horizon_s: float
    seed: int = 0
    file_jobs: FileJobs | None = None
    synthetic_jobs: SyntheticJobs | None = None
    job_groups: tuple[JobGroup, ...] = ()
    services: tuple[Deployment, ...] = ()
    faults: FaultOptions | None = None
    slow_gpus: tuple[SlowSpec, ...] = ()
    physics: str = "real"
    telemetry: str = "windowed"
    durations: str = "predicted"
    policies: tuple[str, ...] = ()
    policy: Mapping[str, Any] = field(default_factory=dict)

    def jobs(self, seed: int | None = None) -> JobTrace:
        """Its jobs, drawn with `seed` (None: its own)."""
        return scenario_jobs(
            self.file_jobs,
            self.synthetic_jobs,
            self.job_groups,
            cluster_gpus=self.cluster.gpus,
            horizon_s=self.horizon_s,
            seed=self.seed if seed is None else seed,
        )


def scenario_names() -> tuple[str, ...]:
    """The shipped scenarios, in alphabetical order."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.yaml")))


def load_scenario(name_or_path: str | Path) -> Scenario:
    """A shipped scenario by its name, or one from a YAML file.

    Raises `InputError` naming the file, the field, its value and what is allowed.
    """
    words = str(name_or_path)
    path = SHIPPED / f"{words}.yaml" if words in scenario_names() else Path(name_or_path)
    if not path.exists():
        raise InputError(
            f"scenario {words!r}: neither a file nor a shipped scenario; {unknown_name(words, scenario_names())}"
        )
    root = load_yaml(path, "the scenario file")
    cluster = _cluster(root, path)
    horizon_s = seconds(root, "horizon", 60.0)
    file_jobs, synthetic, groups = read_job_sources(root, path, horizon_s)
    scenario = Scenario(
        name=root.text("name", default=path.stem),
        description=_prose(root),
        source=str(path),
        cluster=cluster,
        horizon_s=horizon_s,
        seed=root.whole("seed", 0, 2**32 - 1, default=0),
        file_jobs=file_jobs,
        synthetic_jobs=synthetic,
        job_groups=groups,
        services=_services(root, cluster),
        faults=read_faults(root),
        slow_gpus=read_slow_gpus(root),
        physics=root.text("physics", default="real", allowed=tuple(PHYSICS)),
        telemetry=root.text("telemetry", default="windowed", allowed=TELEMETRY),
        durations=root.text("durations", default="predicted", allowed=DURATIONS),
        policies=texts(root, "policies"),
        policy=_policy(root, path),
    )
    root.done()
    names = [each.name for each in scenario.services]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InputError(f"{path}: services[{index}].name: {name!r} occurs twice; services need different names")
    if not (scenario.services or file_jobs or synthetic or groups):
        raise InputError(f"{path}: neither jobs nor services; add at least one of them")
    return scenario


def _services(root: Fields, cluster: ClusterSpec) -> tuple[Deployment, ...]:
    made: dict[str, Deployment] = {}
    found = []
    for each in root.each("services"):
        found.append(read_service(each, cluster, made))
        made.setdefault(found[-1].name, found[-1])
    return tuple(found)


def policy_values(scenario: Scenario | None) -> Mapping[str, Any]:
    """Values of policy fields for simulated work, and on top of them those of a scenario."""
    return _simulated_work() | dict(scenario.policy if scenario else {})


@cache
def _simulated_work() -> dict[str, Any]:
    return load_yaml(SIMULATED_WORK, "the policy of simulated work").content


def _policy(root: Fields, path: Path) -> dict[str, Any]:
    value = root.get("policy")
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise root.fail("policy", "write fields of the policy by path, for example {idle.window_s: 45m}")
    changed_policy(Policy(), value, f"{path}: policy")  # its mistakes show at once
    return dict(value)


def _prose(root: Fields) -> str:
    value = root.get("description")
    if value is not None and not isinstance(value, str):
        raise root.fail("description", "write a text")
    return " ".join((value or "").split())


def _cluster(root: Fields, path: Path) -> ClusterSpec:
    value = root.get("cluster")
    if isinstance(value, str):
        beside = path.parent / value
        try:
            return parse_cluster(beside if beside.is_file() else value)
        except InputError as error:
            raise InputError(f"{root.where('cluster')}: {error}") from None
    inner = inside(root, "cluster")
    if inner is None:
        raise root.fail("cluster", "write a shape such as 4x8, the path of a cluster file, or its fields")
    return read_cluster(inner, str(path))
