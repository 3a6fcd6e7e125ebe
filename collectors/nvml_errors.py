"""Errors of the GPUs of this machine, according to the driver.

An XID is an event: those since the start of the collector are known, and the gravest of each GPU is kept. Earlier XIDs
are unknown. The state of row remapping can be read at any time, on Ampere and later.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from ctypes import c_void_p, cast
from typing import Any

import numpy as np

from autopilot.core.hardware.xid_facts import (
    REMAP_FAILED,
    REMAP_NONE,
    REMAP_PENDING,
    REMAP_UNKNOWN,
    UNKNOWN_XID,
    remedy_of,
)
from autopilot.core.model.records import Errors
from collectors.nvml_machine import Device

MOST_EVENTS = 1000
"""Events that one read takes; a GPU that fails may send them in a stream."""


class DriverErrors:
    """Reads the errors of GPUs. `nvml` is the module of the bindings."""

    def __init__(self) -> None:
        self._events: Any = None
        self._watched: dict[int | None, str] = {}  # by the address of the device
        self._xid: dict[str, int] = {}

    def read(self, nvml: Any, devices: Sequence[Device]) -> Errors:
        """The errors of the GPUs listed by the driver."""
        self._watch(nvml, devices)
        self._take(nvml)
        ids = np.array([device.uuid for device in devices], dtype=object)
        xid = np.array([self._xid.get(device.uuid, UNKNOWN_XID) for device in devices], np.int32)
        remap = np.array([_remap(nvml, device) for device in devices], np.int8)
        return Errors(ids, xid, remap)

    def close(self, nvml: Any) -> None:
        """Release the events."""
        if self._events is not None:
            with suppress(nvml.NVMLError):
                nvml.nvmlEventSetFree(self._events)
        self._events, self._watched = None, {}

    def _watch(self, nvml: Any, devices: Sequence[Device]) -> None:
        with suppress(nvml.NVMLError):  # without events nothing is known of XIDs
            for device in devices:
                address = None if device.handle is None else cast(device.handle, c_void_p).value
                if address is not None and address not in self._watched:
                    if self._events is None:
                        self._events = nvml.nvmlEventSetCreate()
                    nvml.nvmlDeviceRegisterEvents(device.handle, nvml.nvmlEventTypeXidCriticalError, self._events)
                    self._watched[address] = device.uuid

    def _take(self, nvml: Any) -> None:
        """Take in the pending events, without waiting."""
        with suppress(nvml.NVMLError):  # the last one: no more within 0 ms
            for _ in range(MOST_EVENTS if self._events is not None else 0):
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
                uuid, code = self._watched.get(cast(event.device, c_void_p).value), int(event.eventData)
                if uuid is None or event.eventType != nvml.nvmlEventTypeXidCriticalError:
                    continue
                known = self._xid.setdefault(uuid, code)
                self._xid[uuid] = max(known, code, key=lambda each: (remedy_of(each), each))


def _remap(nvml: Any, device: Device) -> int:
    if device.handle is None:
        return REMAP_UNKNOWN
    try:
        _, _, pending, failed = nvml.nvmlDeviceGetRemappedRows(device.handle)
    except nvml.NVMLError:
        return REMAP_UNKNOWN  # before Ampere there is none
    return REMAP_FAILED if failed else REMAP_PENDING if pending else REMAP_NONE
