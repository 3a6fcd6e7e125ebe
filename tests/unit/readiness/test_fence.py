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
from autopilot.service.leading.epoch import ClusterEpoch
from scripts.generate_fence import manifests
from tests.kits.apiserver_kit import START, Asker, small_cluster
from tests.kits.fence_kit import BINDINGS, DEFINITIONS, EPOCH_PATH, POLICIES, install_fence, set_epoch
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
    """A cluster with Kueue, a pod and a Workload; the Epoch says 7 and the policy is in force."""
    made = with_namespace(cluster(Timeline(START), random.Random(1), kueue=True))
    ask = Asker(made)
    ask("POST", "/api/v1/namespaces", {"metadata": {"name": "team"}})
    ask("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", MAY_ALL)
    ask("POST", "/api/v1/namespaces/team/pods", {"metadata": {"name": "p"}, **POD})
    ask("POST", WORKLOADS, {"metadata": {"name": "w"}, "spec": {"queueName": "q", "podSets": [PODS]}})
    install_fence(made)
    set_epoch(made, 7)
    return made


def epoch(number: str | None) -> dict[str, Any]:
    """Metadata that states an epoch."""
    return {"metadata": {"annotations": {EPOCH: number} if number is not None else {"other": "x"}}}


def test_the_committed_files_are_what_the_code_generates() -> None:
    """`python scripts/generate_fence.py` writes them."""
    for path, text in manifests().items():
        assert path.read_text("utf-8") == text, "run: python scripts/generate_fence.py"


@pytest.mark.parametrize(
    ("number", "code"),
    [*((each, 403) for each in ("6", None, "x", "8", "07", "7 ", "999999999", str(10**30), "")), ("7", 200)],
)
def test_a_write_with_another_epoch_is_refused(server: Server, number: str | None, code: int) -> None:
    """An older one, a newer one, none, and text that is no number; nothing of it is an error of the expression."""
    ours, pod = Asker(server, OURS), "/api/v1/namespaces/team/pods/p"
    Asker(server)("PATCH", pod, {"metadata": {"annotations": {EPOCH: None}}})  # that of another case of this test
    answer = ours.response("PATCH", pod, epoch(number))
    assert answer.status == code
    if code == 403:
        assert f"ValidatingAdmissionPolicy '{NAME}'" in answer.plain()["message"]
        assert "another controller leads" in answer.plain()["message"]


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
    [
        *(
            (each, 403)
            for each in ("epoch 6: placed", "placed", "epoch many: placed", "epoch 8: placed", "epoch 77: x")
        ),
        ("epoch 7: placed", 200),
    ],
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
    """By dry runs as the account itself, with the epochs around the present one: nothing is written."""
    ours = InProcess(server, OURS)
    assert probe(ours, "gpu-autopilot", 7) == ("", False)
    assert "is not in force for this account" in probe(InProcess(server), "gpu-autopilot", 7)[0]
    assert "cannot be found out" in probe(InProcess(server, fate=lambda *_: "request lost"), "gpu-autopilot", 7)[0]
    stale, refused = probe(ours, "gpu-autopilot", 8)
    assert "with epoch 7 was accepted" in stale, "the server compares with an earlier epoch than the present one"
    assert not refused
    text, refused = probe(ours, "gpu-autopilot", 100)
    assert refused
    assert "refuses the present epoch 100" in text
    assert "restart the API servers" in text


def fenced(policy: dict[str, Any] | None = None) -> tuple[Server, Asker]:
    """A cluster with the fence, and an account that may do everything."""
    made = with_namespace(small_cluster())
    ask = Asker(made)
    ask("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", MAY_ALL)
    install_fence(made, lambda: [policy, fence_policy()[1]] if policy else fence_policy())
    return made, ask


MAPS, BODY = "/api/v1/namespaces/gpu-autopilot/configmaps", {"metadata": {"name": "one"}}


