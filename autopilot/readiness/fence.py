"""The ValidatingAdmissionPolicy that refuses writes of an earlier leader, with the Lease as its parameter.

A process that is paused between its last check and its write sends the write after another controller took over. Only
the API server can refuse that one. Each write of our account states the epoch of its leader, and the policy compares it
with `leaseTransitions` of the Lease.

A parameter that is missing allows the request. With `Deny` it would refuse the writes of everybody to every kind that
the policy names, because the API server looks for the parameter before it looks at the conditions. `probe` finds out
whether the policy is in force.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from autopilot.readiness.line import Answer

NAME = "gpu-autopilot-fence"
EPOCH = "gpu-autopilot.io/epoch"
CHECK = "gpu-autopilot"
"""Name of our AdmissionCheck: the `message` of its entries in a Workload begins with `epoch N: `."""
PROBE = "gpu-autopilot-fence-probe"
"""Name of a ConfigMap that exists only in dry runs."""
REGISTRATION = "admissionregistration.k8s.io"
FORBIDDEN, ALREADY_THERE = 403, 409
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
    """The policy and its binding, for the service account and the Lease of one namespace."""
    current = "has(params.spec) && has(params.spec.leaseTransitions) ? params.spec.leaseTransitions : 0"
    epoch = (
        f"has(object.metadata.annotations) && '{EPOCH}' in object.metadata.annotations"
        f" ? int(object.metadata.annotations['{EPOCH}']) : -1"
    )
    checks = (
        "variables.part == 'status' && has(object.status) && has(object.status.admissionChecks)"
        f" ? object.status.admissionChecks.filter(c, c.name == '{CHECK}') : []"
    )
    kept = f"request.resource.resource == 'configmaps' && has(request.namespace) && request.namespace == '{namespace}'"
    probe = f"has(request.name) && request.name == '{PROBE}'"
    said = f"its epoch is older than leaseTransitions of Lease {namespace}/{lease}: another controller leads"
    spec = {
        "failurePolicy": "Fail",
        "paramKind": {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"},
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
                "expression": "variables.part == 'status' || variables.epoch >= variables.current",
                "message": said,
                "reason": "Forbidden",
            },
            {
                "expression": "variables.part != 'status' || (size(variables.checks) > 0 && variables.checks.all(c,"
                " has(c.message) && c.message.startsWith('epoch ')"
                " && int(c.message.substring(6, c.message.indexOf(': '))) >= variables.current))",
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


def probe(api: Creates, namespace: str) -> str:
    """Why writes of an earlier leader are not refused; "" where they are.

    A dry run of a write whose epoch is older than any: the policy is in force for this account when it is refused.
    """
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": PROBE, "namespace": namespace, "annotations": {EPOCH: "0"}},
    }
    answer = api.post(f"/api/v1/namespaces/{namespace}/configmaps", body, {"dryRun": "All"})
    if answer.status == FORBIDDEN and f"'{NAME}'" in answer.reason:
        return ""
    if answer.status in {201, ALREADY_THERE}:
        return (
            f"ValidatingAdmissionPolicy {NAME} is not in force for this account: a write with epoch 0 was accepted in "
            "a dry run; apply deploy/fence.yaml, and restart the API servers if it was deleted before"
        )
    return f"it cannot be found out whether ValidatingAdmissionPolicy {NAME} is in force: {answer.reason}"
