"""Which GPU of a node has which MIG geometry: as the autopilot left it, where the node offers exactly that."""

from __future__ import annotations

import json

import pytest

from autopilot.contract.annotations import MIG_GEOMETRY
from collectors.kubernetes.devices import Gpu, counted
from collectors.kubernetes.nodes import facts_of
from collectors.kubernetes.wire import Meta, Node, NodeSpec, NodeStatus

MIXED = [{"3g.40gb": 2}, None, {"1g.10gb": 7}]
OFFERS = {"nvidia.com/gpu": "1", "nvidia.com/mig-3g.40gb": "2", "nvidia.com/mig-1g.10gb": "7"}


def gpus_of(note: object) -> tuple[Gpu, ...]:
    """The GPUs of a node with this annotation."""
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.count": "3",
        "nvidia.com/mig.strategy": "mixed",
    }
    meta = Meta(name="n1", uid="u", labels=labels, annotations={MIG_GEOMETRY: json.dumps(note)})
    node = Node(metadata=meta, spec=NodeSpec(), status=NodeStatus(capacity=OFFERS, allocatable=OFFERS))
    return counted(facts_of(node))[0]


def test_the_geometry_that_was_left_is_that_of_each_gpu() -> None:
    """Kubernetes only counts instances over the node."""
    found = gpus_of(MIXED)
    assert [each.mig for each in found] == [True, False, True]
    assert [[part.profile for part in each.parts] for each in found] == [["3g.40gb"] * 2, [], ["1g.10gb"] * 7]
    assert [each.uuid for each in found] == ["n1:gpu0", "n1:gpu1", "n1:gpu2"]


@pytest.mark.parametrize(
    "note",
    [
        [{"3g.40gb": 2}, None],
        [{"3g.40gb": 1}, None, {"1g.10gb": 7}],
        [{}, {"3g.40gb": 2}, {"1g.10gb": 7}],
        "x",
        [1, 2, 3],
    ],
    ids=["other count", "other sums", "no whole GPU", "no list", "no geometries"],
)
def test_a_note_that_the_node_contradicts_does_not_count(note: object) -> None:
    """Somebody changed the geometry since: whole GPUs come first, as without a note."""
    assert [each.mig for each in gpus_of(note)] == [False, True, True]
