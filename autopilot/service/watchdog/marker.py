"""The mark of the watchdog. While it is there, a returning controller only recommends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from autopilot.contract.notes import read_record
from autopilot.kube.cluster_api import Answer
from autopilot.service.leading.lease import LABELS

NAME = "gpu-autopilot-watchdog"
NOT_FOUND, CONFLICT = 404, 409


class Api(Protocol):
    """The API server (`ClusterApi`)."""

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Answer:
        """Read."""
        ...

    def post(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Create."""
        ...

    def patch(self, path: str, body: Any) -> Answer:
        """Merge patch."""
        ...

    def delete(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Delete."""
        ...


class Marker:
    """The ConfigMap of the mark."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self._parent = f"/api/v1/namespaces/{namespace}/configmaps"
        self.shown = f"ConfigMap {namespace}/{NAME}"

    def write(self, state: str, since: str, reason: str, removed: Mapping[str, int]) -> str:
        """Set the mark before any removal; returns the reason for a failure, "" for a success."""
        data = {"state": state, "since": since, "reason": reason, "removed": json.dumps(dict(removed))}
        answer = self._api.patch(f"{self._parent}/{NAME}", {"data": data})
        if answer.status == NOT_FOUND:
            metadata = {"name": NAME, "namespace": self._namespace, "labels": LABELS}
            answer = self._api.post(
                self._parent, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
            )
        return "" if answer.status in {200, 201} else f"{self.shown}: it cannot be written: {answer.reason}"

    def begun(self) -> tuple[str, dict[str, int]]:
        """Start of a removal begun by an earlier process and not ended, and its counts; ("", {}) for none."""
        present = self._api.patch(f"{self._parent}/{NAME}", {})  # changes nothing; there is no right to read it
        data = present.document.get("data") or {}
        if data.get("state") != "removing":
            return "", {}
        known = read_record(str(data.get("removed", ""))).items()
        return str(data.get("since", "")), {what: count for what, count in known if isinstance(count, int)}

    def read(self) -> tuple[str, str]:
        """(action of the watchdog, reason for an unknown one). Both are "" without a mark."""
        answer = self._api.get(f"{self._parent}/{NAME}")
        if answer.status == NOT_FOUND:
            return "", ""
        if answer.status != 200:
            return "", f"{self.shown}: {answer.reason}"
        data = answer.document.get("data") or {}
        return f"{data.get('reason', 'the controller was away')}, since {data.get('since', 'an unknown time')}", ""

    def clear(self) -> str:
        """Take the mark away; returns the reason for a failure, "" for a success."""
        answer = self._api.delete(f"{self._parent}/{NAME}", {})
        return "" if answer.status in {200, NOT_FOUND} else f"{self.shown}: it cannot be deleted: {answer.reason}"
