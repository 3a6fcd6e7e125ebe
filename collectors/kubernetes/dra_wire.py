"""Objects of dynamic resource allocation, reduced to the fields in use."""

from __future__ import annotations

from typing import Any

import msgspec

from collectors.kubernetes.wire import Int64, Object, Struct


class SlicePool(Struct):
    """The pool of a slice: only slices of its newest generation count."""

    name: str = ""
    generation: Int64 = 0
    resource_slice_count: Int64 = 0  # slices of this generation; 0: not stated


class Counter(Struct):
    """A quantity shared by devices."""

    value: Any = "0"


class CounterSet(Struct):
    """Counters of one GPU."""

    name: str = ""
    counters: dict[str, Counter] | None = None


class Consumed(Struct):
    """Draws of a device on a counter set while a claim has it."""

    counter_set: str = ""
    counters: dict[str, Counter] | None = None


class DeviceTaint(Struct):
    """A taint of a device."""

    key: str = ""
    effect: str = ""


class Device(Struct):
    """A device of a slice."""

    name: str
    attributes: dict[str, dict[str, Any]] | None = None
    capacity: dict[str, Any] | None = None
    consumes_counters: list[Consumed] | None = None
    taints: list[DeviceTaint] | None = None


class SliceSpec(Struct):
    """Devices of one driver on one node."""

    driver: str = ""
    node_name: str | None = None
    pool: SlicePool = msgspec.field(default_factory=SlicePool)
    devices: list[Device] | None = None
    shared_counters: list[CounterSet] | None = None


class ResourceSlice(Object):
    """A ResourceSlice."""

    spec: SliceSpec = msgspec.field(default_factory=SliceSpec)


class AllocatedDevice(Struct):
    """One device of a claim."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None


class AllocatedDevices(Struct):
    """The devices of a claim."""

    results: list[AllocatedDevice] | None = None


class Allocation(Struct):
    """The result of a claim."""

    devices: AllocatedDevices = msgspec.field(default_factory=AllocatedDevices)


class Consumer(Struct):
    """A pod using a claim."""

    resource: str = ""
    name: str = ""
    uid: str = ""


class Cel(Struct):
    """An expression over a device."""

    expression: str = ""


class Selector(Struct):
    """A condition on a device."""

    cel: Cel | None = None


class Exactly(Struct):
    """A request for devices of one class."""

    device_class_name: str = ""
    selectors: list[Selector] | None = None
    allocation_mode: str = ""
    count: Int64 | None = None
    admin_access: bool | None = None
    capacity: dict[str, Any] | None = None


class DeviceRequest(Struct):
    """A request: for devices of one class, or for the first of several alternatives."""

    name: str = ""
    exactly: Exactly | None = None
    first_available: list[dict[str, Any]] | None = None


class DeviceRequests(Struct):
    """The requests of a claim, and conditions on all their devices."""

    requests: list[DeviceRequest] | None = None
    constraints: list[dict[str, Any]] | None = None


class ClaimSpec(Struct):
    """The request of a claim."""

    devices: DeviceRequests = msgspec.field(default_factory=DeviceRequests)


class ClaimStatus(Struct):
    """Allocation and users of a claim."""

    allocation: Allocation | None = None
    reserved_for: list[Consumer] | None = None


class ResourceClaim(Object):
    """A ResourceClaim."""

    spec: ClaimSpec = msgspec.field(default_factory=ClaimSpec)
    status: ClaimStatus = msgspec.field(default_factory=ClaimStatus)


class TemplateSpec(Struct):
    """The content of claims made from a template."""

    spec: ClaimSpec = msgspec.field(default_factory=ClaimSpec)


class ResourceClaimTemplate(Object):
    """A ResourceClaimTemplate: each pod gets a claim of its own."""

    spec: TemplateSpec = msgspec.field(default_factory=TemplateSpec)


class ClassSpec(Struct):
    """The devices of a class."""

    selectors: list[Selector] | None = None
    extended_resource_name: str | None = None  # the scheduler makes claims of this class for this resource


class DeviceClass(Object):
    """A DeviceClass."""

    spec: ClassSpec = msgspec.field(default_factory=ClassSpec)
