"""Plays recorded command lines: the requests that each made, in order, compared by status.

Such a file holds no answers and no times, and leaves out some bodies; an absent body is made from the path and from
what the command printed. What the commands look at was there before: namespaces, nodes and deployments whose reads
succeeded are made first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from apiserver.requests import Request, Response
from apiserver.routing import Route, route
from apiserver.server import Server
from apiserver.users import ADMIN
from tests.kube.replay.recording import Recording, Step

Obj = dict[str, Any]
KUBELET_LABEL = "example.com/fakelet"  # the recorder's kubelet served the nodes with it
SETTLE_S = 5.0
PRINTED = re.compile(r"^\S+?/(\S+) (?:created|configured|serverside-applied)", re.MULTILINE)
LEFT_OUT = "<"  # how the file shows a body that it does not hold
CONTAINERS = {"containers": [{"name": "main", "image": "app:1"}]}
AMOUNTS = {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8", "pods": "110"}


def requests_of(step: Step) -> list[Obj]:
    """The requests of a command; empty for a step of another kind."""
    found: list[Obj] = step.raw.get("requests") or []
    return found


def prepare(recording: Recording, server: Server) -> None:
    """Make what the commands read, and let the controllers settle."""
    client = server.client(ADMIN, "recorder")
    routes = list(_read(recording))
    for name in dict.fromkeys(each.namespace for each in routes if each.namespace):
        if server.store.get("namespaces", "", name) is None:
            client.create("namespaces", {"metadata": {"name": name}})
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    for name in dict.fromkeys(each.name for each in routes if each.plural == "nodes" and each.name):
        client.create(
            "nodes",
            {
                "metadata": {"name": name, "labels": {KUBELET_LABEL: "true"}},
                "status": {"capacity": AMOUNTS, "allocatable": AMOUNTS, "conditions": [ready]},
            },
        )
    deployments = [(each.namespace, each.name) for each in routes if each.plural == "deployments" and each.name]
    for namespace, name in dict.fromkeys(deployments):
        labels = {"app": name}
        template = {"metadata": {"labels": labels}, "spec": CONTAINERS}
        spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
        client.create("deployments.apps", {"metadata": {"name": name, "namespace": namespace}, "spec": spec})
    server.timeline.run_for(SETTLE_S)


def _read(recording: Recording) -> Iterator[Route]:
    for step in recording.steps:
        for given in requests_of(step):
            found = route(urlsplit(given["path"]).path)
            if found is not None and given["method"] == "GET" and given["status"] == 200:
                yield found


def play(step: Step, server: Server) -> str:
    """Send the requests of a command; the first difference, or "" if every status is as recorded."""
    for number, given in enumerate(requests_of(step), start=1):
        answer = server.handle(_request(step, given, server))
        if answer.status != given["status"]:
            shown = json.dumps(answer.plain())[:300] if isinstance(answer, Response) else "a stream"
            wanted = f"{given['method']} {given['path'][:80]}: expected status {given['status']}"
            return f"request {number}, {wanted}, got {answer.status} {shown}"
    return ""


def _request(step: Step, given: Obj, server: Server) -> Request:
    parts = urlsplit(given["path"])
    path = _with_our_pod(parts.path, server)
    headers = {name.lower(): value for name, value in given["headers"].items()}
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if query.get("watch") == "true":
        query.pop("resourceVersion", None)  # of the day of the recording
    body = _body(step, given, route(path), server)
    if body is not None and "protobuf" in headers.get("content-type", ""):
        headers["content-type"] = "application/json"  # the bytes were not kept
    return Request(given["method"], path, query, headers, body, ADMIN)


def _with_our_pod(path: str, server: Server) -> str:
    """A path with a generated pod name of ours in place of the recorded one."""
    found = re.search(r"/namespaces/([^/]+)/pods/([^/]+-[^/-]+-[^/-]{5})$", path)
    if found is None or server.store.get("pods", found[1], found[2]) is not None:
        return path
    stem = found[2].rsplit("-", 2)[0]
    ours = next(
        (
            each["metadata"]["name"]
            for each in server.store.objects("pods", found[1])
            if each["metadata"]["name"].startswith(f"{stem}-")
        ),
        found[2],
    )
    return path.replace(found[2], ours)


def _body(step: Step, given: Obj, path: Route | None, server: Server) -> Any:
    text = given.get("body") or ""
    if text != LEFT_OUT:
        try:
            value = json.loads(text) if text else ""
            return json.loads(value) if value else None
        except ValueError:
            return [] if "json-patch" in str(given["headers"]) else {}  # cut off in the recording
    if given["method"] == "DELETE":
        return {"propagationPolicy": "Background"}
    if path is None:
        return None
    kind = server.kinds.find(path.group, path.version, path.plural)
    if kind is None:
        return None
    printed = PRINTED.search(step.raw.get("stdout", ""))
    name = path.name or (printed[1] if printed else "made")
    obj: Obj = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}}
    if kind.kind == "ConfigMap":
        obj["data"] = {"stop": "true"}
    if kind.kind == "SelfSubjectAccessReview":
        obj["spec"] = {"resourceAttributes": {}}
    if kind.kind == "Job":
        obj["spec"] = {"template": {"spec": CONTAINERS | {"restartPolicy": "Never"}}}
    return obj
