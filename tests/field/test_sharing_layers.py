"""Situations of the field: layers that share or cut GPUs, and products by the names that clouds give them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.kits.field_kit import FOLDER, Played, made, objects_of, play, play_objects

UUID = "GPU-0000000{}-0000-0000-0000-000000000000"
COMMAS = UUID + ",{},46068,100,NVIDIA-NVIDIA A40,0,true:"
VOLCANO = UUID + ",{},46068,NVIDIA-A40,true,hami-core:"


def _model(found: Played) -> str:
    return str(found.snapshot.names.gpu_models[int(found.snapshot.nodes.gpu_model[0])])


def _layer(annotations: dict[str, str], capacity: dict[str, int], labels: dict[str, Any] | None = None) -> Played:
    """A node of 20 parts with a pod on it that did nothing for long."""
    node = {"node": "n-1", "capacity": capacity, "annotations": annotations, "labels": labels or {}}
    return play_objects(made(node, {"pod": "team/a-0", "at": "n-1"}, {"pod": "team/b-0"}))


def _stopped(found: Played) -> list[str]:
    return [each.kind for _, each in found.sent if each.kind != "note"]


@pytest.mark.parametrize("objects", ["without-gfd.yaml", "with-gfd.yaml"])
def test_two_gpus_that_hami_splits_are_two_gpus(objects: str) -> None:
    """The register of HAMi counts the GPUs and names their model. The node is out of decisions, and a gap says so."""
    found = play("03-hami", objects)
    assert (len(found.snapshot.gpus.uuid), _model(found)) == (2, "A40")
    assert found.free_gpus <= 0
    assert found.allocated_gpus <= 2
    assert found.said("gpu-1 sharing HAMi")
    assert found.said("team/svc-0 sharing")
    assert found.snapshot.workloads.excluded.all()
    assert not _stopped(found)


def _json(count: int) -> str:
    each = {"count": count, "devmem": 81920, "devcore": 100, "type": "NVIDIA A100-SXM4-80GB", "health": True}
    return json.dumps([{"id": UUID.format(index), **each, "index": index} for index in range(8)])


@pytest.mark.parametrize(
    ("annotations", "capacity", "gpus", "model", "layer"),
    [
        (
            {"4pd.io/node-nvidia-register": "".join(COMMAS.format(n, 10) for n in range(2))},
            {"nvidia.com/gpu": 20},
            2,
            "A40",
            "HAMi",
        ),
        ({"hami.io/node-nvidia-register": _json(4)}, {"nvidia.com/gpu": 32}, 8, "A100-80GB", "HAMi"),
        ({"volcano.sh/node-vgpu-register": VOLCANO.format(0, 10)}, {"volcano.sh/vgpu-number": 10}, 1, "A40", "Volcano"),
    ],
)
def test_registers_of_device_plugins_count_the_gpus(
    annotations: dict[str, str], capacity: dict[str, int], gpus: int, model: str, layer: str
) -> None:
    """Older and newer forms of the register, with commas and as JSON; also where the parts have a name of their own."""
    found = _layer(annotations, capacity)
    assert (len(found.snapshot.gpus.uuid), _model(found)) == (gpus, model)
    assert found.said(f"n-1 sharing {layer}")
    assert found.snapshot.nodes.cordoned.all()
    assert found.waits().get("team/b-0")


def test_a_register_of_whole_gpus_shares_nothing() -> None:
    """With one part for each GPU HAMi hands out whole GPUs."""
    found = _layer({"hami.io/node-nvidia-register": _json(1)}, {"nvidia.com/gpu": 8})
    assert (len(found.snapshot.gpus.uuid), found.allocated_gpus) == (8, 1)
    assert not found.said("sharing")


@pytest.mark.parametrize("text", ["", "[[]]", "[1, {}]", "nonsense", "[" * 5000, ",,,:::,,,"])
def test_a_register_that_cannot_be_read_takes_the_node_out(text: str) -> None:
    """Without the number of GPUs no part is handed out as a GPU."""
    found = _layer({"hami.io/node-nvidia-register": text}, {"nvidia.com/gpu": 20})
    assert found.said("n-1 sharing HAMi .*cannot be read") == bool(text)
    assert found.snapshot.nodes.cordoned.all() == bool(text)


@pytest.mark.parametrize("resource", ["koordinator.sh/gpu-core", "aliyun.com/gpu-mem", "tencent.com/vcuda-core"])
def test_parts_of_other_layers_take_the_node_out(resource: str) -> None:
    """A pod that asks for such parts is no work here, so a GPU that looks free may be in use."""
    found = _layer({}, {"nvidia.com/gpu": 2, resource: 200})
    assert found.snapshot.nodes.cordoned.all()
    assert found.said(f"n-1 sharing .*{resource}")


def test_slices_of_gke_are_instances_of_one_gpu() -> None:
    """Seven slices of a partitioned A100 are seven instances, two of them held."""
    found = play("04-gke-sharing", "mig.yaml")
    shot = found.snapshot
    assert (len(shot.gpus.uuid), _model(found), len(shot.instances.id)) == (1, "A100-40GB", 7)
    assert {shot.names.profiles[code] for code in shot.instances.profile} == {"1g.5gb"}
    assert sorted(shot.placements.instance.tolist()) == [0, 1]


@pytest.mark.parametrize("strategy", ["time-sharing", "mps"])
def test_clients_of_gke_share_one_gpu(strategy: str) -> None:
    """Three clients of an L4 are one GPU. Two pods hold two thirds of it."""
    objects = objects_of(FOLDER / "04-gke-sharing" / "sharing.yaml")
    objects[0]["metadata"]["labels"]["cloud.google.com/gke-gpu-sharing-strategy"] = strategy
    found = play_objects(objects)
    assert (len(found.snapshot.gpus.uuid), _model(found)) == (1, "L4")
    assert found.snapshot.placements.milli.tolist() == [333, 333]


def test_partitions_that_clients_share_are_out_of_decisions() -> None:
    """Seven slices with two clients each are one GPU; what a pod holds of it is not told apart."""
    labels = {
        "cloud.google.com/gke-accelerator": "nvidia-tesla-a100",
        "cloud.google.com/gke-accelerator-count": 1,
        "cloud.google.com/gke-gpu-partition-size": "1g.5gb",
        "cloud.google.com/gke-gpu-sharing-strategy": "time-sharing",
        "cloud.google.com/gke-max-shared-clients-per-gpu": 2,
    }
    found = _layer({}, {"nvidia.com/gpu": 14}, labels)
    assert (len(found.snapshot.gpus.uuid), len(found.snapshot.instances.id)) == (1, 7)
    assert found.snapshot.nodes.cordoned.all()
    assert found.said("n-1 sharing GKE")


def test_whole_gpus_of_gke_have_the_model_of_their_label() -> None:
    """Without partitions and clients every GPU is whole."""
    found = play("04-gke-sharing", "whole.yaml")
    assert (len(found.snapshot.gpus.uuid), _model(found), found.allocated_gpus) == (8, "H100-80GB", 8)
    assert not found.said("sharing|nvidia.com/gpu.product")


@pytest.mark.parametrize("app", ["kai-resource-reservation", "runai-reservation"])
def test_the_reservation_pod_of_kai_is_named_and_left_alone(app: str) -> None:
    """It holds the GPU for pods that ask for a part of it; neither it nor they are touched."""
    objects = objects_of(FOLDER / "07-kai-fraction" / "objects.yaml")
    for each in objects:
        if each["metadata"]["labels"].get("app"):
            each["metadata"]["labels"]["app"] = app
    found = play_objects(objects, ticks=10, step_s=600.0)
    assert found.said("gpu-reservation-kai-1-x sharing .*KAI")
    assert found.said("alpha/infer-a sharing .*gpu-fraction")
    assert found.snapshot.workloads.excluded.all()
    assert found.allocated_gpus == 1
    assert not _stopped(found)


def test_products_that_are_cut_alike_have_instances() -> None:
    """Seven instances on each card of the case."""
    found = play("06-mig-products", "nodes.yaml")
    assert len(found.snapshot.instances.id) == 35
    assert not found.said("mig|nvidia.com/gpu.product")


def test_no_instances_are_invented() -> None:
    """An A100 with 64 GB is cut into sizes that are not known."""
    capacity = {"nvidia.com/gpu": 0, "nvidia.com/mig-1g.8gb": 7}
    found = play_objects(made({"node": "n-1", "gpus": 1, "product": "NVIDIA-A100-SXM-64GB", "capacity": capacity}))
    assert len(found.snapshot.instances.id) == 0
    assert found.said("n-1 mig the MIG profiles of A100-64GB are not known")


@pytest.mark.parametrize(
    ("labels", "model"),
    [
        ({"cloud.google.com/gke-accelerator": "nvidia-h100-mega-80gb"}, "H100-80GB"),
        ({"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}, "T4"),
        ({"karpenter.k8s.aws/instance-gpu-name": "a10g", "karpenter.k8s.aws/instance-gpu-count": 2}, "A10G"),
        ({"eks.amazonaws.com/instance-gpu-name": "h100", "eks.amazonaws.com/instance-gpu-memory": 81920}, "H100-80GB"),
        ({"node.kubernetes.io/instance-type": "Standard_NC48ads_A100_v4"}, "A100-80GB"),
        ({"node.kubernetes.io/instance-type": "Standard_NC8as_T4_v3"}, "T4"),
        ({"node.kubernetes.io/instance-type": "Standard_NV12ads_A10_v5"}, "unknown"),  # a sixth of a GPU
        ({"nvidia.com/gpu.product": "NVIDIA-H20", "nvidia.com/gpu.memory": 143771}, "H20-141GB"),
        ({"nvidia.com/gpu.product": "NVIDIA-H100-NEW", "nvidia.com/gpu.memory": 81559}, "H100-80GB"),
        ({"nvidia.com/gpu.product": "NVIDIA-H100-NEW"}, "H100-NEW"),
        ({"nvidia.com/gpu.product": "NVIDIA-A40-8Q", "nvidia.com/gpu.memory": 8192}, "A40-8Q"),
    ],
)
def test_models_by_the_labels_of_clouds(labels: dict[str, Any], model: str) -> None:
    """Each cloud has labels of its own. A guess is a gap."""
    found = play_objects(made({"node": "n-1", "gpus": 2, "labels": labels}))
    assert (_model(found), len(found.snapshot.gpus.uuid)) == (model, 2)
    guessed = any(value in {"h100", "NVIDIA-H100-NEW", "NVIDIA-H20"} for value in labels.values()) and len(labels) > 1
    assert found.said("is taken for") == guessed
