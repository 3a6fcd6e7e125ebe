"""Declarations of the owner of a service about its replicas, and the controller's records of a floor and a ceiling.

Both are annotations of the Deployment or StatefulSet, not of its pods.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from typing import Any

from autopilot.contract.notes import read_record
from autopilot.contract.tree import PREFIX

MIN_REPLICAS, MAX_REPLICAS = "min-replicas", "max-replicas"
SCALE, WAKE_SIGNAL, FLOOR, CEILING = "scale", "wake-signal", "floor", "ceiling"
_REPLICAS = (MIN_REPLICAS, MAX_REPLICAS)
SERVICE_NAMES = frozenset({MIN_REPLICAS, MAX_REPLICAS, SCALE, WAKE_SIGNAL, FLOOR, CEILING})
"""Names with our prefix on services without a meaning for a single replica."""

POD_REVISION = "deployment.kubernetes.io/revision"
MOST_REPLICAS = 100_000
MOST_GENERATION = 2**31 - 1
"""Largest generation of a service in the tables of the snapshot."""
KEDA = "ScaledObject"
"""The kind of KEDA's object for an autoscaler."""
FLOOR_METRIC = "gpu-autopilot-floor"
"""Metric by which an autoscaler follows the floor: the name that KEDA's external scaler states, and part of the name
of an external metric for an HPA (`-` and `_` count as the same).
"""


class WakeSignal(StrEnum):
    """Sign of demand for a service without a replica."""

    GATEWAY = "gateway"  # requests at the gateway or mesh in front of it


class Way(StrEnum):
    """Ways of a floor to the replicas of a service."""

    METRIC = "metric"  # an HPA follows our metric
    HPA = "hpa"  # minReplicas of its HPA
    SCALE = "scale"  # its scale subresource


@dataclass(frozen=True, slots=True)
class Scaling:
    """Declarations of the owner. None: not declared."""

    min_replicas: int | None = None
    max_replicas: int | None = None
    may_scale: bool = False
    wake_signal: WakeSignal | None = None
    problem: str = ""  # reason for a refused declaration; then none of them counts


@dataclass(frozen=True, slots=True)
class Floor:
    """A standing floor. `owner` and `ours`: replicas before it and as set by it; None: it set none."""

    id: str  # of the instruction
    replicas: int
    until_s: float
    way: Way
    owner: int | None = None
    ours: int | None = None

    def text(self) -> str:
        """The value of the annotation."""
        found = {"id": self.id, "replicas": self.replicas, "until": round(self.until_s, 3), "way": self.way.value}
        if self.owner is not None and self.ours is not None:
            found |= {"owner": self.owner, "ours": self.ours}
        return json.dumps(found)


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A standing ceiling: `owner` replicas before it, and `ours` since.

    `generation` is that of the service at the decision, and `revision` that of its pods: writes of the controller
    change the generation, and only a change by somebody else changes the revision (`unchanged`).
    """

    id: str  # of the instruction
    replicas: int
    until_s: float
    owner: int
    ours: int
    generation: int
    revision: str

    def text(self) -> str:
        """The value of the annotation."""
        found = {"id": self.id, "replicas": self.replicas, "until": self.until_s}
        found |= {"owner": self.owner, "ours": self.ours, "generation": self.generation, "revision": self.revision}
        return json.dumps(found)

    def unchanged(self, replicas: int, revision: str) -> bool:
        """True if the service has our number of replicas, and its earlier pods."""
        return replicas == self.ours and revision == self.revision


def read_scaling(annotations: Mapping[str, str]) -> Scaling:
    """The declarations of the owner of a service; `problem` names the first value that is not allowed."""
    given = {name: annotations.get(PREFIX + name, "").strip() for name in (*_REPLICAS, SCALE, WAKE_SIGNAL)}
    problem = _problem(given)
    if problem:
        return Scaling(problem=PREFIX + problem)
    least, most = (int(given[name]) if given[name] else None for name in _REPLICAS)
    signal = WakeSignal(given[WAKE_SIGNAL]) if given[WAKE_SIGNAL] else None
    return Scaling(least, most, given[SCALE] == "true", signal)


def _problem(given: Mapping[str, str]) -> str:
    for name in _REPLICAS:
        text = given[name]
        if text and (not text.isdecimal() or len(text) > 6 or int(text) > MOST_REPLICAS):
            return f"{name}: {text[:60]!r} is not allowed; it takes a whole number from 0 to {MOST_REPLICAS:,}"
    least, most = (given[name] for name in _REPLICAS)
    if least and most and int(least) > int(most):
        return f"{MIN_REPLICAS}: {least} is above {MAX_REPLICAS}, {most}; write at most that"
    for name, allowed in ((SCALE, ("true", "false")), (WAKE_SIGNAL, tuple(WakeSignal))):
        if given[name] and given[name] not in allowed:
            return f"{name}: {given[name][:60]!r} is not allowed; it takes one of {', '.join(allowed)}"
    return ""


def read_floor(text: str) -> Floor | None:
    """The floor recorded in an annotation; None for none, and for any other text."""
    try:
        found: Any = read_record(text)
        numbers = [found.get(name) for name in ("owner", "ours")]
        floor = Floor(str(found["id"]), int(found["replicas"]), float(found["until"]), Way(found["way"]), *numbers)
    except (ValueError, TypeError, KeyError, OverflowError):
        return None
    whole = all(number is None or _replicas(number) for number in numbers)
    return floor if whole and _replicas(floor.replicas) and isfinite(floor.until_s) else None


def read_ceiling(text: str) -> Ceiling | None:
    """The ceiling recorded in an annotation; None for none, and for any other text."""
    try:
        found: Any = read_record(text)
        whole = [found[name] for name in ("replicas", "owner", "ours", "generation")]
        replicas, owner, ours, generation = whole
        ceiling = Ceiling(
            str(found["id"]), replicas, float(found["until"]), owner, ours, generation, str(found["revision"])
        )
    except (ValueError, TypeError, KeyError, OverflowError):
        return None
    bounded = all(map(_replicas, (replicas, owner, ours)))
    bounded = bounded and type(generation) is int and 0 <= generation <= MOST_GENERATION
    return ceiling if bounded and isfinite(ceiling.until_s) else None


def _replicas(number: object) -> bool:
    """True for a number of replicas."""
    return type(number) is int and 0 <= number <= MOST_REPLICAS


def revision_of(annotations: Mapping[str, str], update_revision: str) -> str:
    """The revision of the pods of a Deployment (its annotation) or of a StatefulSet (`status.updateRevision`)."""
    return annotations.get(POD_REVISION, "") or update_revision


def follows_floor(metric: str) -> bool:
    """True for a metric of an HPA that carries our floor, also with KEDA's prefix."""
    return FLOOR_METRIC in metric.replace("_", "-")
