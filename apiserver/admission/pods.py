"""Permanent admission for pods and nodes: service accounts, tolerations, and the taint of a new node."""

from __future__ import annotations

from typing import Any

from apiserver.admission.base import Attributes
from apiserver.errors import forbidden
from apiserver.kinds.base import State

Obj = dict[str, Any]
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a path
TOKEN_S = 3607  # a second over an hour: what the plugin asks for, and kubelets refresh
BUNDLES = (("kube-root-ca.crt", "ca.crt"), ("openshift-service-ca.crt", "service-ca.crt"))  # the latter by the fork
TOLERATED_S = 300
NOT_READY = "node.kubernetes.io/not-ready"


class Mutating:
    """A plugin without refusals."""

    def validate(self, attributes: Attributes, server: State) -> None:
        """Nothing to refuse."""


class ServiceAccounts(Mutating):
    """Gives a pod the account `default` and the volume with its token."""

    name = "ServiceAccount"

    def mutate(self, attributes: Attributes, server: State) -> None:
        """Fill in account, volume and mounts. An account other than the default one must be there."""
        if not attributes.concerns("pods", "CREATE"):
            return
        spec = attributes.obj["spec"]
        account = spec.setdefault("serviceAccountName", spec.get("serviceAccount") or "default")
        spec["serviceAccount"] = account
        space = attributes.namespace
        if account != "default" and server.store.get("serviceaccounts", space, account) is None:
            why = f'error looking up service account {space}/{account}: serviceaccount "{account}" not found'
            raise forbidden(attributes.kind.named(attributes.name), why)
        if spec.get("automountServiceAccountToken") is False:
            return
        containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
        missing = [each for each in containers if not _mounts(each)]
        if not missing:
            return
        volume = f"kube-api-access-{server.name_suffix()}"
        mount = {"name": volume, "readOnly": True, "mountPath": TOKEN_PATH}
        for container in missing:
            container["volumeMounts"] = [*(container.get("volumeMounts") or ()), dict(mount)]
        spec["volumes"] = [*(spec.get("volumes") or ()), _token_volume(volume)]


def _mounts(container: Obj) -> bool:
    return any(each.get("mountPath") == TOKEN_PATH for each in container.get("volumeMounts") or ())


def _token_volume(name: str) -> Obj:
    token = {"serviceAccountToken": {"expirationSeconds": TOKEN_S, "path": "token"}}
    bundles = [{"configMap": {"name": each, "items": [{"key": key, "path": key}]}} for each, key in BUNDLES]
    field = {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
    namespace = {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": field}]}}
    return {"name": name, "projected": {"sources": [token, bundles[0], namespace, bundles[1]], "defaultMode": 420}}


class DefaultTolerations(Mutating):
    """Lets a pod stay for five minutes on an unready or unreachable node."""

    name = "DefaultTolerationSeconds"

    def mutate(self, attributes: Attributes, server: State) -> None:
        """Add the tolerations missing from the pod."""
        if not attributes.concerns("pods", "CREATE"):
            return
        spec = attributes.obj["spec"]
        held = list(spec.get("tolerations") or ())
        for key in (NOT_READY, "node.kubernetes.io/unreachable"):
            if not any(_tolerates(each, key) for each in held):
                held.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATED_S})
        spec["tolerations"] = held


def _tolerates(toleration: Obj, key: str) -> bool:
    return toleration.get("key") in {key, None, ""} and toleration.get("effect") in {"NoExecute", None, ""}


class NodeTaints(Mutating):
    """A new node is not ready until its controller has looked at it."""

    name = "TaintNodesByCondition"

    def mutate(self, attributes: Attributes, server: State) -> None:
        """Add the taint."""
        if not attributes.concerns("nodes", "CREATE"):
            return
        spec = attributes.obj.setdefault("spec", {})
        taints = list(spec.get("taints") or ())
        if not any(each.get("key") == NOT_READY and each.get("effect") == "NoSchedule" for each in taints):
            spec["taints"] = [*taints, {"key": NOT_READY, "effect": "NoSchedule"}]
