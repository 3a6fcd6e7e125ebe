"""A canned API server: lists, watches and refusals, without HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from collectors.kubernetes.kinds import KINDS, Kind
from collectors.kubernetes.transport import ApiError, Lines

Json = dict[str, Any]
PLURAL = {
    "Node": "nodes",
    "Namespace": "namespaces",
    "Pod": "pods",
    "Job": "jobs",
    "Deployment": "deployments",
    "StatefulSet": "statefulsets",
    "PriorityClass": "priorityclasses",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "HorizontalPodAutoscaler": "horizontalpodautoscalers",
    "ResourceQuota": "resourcequotas",
    "ResourceSlice": "resourceslices",
    "ResourceClaim": "resourceclaims",
    "ResourceClaimTemplate": "resourceclaimtemplates",
    "DeviceClass": "deviceclasses",
    "Workload": "workloads",
    "ClusterQueue": "clusterqueues",
    "LocalQueue": "localqueues",
    "Cohort": "cohorts",
    "ResourceFlavor": "resourceflavors",
    "Topology": "topologies",
    "AdmissionCheck": "admissionchecks",
    "Queue": "queues",
    "Service": "services",
    "HTTPRoute": "httproutes",
    "GRPCRoute": "grpcroutes",
    "InferencePool": "inferencepools",
}
BY_NAME = {kind.name: kind for kind in KINDS}


class Stream:
    """Lines that a test gives; an exception among them is raised."""

    def __init__(self, lines: Iterable[bytes | Exception]) -> None:
        self._lines = lines

    def __iter__(self) -> Iterator[bytes]:
        for line in self._lines:
            if isinstance(line, Exception):
                raise line
            yield line

    def close(self) -> None:
        """Nothing is open."""


def line(kind: str, found: Json) -> bytes:
    """One event."""
    return json.dumps({"type": kind, "object": found}).encode()


def bookmark(version: int, *, end: bool = False) -> bytes:
    """A bookmark; with `end` that which ends a streamed list."""
    notes = {"annotations": {"k8s.io/initial-events-end": "true"}} if end else {}
    return line("BOOKMARK", {"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": str(version), **notes}})


@dataclass
class Canned:
    """The objects of every kind, and scripts of watches (`collectors.kubernetes.transport.Requests`).

    A watch plays the next script of its path; without one it ends at once after a bookmark.
    """

    objects: dict[str, dict[str, Json]] = field(default_factory=dict)  # path -> uid -> object
    version: int = 1
    streams: bool = False  # answers streaming lists
    absent: set[str] = field(default_factory=set)  # kinds that are not served
    refuse: dict[str, ApiError] = field(default_factory=dict)  # "list pods" or "watch pods" -> error
    scripts: dict[str, list[list[bytes | Exception]]] = field(default_factory=dict)
    groups: dict[str, list[str]] = field(default_factory=dict)  # served versions of groups, for discovery
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    news: threading.Condition = field(default_factory=threading.Condition)
    log: list[tuple[int, str, bytes]] = field(default_factory=list)  # events for watches over HTTP

    def put(self, *found: Json) -> None:
        """Create or change objects."""
        with self.news:
            for each in found:
                self.version += 1
                each["metadata"]["resourceVersion"] = str(self.version)
                path = self.kind_of(each).path()
                there = self.objects.setdefault(path, {})
                event = "MODIFIED" if each["metadata"]["uid"] in there else "ADDED"
                there[each["metadata"]["uid"]] = json.loads(json.dumps(each))
                self.log.append((self.version, path, line(event, each)))
            self.news.notify_all()

    def remove(self, found: Json) -> None:
        """Delete an object."""
        with self.news:
            self.version += 1
            path = self.kind_of(found).path()
            gone = self.objects[path].pop(found["metadata"]["uid"])
            gone["metadata"]["resourceVersion"] = str(self.version)
            self.log.append((self.version, path, line("DELETED", gone)))
            self.news.notify_all()

    def kind_of(self, found: Json) -> Kind:
        """The row of a kind."""
        return BY_NAME[PLURAL[found["kind"]]]

    # --- requests -------------------------------------------------------------------------

    def _check(self, verb: str, path: str) -> None:
        name = path.rpartition("/")[2]
        if name in self.absent:
            raise ApiError(404, "404 the server could not find the requested resource")
        error = self.refuse.get(f"{verb} {name}") or self.refuse.get("*")
        if error is not None:
            raise error

    def get(self, path: str, query: Mapping[str, str]) -> bytes:
        """A page of a list, or the versions of a group."""
        self.asked.append((path, dict(query)))
        group = path.removeprefix("/apis/")
        if "/" not in group:
            if group not in self.groups:
                raise ApiError(404, "404 page not found")
            return json.dumps({"versions": [{"version": each} for each in self.groups[group]]}).encode()
        self._check("list", path)
        space, _, name = path.partition("/namespaces/")[2].partition("/")
        whole = path.replace(f"namespaces/{space}/", "") if name else path
        every = [
            each for each in self.objects.get(whole, {}).values() if not name or each["metadata"]["namespace"] == space
        ]
        start, limit = int(query.get("continue", 0)), int(query.get("limit", 0)) or len(every) + 1
        data = {"resourceVersion": str(self.version)}
        if start + limit < len(every):
            data["continue"] = str(start + limit)
        return json.dumps({"kind": "List", "metadata": data, "items": every[start : start + limit]}).encode()

    def watch(self, path: str, query: Mapping[str, str], silence_s: float) -> Lines:
        """The next script of the path, a streamed list, or one bookmark."""
        self.asked.append((path, dict(query)))
        self._check("watch", path)
        scripts = self.scripts.get(path.rpartition("/")[2])
        if scripts:
            return Stream(scripts.pop(0))
        if query.get("sendInitialEvents") == "true":
            if not self.streams:
                raise ApiError(422, "422 sendInitialEvents is forbidden")
            found = [line("ADDED", each) for each in self.objects.get(path, {}).values()]
            return Stream([*found, bookmark(self.version, end=True)])
        return Stream([bookmark(max(self.version, int(query.get("resourceVersion", 0))))])


def kubeconfig(address: str, token: str = "t") -> str:
    """A kubeconfig with a token."""
    return str(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": address}}],
                "users": [{"name": "u", "user": {"token": token}}],
            }
        )
    )
