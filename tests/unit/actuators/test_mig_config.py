"""MIG geometry through the label of NVIDIA's MIG manager, on an API server with that manager."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import pytest

from actuators.kubernetes.actuator import KubernetesActuator
from actuators.kubernetes.levers.mig_config import CONFIG_MAP, STUCK_S
from actuators.kubernetes.levers.mig_record import Record, unclaimed
from actuators.kubernetes.levers.node_record import SPREAD_S
from actuators.kubernetes.mig_node import CONFIG, STATE
from actuators.kubernetes.upkeep import GONE_S, AbandonedRecuts
from apiserver.actors.mig_manager import CLIENTS, PAUSED
from autopilot.contract.annotations import MIG_GEOMETRY
from autopilot.core.model.records import Cause, Instruction, OutcomeKind
from tests.kits.mig_kit import HALVES, SMALL, Scene


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One cluster; each test has a node of its own."""
    found = Scene(tmp_path_factory.mktemp("mig"))
    yield found
    found.close()


def begun(scene: Scene, node: str, **more: Any) -> tuple[KubernetesActuator, Instruction]:
    """A change up to the moment at which the manager works on it."""
    actuator, instruction = scene.actuator(), scene.recut(node, **more)
    assert actuator.apply(instruction, scene.now_s).kind == OutcomeKind.ACCEPTED
    scene.run(SPREAD_S)
    assert actuator.advance(scene.now_s, 1, [instruction]) == ()
    return actuator, instruction


def test_a_gpu_is_cut_and_the_other_one_keeps_its_geometry(scene: Scene) -> None:
    """Cordon, wait for the file to spread, label without the old state, follow, uncordon."""
    scene.add_node("n1")
    actuator, instruction = scene.actuator(), scene.recut("n1")
    outcome = actuator.apply(instruction, scene.now_s)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.ACCEPTED, "its node is cordoned")
    assert scene.node("n1")["spec"]["unschedulable"]
    assert scene.labels("n1")[CONFIG] == "small"
    scene.run(SPREAD_S)
    actuator.advance(scene.now_s, 1, [instruction])
    labels = scene.labels("n1")
    assert labels[CONFIG].startswith("gpu-autopilot-")
    assert labels.get(STATE) != "success"
    (ended,) = scene.follow(actuator, instruction)
    assert (ended.kind, ended.reason) == (OutcomeKind.DONE, "it is 2 x 3g.40gb")
    assert scene.offers("n1") == {"nvidia.com/mig-3g.40gb": "2", "nvidia.com/mig-1g.10gb": "7"}
    assert scene.is_open("n1")
    note = scene.node("n1")["metadata"]["annotations"][MIG_GEOMETRY]
    assert json.loads(note) == [{"3g.40gb": 2}, {"1g.10gb": 7}]
    assert actuator.apply(scene.recut("n1"), scene.now_s) == ended


def test_a_gpu_leaves_mig_mode_and_enters_it_again(scene: Scene) -> None:
    """Its entry says that MIG is off for it; the node then offers it as a whole GPU, and the other GPU stays cut."""
    scene.add_node("whole")
    actuator, instruction = begun(scene, "whole", after=None)
    (ended,) = scene.follow(actuator, instruction)
    assert (ended.kind, ended.reason) == (OutcomeKind.DONE, "it is not in MIG mode")
    assert scene.offers("whole") == {"nvidia.com/gpu": "1", "nvidia.com/mig-1g.10gb": "7"}
    note = scene.node("whole")["metadata"]["annotations"][MIG_GEOMETRY]
    assert json.loads(note) == [None, {"1g.10gb": 7}]
    again = replace(scene.recut("whole", before=None, after=SMALL), id="2/p/whole:gpu0")
    assert actuator.apply(again, scene.now_s).kind == OutcomeKind.ACCEPTED
    (ended,) = scene.follow(actuator, again)
    assert (ended.kind, ended.reason) == (OutcomeKind.DONE, "it is 7 x 1g.10gb")
    assert scene.offers("whole") == {"nvidia.com/mig-1g.10gb": "14"}


