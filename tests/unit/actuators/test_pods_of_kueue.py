"""Plain pods under Kueue: it deletes them where their admission is taken back, and no controller makes them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autopilot.core.model.records import Cause, OutcomeKind
from autopilot.core.model.stops import StopReason
from tests.kits.acting_kit import PODS, Acting, Found, Identity, admit, evict, pod_spec
from tests.kits.kueue_kit import SPACE

Find = Callable[[str, str], Found | None]
GROUP, TOTAL = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"


def spec_of(gpus: int) -> dict[str, Any]:
    """A pod with GPUs, or one without any."""
    spec = pod_spec(gpus)
    if not gpus:
        spec["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
    return spec


@pytest.fixture
def group(acting: Acting, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Makes a group of a pod for each number of GPUs in the queue with our check; its uid."""
    find: Find = acting.find

    def found(kind: str, uid: str) -> Found | None:
        name, rest = uid.rpartition("/")[2], find(kind, uid)
        workload = acting.ask("GET", f"{SPACE}/workloads/{name}")
        stats = workload.get("status", {}).get("schedulingStats", {}).get("evictions", ())
        mine = Identity("Workload", "default", name, workload["metadata"]["uid"])
        return Found(sum(each["count"] for each in stats), (mine, *(rest.objects if rest else ())))

    def make(name: str, *gpus: int) -> str:
        labels = {"kueue.x-k8s.io/queue-name": "a", GROUP: name, "group": name}
        for place, count in enumerate(gpus or (8,)):
            meta = {"name": f"{name}-{place}", "labels": labels, "annotations": {TOTAL: str(len(gpus) or 1)}}
            acting.ask("POST", PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec_of(count)})
        acting.run(3)
        monkeypatch.setattr(acting, "find", found)  # the view names the Workload too
        return f"group/default/{name}"

    return make


def pod(acting: Acting, name: str) -> dict[str, Any]:
    """A pod."""
    found: dict[str, Any] = acting.ask("GET", f"{PODS}/{name}")
    return found


def test_a_place_that_fills_up_is_waited_for(acting: Acting, group: Callable[..., str]) -> None:
    """At its deadline the admission stays; another decision leaves it as it is, too."""
    uid = group("patient")
    body = {"metadata": {"name": "squatter"}, "spec": {**pod_spec(8), "nodeName": "n1"}}
    acting.ask("POST", PODS, {"apiVersion": "v1", "kind": "Pod", **body})
    actuator, order = acting.actuator(), acting.instruction(uid, admit("n1"))
    assert actuator.apply(order, acting.now_s).kind == OutcomeKind.ACCEPTED
    acting.run(61)
    (outcome,) = actuator.advance(acting.now_s, 1, [order])
    assert (outcome.kind, outcome.cause) == (OutcomeKind.CONFLICT, Cause.PLACE)
    assert "Kueue would delete plain pods" in outcome.reason
    again = actuator.apply(acting.instruction(uid, admit("n2"), number="2/p/w"), acting.now_s)
    assert (again.kind, again.cause) == (OutcomeKind.CONFLICT, Cause.CHANGED)
    assert "deletionTimestamp" not in pod(acting, "patient-0")["metadata"]
    acting.ask.response("DELETE", f"{PODS}/squatter", {"gracePeriodSeconds": 1})
    acting.run(10)
    found = pod(acting, "patient-0")
    assert (found["status"]["phase"], found["spec"]["nodeName"]) == ("Running", "n1")
    acting.finish()


def test_they_are_not_moved(acting: Acting, group: Callable[..., str]) -> None:
    """A move would end their work."""
    uid = group("settled")
    acting.actuator().apply(acting.instruction(uid, admit("n2")), acting.now_s)
    acting.run(5)
    assert pod(acting, "settled-0")["status"]["phase"] == "Running"
    outcome = acting.actuator().apply(acting.instruction(uid, evict(StopReason.MOVE), number="2/p/w"), acting.now_s)
    assert (outcome.kind, outcome.cause) == (OutcomeKind.DECLINED, Cause.HARM)
    acting.run(5)
    assert "deletionTimestamp" not in pod(acting, "settled-0")["metadata"]
    acting.finish()


def test_a_pod_set_without_gpus_is_placed_by_kueue(acting: Acting, group: Callable[..., str]) -> None:
    """The launcher of a gang needs none of the nodes that were chosen for their GPUs, and its flavor may be another."""
    uid = group("launched", 0, 8)
    assert acting.actuator().apply(acting.instruction(uid, admit("n3")), acting.now_s).kind == OutcomeKind.ACCEPTED
    (check,) = acting.ask("GET", f"{SPACE}/workloads/launched")["status"]["admissionChecks"]
    assert [each["nodeSelector"] for each in check["podSetUpdates"]] == [{"kubernetes.io/hostname": "n3"}]
    acting.run(5)
    launcher, worker = pod(acting, "launched-0"), pod(acting, "launched-1")
    assert "kubernetes.io/hostname" not in launcher["spec"]["nodeSelector"]
    assert worker["spec"]["nodeName"] == "n3"
    acting.finish()
