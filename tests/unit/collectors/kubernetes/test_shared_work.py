"""Work that may share its GPUs, and work on shared GPUs."""

from __future__ import annotations

from autopilot.core.model.objects import Share, Trust
from tests.kits.kube_objects import job, node, pod
from tests.unit.collectors.kubernetes.view import Seen, row


def test_trust_share_and_image_are_columns() -> None:
    """The image is that of the container with the GPU, as its spec names it: a waiting pod has no digest."""
    told = {"gpu-autopilot.io/trust": "across-tenants", "gpu-autopilot.io/share": "pair"}
    asked = {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}
    containers = [{"name": "log", "image": "log:2"}, {"name": "main", "image": "ghcr.io/ann/train", "resources": asked}]
    objects = [
        pod("told", annotations=told, containers=containers),
        pod("note", node="n1", annotations={"gpu-autopilot.io/slo-class": "interactive"}),
        job("job", 1, annotations=told),
    ]
    _, work = Seen(node("n1"), *objects).tables()
    found = {name: [row(work, f"team/{name}")[key] for key in ("trust", "share", "image")] for name in SHARED}
    assert found == SHARED


SHARED: dict[str, list[object]] = {
    "told": [Trust.ACROSS, Share.PAIR, "ghcr.io/ann/train:latest"],
    "note": [Trust.UNTRUSTED, Share.DEV, ""],
    "job": [Trust.ACROSS, Share.PAIR, ""],
}