def test_two_gpus_of_a_node_change_together(scene: Scene) -> None:
    """Instructions of one tick are one change of the label."""
    scene.add_node("n2")
    actuator = scene.actuator()
    both = [scene.recut("n2"), scene.recut("n2", 1, after=(("7g.80gb", 0),))]
    assert [actuator.apply(each, scene.now_s).kind for each in both] == [OutcomeKind.ACCEPTED] * 2
    ended = scene.follow(actuator, *both)
    assert [each.kind for each in ended] == [OutcomeKind.DONE] * 2
    assert scene.offers("n2") == {"nvidia.com/mig-3g.40gb": "2", "nvidia.com/mig-7g.80gb": "1"}
    assert scene.is_open("n2")


def test_work_is_never_cut_away(scene: Scene) -> None:
    """While a pod holds an instance the label is not set; at the deadline the node is as before."""
    scene.add_node("n3")
    scene.pod("user", "n3", {"nvidia.com/mig-1g.10gb": "1"})
    actuator, instruction = begun(scene, "n3")
    (ended,) = scene.follow(actuator, instruction)
    assert ended.kind == OutcomeKind.FAILED
    assert ended.reason == "not done in time: 1 pods hold GPUs of its node, first user; nothing was changed"
    assert scene.labels("n3")[CONFIG] == "small"
    assert scene.labels("n3")[STATE] == "success"
    assert scene.is_open("n3")


def test_a_failed_change_goes_back_and_brings_the_clients_back(scene: Scene) -> None:
    """After an earlier success the manager leaves them paused; another value makes it resume them."""
    scene.add_node("n4")
    actuator, first = begun(scene, "n4")
    assert scene.follow(actuator, first)[0].kind == OutcomeKind.DONE
    scene.options.apply_fails.add("n4")
    second = scene.recut("n4", before=HALVES, after=SMALL)
    actuator = scene.actuator()
    actuator.apply(second, scene.now_s)
    scene.run(SPREAD_S)
    actuator.advance(scene.now_s, 1, [second])
    scene.run(30)
    assert scene.labels("n4")[STATE] == "failed"
    assert PAUSED in scene.labels("n4").values()
    scene.options.apply_fails.clear()
    (ended,) = actuator.advance(scene.now_s, 1, [second])
    assert ended.kind == OutcomeKind.FAILED
    assert ended.reason.startswith(
        "the MIG manager reports that it failed; its node is asked to return to gpu-autopilot-"
    )
    scene.run(60)
    assert scene.labels("n4")[STATE] == "success"
    assert PAUSED not in scene.labels("n4").values()
    assert scene.is_open("n4")


def test_pending_that_never_ends_is_seen_as_stuck(scene: Scene) -> None:
    """A client that does not go: the manager gives up without a word. Another value repairs it."""
    scene.add_node("n5")
    scene.pod("plugin", "n5", {}, app=CLIENTS["device-plugin"])
    actuator, instruction = begun(scene, "n5")
    scene.run(STUCK_S)
    assert scene.labels("n5")[STATE] == "pending"
    (ended,) = scene.follow(actuator, instruction)
    assert ended.kind == OutcomeKind.FAILED
    assert "the MIG manager is stuck" in ended.reason
    assert scene.labels("n5")[CONFIG] == "small"
    assert PAUSED not in scene.labels("n5").values()
    scene.run(5)
    assert scene.labels("n5")[STATE] == "success"


def test_a_success_without_effect_is_not_believed(scene: Scene) -> None:
    """What the node offers is compared with what was asked for."""
    scene.add_node("n6")
    actuator, instruction = begun(scene, "n6")
    scene.run(12)
    amounts = {"nvidia.com/mig-3g.40gb": "0", "nvidia.com/mig-1g.10gb": "14"}
    with scene.running.clock.lock:
        scene.client.patch("nodes", "", "n6", {"status": {"capacity": amounts, "allocatable": amounts}}, "status")
    assert scene.labels("n6")[STATE] == "success"
    (ended,) = scene.follow(actuator, instruction)
    assert ended.kind == OutcomeKind.FAILED
    assert "success, but the node offers" in ended.reason
    assert scene.labels("n6")[CONFIG] == "small"


def test_a_node_that_reboots_is_waited_for(scene: Scene) -> None:
    """The mode changes only with the reboot, which takes minutes."""
    scene.add_node("n7")
    scene.options.mode_fails.add("n7")
    actuator, instruction = begun(scene, "n7", after=None)
    scene.run(30)
    assert scene.labels("n7")[STATE] == "rebooting"
    assert actuator.advance(scene.now_s, 1, [instruction]) == ()
    assert scene.follow(actuator, instruction)[0].kind == OutcomeKind.DONE
    assert scene.offers("n7") == {"nvidia.com/gpu": "1", "nvidia.com/mig-1g.10gb": "7"}


