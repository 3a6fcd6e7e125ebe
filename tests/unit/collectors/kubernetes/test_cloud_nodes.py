"""Nodes as clouds, autoscalers and topology discovery label them."""

from __future__ import annotations

import msgspec
import pytest

from collectors.kubernetes.nodes import facts_of
from collectors.kubernetes.wire import Node
from tests.kits import cloud_nodes, kube_objects


def _facts(labels: dict[str, str]) -> dict[str, object]:
    """What is read of a node with 8 GPUs and these labels."""
    found = kube_objects.node("n1", 8)
    found["metadata"]["labels"] = labels
    facts = facts_of(msgspec.convert(found, Node))
    return {name: getattr(facts, name) for name in facts.__slots__}


@pytest.mark.parametrize(("labels", "expected"), [
    (cloud_nodes.GKE, {"pool": "a3", "model": "H100-80GB", "spot": True, "leaf": "s1", "block": "b1",
                       "zone": "us-central1-a", "gpus": 8}),
    (cloud_nodes.GKE_PREEMPTIBLE, {"pool": "old", "model": "T4", "spot": True, "zone": "us-central1-b"}),
    (cloud_nodes.EKS, {"pool": "p5", "model": "H100-80GB", "spot": True, "island": "us-1", "leaf": "nn-3",
                       "block": "nn-2", "zone": "us-east-1a"}),
    (cloud_nodes.EKS_AUTO, {"pool": "gpu", "model": "H100-80GB", "spot": True, "gpus": 8}),
    (cloud_nodes.KARPENTER, {"pool": "gpu", "model": "A100-40GB", "spot": False, "gpus": 8}),
    (cloud_nodes.EKSCTL, {"pool": "p4d.24xlarge", "model": "A100-40GB", "spot": True}),
    (cloud_nodes.AKS, {"pool": "nd", "model": "H100-80GB", "spot": True}),
    (cloud_nodes.OKE, {"leaf": "l1", "block": "n1"}),
    (cloud_nodes.COREWEAVE, {"island": "d1", "leaf": "l1", "block": "s1"}),
    (cloud_nodes.COREWEAVE_IB, {"leaf": "l1", "block": "s1"}),
    (cloud_nodes.TOPOGRAPH_01, {"island": "nvl1", "leaf": "s1", "block": "s2"}),
    (cloud_nodes.TOPOGRAPH_05, {"leaf": "s1", "block": "s2"}),
    (cloud_nodes.TOPOGRAPH_10, {"island": "nvl1", "leaf": "s1", "block": "s2"}),
])  # fmt: skip
def test_a_node_is_known_by_the_labels_of_its_platform(labels: dict[str, str], expected: dict[str, object]) -> None:
    """Pool, model, spot and the place in the network. The leaf is the switch next to the node, whatever its label."""
    facts = _facts(labels)
    assert {name: facts[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("kind", "model"),
    [("p5en.48xlarge", "H200-141GB"), ("p3.2xlarge", "V100-16GB"), ("g5.xlarge", "A10G"), ("g6f.xlarge", "unknown")],
)
def test_a_node_group_of_eks_is_known_by_its_instance_type(kind: str, model: str) -> None:
    """Its nodes have no label for the GPU. A type with a part of a GPU stays unknown."""
    assert _facts({"node.kubernetes.io/instance-type": kind})["model"] == model
