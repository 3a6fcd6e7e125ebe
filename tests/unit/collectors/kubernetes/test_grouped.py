"""Services whose replicas are groups of pods: LeaderWorkerSets, and PodCliqueSets of Grove with their pools."""

from __future__ import annotations

from dataclasses import replace
from math import isnan, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopilot.core.hardware.dcgm import SIGNALS, Quality
from autopilot.core.model.objects import ServingRole
from autopilot.core.model.signal_table import SignalTable
from autopilot.core.model.snapshot import ClusterSnapshot, ServiceTable, SloClass
from autopilot.core.recovery.hangs import judged
from tests.kits.kube_api import Json
from tests.kits.kube_objects import meta, node, owner, pod, pod_spec
from tests.unit.collectors.kubernetes.view import NOW_S, Seen, reasons, row

PREFIX, SET = "gpu-autopilot.io/", "leaderworkerset.sigs.k8s.io"
WHOLE, PREFILL, DECODE = ServingRole
NODES = [node(f"n{number}") for number in range(4)]


def group(number: int, pods: int = 2, *, name: str = "llm", labels: Json | None = None, **notes: str) -> list[Json]:
    """The pods of a group of a LeaderWorkerSet of two pods each, as its controller makes them."""
    made = []
    for member in range(pods):
        written = {f"{SET}/size": "2", **{PREFIX + key.replace("_", "-"): value for key, value in notes.items()}}
        index = {f"{SET}/name": name, f"{SET}/group-index": str(number), f"{SET}/worker-index": str(member)}
        pod_name, sets = (
            (f"{name}-{number}", name) if member == 0 else (f"{name}-{number}-{member}", f"{name}-{number}")
        )
        place, of = f"n{2 * number + member}", owner("StatefulSet", sets, f"s-{sets}")
        made.append(pod(pod_name, 8, node=place, labels=index | (labels or {}), annotations=written, owner=of))
    return made


def clique(name: str, at: str, *, gang: str = "dyn-0", gpus: int = 4, labels: Json | None = None, **notes: str) -> Json:
    """A pod of a clique of the PodCliqueSet `dyn`, as Grove makes it."""
    said = {"app.kubernetes.io/part-of": "dyn", "grove.io/podgang": gang, "grove.io/podclique": f"dyn-0-{name}"}
    written = {PREFIX + key.replace("_", "-"): value for key, value in notes.items()}
    of = owner("PodClique", f"dyn-0-{name}", f"c-{name}")
    pod_name = f"dyn-0-{name}-{at}xk7q"
    return pod(pod_name, gpus, node=at, labels=said | (labels or {}), annotations=written, owner=of)


def services(*objects: Json) -> tuple[dict[str, dict[str, Any]], ClusterSnapshot]:
    """The rows of services by id, and the snapshot."""
    seen = Seen(*NODES, *objects).snapshot()
    return rows(seen.services), seen


def rows(table: ServiceTable) -> dict[str, dict[str, Any]]:
    """The rows of a table by id."""
    names = ServiceTable.__slots__
    return {str(table.id[at]): {name: getattr(table, name)[at] for name in names} for at in range(len(table.id))}


def test_a_leader_worker_set_is_a_service_and_its_groups_are_its_replicas() -> None:
    """Protected as before; nobody but its owner scales it."""
    found, seen = services(*group(0, ttft_objective_s="2s"), *group(1, ttft_objective_s="2s"))
    assert list(found) == ["team/llm"]
    llm = found["team/llm"]
    assert (llm["replicas"], llm["ready_replicas"], llm["min_replicas"], llm["max_replicas"]) == (2, 2, 2, 2)
    assert (llm["ttft_objective_s"], llm["role"], llm["needed_replicas"]) == (2.0, WHOLE, -1)
    assert isnan(llm["itl_objective_s"])
    assert seen.workloads.service.tolist() == [0, 0]
    assert seen.workloads.slo_class.tolist() == [SloClass.LATENCY_CRITICAL] * 2
    assert not seen.workloads.preemptible.any()


def test_a_group_that_lacks_a_pod_is_not_ready() -> None:
    """Its size is stated on its pods, and its gang is as wide as that."""
    found, seen = services(*group(0), *group(1, pods=1))
    assert (found["team/llm"]["replicas"], found["team/llm"]["ready_replicas"]) == (2, 1)
    assert seen.workloads.gpus.tolist() == [16, 16]
    waiting = group(1)
    waiting[1]["status"]["conditions"][0]["status"] = "False"
    assert services(*group(0), *waiting)[0]["team/llm"]["ready_replicas"] == 1


def test_a_set_whose_pods_are_gone_is_no_service() -> None:
    """And one that comes later is."""
    seen = Seen(*NODES, *group(0))
    assert len(seen.snapshot().services.id) == 1
    assert len(seen.batch(gone=tuple(group(0))).work.services.id) == 0  # type: ignore[union-attr]
    assert seen.snapshot(*group(0, name="chat")).services.id.tolist() == ["team/chat"]


@pytest.mark.parametrize(
    ("labels", "role"),
    [
        ({"llm-d.ai/role": "prefill"}, PREFILL),
        ({"disaggregatedset.x-k8s.io/role": "decode"}, DECODE),
        ({"nvidia.com/dynamo-sub-component-type": "decode"}, DECODE),
        ({"llm-d.ai/role": "both"}, WHOLE),
    ],
    ids=str,
)
def test_a_leader_worker_set_of_one_role_is_a_pool(labels: Json, role: ServingRole) -> None:
    """As llm-d, DisaggregatedSets and Dynamo label them."""
    assert services(*group(0, labels=labels))[0]["team/llm"]["role"] == role


def test_training_in_a_leader_worker_set_is_no_service() -> None:
    """It declares its class, and may hang."""
    found, seen = services(*group(0, slo_class="batch"))
    assert found == {}
    assert (seen.workloads.service.tolist(), seen.workloads.slo_class.tolist()) == ([-1], [SloClass.BATCH])


def test_who_allows_to_scale_a_set_is_told_that_nothing_scales_it() -> None:
    """Its controller would undo another number."""
    seen = Seen(*NODES, *group(0, scale="true", max_replicas="8"))
    batch = seen.batch()
    assert batch.work is not None
    assert batch.work.services.max_replicas.tolist() == [1]
    (told,) = [each for each in reasons(batch, "contract") if "LeaderWorkerSet" in each]
    assert told.startswith("team/llm: it declares gpu-autopilot.io/scale, and LeaderWorkerSet llm manages it")


def test_a_deployment_of_the_name_of_a_set_is_another_service() -> None:
    """The id of the set ends with its kind."""
    spec = {"replicas": 1, "template": {"metadata": {"labels": {"app": "llm"}}, "spec": pod_spec(1)}}
    made = {"kind": "Deployment", "metadata": meta("llm", "team", generation=1), "spec": spec, "status": {}}
    assert list(services(made, *group(0))[0]) == ["team/llm", "team/llm~leaderworkerset"]


ROLE = "nvidia.com/dynamo-sub-component-type"


@pytest.mark.parametrize(
    "label",
    [
        lambda role: {ROLE: role, "nvidia.com/dynamo-component-type": "worker"},
        lambda role: {"nvidia.com/dynamo-component-type": role},
        lambda role: {"grove.io/podclique": f"dyn-0-vllm{role}worker"},
        lambda role: {"grove.io/podclique": f"dyn-0-{role}-1-engine-ldr"},
        lambda role: {PREFIX + "serving-role": role},
    ],
    ids=["dynamo", "dynamo v1beta1", "clique", "scaling group", "declared"],
)
def test_the_cliques_of_a_role_are_a_pool_inside_the_gangs_of_their_set(label: Any) -> None:
    """The gang is the replica of the set; each pool promises its own tokens."""
    found, seen = services(
        clique("fe", "n0", gpus=0),
        clique("p", "n0", labels=label("prefill"), ttft_objective_s="500ms", itl_objective_s="50ms"),
        clique("d", "n1", labels=label("decode"), ttft_objective_s="500ms", itl_objective_s="50ms"),
        clique("d", "n2", labels=label("decode"), ttft_objective_s="500ms", itl_objective_s="50ms"),
    )
    assert {name: each["replicas"] for name, each in found.items()} == {
        "team/dyn": 1,
        "team/dyn~decode": 2,
        "team/dyn~prefill": 1,
    }
    assert [each["role"] for each in found.values()] == [WHOLE, DECODE, PREFILL]
    assert [each["part_of"] for each in found.values()] == [-1, 0, 0]
    objectives = [(each["ttft_objective_s"], each["itl_objective_s"]) for each in found.values()]
    assert objectives == [pytest.approx((nan, nan), nan_ok=True), (0.5, 0.05), (0.5, 0.05)]
    assert seen.workloads.id.tolist() == ["team/dyn-0"]
    assert seen.workloads.service.tolist() == [0]


def test_engines_over_several_nodes_are_the_replicas_of_their_scaling_group() -> None:
    """The leader and the worker of an engine are one; an engine is ready with both."""

    def engine(number: int, part: str, at: str) -> Json:
        labels = {
            "grove.io/podcliquescalinggroup": "dyn-0-decode",
            "grove.io/podclique": f"dyn-0-decode-{number}-{part}",
        }
        return clique(part, at, labels=labels | {"grove.io/podcliquescalinggroup-replica-index": str(number)})

    late = engine(1, "wkr", "n3")
    late["status"]["conditions"][0]["status"] = "False"
    found, _ = services(engine(0, "ldr", "n0"), engine(0, "wkr", "n1"), engine(1, "ldr", "n2"), late)
    assert (found["team/dyn~decode"]["replicas"], found["team/dyn~decode"]["ready_replicas"]) == (2, 1)