def test_without_its_epoch_or_its_kind_the_policy_allows_and_the_probe_says_so() -> None:
    """With `Deny`, or `failurePolicy: Fail`, the writes of everybody would be refused."""
    made, ask = fenced()
    assert "is not in force" in probe(InProcess(made, OURS), "gpu-autopilot", 7)[0]
    deny = {"spec": {"paramRef": {**fence_policy()[1]["spec"]["paramRef"], "parameterNotFoundAction": "Deny"}}}
    ask("PATCH", f"{BINDINGS}/{NAME}", deny)
    made.timeline.run_for(1.0)
    assert ask("POST", MAPS, BODY, dryRun="All"), "failures are ignored"
    ask("PATCH", f"{BINDINGS}/{NAME}", {"spec": fence_policy()[1]["spec"]})
    ask("DELETE", f"{DEFINITIONS}/epochs.gpu-autopilot.io")
    made.timeline.run_for(5.0)
    assert ask("POST", MAPS, BODY, dryRun="All")
    assert "deploy/crds/epochs.yaml" in probe(InProcess(made, OURS), "gpu-autopilot", 7)[0]
    ask("PATCH", f"{POLICIES}/{NAME}", {"spec": {"failurePolicy": "Fail"}})
    made.timeline.run_for(1.0)
    assert "failed to find resource referenced by paramKind" in ask.refused(422, "POST", MAPS, BODY, dryRun="All")


def test_a_fence_that_was_removed_and_installed_again_compares_with_the_present_epoch() -> None:
    """As docs/install.md removes it. With a Lease as parameter the server compared with the old one for good."""
    made, ask = fenced()
    ours = InProcess(made, OURS)
    assert ClusterEpoch(ours, LEASE).claim(5) == ""
    assert probe(ours, "gpu-autopilot", 5) == ("", False)
    for again in (False, True):
        if again:  # and the definition with it, as `kubectl delete -f deploy/crds/`
            ask("DELETE", f"{DEFINITIONS}/epochs.gpu-autopilot.io")
        ask("DELETE", f"{BINDINGS}/{NAME}")
        ask("DELETE", f"{POLICIES}/{NAME}")
        made.timeline.run_for(5.0)
        if again:
            install_fence(made)
        else:
            for path, each in zip((POLICIES, BINDINGS), fence_policy(), strict=True):
                ask("POST", path, each)
            made.timeline.run_for(1.0)
        epoch = ClusterEpoch(ours, LEASE)
        following = epoch.known() + 3
        assert epoch.claim(following) == ""
        assert probe(ours, "gpu-autopilot", following) == ("", False)


def test_an_epoch_is_never_taken_back() -> None:
    """An earlier leader that wakes up is told; the server refuses it too, from any writer."""
    made, ask = fenced()
    ours = InProcess(made, OURS)
    epoch = ClusterEpoch(ours, LEASE)
    assert epoch.claim(5, "one") == ""
    assert epoch.claim(5, "one") == "", "twice is once"
    late = ClusterEpoch(ours, LEASE)
    assert "a later leader with epoch 5" in late.claim(4)
    assert late.highest == 5
    assert "cannot take it back" in ask.refused(422, "PATCH", f"{EPOCH_PATH}/{LEASE.name}", {"spec": {"epoch": 4}})
    ask.refused(422, "PATCH", f"{EPOCH_PATH}/{LEASE.name}", {"spec": {"epoch": 2**31}})


def test_a_cluster_without_the_kind_is_led_without_a_fence() -> None:
    """The probe keeps `auto` away; where the cluster does not answer, the term cannot begin."""
    made = with_namespace(small_cluster())
    epoch = ClusterEpoch(InProcess(made), LEASE)
    assert (epoch.known(), epoch.claim(3)) == (0, "")
    lost = ClusterEpoch(InProcess(made, fate=lambda *_: "request lost"), LEASE)
    assert "cannot be written" in lost.claim(3)
    with pytest.raises(OSError, match="Epoch gpu-autopilot/gpu-autopilot"):
        lost.known()


def test_a_new_leader_waits_until_the_server_sees_its_epoch() -> None:
    """Half a second at most: a fence that is broken is told by the probe."""
    made, _ = fenced()
    pauses: list[float] = []
    epoch = ClusterEpoch(InProcess(made, OURS), LEASE, pauses.append)
    assert epoch.claim(5) == ""
    epoch.settle(5)
    assert pauses == []
    epoch.settle(6)
    assert 0.4 <= sum(pauses) <= 0.5
