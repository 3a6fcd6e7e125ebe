"""Rollouts of Deployments and StatefulSets: generations, counts, conditions and revisions, also while they pause."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kits.scene_kit import SPACE, Scene, containers

Obj = dict[str, Any]
REVISION = "deployment.kubernetes.io/revision"
DEPLOYMENTS, SETS = "deployments.apps", "statefulsets.apps"


class Rollout(Scene):
    """One large node, and what is asked of controllers of pods."""

    def __init__(self) -> None:
        super().__init__()
        self.node("n1", 64)
        self.seen: list[Obj] = []
        for resource in (DEPLOYMENTS, SETS):
            self.server.store.subscribe(resource, lambda event: self.seen.append(event.obj), self.timeline)

    def create(self, resource: str, name: str, replicas: int = 3, pod: Obj | None = None, **spec: Any) -> None:
        """A controller of pods, and what happens in 5 s."""
        template = {"metadata": {"labels": {"app": name}}, "spec": containers(1) | (pod or {})}
        kind = {DEPLOYMENTS: "Deployment", SETS: "StatefulSet"}[resource]
        body = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template} | spec
        metadata = {"name": name, "namespace": SPACE}
        self.client.create(resource, {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": body})
        self.timeline.run_for(5)

    def change(self, resource: str, wait_s: float = 5.0, **spec: Any) -> None:
        """Change the spec, and wait."""
        name = self.seen[-1]["metadata"]["name"]
        self.client.patch(resource, SPACE, name, {"spec": spec})
        self.timeline.run_for(wait_s)

    def version(self, resource: str, text: str, wait_s: float = 5.0) -> None:
        """Another template, and wait."""
        self.change(resource, wait_s, template={"metadata": {"annotations": {"version": text}}})

    def sets(self) -> list[tuple[str, int]]:
        """Revision and size of the ReplicaSets."""
        found = [
            (each["metadata"]["annotations"][REVISION], each["spec"]["replicas"])
            for each in self.server.store.objects("replicasets.apps", SPACE)
        ]
        return sorted(found)

    def counts(self, resource: str) -> Obj:
        """The status without conditions."""
        name = self.seen[-1]["metadata"]["name"]
        return {key: value for key, value in self.status(name, resource).items() if key != "conditions"}

    def versions(self) -> list[str]:
        """The versions of the pods that stay, by name of the pod."""
        return [
            (pod["metadata"].get("annotations") or {}).get("version", "1")
            for pod in self.pods()
            if "deletionTimestamp" not in pod["metadata"]
        ]


@pytest.fixture
def scene() -> Rollout:
    """A cluster with one node."""
    return Rollout()


def test_the_status_of_a_deployment_grows_with_its_pods(scene: Rollout) -> None:
    """Every state in its order: observed generation and counts, Progressing and Available with their reasons."""
    scene.create(DEPLOYMENTS, "web", 2)
    shown = [
        (
            each["status"].get("observedGeneration", 0),
            each["status"].get("replicas", 0),
            each["status"].get("availableReplicas", 0),
            each["status"].get("unavailableReplicas", 0),
            [condition["reason"] for condition in each["status"].get("conditions", [])],
        )
        for each in scene.seen
    ]
    created, missing = "NewReplicaSetCreated", "MinimumReplicasUnavailable"
    assert list(dict.fromkeys(map(str, shown))) == [
        str((0, 0, 0, 0, [])),
        str((0, 0, 0, 0, [created])),
        str((1, 0, 0, 2, [created, missing])),
        str((1, 2, 0, 2, [missing, "ReplicaSetUpdated"])),
        str((1, 2, 1, 1, [missing, "ReplicaSetUpdated"])),
        str((1, 2, 2, 0, ["MinimumReplicasAvailable", "NewReplicaSetAvailable"])),
    ]
    assert scene.counts(DEPLOYMENTS) == {
        "observedGeneration": 1,
        "replicas": 2,
        "updatedReplicas": 2,
        "readyReplicas": 2,
        "availableReplicas": 2,
        "terminatingReplicas": 0,
    }
    [replica_set] = scene.server.store.objects("replicasets.apps", SPACE)
    assert replica_set["metadata"]["annotations"] == {
        REVISION: "1",
        "deployment.kubernetes.io/desired-replicas": "2",
        "deployment.kubernetes.io/max-replicas": "3",
    }
    name = replica_set["metadata"]["name"]
    texts = [each["message"] for each in scene.status("web", DEPLOYMENTS)["conditions"]]
    assert texts == ["Deployment has minimum availability.", f'ReplicaSet "{name}" has successfully progressed.']
    owner = next(
        each for each in scene.seen[-1]["metadata"]["managedFields"] if each["manager"] == "kube-controller-manager"
    )
    assert owner["subresource"] == "status"
    assert "f:annotations" in owner["fieldsV1"]["f:metadata"]


def test_annotations_of_a_deployment_count_for_its_generation_and_its_status_does_not(scene: Rollout) -> None:
    """Labels do not count either; annotations are copied to the ReplicaSet."""
    scene.create(DEPLOYMENTS, "web", 1)
    assert scene.seen[-1]["metadata"]["generation"] == 1
    scene.client.patch(DEPLOYMENTS, SPACE, "web", {"metadata": {"annotations": {"team": "a"}}})
    scene.client.patch(DEPLOYMENTS, SPACE, "web", {"metadata": {"labels": {"team": "a"}}})
    scene.timeline.run_for(1)
    assert scene.seen[-1]["metadata"]["generation"] == 2
    assert scene.counts(DEPLOYMENTS)["observedGeneration"] == 2
    [replica_set] = scene.server.store.objects("replicasets.apps", SPACE)
    assert replica_set["metadata"]["annotations"]["team"] == "a"
    assert replica_set["metadata"]["generation"] == 1


def test_a_rolling_update_keeps_its_bounds_and_a_rollback_takes_the_old_set_again(scene: Rollout) -> None:
    """At most one pod more and one less; the old ReplicaSet has a new number and remembers its first."""
    scene.create(DEPLOYMENTS, "web", 4)
    before = len(scene.seen)
    scene.version(DEPLOYMENTS, "2", 20)
    states = [each["status"] for each in scene.seen[before:]]
    assert max(each.get("replicas", 0) for each in states) == 5
    assert min(each.get("availableReplicas", 0) for each in states) >= 3
    assert max(each.get("terminatingReplicas", 0) for each in states) > 0
    assert scene.sets() == [("1", 0), ("2", 4)]
    scene.change(DEPLOYMENTS, 20, template={"metadata": {"annotations": None}})
    assert scene.sets() == [("2", 0), ("3", 4)]
    histories = [
        each["metadata"]["annotations"].get("deployment.kubernetes.io/revision-history")
        for each in scene.server.store.objects("replicasets.apps", SPACE)
    ]
    assert sorted(filter(None, histories)) == ["1"]
    assert scene.seen[-1]["metadata"]["annotations"][REVISION] == "3"


def test_a_paused_deployment_makes_no_version_but_scales(scene: Rollout) -> None:
    """Progressing is Unknown while it is paused and after it; a scale in the middle of a rollout keeps the shares."""
    scene.create(DEPLOYMENTS, "web", 4)
    scene.change(DEPLOYMENTS, 1, paused=True)
    assert ("Progressing", "Unknown", "DeploymentPaused") in scene.conditions("web", DEPLOYMENTS)
    scene.version(DEPLOYMENTS, "2")
    assert scene.sets() == [("1", 4)]
    assert (scene.seen[-1]["metadata"]["generation"], scene.counts(DEPLOYMENTS)["observedGeneration"]) == (3, 3)
    assert "updatedReplicas" not in scene.counts(DEPLOYMENTS)
    scene.change(DEPLOYMENTS, replicas=6)
    assert scene.sets() == [("1", 6)]
    scene.change(DEPLOYMENTS, 0.05, paused=False)
    reasons = [each["reason"] for seen in scene.seen for each in seen["status"].get("conditions", [])]
    assert "DeploymentResumed" in reasons
    scene.timeline.run_for(0.3)
    scene.change(DEPLOYMENTS, 0.01, paused=True)
    halves = dict(scene.sets())
    assert halves["2"] > 0
    assert halves["1"] > 0
    scene.change(DEPLOYMENTS, 5, replicas=12)
    assert sum(dict(scene.sets()).values()) == 15  # twelve and the surge, by shares
    scene.change(DEPLOYMENTS, 20, paused=False)
    assert scene.sets() == [("1", 0), ("2", 12)]
    assert ("Progressing", "True", "NewReplicaSetAvailable") in scene.conditions("web", DEPLOYMENTS)


def test_a_rollout_without_progress_says_so_after_its_deadline(scene: Rollout) -> None:
    """The old pods stay; a pause does not hide it."""
    scene.create(DEPLOYMENTS, "web", 2, progressDeadlineSeconds=10)
    scene.change(DEPLOYMENTS, 8, template={"spec": {"nodeSelector": {"no": "node"}}})
    assert ("Progressing", "True", "ReplicaSetUpdated") in scene.conditions("web", DEPLOYMENTS)
    scene.timeline.run_for(6)
    assert ("Progressing", "False", "ProgressDeadlineExceeded") in scene.conditions("web", DEPLOYMENTS)
    assert ("Available", "True", "MinimumReplicasAvailable") in scene.conditions("web", DEPLOYMENTS)
    counts = scene.counts(DEPLOYMENTS)
    assert (counts["replicas"], counts["updatedReplicas"], counts["unavailableReplicas"]) == (3, 1, 1)
    scene.change(DEPLOYMENTS, 1, paused=True)
    assert ("Progressing", "False", "ProgressDeadlineExceeded") in scene.conditions("web", DEPLOYMENTS)


def test_pods_that_a_quota_refuses_are_a_condition_of_set_and_deployment(scene: Rollout) -> None:
    """ReplicaFailure with the text of the refusal, until there is room."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": SPACE}}
    scene.client.create("resourcequotas", quota | {"spec": {"hard": {"pods": "1"}}})
    scene.timeline.run_for(1)
    scene.create(DEPLOYMENTS, "web", 2)
    assert ("ReplicaFailure", "True", "FailedCreate") in scene.conditions("web", DEPLOYMENTS)
    conditions = scene.status("web", DEPLOYMENTS)["conditions"]
    [message] = [each["message"] for each in conditions if each["type"] == "ReplicaFailure"]
    assert "is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1" in message
    assert scene.events("FailedCreate")[0]["message"].startswith('Error creating: pods "web-')
    scene.client.patch("resourcequotas", SPACE, "q", {"spec": {"hard": {"pods": "5"}}})
    scene.timeline.run_for(120)
    assert [kind for kind, *_ in scene.conditions("web", DEPLOYMENTS)] == ["Available", "Progressing"]


