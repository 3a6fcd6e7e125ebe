"""The watchdog: when it acts, what it takes away with exactly its rights, and what it leaves alone."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from apiserver.cluster import cluster
from apiserver.server import Server
from apiserver.timeline import Timeline
from apiserver.users import ADMIN, service_account
from autopilot.contract.annotations import CHECK, CONTROLLER, EFFECT, PLACEMENT, STOPPED
from autopilot.contract.scaling import CEILING
from autopilot.contract.tree import PREFIX
from autopilot.readiness.watchdog import watchdog_account
from autopilot.service.leading.lease import Terms
from autopilot.service.watchdog.marker import Marker
from autopilot.service.watchdog.process import Watchdog
from autopilot.service.watchdog.watch import LeaseWatch
from tests.kits.apiserver_kit import START, Asker
from tests.kits.fence_kit import install_fields
from tests.kits.lead_kit import NAME, Candidate, InProcess, with_namespace

DOG = service_account("gpu-autopilot", "gpu-autopilot-watchdog")
TEAM = "/apis/batch/v1/namespaces/team/jobs"
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
CONTAINERS = [{"name": "main", "image": "app:1"}]
GATED_BY = "kueue.x-k8s.io/admission-gated-by"
PLURAL = {"ServiceAccount": "/api/v1/namespaces/gpu-autopilot/serviceaccounts"}
RBAC = "/apis/rbac.authorization.k8s.io/v1"


@pytest.fixture
def server() -> Server:
    """A cluster with Kueue and the account of the watchdog."""
    return watched()


def watched() -> Server:
    """A cluster with Kueue, a queue with two checks, and the account of the watchdog, whose fields are limited."""
    made = with_namespace(cluster(Timeline(START), random.Random(1), kueue=True))
    ask = Asker(made)
    for each in watchdog_account():
        kind, space = each["kind"], each["metadata"].get("namespace")
        path = PLURAL.get(kind) or f"{RBAC}/{f'namespaces/{space}/' if space else ''}{kind.lower()}s"
        ask("POST", path, each)
    install_fields(made)
    made.timeline.run_for(1.0)
    ask("POST", "/api/v1/namespaces", {"metadata": {"name": "team"}})
    for name, controller in ((CHECK, CONTROLLER), ("budget", "example.com/budget")):
        ask("POST", f"{KUEUE}/admissionchecks", {"metadata": {"name": name}, "spec": {"controllerName": controller}})
    checks = [{"name": CHECK}, {"name": "budget"}]
    for name, held in (("both", checks), ("ours", checks[:1]), ("theirs", checks[1:])):
        spec = {"namespaceSelector": {}, "admissionChecksStrategy": {"admissionChecks": held}}
        ask("POST", f"{KUEUE}/clusterqueues", {"metadata": {"name": name}, "spec": spec})
    return made


def dog(server: Server, api: InProcess | None = None, absence_s: float = 600.0) -> Watchdog:
    """The watchdog with its own account."""
    api = api or InProcess(server, DOG)
    watch = LeaseWatch(api, NAME, 10.0, lambda: server.timeline.now_s)
    return Watchdog(api, watch, Marker(api, NAME.namespace), absence_s, lambda: server.timeline.now_s)


def run(server: Server, watchdog: Watchdog, seconds: float, candidate: Candidate | None = None) -> str:
    """Look every 10 s; the last state."""
    said = ""
    for _ in range(int(seconds / 10)):
        if candidate is not None:
            candidate.elector.step()
        said = watchdog.step()
        server.timeline.run_for(10.0)
    return said


def checks_of(server: Server, name: str) -> list[str]:
    """The checks of a ClusterQueue."""
    spec = Asker(server)("GET", f"{KUEUE}/clusterqueues/{name}")["spec"]
    return [each["name"] for each in (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or []]


def suspended(server: Server, name: str, mark: dict[str, Any] | None, manager: str) -> str:
    """A Job of its own whose `suspend` somebody set; its uid."""
    body = {
        "metadata": {"name": name},
        "spec": {"template": {"spec": {"containers": CONTAINERS, "restartPolicy": "Never"}}},
    }
    ask = Asker(server)
    uid = str(ask("POST", TEAM, body)["metadata"]["uid"])
    notes = (
        {STOPPED: json.dumps({"uid": uid, "id": "i1", "reason": "move", "returns": True, **mark})}
        if mark is not None
        else {}
    )
    patch = {"metadata": {"annotations": notes}, "spec": {"suspend": True}}
    ask("PATCH", f"{TEAM}/{name}", patch, fieldManager=manager)
    return uid


def is_suspended(server: Server, name: str) -> bool:
    """Whether a Job is suspended."""
    return bool(Asker(server)("GET", f"{TEAM}/{name}")["spec"]["suspend"])


def test_it_acts_after_an_absence_with_a_healthy_server(server: Server) -> None:
    """Not while the Lease is renewed, and not before the absence is over."""
    leader = Candidate(server, "leader", Terms(20.0, 15.0, 10.0))
    watchdog = dog(server)
    assert run(server, watchdog, 900, leader) == "the Lease is renewed"
    run(server, watchdog, 590)
    assert checks_of(server, "both") == [CHECK, "budget"]
    said = run(server, watchdog, 30)
    assert "Lease gpu-autopilot/gpu-autopilot was not renewed for 10 min" in said
    assert [checks_of(server, name) for name in ("both", "ours", "theirs")] == [["budget"], [], ["budget"]]
    assert Marker(InProcess(server), NAME.namespace).read()[0].startswith("Lease gpu-autopilot")


@pytest.mark.parametrize("fate", ["request lost", "paused"])
def test_an_outage_of_the_server_or_a_pause_of_its_own_starts_the_wait_again(server: Server, fate: str) -> None:
    """What was not seen does not count."""
    api = InProcess(server, DOG)
    watchdog = dog(server, api)
    run(server, watchdog, 550)
    if fate == "paused":
        server.timeline.run_for(300)
    else:
        api.fate = lambda *_: fate
        assert "not healthy" in run(server, watchdog, 20)
        api.fate = lambda *_: ""
    run(server, watchdog, 590)
    assert checks_of(server, "ours") == [CHECK]
    run(server, watchdog, 30)
    assert checks_of(server, "ours") == []


def test_it_removes_our_gates_and_leaves_those_of_others(server: Server) -> None:
    """On Jobs and on pods that wait."""
    ask, watchdog = Asker(server), dog(server, absence_s=20.0)
    watchdog.step()
    server.timeline.run_for(10.0)
    pod = {"spec": {"containers": CONTAINERS, "schedulingGates": [{"name": CONTROLLER}, {"name": "example.com/other"}]}}
    ask("POST", "/api/v1/namespaces/team/pods", {"metadata": {"name": "p"}, **pod})
    job: dict[str, Any] = {
        "metadata": {"name": "gated", "annotations": {GATED_BY: f"{CONTROLLER},example.com/other"}},
        "spec": {"suspend": True, "template": {"spec": {"containers": CONTAINERS, "restartPolicy": "Never"}}},
    }
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    ask("POST", TEAM, job)
    watchdog.step()
    server.timeline.run_for(10.0)
    said = watchdog.step()
    assert "1 scheduling gates of pods" in said
    assert [each["name"] for each in ask("GET", "/api/v1/namespaces/team/pods/p")["spec"]["schedulingGates"]] == [
        "example.com/other"
    ]
    assert ask("GET", f"{TEAM}/gated")["metadata"]["annotations"][GATED_BY] == "example.com/other"


def test_it_starts_again_only_what_the_controller_stopped(server: Server) -> None:
    """Not what a person suspended since, not what its owner has to start, and not an object of the same name."""
    suspended(server, "ours", {}, "gpu-autopilot")
    suspended(server, "a-person", None, "kubectl")
    suspended(server, "parked", {"returns": False}, "gpu-autopilot")
    suspended(server, "another", {"uid": "of an older Job"}, "gpu-autopilot")
    suspended(server, "taken-over", {}, "gpu-autopilot")
    ask = Asker(server)
    for value in (False, True):
        ask("PATCH", f"{TEAM}/taken-over", {"spec": {"suspend": value}}, fieldManager="kubectl-edit")
    forged = {"annotations": {EFFECT: json.dumps({"id": "i1", "selector": {"pool": "cheap"}})}}
    place = {"nodeSelector": {"pool": "cheap", f"{PLACEMENT}0123456789": "true"}}
    ask("PATCH", f"{TEAM}/ours", {"metadata": forged, "spec": {"template": {"spec": place}}})
    run(server, dog(server), 620)
    names = ("ours", "a-person", "parked", "another", "taken-over")
    assert [is_suspended(server, name) for name in names] == [False, True, True, True, True]
    started = ask("GET", f"{TEAM}/ours")
    assert STOPPED not in (started["metadata"].get("annotations") or {})
    assert started["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "cheap"}, "only our own label goes"


def test_an_outage_of_kueue_is_waited_out(server: Server) -> None:
    """Its webhooks refuse every write with 500: the removal stops, keeps its mark, and goes on later."""
    api = InProcess(server, DOG)
    watchdog = dog(server, api)
    run(server, watchdog, 590)
    down = True
    ask = api.patch

    def patch(path: str, body: Any, media: str = "application/merge-patch+json") -> Any:
        if down and "clusterqueues" in path:
            text = {"message": 'Internal error occurred: failed calling webhook "vclusterqueue.kb.io"'}
            return type(ask("/none", {}))(500, json.dumps(text))
        return ask(path, body, media)

    api.patch = patch  # type: ignore[method-assign]
    said = run(server, watchdog, 40)
    assert "goes on at the next look" in said
    assert "failed calling webhook" in said
    down = False
    run(server, watchdog, 10)
    assert checks_of(server, "ours") == []


@pytest.mark.parametrize("restarted", [False, True])
def test_its_report_counts_what_earlier_passes_removed(server: Server, *, restarted: bool) -> None:
    """The second queue is refused in the first pass; the report of the last one has both, also by another process."""
    api = InProcess(server, DOG)
    watchdog, ask = dog(server, api), api.patch

    def patch(path: str, body: Any, media: str = "application/merge-patch+json") -> Any:
        refused = type(ask("/none", {}))(503, json.dumps({"message": "not now"}))
        return refused if path.endswith("clusterqueues/ours") else ask(path, body, media)

    api.patch = patch  # type: ignore[method-assign]
    assert "goes on at the next look" in run(server, watchdog, 620)
    api.patch = ask  # type: ignore[method-assign]
    said = run(server, dog(server, api), 620) if restarted else run(server, watchdog, 10)
    assert "removed: 2 admission checks of ClusterQueues" in said
    mark = Asker(server)("GET", "/api/v1/namespaces/gpu-autopilot/configmaps/gpu-autopilot-watchdog")["data"]
    assert json.loads(mark["removed"]) == {"admission checks of ClusterQueues": 2}


def test_it_stops_where_the_controller_returns_meanwhile(server: Server) -> None:
    """It reads the Lease before each write."""
    api = InProcess(server, DOG)
    watchdog = dog(server, api)
    run(server, watchdog, 610)
    leader = Candidate(server, "leader", Terms(20.0, 15.0, 10.0))
    writes = 0
    ask = api.patch

    def patch(path: str, body: Any, media: str = "application/merge-patch+json") -> Any:
        nonlocal writes
        writes += "clusterqueues" in path
        leader.elector.step()
        return ask(path, body, media)

    for name in ("both", "ours"):
        spec = {"admissionChecksStrategy": {"admissionChecks": [{"name": CHECK}]}}
        Asker(server)("PATCH", f"{KUEUE}/clusterqueues/{name}", {"spec": spec})
    watchdog._done = False
    api.patch = patch  # type: ignore[method-assign]
    assert "the controller is back" in watchdog.step()
    assert writes <= 1


def test_the_marker_can_be_taken_away_by_a_person_alone(server: Server) -> None:
    """The watchdog itself has no right to."""
    run(server, dog(server), 620)
    assert "cannot be deleted" in Marker(InProcess(server, DOG), NAME.namespace).clear()
    marker = Marker(InProcess(server, ADMIN), NAME.namespace)
    assert marker.clear() == ""
    assert marker.read() == ("", "")


@pytest.mark.parametrize(("replicas", "after"), [(0, 3), (1, 1)])
def test_only_our_own_number_of_replicas_is_given_back(server: Server, replicas: int, after: int) -> None:
    """A number of a person under a ceiling stands, and so does that of services without one."""
    ask, apps = Asker(server), "/apis/apps/v1/namespaces/team"
    record = {"id": "1/p/s", "replicas": 0, "until": 1e12, "owner": 3, "ours": 0, "generation": 1, "revision": ""}
    for kind, plural in (("Deployment", "deployments"), ("StatefulSet", "statefulsets")):
        for name, notes in (("chat", {f"{PREFIX}{CEILING}": json.dumps(record)}), ("other", {})):
            labels = {"app": name}
            template = {"metadata": {"labels": labels}, "spec": {"containers": CONTAINERS}}
            spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
            spec |= {"serviceName": name} if kind == "StatefulSet" else {}
            ask("POST", f"{apps}/{plural}", {"metadata": {"name": name, "annotations": notes}, "spec": spec})
    run(server, dog(server), 620)
    for plural in ("deployments", "statefulsets"):
        assert ask("GET", f"{apps}/{plural}/chat")["spec"]["replicas"] == after
        assert ask("GET", f"{apps}/{plural}/other")["spec"]["replicas"] == replicas


def test_idle_services_have_the_replicas_of_their_owners_again(server: Server) -> None:
    """A ceiling that nobody renews would keep a service small for ever."""
    test_only_our_own_number_of_replicas_is_given_back(server, 0, 3)