def test_the_name_of_a_set_is_no_role() -> None:
    """Of `decode-demo` only the names of its cliques say what they do; without its label the PodGang names the set."""
    labels = {"app.kubernetes.io/part-of": "decode-demo", "grove.io/podclique": "decode-demo-0-engine"}
    assert list(services(clique("engine", "n0", labels=labels))[0]) == ["team/decode-demo"]
    assert list(services(clique("engine", "n0", labels={"app.kubernetes.io/part-of": ""}))[0]) == ["team/dyn"]


def test_each_pod_of_a_group_names_its_service() -> None:
    """Also a worker, and a frontend of no role; a pod of a Deployment is known by its name."""
    plain = pod(
        "web-6d4cf-x2x4z", 1, owner=owner("ReplicaSet", "web-6d4cf", "r"), labels={"pod-template-hash": "6d4cf"}
    )
    seen = Seen(*NODES, *group(0), clique("fe", "n2", gpus=0), clique("decode", "n2"), plain)
    seen.batch()
    assert dict(seen.collector._gangs.served.by_pod()) == {
        "team/llm-0": "team/llm",
        "team/llm-0-1": "team/llm",
        "team/dyn-0-fe-n2xk7q": "team/dyn",
        "team/dyn-0-decode-n2xk7q": "team/dyn~decode",
    }


SERVING = st.sampled_from(
    [
        {f"{SET}/name": "s", f"{SET}/group-index": "0"},
        {"grove.io/podgang": "s-0", "grove.io/podclique": "s-0-decode", "app.kubernetes.io/part-of": "s"},
        {"grove.io/podgang": "s-0", "nvidia.com/dynamo-component-type": "worker"},
        {"grove.io/podgang-name": "s-0"},
        {f"{SET}/name": "s", "llm-d.ai/role": "prefill"},
    ]
)
CLASSES = st.sampled_from([{}, {"slo-class": "interactive"}, {"preemptible": "true"}, {"ttft-objective-s": "1s"}])


@settings(max_examples=12)
@given(
    SERVING, CLASSES, st.dictionaries(st.sampled_from(["app", "team", "role"]), st.just("decode")), st.integers(2, 4)
)
def test_no_traffic_makes_a_server_hang(labels: Json, declared: Json, more: Json, width: int) -> None:
    """All counters of its GPUs stand at 0, and it is not judged. The same pods as batch work are."""
    for notes, hangs in ((declared, False), ({"slo-class": "batch"}, True)):
        annotations = {PREFIX + name: value for name, value in notes.items()}
        pods = [
            pod(
                f"s-0-{number}",
                8,
                node=f"n{number}",
                labels=labels | more,
                annotations=annotations,
                at_s=NOW_S - 9000.0,
            )
            for number in range(width)
        ]
        seen = without_activity(Seen(*NODES, *pods).snapshot())
        assert judged(seen).tolist() == [hangs]
        assert (seen.workloads.service >= 0).tolist() == [not hangs]


def without_activity(seen: ClusterSnapshot) -> ClusterSnapshot:
    """The cluster after an hour in which no GPU did anything."""
    count, windows_s = len(seen.gpus.uuid), (60.0, 300.0, 1800.0)
    values = np.zeros((len(SIGNALS), len(windows_s), count), np.float32)
    values[SIGNALS.index("power_w")] = 70.0
    samples, age_s = np.full((len(windows_s), count), 60, np.int32), np.ones(count, np.float32)
    table = SignalTable(
        SIGNALS, windows_s, NOW_S, values, values, samples, age_s, np.full(count, Quality.SM_ACTIVE, np.int8)
    )
    return replace(seen, telemetry=table)


def test_a_budget_still_keeps_the_pods_of_a_group() -> None:
    """Only a pod that is a replica by itself has another rule."""
    budget = {
        "kind": "PodDisruptionBudget",
        "metadata": meta("b", "team"),
        "spec": {"selector": {"matchLabels": {f"{SET}/name": "llm"}}},
        "status": {"disruptionsAllowed": 1, "desiredHealthy": 1, "expectedPods": 2},
    }
    work = Seen(*NODES, budget, *group(0, slo_class="interactive", preemptible="true")).tables()[1]
    assert not row(work, "team/llm-0")["preemptible"]


def test_an_autoscaler_of_a_set_states_its_need_and_nothing_else() -> None:
    """Its load is known, so that room is made for groups that it asks for. The autopilot sets no number."""
    target = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": "llm"}
    now = {"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 90}}}
    wants = {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 60}},
    }
    hpa = {
        "kind": "HorizontalPodAutoscaler",
        "metadata": meta("llm", "team"),
        "spec": {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 8, "metrics": [wants]},
        "status": {"currentReplicas": 2, "desiredReplicas": 3, "currentMetrics": [now]},
    }
    llm = services(hpa, *group(0, scale="true"), *group(1, scale="true"))[0]["team/llm"]
    assert (llm["needed_replicas"], llm["load_ratio"]) == (3, pytest.approx(1.5))
    assert (llm["min_replicas"], llm["max_replicas"]) == (2, 2)
