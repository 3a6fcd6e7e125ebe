"""What a controller may write for each engine that shares GPUs, and the manifests of what it may not."""

from __future__ import annotations

import pytest
import yaml

from autopilot.contract.sharing_engines import ENGINES, PLUGIN_CONFIG, Engine, Part, annotations_for, manifest_for
from autopilot.core.model.objects import Sharing

HALF = Part(Sharing.TIME_SLICING, 500, 40960, gpus=2, uuids=("GPU-1", "GPU-2"), node="n1", key="time-slicing-2")
MPS = Part(Sharing.MPS, 250, 20480)


def test_every_engine_has_a_row() -> None:
    """And at most one thing that is written."""
    assert set(ENGINES) == set(Engine)
    assert all(not (row.node_label and row.pod_annotation) for row in ENGINES.values())


@pytest.mark.parametrize(
    ("engine", "written"),
    [
        (Engine.DEVICE_PLUGIN, {}),
        (Engine.KAI, {}),
        (Engine.HAMI, {"nvidia.com/use-gpuuuid": "GPU-1,GPU-2"}),
        (Engine.VOLCANO, {"volcano.sh/vgpu-use-gpuuuid": "GPU-1,GPU-2"}),
        (Engine.DRA, {}),
    ],
)
def test_only_engines_that_read_pods_when_they_place_them_take_annotations(
    engine: Engine, written: dict[str, str]
) -> None:
    """KAI and DRA take nothing after the creation; without UUIDs nothing is written."""
    assert annotations_for(engine, HALF) == written
    assert annotations_for(engine, MPS) == {}


def test_manifests_are_what_the_engines_read() -> None:
    """YAML that a person applies."""
    assert manifest_for(Engine.DEVICE_PLUGIN, HALF).startswith(f"kubectl label node n1 {PLUGIN_CONFIG}=time-slicing-2")
    kai, hami, volcano, dra = (
        yaml.safe_load(manifest_for(each, HALF)) for each in (Engine.KAI, Engine.HAMI, Engine.VOLCANO, Engine.DRA)
    )
    assert kai["metadata"]["annotations"] == {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}
    assert kai["spec"] == {"schedulerName": "kai-scheduler"}
    amounts = {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 40960, "nvidia.com/gpucores": 50}
    assert hami["spec"]["containers"][0]["resources"]["limits"] == amounts
    assert hami["metadata"]["annotations"] == annotations_for(Engine.HAMI, HALF)
    assert volcano["spec"]["containers"][0]["resources"]["limits"]["volcano.sh/vgpu-cores"] == 50
    assert dra["spec"]["devices"]["config"][0]["opaque"]["parameters"]["sharing"] == {"strategy": "TimeSlicing"}
    mps = yaml.safe_load(manifest_for(Engine.DRA, MPS))["spec"]["devices"]["config"][0]["opaque"]["parameters"]
    limits = {"defaultActiveThreadPercentage": 25, "defaultPinnedDeviceMemoryLimit": "20480Mi"}
    assert mps["sharing"] == {"strategy": "MPS", "mpsConfig": limits}
    assert yaml.safe_load(manifest_for(Engine.KAI, MPS))["metadata"]["annotations"]["mps"] == "true"
