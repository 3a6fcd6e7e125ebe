"""The findings of a check, and its sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from autopilot.core.model.objects import SharingConfig
from autopilot.kube.cluster_api import Answer


class Status(StrEnum):
    """The result of one line."""

    OK = "ok"
    WARNING = "warning"  # the autopilot works, and knows or does less
    FAILED = "failed"  # the autopilot cannot work, or would decide on wrong data
    UNKNOWN = "unknown"  # it could not be found out
    SKIPPED = "skipped"  # does not apply here


@dataclass(frozen=True, slots=True)
class Line:
    """One finding about one object. Every line but `ok` and `skipped` states the remedy in `fix`."""

    check: str
    subject: str
    status: Status
    text: str
    fix: str = ""


class Cluster(Protocol):
    """The API server. Both methods answer always: a failed request is an `Answer` with status 0."""

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Answer:
        """Read `path`."""
        ...

    def post(self, path: str, body: Mapping[str, Any], query: Mapping[str, str] | None = None) -> Answer:
        """Send a review or a dry run; neither changes anything."""
        ...


@dataclass(frozen=True, slots=True)
class Sample:
    """One series of an instant query."""

    labels: Mapping[str, str]
    value: float


class Telemetry(Protocol):
    """A Prometheus that scrapes the GPU exporters."""

    url: str

    def query(self, expression: str) -> list[Sample]:
        """An instant query. Raises `OSError` or `ValueError` with the reason for a failure."""
        ...


READ = ("list", "watch")
"""Whole lists, and their changes: no object is read by its name."""


@dataclass(frozen=True, slots=True)
class Right:
    """Verbs on one resource. Without a `needed` right the view is not whole, and nothing is recommended."""

    group: str
    resource: str
    why: str
    needed: bool = False
    verbs: tuple[str, ...] = READ
    own_namespace: bool = False  # granted in the namespace of the service only
    name: str = ""  # of the only object meant; "" for all
    fix: str = "apply deploy/observe.yaml"

    @property
    def shown(self) -> str:
        """`resource` or `resource.group`, as kubectl writes it."""
        return f"{self.resource}.{self.group}" if self.group else self.resource


@dataclass(frozen=True, slots=True)
class Shipped:
    """A policy with its binding as this version ships them."""

    policy: Mapping[str, Any]
    binding: Mapping[str, Any]
    fix: str  # the file to apply
    without: str  # the consequence if it is not in force
    lease: str = ""  # the Epoch of this name is its parameter; "": it has none

    @property
    def name(self) -> str:
        """The name of the policy."""
        return name_of(self.policy)


Policies = Callable[[str], Sequence[Shipped]]
"""The policies for the account of the service with this name."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Sources of the checks. `now_s` is the clock of this machine, in seconds since the epoch."""

    cluster: Cluster
    telemetry: Telemetry | None
    now_s: Callable[[], float]
    namespace: str  # of the settings of the service
    rights: tuple[Right, ...] = ()  # beside the rights to read
    policies: Policies | None = None  # to be in force; None: no effects are enabled
    sharing: tuple[SharingConfig, ...] = ()  # configurations to which nodes may be turned


Check = Callable[[Asked], Iterator[Line]]


def items(answer: Answer) -> list[dict[str, Any]]:
    """The objects of an answered list."""
    found = answer.document.get("items")
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def name_of(item: Mapping[str, Any]) -> str:
    """The name of an object."""
    return str((item.get("metadata") or {}).get("name", ""))


def labels_of(item: Mapping[str, Any]) -> dict[str, str]:
    """The labels of an object."""
    return dict((item.get("metadata") or {}).get("labels") or {})


def condition(item: Mapping[str, Any], kind: str) -> tuple[str, str]:
    """Status and message of one condition; ("", "") for none."""
    for each in (item.get("status") or {}).get("conditions") or []:
        if each.get("type") == kind:
            return str(each.get("status", "")), str(each.get("message", ""))
    return "", ""


def some(names: list[str], most: int = 3) -> str:
    """The first names, and the number of the others."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown
