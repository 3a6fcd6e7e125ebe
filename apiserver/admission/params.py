"""Parameters of admission policies, as a server with informers sees them.

A server follows a kind of parameter while a policy using it has a binding. With the last of these bindings, or their
policy, gone, the informer of a built-in kind ends and cannot start again: every later binding sees the contents of
that moment until the server restarts (recordings 38 and 38b, Kubernetes 1.36). The informer of a custom kind is made
anew. The server itself follows `SHARED` for other purposes, so those go on (read in its source, not measured).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from apiserver.kinds.base import Kind, State

Obj = dict[str, Any]
Contents = Mapping[tuple[str, str], Obj]
SHARED = frozenset(
    {"namespaces", "serviceaccounts", "secrets", "nodes", "pods", "resourcequotas", "limitranges"}
    | {"priorityclasses.scheduling.k8s.io", "runtimeclasses.node.k8s.io", "storageclasses.storage.k8s.io"}
    | {f"{each}.rbac.authorization.k8s.io" for each in ("roles", "rolebindings", "clusterroles", "clusterrolebindings")}
)


class Parameters:
    """The parameters seen by the policies of one server."""

    def __init__(self, server: State) -> None:
        self._server = server
        self._followed: set[str] = set()  # kinds by storage name
        self._frozen: dict[str, Contents] = {}

    def follow(self, policies: Mapping[str, Obj], bindings: Mapping[str, Obj]) -> None:
        """Policies or bindings have changed: end the informers no longer needed by a binding."""
        bound = {each["spec"]["policyName"] for each in bindings.values()}
        kinds = [self._kind(policy) for name, policy in policies.items() if name in bound]
        needed = {kind.storage for kind in kinds if kind is not None and not kind.custom} - SHARED
        for storage in self._followed - needed - self._frozen.keys():
            held = self._server.store.objects(storage)
            self._frozen[storage] = {
                (each["metadata"].get("namespace", ""), each["metadata"]["name"]): each for each in held
            }
        self._followed = needed

    def restarted(self) -> None:
        """The process of the server was started again: its informers list everything anew."""
        self._frozen.clear()

    def unknown(self, policy: Obj) -> bool:
        """True if the server serves no such kind of parameter. Read in its source (generic/policy_source.go)."""
        return bool(policy["spec"].get("paramKind")) and self._kind(policy) is None

    def of(self, policy: Obj, binding: Obj, namespace: str) -> Obj | None:
        """The parameter of a binding for a request in a namespace; None if the policy has none or sees none."""
        kind, reference = self._kind(policy), binding["spec"].get("paramRef")
        if kind is None or not reference:
            return None
        key = ((reference.get("namespace") or namespace) if kind.namespaced else "", reference.get("name", ""))
        frozen = self._frozen.get(kind.storage)
        return self._server.store.get(kind.storage, *key) if frozen is None else frozen.get(key)

    def _kind(self, policy: Obj) -> Kind | None:
        stated = policy["spec"].get("paramKind")
        return self._server.kinds.of(stated["apiVersion"], stated["kind"]) if stated else None
