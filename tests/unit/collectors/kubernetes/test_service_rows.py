"""Services: bounds, need and floor, from the Deployment and its HorizontalPodAutoscaler."""

from __future__ import annotations

from math import isnan
from typing import Any

import pytest

from autopilot.contract.scaling import Floor, Way
from autopilot.core.model.objects import ServingRole
from collectors.slo.collector import SloCollector
from tests.kits.kube_api import Json
from tests.kits.kube_objects import meta, node, pod_spec
from tests.unit.collectors.kubernetes.view import Seen, reasons

CPU = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}
QUEUE = {
    "type": "Pods",
    "pods": {"metric": {"name": "queue"}, "target": {"type": "AverageValue", "averageValue": "500m"}},
}
OURS = {"type": "External", "external": {"metric": {"name": "s0-gpu-autopilot-floor"}, "target": {"averageValue": "1"}}}


def deployment(replicas: int = 3, **notes: str) -> Json:
    """A service `team/chat`."""
    annotations = {f"gpu-autopilot.io/{name.replace('_', '-')}": value for name, value in notes.items()}
    spec = {"replicas": replicas, "template": {"metadata": {"labels": {"app": "chat"}}, "spec": pod_spec(1)}}
    data = meta("chat", "team", annotations=annotations, generation=1)
    return {"kind": "Deployment", "metadata": data, "spec": spec, "status": {"readyReplicas": replicas}}


def autoscaler(
    *metrics: Json, now: tuple[Json, ...] = (), desired: int = 3, low: int | None = 2, most: int = 8
) -> Json:
    """Its HPA."""
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}
    return {
        "kind": "HorizontalPodAutoscaler",
        "metadata": meta("chat", "team"),
        "spec": {"scaleTargetRef": target, "minReplicas": low, "maxReplicas": most, "metrics": list(metrics)},
        "status": {"currentReplicas": 3, "desiredReplicas": desired, "currentMetrics": list(now)},
    }


def _cpu(used: int) -> Json:
    return {"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": used}}}


def _queue(value: str) -> Json:
    return {"type": "Pods", "pods": {"metric": {"name": "queue"}, "current": {"averageValue": value}}}


def _service(*objects: Json) -> dict[str, Any]:
    table = Seen(node("n1"), *objects).tables()[1].services
    assert table.id.tolist() == ["team/chat"]
    return {name: getattr(table, name)[0] for name in table.__slots__}


def test_a_service_without_an_autoscaler_is_not_scaled() -> None:
    """Its bounds are the number of its replicas, and its need is unknown."""
    found = _service(deployment())
    assert [found[name] for name in ("replicas", "max_replicas", "needed_replicas", "floor")] == [3, 3, -1, 0]


def test_its_owner_may_allow_it() -> None:
    """With consent and a maximum, the need is the owner's number."""
    found = _service(deployment(scale="true", min_replicas="1", max_replicas="6"))
    assert [found[name] for name in ("min_replicas", "max_replicas", "needed_replicas")] == [1, 6, 3]


def test_the_bounds_and_the_need_come_from_the_autoscaler() -> None:
    """The larger ratio of its metrics is the load."""
    found = _service(deployment(), autoscaler(CPU, QUEUE, now=(_cpu(40), _queue("600m")), desired=4))
    assert [found[name] for name in ("min_replicas", "max_replicas", "needed_replicas")] == [2, 8, 4]
    assert found["load_ratio"] == pytest.approx(1.2)


def test_our_metric_is_not_the_need() -> None:
    """While a floor stands, the need is computed from the other metrics, within the bounds of the owner."""
    floor = Floor("i", 6, 1e12, Way.METRIC).text()
    hpa = autoscaler(CPU, QUEUE, OURS, now=(_cpu(40), _queue("600m")), desired=6)
    found = _service(deployment(6, floor=floor), hpa)
    assert [found[name] for name in ("floor", "needed_replicas", "floor_until_s")] == [6, 4, 1e12]
    unknown = _service(deployment(6, floor=floor), autoscaler(CPU, QUEUE, OURS, now=(_cpu(40),), desired=6))
    assert unknown["needed_replicas"] == -1
    assert isnan(unknown["load_ratio"])


