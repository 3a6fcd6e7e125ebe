"""Each finding of `autopilot check`: what is wrong, of which object, and the fix."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from autopilot.contract.sharing_configs import configs_of
from autopilot.core.hardware import dcgm
from autopilot.kube.cluster_api import Answer
from autopilot.readiness.checks import run_checks
from autopilot.readiness.line import Line, Status
from autopilot.readiness.report import document, summary, text_of
from tests.unit.readiness.world import KUEUE, Scraped, World, asked, node

FINE = {Status.OK, Status.SKIPPED}
NAMES = tuple(each.names[0] for each in dcgm.FIELDS.values())
SM = dcgm.FIELDS[1002].names[0]


def _lines(world: World | None = None, scraped: Scraped | None = None) -> list[Line]:
    return list(run_checks(asked(world or World(), scraped or Scraped())))


def _bad(world: World | None = None, scraped: Scraped | None = None) -> list[Line]:
    return [line for line in _lines(world, scraped) if line.status not in FINE]


def _only(lines: list[Line]) -> Line:
    assert len(lines) == 1, [text_of(line) for line in lines]
    return lines[0]


def test_a_ready_cluster_has_nothing_to_fix() -> None:
    """Every line is ok or does not apply, and the summary says so."""
    lines = _lines()
    assert not [text_of(line) for line in lines if line.status not in FINE]
    assert summary(lines).endswith("Ready.")
    assert document(lines)["ready"] is True
    assert any("kueue-controller-manager, v0.19.2, runs" in line.text for line in lines)
    assert any(line.text == "2 of 2 nodes offer 16 x nvidia.com/gpu" for line in lines)  # over two pages


def test_every_bad_line_has_a_fix() -> None:
    """A cluster with all faults at once: no finding is without a way out, and the JSON carries it."""
    world = World(
        version="v1.20.0", kueue=("v1beta1",), denied=frozenset({("pods", "watch"), ("nodes", "get")}), skew_s=-3600.0
    )
    world.lists["/api/v1/nodes"] = [node("gpu-0", {"nvidia.com/gpu.product": "", "nvidia.com/gpu.replicas": "4"})]
    lines = _bad(world, Scraped(names=(NAMES[-1],), age_s=900, gpus=0, owned=0))
    assert all(line.fix for line in lines)
    assert len(lines) >= 10
    assert json.loads(json.dumps(document(lines)))["ready"] is False
    assert summary(lines).endswith("then check again.")


def test_a_server_that_does_not_answer_ends_the_questions_to_it() -> None:
    """One line about the connection, and telemetry is looked at all the same."""
    world = World(answers={"/version": Answer(0, "connection refused")})
    lines = _lines(world)
    assert lines[0].status == Status.FAILED
    assert "connection refused" in lines[0].text
    assert {line.check for line in lines[1:]} == {"telemetry"}


def test_refused_credentials_are_told_from_a_missing_right() -> None:
    """401 is one finding; a right that is missing names the resource, the verbs and what it is for."""
    assert "credentials" in _bad(World(answers={"/version": Answer(401, "Unauthorized")}))[0].text
    line = _only(_bad(World(denied=frozenset({("pods", "watch")}))))
    assert (line.status, line.subject) == (Status.FAILED, "pods")
    assert line.text == "no right to watch pods (what runs and what waits)"
    optional = _only(_bad(World(denied=frozenset({("topologies", "list"), ("topologies", "get")}))))
    assert (optional.status, optional.subject) == (Status.WARNING, "topologies.kueue.x-k8s.io")


@pytest.mark.parametrize(("skew_s", "status"), [(2.0, None), (10.0, Status.WARNING), (-3600.0, Status.FAILED)])
def test_a_clock_that_is_off(skew_s: float, status: Status | None) -> None:
    """A few seconds are within what a Date header can tell; an hour fails."""
    lines = _bad(World(skew_s=skew_s))
    assert [line.status for line in lines] == ([status] if status else [])
    if status == Status.FAILED:
        assert "3600 s behind" in lines[0].text


@pytest.mark.parametrize(
    ("nodes", "status", "words"),
    [
        ([node("cpu-0", gpus=0)], Status.FAILED, "none of 1 nodes offers nvidia.com/gpu"),
        ([node("a", {"nvidia.com/gpu.product": ""})], Status.FAILED, "missing on a: their GPU model is unknown"),
        ([node("a", {"nvidia.com/gpu.memory": ""})], Status.WARNING, "missing on a: GPU memory"),
        ([node("a", {"nvidia.com/gpu.replicas": "4"})], Status.WARNING, "are shared"),
        (
            [node("a", {"nvidia.com/mig.capable": "true", "nvidia.com/mig.config.state": "failed"})],
            Status.WARNING,
            "failed: a",
        ),
        (
            [
                node("a", {"nvidia.com/mig.capable": "true", "nvidia.com/mig.strategy": "mixed"}),
                node("b", {"nvidia.com/mig.capable": "true", "nvidia.com/mig.strategy": "single"}),
            ],
            Status.WARNING,
            "the nodes differ: mixed on 1, single on 1",
        ),
    ],
)
def test_nodes(nodes: list[dict[str, object]], status: Status, words: str) -> None:
    """GPUs, labels, time-slicing and MIG."""
    world = World(kueue=())
    world.lists["/api/v1/nodes"] = nodes
    line = _only(_bad(world))
    assert line.status == status
    assert words in line.text


@pytest.mark.parametrize(
    ("labels", "entries", "words"),
    [
        ({}, {"whole": "whole", "four": "time-slicing-4"}, []),
        ({"nvidia.com/mig.strategy": "mixed"}, {"whole": "whole", "two": "mps-2"}, ["refuses MPS"]),
        ({"nvidia.com/device-plugin.config": "old"}, {"four": "time-slicing-4"}, ["set it on a", "turned back"]),
    ],
)
def test_configurations_of_sharing(labels: dict[str, str], entries: dict[str, str], words: list[str]) -> None:
    """What the settings state is compared with the nodes."""
    world = World(kueue=())
    world.lists["/api/v1/nodes"] = [node("a", labels)]
    found = run_checks(replace(asked(world, Scraped()), sharing=configs_of(entries)))
    bad = [line.text for line in found if line.check == "sharing" and line.status not in FINE]
    assert len(bad) == len(words)
    assert all(word in text for word, text in zip(words, bad, strict=True))


def test_a_node_with_fewer_gpus_than_present_is_named() -> None:
    """Allocatable below capacity is a broken GPU or device plugin; a node that is not ready is another line."""
    world = World()
    world.lists["/api/v1/nodes"][1]["status"]["allocatable"]["nvidia.com/gpu"] = "7"
    assert "gpu-1 (7 of 8)" in _only(_bad(world)).text
    world.lists["/api/v1/nodes"][0]["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    assert "not ready: gpu-0" in _bad(world)[0].text


def test_without_kueue_the_lines_are_skipped() -> None:
    """A cluster without Kueue is ready; one that serves an older version only is not."""
    assert not _bad(World(kueue=()))
    assert "serves v1beta1, not v1beta2" in _only(_bad(World(kueue=("v1beta1",)))).text


def test_kueue_that_does_not_work() -> None:
    """A manager that is down, webhooks without a certificate, and their absence."""
    world = World()
    world.lists["/apis/apps/v1/deployments"][0]["status"] = {}
    assert "refuse every write of a Job or Pod" in _only(_bad(world)).text
    hooks = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    world = World()
    world.lists[hooks][0]["webhooks"][0]["clientConfig"] = {}
    assert "without a certificate: mjob.kb.io" in _only(_bad(world)).text
    world.lists[hooks] = []
    assert "no mutating webhook of Kueue" in _only(_bad(world)).text
    forbidden = Answer(403, json.dumps({"message": "deployments is forbidden"}))
    line = _only(_bad(World(answers={"/apis/apps/v1/deployments": forbidden})))
    assert (line.status, "is forbidden" in line.text) == (Status.UNKNOWN, True)


def test_queues_and_flavors_that_lead_nowhere() -> None:
    """An inactive queue, a LocalQueue without its ClusterQueue, and a flavor that no node has."""
    world = World()
    status = {"conditions": [{"type": "Active", "status": "False", "message": "references missing flavors"}]}
    world.lists[f"{KUEUE}/v1beta2/clusterqueues"][0]["status"] = status
    assert "not active: research (references missing flavors)" in _only(_bad(world)).text
    world = World()
    world.lists[f"{KUEUE}/v1beta2/localqueues"][0]["spec"]["clusterQueue"] = "gone"
    assert "LocalQueues without a ClusterQueue: team/main" in _only(_bad(world)).text
    world = World()
    world.lists[f"{KUEUE}/v1beta2/resourceflavors"][0]["spec"]["nodeLabels"] = {"pool": "a100"}
    assert "no GPU node has the labels of: h100" in _only(_bad(world)).text


def test_fair_sharing_is_stated_with_how_it_is_known() -> None:
    """By the status of a ClusterQueue, which Kueue writes only then."""
    world = World()
    assert any(each.subject == "fair sharing" and each.text.startswith("off: ") for each in _lines(world))
    world.lists[f"{KUEUE}/v1beta2/clusterqueues"][0]["status"]["fairSharing"] = {"weightedShare": 0}
    assert any(each.text.startswith("on: ClusterQueue research has status.fairSharing") for each in _lines(world))


def test_telemetry_that_is_missing() -> None:
    """No Prometheus, one that cannot be queried, and one without GPU series."""
    lines = list(run_checks(asked(World(), None)))
    assert "no Prometheus is configured" in _only([line for line in lines if line.status not in FINE]).text
    assert "cannot be queried: timed out" in _only(_bad(scraped=Scraped(broken="timed out"))).text
    assert "no DCGM series" in _only(_bad(scraped=Scraped(names=()))).text


def test_telemetry_that_says_less() -> None:
    """A missing SM_ACTIVE names what stands in; missing, old and unowned series each have a line."""
    without = tuple(name for name in NAMES if name != SM)
    lines = _bad(scraped=Scraped(names=without))
    assert "DCGM_FI_PROF_GR_ENGINE_ACTIVE stands in" in lines[0].text
    assert f"missing: {SM}" in lines[1].text
    assert "900 s old" in _only(_bad(scraped=Scraped(age_s=900))).text
    assert "no series names a pod" in _only(_bad(scraped=Scraped(owned=0))).text
    assert "GPUs cannot be told apart" in _only(_bad(scraped=Scraped(gpus=0))).text
    assert "differs from this machine's by +30 s" in _only(_bad(scraped=Scraped(clock_s=1_790_000_030.0))).text


def test_the_names_of_a_newer_dcgm_are_known() -> None:
    """Since DCGM 4.6 the fields have other names; nothing is missing then."""
    renamed = tuple(each.names[-1] if len(each.names) < 3 else each.names[1] for each in dcgm.FIELDS.values())
    assert not _bad(scraped=Scraped(names=renamed))


def test_where_nodes_and_other_clusters_come_from_is_said() -> None:
    """Without the kind of the requests, and with checks of Kueue that are about capacity."""
    (line,) = [line for line in _lines() if line.check == "capacity"]
    assert (line.status, "no nodes are asked for" in line.text) == (Status.SKIPPED, True)
    world = World(answers={"/apis/autoscaling.x-k8s.io": Answer(200, json.dumps({"versions": [{"version": "v1"}]}))})
    world.lists[f"{KUEUE}/v1beta2/admissionchecks"] = [
        {"metadata": {"name": name}, "spec": {"controllerName": controller}}
        for name, controller in (
            ("far", "kueue.x-k8s.io/multikueue"),
            ("more", "kueue.x-k8s.io/provisioning-request"),
        )
    ]
    served, far, more = [line.text for line in _lines(world) if line.check == "capacity"]
    assert served == "autoscaling.x-k8s.io/v1 is served"
    assert far.startswith("far: its queues start work in other clusters")
    assert more.startswith("more: Kueue asks for the capacity of its queues itself")
