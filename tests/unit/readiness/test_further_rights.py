"""The check of the rights that acting, leading and our own resources take, on an API server with RBAC."""

from __future__ import annotations

import random
from typing import Any

from actuators.kubernetes.rights import manifest
from apiserver.cluster import cluster
from apiserver.timeline import Timeline
from apiserver.users import service_account
from autopilot.crds.roles import roles
from autopilot.operate.check_rights import further_rights
from autopilot.readiness.line import Asked, Status
from autopilot.readiness.manifest import observe
from autopilot.readiness.rights import permissions
from autopilot.service.settings import Kubernetes
from tests.kits.apiserver_kit import START, Asker
from tests.kits.lead_kit import InProcess

RBAC = "/apis/rbac.authorization.k8s.io/v1"


def missing(settings: dict[str, Any], *granted: dict[str, Any]) -> dict[str, str]:
    """What is missing beside the rights of reading: the fix of each."""
    server = cluster(Timeline(START), random.Random(1))
    ask = Asker(server)
    for each in (*observe(), *granted):
        space = each["metadata"].get("namespace")
        if each["kind"] in {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}:
            ask("POST", f"{RBAC}/{f'namespaces/{space}/' if space else ''}{each['kind'].lower()}s", each)
        elif each["kind"] == "Namespace":
            ask("POST", "/api/v1/namespaces", each)
    api = InProcess(server, service_account("gpu-autopilot", "gpu-autopilot"))
    rights = further_rights(Kubernetes(in_cluster=True, **settings))
    lines = permissions(Asked(api, None, lambda: 0.0, "gpu-autopilot", rights))
    return {line.subject: line.fix for line in lines if line.status == Status.FAILED}


def test_the_rights_of_each_kind_that_is_on_are_checked() -> None:
    """With the file of its kind nothing is missing; without it the file is named."""
    acts = {"act": True, "act_kinds": ["cordon"]}
    assert missing(acts, *manifest("cordon")) == {}
    found = missing(acts)
    assert set(found) == {"nodes", "events.events.k8s.io", "actions.gpu-autopilot.io"}
    assert set(found.values()) == {"apply deploy/act/cordon.yaml, or set act.cordon of the chart"}
    assert missing({}) == {}


def test_the_rights_of_leading_and_of_our_resources_are_checked() -> None:
    """The Lease, the memory, the policy and the recommendations, each with what to apply."""
    asks = {"recommendations": 10, "lease": {}}
    found = missing(asks)
    assert found["leases.coordination.k8s.io"].startswith("apply deploy/lead.yaml")
    assert found["recommendations/status.gpu-autopilot.io"] == "apply deploy/crds/"
    assert "recommendations.gpu-autopilot.io" not in missing(asks, *roles())
