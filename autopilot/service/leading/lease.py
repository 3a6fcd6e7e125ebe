"""The Lease as a record: its content and its written form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec

from actuators.kubernetes.wire import Count, Part, why_unfit
from autopilot.core.model.errors import InputError

API = "coordination.k8s.io/v1"
LABELS = {"app.kubernetes.io/name": "gpu-autopilot"}
MOST_TRANSITIONS = 2**31 - 1
"""The largest number in a Lease. The next term counts one more."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Times of a lease.

    A leader stops `renew_s` after it sent its last successful renewal. Others wait `duration_s` after they saw the last
    change. The difference is the time for writes already on their way.
    """

    duration_s: float = 10.0
    renew_s: float = 6.0
    retry_s: float = 1.5

    def __post_init__(self) -> None:
        """Raises `InputError` if two leaders could overlap."""
        if not 0 < self.retry_s < self.renew_s < self.duration_s:
            raise InputError(
                f"kubernetes.lease: retry_s {self.retry_s:g}, renew_s {self.renew_s:g} and duration_s "
                f"{self.duration_s:g} are not allowed; each must be above 0 and below the next"
            )
        if self.duration_s != int(self.duration_s):
            raise InputError(
                f"kubernetes.lease.duration_s: {self.duration_s:g} is not allowed; a Lease counts whole seconds"
            )


@dataclass(frozen=True, slots=True)
class LeaseName:
    """A Lease in its namespace."""

    namespace: str
    name: str

    @property
    def parent(self) -> str:
        """Path of the Leases of the namespace."""
        return f"/apis/{API}/namespaces/{self.namespace}/leases"

    @property
    def path(self) -> str:
        """Path of the Lease."""
        return f"{self.parent}/{self.name}"

    def __str__(self) -> str:
        return f"Lease {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """Content of a Lease. Missing numbers are 0, missing texts are ""."""

    holder: str = ""
    duration_s: float = 0.0
    acquired: str = ""
    renewed: str = ""
    transitions: int = 0

    def document(self, name: LeaseName, version: str = "") -> dict[str, Any]:
        """The object to write; with `version` only over that version."""
        metadata: dict[str, Any] = {"name": name.name, "namespace": name.namespace, "labels": LABELS}
        if version:
            metadata["resourceVersion"] = version
        spec = {
            "holderIdentity": self.holder,
            "leaseDurationSeconds": max(int(self.duration_s), 1),
            "acquireTime": self.acquired,
            "renewTime": self.renewed,
            "leaseTransitions": self.transitions,
        }
        return {"apiVersion": API, "kind": "Lease", "metadata": metadata, "spec": spec}


class _Spec(Part):
    holder_identity: str | None = None
    lease_duration_seconds: Count | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: Annotated[int, msgspec.Meta(ge=0, lt=MOST_TRANSITIONS)] | None = None


class LeaseObject(Part):
    """The part of a Lease that is read."""

    metadata: dict[str, Any]
    spec: _Spec | None = None


def misread(document: Mapping[str, Any]) -> str:
    """Reason for an unreadable Lease; "" for none."""
    return why_unfit(document, LeaseObject)


def read_lease(document: Mapping[str, Any]) -> tuple[LeaseRecord, str]:
    """The record and the resourceVersion of a Lease from the server.

    An unreadable one names no holder, and is taken over like one without renewals.
    """
    if misread(document):
        return LeaseRecord(), text_in(document, "resourceVersion")
    spec = document.get("spec") or {}
    record = LeaseRecord(
        holder=str(spec.get("holderIdentity") or ""),
        duration_s=float(spec.get("leaseDurationSeconds") or 0),
        acquired=str(spec.get("acquireTime") or ""),
        renewed=str(spec.get("renewTime") or ""),
        transitions=int(spec.get("leaseTransitions") or 0),
    )
    return record, text_in(document, "resourceVersion")


def text_in(document: Mapping[str, Any], key: str) -> str:
    """A text of the metadata; "" for none."""
    found = document.get("metadata")
    value = found.get(key) if isinstance(found, dict) else ""
    return value if isinstance(value, str) else ""


def micro_time(wall_s: float) -> str:
    """Seconds since 1970 as a MicroTime. The API server takes exactly six digits after the point."""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
