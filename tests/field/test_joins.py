"""Nodes, GPUs and pods whose sources disagree: what agrees stays, and what does not is named."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopilot.core.model.snapshot import ClusterSnapshot
from collectors.attribution import Attribution, Sighting, Sightings
from tests.kits.field_kit import FOLDER, Played, made, objects_of, play, play_objects
from tests.kits.kube_objects import node, pod
from tests.unit.collectors.kubernetes.view import Seen, held, reasons

BUSY = {"PROF_SM_ACTIVE": 0.5, "DEV_GPU_UTIL": 60, "DEV_FB_USED": 60000}


class Sees:
    """A source of sightings; `change` gives the next answer."""

    def __init__(self, *gpus: str, on: dict[str, str] | None = None, host: str = "n1") -> None:
        self.change(*gpus, on=on, host=host)

    def change(self, *gpus: str, on: dict[str, str] | None = None, host: str = "n1") -> None:
        rows = (Attribution(gpu, "team", name, 1.0, False) for gpu, name in (on or {}).items())
        self.answer = Sightings(tuple(Sighting(each, host=host) for each in gpus), tuple(rows))

    def sightings(self) -> Sightings:
        return self.answer


def _uuids(played: Played) -> list[str]:
    return [str(each) for each in played.snapshot.gpus.uuid]


def _held(shot: ClusterSnapshot, name: str) -> list[str]:
    """The GPUs that a workload holds."""
    rows = [row for row, work in enumerate(shot.placements.workload) if shot.workloads.id[work] == name]
    return [str(shot.gpus.uuid[shot.placements.gpu[row]]) for row in rows]


def test_one_lost_gpu_leaves_the_others_as_they_are() -> None:
    """The exporter names 7 of 8 from the start (NVIDIA/k8s-device-plugin#231)."""
    played = play("38-lost-gpu", "objects.yaml", "lost.yaml", ticks=6)
    assert sum(each.startswith("GPU-0000038a") for each in _uuids(played)) == 7
    assert len(_uuids(played)) == 16
    assert 0.66 <= played.ticks[-1][1].signals.real_utilization_ratio <= 0.72
    assert played.said("node-a gpus an exporter shows 7 of its 8 GPUs, and not node-a:gpu7")
    assert len(_held(played.snapshot, "team/train-a")) == 8


def test_a_gpu_that_is_lost_later_keeps_its_name() -> None:
    """The same loss while we run: the GPU keeps its name and its place, and the gap names it."""
    before = play("38-lost-gpu", "objects.yaml", "whole.yaml", ticks=2)
    played = play("38-lost-gpu", "objects.yaml", "lost-later.yaml", ticks=6)
    assert _uuids(played) == _uuids(before)
    assert played.said("shows 7 of its 8 GPUs, and not GPU-0000038a-0000-0000-0000-000000000003")
    assert not before.said("an exporter"), "the whole cluster has no such gap"


def test_a_pod_without_its_labels_keeps_its_gpu() -> None:
    """For some scrapes no GPU has pod labels (NVIDIA/dcgm-exporter#342)."""
    played = play("35-label-flicker", "objects.yaml", "gpus.yaml", ticks=6, step_s=15.0)
    for pod_name, index in (("team/p0", 3), ("team/p1", 1)):
        assert _held(played.snapshot, pod_name) == [f"GPU-00000350-0000-0000-0000-{index:012d}"]
    assert played.said("^n pods an exporter names not all GPUs of team/p0, team/p1 now")


H100 = "NVIDIA-H100-80GB-HBM3"
A100 = "NVIDIA-A100-SXM4-80GB"
GPU = "nvidia.com/gpu"
MIXED = {"nvidia.com/gpu.product": A100, "nvidia.com/gpu.count": 1, "nvidia.com/mig.strategy": "mixed"}
INVALID = {"gpus": 0, "product": f"{A100}-MIG-INVALID", "labels": {"nvidia.com/gpu.count": 8}}
STRANGE = {"labels": MIXED, "capacity": {GPU: 0, "nvidia.com/mig-9g.99gb": 2}}
STAYS = {"nvidia.com/mig.config": "all-2g.10gb", "nvidia.com/mig.config.state": "pending"}
PARTS = {"labels": {"nvidia.com/gpu.count": 2}, "capacity": {"nvidia.com/gpu-10gb": 8}}
FAILED = {"nvidia.com/mig.config": "all-3g.40gb", "nvidia.com/mig.config.state": "failed"}


@pytest.mark.parametrize(
    ("stated", "usable", "said"),
    [
        pytest.param({"gpus": 8, "product": H100, "allocatable": {GPU: 6}}, 6, "offers 6 of its 8", id="unhealthy"),
        pytest.param({"gpus": 8, "product": H100, "capacity": {GPU: 7}}, 7, "labels count 8 GPUs", id="lost at boot"),
        pytest.param({"gpus": 0, "product": H100, "labels": {"nvidia.com/gpu.count": 8}}, 0, "plugin has 0", id="down"),
        pytest.param(INVALID, 0, "their MIG geometries differ", id="single, unlike cuts"),
        pytest.param(STRANGE, 0, "2 of its MIG instances do not fit", id="a profile that its GPUs do not have"),
        pytest.param({"labels": MIXED | FAILED, "capacity": {GPU: 0}}, 0, "a change of geometry failed", id="failed"),
        pytest.param({"labels": MIXED | STAYS, "capacity": {GPU: 0}}, 0, "state 'pending'.*nvidia-mig-man", id="stays"),
        pytest.param({"gpus": 1, "product": A100, **PARTS}, 1, "offers nvidia.com/gpu-10gb beside them", id="parts"),
    ],
)
def test_gpus_that_are_missing_are_named_and_give_no_room(stated: dict[str, Any], usable: int, said: str) -> None:
    """What the plugin, the labels and the geometry of one node say differs. The node beside it counts as ever."""
    beside = {"node": "node-b", "gpus": 8, "product": H100}
    played = play_objects(made({"node": "node-a", **stated}, beside), ticks=2)
    assert played.said(f"^node-a .*{said}")
    signals = played.ticks[-1][1].signals
    assert signals.free_gpus == 8 + usable
    assert signals.capacity_gpus == len(played.snapshot.gpus.uuid) == signals.free_gpus + signals.out_of_use_gpus
    assert not played.said("^node-b")


@pytest.mark.parametrize(
    ("labels", "driver", "unlike"),
    [
        ({"nvidia.com/gpu.product": "Tesla-V100-PCIE-16GB"}, "NVIDIA GeForce GTX 1080 Ti", True),
        ({"nvidia.com/gpu.product": "NVIDIA-L40S"}, "NVIDIA L4", True),
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}, "NVIDIA A100-SXM4-40GB", True),
        ({"nvidia.com/gpu.product": "NVIDIA-GeForce-RTX-4090-SHARED"}, "NVIDIA GeForce RTX 4090", False),
        ({"cloud.google.com/gke-accelerator": "nvidia-h100-mega-80gb"}, "NVIDIA H100 80GB HBM3", False),
        ({"karpenter.k8s.aws/instance-gpu-name": "a100"}, "NVIDIA A100-SXM4-40GB", False),
        ({}, "NVIDIA L4", False),
    ],
)
@pytest.mark.parametrize("stored_s", [0.0, 15.0])
def test_gpus_of_another_model_than_the_labels_say_are_named(
    labels: dict[str, str], driver: str, stored_s: float, *, unlike: bool
) -> None:
    """Cards of two models in one machine, or a stale label (NVIDIA/k8s-device-plugin#75)."""
    objects = made({"node": "node-a", "gpus": 2, "labels": labels})
    values = {"DEV_FB_USED": 5, "DEV_GPU_UTIL": 0}
    played = play_objects(
        objects,
        {"gpus": [{"node": "node-a", "id": "75", "count": 2, "model": driver, "values": values}]},
        stored_s=stored_s,
    )
    assert played.said(f"^node-a model an exporter shows 2 of its 2 GPUs as '{driver}'") is unlike
    assert len(played.snapshot.gpus.uuid) == 2


