"""Cordon and taint of a condemned node: ours are taken back, and those of others stay."""

from __future__ import annotations

from typing import Any

import pytest

from actuators.kubernetes.actuator import KubernetesActuator
from autopilot.contract.annotations import CONDEMNED, CORDONED
from autopilot.core.model.objects import Subject, SubjectKind
from autopilot.core.model.records import Cause, Instruction, Outcome, OutcomeKind
from autopilot.core.recovery.cordon import Cordon
from tests.kits.acting_kit import Acting, Found, Identity

OTHER = {"key": "team", "value": "a", "effect": "NoSchedule"}


class Nodes:
    """The port `Objects` for nodes, as the view showed them first."""

    def __init__(self, acting: Acting) -> None:
        self._uids = {
            name: acting.ask("GET", f"/api/v1/nodes/{name}")["metadata"]["uid"] for name in ("n1", "n2", "n3")
        }

    def find(self, kind: str, uid: str) -> Found | None:
        """A node by its name."""
        return Found(0, (Identity("Node", "", uid, self._uids[uid]),)) if kind == "node" else None

    def __getattr__(self, _name: str) -> Any:
        """Nothing else is asked."""
        return lambda: iter(())


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Three nodes."""
    acting = Acting(tmp_path_factory.mktemp("cordon"))
    yield acting, Nodes(acting)
    acting.close()


def cordon(scene: Any, node: str, number: str, *, on: bool, reason: str = "XID 79 on GPU-3") -> Outcome:
    """The outcome of one instruction, by a new process."""
    acting, nodes = scene
    actuator = KubernetesActuator(acting.api("cordon"), nodes)
    operation = Cordon(on=on, reason=reason)
    subject = Subject(SubjectKind.NODE, node, node, 0)
    outcome = actuator.apply(Instruction(number, subject, operation, acting.now_s + 60.0, 1, "p"), acting.now_s)
    acting.run(2)
    return outcome


def node_of(scene: Any, name: str) -> Any:
    """A node now."""
    return scene[0].ask("GET", f"/api/v1/nodes/{name}")


def taints(scene: Any, name: str) -> set[str]:
    """Keys of its taints."""
    return {each["key"] for each in node_of(scene, name)["spec"].get("taints") or ()}


def test_a_condemned_node_is_closed_and_opened_again(scene: Any) -> None:
    """A taint of somebody else stays in place through both."""
    scene[0].ask("PATCH", "/api/v1/nodes/n1", {"spec": {"taints": [OTHER]}})
    assert cordon(scene, "n1", "1", on=True).kind == OutcomeKind.DONE
    assert node_of(scene, "n1")["spec"]["unschedulable"]
    assert taints(scene, "n1") >= {CONDEMNED, "team"}
    assert "XID 79 on GPU-3" in node_of(scene, "n1")["metadata"]["annotations"][CORDONED]
    assert cordon(scene, "n1", "1", on=True).reason == "the autopilot has cordoned it already"
    assert cordon(scene, "n1", "2", on=False).kind == OutcomeKind.DONE
    assert not node_of(scene, "n1")["spec"].get("unschedulable")
    assert CONDEMNED not in taints(scene, "n1")
    assert "team" in taints(scene, "n1")
    assert CORDONED not in node_of(scene, "n1")["metadata"].get("annotations", {})


def test_the_cordon_of_a_person_stays(scene: Any) -> None:
    """Only our taint is taken back; a node that we never closed is left as it is."""
    scene[0].ask("PATCH", "/api/v1/nodes/n2", {"spec": {"unschedulable": True}})
    assert "left as it is" in cordon(scene, "n2", "3", on=False).reason
    assert cordon(scene, "n2", "4", on=True).kind == OutcomeKind.DONE
    assert cordon(scene, "n2", "5", on=False).kind == OutcomeKind.DONE
    assert node_of(scene, "n2")["spec"]["unschedulable"]
    assert CONDEMNED not in taints(scene, "n2")


def test_a_node_that_a_person_opened_is_not_said_to_be_closed(scene: Any) -> None:
    """It stays open for the error that it was closed for; another error closes it again."""
    cordon(scene, "n1", "7", on=True)
    scene[0].ask("PATCH", "/api/v1/nodes/n1", {"spec": {"unschedulable": None}})
    again = cordon(scene, "n1", "8", on=True)
    assert (again.kind, again.cause) == (OutcomeKind.CONFLICT, Cause.CHANGED)
    assert "somebody has uncordoned it" in again.reason
    assert not node_of(scene, "n1")["spec"].get("unschedulable")
    assert cordon(scene, "n1", "9", on=True, reason="XID 151 on GPU-0").kind == OutcomeKind.DONE
    assert node_of(scene, "n1")["spec"]["unschedulable"]
    assert cordon(scene, "n1", "10", on=False).kind == OutcomeKind.DONE
    assert not taints(scene, "n1") & {CONDEMNED}


def test_a_node_that_was_replaced_is_left_alone(scene: Any) -> None:
    """The uid of the view counts, and not the name."""
    scene[0].ask("DELETE", "/api/v1/nodes/n3")
    scene[0].add_node("n3")
    scene[0].run(1)
    assert cordon(scene, "n3", "6", on=True).kind == OutcomeKind.CONFLICT
    assert not node_of(scene, "n3")["spec"].get("unschedulable")
