"""A ProvisioningRequest for a gang: made once, followed, and removed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actuators.kubernetes.levers.provisioning import KUEUE_CONTROLLER
from actuators.kubernetes.upkeep import OldRequests
from autopilot.contract.annotations import EPOCH
from autopilot.core.model.records import Instruction, OutcomeKind
from autopilot.core.nodes.provision import Provision
from tests.kits.acting_kit import Acting, admit
from tests.kits.autoscaler_kit import ROOT, Autoscaler
from tests.kits.kueue_kit import JOBS

ASK = Provision(pool="h100", nodes=4, provisioning_class="best-effort-atomic-scale-up.autoscaling.x-k8s.io")


def ask(acting: Acting, uid: str, number: str = "1/p/w", **more: float) -> Instruction:
    """The instruction for a gang."""
    return acting.instruction(uid, ASK, number=number, deadline_s=acting.now_s + more.pop("within_s", 3600.0))


@pytest.fixture
def autoscaler(acting: Acting) -> Iterator[Autoscaler]:
    """The kind is defined; nothing is left afterwards."""
    found = Autoscaler(acting)
    found.install()
    yield found
    acting.run(2)  # templates go with their request
    assert not found.requests()
    assert not found.templates()


def test_without_the_kind_nothing_is_asked_for(acting: Acting) -> None:
    """The first test of the module: the definition is absent."""
    uid = acting.waiting_job("early", 8, 4)
    outcome = acting.actuator().apply(ask(acting, uid), acting.now_s)
    assert outcome.kind == OutcomeKind.CONFLICT
    assert "the cluster has no ProvisioningRequests" in outcome.reason
    OldRequests().run(acting.tools("provision"), 1, acting.now_s, [])
    acting.finish("early")


def test_a_gang_of_kueue_asks_until_it_starts(acting: Acting, autoscaler: Autoscaler) -> None:
    """One request for the gang, with the labels of its flavor; each answer is an Event; it goes when the gang runs."""
    uid = acting.waiting_job("asking", 8, 3)
    actuator, instruction = acting.actuator(), ask(acting, uid)
    assert actuator.apply(instruction, acting.now_s).kind == OutcomeKind.ACCEPTED
    (request,), (template,) = autoscaler.requests(), autoscaler.templates()
    assert request["spec"]["provisioningClassName"] == ASK.provisioning_class
    assert request["spec"]["podSets"] == [{"count": 3, "podTemplateRef": {"name": template["metadata"]["name"]}}]
    assert template["template"]["spec"]["nodeSelector"] == {"gpu": "h100"}
    for each, owner in ((request, uid), (template, request["metadata"]["uid"])):
        assert [by["uid"] for by in each["metadata"]["ownerReferences"]] == [owner]
        assert each["metadata"]["annotations"][EPOCH] == "1"
    assert actuator.advance(acting.now_s, 1, [instruction]) == ()
    autoscaler.says("Accepted", message="it will be tried")
    actuator.advance(acting.now_s, 1, [instruction])
    autoscaler.says("Accepted", "Provisioned", message="3 nodes came")
    actuator.advance(acting.now_s, 1, [instruction])
    assert actuator.advance(acting.now_s, 1, [instruction]) == ()  # it stays until the gang has started
    said = acting.events("asking")
    assert sorted(reason for reason, _ in said) == ["ProvisionAccepted", "ProvisionBegun", "ProvisionProvisioned"]
    assert "3 nodes came" in dict(said)["ProvisionProvisioned"]
    start = acting.instruction(uid, admit("n1", "n2", "n3"), number="2/p/w")
    actuator.apply(start, acting.now_s)
    actuator.advance(acting.now_s, 1, [start])  # the view shows the gang, so nobody waits for the request any more
    assert "the request is removed" in dict(acting.events("asking"))["ProvisionDone"]
    acting.run(5)
    acting.finish("asking")


def test_a_plain_job_asks_and_the_next_leader_follows(acting: Acting, autoscaler: Autoscaler) -> None:
    """The request shows its instruction. A refusal of the autoscaler ends it, and is no failure of an effect."""
    uid = acting.plain_job("plain", pods=4, suspend=True)
    instruction = ask(acting, uid, "3/p/w")
    acting.actuator().apply(instruction, acting.now_s)
    assert autoscaler.requests()[0]["spec"]["podSets"][0]["count"] == 4
    after = acting.actuator()
    assert after.advance(acting.now_s, 2, [instruction]) == ()
    assert len(autoscaler.requests()) == 1
    autoscaler.says("Accepted", "Failed", message="no machines of this type in the zone")
    (outcome,) = after.advance(acting.now_s, 2, [instruction])
    assert (outcome.kind, outcome.retryable) == (OutcomeKind.CONFLICT, False)
    assert "is Failed: no machines of this type in the zone" in outcome.reason
    acting.finish("plain")


@pytest.mark.parametrize("kind", ["CapacityRevoked", "BookingExpired"])
def test_capacity_that_is_gone_again_ends_the_request(acting: Acting, autoscaler: Autoscaler, kind: str) -> None:
    """The gang may ask again later."""
    uid = acting.plain_job("late", suspend=True)
    actuator, instruction = acting.actuator(), ask(acting, uid, f"4/{kind}")
    actuator.apply(instruction, acting.now_s)
    autoscaler.says("Accepted", "Provisioned", kind)
    (outcome,) = actuator.advance(acting.now_s, 1, [instruction])
    assert f"is {kind}" in outcome.reason
    acting.finish("late")


def test_a_request_is_removed_at_its_deadline(acting: Acting, autoscaler: Autoscaler) -> None:
    """By who follows it; one that nobody follows goes within a minute."""
    uid = acting.plain_job("slow", suspend=True)
    actuator, instruction = acting.actuator(), ask(acting, uid, "5/p/w", within_s=30.0)
    actuator.apply(instruction, acting.now_s)
    acting.run(31)
    (outcome,) = actuator.advance(acting.now_s, 1, [instruction])
    assert (outcome.kind, outcome.retryable) == (OutcomeKind.FAILED, True)
    assert "the request is removed" in outcome.reason
    acting.actuator().apply(ask(acting, uid, "6/p/w", within_s=30.0), acting.now_s)
    keep = OldRequests()
    keep.run(acting.tools("provision"), 1, acting.now_s, ["6/p/w"])
    assert len(autoscaler.requests()) == 1
    acting.run(61)
    keep.run(acting.tools("provision"), 1, acting.now_s, [])
    acting.finish("slow")


def test_an_earlier_request_gives_way_and_that_of_somebody_else_stays(acting: Acting, autoscaler: Autoscaler) -> None:
    """Only what has our label is removed."""
    uid = acting.plain_job("again", suspend=True)
    acting.actuator().apply(ask(acting, uid, "7/p/w"), acting.now_s)
    actuator, instruction = acting.actuator(), ask(acting, uid, "8/p/w")
    assert actuator.apply(instruction, acting.now_s).reason == "an earlier request is removed"
    actuator.advance(acting.now_s, 1, [instruction])
    (request,) = autoscaler.requests()
    assert "8/p/w" in request["metadata"]["annotations"]["gpu-autopilot.io/effect"]
    path = f"{ROOT}/{request['metadata']['name']}"
    bare = {"metadata": {"labels": None, "annotations": None}}
    acting.ask("PATCH", path, bare)
    (outcome,) = actuator.advance(acting.now_s, 1, [instruction])
    assert (outcome.kind, "is of somebody else" in outcome.reason) == (OutcomeKind.CONFLICT, True)
    acting.ask("DELETE", path)
    acting.finish("again")


def test_the_requests_go_with_the_job(acting: Acting, autoscaler: Autoscaler) -> None:
    """They are owned by it."""
    uid = acting.plain_job("ended", suspend=True)
    acting.actuator().apply(ask(acting, uid, "9/p/w"), acting.now_s)
    acting.ask("DELETE", f"{JOBS}/ended", propagationPolicy="Background")
    acting.run(5)


def test_where_kueue_asks_itself_nothing_is_asked_for(acting: Acting, autoscaler: Autoscaler) -> None:
    """Its check is on the queue."""
    acting.kueue.create("AdmissionCheck", "admissionchecks", "prov", {"controllerName": KUEUE_CONTROLLER})
    acting.kueue.queue("own", 64, admissionChecksStrategy={"admissionChecks": [{"name": "prov"}]})
    uid = acting.waiting_job("kueues", 8, 2, queue="own")
    outcome = acting.actuator().apply(ask(acting, uid, "10/p/w"), acting.now_s)
    assert (outcome.kind, outcome.reason) == (
        OutcomeKind.CONFLICT,
        "Kueue asks for its capacity itself (check prov)",
    )
    assert not autoscaler.requests()
    acting.finish("kueues")
