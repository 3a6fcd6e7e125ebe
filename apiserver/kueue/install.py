"""Installs Kueue on a server: its kinds, webhooks, controllers, visibility API and metrics."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from apiserver.crd.definition import CRDS
from apiserver.crd.serve import kinds_of
from apiserver.kueue import metrics
from apiserver.kueue.config import Config
from apiserver.kueue.context import ACCOUNT, NAMESPACE
from apiserver.kueue.conversion import OLD, converted
from apiserver.kueue.crds import DEPRECATED, definitions
from apiserver.kueue.manager import Kueue
from apiserver.kueue.names import GROUP
from apiserver.kueue.visibility import Visibility
from apiserver.schemas import schema
from apiserver.users import ADMIN

if TYPE_CHECKING:
    from apiserver.client import Client
    from apiserver.kinds.base import Kind
    from apiserver.server import Server

Obj = dict[str, Any]
RBAC = "rbac.authorization.k8s.io"
ROLES = f"clusterroles.{RBAC}"
BINDINGS = f"clusterrolebindings.{RBAC}"


def install(server: Server, config: Config | None = None) -> Kueue:
    """Kueue as it runs after a standard installation. Its kinds are served at once, those of v1beta2 first."""
    found: list[Kueue] = []

    def is_down() -> bool:
        return bool(found) and not found[0].running

    client = server.client(ADMIN, "kubectl")
    _give_rights(client)
    for crd in definitions():
        kinds = {kind.version: kind for kind in kinds_of(crd)}
        stored = kinds.pop(next(each["name"] for each in crd["spec"]["versions"] if each["storage"]))
        server.kinds.adapters[stored.resource] = partial(_adapted, _plain(stored), is_down)
        for kind in (stored, *kinds.values()):
            server.kinds.add(kind)
        client.create(CRDS, crd)
    found.append(Kueue(server, config))
    visibility = Visibility(found[0])
    for kind in visibility.kinds():
        server.kinds.add(kind)
    server.admission.add(found[0].webhooks)
    server.paths |= metrics.endpoint(found[0])
    return found[0]


RULES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("", ("events", "limitranges", "namespaces", "nodes", "pods", "pods/finalizers", "pods/status", "podtemplates")),
    ("apps", ("daemonsets", "deployments", "replicasets", "statefulsets", "statefulsets/finalizers")),
    ("batch", ("jobs", "jobs/finalizers", "jobs/status")),
    ("events.k8s.io", ("events",)),
    ("node.k8s.io", ("runtimeclasses",)),
    ("scheduling.k8s.io", ("priorityclasses",)),
    (GROUP, ("*",)),
)
VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


def _give_rights(client: Client) -> None:
    """The namespace, the account and the role of the manager."""
    role = "kueue-manager-role"
    client.create("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    rules = [{"apiGroups": [group], "resources": list(names), "verbs": VERBS} for group, names in RULES]
    client.create(ROLES, {"metadata": {"name": role}, "rules": rules})
    binding = {
        "metadata": {"name": "kueue-manager-rolebinding"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}],
    }
    client.create(BINDINGS, binding)


def _plain(kind: Kind) -> Kind:
    if kind.plural == "workloads":  # its pod templates have the fields of any pod template
        pod_sets = kind.schema.child("spec").child("podSets").items
        if pod_sets is not None:
            pod_sets.fields["template"] = schema("PodTemplateSpec")
    return replace(kind, to_storage=None, from_storage=None)


def _adapted(stored: Kind, is_down: Any, kind: Kind) -> Kind:
    """A kind of Kueue's as its webhooks make it."""
    if kind.group == GROUP and kind.version == OLD:
        return replace(converted(kind, stored, is_down), deprecation=DEPRECATED)
    return stored if kind.version == stored.version else kind
