"""Namespaces: the objects of a new one, and the end of a deleted one."""

from __future__ import annotations

from typing import Any

from apiserver.actors.base import Actor
from apiserver.errors import StatusError
from apiserver.store import Event
from apiserver.users import service_account

Obj = dict[str, Any]
BUNDLE = "kube-root-ca.crt"
DESCRIPTION = (
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the "
    "internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes "
    "clusters."
)
FILL_S = 0.01  # the account and the bundle of certificates appear a moment after the namespace
EMPTY_S = 0.1  # from the deletion of a namespace to that of its content
LOOK_S = 1.0  # between two looks at content that is slow to go
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIBszCCAVmgAwIBAgIBADAKBggqhkjOPQQDAjAAMAA=\n-----END CERTIFICATE-----\n"


def _ends(obj: Obj) -> bool:
    return "deletionTimestamp" in obj["metadata"]


class Namespaces(Actor):
    """Gives each namespace the account `default` and the bundle of certificates; empties deleted ones."""

    user = service_account("kube-system", "namespace-controller")
    manager = "kube-controller-manager"

    def start(self) -> None:
        """Follow namespaces."""
        self.follow("namespaces", self._on_change)

    def _on_change(self, event: Event) -> None:
        name = event.obj["metadata"]["name"]
        if event.type == "ADDED":
            self.clock.at(FILL_S, lambda: self._fill(name))
        elif event.type == "MODIFIED" and event.old is not None and _ends(event.obj) and not _ends(event.old.obj):
            self.clock.at(EMPTY_S, lambda: self._empty(name))

    def _fill(self, namespace: str) -> None:
        metadata: Obj = {"namespace": namespace}
        account: Obj = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata | {"name": "default"}}
        described = {"name": BUNDLE, "annotations": {"kubernetes.io/description": DESCRIPTION}}
        bundle: Obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata | described}
        bundle["data"] = {"ca.crt": CERTIFICATE}
        for resource, obj in (("serviceaccounts", account), ("configmaps", bundle)):
            if self.server.store.get(resource, namespace, obj["metadata"]["name"]) is None:
                self._try(resource, obj)

    def _try(self, resource: str, obj: Obj) -> None:
        try:
            self.client.create(resource, obj)
        except StatusError:
            return  # the namespace is going away

    def _empty(self, namespace: str) -> None:
        """Delete the objects in a namespace; after the last of them, remove its finalizer."""
        store = self.server.store
        if store.get("namespaces", "", namespace) is None:
            return
        left = 0
        for kind in {each.storage: each for each in self.server.kinds.all() if each.namespaced}.values():
            for obj in store.objects(kind.storage, namespace):
                if "deletionTimestamp" not in obj["metadata"]:
                    self.client.delete(
                        kind.storage, namespace, obj["metadata"]["name"], {"propagationPolicy": "Background"}
                    )
            left += store.count(kind.storage, namespace)
        if left:
            self.clock.at(LOOK_S, lambda: self._empty(namespace))
            return
        current = store.get("namespaces", "", namespace)
        if current is not None:
            spec = {name: value for name, value in current["spec"].items() if name != "finalizers"}
            self.client.update("namespaces", current | {"spec": spec}, "finalize")
