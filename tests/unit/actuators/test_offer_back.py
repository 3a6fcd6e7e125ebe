"""The annotation of a node that is offered back: set once, taken back, and nothing else of the node changes."""

from __future__ import annotations

from typing import Any

import pytest

from actuators.kubernetes.actuator import KubernetesActuator
from actuators.kubernetes.api import Api
from autopilot.contract.annotations import OFFERED
from autopilot.core.model.objects import Subject, SubjectKind
from autopilot.core.model.operations import OfferOperation
from autopilot.core.model.records import Instruction, Outcome, OutcomeKind
from tests.kits.acting_kit import Acting
from tests.unit.actuators.test_node_cordon import Nodes, node_of


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Three nodes."""
    acting = Acting(tmp_path_factory.mktemp("offer"))
    yield acting, Nodes(acting)
    acting.close()


def offer(scene: Any, number: str, *, on: bool) -> Outcome:
    """The outcome of one instruction about n1, by a new process."""
    acting, nodes = scene
    actuator = KubernetesActuator(Api(acting.rights.access("offer")), nodes)
    operation = OfferOperation(on=on, reason="nothing needs it")
    subject = Subject(SubjectKind.NODE, "n1", "n1", 0)
    return actuator.apply(Instruction(number, subject, operation, acting.now_s + 60.0, 1, "p"), acting.now_s)


def test_an_offer_is_an_annotation_and_is_taken_back(scene: Any) -> None:
    """Its spec stays as it is."""
    before = node_of(scene, "n1")["spec"]
    assert offer(scene, "1", on=True).kind == OutcomeKind.DONE
    stamp = node_of(scene, "n1")["metadata"]["annotations"][OFFERED]
    assert stamp.endswith("Z")
    assert offer(scene, "2", on=True).reason == "it is offered already"
    assert node_of(scene, "n1")["metadata"]["annotations"][OFFERED] == stamp
    assert offer(scene, "3", on=False).kind == OutcomeKind.DONE
    assert OFFERED not in node_of(scene, "n1")["metadata"]["annotations"]
    assert offer(scene, "4", on=False).reason == "it is not offered"
    assert node_of(scene, "n1")["spec"] == before
