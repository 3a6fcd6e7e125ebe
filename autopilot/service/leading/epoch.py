"""The object Epoch: the epoch of the leader as the API server compares it with every write (`readiness.fence`).

A leader writes it before anything else of its term. It only grows, so an earlier leader cannot take it back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Protocol

import msgspec

from actuators.kubernetes.wire import Part, why_unfit
from autopilot.kube.cluster_api import Answer
from autopilot.readiness.fence import EPOCH_GROUP, EPOCH_KIND, EPOCH_VERSION, EPOCHS, Creates, probe, seen
from autopilot.service.leading.lease import LABELS, MOST_TRANSITIONS, LeaseName, text_in

FORBIDDEN, NOT_FOUND = 403, 404
LOOKS, LOOK_S = 10, 0.05
"""Most questions of a new leader about its epoch to the API server, and the time between (3 to 60 ms on 1.36)."""


class _Spec(Part):
    epoch: Annotated[int, msgspec.Meta(ge=0, lt=MOST_TRANSITIONS)] | None = None


class EpochObject(Part):
    """The part of an Epoch that is read. Its epochs are those of a Lease."""

    metadata: dict[str, Any]
    spec: _Spec | None = None


class Requests(Creates, Protocol):
    """The API server (`ClusterApi`)."""

    def get(self, path: str) -> Answer:
        """Read."""
        ...

    def put(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Replace."""
        ...


class ClusterEpoch:
    """The Epoch with the name of the Lease, as one controller reads and writes it."""

    def __init__(self, api: Requests, name: LeaseName, pause: Callable[[float], None] = time.sleep) -> None:
        self._api, self._name, self._pause = api, name, pause
        self._parent = f"/apis/{EPOCH_GROUP}/{EPOCH_VERSION}/namespaces/{name.namespace}/{EPOCHS}"
        self._shown = f"Epoch {name.namespace}/{name.name}"
        self.highest = 0  # the highest epoch read

    def known(self) -> int:
        """The epoch in the cluster; 0 for none. Raises `OSError` without an answer of the cluster."""
        answer = self._api.get(f"{self._parent}/{self._name.name}")
        if answer.status in {FORBIDDEN, NOT_FOUND}:  # without the kind or the right there is no fence
            return 0
        if answer.status != 200:
            raise OSError(f"{self._shown}: {answer.reason}")
        why = why_unfit(answer.document, EpochObject)
        if why:
            raise OSError(f"{self._shown} cannot be read: {why}")
        return self._read(answer)

    def claim(self, fence: int, holder: str = "") -> str:
        """Write the epoch of a term; returns the reason for a failure, "" for a success or without such a kind here."""
        there = self._api.get(f"{self._parent}/{self._name.name}")
        if there.status == 200 and (why := why_unfit(there.document, EpochObject)):
            return f"{self._shown} cannot be read: {why}"
        found = self._read(there) if there.status == 200 else 0
        if found == fence:
            return ""
        if found > fence:
            return f"{self._shown}: a later leader with epoch {found} has written it"
        meta: dict[str, Any] = {"name": self._name.name, "namespace": self._name.namespace, "labels": LABELS}
        body = {
            "apiVersion": f"{EPOCH_GROUP}/{EPOCH_VERSION}",
            "kind": EPOCH_KIND,
            "metadata": meta,
            "spec": {"epoch": fence, "holder": holder[:300]},
        }
        if there.status == 200:
            meta["resourceVersion"] = text_in(there.document, "resourceVersion")
            answer = self._api.put(f"{self._parent}/{self._name.name}", body)
        elif there.status == NOT_FOUND:
            answer = self._api.post(self._parent, body)
        else:
            answer = there
        if answer.status in {200, 201, FORBIDDEN, NOT_FOUND}:
            return ""
        return f"{self._shown} cannot be written: {answer.reason}"

    def settle(self, fence: int) -> None:
        """Wait until the API server lets writes of this term pass, half a second at most."""
        for _ in range(LOOKS):
            if seen(self._api, self._name.namespace, fence):
                return
            self._pause(LOOK_S)

    def probe(self, fence: int) -> tuple[str, bool]:
        """As `readiness.fence.probe`."""
        return probe(self._api, self._name.namespace, fence)

    def _read(self, answer: Answer) -> int:
        """The epoch in an answer; 0 for none."""
        epoch = int((answer.document.get("spec") or {}).get("epoch") or 0)
        self.highest = max(self.highest, epoch)
        return epoch
