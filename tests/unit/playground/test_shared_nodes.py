"""Nodes of the playground that are turned to sharing by their label, and two Jobs on one GPU."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.world import build_world
from autopilot.contract.sharing_engines import PLUGIN_CONFIG
from autopilot.core.model.objects import Sharing
from autopilot.playground.stage import Stage, open_stage
from tests.kits.playground_kit import START, found_until, job, person

SCENARIO = """
name: small
seed: 1
horizon: 2h
cluster:
  pools:
    - {name: h100, nodes: 1, gpus_per_node: 2, gpu_model: H100-80GB, sharing_offers: [time-slicing-4, mps-2]}
  queues:
    - {name: vision, guarantee: {H100-80GB: 2}}
jobs:
  groups:
    - {kind: small-training, count: 1, tenants: [vision], gpus: [1], duration: 10m, from: 110m, to: 2h}
"""


class Turning:
    """One node of two GPUs, nothing on it."""

    def __init__(self, folder: Any, **more: Any) -> None:
        text = yaml.safe_load(SCENARIO)
        path = folder / "small.yaml"
        path.write_text(yaml.safe_dump(text), "utf-8")
        self.stage: Stage = open_stage(build_world(SimulateOptions(scenario=str(path))), start=START, **more)
        self.client, self.name = person(self.stage), self.stage.projection.nodes.names[0]

    def label(self, value: str | None) -> None:
        """As a person or the lever sets it."""
        self.client.patch("nodes", "", self.name, {"metadata": {"labels": {PLUGIN_CONFIG: value}}})
        self.run(1.0)

    def run(self, for_s: float) -> None:
        """Let time pass; API and world agree at every instant."""
        assert found_until(self.stage, self.stage.clock.virtual_s + for_s) == []

    @property
    def seen(self) -> tuple[str, str, str, bool]:
        """Offered GPUs, replicas, strategy, and whether the product says that they are shared."""
        node = self.client.get("nodes", "", self.name)
        assert node is not None
        labels = node["metadata"]["labels"]
        found = node["status"]["allocatable"]["nvidia.com/gpu"], labels["nvidia.com/gpu.replicas"]
        return *found, labels["nvidia.com/gpu.sharing-strategy"], labels["nvidia.com/gpu.product"].endswith("-SHARED")


def test_a_node_is_turned_by_its_label_and_back(tmp_path: Any) -> None:
    """It offers no GPU while its plugin starts anew; a missing key changes nothing."""
    turning = Turning(tmp_path)
    assert turning.seen == ("2", "1", "none", False)
    turning.label("time-slicing-4")
    assert turning.seen == ("0", "1", "none", False)
    turning.run(40)
    assert turning.seen == ("8", "4", "time-slicing", True)
    turning.label("none-such")
    turning.run(40)
    assert turning.seen == ("8", "4", "time-slicing", True)
    turning.label("mps-2")
    turning.label(None)
    turning.run(80)
    assert turning.seen == ("2", "1", "none", False)


@pytest.mark.parametrize("gpus", [1, 2])
def test_jobs_share_the_gpus_of_a_turned_node(tmp_path: Any, gpus: int) -> None:
    """Shares of one Job are of different GPUs; a node with pods on it is not turned."""
    turning = Turning(tmp_path, acts=True, gate=False, without=("vision",))
    turning.label("time-slicing-4")
    turning.run(40)
    assert turning.stage.cluster.sharings.kind == [Sharing.TIME_SLICING]
    for number in range(3):
        turning.client.create("jobs.batch", job(f"note-{number}", gpus=gpus))
        turning.run(5)
    split = turning.stage.cluster.hardware.split
    assert sorted(len(each) for each in split.on.values()) == ([1, 2] if gpus == 1 else [3, 3])
    turning.label(None)
    turning.run(40)
    assert turning.seen[:2] == ("8", "4")
