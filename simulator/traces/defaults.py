"""Defaults for missing values of jobs, by kind of work; every filled entry is counted."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autopilot.core.model.errors import InputError, unknown_name
from simulator.specs.fields import load_yaml
from simulator.traces.columns import BY_NAME
from simulator.traces.job_trace import JobTrace

SCHEMA = "gpu-autopilot/defaults/1"
SHIPPED = Path(__file__).with_name("defaults.yaml")

USUAL_LIMITS_S = (3600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0, 604_800.0, 2_592_000.0)
"""Limits that users typically declare: 1 h, 4 h, 12 h, 24 h, 3 d, 7 d, 30 d."""

FILLED = (
    "slo_class",
    "preemptible",
    "priority",
    "checkpoint_interval_s",
    "checkpoint_gib",
    "restart_s",
    "limit_s",
)
"""The columns that defaults may fill."""

LIMIT_FACTORS = (1.0, 2.0, 3.0, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class KindDefaults:
    """Defaults for the jobs with a kind matching the pattern `kind`; None: no default."""

    kind: str
    slo_class: str | None = None
    preemptible: bool | None = None
    priority: int | None = None
    checkpoint_interval_s: float | None = None
    checkpoint_gib_per_gpu: float | None = None
    restart_s: float | None = None
    limit_factor: float | None = None


@dataclass(frozen=True, slots=True)
class Defaults:
    """An ordered list of `KindDefaults`; the first pattern matching a job's kind applies."""

    source: str
    kinds: tuple[KindDefaults, ...]

    def fill(self, trace: JobTrace) -> JobTrace:
        """`trace` with its unknown entries filled, and `assumed` counting them by column."""
        codes, names = trace.codes("kind")
        rule_of_kind = np.array([self._rule(name) for name in names], dtype=np.int64)
        rule = rule_of_kind[codes] if len(names) else np.zeros(0, dtype=np.int64)
        columns: dict[str, Any] = {name: getattr(trace, name).copy() for name in FILLED}
        assumed = dict(trace.assumed)
        for number, default in enumerate(self.kinds):
            here = rule == number
            for column, value in _values_for(default, trace).items():
                unknown = here & _is_unknown(columns[column])
                filled = int(np.count_nonzero(unknown))
                if filled:
                    columns[column][unknown] = value[unknown] if isinstance(value, np.ndarray) else value
                    assumed[column] = assumed.get(column, 0) + filled
        return replace(trace, **columns, assumed=assumed)

    def _rule(self, kind: str) -> int:
        for number, default in enumerate(self.kinds):
            if fnmatch.fnmatchcase(kind.lower(), default.kind.lower()):
                return number
        return -1


def _values_for(default: KindDefaults, trace: JobTrace) -> dict[str, Any]:
    values: dict[str, Any] = {
        name: getattr(default, name)
        for name in ("slo_class", "preemptible", "priority", "checkpoint_interval_s", "restart_s")
        if getattr(default, name) is not None
    }
    if default.checkpoint_gib_per_gpu is not None:
        values["checkpoint_gib"] = default.checkpoint_gib_per_gpu * trace.gpu_share
    if default.limit_factor is not None:
        values["limit_s"] = usual_limit_s(trace.duration_s * default.limit_factor)
    return values


def _is_unknown(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    if values.dtype == object:
        return np.asarray(values == "", dtype=np.bool_)
    if values.dtype.kind == "f":
        return np.asarray(np.isnan(values), dtype=np.bool_)
    return np.asarray(values < 0, dtype=np.bool_)


def usual_limit_s(wanted_s: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The smallest usual limit at or above `wanted_s`, elementwise; `wanted_s` itself above 30 d."""
    ladder = np.array(USUAL_LIMITS_S)
    step = np.searchsorted(ladder, wanted_s, side="left")
    return np.where(step < len(ladder), ladder[np.minimum(step, len(ladder) - 1)], wanted_s)


def declared_limits_s(duration_s: npt.NDArray[np.float64], rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Plausible declared limits of users: over-estimates by 1, 2, 3, 5 or 10, rounded up to a typical one.

    For traces without limits and policies in need of one (EASY backfill); one factor per job, in job order.
    """
    return usual_limit_s(duration_s * rng.choice(LIMIT_FACTORS, size=len(duration_s)))


def load_defaults(path: Path | str | None = None) -> Defaults:
    """The defaults of a YAML file, the shipped ones if `path` is None.

    Raises `InputError` naming the file, the entry, the field, its value and the allowed values.
    """
    path = SHIPPED if path is None else Path(path)
    content = load_yaml(path, "the defaults file").content
    unknown = sorted(set(content) - {"schema", "kinds"})
    if unknown:
        raise InputError(f"{path}: {unknown[0]}: no such field; {unknown_name(unknown[0], ('schema', 'kinds'))}")
    if content.get("schema", SCHEMA) != SCHEMA:
        raise InputError(f"{path}: schema: {content['schema']!r} is not {SCHEMA}")
    entries = content.get("kinds")
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{path}: kinds: needs a list of at least one entry")
    return Defaults(str(path), tuple(_entry(entry, f"{path}: kinds[{i}]") for i, entry in enumerate(entries)))


def _one_of(allowed: tuple[str, ...]) -> tuple[Callable[[Any], bool], str]:
    return (lambda value: value in allowed), " | ".join(allowed)


def _number(low: float, high: float, *, whole: bool = False) -> tuple[Callable[[Any], bool], str]:
    kinds = (int,) if whole else (int, float)

    def holds(value: Any) -> bool:
        return isinstance(value, kinds) and not isinstance(value, bool) and low <= value <= high

    return holds, f"a {'whole ' if whole else ''}number from {low:g} to {high:g}"


def _within(name: str, *, whole: bool = False) -> tuple[Callable[[Any], bool], str]:
    """The limits of a column."""
    return _number(BY_NAME[name].low, BY_NAME[name].high, whole=whole)


_ALLOWED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "kind": (
        lambda value: isinstance(value, str) and bool(value.strip()),
        "a pattern such as train or infer*",
    ),
    "slo_class": _one_of(BY_NAME["slo_class"].allowed),
    "preemptible": (lambda value: isinstance(value, bool), "true or false"),
    "priority": _within("priority", whole=True),
    "checkpoint_interval_s": _within("checkpoint_interval_s"),
    "checkpoint_gib_per_gpu": _number(0, 1e4),
    "restart_s": _within("restart_s"),
    "limit_factor": _number(1, 1000),
}


def _entry(entry: object, where: str) -> KindDefaults:
    if not isinstance(entry, Mapping):
        raise InputError(f"{where}: {entry!r} is not a mapping with `kind` and its defaults")
    known = [item.name for item in fields(KindDefaults)]
    for name, value in entry.items():
        if name not in known:
            raise InputError(f"{where}.{name}: no such field; {unknown_name(name, known)}")
        holds, allowed = _ALLOWED[name]
        if value is not None and not holds(value):
            raise InputError(f"{where}.{name}: {value!r} is not allowed; write {allowed}")
    if entry.get("kind") is None:
        raise InputError(f"{where}.kind: is missing; write {_ALLOWED['kind'][1]}")
    return KindDefaults(**{str(name): value for name, value in entry.items()})
