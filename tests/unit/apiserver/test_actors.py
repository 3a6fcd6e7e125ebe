"""Stories of a small cluster: Jobs, evictions, preemption, rolling updates."""

from __future__ import annotations

import pytest

from apiserver.errors import StatusError
from tests.kits.scene_kit import SPACE, Scene, containers


@pytest.fixture
def scene() -> Scene:
    """A cluster without nodes."""
    return Scene()


def test_a_suspended_job_has_no_pods_and_a_resumed_one_runs_them(scene: Scene) -> None:
    """Conditions, counters and start time follow spec.suspend both ways."""
    scene.node("n1")
    scene.job("j", 2, suspend=True)
    scene.timeline.run_for(0.01)
    assert scene.conditions("j") == [("Suspended", "True", "JobSuspended")]
    assert scene.pods() == []
    scene.client.patch("jobs.batch", SPACE, "j", {"spec": {"suspend": False}})
    scene.timeline.run_for(2)
    status = scene.status("j")
    assert (status["active"], status["ready"], scene.conditions("j")[0][2]) == (2, 2, "JobResumed")
    assert "startTime" in status
    scene.client.patch("jobs.batch", SPACE, "j", {"spec": {"suspend": True}})
    scene.timeline.run_for(0.1)
    status = scene.status("j")
    assert "active" not in status
    assert status["terminating"] == 2
    assert "startTime" not in status
    scene.timeline.run_for(3)
    assert scene.pods() == []
    assert scene.status("j")["terminating"] == 0


def test_an_evicted_pod_fails_a_job_without_retries(scene: Scene) -> None:
    """FailureTarget first; Failed once no pod terminates any more."""
    scene.node("n1")
    scene.job("j", 2, backoffLimit=0)
    scene.timeline.run_for(2)
    name = scene.pods()[0]["metadata"]["name"]
    scene.client.call("pods", SPACE, name, "eviction", {"metadata": {"name": name}})
    seen: list[tuple[str, ...]] = [()]
    for _ in range(60):
        scene.timeline.run_for(0.05)
        seen.append(tuple(kind for kind, *_ in scene.conditions("j")))
    assert list(dict.fromkeys(seen)) == [(), ("FailureTarget",), ("FailureTarget", "Failed")]
    assert scene.status("j")["failed"] == 2


def test_a_disruption_that_the_policy_ignores_is_replaced_after_the_backoff(scene: Scene) -> None:
    """The evicted pod is not counted; its replacement comes ten seconds later."""
    scene.node("n1")
    rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    scene.job("j", 1, backoffLimit=0, podFailurePolicy={"rules": [rule]})
    scene.timeline.run_for(2)
    name = scene.pods()[0]["metadata"]["name"]
    scene.client.call("pods", SPACE, name, "eviction", {"metadata": {"name": name}})
    scene.timeline.run_for(8)
    assert scene.pods() == []
    scene.timeline.run_for(5)
    assert [pod["status"]["phase"] for pod in scene.pods()] == ["Running"]
    assert "failed" not in scene.status("j")


def test_an_indexed_job_counts_its_indexes_and_completes(scene: Scene) -> None:
    """Each index once, with hostname and label; SuccessCriteriaMet and Complete."""
    scene.node("n1")
    scene.job("j", 3, annotations={"kubelet.playground/run-seconds": "2"}, completionMode="Indexed")
    scene.timeline.run_for(1)
    assert sorted(pod["spec"]["hostname"] for pod in scene.pods()) == ["j-0", "j-1", "j-2"]
    scene.timeline.run_for(5)
    status = scene.status("j")
    assert (status["succeeded"], status["completedIndexes"]) == (3, "0-2")
    assert [kind for kind, *_ in scene.conditions("j")] == ["SuccessCriteriaMet", "Complete"]
    assert "completionTime" in status


def test_a_job_past_its_deadline_fails(scene: Scene) -> None:
    """The deadline counts from the start."""
    scene.node("n1")
    scene.job("j", 1, activeDeadlineSeconds=3)
    scene.timeline.run_for(2.5)
    assert scene.conditions("j") == []
    scene.timeline.run_for(3)
    assert ("Failed", "True", "DeadlineExceeded") in scene.conditions("j")


def test_a_budget_allows_one_eviction_and_refuses_the_next(scene: Scene) -> None:
    """The refusal is a 429 with the numbers; a pod that does not run needs no budget."""
    scene.node("n1")
    for name in ("a", "b"):
        scene.pod(name)
        scene.client.patch("pods", SPACE, name, {"metadata": {"labels": {"group": "x"}}})
    scene.timeline.run_for(1)
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"group": "x"}}}
    metadata = {"name": "budget", "namespace": SPACE}
    scene.client.create(
        "poddisruptionbudgets.policy",
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": spec},
    )
    scene.timeline.run_for(0.1)
    scene.client.call("pods", SPACE, "a", "eviction", {"metadata": {"name": "a"}})
    scene.timeline.run_for(0.01)
    with pytest.raises(StatusError, match="would violate") as refused:
        scene.client.call("pods", SPACE, "b", "eviction", {"metadata": {"name": "b"}})
    assert refused.value.code == 429
    causes = refused.value.body["details"]["causes"]
    assert causes[0]["message"] == "The disruption budget budget needs 1 healthy pods and has 1 currently"


