"""`deploy/observe.yaml`: the rights of the service to look at a cluster, and to do nothing more.

With it `deploy/settings.yaml`: policy and kill switch.
"""

from __future__ import annotations

from typing import Any

from autopilot.contract import own
from autopilot.readiness.fence import EPOCH_GROUP, EPOCHS
from autopilot.readiness.line import Right
from autopilot.readiness.rights import RIGHTS
from autopilot.readiness.watchdog import WATCHDOG, rule_of

NAMESPACE = NAME = "gpu-autopilot"
RBAC = "rbac.authorization.k8s.io"
POLICY_MAP, SWITCH_MAP = "gpu-autopilot-policy", "gpu-autopilot-kill-switch"
INBOX_MAP, MEMORY_MAP = own.INBOX_MAP, own.MEMORY_MAP
MEMORY_SETS, MEMORY_PARTS = ("a", "b"), 16
"""Most ConfigMaps for one memory too large for a single one. Two such sets are used in turn."""
POLICY = """\
base: recommend
# Fields: docs/policy.md. Until kubernetes.act is set, every mode counts as recommend at most.
"""


def labelled(name: str, namespace: str = "") -> dict[str, Any]:
    """The metadata of an object of ours."""
    place = {"namespace": namespace} if namespace else {}
    return {"name": name, **place, "labels": {"app.kubernetes.io/name": NAME}}


def rules(own_namespace: bool) -> list[dict[str, Any]]:
    """The service's rights to read, as rules of a role: one for each group and set of verbs, in the order of the table.

    `own_namespace`: the rights in the namespace of the service only.
    """
    found: dict[tuple[str, tuple[str, ...]], list[Right]] = {}
    for right in RIGHTS:
        if right.own_namespace == own_namespace:
            found.setdefault((right.group, right.verbs), []).append(right)
    return [
        {"apiGroups": [group], "resources": [right.resource for right in rights], "verbs": list(verbs)}
        for (group, verbs), rights in found.items()
    ]


def observe() -> list[dict[str, Any]]:
    """The objects in their order of application."""
    account = {"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}
    whole, own = f"{NAME}-observe", f"{NAME}-settings"
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": labelled(NAMESPACE)},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": labelled(NAME, NAMESPACE)},
        {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": labelled(whole), "rules": rules(False)},
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": labelled(whole),
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": whole},
            "subjects": [account],
        },
        {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": labelled(own, NAMESPACE), "rules": rules(True)},
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": labelled(own, NAMESPACE),
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": own},
            "subjects": [account],
        },
    ]


def settings_maps() -> list[dict[str, Any]]:
    """Policy and kill switch. They belong to people once they exist, so they are in no file that is applied again."""
    found = {POLICY_MAP: {"policy.yaml": POLICY}, SWITCH_MAP: {"kill": "off"}}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": labelled(name, NAMESPACE), "data": data}
        for name, data in found.items()
    ]


def leading_rules(lease: str = NAME) -> list[dict[str, Any]]:
    """Rules in the namespace of the service for several controllers that elect their leader.

    They cover the Lease and Events on it, the Epoch of the fence, memory and commands, and the mark of the watchdog,
    taken away by `autopilot rearm`.

    A name cannot restrict creation. The kill switch and the policy of the namespace cannot be changed.
    """
    leases = "coordination.k8s.io"
    return [
        rule_of(leases, ["leases"], ["create"]),
        rule_of(leases, ["leases"], ["get", "update"], [lease]),
        rule_of(EPOCH_GROUP, [EPOCHS], ["create"]),
        rule_of(EPOCH_GROUP, [EPOCHS], ["get", "update"], [lease]),
        rule_of("", ["configmaps"], ["create"]),
        rule_of("", ["configmaps"], ["get", "update"], [INBOX_MAP, MEMORY_MAP, *memory_parts()]),
        rule_of("", ["configmaps"], ["get", "delete"], [WATCHDOG]),
        rule_of("events.k8s.io", ["events"], ["create"]),
    ]


def memory_parts() -> list[str]:
    """The ConfigMaps of a memory too large for one."""
    return [f"{MEMORY_MAP}-{part}-{number}" for part in MEMORY_SETS for number in range(MEMORY_PARTS)]


def leading() -> list[dict[str, Any]]:
    """The role of `leading_rules` and its binding to the account of the service."""
    meta, version = labelled(f"{NAME}-leading", NAMESPACE), f"{RBAC}/v1"
    return [
        {"apiVersion": version, "kind": "Role", "metadata": meta, "rules": leading_rules()},
        {
            "apiVersion": version,
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": meta["name"]},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
        },
    ]