def test_a_raised_minimum_is_not_the_owners() -> None:
    """The record of the floor has the minimum of the owner."""
    floor = Floor("i", 5, 1e12, Way.HPA, owner=2, ours=5).text()
    found = _service(deployment(5, floor=floor), autoscaler(CPU, now=(_cpu(49),), desired=5, low=5))
    assert [found[name] for name in ("min_replicas", "needed_replicas", "floor")] == [2, 3, 5]


def test_a_floor_that_its_owner_took_back_stands_no_more() -> None:
    """Somebody scaled the service down while the floor stood: it is not raised again."""
    floor = Floor("i", 5, 1e12, Way.SCALE, owner=2, ours=5).text()
    found = _service(deployment(3, scale="true", max_replicas="9", floor=floor))
    assert [found[name] for name in ("floor", "max_replicas")] == [0, 3]


def test_a_floor_that_is_recorded_and_not_yet_set_does_not_stand() -> None:
    """The record is written before the replicas."""
    floor = Floor("i", 5, 1e12, Way.HPA, owner=2, ours=5).text()
    assert _service(deployment(3, floor=floor), autoscaler(CPU, now=(_cpu(49),)))["floor"] == 0


def test_an_autoscaler_that_is_gone_leaves_the_service_alone() -> None:
    """Its bounds are its replicas again."""
    seen = Seen(node("n1"), deployment(), autoscaler(CPU, now=(_cpu(40),)))
    assert seen.tables()[1].services.max_replicas.tolist() == [8]
    assert seen.tables(gone=(autoscaler(CPU),))[1].services.max_replicas.tolist() == [3]


def test_a_wrong_declaration_is_named() -> None:
    """It is a gap of the service."""
    assert reasons(Seen(node("n1"), deployment(min_replicas="few")).batch(), "contract") == [
        "team/chat: gpu-autopilot.io/min-replicas: 'few' is not allowed; it takes a whole number from 0 to 100,000"
    ]


# --- objectives and roles ---------------------------------------------------------------------------


def _labelled(labels: dict[str, str], own: dict[str, str] | None = None, **notes: str) -> dict[str, Any]:
    """The service whose pods have these labels, and itself its `own`."""
    found = deployment(3, **notes)
    found["spec"]["template"]["metadata"]["labels"] |= labels
    found["metadata"]["labels"] = own or {}
    return _service(found)


def test_a_service_declares_its_objectives_of_tokens() -> None:
    """Each is its own; an objective makes it latency-critical, and a class that has none refuses all of them."""
    found = _service(deployment(ttft_objective_s="500ms", itl_objective_s="0.05"))
    names = ("objective_s", "ttft_objective_s", "itl_objective_s")
    assert [found[name] for name in names] == pytest.approx([float("nan"), 0.5, 0.05], nan_ok=True)
    found = _service(deployment(ttft_objective_s="500ms", slo_class="batch"))
    assert all(isnan(found[name]) for name in names)


