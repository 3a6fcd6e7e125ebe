"""Admission by our AdmissionCheck, on an API server with Kueue."""

from __future__ import annotations

from dataclasses import replace

from autopilot.contract.annotations import CHECK, PLACEMENT
from autopilot.core.model.records import OutcomeKind
from tests.kits.acting_kit import CHECKED, Acting, admit


def test_a_gang_starts_whole_at_its_place(acting: Acting) -> None:
    """Ready carries the nodes as one selector, and all pods run there. The effect is under way until that is seen."""
    uid = acting.waiting_job("wide", 8, pods=2)
    actuator = acting.actuator()
    outcome = actuator.apply(acting.instruction(uid, admit("n2", "n3")), acting.now_s)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.ACCEPTED, "Kueue and the scheduler start it")
    acting.run(5)
    pods = acting.pods("wide")
    assert sorted(each["spec"]["nodeName"] for each in pods) == ["n2", "n3"]
    assert {each["status"]["phase"] for each in pods} == {"Running"}
    (check,) = acting.workload("wide")["status"]["admissionChecks"]
    assert check["message"].startswith("epoch 1: 1/p/w: placed on n2 (8), n3 (8)")
    assert [name for name, _, key in acting.placed() if key.startswith(PLACEMENT)] == ["n2", "n3"]
    assert [reason for reason, _ in acting.events("wide")] == ["AdmitBegun"]
    acting.finish("wide")


def test_one_node_is_selected_by_its_hostname(acting: Acting) -> None:
    """No label of our own is needed for one node."""
    uid = acting.waiting_job("narrow", 8)
    acting.actuator().apply(acting.instruction(uid, admit("n3")), acting.now_s)
    acting.run(3)
    (pod,) = acting.pods("narrow")
    assert pod["spec"]["nodeSelector"] == {"gpu": "h100", "kubernetes.io/hostname": "n3"}
    acting.finish("narrow")


def test_a_repeated_instruction_writes_nothing(acting: Acting) -> None:
    """Neither the same process nor a new one writes the check again."""
    uid = acting.waiting_job("twice", 8)
    actuator, instruction = acting.actuator(), acting.instruction(uid, admit("n1"))
    actuator.apply(instruction, acting.now_s)
    version = acting.workload("twice")["metadata"]["resourceVersion"]
    for again in (actuator, acting.actuator()):
        assert again.apply(instruction, acting.now_s).kind == OutcomeKind.ACCEPTED
    assert acting.workload("twice")["metadata"]["resourceVersion"] == version
    acting.finish("twice")


def test_an_older_epoch_does_not_act(acting: Acting) -> None:
    """An instruction of a controller that was replaced is refused."""
    uid = acting.waiting_job("fenced", 8)
    actuator = acting.actuator()
    actuator.advance(acting.now_s, 7, ())
    outcome = actuator.apply(acting.instruction(uid, admit("n1"), fence=6), acting.now_s)
    assert outcome.kind == OutcomeKind.FAILED
    assert "epoch 7 acts already" in outcome.reason
    (check,) = acting.workload("fenced")["status"]["admissionChecks"]
    assert (check["name"], check["state"]) == (CHECK, "Pending")
    acting.finish("fenced")


def test_another_object_of_the_same_name_is_a_conflict(acting: Acting) -> None:
    """The uid of the instruction counts, and not the name."""
    uid = acting.waiting_job("reborn", 8)
    acting.finish("reborn")
    acting.waiting_job("reborn", 8)
    outcome = acting.actuator().apply(acting.instruction(uid, admit("n1")), acting.now_s)
    assert outcome.kind == OutcomeKind.CONFLICT
    acting.finish("reborn")


def test_a_contradicting_placement_is_never_written(acting: Acting) -> None:
    """A node without a label that the flavor asks for is a conflict; the Workload stays pending and alive."""
    labels = {"metadata": {"labels": {"gpu": "a100"}}}
    acting.ask("PATCH", "/api/v1/nodes/n1", labels)
    uid = acting.waiting_job("elsewhere", 8)
    outcome = acting.actuator().apply(acting.instruction(uid, admit("n1")), acting.now_s)
    assert outcome.kind == OutcomeKind.CONFLICT
    assert "node n1 does not have the label gpu=h100" in outcome.reason
    acting.ask("PATCH", "/api/v1/nodes/n1", {"metadata": {"labels": {"gpu": "h100"}}})
    acting.run(2)
    assert acting.kueue.condition("elsewhere", "Finished")[0] == ""
    acting.finish("elsewhere")


