"""Kinds for the running of a cluster: leases, classes, roles, policies of admission and of the network, fairness."""

from __future__ import annotations

from apiserver.kinds.base import STATUS, Kind
from apiserver.kinds.plain import default_lease, default_network_policy, lease_errors, lease_update_errors
from apiserver.kinds.policies import (
    binding_changes,
    binding_problems,
    fill_binding,
    fill_policy,
    fill_priority_class,
    policy_changes,
    policy_problems,
    priority_class_changes,
)
from apiserver.metadata import path_segment_errors

RBAC = "rbac.authorization.k8s.io"
NETWORK = "networking.k8s.io"
ADMISSION = "admissionregistration.k8s.io"
FLOW = "flowcontrol.apiserver.k8s.io"
SYSTEM = (
    Kind(
        "coordination.k8s.io", "v1", "leases", "Lease",
        default=default_lease, validate=lease_errors, validate_update=lease_update_errors,
        fields=("spec.holderIdentity",),
    ),
    Kind(
        "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False, short_names=("pc",),
        default=fill_priority_class, validate_update=priority_class_changes, generation=True,
    ),
    Kind(RBAC, "v1", "roles", "Role", name_errors=path_segment_errors),
    Kind(RBAC, "v1", "rolebindings", "RoleBinding", name_errors=path_segment_errors),
    Kind(RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False, name_errors=path_segment_errors),
    Kind(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False, name_errors=path_segment_errors),
    Kind(
        ADMISSION, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", namespaced=False,
        subresources={"status": STATUS}, generation=True, default=fill_policy, validate=policy_problems,
        validate_update=policy_changes,
    ),
    Kind(
        ADMISSION, "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", namespaced=False,
        generation=True, default=fill_binding, validate=binding_problems, validate_update=binding_changes,
    ),
    Kind(
        ADMISSION, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", namespaced=False,
        generation=True,
    ),
    Kind(
        ADMISSION, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", namespaced=False,
        generation=True,
    ),
    Kind(
        NETWORK, "v1", "ingresses", "Ingress", short_names=("ing",), subresources={"status": STATUS}, generation=True
    ),
    Kind(
        NETWORK, "v1", "networkpolicies", "NetworkPolicy", short_names=("netpol",), generation=True,
        default=default_network_policy,
    ),
    Kind(
        FLOW, "v1", "prioritylevelconfigurations", "PriorityLevelConfiguration", namespaced=False,
        subresources={"status": STATUS}, generation=True,
    ),
    Kind(
        FLOW, "v1", "flowschemas", "FlowSchema", namespaced=False, subresources={"status": STATUS}, generation=True
    ),
)  # fmt: skip