def test_a_deployment_that_recreates_waits_until_the_old_pods_are_gone(scene: Rollout) -> None:
    """No version runs beside another."""
    slow = {"kubelet.playground/stop-seconds": "3"}
    scene.create(DEPLOYMENTS, "web", 2, strategy={"type": "Recreate"})
    for pod in scene.pods():
        scene.client.patch("pods", SPACE, pod["metadata"]["name"], {"metadata": {"annotations": slow}})
    scene.version(DEPLOYMENTS, "2", 2)
    assert scene.sets() == [("1", 0)]
    assert scene.versions() == []
    scene.timeline.run_for(5)
    assert scene.sets() == [("1", 0), ("2", 2)]


def test_a_pod_counts_as_available_after_its_time(scene: Rollout) -> None:
    """MinReadySeconds holds the next step of a rollout back."""
    scene.create(DEPLOYMENTS, "web", 1, minReadySeconds=8)
    assert (scene.counts(DEPLOYMENTS)["readyReplicas"], "availableReplicas" in scene.counts(DEPLOYMENTS)) == (1, False)
    scene.timeline.run_for(5)
    assert scene.counts(DEPLOYMENTS)["availableReplicas"] == 1


def test_a_pod_whose_labels_change_is_let_go_and_adopted_again(scene: Rollout) -> None:
    """A replacement is made; the pod that comes back is one too many."""
    scene.create(DEPLOYMENTS, "web", 1)
    name = scene.pods()[0]["metadata"]["name"]
    scene.client.patch("pods", SPACE, name, {"metadata": {"labels": {"app": "other"}}})
    scene.timeline.run_for(2)
    assert len(scene.pods()) == 2
    free = scene.server.store.get("pods", SPACE, name)
    assert free is not None
    assert "ownerReferences" not in free["metadata"]
    scene.client.patch("pods", SPACE, name, {"metadata": {"labels": {"app": "web"}}})
    scene.timeline.run_for(3)
    assert len(scene.pods()) == 1