def test_pods_on_a_node_that_is_gone_are_named() -> None:
    """The API still has the pods of a node whose object is deleted."""
    objects = made({"node": "node-a", "gpus": 8, "product": H100}, {"pod": "team/a", "at": "node-q", "gpus": 8})
    played = play_objects(objects, ticks=2)
    assert played.said("^node-q nodes pods hold GPUs on it")


@pytest.mark.parametrize("file", ["plain.yaml", "renamed.yaml"])
def test_a_wrong_label_of_replicas_leaves_the_gpu_in_use(file: str) -> None:
    """The plugin offers more than the labels say (NVIDIA/gpu-feature-discovery#76)."""
    played = play("02-timeslice-label", file)
    assert len(_uuids(played)) == 1
    assert sorted(played.held().values()) == [1, 1, 1]
    assert not played.snapshot.nodes.cordoned.any()
    assert played.said("ts-1 nvidia.com/gpu.replicas it states 1 pods for each GPU")


def test_a_count_that_the_exporter_refutes_is_not_sharing() -> None:
    """The label still counts 2 GPUs; plugin and exporter have 4: nothing is shared."""
    stale = node("n1", 4, labels={"nvidia.com/gpu.count": "2"})
    seen = Seen(stale, hardware=Sees(*(f"GPU-{k}" for k in range(4))))
    assert seen.snapshot().gpus.uuid.tolist() == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]
    assert reasons(seen.batch(), "nvidia.com/gpu.count") == [
        "n1: the label counts 2 GPUs, and its plugin and exporter 4; that counts"
    ]


