"""The parts of an API server besides its kinds: discovery, health, access, custom resources, and its own admission."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from apiserver import discovery, health, openapi
from apiserver.access.authentication import Authentication
from apiserver.access.authorization import Authorization, NoEscalation
from apiserver.access.bootstrap import bootstrap_objects
from apiserver.access.reviews import AUTHENTICATION, REVIEWS, token_request
from apiserver.admission.limits import LimitRanger
from apiserver.admission.policies import Policies
from apiserver.admission.priority import Priority
from apiserver.admission.quota import ResourceQuota
from apiserver.crd.lifecycle import DEFINITIONS, Definitions
from apiserver.kinds.base import STATUS, Kind, Subresource
from apiserver.kinds.scale import scale
from apiserver.kinds.unserved import OF_NODES, OF_PODS, OF_SERVICES
from apiserver.users import ADMIN

if TYPE_CHECKING:
    from apiserver.server import Server

ADMIN_TOKEN = "admin"  # noqa: S105 - it opens a server of tests and of the playground, on loopback
LISTED = (
    Kind(
        "", "v1", "replicationcontrollers", "ReplicationController", short_names=("rc",), categories=("all",),
        subresources={"status": STATUS}, generation=True,
    ),
    Kind(
        "autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", short_names=("hpa",),
        categories=("all",), subresources={"status": STATUS},
    ),
)  # fmt: skip
"""Kinds that `kubectl get all` asks for. They are stored; no controller follows them."""
MORE_PARTS = {
    "pods": OF_PODS,
    "nodes": OF_NODES,
    "services": OF_SERVICES,
    "serviceaccounts": {
        "token": Subresource("token", ("create",), handler=token_request, kind=(AUTHENTICATION, "v1", "TokenRequest")),
    },
    "deployments.apps": {"scale": scale()},
    "replicasets.apps": {"scale": scale()},
    "statefulsets.apps": {"scale": scale()},
}
"""Subresources that need no more than the objects themselves."""
PRIORITY_CLASSES = {
    "system-cluster-critical": (
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
    "system-node-critical": (
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
}


def install_standard(server: Server) -> None:
    """Open a server of bare kinds to exploration, login and extension."""
    for kind in (*REVIEWS, DEFINITIONS, *LISTED):
        server.kinds.add(kind)
    for resource, more in MORE_PARTS.items():
        stored = server.kinds.stored(resource)
        if stored is not None:
            server.kinds.add(replace(stored, subresources={**stored.subresources, **more}))
    server.paths |= {"/api": discovery.core_versions, "/apis": discovery.group_list, **health.PATHS}
    server.paths |= {"/openapi/v2": openapi.v2, "/openapi/v3": openapi.index}
    server.prefixes["/openapi/v3/"] = openapi.of_group
    server.prefixes |= {"/api/": discovery.of_group, "/apis/": discovery.of_group}
    for path in ("/healthz/", "/livez/", "/readyz/"):
        server.prefixes[path] = health.health
    server.authenticate = Authentication(server, {ADMIN_TOKEN: ADMIN})
    authorization = Authorization(server)
    server.authorize, server.authorize_path = authorization, authorization.path
    Definitions(server)
    for plugin in (Priority(), LimitRanger(), NoEscalation(), Policies(server), ResourceQuota(server)):
        server.admission.add(plugin)
    client = server.client(ADMIN, "kube-apiserver")
    for resource, obj in bootstrap_objects():
        client.create(resource, obj)
    for name, (value, text) in PRIORITY_CLASSES.items():
        client.create(
            "priorityclasses.scheduling.k8s.io",
            {"metadata": {"name": name}, "value": value, "description": text},
        )
