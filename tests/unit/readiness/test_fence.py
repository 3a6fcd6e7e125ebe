"""The admission policy of the fence: what the API server refuses of an earlier leader, and what it leaves alone."""

from __future__ import annotations

import random
from typing import Any

import pytest

from apiserver.cluster import cluster
from apiserver.server import Server
from apiserver.timeline import Timeline
from apiserver.users import service_account
from autopilot.readiness.fence import EPOCH, NAME, PROBE, fence_policy, probe
from scripts.generate_fence import manifests
from tests.kits.apiserver_kit import START, Asker, small_cluster
from tests.kits.lead_kit import NAME as LEASE
from tests.kits.lead_kit import InProcess, with_namespace

OURS = service_account("gpu-autopilot", "gpu-autopilot")
WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/namespaces/team/workloads"
POD = {"spec": {"containers": [{"name": "main", "image": "app:1"}]}}
PODS = {"name": "main", "count": 1, "template": {"spec": POD["spec"] | {"restartPolicy": "Never"}}}
MAY_ALL = {
    "metadata": {"name": "ours"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    "subjects": [{"kind": "ServiceAccount", "name": "gpu-autopilot", "namespace": "gpu-autopilot"}],
}


@pytest.fixture(scope="module")
def server() -> Server:
    """A cluster with Kueue, a pod and a Workload; the Lease says 7 transitions and the policy is in force."""
    made = with_namespace(cluster(Timeline(START), random.Random(1), kueue=True))
    ask = Asker(made)
    ask("POST", "/api/v1/namespaces", {"metadata": {"name": "team"}})
    ask("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", MAY_ALL)
    ask("POST", LEASE.parent, {"metadata": {"name": LEASE.name}, "spec": {"leaseTransitions": 7}})
    ask("POST", "/api/v1/namespaces/team/pods", {"metadata": {"name": "p"}, **POD})
    ask("POST", WORKLOADS, {"metadata": {"name": "w"}, "spec": {"queueName": "q", "podSets": [PODS]}})
    for each in fence_policy():
        plural = {"ValidatingAdmissionPolicy": "validatingadmissionpolicies"}.get(
            each["kind"], each["kind"].lower() + "s"
        )
        ask("POST", f"/apis/admissionregistration.k8s.io/v1/{plural}", each)
    made.timeline.run_for(1.0)
    return made


def epoch(number: str | None) -> dict[str, Any]:
    """Metadata that states an epoch."""
    return {"metadata": {"annotations": {EPOCH: number} if number is not None else {"other": "x"}}}


def test_the_committed_files_are_what_the_code_generates() -> None:
    """`python scripts/generate_fence.py` writes them."""
    for path, text in manifests().items():
        assert path.read_text("utf-8") == text, "run: python scripts/generate_fence.py"


@pytest.mark.parametrize(("number", "code"), [("6", 403), (None, 403), ("x", 403), ("7", 200), ("8", 200)])
def test_a_write_with_an_older_epoch_is_refused(server: Server, number: str | None, code: int) -> None:
    """One without an epoch too; a newer one passes, because the policy may see the Lease late."""
    ours, pod = Asker(server, OURS), "/api/v1/namespaces/team/pods/p"
    Asker(server)("PATCH", pod, {"metadata": {"annotations": {EPOCH: None}}})  # that of another case of this test
    answer = ours.response("PATCH", pod, epoch(number))
    assert answer.status == code
    if code == 403:
        assert f"ValidatingAdmissionPolicy '{NAME}'" in answer.plain()["message"]
        assert number == "x" or "another controller leads" in answer.plain()["message"]


def test_an_eviction_states_its_epoch_in_its_own_metadata(server: Server) -> None:
    """The annotation of the pod does not count."""
    ours, path = Asker(server, OURS), "/api/v1/namespaces/team/pods/p/eviction"
    ours("PATCH", "/api/v1/namespaces/team/pods/p", epoch("7"))
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    ours.refused(403, "POST", path, body, dryRun="All")
    old = body | {"metadata": {"name": "p", "annotations": {EPOCH: "6"}}}
    ours.refused(403, "POST", path, old, dryRun="All")
    assert ours("POST", path, body | {"metadata": {"name": "p", "annotations": {EPOCH: "7"}}}, dryRun="All")
    assert Asker(server)("POST", path, body, dryRun="All"), "others are not asked"


@pytest.mark.parametrize(
    ("message", "code"),
    [("epoch 6: placed", 403), ("placed", 403), ("epoch many: placed", 403), ("epoch 7: placed", 200)],
)
def test_a_check_states_its_epoch_in_its_message(server: Server, message: str, code: int) -> None:
    """The status of a Workload has no metadata of its own."""
    check = {
        "name": "gpu-autopilot",
        "state": "Pending",
        "message": message,
        "lastTransitionTime": "2026-11-23T00:00:00Z",
    }
    answer = Asker(server, OURS).response("PATCH", f"{WORKLOADS}/w/status", {"status": {"admissionChecks": [check]}})
    assert answer.status == code, answer.plain()


def test_other_accounts_and_what_is_only_reported_are_left_alone(server: Server) -> None:
    """A user's patch, our events and our own ConfigMaps state no epoch."""
    Asker(server)("PATCH", "/api/v1/namespaces/team/pods/p", epoch(None))
    ours = Asker(server, OURS)
    ours("POST", "/api/v1/namespaces/gpu-autopilot/configmaps", {"metadata": {"name": "memory"}})
    spec = {"selector": {"matchLabels": {"app": "s"}}, "template": {"metadata": {"labels": {"app": "s"}}, **POD}}
    Asker(server)("POST", "/apis/apps/v1/namespaces/team/deployments", {"metadata": {"name": "s"}, "spec": spec})
    ours("PATCH", "/apis/apps/v1/namespaces/team/deployments/s/scale", {"spec": {"replicas": 0}})
    ours.refused(403, "PATCH", "/apis/apps/v1/namespaces/team/deployments/s", {"spec": {"replicas": 1}})
    ours.refused(403, "POST", "/api/v1/namespaces/team/configmaps", {"metadata": {"name": "memory"}})
    ours.refused(403, "POST", "/api/v1/namespaces/gpu-autopilot/configmaps", {"metadata": {"name": PROBE}})


def test_the_probe_tells_whether_the_policy_is_in_force(server: Server) -> None:
    """By a dry run as the account itself: nothing is written."""
    assert probe(InProcess(server, OURS), "gpu-autopilot") == ""
    assert "is not in force for this account" in probe(InProcess(server), "gpu-autopilot")
    assert "cannot be found out" in probe(InProcess(server, fate=lambda *_: "request lost"), "gpu-autopilot")


def test_without_its_lease_the_policy_allows_and_the_probe_says_so() -> None:
    """`Deny` would refuse the writes of everybody."""
    made = with_namespace(small_cluster())
    ask = Asker(made)
    ask("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", MAY_ALL)
    policy, binding = fence_policy()
    ask("POST", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", policy)
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    ask("POST", path, binding)
    made.timeline.run_for(1.0)
    body = {"metadata": {"name": "one"}}
    assert ask("POST", "/api/v1/namespaces/gpu-autopilot/configmaps", body, dryRun="All")
    assert "is not in force" in probe(InProcess(made, OURS), "gpu-autopilot")
    ask(
        "PATCH",
        f"{path}/{NAME}",
        {"spec": {"paramRef": {**binding["spec"]["paramRef"], "parameterNotFoundAction": "Deny"}}},
    )
    made.timeline.run_for(1.0)
    said = ask.refused(422, "POST", "/api/v1/namespaces/gpu-autopilot/configmaps", body, dryRun="All")
    assert "no params found" in said