def test_another_geometry_than_the_decision_saw_is_a_conflict(scene: Scene) -> None:
    """Nothing is written; the node stays open."""
    scene.add_node("n8")
    version = scene.node("n8")["metadata"]["resourceVersion"]
    outcome = scene.actuator().apply(scene.recut("n8", before=HALVES, after=(("7g.80gb", 0),)), scene.now_s)
    assert outcome.kind == OutcomeKind.CONFLICT
    assert "GPU 0 of node n8 is 7 x 1g.10gb, not 2 x 3g.40gb" in outcome.reason
    assert scene.node("n8")["metadata"]["resourceVersion"] == version


def test_a_value_of_somebody_else_wins(scene: Scene) -> None:
    """It is left as it is, and our cordon is removed."""
    scene.add_node("n9")
    actuator, instruction = begun(scene, "n9")
    scene.label("n9", config="all-disabled", state=None)
    (ended,) = actuator.advance(scene.now_s, 1, [instruction])
    assert ended.kind == OutcomeKind.CONFLICT
    assert "by somebody else" in ended.reason
    assert scene.labels("n9")[CONFIG] == "all-disabled"
    assert scene.is_open("n9")


def test_the_cordon_of_a_person_stays(scene: Scene) -> None:
    """Only what we set is removed."""
    scene.add_node("n10", unschedulable=True)
    actuator, instruction = begun(scene, "n10")
    assert scene.follow(actuator, instruction)[0].kind == OutcomeKind.DONE
    assert scene.node("n10")["spec"]["unschedulable"]


def test_a_new_process_goes_on_with_the_change(scene: Scene) -> None:
    """The annotation of the node says how far it is."""
    scene.add_node("n11")
    _, instruction = begun(scene, "n11")
    value = scene.labels("n11")[CONFIG]
    again = scene.actuator()
    assert again.apply(instruction, scene.now_s).kind == OutcomeKind.ACCEPTED
    assert scene.labels("n11")[CONFIG] == value
    assert scene.follow(again, instruction)[0].kind == OutcomeKind.DONE


def test_a_node_whose_change_was_abandoned_takes_work_again(scene: Scene) -> None:
    """Its controller stopped for good under way; the next one does not know the instruction. A later change begins."""
    scene.add_node("n20")
    _, instruction = begun(scene, "n20")
    before = scene.node("n20")["metadata"]["labels"][CONFIG]
    keep, tools = AbandonedRecuts(), scene.tools()
    scene.run(instruction.deadline_s + GONE_S - scene.now_s - 60.0)
    scene.label("n20", state="pending")
    keep.run(tools, 1, scene.now_s, ())
    assert not scene.is_open("n20"), "its time is not over"
    scene.run(60.0)
    keep.run(tools, 1, scene.now_s, (instruction.id,))
    assert not scene.is_open("n20"), "an instruction still stands for it"
    scene.run(60.0)
    keep.run(tools, 1, scene.now_s, ())
    assert scene.is_open("n20")
    assert scene.labels("n20")[CONFIG] != before


def test_a_change_that_has_come_about_is_finished_and_never_reverted(scene: Scene) -> None:
    """The view may show the new geometry before the effect has ended; then the controller waits for it no more."""
    for node, claims in (("n22", "a later controller"), ("n23", "the same process")):
        scene.add_node(node)
        actuator, _ = begun(scene, node, after=None)
        asked = scene.labels(node)[CONFIG]
        scene.run(60.0)
        assert scene.labels(node)[STATE] == "success"
        assert not scene.is_open(node), claims
        if claims == "the same process":
            assert actuator.advance(scene.now_s, 1, ()) == ()
        else:
            AbandonedRecuts().run(scene.tools(), 1, scene.now_s, ())
        assert scene.is_open(node), claims
        assert scene.labels(node)[CONFIG] == asked
        assert json.loads(scene.node(node)["metadata"]["annotations"][MIG_GEOMETRY]) == [None, {"1g.10gb": 7}]


