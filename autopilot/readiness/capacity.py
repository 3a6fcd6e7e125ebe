"""Can nodes be asked for, and are there other clusters?"""

from __future__ import annotations

from collections.abc import Iterator

from autopilot.readiness.line import Asked, Line, Status, name_of
from autopilot.readiness.nodes import all_of

GROUP, VERSION = "autoscaling.x-k8s.io", "v1"


KUEUE = "/apis/kueue.x-k8s.io/v1beta2/admissionchecks"
CONTROLLERS = {
    "kueue.x-k8s.io/provisioning-request": "Kueue asks for the capacity of its queues itself; they are left alone",
    "kueue.x-k8s.io/multikueue": "its queues start work in other clusters; capacity.elsewhere_s names gangs for them",
}


def capacity(asked: Asked) -> Iterator[Line]:
    """ProvisioningRequests, and the checks of Kueue about capacity."""
    yield from _requests(asked)
    checks, problem = all_of(asked, KUEUE)
    for each in checks if not problem else ():
        words = CONTROLLERS.get(str((each.get("spec") or {}).get("controllerName", "")))
        if words is not None:
            yield Line("capacity", "AdmissionCheck", Status.OK, f"{name_of(each)}: {words}")


def _requests(asked: Asked) -> Iterator[Line]:
    """State of the kind in the cluster; without it `request_capacity` asks for nothing."""
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
