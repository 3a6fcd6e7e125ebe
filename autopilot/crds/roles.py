"""The rights for the custom resources: those of the service, and the role of approvers."""

from __future__ import annotations

from typing import Any

from autopilot.crds.names import GROUP, POLICIES, RECOMMENDATIONS
from autopilot.readiness.manifest import NAME, NAMESPACE, RBAC, labelled

APPROVER = f"{NAME}-approver"

SERVICE_RULES: list[dict[str, Any]] = [
    {"apiGroups": [GROUP], "resources": [POLICIES], "verbs": ["get", "list"]},
    {
        "apiGroups": [GROUP],
        "resources": [RECOMMENDATIONS],
        "verbs": ["get", "list", "watch", "create", "patch", "delete"],
    },
    {"apiGroups": [GROUP], "resources": [f"{POLICIES}/status", f"{RECOMMENDATIONS}/status"], "verbs": ["patch"]},
    {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]},
]
"""All rights of the service in the group, and Events on its objects."""

APPROVER_RULES: list[dict[str, Any]] = [
    {"apiGroups": [GROUP], "resources": [RECOMMENDATIONS], "verbs": ["get", "list", "watch", "patch", "update"]},
]
"""A person with these may decide, and cannot change what another person reads: the spec of a Recommendation is
immutable, and its status takes another right.
"""


def roles() -> list[dict[str, Any]]:
    """The objects in their order of application. The operator binds the approvers."""
    name = f"{NAME}-control-resources"
    return [
        {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": labelled(name), "rules": SERVICE_RULES},
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": labelled(name),
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
        },
        {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": labelled(APPROVER), "rules": APPROVER_RULES},
    ]
