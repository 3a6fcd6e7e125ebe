"""Spot notices as the handlers of the clouds write them."""

from __future__ import annotations

import numpy as np
import pytest

from collectors.kubernetes.nodes import SPOT
from tests.kits.field_kit import FOLDER, Json, objects_of, play, play_objects
from tests.kits.kube_objects import EPOCH_S


@pytest.mark.parametrize("objects", ["as-written.yaml", "with-time.yaml"])
def test_work_saves_within_the_notice_of_its_node(objects: str) -> None:
    """The taint of the AWS termination handler has no time (aws/aws-node-termination-handler#160)."""
    played = play("01-spot-notice", objects, ticks=14, step_s=10.0)
    nodes = played.snapshot.nodes
    assert dict(zip(nodes.id.tolist(), (nodes.reclaim_at_s - EPOCH_S).tolist(), strict=True))["spot-a"] == 120
    evicted = played.accepted("evict", "train-0")
    assert evicted
    assert evicted[0][0] <= 60


@pytest.mark.parametrize("key", ["karpenter.sh/disrupted", "aws-node-termination-handler/spot-itn"])
def test_a_notice_counts_from_the_tick_that_sees_it(key: str) -> None:
    """It comes 100 s after our start; work of the other node stays where it is."""
    objects = objects_of(FOLDER / "01-spot-notice" / "as-written.yaml")
    (spot,) = [each for each in objects if each["metadata"]["name"] == "spot-a"]
    taint = {"key": key, "effect": "NoSchedule"}
    notice: Json = {**spot, "metadata": dict(spot["metadata"]), "spec": {"taints": [taint], "unschedulable": True}}
    before = [{**spot, "spec": {"taints": [], "unschedulable": False}}, *(each for each in objects if each is not spot)]
    played = play_objects(before, ticks=22, step_s=10.0, change={100.0: [notice]})
    (end_s,) = [at_s for at_s in played.snapshot.nodes.reclaim_at_s.tolist() if not np.isnan(at_s)]
    assert end_s == EPOCH_S + 220
    evicted = played.accepted("evict")
    assert {each.subject.name for _, each in evicted} == {"team/train-0"}
    assert 100 <= evicted[0][0] <= 160


@pytest.mark.parametrize(("bought", "ends"), [("on-demand", False), ("reserved", False), ("spot", True)])
def test_karpenter_replaces_a_node_that_no_cloud_takes_at_no_stated_time(bought: str, *, ends: bool) -> None:
    """It taints a node that it consolidates as one that is taken (kubernetes-sigs/karpenter#624): no work is stopped
    for the former, and none starts there.
    """
    objects = objects_of(FOLDER / "01-spot-notice" / "as-written.yaml")
    (spot,) = [each for each in objects if each["metadata"]["name"] == "spot-a"]
    spot["metadata"]["labels"] = {
        key: value for key, value in spot["metadata"]["labels"].items() if key not in SPOT
    } | {"karpenter.sh/capacity-type": bought}
    spot["spec"] = {"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]}
    played = play_objects(objects, ticks=14, step_s=10.0)
    assert bool(played.accepted("evict")) is ends
    assert bool(np.isfinite(played.snapshot.nodes.reclaim_at_s).any()) is ends
    assert played.snapshot.nodes.cordoned.any()
