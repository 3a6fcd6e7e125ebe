"""Objects of dynamic resource allocation, only with the fields that are used."""

from __future__ import annotations

from typing import Any

import msgspec

from collectors.kubernetes.wire import Object, Struct


class SlicePool(Struct):
    """The pool of a slice: only slices of its newest generation count."""

    name: str = ""
    generation: int = 0


class Device(Struct):
    """A device of a slice."""

    name: str
    attributes: dict[str, dict[str, Any]] | None = None


class SliceSpec(Struct):
    """Devices of one driver on one node."""

    driver: str = ""
    node_name: str | None = None
    pool: SlicePool = msgspec.field(default_factory=SlicePool)
    devices: list[Device] | None = None


class ResourceSlice(Object):
    """A ResourceSlice."""

    spec: SliceSpec = msgspec.field(default_factory=SliceSpec)


class AllocatedDevice(Struct):
    """One device that a claim got."""

    driver: str = ""
    pool: str = ""
    device: str = ""


class AllocatedDevices(Struct):
    """The devices that a claim got."""

    results: list[AllocatedDevice] | None = None


class Allocation(Struct):
    """What a claim got."""

    devices: AllocatedDevices = msgspec.field(default_factory=AllocatedDevices)


class Consumer(Struct):
    """A pod that uses a claim."""

    resource: str = ""
    name: str = ""
    uid: str = ""


class ClaimStatus(Struct):
    """What a claim got, and who uses it."""

    allocation: Allocation | None = None
    reserved_for: list[Consumer] | None = None


class ResourceClaim(Object):
    """A ResourceClaim."""

    status: ClaimStatus = msgspec.field(default_factory=ClaimStatus)
