"""What people do with kubectl enters the simulation at the same virtual moment, and leaves it again."""

from __future__ import annotations

from typing import Any

import pytest

from apiserver.errors import StatusError
from autopilot.core.model.snapshot import State
from autopilot.playground.agreement import disagreements
from autopilot.playground.stage import Stage
from tests.kits.playground_kit import found_until, job, person, stage_of


def row_of(stage: Stage, name: str) -> int:
    """The job of the simulator that a Job became."""
    return stage.cluster.jobs.id.index(name)


def conditions(stage: Stage, resource: str, namespace: str, name: str) -> dict[str, str]:
    """Condition -> reason, of those that are true."""
    found: dict[str, Any] = stage.server.store.get(resource, namespace, name) or {}
    return {each["type"]: each["reason"] for each in found["status"]["conditions"] if each["status"] == "True"}


def events(stage: Stage, namespace: str) -> str:
    """The messages of all Events."""
    return "\n".join(each["message"] for each in stage.server.store.objects("events", namespace))


def test_a_job_of_a_person_runs_and_ends() -> None:
    """It gets GPUs, runs as long as its command sleeps, and its Workload takes the recorded conditions."""
    stage = stage_of()
    assert found_until(stage, 60.0) == []
    person(stage).create("jobs.batch", job("mine", pods=2))
    assert found_until(stage, 61.0) == []
    row = row_of(stage, "vision/mine")
    assert stage.cluster.state[row] in {State.STARTING, State.RUNNING}
    assert stage.cluster.jobs.gpus[row] == 4
    gang = stage.projection.gangs[row]
    assert gang.workload.startswith("job-mine-")
    assert conditions(stage, "workloads.kueue.x-k8s.io", "vision", gang.workload).keys() == {
        "QuotaReserved",
        "Admitted",
    }
    assert len(gang.shown) == 2
    assert found_until(stage, 900.0) == []
    assert (
        stage.cluster.end_s[row] - stage.cluster.ready_s[row] == pytest.approx(300.0) or stage.cluster.end_s[row] > 360
    )
    assert conditions(stage, "jobs.batch", "vision", "mine")["Complete"] == "CompletionsReached"
    assert conditions(stage, "workloads.kueue.x-k8s.io", "vision", gang.workload)["Finished"] == "Succeeded"


def test_a_job_that_requests_nothing_gets_the_gpu_of_the_limit_range() -> None:
    """`kubectl create job` has no flag for resources; without a command it runs ten minutes."""
    stage = stage_of()
    plain = job("plain", gpus=0)
    del plain["spec"]["template"]["spec"]["containers"][0]["command"]
    person(stage).create("jobs.batch", plain)
    stage.clock.run_to(1.0)
    row = row_of(stage, "vision/plain")
    assert stage.cluster.jobs.gpus[row] == 1
    assert stage.cluster.jobs.duration_s[row] == 600.0


def test_a_deleted_job_leaves_the_simulation() -> None:
    """Running or waiting: its GPUs are free, and its pods and its Workload are gone."""
    stage = stage_of()
    client = person(stage)
    client.create("jobs.batch", job("wide", gpus=8, pods=2))
    client.create("jobs.batch", job("huge", gpus=8, pods=4))
    stage.clock.run_to(10.0)
    wide, huge = row_of(stage, "vision/wide"), row_of(stage, "vision/huge")
    assert wide in stage.cluster.holding
    assert huge in stage.cluster.pending
    for name in ("wide", "huge"):
        client.delete("jobs.batch", "vision", name, {"propagationPolicy": "Background"})
    stage.clock.run_to(11.0)
    assert not {wide, huge} & {*stage.cluster.holding, *stage.cluster.pending}
    left = [
        each["metadata"]["name"]
        for kind in ("pods", "workloads.kueue.x-k8s.io")
        for each in client.list(kind, "vision")
    ]
    assert not [name for name in left if "wide" in name or "huge" in name]
    assert disagreements(stage.cluster, stage.projection, 11.0) == []


