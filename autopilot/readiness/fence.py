"""The ValidatingAdmissionPolicy that refuses writes of an earlier leader, with the object Epoch as its parameter.

A process paused between its last check and its write sends the write after another controller took over. Only the API
server can refuse that one. Each write of our account states the epoch of its leader, and the policy compares it with
the Epoch, written by each leader before anything else.

The parameter is of a custom kind, because the API server loses sight of a built-in one for good at the end of the last
binding. A missing parameter or kind lets the write pass (`Allow`, `Ignore`): otherwise the server would refuse the
writes of everybody to every kind in the policy, because it looks for the parameter before it looks at the conditions.
The expressions cannot fail. `probe` tests that the policy is in force.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from autopilot.contract import own
from autopilot.kube.cluster_api import Answer

NAME = "gpu-autopilot-fence"
EPOCH = "gpu-autopilot.io/epoch"
CHECK = "gpu-autopilot"
"""Name of our AdmissionCheck: the `message` of its entries in a Workload begins with `epoch N: `."""
PROBE = own.PROBE
"""Name of a ConfigMap in dry runs only."""
EPOCH_GROUP, EPOCH_VERSION, EPOCH_KIND, EPOCHS = "gpu-autopilot.io", "v1alpha1", "Epoch", "epochs"
"""The kind of the parameter."""
REGISTRATION = "admissionregistration.k8s.io"
FORBIDDEN, ACCEPTED = 403, (201, 409)
LABELS = {"app.kubernetes.io/name": "gpu-autopilot"}

LEFT_ALONE = (
    ("coordination.k8s.io", "leases"),
    ("", "events"),
    ("events.k8s.io", "events"),
    ("gpu-autopilot.io", "*/*"),
    ("authentication.k8s.io", "*/*"),
    ("authorization.k8s.io", "*/*"),
)
"""What everybody writes all the time, what the leader only reports, and questions."""


def _rule(group: str, *resources: str) -> dict[str, Any]:
    return {
        "apiGroups": [group],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE"],
        "resources": list(resources),
        "scope": "*",
    }


def fence_policy(
    namespace: str = "gpu-autopilot", account: str = "gpu-autopilot", lease: str = "gpu-autopilot"
) -> list[dict[str, Any]]:
    """The policy and its binding, for the service account and the Lease of one namespace. The Epoch has the name of
    the Lease.
    """
    current = "has(params.spec) && has(params.spec.epoch) ? string(params.spec.epoch) : 'none'"
    epoch = (
        f"has(object.metadata) && has(object.metadata.annotations) && '{EPOCH}' in object.metadata.annotations"
        f" ? object.metadata.annotations['{EPOCH}'] : ''"
    )
    checks = (
        "variables.part == 'status' && has(object.status) && has(object.status.admissionChecks)"
        f" ? object.status.admissionChecks.filter(c, c.name == '{CHECK}') : []"
    )
    kept = f"request.resource.resource == 'configmaps' && has(request.namespace) && request.namespace == '{namespace}'"
    probe = f"has(request.name) && request.name == '{PROBE}'"
    said = f"its epoch is not that of Epoch {namespace}/{lease}: another controller leads"
    spec = {
        "failurePolicy": "Ignore",
        "paramKind": {"apiVersion": f"{EPOCH_GROUP}/{EPOCH_VERSION}", "kind": EPOCH_KIND},
        "matchConstraints": {
            "resourceRules": [_rule("*", "*/*")],
            "excludeResourceRules": [_rule(*each) for each in LEFT_ALONE],
        },
        "matchConditions": [
            {
                "name": "our-account",
                "expression": f"request.userInfo.username == 'system:serviceaccount:{namespace}:{account}'",
            },
            # memory and inbox are written over a version that the writer has read
            {"name": "not-our-own-state", "expression": f"!({kept}) || ({probe})"},
            # other status has no epoch; a Scale that admission sees has no annotations, and its writer names a version
            {
                "name": "states-an-epoch",
                "expression": "!has(request.subResource) || !(request.subResource in ['status', 'scale'])"
                " || (request.resource.resource == 'workloads' && request.subResource == 'status')",
            },
        ],
        "variables": [
            {"name": "part", "expression": "has(request.subResource) ? request.subResource : ''"},
            {"name": "current", "expression": current},
            {"name": "epoch", "expression": epoch},
            {"name": "checks", "expression": checks},
        ],
        "validations": [
            {
                "expression": "variables.part == 'status' || variables.epoch == variables.current",
                "message": said,
                "reason": "Forbidden",
            },
            {
                "expression": "variables.part != 'status' || (size(variables.checks) > 0 && variables.checks.all(c,"
                " has(c.message) && c.message.startsWith('epoch ' + variables.current + ': ')))",
                "message": said,
                "reason": "Forbidden",
            },
        ],
    }
    binding = {
        "policyName": NAME,
        "paramRef": {"name": lease, "namespace": namespace, "parameterNotFoundAction": "Allow"},
        "validationActions": ["Deny"],
    }
    version = f"{REGISTRATION}/v1"
    metadata = {"name": NAME, "labels": LABELS}
    return [
        {"apiVersion": version, "kind": "ValidatingAdmissionPolicy", "metadata": metadata, "spec": spec},
        {"apiVersion": version, "kind": "ValidatingAdmissionPolicyBinding", "metadata": metadata, "spec": binding},
    ]


class Creates(Protocol):
    """Creates objects (`ClusterApi`)."""

    def post(self, path: str, body: Mapping[str, Any], query: Mapping[str, str] | None = None) -> Answer:
        """Create."""
        ...


def probe(api: Creates, namespace: str, epoch: int) -> tuple[str, bool]:
    """Reason for accepted writes of an earlier leader, "" if they are refused; and True if those of this leader are.

    Dry runs of a write with the epochs before and after `epoch`, and with `epoch` itself: the policy is in force for
    this account, and compares with the present epoch, if exactly the last one passes.
    """
    for other in (epoch - 1, epoch + 1):
        answer = _try(api, namespace, other)
        if answer.status in ACCEPTED:
            return (
                f"ValidatingAdmissionPolicy {NAME} is not in force for this account: a write with epoch {other} was "
                f"accepted in a dry run, and {epoch} is the present one; apply deploy/crds/epochs.yaml, "
                "deploy/lead.yaml and deploy/fence.yaml of this version"
            ), False
        if not _refused(answer):
            return (
                f"it cannot be found out whether ValidatingAdmissionPolicy {NAME} is in force: {answer.reason}",
                False,
            )
    answer = _try(api, namespace, epoch)
    if answer.status in ACCEPTED:
        return "", False
    if not _refused(answer):
        return f"it cannot be found out whether ValidatingAdmissionPolicy {NAME} lets us write: {answer.reason}", False
    return (
        f"ValidatingAdmissionPolicy {NAME} refuses the present epoch {epoch}, so nothing can be written: the API "
        "server does not follow the object Epoch; restart the API servers one by one, or delete the binding of the "
        "policy and apply deploy/fence.yaml again"
    ), True


def seen(api: Creates, namespace: str, epoch: int) -> bool:
    """True if a write with this epoch passes, or if that is unknown."""
    return not _refused(_try(api, namespace, epoch))


def _try(api: Creates, namespace: str, epoch: int) -> Answer:
    meta = {"name": PROBE, "namespace": namespace, "annotations": {EPOCH: str(epoch)}}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}
    return api.post(f"/api/v1/namespaces/{namespace}/configmaps", body, {"dryRun": "All"})


def _refused(answer: Answer) -> bool:
    return answer.status == FORBIDDEN and f"'{NAME}'" in answer.reason
