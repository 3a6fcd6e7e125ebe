"""The API server of the playground: built-in admission, Kueue's kinds, and pods that print nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hmac import compare_digest

from apiserver.admission import PLUGINS
from apiserver.errors import StatusError
from apiserver.kinds.base import STATUS, Kind, Subresource
from apiserver.requests import Call, Request, Response
from apiserver.server import Server
from apiserver.timeline import Timeline
from apiserver.users import ADMIN, User

SYSTEM_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system", "kueue-system")
NOT_HERE = {
    "log": "there are no logs: pods of the playground are simulated and print nothing; read `kubectl describe pod`",
    "exec": "nothing can be run in it: pods of the playground are simulated",
    "attach": "there is no process to attach to: pods of the playground are simulated",
    "portforward": "no port is open in it: pods of the playground are simulated",
}
"""Subresources of pods that need a kubelet, and what is said instead."""


def playground_server(timeline: Timeline, rng: random.Random, token: str = "") -> Server:
    """A server without controllers of its own: the projection of the simulated cluster takes their place.

    Who presents `token` is its administrator; with "" everybody is.
    """
    server = Server(timeline, rng)
    if token:
        server.authenticate = partial(_known, token)
    for plugin in PLUGINS:
        server.admission.add(plugin())
    _add_kueue(server)
    pods = server.kinds.stored("pods")
    if pods is not None:
        refusals = {
            name: Subresource(name, ("get", "create"), handler=_refusal(text)) for name, text in NOT_HERE.items()
        }
        server.kinds.add(replace(pods, subresources={**pods.subresources, **refusals}))
    client = server.client(ADMIN, "kube-apiserver")
    for name in SYSTEM_NAMESPACES:
        client.create("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return server


def _known(token: str, request: Request) -> User:
    """The person behind a request. Raises StatusError 401 without the token."""
    if not compare_digest(request.headers.get("authorization", ""), f"Bearer {token}"):
        raise StatusError(401, "Unauthorized", "Unauthorized", {})
    return ADMIN


def _refusal(text: str) -> Callable[[Server, Call], Response]:
    def refuse(_server: Server, call: Call) -> Response:
        name = f'pods "{call.name}"'
        raise StatusError(501, "NotImplemented", f"{name}: {text}", {"name": call.name, "kind": "pods"})

    return refuse


def _add_kueue(server: Server) -> None:
    if server.kinds.stored("events") is None:
        server.kinds.add(Kind("", "v1", "events", "Event"))
    for plural, kind, namespaced in (
        ("workloads", "Workload", True),
        ("localqueues", "LocalQueue", True),
        ("clusterqueues", "ClusterQueue", False),
        ("cohorts", "Cohort", False),
        ("resourceflavors", "ResourceFlavor", False),
        ("workloadpriorityclasses", "WorkloadPriorityClass", False),
    ):
        server.kinds.add(
            Kind(
                "kueue.x-k8s.io",
                "v1beta2",
                plural,
                kind,
                namespaced=namespaced,
                subresources={"status": STATUS},
                custom=True,
            )
        )
