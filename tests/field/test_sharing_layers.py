"""Situations of the field: layers that share or cut GPUs, and products by the names that clouds give them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    """Without the number of GPUs no part is allocated as a GPU."""
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


def _kai(**changed: Any) -> list[dict[str, Any]]:
    """The objects of the case; `changed` has the annotations of its users."""
    objects = objects_of(FOLDER / "07-kai-fraction" / "objects.yaml")
    for each in objects:
        if each["metadata"].get("annotations", {}).get("gpu-fraction"):
            each["metadata"]["annotations"] = changed or each["metadata"]["annotations"]
    return objects


def _placed(found: Played) -> list[tuple[str, int, int]]:
    """Workload, number of the GPU and thousandths of each placement."""
    shot = found.snapshot
    rows = zip(shot.placements.workload, shot.placements.gpu, shot.placements.milli, strict=True)
    return sorted((str(shot.workloads.id[work]), int(gpu), int(milli)) for work, gpu, milli in rows)


@pytest.mark.parametrize("app", ["kai-resource-reservation", "runai-reservation", "gpu-holder"])
def test_the_users_of_a_gpu_of_kai_are_its_work(app: str) -> None:
    """Half of the GPU that the reservation pod holds belongs to each user; that pod is no work and no tenant."""
    objects = _kai()
    for each in objects:
        if each["metadata"]["labels"].get("app"):
            each["metadata"]["labels"]["app"] = app
            each["metadata"]["namespace"] = app
    found = play_objects(objects, ticks=10, step_s=600.0)
    assert _placed(found) == [("alpha/infer-a", 0, 500), ("beta/infer-b", 0, 500)]
    assert (found.allocated_gpus, found.free_gpus) == (1, 1)
    assert app not in found.snapshot.names.tenants
    assert not found.said(f"{app}/")
    assert found.said("alpha/infer-a sharing .*gpu-fraction")
    assert found.snapshot.workloads.excluded.all()
    assert not _stopped(found)


def test_telemetry_of_the_reservation_pod_is_that_of_its_users() -> None:
    """The exporter names the reservation pod on the second GPU, and does not know the users."""
    values = {"DEV_GPU_UTIL": 80, "DEV_FB_USED": 40000, "DEV_FB_FREE": 41559, "DEV_POWER_USAGE": 400}
    gpus = {"node": "kai-1", "id": "7", "values": values}
    pod = "kai-resource-reservation/gpu-reservation-kai-1-x"
    spec = {"gpus": [gpus, {**gpus, "first": 1, "pod": pod}]}
    found = play_objects(_kai(), spec, ticks=4)
    assert _placed(found) == [("alpha/infer-a", 1, 500), ("beta/infer-b", 1, 500)]
    assert not found.snapshot.placements.assumed.any()


def test_the_uuid_that_kai_writes_says_which_gpu_is_shared() -> None:
    """The exporter names no pods; the reservation pod states the UUID of its GPU."""
    objects = _kai()
    uuid = "GPU-00000007-0000-0000-0000-000000000001"
    objects[1]["metadata"]["annotations"] = {"run.ai/reserve_for_gpu_index": uuid}
    gpus = {"node": "kai-1", "id": "7", "count": 2, "values": {"DEV_GPU_UTIL": 80}}
    found = play_objects(objects, {"gpus": [gpus]}, ticks=4)
    assert {gpu for _, gpu, _ in _placed(found)} == {1}
    assert not found.snapshot.placements.assumed.any()


@pytest.mark.parametrize(
    ("asked", "milli"),
    [({"gpu-memory": "20000"}, 245), ({"gpu-fraction": "0.3"}, 300), ({"gpu-fraction": "1e-6"}, 1)],
)
def test_parts_by_memory_and_by_fraction(asked: dict[str, str], milli: int) -> None:
    """MiB count against the memory that the label of the node states."""
    objects = _kai(**asked)
    objects[0]["metadata"]["labels"]["nvidia.com/gpu.memory"] = "81559"
    assert [part for _, _, part in _placed(play_objects(objects))] == [milli, milli]


@pytest.mark.parametrize(
    "asked",
    [
        {"gpu-fraction": "0.7"},
        {"gpu-fraction": "half"},
        {"gpu-fraction": "nan"},
        {"gpu-memory": "lots"},
        {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"},
    ],
)
def test_users_that_cannot_be_joined_leave_the_gpu_to_its_holder(asked: dict[str, str]) -> None:
    """Parts that are more than the GPU or no size, and groups that do not name all GPUs. A gap says so."""
    found = play_objects(_kai(**asked), ticks=10, step_s=600.0)
    assert found.held() == {"kai-resource-reservation/gpu-reservation-kai-1-x": 1}
    assert found.said("gpu-reservation-kai-1-x sharing .*left alone")
    assert found.said("alpha/infer-a sharing")
    assert found.snapshot.workloads.excluded.all()
    assert not _stopped(found)


def test_a_pod_with_parts_of_two_gpus_is_on_both() -> None:
    """It has a label for each group."""
    objects = _kai(**{"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"})
    second = json.loads(json.dumps(objects[1]).replace("g-1", "g-2").replace("kai-1-x", "kai-1-y"))
    objects[2]["metadata"]["labels"] = {"runai-gpu-group/g-1": "g-1", "runai-gpu-group/g-2": "g-2"}
    found = play_objects([*objects[:3], second])
    assert _placed(found) == [("alpha/infer-a", 0, 500), ("alpha/infer-a", 1, 500)]


def test_the_last_user_gives_the_gpu_back_to_its_holder() -> None:
    """Until KAI deletes the reservation pod the GPU is held, and then it is free."""
    objects = _kai()
    gone = [{**each, "status": {"phase": "Succeeded"}} for each in objects[2:]]
    found = play_objects(objects, ticks=4, change={30.0: gone})
    assert found.held().get("kai-resource-reservation/gpu-reservation-kai-1-x") == 1
    assert found.free_gpus == 1
    back = play_objects([*objects[:2], *gone], ticks=4, change={30.0: objects[2:]})
    assert [work for work, _, _ in _placed(back)] == ["alpha/infer-a", "beta/infer-b"]


def test_work_that_waits_for_a_part_is_not_started_here() -> None:
    """KAI alone hands out parts: the pod is shown and not proposed."""
    objects = _kai()
    for each in objects[2:]:
        del each["spec"]["nodeName"]
        each["status"] = {"phase": "Pending"}
    found = play_objects([objects[0], *objects[2:]])
    assert set(found.snapshot.workloads.id) == {"alpha/infer-a", "beta/infer-b"}
    assert found.snapshot.workloads.gpu_milli.tolist() == [500, 500]
    assert found.said("infer-a sharing .*KAI alone starts it")
    assert not found.accepted("admit")


def test_the_pods_of_hami_hold_the_gpus_that_it_names() -> None:
    """Each holds the part of memory that HAMi gave it, on the GPU with that UUID."""
    found = play("03-hami", "without-gfd.yaml")
    milli = 1000 * 8000 // 46068
    assert _placed(found) == [(f"team/svc-{n}", n % 2, milli) for n in range(6)]
    assert list(found.snapshot.gpus.uuid) == [f"GPU-aaaa0000-0000-0000-0000-00000000000{n}" for n in range(2)]
    assert not found.snapshot.placements.assumed.any()


def test_the_pods_of_volcano_hold_the_gpus_that_it_names() -> None:
    """They ask for no GPU by a resource that others know, and are work all the same; also with two containers."""
    node = {
        "node": "n-1",
        "capacity": {"volcano.sh/vgpu-number": 20},
        "annotations": {"volcano.sh/node-vgpu-register": VOLCANO.format(0, 10) + VOLCANO.format(1, 10)},
    }
    part = f"{UUID.format(1)},NVIDIA,11517,0:"
    pods = [
        {"pod": "team/a-0", "resources": {"volcano.sh/vgpu-number": 1}, "annotations": {}},
        {"pod": "team/b-0", "resources": {"volcano.sh/vgpu-number": 2}, "annotations": {}},
        {"pod": "team/c-0", "resources": {"volcano.sh/vgpu-number": 1}, "annotations": {}},
    ]
    for pod, text in zip(pods, (part, f"{part};{part}", "GPU-lost,NVIDIA"), strict=True):
        pod |= {"at": "n-1", "annotations": {"volcano.sh/vgpu-ids-new": text}}
    found = play_objects(made(node, *pods))
    assert _placed(found) == [("team/a-0", 1, 250), ("team/b-0", 1, 500)]
    assert found.said("n-1 sharing Volcano")
    assert found.snapshot.workloads.excluded.all()


@pytest.mark.parametrize(
    ("resource", "maker"),
    [("amd.com/gpu", "AMD"), ("gpu.intel.com/xe", "Intel"), ("habana.ai/gaudi", "Gaudi"), ("huawei.com/Ascend910", "")],
)
def test_accelerators_of_others_are_named(resource: str, maker: str) -> None:
    """Nodes with them are in no figure; one gap has their number."""
    found = play_objects(made({"node": "a-{n}", "capacity": {resource: 8}, "copies": 3}, {"node": "n-1", "gpus": 8}))
    assert len(found.snapshot.gpus.uuid) == 8
    assert found.said(f"sharing 3 nodes offer {resource} .*{maker}")


@pytest.mark.parametrize(
    "resource", ["nvidia.com/GH100_H100_SXM5_80GB", "nvidia.com/NVIDIA_A10-12Q", "nvidia.com/pgpu"]
)
def test_gpus_for_virtual_machines_are_named(resource: str) -> None:
    """Their nodes have no labels of feature discovery, and no GPU that is read."""
    objects = made({"node": "a-1", "capacity": {resource: 8, "nvidia.com/hostdev": 2}}, {"node": "n-1", "gpus": 8})
    assert play_objects(objects).said(f"sharing 1 nodes offer {resource} .*: a-1")
    assert not play_objects(made({"node": "a-1", "capacity": {"nvidia.com/hostdev": 2}})).said("hostdev")


def test_a_part_of_an_unknown_gpu_leaves_no_room_on_its_node() -> None:
    """The reservation pod of a group of KAI is gone, and its user runs on (kai-scheduler/KAI-Scheduler#464)."""
    user = {"pod": "team/infer", "at": "n-1", "resources": {}, "annotations": {"gpu-fraction": "0.5"}}
    user["labels"] = {"runai-gpu-group": "g-1"}
    objects = made({"node": "n-1", "gpus": 8}, {"node": "n-2", "gpus": 8}, user)
    holder = {"pod": "kai-resource-reservation/r", "at": "n-1", "labels": {"runai-gpu-group": "g-1"}}
    played = play_objects(objects, ticks=8, change={120.0: made(holder)})
    assert [each.signals.free_gpus for _, each, _ in played.ticks] == [8.0] * 4 + [15.5] * 4
    assert played.said("^n-1 sharing pods use parts of its GPUs by KAI, and which")


def test_gpus_under_an_unknown_name_are_out_of_decisions() -> None:
    """The device plugin may offer GPUs as any resource; which pods have them is then not known."""
    capacity = {"nvidia.com/gpu": 0, "nvidia.com/h100": 8, "nvidia.com/hostdev": 8}
    node = {"node": "n-1", "capacity": capacity, "product": "NVIDIA-H100-80GB-HBM3"}
    node["labels"] = {"nvidia.com/gpu.count": 8}
    found = play_objects(made(node, {"pod": "team/b-0"}))
    assert len(found.snapshot.gpus.uuid) == 8
    assert found.snapshot.gpus.healthy.all()
    assert found.snapshot.nodes.cordoned.all()
    assert found.said("n-1 sharing .*nvidia.com/h100")
    assert not found.accepted("admit")


@pytest.mark.parametrize("resource", ["nvidia.com/mig-1g.10gb", "nvidia.com/mig-1g.10gb.shared"])
def test_instances_that_pods_share_are_counted_once(resource: str) -> None:
    """Seven instances for two pods each are seven instances of one GPU, out of decisions."""
    labels = {"nvidia.com/gpu.count": 1, "nvidia.com/mig-1g.10gb.replicas": 2, "nvidia.com/mig.strategy": "mixed"}
    node = {"node": "n-1", "product": "NVIDIA-H100-80GB-HBM3", "labels": labels}
    found = play_objects(
        made(
            {**node, "capacity": {"nvidia.com/gpu": 0, resource: 14}},
            {"pod": "team/a-0", "at": "n-1", "resources": {resource: 1}},
        )
    )
    assert (len(found.snapshot.gpus.uuid), len(found.snapshot.instances.id)) == (1, 7)
    assert found.held() == {"team/a-0": 1}
    assert found.snapshot.nodes.cordoned.all()
    assert found.said("n-1 sharing time slicing of MIG")


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["g-1", "g-2", ""]), st.sampled_from(["0.5", "0.25", "0.6", "x", ""]), st.booleans()),
        max_size=5,
    ),
    st.lists(st.sampled_from(["g-1", "g-2"]), max_size=2),
)
def test_whatever_the_groups_no_gpu_is_held_twice_or_lost(users: list[tuple[str, str, bool]], held: list[str]) -> None:
    """As many GPUs are in use as reservation pods hold, at most the whole of each, and nothing is stopped."""
    pods: list[dict[str, Any]] = [
        {"pod": f"kai-resource-reservation/r-{n}", "at": "n-1", "labels": {"runai-gpu-group": group}}
        for n, group in enumerate(held)
    ]
    for n, (group, fraction, on) in enumerate(users):
        labels = {"runai-gpu-group": group} if group else {}
        pods.append(
            {"pod": f"team/u-{n}", "labels": labels, "annotations": {"gpu-fraction": fraction}, "resources": {}}
        )
        pods[-1] |= {"at": "n-1"} if on else {}
    found = play_objects(made({"node": "n-1", "gpus": 4, "product": "NVIDIA-H100-80GB-HBM3"}, *pods))
    sums: dict[int, int] = {}
    for _, gpu, milli in _placed(found):
        sums[gpu] = sums.get(gpu, 0) + milli
    assert len(sums) == len(held)
    assert all(total <= 1000 for total in sums.values())
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
    assert found.said("is an unknown product") == (model in {"H100-NEW", "A40-8Q"})