def test_a_record_that_somebody_edited_is_no_record() -> None:
    """Other types, missing fields and other texts: the node is left to its person, and no tick fails."""
    known = Record("i", "recut", "mig-config", "set", 1.0, 1, 0.0, "c", "b", cordoned=True, gpus={"0": "i"})
    record = asdict(known)
    assert unclaimed(json.dumps(record), ()) == known
    assert unclaimed(json.dumps(record), ("i",)) is None
    for broken in ({"deadline": "soon"}, {"gpus": ["i"]}, {"lever": "unsuspend"}, {"at": None}):
        assert unclaimed(json.dumps({**record, **broken}), ()) is None
    for text in ("", "[]", "null", "{", "7"):
        assert unclaimed(text, ()) is None


def test_a_new_process_takes_back_what_is_late(scene: Scene) -> None:
    """The deadline passed while no controller was there: the node is open again, and the outcome says so."""
    scene.add_node("n21")
    _, instruction = begun(scene, "n21")
    scene.run(instruction.deadline_s - scene.now_s)
    scene.label("n21", state="pending")
    (outcome,) = scene.actuator().advance(scene.now_s, 1, [instruction])
    assert outcome.kind == OutcomeKind.FAILED
    assert "is asked to return" in outcome.reason
    assert scene.is_open("n21")


def test_a_node_that_was_replaced_is_left_alone(scene: Scene) -> None:
    """The uid of the view counts, and not the name."""
    scene.add_node("n12")
    actuator, instruction = begun(scene, "n12")
    with scene.running.clock.lock:
        scene.client.delete("nodes", "", "n12")
    scene.add_node("n12")
    (ended,) = actuator.advance(scene.now_s, 1, [instruction])
    assert ended.kind == OutcomeKind.CONFLICT
    assert scene.labels("n12")[CONFIG] == "small"


def test_a_cluster_that_is_not_prepared_is_told_what_to_set(scene: Scene) -> None:
    """Another ConfigMap, another strategy, another scope: one message each, and nothing is written."""
    scene.add_node("n13")
    actuator = scene.actuator()
    scoped = actuator.apply(scene.recut("n13", scope="instance"), scene.now_s)
    assert "must state the scope node for this node" in scoped.reason
    scene.label("n13", **{"nvidia.com/mig.strategy": "single"})
    assert "to mixed" in scene.actuator().apply(scene.recut("n13"), scene.now_s).reason
    scene.label("n13", **{"nvidia.com/mig.strategy": "mixed"})
    named = {"spec": {"migManager": {"config": {"name": "default-mig-parted-config"}}}}
    back = {"spec": {"migManager": {"config": {"name": CONFIG_MAP}}}}
    for patch in (named, back):
        with scene.running.clock.lock:
            scene.client.patch("clusterpolicies.nvidia.com", "", "cluster-policy", patch)
        if patch is named:
            outcome = scene.actuator().apply(scene.recut("n13"), scene.now_s)
            assert outcome.kind == OutcomeKind.FAILED
            assert f"set spec.migManager.config.name to {CONFIG_MAP}" in outcome.reason
    assert scene.is_open("n13")


def test_a_node_whose_gpus_are_allocated_by_claims_is_not_cut(scene: Scene) -> None:
    """With dynamic resource allocation the driver makes the instances; the reason says so, and nothing is written."""
    scene.add_node("n17")
    with scene.running.clock.lock:
        amounts: dict[str, str | None] = dict.fromkeys(("nvidia.com/gpu", "nvidia.com/mig-1g.10gb"))
        change = {"status": {"capacity": amounts, "allocatable": amounts}}
        scene.client.patch("nodes", "", "n17", change, subresource="status")
    scene.run(1)
    before = scene.node("n17")["metadata"]["resourceVersion"]
    outcome = scene.actuator().apply(scene.recut("n17"), scene.now_s)
    assert (outcome.kind, outcome.cause) == (OutcomeKind.FAILED, Cause.CONFIG)
    assert "allocated by claims (DRA)" in outcome.reason
    assert scene.node("n17")["metadata"]["resourceVersion"] == before


def test_a_configuration_that_the_file_lacks_is_named(scene: Scene) -> None:
    """The geometry of the other GPUs would be unknown."""
    scene.add_node("n14")
    scene.label("n14", config="of-somebody", state=None)
    scene.run(2)
    assert scene.labels("n14")[STATE] == "failed"
    outcome = scene.actuator().apply(scene.recut("n14"), scene.now_s)
    assert outcome.kind == OutcomeKind.CONFLICT
    assert "is failed, not success" in outcome.reason
    scene.label("n14", state="success")
    outcome = scene.actuator().apply(scene.recut("n14"), scene.now_s)
    assert "config.yaml has no entry 'of-somebody'" in outcome.reason