def test_the_history_of_a_deployment_has_a_limit(scene: Rollout) -> None:
    """The oldest ReplicaSets without pods are deleted."""
    scene.create(DEPLOYMENTS, "web", 1, revisionHistoryLimit=1)
    for text in ("2", "3"):
        scene.version(DEPLOYMENTS, text)
    assert scene.sets() == [("2", 0), ("3", 1)]


def test_a_stateful_set_exchanges_its_pods_from_the_last_down_to_its_partition(scene: Rollout) -> None:
    """The revisions are equal when all pods have the new one, and only then."""
    scene.create(SETS, "db", 3)
    first = scene.counts(SETS)
    assert first == {
        "observedGeneration": 1,
        "replicas": 3,
        "readyReplicas": 3,
        "availableReplicas": 3,
        "currentReplicas": 3,
        "updatedReplicas": 3,
        "currentRevision": first["updateRevision"],
        "updateRevision": first["currentRevision"],
        "collisionCount": 0,
    }
    scene.change(SETS, 1, updateStrategy={"rollingUpdate": {"partition": 1}})
    scene.version(SETS, "2", 0.5)
    assert (scene.versions(), len(scene.pods())) == (["1", "1"], 3)  # db-2 terminates
    scene.timeline.run_for(10)
    assert scene.versions() == ["1", "2", "2"]
    counts = scene.counts(SETS)
    assert (counts["currentReplicas"], counts["updatedReplicas"], counts["observedGeneration"]) == (1, 2, 3)
    assert counts["currentRevision"] == first["currentRevision"] != counts["updateRevision"]
    scene.client.delete("pods", SPACE, "db-0")
    scene.timeline.run_for(5)
    assert scene.versions() == ["1", "2", "2"]
    scene.change(SETS, 5, updateStrategy={"rollingUpdate": {"partition": 0}})
    counts = scene.counts(SETS)
    assert scene.versions() == ["2", "2", "2"]
    assert counts["currentRevision"] == counts["updateRevision"]
    assert counts["currentReplicas"] == 3