@pytest.mark.parametrize(
    ("labels", "taint", "said"),
    [
        pytest.param({"liqo.io/type": "virtual-node"}, "", "liqo.io/type=virtual-node", id="Liqo"),
        pytest.param({"type": "virtual-kubelet"}, "", "type=virtual-kubelet", id="Virtual Kubelet"),
        pytest.param(
            {}, "virtual-kubelet.io/provider", "virtual-kubelet.io/provider", id="Virtual Kubelet, by its taint"
        ),
        pytest.param(
            {}, "virtual-node.liqo.io/not-allowed", "virtual-node.liqo.io/not-allowed", id="Liqo, by its taint"
        ),
        pytest.param({"type": "virtual-kubelet", "nvidia.com/gpu.count": "8"}, "", "", id="its GPUs are discovered"),
        pytest.param({"type": "gpu-large"}, "", "", id="a machine"),
    ],
)
def test_gpus_of_virtual_nodes_are_no_capacity(labels: dict[str, str], taint: str, said: str) -> None:
    """They are those of another cluster, or of a cloud service; a gap names the node and what makes it virtual."""
    found = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    taints = [{"key": taint, "value": "x", "effect": "NoSchedule"}] if taint else []
    far = {"node": "far", "capacity": {"nvidia.com/gpu": 8}, "labels": found | labels, "taints": taints}
    near = {"node": "near", "gpus": 8, "product": "NVIDIA-H100-80GB-HBM3"}
    played = play_objects(made(near, far, {"pod": "team/runs", "at": "far"}))
    assert played.snapshot.nodes.id.tolist() == (["near"] if said else ["far", "near"])
    assert played.free_gpus == (8 if said else 15)
    assert played.said(f"sharing 1 nodes offer nvidia.com/gpu .virtual nodes, {said}.* far;") is bool(said)
