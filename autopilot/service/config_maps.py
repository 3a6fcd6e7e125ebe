"""Single values in ConfigMaps of the cluster, and the kill switch in one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from autopilot.core.model.errors import InputError
from autopilot.kube.cluster_api import Answer
from autopilot.service.kill_switch import OFF

KILL_KEY = "kill"
KEPT_S = 0.5

Get = Callable[[str], Answer]
"""Reads one path of the API server; a failed request is an answer with status 0."""


@dataclass(frozen=True, slots=True)
class MapName:
    """A ConfigMap."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"ConfigMap {self.namespace}/{self.name}"

    def value(self, get: Get, key: str) -> str:
        """The text under `key`. Raises `InputError` with the reason for a missing one, and the fix."""
        answer = get(f"/api/v1/namespaces/{self.namespace}/configmaps/{self.name}")
        if answer.status == 0:
            raise InputError(f"{self}: the API server does not answer: {answer.text}")
        if answer.status == 404:
            raise InputError(f"{self}: it does not exist; `kubectl create -f deploy/settings.yaml`")
        if answer.status != 200:
            raise InputError(f"{self}: it cannot be read: {answer.reason}; apply deploy/observe.yaml")
        data = answer.document.get("data")
        if not isinstance(data, dict) or not isinstance(data.get(key), str):
            raise InputError(f"{self}: it has no key {key}; add it")
        return str(data[key])


class MapSwitch:
    """A kill switch in a ConfigMap. An unreadable switch is on.

    An answer counts for `KEPT_S` from its arrival: a tick asks at its start and at its end, and ticks are a second
    apart.
    """

    def __init__(self, get: Get, name: MapName, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._get, self._name, self._monotonic_s = get, name, monotonic_s
        self._kept: tuple[float, str] | None = None
        self._reading = threading.Lock()  # pages ask as well as ticks: one request for all

    def reason(self) -> str:
        """The reason of a switch that is on; "" while its key `kill` says `off`."""
        with self._reading:
            now_s = self._monotonic_s()
            if self._kept is None or not 0.0 <= now_s - self._kept[0] < KEPT_S:
                said = self._read()
                self._kept = (self._monotonic_s(), said)
            return self._kept[1]

    def _read(self) -> str:
        try:
            said = self._name.value(self._get, KILL_KEY).strip()
        except InputError as error:
            return f"the kill switch cannot be read: {error}"
        return "" if said.lower() in OFF - {""} else f"{self._name} sets {KILL_KEY} to {said[:20]!r}"
