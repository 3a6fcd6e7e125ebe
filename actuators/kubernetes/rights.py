"""The rights of the levers as RBAC objects: one ClusterRole for each kind of instruction.

A kind that is off asks for no right.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from actuators.kubernetes.field_policy import field_policies
from actuators.kubernetes.levers import LEVERS, rules_for
from actuators.kubernetes.levers.base import Rule

RBAC = "rbac.authorization.k8s.io"
NAME = NAMESPACE = "gpu-autopilot"


def kube_rules(rules: Iterable[Rule]) -> list[dict[str, Any]]:
    """Rules as a ClusterRole has them; those of the service's own namespace are left out."""
    return [
        {
            "apiGroups": [rule.group],
            "resources": [rule.resource],
            **({"resourceNames": list(rule.names)} if rule.names else {}),
            "verbs": list(rule.verbs),
        }
        for rule in rules
        if not rule.own_namespace
    ]


def fields_manifest() -> list[dict[str, Any]]:
    """The policies of the fields open to the accounts, as in `deploy/fields.yaml`."""
    return field_policies(NAMESPACE, [NAME])


PROBE_RULES = (Rule("", "pods", ("create", "delete", "get"), own_namespace=True),)
"""What probe pods of shared nodes need (`kubernetes.sharing_probe_image`), in the namespace of the service only."""


def probe_manifest() -> list[dict[str, Any]]:
    """The Role for probe pods, and its binding."""
    name = f"{NAME}-sharing-probe"
    meta = {"name": name, "namespace": NAMESPACE, "labels": {"app.kubernetes.io/name": NAME}}
    return [
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "Role",
            "metadata": meta,
            "rules": probe_rules(),
        },
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
        },
    ]


def probe_rules() -> list[dict[str, Any]]:
    """The rules of that role."""
    return kube_rules(replace(each, own_namespace=False) for each in PROBE_RULES)


def kinds() -> list[str]:
    """The kinds of instructions with levers."""
    return sorted({kind for lever in LEVERS for kind in lever.kinds})


def manifest(kind: str) -> list[dict[str, Any]]:
    """The ClusterRole of a kind of instruction, and its binding to the account of the service."""
    name = f"{NAME}-{kind}"
    meta = {"name": name, "labels": {"app.kubernetes.io/name": NAME}}
    return [
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": meta,
            "rules": kube_rules(rules_for([kind])),
        },
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
        },
    ]
