"""Recommendations as objects: written from ticks of the real decision, decided by kubectl, on the server over HTTPS."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from apiserver.http.serve import Running
from autopilot.core.model.units import format_gpu_s
from autopilot.crds.keeper import BURST, KIND, PER_MINUTE
from autopilot.crds.names import collection, path
from autopilot.crds.planning import DETAIL_S, KEPT_S, MOVED_S
from autopilot.crds.policy_status import PolicyStatus
from autopilot.kube.client import JSON
from autopilot.service.capping import Capped
from autopilot.service.cluster_policy import EVERY_S, ClusterPolicySource, PolicyObject
from autopilot.service.settings import Role
from collectors.kubernetes.reflector import Timing
from collectors.kubernetes.source import Cluster
from collectors.kubernetes.transport import Transport
from scripts.generate_crds import FOLDER, files
from tests.kits.core_world import holds, waits
from tests.kits.http_kit import client, desk_over
from tests.kits.kubectl_kit import Kubectl
from tests.kits.recommendations_kit import ASKS, TELLS, Desk


@pytest.fixture(scope="module")
def cluster(kubectl: Kubectl) -> Kubectl:
    """A cluster with the shipped definitions and roles, and a group of approvers."""
    kubectl.done("create", "namespace", "gpu-autopilot")
    for name in sorted(files()):
        kubectl.done("apply", "-f", str(FOLDER / name))
    kubectl.done("create", "clusterrolebinding", "on-call", "--clusterrole=gpu-autopilot-approver", "--group=approvers")
    kubectl.done("wait", "--for=condition=Established", "crd", "--all", "--timeout=20s")
    return kubectl


@pytest.fixture
def desk(cluster: Kubectl, running: Running, kubeconfig: Path, tmp_path: Path) -> Iterator[Desk]:
    """A controller beside the cluster, without objects of an earlier test."""
    found = Desk(running, kubeconfig, tmp_path)
    assert found.api.send("DELETE", collection("recommendations"), {}, JSON).status == 200
    yield found
    found.close()


@pytest.fixture
def get(desk: Desk) -> Callable[[str], dict[str, Any]]:
    """An object by its name."""
    return lambda name: desk.api.get(path("recommendations", name)).document


def _approve(cluster: Kubectl, name: str, value: str = "yes", verb: str = "approve") -> None:
    who = ("--as=pat", "--as-group=approvers")
    cluster.done("annotate", "recommendation", name, f"gpu-autopilot.io/{verb}={value}", *who)


def test_an_open_recommendation_is_an_object(desk: Desk, cluster: Kubectl, get: Callable[[str], Any]) -> None:
    """With evidence, gain, cost and the verdict of each guard, the epoch of its leader, and no owner."""
    desk.tick(waits("a", 4))
    found = get(desk.proposal)
    assert found["metadata"]["annotations"] == {"gpu-autopilot.io/epoch": "7"}
    assert "ownerReferences" not in found["metadata"]
    assert (found["spec"]["action"], found["spec"]["workload"]) == ("admit_gang", "a")
    status = found["status"]
    assert (status["gpus"], status["victims"]) == (4, [])
    assert status["since"] == status["changed"] == status["updated"]
    assert (status["state"], status["epoch"], status["confidence"]) == ("NeedsApproval", 7, "it rests on no forecast")
    assert status["gain"] == format_gpu_s(status["gainGPUSeconds"])
    assert status["evidence"]
    assert {each["guard"] for each in status["guards"]} >= {"mode", "freshness"}
    row = cluster.done("get", "recommendations").splitlines()[1]
    assert row.startswith(f"{desk.proposal}")
    assert "NeedsApproval" in row


def test_a_person_approves_with_one_annotation(desk: Desk, cluster: Kubectl, get: Callable[[str], Any]) -> None:
    """The command reaches the inbox once, with who and when as far as known; the answer stands in the status."""
    desk.tick(waits("a", 4))
    name = desk.proposal
    _approve(cluster, name)
    desk.look()
    desk.look()
    assert desk.woken == 1
    (command,) = desk.tick(waits("a", 4))
    assert (command.kind, command.who, command.exactly) == ("approve", "annotation (kubectl-annotate)", False)
    assert command.subject == get(name)["spec"]["id"]
    assert desk.now_s() - 30 < command.at_s <= desk.now_s()
    found = get(name)
    decision = found["status"]["decision"]
    assert (decision["verdict"], decision["manager"], decision["sequence"]) == ("Approved", "kubectl-annotate", 0)
    assert decision["message"] == "carried out: its effects were sent"
    assert datetime.fromisoformat(decision["at"]).timestamp() == command.at_s
    assert found["status"]["state"] == "UnderWay"
    assert "gpu-autopilot.io/approve" not in found["metadata"]["annotations"]
    assert desk.tick(holds("a", 4)) == ()
    assert desk.record.head.sequence > 0


def test_a_rejection_counts_before_an_approval(desk: Desk, cluster: Kubectl, get: Callable[[str], Any]) -> None:
    """Both annotations are set: the more cautious one is obeyed, and the other is refused."""
    desk.tick(waits("a", 4))
    name = desk.proposal
    _approve(cluster, name)
    _approve(cluster, name, verb="reject")
    desk.look()
    assert [each.kind for each in desk.tick(waits("a", 4))] == ["reject"]
    assert get(name)["status"]["state"] == "Rejected"
    desk.tick(waits("a", 4))
    found = get(name)
    assert found["status"]["decision"]["verdict"] == "Refused"
    assert not {"gpu-autopilot.io/approve", "gpu-autopilot.io/reject"} & found["metadata"]["annotations"].keys()
    assert desk.inbox.drain(0.0) == ()


def test_an_outdated_approval_is_refused_with_what_changed(
    desk: Desk, cluster: Kubectl, get: Callable[[str], Any]
) -> None:
    """The state of the object is over; nothing reaches the inbox. The Event has the time of the ticks."""
    desk.ahead_s = 600.0
    desk.tick(waits("a", 4))
    name = desk.proposal
    desk.tick(holds("a", 4))
    assert get(name)["status"]["state"] == "Ended"
    assert get(name)["status"]["message"] == "a is running now"
    _approve(cluster, name)
    assert desk.tick(holds("a", 4)) == ()
    decision = get(name)["status"]["decision"]
    assert decision["verdict"] == "Refused"
    assert decision["message"].endswith("is no longer what was shown: a is running now")
    assert desk.inbox.drain(0.0) == ()
    assert desk.keeper.counts()["recommendation_answers_total"][("refused",)] == 1.0
    events = json.loads(cluster.done("get", "events", "-o", "json"))["items"]
    (event,) = [each for each in events if each["involvedObject"].get("uid") == get(name)["metadata"]["uid"]]
    assert (event["reason"], event["type"]) == ("ApproveRefused", "Warning")
    assert "a is running now" in event["message"]
    assert abs(datetime.fromisoformat(event["eventTime"]).timestamp() - desk.now_s()) < 300.0


def test_an_approval_by_a_user_without_the_role_changes_nothing(
    desk: Desk, cluster: Kubectl, get: Callable[[str], Any], tmp_path: Path
) -> None:
    """The API server refuses kubectl, and the service refuses its own API; both name the user and what is missing."""
    desk.tick(waits("a", 4))
    name = desk.proposal
    before = get(name)
    refused = cluster.refused("annotate", "recommendation", name, "gpu-autopilot.io/approve=yes", "--as=guest")
    assert 'User "guest" cannot get resource "recommendations"' in refused
    assert desk.tick(waits("a", 4)) == ()
    assert get(name) == before
    asked = desk_over(tmp_path, *([desk.publisher.latest] if desk.publisher.latest is not None else []))
    answer = client(asked, Role.VIEWER).post(f"/api/v1/recommendations/{name}/approve", json={"digest": "x"})
    assert (answer.status_code, "this needs approver" in answer.json()["detail"]) == (403, True)
    assert client(asked).get("/api/v1/state").status_code == 401
    assert asked.record.counts()["denied_requests_total"] == {("token",): 1.0, ("role",): 1.0}
    assert asked.inbox.drain(0.0) == ()
    asked.inbox.close()


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        ("digest", "Approved"),
        ("id", "Approved"),
        ("exactly", "Approved"),
        ("maybe", "Refused"),
        ("0123456789ab", "Refused"),
    ],
)
def test_what_an_annotation_may_say(
    desk: Desk, cluster: Kubectl, get: Callable[[str], Any], value: str, verdict: str
) -> None:
    """`yes`, `exactly`, the digest of what is shown, or the id; anything else is refused with what to write."""
    desk.tick(waits("a", 4))
    name = desk.proposal
    found = get(name)
    _approve(cluster, name, {**found["spec"], **found["status"]}.get(value, value))
    desk.look()
    desk.tick(waits("a", 4))
    decision = get(name)["status"]["decision"]
    assert decision["verdict"] == verdict
    if verdict == "Refused":
        assert "is no answer to a recommendation; write yes, exactly or the digest" in decision["message"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("yes", "rejected admit_gang for this object, for "),
        ("plan,1d", "rejected this plan, for 2"),
        ("queue,forever", "rejected admit_gang for the queue root, until the rejection is revoked"),
        ("soon", "write yes, plan, workload or queue, with a time"),
        ("queue,soon", "the time of a rejection: 'soon' is not a duration"),
    ],
)
def test_what_a_rejection_may_say(
    desk: Desk, cluster: Kubectl, get: Callable[[str], Any], value: str, words: str
) -> None:
    """What is rejected, and for how long."""
    desk.tick(waits("a", 4))
    name = desk.proposal
    _approve(cluster, name, value, "reject")
    desk.look()
    desk.tick(waits("a", 4))
    found = get(name)["status"]
    assert words in found["decision"]["message"]
    assert found["state"] == ("Rejected" if "rejected" in words else "NeedsApproval")


def test_a_mode_that_only_recommends_takes_no_approval(desk: Desk, cluster: Kubectl, get: Callable[[str], Any]) -> None:
    """The answer names the setting."""
    desk.policy = TELLS
    desk.tick(waits("a", 4))
    name = desk.proposal
    assert get(name)["status"]["state"] == "Recommended"
    _approve(cluster, name)
    desk.tick(waits("a", 4))
    assert "set modes.admit_gang to approve in the policy" in get(name)["status"]["decision"]["message"]


def test_an_approval_while_nothing_acts_is_refused(desk: Desk, cluster: Kubectl, get: Callable[[str], Any]) -> None:
    """The answer says why nothing acts; the recommendation stays."""
    desk.tick(waits("a", 4))
    name = desk.proposal
    _approve(cluster, name)
    desk.tick(waits("a", 4), halted="the kill switch is on")
    assert "nothing acts now: the kill switch is on" in get(name)["status"]["decision"]["message"]
    assert get(name)["status"]["state"] == "NeedsApproval"


def test_an_approval_that_waited_too_long_is_refused(desk: Desk, cluster: Kubectl, get: Callable[[str], Any]) -> None:
    """It counts from the time at which the annotation was set."""
    desk.policy = replace(ASKS, approval=replace(ASKS.approval, valid_s=20.0))
    desk.tick(waits("a", 4))
    name = desk.proposal
    _approve(cluster, name)
    desk.ahead_s = 40.0
    desk.tick(waits("a", 4))
    decision = get(name)["status"]["decision"]
    assert decision["verdict"] == "Refused"
    assert "and an approval holds for 20 s; annotate again" in decision["message"]
    assert desk.inbox.drain(0.0) == ()


def test_a_controller_that_does_not_lead_writes_nothing(
    desk: Desk, cluster: Kubectl, get: Callable[[str], Any]
) -> None:
    """An approval waits for the leader."""
    desk.tick(waits("a", 4))
    name, writes = desk.proposal, desk.keeper.writes
    assert desk.publisher.latest is not None
    desk.publisher.publish(replace(desk.publisher.latest, leads=False))
    _approve(cluster, name)
    desk.look()
    assert desk.keeper.writes == writes
    assert "gpu-autopilot.io/approve" in get(name)["metadata"]["annotations"]
    assert desk.inbox.drain(0.0) == ()


def test_a_restart_between_command_and_answer_repeats_nothing(
    desk: Desk, cluster: Kubectl, get: Callable[[str], Any]
) -> None:
    """The annotation is still there, and its command is already in the inbox."""
    desk.tick(waits("a", 4))
    name = desk.proposal
    _approve(cluster, name)
    desk.look()
    desk.restart()
    desk.look()
    assert len(desk.tick(waits("a", 4))) == 1
    desk.restart()  # before the annotation was seen to be gone
    desk.look()
    assert desk.inbox.drain(0.0) == ()
    assert get(name)["status"]["decision"]["verdict"] == "Approved"


def test_only_what_a_reader_sees_is_written_again(desk: Desk) -> None:
    """An unchanged tick writes nothing; details wait ten minutes, a gain that moved one minute."""
    desk.tick(waits("a", 4))
    before = desk.keeper.writes
    desk.tick(waits("a", 4))
    assert desk.keeper.writes == before
    there = next(iter(desk.keeper._there.values()))
    shown = float(there.status["gainGPUSeconds"])
    there.status = {**there.status, "gainGPUSeconds": shown * 2}  # as if it had been written long ago
    desk.steady_s = MOVED_S - 1
    desk.keeper._stale = True
    desk.tick(waits("a", 4))
    assert desk.keeper.writes == before
    assert MOVED_S < DETAIL_S < 2 * KEPT_S


def test_objects_are_bounded_and_those_that_gain_most_stay(desk: Desk, cluster: Kubectl) -> None:
    """With room for one, the widest gang is shown; what ended is removed after some time."""
    desk.most = 1
    desk.restart()
    desk.tick(waits("small", 1), waits("wide", 4))
    names = cluster.done("get", "recommendations", "-o", "name").split()
    assert [each.partition("/")[2].rpartition("-")[0] for each in names] == ["admit-gang-wide"]
    desk.tick()
    assert cluster.done("get", "recommendations", "-o", "jsonpath={.items[*].status.state}") == "Ended"
    desk.steady_s += KEPT_S
    desk.tick()
    assert cluster.done("get", "recommendations", "-o", "name") == ""


def test_writes_are_bounded_and_the_newest_state_wins(desk: Desk, cluster: Kubectl) -> None:
    """What does not fit into the rate waits; what is not wanted any more by then is not written."""
    names = [f"g{number}" for number in range(8)]
    desk.keeper._left = 5.0
    desk.tick(*[waits(name, 1) for name in names])
    assert desk.keeper.writes <= 5
    assert desk.keeper.due > 0
    assert len(cluster.done("get", "recommendations", "-o", "name").split()) < len(names)
    desk.steady_s += 60.0 * BURST / PER_MINUTE
    desk.tick(waits("g0", 1))
    assert desk.keeper.due == 0
    open_ones = cluster.done("get", "recommendations", "-o", "jsonpath={.items[*].status.state}").split()
    assert open_ones.count("NeedsApproval") == 1


def test_a_refused_write_is_told_and_tried_again(desk: Desk, cluster: Kubectl) -> None:
    """Without the right: the reason, no further write for some seconds, and no objects."""
    config = desk.folder / "guest.kubeconfig"
    token = cluster.done("-n", "gpu-autopilot", "create", "token", "default").strip()
    config.write_text(desk.running.kubeconfig(token))
    config.chmod(0o600)
    listed = desk.keeper._listing
    desk.api = desk.api_of(config)
    desk.restart()
    desk.keeper._listing = listed
    with pytest.raises(AssertionError):
        desk.tick(waits("a", 4))
    problem, writes = desk.keeper.health.problem, desk.keeper.writes
    assert "cannot be created" in problem
    assert "forbidden" in problem
    with pytest.raises(AssertionError):
        desk.tick(waits("a", 4))
    assert desk.keeper.writes == writes


def test_the_status_of_the_policy_says_what_is_in_force(desk: Desk, cluster: Kubectl) -> None:
    """As written, limited, and invalid with the nearest name; written when it changed."""
    steady = [0.0]
    source = ClusterPolicySource(desk.api.get, PolicyObject("rules"), desk.folder / "last", lambda: steady[0])
    writer, capped = PolicyStatus(source, desk.api.get, desk.api.send, lambda: steady[0]), Capped()

    def status(spec: str, *, cap: bool = False) -> dict[str, Any]:
        head = "apiVersion: gpu-autopilot.io/v1alpha1\nkind: AutopilotPolicy\nmetadata: {name: rules}\n"
        cluster.done("apply", "-f", "-", stdin=f"{head}spec: {spec}\n")
        steady[0] += EVERY_S
        policy = source.current()
        desk.policy = capped.of(policy) if cap else policy
        desk.tick()
        assert desk.publisher.latest is not None
        assert writer(replace(desk.publisher.latest, policy_problem=source.problem or "")) == ""
        return dict(json.loads(cluster.done("get", "autopilotpolicy", "rules", "-o", "json"))["status"])

    found = status("{modes: {backfill: auto}}")
    (condition,) = found["conditions"]
    assert (condition["status"], condition["reason"], found["inForce"]["generation"]) == ("True", "AsWritten", 1)
    assert {"action": "backfill", "written": "auto", "inForce": "auto"} in found["actions"]
    writes = writer.writes
    assert status("{modes: {backfill: auto}}") == found
    assert writer.writes == writes
    limited = status("{modes: {backfill: auto}}", cap=True)
    (why,) = [each["why"] for each in limited["actions"] if each["action"] == "backfill"]
    assert "goes as far as recommend here" in why
    assert limited["conditions"][0]["reason"] == "Limited"
    wrong = status("{modes: {backfil: auto}}")
    (condition,) = wrong["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "Invalid")
    assert condition["message"] == "AutopilotPolicy rules: modes.backfil: no such field, did you mean backfill?"
    assert (wrong["observedGeneration"], wrong["inForce"]["generation"]) == (2, 1)
    _, row = cluster.done("get", "autopilotpolicies").splitlines()
    assert row.split()[:3] == ["rules", "False", "Invalid"]


def test_the_thread_follows_ticks_and_annotations(desk: Desk, cluster: Kubectl) -> None:
    """With the list and watch of a real cluster: an object soon after the tick, its answer soon after the next one."""
    transport = Transport(desk.accesses[0], desk.now_s)
    listing = Cluster(transport, desk.now_s, kinds=(KIND,), urgent=(KIND,), timing=Timing(watch_s=30))
    keeper, received = desk.keeper, threading.Event()
    keeper._listing, keeper.closers = listing, [listing.close]
    keeper._steady_s = time.monotonic
    keeper._approvals._wake = received.set
    listing.on_change = keeper.wake
    listing.start()
    assert listing.wait_synced(20.0)
    keeper.start()
    try:
        desk.look = lambda: None  # type: ignore[method-assign]
        desk.tick(waits("a", 4))
        name = f"recommendation/{desk.proposal}"
        cluster.done("wait", "--for=create", name, "--timeout=20s")
        cluster.done("wait", "--for=jsonpath={.status.state}=NeedsApproval", name, "--timeout=20s")
        _approve(cluster, desk.proposal)
        assert received.wait(20.0)
        assert len(desk.tick(waits("a", 4))) == 1
        cluster.done("wait", "--for=jsonpath={.status.decision.verdict}=Approved", name, "--timeout=20s")
    finally:
        keeper.close()