@pytest.mark.parametrize(
    ("labels", "own", "declared", "role"),
    [
        ({"llm-d.ai/role": "prefill"}, {}, "", ServingRole.PREFILL),
        ({"llm-d.ai/role": "decode"}, {}, "", ServingRole.DECODE),
        ({"llm-d.ai/role": "encode-prefill"}, {}, "", ServingRole.PREFILL),
        ({"llm-d.ai/role": "prefill-decode"}, {}, "", ServingRole.WHOLE),
        ({"llm-d.ai/role": "both"}, {}, "", ServingRole.WHOLE),
        (
            {"nvidia.com/dynamo-component-type": "worker", "nvidia.com/dynamo-sub-component-type": "decode"},
            {},
            "",
            ServingRole.DECODE,
        ),
        ({"nvidia.com/dynamo-component-type": "prefill"}, {}, "", ServingRole.PREFILL),
        ({"nvidia.com/dynamo-component-type": "frontend"}, {}, "", ServingRole.WHOLE),
        ({}, {"rbg.workloads.x-k8s.io/role-name": "decode"}, "", ServingRole.DECODE),
        ({"app.kubernetes.io/component": "llminferenceservice-workload-prefill"}, {}, "", ServingRole.PREFILL),
        ({"llm-d.ai/role": "prefill"}, {"app.kubernetes.io/component": "decode"}, "", ServingRole.WHOLE),
        ({"llm-d.ai/role": "prefill"}, {}, "decode", ServingRole.DECODE),
        ({"llm-d.ai/role": "prefill"}, {}, "whole", ServingRole.WHOLE),
        ({"llm-d.ai/guide": "prefill"}, {}, "", ServingRole.WHOLE),
    ],
    ids=str,
)
def test_labels_say_which_part_of_a_request_a_pool_does(
    labels: dict[str, str], own: dict[str, str], declared: str, role: ServingRole
) -> None:
    """What the owner declares counts first; labels that contradict each other, or name both parts, say nothing."""
    notes = {"serving_role": declared} if declared else {}
    assert _labelled(labels, own, **notes)["role"] == role


def _owned_by(kind: str, found: Json) -> Json:
    owner = {"apiVersion": "example.com/v1", "kind": kind, "name": "chat", "uid": "owner", "controller": True}
    return {**found, "metadata": {**found["metadata"], "ownerReferences": [owner]}}


def test_no_number_is_set_that_another_controller_would_undo() -> None:
    """A Deployment or an HPA of another object gets its number from there; consent on it is answered by a gap."""
    alone = _owned_by("InferenceService", deployment(scale="true", min_replicas="1", max_replicas="6"))
    beside = _service(deployment(), _owned_by("InferenceService", autoscaler(CPU, now=(_cpu(50),))))
    found = _service(alone)
    assert [found[name] for name in ("min_replicas", "max_replicas")] == [3, 3]
    assert [beside[name] for name in ("min_replicas", "max_replicas")] == [3, 3]
    assert "InferenceService chat manages it" in str(reasons(Seen(node("n1"), alone).batch()))


def test_what_keda_scales_follows_a_metric() -> None:
    """The HPA that KEDA makes is KEDA's, and the floor is a metric of it: nothing is there to undo."""
    kept = autoscaler(OURS, now=())
    found = _service(deployment(), _owned_by("ScaledObject", kept))
    assert found["max_replicas"] == _service(deployment(), kept)["max_replicas"] == 8


def _named(kind: str, space: str) -> Json:
    made = deployment()
    data = meta("chat", space, generation=1)
    return {**made, "kind": kind, "metadata": {**data, "uid": f"{kind}-{space}"}}


def test_services_of_one_name_are_told_apart() -> None:
    """By namespace, and by kind in one namespace; a measurement that names only both counts for neither."""
    seen = Seen(
        node("n1"), *(_named(*each) for each in (("Deployment", "a"), ("StatefulSet", "a"), ("Deployment", "b")))
    )
    source = SloCollector("http://p:1", sources=["vllm"])
    seen.collector.join(source)
    table = seen.tables()[1].services
    assert table.id.tolist() == ["a/chat", "a/chat~statefulset", "b/chat"]
    assert table.uid.tolist() == ["Deployment-a", "StatefulSet-a", "Deployment-b"]
    assert set(source.naming.known()) == {"b/chat"}


TOLD = {
    "type": "External",
    "external": {"metric": {"name": "s0-gpu-autopilot-floor"}, "current": {"averageValue": "0"}},
}


@pytest.mark.parametrize("now", [(), (_cpu(20),), (_cpu(20), TOLD)], ids=len)
def test_an_autoscaler_that_gets_no_value_of_our_floor_is_a_gap(now: tuple[Json, ...]) -> None:
    """Then KEDA does not reach the controller. An autoscaler without a status is not known yet."""
    found = reasons(Seen(node("n1"), deployment(), autoscaler(CPU, OURS, now=now)).batch())
    said = [each for each in found if "shows no value of our floor" in each]
    assert len(said) == (1 if len(now) == 1 else 0)
