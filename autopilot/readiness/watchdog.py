"""The account of the watchdog with its rights: `deploy/watchdog.yaml`. Those of the controller: `manifest`."""

from __future__ import annotations

from typing import Any

from autopilot.contract import own

RBAC = "rbac.authorization.k8s.io"
LABELS = {"app.kubernetes.io/name": "gpu-autopilot"}
KUEUE = "kueue.x-k8s.io"
WATCHDOG = own.WATCHDOG
"""Name of the service account of the watchdog, of its roles, and of the ConfigMap of its mark."""


def rule_of(group: str, resources: list[str], verbs: list[str], names: list[str] | None = None) -> dict[str, Any]:
    """One rule of a role; `names`: only these objects."""
    rule: dict[str, Any] = {"apiGroups": [group], "resources": resources, "verbs": verbs}
    return {**rule, "resourceNames": names} if names else rule


def watchdog_rules() -> list[dict[str, Any]]:
    """Rules of the watchdog in the whole cluster."""
    return [
        rule_of(KUEUE, ["clusterqueues", "workloads"], ["list", "patch"]),
        rule_of("batch", ["jobs"], ["list", "patch"]),
        rule_of("", ["pods"], ["list", "patch"]),
        rule_of("apps", ["deployments", "statefulsets"], ["list"]),
        rule_of("apps", ["deployments/scale", "statefulsets/scale"], ["patch"]),
    ]


def watchdog_own_rules(lease: str = "gpu-autopilot") -> list[dict[str, Any]]:
    """Rules of the watchdog in the namespace of the Lease."""
    return [
        rule_of("coordination.k8s.io", ["leases"], ["get"], [lease]),
        rule_of("", ["configmaps"], ["create"]),  # a name cannot restrict it
        rule_of("", ["configmaps"], ["patch"], [WATCHDOG]),
    ]


def watchdog_account(namespace: str = "gpu-autopilot", lease: str = "gpu-autopilot") -> list[dict[str, Any]]:
    """The service account of the watchdog with its rights, in their order of application."""
    here = {"name": WATCHDOG, "namespace": namespace, "labels": LABELS}
    everywhere = {"name": WATCHDOG, "labels": LABELS}
    subjects = [{"kind": "ServiceAccount", "name": WATCHDOG, "namespace": namespace}]
    version = f"{RBAC}/v1"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": here},
        {"apiVersion": version, "kind": "ClusterRole", "metadata": everywhere, "rules": watchdog_rules()},
        {
            "apiVersion": version,
            "kind": "ClusterRoleBinding",
            "metadata": everywhere,
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": WATCHDOG},
            "subjects": subjects,
        },
        {"apiVersion": version, "kind": "Role", "metadata": here, "rules": watchdog_own_rules(lease)},
        {
            "apiVersion": version,
            "kind": "RoleBinding",
            "metadata": here,
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": WATCHDOG},
            "subjects": subjects,
        },
    ]
