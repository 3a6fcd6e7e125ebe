"""The annotation of a node that is offered back: set once, taken back, and nothing else of the node changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from actuators.kubernetes.actuator import KubernetesActuator
from actuators.kubernetes.upkeep import EVERY_S, OldOffers
from autopilot.contract.annotations import OFFERED
from autopilot.core.model.objects import Subject, SubjectKind
from autopilot.core.model.records import Instruction, Outcome, OutcomeKind
from autopilot.core.nodes.offer import Offer
from tests.kits.acting_kit import Acting, Identity
from tests.unit.actuators.test_node_cordon import Nodes, node_of


class OfferedNodes(Nodes):
    """Nodes, and which of them are offered."""

    def __init__(self, acting: Acting) -> None:
        super().__init__(acting)
        self.acting = acting

    def ceiled(self) -> Iterator[tuple[Identity, str]]:
        """No service has a ceiling."""
        yield from ()

    def offered(self) -> Iterator[Identity]:
        """Those with the annotation."""
        for each in self.acting.ask("GET", "/api/v1/nodes")["items"]:
            meta = each["metadata"]
            if meta.get("annotations", {}).get(OFFERED):
                yield Identity("Node", "", meta["name"], meta["uid"])


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Three nodes."""
    acting = Acting(tmp_path_factory.mktemp("offer"))
    yield acting, OfferedNodes(acting)
    acting.close()


def offer(scene: Any, number: str, *, on: bool) -> Outcome:
    """The outcome of one instruction about n1, by a new process."""
    acting, nodes = scene
    actuator = KubernetesActuator(acting.api("offer"), nodes)
    operation = Offer(on=on, reason="nothing needs it")
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


@pytest.mark.parametrize("kind", ["offer", "admit"])
def test_an_offer_ends_with_its_action(scene: Any, kind: str) -> None:
    """Once `offer_idle` does not act, its offers are taken back, also where `act_kinds` has lost the kind."""
    acting, nodes = scene
    offer(scene, f"{kind}/1", on=True)
    on = [True]
    actuator = KubernetesActuator(acting.api(kind), nodes, upkeep=(OldOffers(),))
    actuator.read_modes(lambda action: action == "offer_idle" and on[0])
    actuator.advance(acting.now_s, 1, ())
    assert [each.name for each in nodes.offered()] == ["n1"]
    on[0] = False
    actuator.advance(acting.now_s + EVERY_S, None, ())
    assert [each.name for each in nodes.offered()] == ["n1"], "the controller may not write now"
    actuator.advance(acting.now_s + EVERY_S, 1, ())
    assert not list(nodes.offered())
