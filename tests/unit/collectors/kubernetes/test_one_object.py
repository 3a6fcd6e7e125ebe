"""One object that says anything: it is left alone and named, and the rows of everything else are equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autopilot.core.model.records import Batch
from tests.kits.kube_api import Json
from tests.kits.kube_objects import (
    cluster_queue,
    job,
    kueue,
    local_queue,
    meta,
    node,
    owner,
    pod,
    pod_spec,
    workload,
)
from tests.unit.collectors.kubernetes.view import Seen, row

DEEP = "[" * 3000
HUGE = 10**20


def deployment(name: str, replicas: int = 3) -> Json:
    """A service."""
    spec = {"replicas": replicas, "template": {"metadata": {"labels": {"app": name}}, "spec": pod_spec(1)}}
    data = meta(name, "team", annotations={}, generation=1)
    return {"kind": "Deployment", "metadata": data, "spec": spec, "status": {"readyReplicas": replicas}}


def autoscaler(name: str, metrics: list[Json]) -> Json:
    """An HPA of the service of its name."""
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
    return {
        "kind": "HorizontalPodAutoscaler",
        "metadata": meta(name, "team"),
        "spec": {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 3, "metrics": metrics},
        "status": {"currentReplicas": 3, "desiredReplicas": 3, "currentMetrics": metrics},
    }


HONEST = (node("n1"), pod("runs", 4, node="n1", phase="Running"), pod("waits", 2), deployment("web", 1))


def bad_job(**changes: Any) -> Json:
    """A suspended Job with something at the given paths."""
    found = job("bad", suspend=True)
    for path, value in changes.items():
        place = found
        *way, last = path.split("__")
        for step in way:
            place = place.setdefault(step, {})
        place[last] = value
    return found


def asks(**resources: object) -> Json:
    """A waiting pod with these requests."""
    found = pod("bad", 1)
    named = {name.replace("gpu", "nvidia.com/gpu"): value for name, value in resources.items()}
    found["spec"]["containers"][0]["resources"] = {"requests": {"nvidia.com/gpu": "1", **named}}
    return found


def noted(found: Json, **values: str) -> Json:
    """An object with annotations of ours."""
    notes = found["metadata"].setdefault("annotations", {})
    notes |= {f"gpu-autopilot.io/{name}": value for name, value in values.items()}
    return found


def rows_of(batch: Batch) -> dict[str, dict[str, str]]:
    """The rows of honest work and services, in words."""
    assert batch.work is not None
    found = {
        name: {column: str(value) for column, value in row(batch.work, name).items()}
        for name in ("team/runs", "team/waits")
    }
    services = batch.work.services
    (place,) = np.flatnonzero(services.id == "team/web").tolist()
    found["web"] = {column: str(getattr(services, column)[place]) for column in type(services).__slots__}
    return found


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (noted(bad_job(), stopped=DEEP), ""),
        (noted(bad_job(), effect=DEEP), ""),
        (noted(deployment("bad"), floor=DEEP, ceiling=DEEP), ""),
        (asks(gpu=3_000_000_000), "nvidia.com/gpu is 3000000000, which is no quantity from 0 to 1,000,000"),
        (asks(gpu="1e18"), "no quantity from 0 to"),
        (asks(cpu="9223372036854775807"), "cpu is '9223372036854775807', which is no quantity"),
        (asks(memory="9E"), "memory is '9E', which is no quantity"),
        (asks(memory={"a": 1}), "which is no quantity"),
        (bad_job(spec__parallelism=2**31 - 1, spec__completions=2**31 - 1), "it asks for 2147483647 GPUs"),
        (bad_job(spec__parallelism=HUGE), "spec.parallelism is 100000000000000000000: Expected int <= 2147483647"),
        (bad_job(spec__parallelism=-1), "spec.parallelism is -1: Expected int >= 0"),
        (
            noted(
                deployment("bad"),
                ceiling=f'{{"id":"a","replicas":1,"until":9e9,"owner":2,"ours":1,"generation":{HUGE},"revision":"1"}}',
                floor=f'{{"id":"a","replicas":1,"until":9e9,"way":"scale","owner":{HUGE},"ours":1}}',
            ),
            "",
        ),
        (autoscaler("bad", metrics=[{"type": "Pods", "pods": {"metric": "x", "target": 7}}]), ""),
    ],
)
def test_one_object_changes_no_row_of_others(bad: Json, words: str) -> None:
    """The tables are made, the rows of others are equal, and where a value is out of bounds a gap names it."""
    alone, beside = Seen(*HONEST).batch(), Seen(*HONEST, bad).batch()
    assert beside.work_list is not None
    assert beside.work_list.complete
    assert rows_of(beside) == rows_of(alone)
    assert any(words in gap.reason and "bad" in gap.object_id + gap.reason for gap in beside.gaps) or not words
    assert beside.work is not None
    assert not any(not excluded for name, excluded in pairs(beside) if words and name == "team/bad")


def pairs(batch: Batch) -> list[tuple[str, bool]]:
    """Work, and whether it is left alone."""
    assert batch.work is not None
    return list(zip(batch.work.workloads.id.tolist(), batch.work.workloads.excluded.tolist(), strict=True))


def test_running_work_that_can_no_longer_be_read_keeps_its_gpus() -> None:
    """Its last good row counts, it is left alone, and it is treated as before once it can be read."""
    seen = Seen(*HONEST)
    before = seen.tables()[1]
    bad = pod("runs", 4, node="n1", phase="Running", annotations={"a": "b"})
    bad["spec"]["priority"] = HUGE
    inventory, work = seen.tables(bad)
    assert row(work, "team/runs")["excluded"]
    assert not row(before, "team/runs")["excluded"]
    assert len(work.placements.gpu) == len(before.placements.gpu) == 4
    assert not inventory.nodes.cordoned[0]
    _, work = seen.tables(pod("runs", 4, node="n1", phase="Running"))
    assert not row(work, "team/runs")["excluded"]


def test_a_node_with_a_pod_that_was_never_read_gets_no_new_work() -> None:
    """What such a pod holds is not known."""
    bad = pod("bad", 4, node="n1", phase="Running")
    bad["spec"]["containers"] = 7
    batch = Seen(*HONEST, bad).batch()
    assert batch.inventory is not None
    assert batch.inventory.nodes.cordoned.tolist() == [True]
    assert any("it gets no new work" in gap.reason for gap in batch.gaps)


def test_a_node_that_can_no_longer_be_read_keeps_its_state_and_gets_no_new_work() -> None:
    """Its GPUs and the work on them stay."""
    seen = Seen(*HONEST)
    seen.tables()
    bad = node("n1")
    bad["spec"]["taints"] = 7
    inventory, work = seen.tables(bad)
    assert len(inventory.gpus.uuid) == 8
    assert inventory.nodes.cordoned.tolist() == [True]
    assert len(work.placements.gpu) == 4


@pytest.mark.parametrize("quota", ["many", {"a": 1}, None])
def test_a_queue_that_can_no_longer_be_read_keeps_its_quota_and_its_work_is_left_alone(quota: object) -> None:
    """A quota that is no quantity is not a quota of zero; work of other queues goes on."""
    work = (workload("w", 2, queue="mine"), workload("o", 2))
    seen = Seen(*kueue(node("n1"), cluster_queue("q", 8), local_queue("mine", "q"), *work))
    before = seen.tables()[1]
    bad = cluster_queue("q", 8)
    bad["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = quota
    batch = seen.batch(bad)
    assert batch.work is not None
    assert np.array_equal(batch.work.queues.guarantee, before.queues.guarantee)
    assert dict(pairs(batch)) == {"team/w": True, "team/o": False}
    assert any(gap.object_id == "q" and "which is no quantity" in gap.reason for gap in batch.gaps)


def test_a_namespace_that_cannot_be_read_is_left_alone() -> None:
    """What its owner declares there is not known."""
    bad = {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "team", "uid": "u", "labels": {"a": 7}}}
    batch = Seen(*HONEST, bad).batch()
    assert all(excluded for _, excluded in pairs(batch))


def test_a_workload_that_cannot_be_read_keeps_its_job_from_being_started() -> None:
    """The Job alone looks like one that waits for the controller."""
    mine = job("j", suspend=True)
    bad = workload("w", 1, owner=owner("Job", "j", mine["metadata"]["uid"]))
    bad["spec"]["podSets"] = 7
    batch = Seen(*kueue(node("n1"), mine, bad)).batch()
    assert dict(pairs(batch)) == {"team/j": True}
