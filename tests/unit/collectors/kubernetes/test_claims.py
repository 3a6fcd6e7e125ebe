"""GPUs by dynamic resource allocation."""

from __future__ import annotations

from tests.kits.kube_objects import Json, meta, node, pod
from tests.unit.collectors.kubernetes.view import Seen, held, row


def _slice(node_name: str, gpus: int, generation: int = 1, name: str = "s") -> Json:
    devices = [
        {
            "name": f"gpu-{k}",
            "attributes": {
                "uuid": {"string": f"GPU-{node_name}-{k}"},
                "index": {"int": k},
                "type": {"string": "gpu"},
            },
        }
        for k in range(gpus)
    ]
    return {
        "kind": "ResourceSlice",
        "metadata": meta(f"{name}-{node_name}"),
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": node_name,
            "pool": {"name": node_name, "generation": generation},
            "devices": devices,
        },
    }


def _claim(device: str, pod_uid: str) -> Json:
    results = [{"driver": "gpu.nvidia.com", "pool": "n1", "device": device, "request": "gpu"}]
    return {
        "kind": "ResourceClaim",
        "metadata": meta(f"claim-{device}", "team"),
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": pod_uid}],
        },
    }


def _node() -> Json:
    """A node whose GPUs are offered by a driver and not as a resource."""
    found = node("n1", 0, labels={"nvidia.com/gpu.count": ""})
    del found["status"]["capacity"]["nvidia.com/gpu"], found["status"]["allocatable"]["nvidia.com/gpu"]
    return found


def test_a_pod_holds_the_device_that_its_claim_got() -> None:
    """Slices name the GPUs, the allocated claim names that of the pod, which asks for no resource."""
    seen = Seen(_node(), _slice("n1", 2), _claim("gpu-1", "uid-team-p"), pod("p", 0, node="n1")).tables()
    assert seen[0].gpus.uuid.tolist() == ["GPU-n1-0", "GPU-n1-1"]
    assert seen[0].gpus.healthy.all()
    assert (row(seen[1], "team/p")["gpus"], held(seen, "team/p")) == (1, ["GPU-n1-1"])


def test_a_claim_that_is_released_frees_its_gpu() -> None:
    """Without its claim the pod asks for no GPU, and is no work of ours."""
    claim = _claim("gpu-0", "uid-team-p")
    view = Seen(_node(), _slice("n1", 2), claim, pod("p", 0, node="n1"))
    assert len(view.tables()[1].workloads.id) == 1
    assert len(view.tables(gone=(claim,))[1].workloads.id) == 0


def test_only_the_newest_generation_of_a_pool_counts() -> None:
    """A driver replaces its slices; the old ones may be there for a while."""
    inventory, _ = Seen(_node(), _slice("n1", 4, name="old"), _slice("n1", 2, generation=2)).tables()
    assert inventory.gpus.uuid.tolist() == ["GPU-n1-0", "GPU-n1-1"]