def test_a_place_that_filled_up_gives_the_quota_back(acting: Acting) -> None:
    """At the deadline the check says Retry: the reservation returns, and the decision is made again."""
    taken = acting.waiting_job("first", 8)
    acting.actuator().apply(acting.instruction(taken, admit("n1"), number="1/p/first"), acting.now_s)
    acting.run(3)
    uid = acting.waiting_job("second", 8)
    actuator, instruction = acting.actuator(), acting.instruction(uid, admit("n1"))
    actuator.apply(instruction, acting.now_s)
    acting.run(10)
    assert not any(each["spec"].get("nodeName") for each in acting.pods("second"))
    assert actuator.advance(acting.now_s, 1, [instruction]) == ()
    acting.run(60)
    (outcome,) = actuator.advance(acting.now_s, 1, [replace(instruction)])
    assert outcome.kind == OutcomeKind.CONFLICT
    assert "its reservation was given back" in outcome.reason
    acting.run(5)
    (check,) = acting.workload("second")["status"]["admissionChecks"]
    assert check["state"] == "Pending"
    for name in ("first", "second"):
        acting.finish(name)


def test_a_gang_that_has_started_in_part_is_not_taken_back(acting: Acting) -> None:
    """One of its nodes filled up: the pod that runs is left alone at the deadline, and the outcome names the rest."""
    acting.pod("squatter", 8)
    (squatter,) = acting.pods()
    full = squatter["spec"]["nodeName"]
    free = next(name for name in ("n1", "n2", "n3") if name != full)
    uid = acting.waiting_job("half", 8, 2)
    actuator, instruction = acting.actuator(), acting.instruction(uid, admit(full, free))
    actuator.apply(instruction, acting.now_s)
    acting.run(61)
    assert [bool(each["spec"].get("nodeName")) for each in acting.pods("half")].count(True) == 1
    (outcome,) = actuator.advance(acting.now_s, 1, [instruction])
    assert (outcome.kind, outcome.reason) == (OutcomeKind.FAILED, "some of its pods have not started in time")
    (check,) = acting.workload("half")["status"]["admissionChecks"]
    assert check["state"] == "Ready"
    acting.finish("half")


def test_a_gang_that_kueue_has_placed_keeps_its_place(acting: Acting) -> None:
    """Topology-aware scheduling assigned nodes: no selector of ours is added, which would contradict them."""
    levels = {"levels": [{"nodeLabel": "kubernetes.io/hostname"}]}
    acting.kueue.create("Topology", "topologies", "hosts", levels)
    acting.kueue.create(
        "ResourceFlavor", "resourceflavors", "tas", {"nodeLabels": {"gpu": "h100"}, "topologyName": "hosts"}
    )
    quota = [{"name": "cpu", "nominalQuota": "100"}, {"name": "nvidia.com/gpu", "nominalQuota": "24"}]
    groups = [{"coveredResources": ["cpu", "nvidia.com/gpu"], "flavors": [{"name": "tas", "resources": quota}]}]
    acting.kueue.queue("tas", 24, resourceGroups=groups, admissionChecksStrategy=CHECKED)
    acting.run(2)
    uid = acting.waiting_job("hosted", 8, queue="tas")
    assignment = acting.workload("hosted")["status"]["admission"]["podSetAssignments"][0]
    assert "topologyAssignment" in assignment
    acting.actuator().apply(acting.instruction(uid, admit("n3")), acting.now_s)
    acting.run(5)
    (check,) = acting.workload("hosted")["status"]["admissionChecks"]
    assert (check["message"], check.get("podSetUpdates", [])) == ("epoch 1: 1/p/w: placed by Kueue", [])
    assert [each["status"]["phase"] for each in acting.pods("hosted")] == ["Running"]
    acting.finish("hosted")