def test_another_gpu_in_the_place_of_a_lost_one_takes_it() -> None:
    """A GPU is replaced: the old name goes when the exporter names as many others as the node has."""
    sees = Sees("GPU-a", "GPU-b", on={"GPU-b": "p"})
    seen = Seen(node("n1", 2), pod("p", 1, node="n1"), hardware=sees)
    seen.tables()
    sees.change("GPU-a")
    tables = seen.tables()
    assert held(tables, "team/p") == ["GPU-b"]
    sees.change("GPU-a", "GPU-c")
    assert seen.tables()[0].gpus.uuid.tolist() == ["GPU-a", "GPU-c"]


def test_more_gpus_than_the_node_states_are_named() -> None:
    """A source that still has an old GPU beside the new one: those that were there stay."""
    sees = Sees("GPU-a", "GPU-b")
    seen = Seen(node("n1", 2), hardware=sees)
    seen.tables()
    sees.change("GPU-0", "GPU-a", "GPU-b")
    assert seen.tables()[0].gpus.uuid.tolist() == ["GPU-a", "GPU-b"]
    assert reasons(seen.batch(), "gpus") == ["n1: an exporter shows 3 GPUs, and it states 2; GPU-0 does not count"]


def test_a_gpu_that_moved_to_another_node_is_not_remembered() -> None:
    """Two nodes never have the same GPU, also where one of them is silent."""
    sees = Sees("GPU-a", "GPU-b")
    seen = Seen(node("n1", 2), node("n2", 2), hardware=sees)
    assert reasons(seen.batch(), "gpus") == [
        "n2: an exporter shows 0 of its 2 GPUs, and not n2:gpu0, n2:gpu1; what these do is not known"
    ]
    sees.change("GPU-b", "GPU-c", host="n2")
    found = seen.tables()[0].gpus.uuid.tolist()
    assert len(found) == len(set(found)) == 4
    assert {"GPU-b", "GPU-c"} <= set(found)


def test_a_new_pod_gets_what_a_silent_one_does_not_hold() -> None:
    """A label that says otherwise counts more than what was known before."""
    sees = Sees("GPU-a", "GPU-b", on={"GPU-b": "p"})
    seen = Seen(node("n1", 2), pod("p", 1, node="n1"), hardware=sees)
    seen.tables()
    sees.change("GPU-a", "GPU-b", on={"GPU-b": "q"})
    tables = seen.tables(pod("q", 1, node="n1"))
    assert (held(tables, "team/q"), held(tables, "team/p")) == (["GPU-b"], ["GPU-a"])


@given(st.sets(st.tuples(st.sampled_from("ab"), st.integers(0, 7)), min_size=1, max_size=16), st.booleans())
@settings(max_examples=8, deadline=None)
def test_what_vanishes_is_named_and_leaves_the_rest(gone: set[tuple[str, int]], later: bool) -> None:
    """Any series of exporters vanish, at the start or later: each GPU that is left keeps its name, each job its GPUs,
    and each node that misses one has a gap.
    """
    gpus: list[dict[str, Any]] = [
        {"node": f"node-{each}", "id": each, "count": 8, "pod": f"team/train-{each}", "values": BUSY} for each in "ab"
    ]
    at_s = 15.0 if later else 0.0
    changes = [{"at_s": at_s, "node": f"node-{each}", "gpus": [index], "drop": True} for each, index in sorted(gone)]
    objects = objects_of(FOLDER / "38-lost-gpu" / "objects.yaml")
    played = play_objects(objects, {"gpus": gpus, "changes": changes}, ticks=3)
    left = {f"GPU-{each:0>8}-0000-0000-0000-{k:012d}" for each in "ab" for k in range(8) if (each, k) not in gone}
    assert left <= set(_uuids(played))
    assert len(_uuids(played)) == 16
    assert all(len(_held(played.snapshot, f"team/train-{each}")) == 8 for each in "ab")
    said = {each.object_id for each in played.ticks[-1][1].gaps if each.signal in {"gpus", ""}}
    assert {f"node-{each}" for each, _ in gone} <= said or len(gone) == 16