def test_a_deleted_pod_fails_its_gang_which_runs_again() -> None:
    """As a whole, with other pods; its Workload was evicted once."""
    stage = stage_of()
    client = person(stage)
    client.create("jobs.batch", job("pair", pods=2))
    stage.clock.run_to(10.0)
    row = row_of(stage, "vision/pair")
    first = set(stage.projection.gangs[row].shown)
    client.delete("pods", *next(iter(first))[1:])
    assert found_until(stage, 12.0) == []
    assert stage.cluster.incarnation[row] == 1
    assert not first & set(stage.projection.gangs[row].shown)


def test_a_cordon_keeps_new_work_away_until_it_is_lifted() -> None:
    """Kubectl cordon and uncordon."""
    stage = stage_of()
    client = person(stage)
    for name in stage.projection.nodes.names:
        client.patch("nodes", "", name, {"spec": {"unschedulable": True}})
    client.create("jobs.batch", job("late"))
    assert found_until(stage, 30.0) == []
    row = row_of(stage, "vision/late")
    assert row in stage.cluster.pending
    client.patch("nodes", "", stage.projection.nodes.names[0], {"spec": {"unschedulable": None}})
    assert found_until(stage, 40.0) == []
    assert row in stage.cluster.holding


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (job("a", namespace="default"), "namespace default has no LocalQueue default; create the Job in one of the"),
        (job("a", gpus=9), "it never fits on this cluster"),
        (job("a", annotations={"playground.gpu-autopilot.io/duration": "soon"}), "duration"),
        (job("a", annotations={"gpu-autopilot.io/slo-class": "best"}), "its workload contract is refused"),
    ],
)
def test_a_job_that_cannot_enter_says_why_in_an_event(made: dict[str, Any], words: str) -> None:
    """And nothing else happens."""
    stage = stage_of()
    before = len(stage.cluster.jobs)
    person(stage).create("jobs.batch", made)
    stage.clock.run_to(1.0)
    assert words in events(stage, made["metadata"]["namespace"])
    assert len([each for each in stage.cluster.jobs.id[before:] if each.endswith("/a")]) == 0


def test_logs_are_refused_with_the_reason() -> None:
    """Simulated pods print nothing."""
    stage = stage_of()
    stage.clock.run_to(600.0)
    pod = stage.server.store.objects("pods")[0]["metadata"]
    with pytest.raises(StatusError) as refused:
        person(stage).call("pods", pod["namespace"], pod["name"], "exec", {})
    assert "pods of the playground are simulated" in refused.value.body["message"]


def test_a_quota_that_keeps_pods_out_stops_nothing_else() -> None:
    """A person limits the pods of a namespace: an Event says so on the Job, and the time of the others goes on."""
    stage = stage_of()
    client = person(stage)
    quota = {"metadata": {"name": "none", "namespace": "vision"}, "spec": {"hard": {"pods": "0"}}}
    client.create("resourcequotas", {"apiVersion": "v1", "kind": "ResourceQuota", **quota})
    client.create("jobs.batch", job("kept-out"))
    client.create("jobs.batch", job("other", namespace="language"))
    stage.clock.run_to(60.0)
    assert stage.cluster.state[row_of(stage, "language/other")] in {State.STARTING, State.RUNNING}
    assert "is forbidden" in events(stage, "vision")
    assert stage.server.store.get("pods", "vision", "kept-out") is None
    client.delete("resourcequotas", "vision", "none")
    stage.clock.run_to(1200.0)
    assert conditions(stage, "jobs.batch", "language", "other")["Complete"] == "CompletionsReached"
    client.create("jobs.batch", job("later"))
    stage.clock.run_to(1260.0)
    assert [each for each in stage.server.store.objects("pods", "vision") if "later" in each["metadata"]["name"]]
