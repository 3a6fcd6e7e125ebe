"""What a cluster is run with: leases, classes, roles, policies, priority and fairness."""

from __future__ import annotations

from apiserver.kinds.base import STATUS, Kind

RBAC = "rbac.authorization.k8s.io"
ADMISSION = "admissionregistration.k8s.io"
FLOW = "flowcontrol.apiserver.k8s.io"
SYSTEM = (
    Kind("coordination.k8s.io", "v1", "leases", "Lease"),
    Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False, short_names=("pc",)),
    Kind(RBAC, "v1", "roles", "Role"),
    Kind(RBAC, "v1", "rolebindings", "RoleBinding"),
    Kind(RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False),
    Kind(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    Kind(
        ADMISSION, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", namespaced=False,
        subresources={"status": STATUS}, generation=True,
    ),
    Kind(
        ADMISSION, "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", namespaced=False,
        generation=True,
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
        FLOW, "v1", "prioritylevelconfigurations", "PriorityLevelConfiguration", namespaced=False,
        subresources={"status": STATUS}, generation=True,
    ),
    Kind(
        FLOW, "v1", "flowschemas", "FlowSchema", namespaced=False, subresources={"status": STATUS}, generation=True
    ),
)  # fmt: skip