def test_the_scheduler_says_why_a_pod_waits_and_binds_it_when_room_appears(scene: Scene) -> None:
    """One entry for each reason with the number of nodes."""
    scene.node("n1", 4)
    scene.node("n2", 2)
    scene.client.patch("nodes", "", "n2", {"spec": {"taints": [{"key": "spot", "effect": "NoSchedule"}]}})
    scene.pod("big", 4)
    scene.timeline.run_for(1)
    scene.pod("next", 3)
    scene.timeline.run_for(0.1)
    [condition] = scene.status("next", "pods")["conditions"]
    assert condition["message"] == (
        "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint(s). no new claims to "
        "deallocate, preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, 1 Preemption "
        "is not helpful for scheduling."
    )
    scene.client.delete("pods", SPACE, "big")
    scene.timeline.run_for(3)
    assert scene.status("next", "pods")["phase"] == "Running"


def test_a_pod_of_higher_priority_takes_the_place_of_a_lower_one(scene: Scene) -> None:
    """It is nominated first, its victim is marked, and it is bound when the victim has stopped."""
    scene.node("n1")
    for name, value in (("minor", 1), ("major", 10)):
        scene.client.create(
            "priorityclasses.scheduling.k8s.io",
            {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value},
        )
    scene.pod("low", 4, {"kubelet.playground/stop-seconds": "2"}, priorityClassName="minor")
    scene.timeline.run_for(1)
    scene.pod("high", 4, priorityClassName="major")
    scene.timeline.run_for(0.2)
    assert scene.status("high", "pods")["nominatedNodeName"] == "n1"
    assert ("DisruptionTarget", "True", "PreemptionByScheduler") in scene.conditions("low", "pods")
    scene.timeline.run_for(4)
    assert [pod["metadata"]["name"] for pod in scene.pods()] == ["high"]
    assert scene.status("high", "pods")["phase"] == "Running"


def test_a_pod_bound_around_the_scheduler_to_a_full_node_is_rejected(scene: Scene) -> None:
    """The kubelet has no device left."""
    scene.node("n1", 1)
    scene.pod("first", 1)
    scene.timeline.run_for(1)
    scene.pod("second", 1, schedulerName="other")
    scene.client.call("pods", SPACE, "second", "binding", {"metadata": {"name": "second"}, "target": {"name": "n1"}})
    scene.timeline.run_for(1)
    status = scene.status("second", "pods")
    assert (status["phase"], status["reason"]) == ("Failed", "UnexpectedAdmissionError")
    assert "Requested: 1, Available: 0" in status["message"]


def test_a_deployment_exchanges_its_pods_and_a_deleted_one_leaves_none(scene: Scene) -> None:
    """A new template rolls; garbage collection follows owners down to the pods."""
    scene.node("n1", 8)
    spec = {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": containers(1)}
    scene.client.create(
        "deployments.apps",
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web", "namespace": SPACE},
            "spec": spec | {"template": template},
        },
    )
    scene.timeline.run_for(2)
    assert scene.status("web", "deployments.apps")["readyReplicas"] == 3
    scene.client.patch(
        "deployments.apps", SPACE, "web", {"spec": {"template": {"metadata": {"annotations": {"version": "2"}}}}}
    )
    scene.timeline.run_for(10)
    assert {pod["metadata"]["annotations"]["version"] for pod in scene.pods()} == {"2"}
    assert len(scene.pods()) == 3
    scene.client.delete("deployments.apps", SPACE, "web", {"propagationPolicy": "Background"})
    scene.timeline.run_for(3)
    assert scene.pods() == []
    assert scene.server.store.objects("replicasets.apps") == []


def test_a_stateful_set_starts_its_pods_in_order_and_scales_down_from_the_end(scene: Scene) -> None:
    """The next ordinal waits until the one before is ready."""
    scene.node("n1")
    spec = {"replicas": 2, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}}}
    template = {"metadata": {"labels": {"app": "db"}}, "spec": containers(1)}
    scene.client.create(
        "statefulsets.apps",
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": "db", "namespace": SPACE},
            "spec": spec | {"template": template},
        },
    )
    scene.timeline.run_for(0.2)
    assert [pod["metadata"]["name"] for pod in scene.pods()] == ["db-0"]
    scene.timeline.run_for(2)
    assert [pod["metadata"]["name"] for pod in scene.pods()] == ["db-0", "db-1"]
    scene.client.patch("statefulsets.apps", SPACE, "db", {"spec": {"replicas": 1}})
    scene.timeline.run_for(2)
    assert [pod["metadata"]["name"] for pod in scene.pods()] == ["db-0"]
