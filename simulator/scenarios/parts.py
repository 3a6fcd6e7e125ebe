"""The parts of a scenario file: jobs, services, faults. See simulator/scenarios/loader.py for the format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import inf, nan
from pathlib import Path
from typing import Any

from autopilot.core.model.errors import InputError, unknown_name
from autopilot.core.model.objects import ServingRole
from autopilot.core.model.snapshot import SLO_CLASS_NAMES, SloClass
from autopilot.core.model.units import parse_duration_s
from simulator.inference.autoscaler import AutoscalerSpec
from simulator.inference.deployments import Deployment
from simulator.inference.serving_records import ServiceSpec
from simulator.inference.synthetic_requests import DAY_S, SHAPES, Bursts, ServiceLoad
from simulator.running.faults import FaultOptions
from simulator.scenarios.scenario_jobs import FileJobs, JobGroup, SyntheticJobs
from simulator.specs.clusterfile import ClusterSpec
from simulator.specs.fields import Fields
from simulator.traces.columns import BY_NAME
from simulator.traces.gpu_models import is_mig_profile, model_for_label

MOST_JOBS = 1_000_000
MOST_WIDTH = 1_000_000
MOST_REPLICAS = 100_000
LONGEST_S = 3650 * 86_400.0


def inside(parent: Fields, name: str) -> Fields | None:
    """The mapping in a field; None when it is missing."""
    value = parent.get(name)
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise parent.fail(name, "write a mapping of fields")
    return Fields(value, parent.source, ".".join(part for part in (parent.path, name) if part))


def seconds(place: Fields, name: str, low_s: float, default: float | None = None) -> float:
    """Seconds of a duration such as 90s, 15m, 8h; required when `default` is None."""
    value = place.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise place.fail(name, "write a duration such as 90s, 15m or 8h")
    seconds = parse_duration_s(value, place.where(name))
    if not low_s <= seconds <= LONGEST_S:
        raise place.fail(name, f"write a duration from {low_s:g} s to 3650d")
    return seconds


def required_number(place: Fields, name: str, low: float, high: float, *, above: bool = False) -> float:
    """A required number."""
    if place.content.get(name) is None:
        raise place.fail(name, f"write a number {'above' if above else 'from'} {low:g}")
    return place.number(name, low, high, default=nan, above=above)


def texts(place: Fields, name: str) -> tuple[str, ...]:
    """A list of names; () when it is missing."""
    value = place.get(name)
    if value is None:
        return ()
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(each, str) and each.strip() for each in values):
        raise place.fail(name, "write a list of names")
    return tuple(each.strip() for each in values)


def read_job_sources(
    root: Fields, path: Path, horizon_s: float
) -> tuple[FileJobs | None, SyntheticJobs | None, tuple[JobGroup, ...]]:
    """The sources of jobs: file, synthetic trace, groups."""
    place = inside(root, "jobs")
    if place is None:
        return None, None, ()
    groups = tuple(_group(each, horizon_s) for each in place.each("groups"))
    parts = _file_jobs(place, path), _synthetic(place), groups
    place.done()
    return parts


def _file_jobs(place: Fields, path: Path) -> FileJobs | None:
    if isinstance(place.content.get("file"), str):
        place.content["file"] = {"path": place.content["file"]}
    inner = inside(place, "file")
    if inner is None:
        return None
    file = Path(inner.text("path"))
    found = file if file.is_absolute() else path.parent / file
    if not found.is_file():
        raise inner.fail("path", f"there is no file {found}")
    jobs = FileJobs(path=found, tenants=texts(inner, "tenants"))
    inner.done()
    return jobs


def _synthetic(place: Fields) -> SyntheticJobs | None:
    inner = inside(place, "synthetic")
    if inner is None:
        return None
    tenants = inner.get("tenants")
    if isinstance(tenants, int) and not isinstance(tenants, bool) and 1 <= tenants <= 10_000:
        names: tuple[str, ...] = tuple(f"tenant-{number:02d}" for number in range(tenants))
    else:
        names = texts(inner, "tenants") or tuple(f"tenant-{number:02d}" for number in range(4))
    jobs = SyntheticJobs(
        load=required_number(inner, "load", 0.0, 100.0, above=True),
        tenants=names,
        users_per_tenant=inner.whole("users_per_tenant", 1, 10_000, default=6),
        max_duration_s=seconds(inner, "max_duration", 1.0) if inner.get("max_duration") is not None else None,
        max_width=inner.whole("max_width", 1, MOST_WIDTH) if inner.get("max_width") is not None else None,
        start_hour=inner.number("start_hour", 0.0, 24.0, default=0.0),
        trust=inner.text("trust", default="", allowed=BY_NAME["trust"].allowed),
        share=inner.text("share", default="", allowed=BY_NAME["share"].allowed),
    )
    inner.done()
    return jobs


def _group(place: Fields, horizon_s: float) -> JobGroup:
    if isinstance(place.content.get("gpus"), int):
        place.content["gpus"] = [place.content["gpus"]]
    widths = place.get("gpus") if place.get("gpus") is not None else [1]
    good = isinstance(widths, list) and widths
    if not good or not all(type(each) is int and 1 <= each <= MOST_WIDTH for each in widths):
        raise place.fail("gpus", "write numbers of GPUs, for example [1, 2, 8]")
    tenants = texts(place, "tenants")
    if not tenants:
        raise place.fail("tenants", "write a list of names")
    profile = place.text("mig_profile", default="-")
    if profile != "-" and not is_mig_profile(profile):
        raise place.fail("mig_profile", "write a MIG profile such as 1g.10gb")
    group = JobGroup(
        kind=place.text("kind"),
        count=place.whole("count", 1, MOST_JOBS),
        tenants=tenants,
        duration_s=seconds(place, "duration", 1.0),
        from_s=seconds(place, "from", 0.0, default=0.0),
        to_s=seconds(place, "to", 0.0, default=horizon_s),
        gpus=tuple(widths),
        gpu_milli=place.whole("gpu_milli", 1, 1000, default=1000),
        mig_profile="" if profile == "-" else profile,
        gpu_type=place.text("gpu_type", default=""),
        spread=place.number("spread", 0.0, 5.0, default=0.5),
        cpus_per_gpu=place.number("cpus_per_gpu", 0.0, 1e6, default=nan),
        topology=place.text("topology", default="-", allowed=("-", "node", "island", "leaf", "block", "zone")).replace(
            "-", ""
        ),
        preemptible=None if place.get("preemptible") is None else place.flag("preemptible", default=True),
        priority=None if place.get("priority") is None else place.whole("priority", 0, 2**31 - 1),
        min_gpus=place.whole("min_gpus", 1, MOST_WIDTH) if place.get("min_gpus") is not None else 0,
        checkpoint_interval_s=_checkpoint_interval_s(place),
        checkpoint_gib=place.number("checkpoint_gib", 0.0, 1e7, default=nan),
        limit_ratio=place.number("limit_ratio", 0.0, 1e6, default=nan, above=True),
        every_s=seconds(place, "every", 1.0, default=0.0),
        together=place.whole("together", 1, MOST_JOBS, default=1),
        jitter_s=seconds(place, "jitter", 0.0, default=0.0),
        name=place.text("name", default=""),
        users=place.whole("users", 1, 10_000) if place.get("users") is not None else 0,
        slo_class=place.text("slo_class", default="batch", allowed=SLO_CLASS_NAMES).replace("batch", ""),
        trust=place.text("trust", default="", allowed=BY_NAME["trust"].allowed),
        share=place.text("share", default="", allowed=BY_NAME["share"].allowed),
        peak_memory_gib=place.number("memory_gib", 0.0, 1e4, default=nan, above=True),
        images=place.whole("images", 1, 10_000) if place.get("images") is not None else 0,
    )
    place.done()
    if group.to_s < group.from_s:
        raise place.fail("to", "write a time after `from`")
    return group


def _checkpoint_interval_s(place: Fields) -> float:
    """Time between two checkpoints; infinity for `never`, NaN where not specified."""
    if place.get("checkpoint_interval") == "never":
        return inf
    return seconds(place, "checkpoint_interval", 1.0, default=nan)


def read_service(place: Fields, cluster: ClusterSpec, earlier: Mapping[str, Deployment]) -> Deployment:
    """One service of the list. `earlier` are those before it, by name."""
    name = place.text("name")
    role = ServingRole[place.text("role", default="whole", allowed=("whole", "prefill", "decode")).upper()]
    profile = place.text("mig_profile", default="-")
    if profile != "-" and not is_mig_profile(profile):
        raise place.fail("mig_profile", "write a MIG profile such as 1g.10gb")
    spec = ServiceSpec(
        name=name,
        slots=place.whole("slots", 1, 100_000),
        prefill_tokens_per_s=_speed(place, "prefill_tokens_per_s", needed=role != ServingRole.DECODE),
        decode_tokens_per_s=_speed(place, "decode_tokens_per_s", needed=role != ServingRole.PREFILL),
        objective_s=_objective_s(place, "objective"),
        ttft_objective_s=_objective_s(place, "ttft_objective"),
        itl_objective_s=_objective_s(place, "itl_objective"),
        role=role,
    )
    try:
        autoscaler, initial, least = _autoscaler(place)
        deployment = Deployment(
            serving=spec,
            tenant=place.text("tenant"),
            autoscaler=autoscaler,
            initial_replicas=initial,
            least_replicas=least,
            gpus_per_replica=place.whole("gpus_per_replica", 1, MOST_WIDTH, default=1),
            gpu_milli=place.whole("gpu_milli", 1, 999) if place.get("gpu_milli") is not None else 0,
            mig_profile="" if profile == "-" else profile,
            gpu_models=_models(place, cluster),
            load_s=seconds(place, "load_time", 0.0, default=nan),
            slo_class=SloClass(SLO_CLASS_NAMES.index(place.text("slo_class", SLO_CLASS_NAMES[0], SLO_CLASS_NAMES))),
            preemptible=place.flag("preemptible", default=False),
            slowed_by=_slowed_by(place),
            **_load(place, name, earlier),
        )
    except InputError as error:
        raise _placed(place, error) from None
    place.done()
    return deployment


def _speed(place: Fields, name: str, *, needed: bool) -> float:
    """Tokens per second; infinite for the part that another pool does."""
    if needed:
        return required_number(place, name, 0.0, 1e9, above=True)
    if place.get(name) is not None:
        raise place.fail(name, "leave it out: its role does not do this part")
    return inf


def _objective_s(place: Fields, name: str) -> float | None:
    return None if place.get(name) is None else seconds(place, name, 1e-6)


def _placed(place: Fields, error: InputError) -> InputError:
    """The error of a record, with its place in the file added where it is missing."""
    return error if str(error).startswith(place.source) else InputError(f"{place.where('')}: {error}")


def _models(place: Fields, cluster: ClusterSpec) -> tuple[str, ...]:
    names = []
    for label in texts(place, "gpu_models"):
        model = model_for_label(label)
        if model not in cluster.gpus_by_model:
            wrong = f"the cluster has no {label}; {unknown_name(label, cluster.gpus_by_model)}"
            raise place.fail("gpu_models", wrong)
        names.append(model)
    return tuple(names)


def _autoscaler(place: Fields) -> tuple[AutoscalerSpec, int, int | None]:
    """Its autoscaler, the initial number of replicas, and what its owner keeps while it is idle."""
    replicas = inside(place, "replicas")
    if replicas is None:
        raise place.fail("replicas", "write {initial: 2, min: 1, max: 8}")
    initial = replicas.whole("initial", 0, MOST_REPLICAS)
    low = replicas.whole("min", 0, MOST_REPLICAS, default=min(initial, 1))
    high = replicas.whole("max", 0, MOST_REPLICAS, default=initial)
    least = replicas.whole("least", 0, MOST_REPLICAS) if replicas.get("least") is not None else None
    replicas.done()
    inner = inside(place, "autoscaler") or Fields({}, place.source, f"{place.path}.autoscaler")
    metric = inner.text("metric", default="utilization", allowed=("utilization", "queue_per_replica"))
    spec = AutoscalerSpec(
        target=inner.number("target", 0.0, 1e6, default=0.6, above=True),
        metric="utilization" if metric == "utilization" else "queue_per_replica",
        min_replicas=low,
        max_replicas=high,
        period_s=seconds(inner, "period", 1.0, default=30.0),
        tolerance_ratio=inner.number("tolerance_ratio", 0.0, 10.0, default=0.1),
        down_stabilisation_s=seconds(inner, "down_stabilisation", 0.0, default=300.0),
        up_stabilisation_s=seconds(inner, "up_stabilisation", 0.0, default=0.0),
        up_replicas=inner.whole("up_replicas", 0, MOST_REPLICAS, default=4),
        up_ratio=inner.number("up_ratio", 0.0, 1000.0, default=1.0),
    )
    inner.done()
    return spec, initial, least


def _slowed_by(place: Fields) -> dict[str, float]:
    """Names of jobs that slow it, with how many times as slow it is beside them."""
    given = place.get("slowed_by") or {}
    if not isinstance(given, Mapping):
        raise place.fail("slowed_by", "write {NAME: 1.6}: names of jobs, and how many times as slow it is beside them")
    inner = Fields(dict(given), place.source, f"{place.path}.slowed_by")
    return {str(name): required_number(inner, str(name), 1.0, 100.0, above=True) for name in given}


def _load(place: Fields, name: str, earlier: Mapping[str, Deployment]) -> dict[str, Any]:
    """The fields of a deployment that come from `requests`: its own, or the name of a service with the same ones."""
    if isinstance(place.get("requests"), str):
        other = place.text("requests")
        if other not in earlier:
            raise place.fail("requests", f"write the name of an earlier service; {unknown_name(other, earlier)}")
        return {"load": earlier[other].load, "calls_from_s": earlier[other].calls_from_s}
    inner = inside(place, "requests")
    if inner is None:
        return {}
    load = ServiceLoad(
        name=name,
        mean_rps=required_number(inner, "mean_rps", 0.0, 1e6),
        shape=SHAPES[inner.text("shape", default="m-large", allowed=tuple(SHAPES))],
        swing=inner.number("swing", 0.0, 20.0, default=1.0),
        peak_at_s=None if inner.get("peak_at") is None else seconds(inner, "peak_at", 0.0),
        bursts=_bursts(inner),
        noise=inner.number("noise", 0.0, 20.0, default=1.0),
    )
    from_s = seconds(inner, "from", 0.0, default=0.0)
    inner.done()
    return {"load": load, "calls_from_s": from_s}


def _bursts(place: Fields) -> Bursts | None:
    """The bursts of a service; None when it has none."""
    inner = inside(place, "bursts")
    if inner is None:
        return None
    bursts = Bursts(
        per_day=required_number(inner, "per_day", 0.0, 10_000.0),
        factor=required_number(inner, "factor", 1.0, 1000.0),
        rise_s=seconds(inner, "rise", 1.0),
        length_s=seconds(inner, "length", 0.0),
        log_sd=inner.number("spread", 0.0, 5.0, default=0.4),
        daily_s=tuple(parse_duration_s(each, inner.where("daily")) for each in texts(inner, "daily")),
    )
    if not all(0.0 <= each < DAY_S for each in bursts.daily_s):
        raise inner.fail("daily", "write times of day from 0h to 24h, for example [9h, 13h30m]")
    inner.done()
    return bursts


@dataclass(frozen=True, slots=True)
class SlowSpec:
    """A GPU that computes slowly: `ratio` is its busy time over that of others."""

    node: str
    gpu: int
    ratio: float


def read_slow_gpus(root: Fields) -> tuple[SlowSpec, ...]:
    """The slow GPUs."""
    found = []
    for each in root.each("slow_gpus"):
        found.append(SlowSpec(each.text("node"), each.whole("gpu", 0, 63), required_number(each, "ratio", 1.0, 10.0)))
        each.done()
    return tuple(found)


def read_faults(root: Fields) -> FaultOptions | None:
    """The faults; None when there are none."""
    inner = inside(root, "faults")
    if inner is None:
        return None
    values: dict[str, Any] = {}
    default = FaultOptions()
    for option in fields(FaultOptions):
        usual: float = getattr(default, option.name)
        if option.name.endswith("_s"):
            values[option.name] = seconds(inner, option.name.removesuffix("_s"), 0.0, default=usual)
        else:
            values[option.name] = inner.number(option.name, 0.0, 1.0, default=usual)
    inner.done()
    try:
        return FaultOptions(**values)
    except InputError as error:
        raise InputError(f"{inner.where('')}: {error}") from None
