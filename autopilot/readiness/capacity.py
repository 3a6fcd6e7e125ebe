"""Can nodes be asked for?"""

from __future__ import annotations

from collections.abc import Iterator

from autopilot.readiness.line import Asked, Line, Status

GROUP, VERSION = "autoscaling.x-k8s.io", "v1"


def capacity(asked: Asked) -> Iterator[Line]:
    """Whether the cluster has ProvisioningRequests; without them `request_capacity` asks for nothing."""
    answer = asked.cluster.get(f"/apis/{GROUP}")
    if answer.status == 404:
        text = "ProvisioningRequest is not defined: no nodes are asked for (request_capacity)"
        yield Line("capacity", "ProvisioningRequest", Status.SKIPPED, text)
        return
    versions = [str(each.get("version", "")) for each in answer.document.get("versions") or []]
    if VERSION in versions:
        yield Line("capacity", "ProvisioningRequest", Status.OK, f"{GROUP}/{VERSION} is served")
        return
    text = f"{GROUP} serves {', '.join(versions) or answer.reason}, not {VERSION}: no nodes are asked for"
    yield Line("capacity", "ProvisioningRequest", Status.WARNING, text, "upgrade cluster-autoscaler and its definition")
