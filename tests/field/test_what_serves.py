"""What serves is never hung because no request comes, and no service is made of its parts."""

from __future__ import annotations

from typing import Any

import pytest

from autopilot.core.model.snapshot import SloClass
from collectors.kubernetes.serving import serves
from collectors.kubernetes.wire import Meta, Owner
from tests.kits.field_kit import made, play, play_objects

SET = "leaderworkerset.sigs.k8s.io/name"


@pytest.mark.parametrize("what", ["ray", "lws"])
def test_quiet_servers_over_two_nodes_are_never_stopped(what: str) -> None:
    """A RayService and a LeaderWorkerSet without requests (kserve/kserve#5645, kubernetes-sigs/kueue#9460)."""
    played = play("32-serving-at-night", f"{what}.yaml", f"{what}-gpus.yaml", ticks=145, step_s=60.0)
    evicted = played.accepted("evict", "llm")
    assert not evicted


def test_a_leader_worker_set_is_one_service_and_its_inner_sets_are_none() -> None:
    """Its groups are gangs, and the replicas of the service (kubernetes-sigs/lws#508)."""
    played = play("11-lws-services", "objects.yaml")
    assert played.held() == {"team/llm-0": 16, "team/llm-1": 16}
    assert played.snapshot.services.id.tolist() == ["team/llm"]
    assert played.snapshot.services.replicas.tolist() == [2]
    assert played.snapshot.workloads.service.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("labels", "notes", "kind", "found"),
    [
        ({"ray.io/serve": "false"}, {}, "RayCluster", True),
        ({"ray.io/cluster": "c"}, {}, "RayCluster", False),
        ({"ray.io/originated-from-crd": "RayJob"}, {}, "RayCluster", False),
        ({"ray.io/originated-from-crd": "RayService"}, {}, "RayCluster", True),
        ({"serving.kserve.io/inferenceservice": "s"}, {}, "Job", True),
        ({"serving.knative.dev/revision": "r"}, {}, "Job", True),
        ({"nvidia.com/dynamo-component": "decode"}, {}, "PodClique", True),
        ({"nvidia.com/gpu.product": "H100"}, {}, "PyTorchJob", False),
        ({"jobset.sigs.k8s.io/jobset-name": "j", "llm-d.ai/role": "decode"}, {}, "Job", True),
        ({"jobset.sigs.k8s.io/jobset-name": "j"}, {}, "Job", False),
        ({"app.kubernetes.io/component": "Predictor"}, {}, "Job", True),
        ({"app.kubernetes.io/component": "trainer"}, {}, "Job", False),
        ({"kueue.x-k8s.io/pod-group-name": "g"}, {}, "StatefulSet", True),
        ({"kueue.x-k8s.io/pod-group-name": "g"}, {"kueue.x-k8s.io/pod-group-serving": "true"}, "Foo", True),
        ({"storm-service-name": "s"}, {}, "RoleSet", True),
        ({"disaggregatedset.x-k8s.io/name": "s"}, {}, "Foo", True),
        ({"rolebasedgroup.workloads.x-k8s.io/name": "s"}, {}, "RoleBasedGroup", True),
        ({"rbg.workloads.x-k8s.io/group-name": "s"}, {}, "RoleInstance", True),
        ({"app": "s"}, {}, "Model", True),
        ({"app": "s"}, {}, "CloneSet", True),
        ({}, {}, "MPIJob", False),
        ({}, {}, "RayJob", False),
    ],
    ids=str,
)
def test_owners_and_labels_say_what_serves(
    labels: dict[str, str], notes: dict[str, str], kind: str, *, found: bool
) -> None:
    """Batch kinds and the Services that they make for rendezvous say nothing of the sort."""
    meta = Meta("p", "u", "n", labels=labels, annotations=notes)
    meta.owner_references = [Owner(kind, "o", "u", controller=True)]
    meta.shrink()
    assert serves(meta) == found


@pytest.mark.parametrize(
    ("probe", "found"),
    [
        ({"httpGet": {"path": "/health", "port": 8000}}, SloClass.LATENCY_CRITICAL),
        ({"grpc": {"port": 9000}}, SloClass.LATENCY_CRITICAL),
        ({"exec": {"command": ["ray", "health-check"]}}, SloClass.BATCH),
        ({"tcpSocket": {"port": 29500}}, SloClass.BATCH),
    ],
    ids=str,
)
def test_what_is_ready_by_an_answer_serves(probe: dict[str, Any], found: SloClass) -> None:
    """A pod of an owner of an unknown kind, without a Service. An open port may be that of a rendezvous."""
    limits = {"limits": {"nvidia.com/gpu": "8"}}
    spec = {"containers": [{"name": "main", "resources": limits, "readinessProbe": probe}]}
    pod = {"pod": "models/llm-0", "at": "n-0", "owner": ["example.com/v1", "Engine", "llm"], "spec": spec}
    objects = made({"node": "n-0", "gpus": 8, "product": "NVIDIA-H100-80GB-HBM3"}, pod)
    assert play_objects(objects).snapshot.workloads.slo_class.tolist() == [found]


