"""A request keeps its digest, and a recommendation its id, whatever else the cluster shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autopilot.core.model.approvals import seen_of
from autopilot.core.model.codes import Code
from autopilot.core.model.identity import shape_digest
from autopilot.core.model.modes import Mode, Modes
from autopilot.core.model.records import Command, CommandKind, RejectionScope
from autopilot.core.model.snapshot import ClusterSnapshot
from tests.kits.core_world import AUTO, decide, observe, proposals
from tests.kits.dra_objects import by_template, dra_node, request, resource_slice, template, whole_gpu
from tests.kits.kube_objects import Json, node, pod
from tests.unit.collectors.kubernetes.view import Seen

GATE: dict[str, Any] = {"schedulingGates": [{"name": "gpu-autopilot.io/admission"}]}
ASKING = replace(AUTO, modes=Modes(*[Mode.APPROVE] * len(Modes.__dataclass_fields__)))


def mine(**asked: str) -> Json:
    """A pod that waits, and asks for a node with a disk."""
    return pod("mine", 4, nodeSelector=asked or {"disk": "ssd"}, **GATE)


def digest(snap: ClusterSnapshot) -> str:
    """The digest of its request."""
    return shape_digest(snap, snap.workloads.id.tolist().index("team/mine"))


TAINTED = node("z", 8, taints=[{"key": "team", "value": "a", "effect": "NoSchedule"}])
CLAIMS = [
    dra_node("d"),
    resource_slice("s", "d", [whole_gpu("d", k) for k in range(8)]),
    template("t", request(count=1)),
    pod("other", 0, **by_template("t"), **GATE),
]
OTHERS = [pod(f"o{k}", 1, nodeSelector={f"k{k}": "v"}, **GATE) for k in range(5)]


@pytest.mark.parametrize("more", [[TAINTED], CLAIMS, OTHERS], ids=["taint", "claims", "selectors"])
def test_what_others_bring_changes_no_request(more: list[Json]) -> None:
    """A taint of another node, a node of another kind, and selectors of others, in this process and in the next."""
    ssd = node("n1", 8, labels={"disk": "ssd"})
    seen = Seen(ssd, mine())
    before = digest(seen.snapshot())
    assert digest(seen.snapshot(*more)) == before
    assert digest(Seen(*more, ssd, mine()).snapshot()) == before


def test_what_its_owner_asks_for_changes_it() -> None:
    """Another selector is another request."""
    one, two = (Seen(node("n1", 8), mine(disk=disk)).snapshot() for disk in ("ssd", "hdd"))
    assert digest(one) != digest(two)


def test_a_rejection_outlives_a_taint_of_another_node() -> None:
    """The recommendation keeps its id, so it stays rejected."""
    seen = Seen(node("n1", 8, labels={"disk": "ssd"}), mine())
    first = decide(observe(seen.snapshot(), 100.0), ASKING)
    shown = proposals(first)["team/mine"]
    rejection = Command(
        CommandKind.REJECT, "ann", 110.0, shown.recommendation, 1, seen_of(shown), scope=RejectionScope.PLAN
    )
    second = decide(observe(seen.snapshot(TAINTED), 110.0, tick=1, commands=(rejection,)), ASKING, first.memory)
    again = proposals(decide(observe(seen.snapshot(), 120.0, tick=2), AUTO, second.memory))["team/mine"]
    assert again.id == shown.id
    assert not again.accepted
    assert Code.REJECTED in {each.code for each in again.verdicts}