def test_a_stateful_set_on_delete_exchanges_what_is_deleted(scene: Rollout) -> None:
    """Its current revision stays."""
    scene.create(SETS, "db", 2, updateStrategy={"type": "OnDelete"})
    scene.version(SETS, "2")
    assert scene.versions() == ["1", "1"]
    scene.client.delete("pods", SPACE, "db-1")
    scene.timeline.run_for(5)
    assert scene.versions() == ["1", "2"]
    counts = scene.counts(SETS)
    assert (counts["currentReplicas"], counts["updatedReplicas"]) == (1, 1)


def test_a_parallel_stateful_set_waits_for_no_pod_and_an_ordered_one_does(scene: Rollout) -> None:
    """Also downwards; a pod that failed is made anew."""
    scene.create(SETS, "one", 2, {"nodeSelector": {"no": "node"}})
    assert [pod["metadata"]["name"] for pod in scene.pods()] == ["one-0"]
    scene.create(SETS, "all", 3, {"nodeSelector": {"no": "node"}}, podManagementPolicy="Parallel")
    assert [pod["metadata"]["name"] for pod in scene.pods()] == ["all-0", "all-1", "all-2", "one-0"]
    scene.change(SETS, replicas=1)
    assert [pod["metadata"]["name"] for pod in scene.pods()] == ["all-0", "one-0"]
    scene.client.patch("pods", SPACE, "all-0", {"status": {"phase": "Failed"}}, "status")
    scene.timeline.run_for(1)
    [event] = scene.events("RecreatingFailedPod")
    assert event["message"] == f"StatefulSet {SPACE}/all is recreating failed Pod all-0"
    assert scene.status("all-0", "pods")["phase"] == "Pending"