@pytest.mark.parametrize(
    ("notes", "found"),
    [
        ({}, SloClass.LATENCY_CRITICAL),
        ({"gpu-autopilot.io/preemptible": "true"}, SloClass.INTERACTIVE),
        ({"gpu-autopilot.io/slo-class": "batch"}, SloClass.BATCH),
    ],
    ids=str,
)
def test_the_owner_of_what_serves_may_say_otherwise(notes: dict[str, str], found: SloClass) -> None:
    """Its class is inferred only where none is declared; what is declared stays valid."""
    group: dict[str, Any] = {"labels": {SET: "llm", "leaderworkerset.sigs.k8s.io/group-index": "0"}}
    objects = [{"node": "n-0", "gpus": 8, "product": "NVIDIA-H100-80GB-HBM3"}]
    objects.append({"pod": "models/llm-0", "at": "n-0", "gpus": 8, "annotations": notes, **group})
    work = play_objects(made(*objects)).snapshot.workloads
    assert work.slo_class.tolist() == [found]
    assert not work.excluded.any()


def _front(kind: str, name: str, spec: dict[str, Any], owner: str = "", space: str = "models") -> dict[str, Any]:
    """A Service, a route or a pool."""
    owners = [{"apiVersion": "x/v1", "kind": owner, "name": "o", "uid": "o", "controller": True}] if owner else []
    meta = {"name": name, "namespace": space, "ownerReferences": owners}
    return {"kind": kind, "apiVersion": "v1", "spec": spec, "metadata": meta}


HERE, PLAIN, HEADLESS = {"app": "llm"}, {"clusterIP": "10.0.0.1"}, {"clusterIP": "None"}
ROUTE = {"rules": [{"backendRefs": [{"name": "s", "port": 80}]}]}


@pytest.mark.parametrize(
    ("fronts", "found"),
    [
        ([], False),
        ([_front("Service", "s", {"selector": HERE, **PLAIN})], True),
        ([_front("Service", "s", {"selector": HERE, **HEADLESS})], False),
        ([_front("Service", "s", {"selector": HERE | {"role": "x"}, **PLAIN})], False),
        ([_front("Service", "s", {"selector": HERE, **PLAIN}, space="other")], False),
        ([_front("Service", "s", PLAIN)], False),
        ([_front("Service", "s", {"selector": HERE, **PLAIN}, "PyTorchJob")], False),
        ([_front("Service", "s", {"selector": HERE, **PLAIN}, "JobSet")], False),
        ([_front("Service", "s", {"selector": HERE, **PLAIN}, "RayCluster")], False),
        ([_front("Service", "s", {"selector": HERE, **HEADLESS}), _front("HTTPRoute", "r", ROUTE)], True),
        ([_front("Service", "s", {"selector": HERE, **HEADLESS}), _front("GRPCRoute", "r", ROUTE)], True),
        ([_front("Service", "s", {"selector": HERE, **HEADLESS}), _front("HTTPRoute", "r", {})], False),
        ([_front("InferencePool", "p", {"selector": {"matchLabels": HERE}})], True),
        ([_front("InferencePool", "p", {"selector": HERE})], True),
    ],
    ids=str,
)
def test_what_leads_requests_to_pods_says_that_they_serve(fronts: list[dict[str, Any]], *, found: bool) -> None:
    """Of plain pods and of kinds that are not known; a Service for rendezvous says nothing of the sort."""
    pod = {"gpus": 8, "labels": HERE, "owner": ["example.org/v1", "Engine", "llm"]}
    objects = [{"node": "n-{n}", "gpus": 8, "product": "NVIDIA-H100-80GB-HBM3", "copies": 2}]
    objects += [{"pod": f"models/llm-{k}", "at": f"n-{k}", **pod} for k in range(2)]
    play = play_objects(made(*objects, *fronts))
    expected = SloClass.LATENCY_CRITICAL if found else SloClass.BATCH
    assert play.snapshot.workloads.slo_class.tolist() == [expected]


def test_a_service_that_comes_later_counts_from_then_on() -> None:
    """And one that goes does not."""
    objects = [{"node": "n-0", "gpus": 8, "product": "NVIDIA-H100-80GB-HBM3"}]
    objects.append({"pod": "models/llm-0", "at": "n-0", "gpus": 8, "labels": HERE})
    late = made(_front("Service", "s", {"selector": HERE, **PLAIN}))
    played = play_objects(made(*objects), ticks=3, change={30.0: late})
    classes = [each.snapshot.workloads.slo_class.tolist() for _, each, _ in played.ticks]
    assert classes == [[SloClass.BATCH], [SloClass.LATENCY_CRITICAL], [SloClass.LATENCY_CRITICAL]]
