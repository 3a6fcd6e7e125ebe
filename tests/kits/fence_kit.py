"""The admission policies in a cluster of the tests: the fence with its kind Epoch, and those of the fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from actuators.kubernetes.field_policy import field_policies
from apiserver.server import Server
from apiserver.users import ADMIN
from autopilot.crds.definitions import epoch_definition
from autopilot.readiness.fence import EPOCH_GROUP, EPOCH_VERSION, EPOCHS, fence_policy
from tests.kits.apiserver_kit import Asker

POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
EPOCH_PATH = f"/apis/{EPOCH_GROUP}/{EPOCH_VERSION}/namespaces/gpu-autopilot/{EPOCHS}"
STORAGE = f"{EPOCHS}.{EPOCH_GROUP}"


def install_fence(server: Server, policy: Callable[[], list[dict[str, Any]]] = fence_policy) -> None:
    """Apply what `deploy/` has for it; in force after a second."""
    ask = Asker(server)
    ask("POST", DEFINITIONS, epoch_definition())
    server.timeline.run_for(3.0)
    for path, each in zip((POLICIES, BINDINGS), policy(), strict=True):
        ask("POST", path, each)
    server.timeline.run_for(1.0)


def install_fields(server: Server, policies: Sequence[Mapping[str, Any]] = ()) -> None:
    """Apply the policies of the fields, those of `deploy/` by default; they are in force when a second has passed."""
    ask = Asker(server)
    for each in policies or field_policies():
        ask("POST", POLICIES if each["kind"].endswith("Policy") else BINDINGS, each)


def set_epoch(server: Server, epoch: int) -> None:
    """A leader with this epoch has begun its term."""
    client, spec = server.client(ADMIN, "test"), {"epoch": epoch}
    if server.store.get(STORAGE, "gpu-autopilot", "gpu-autopilot") is None:
        meta = {"name": "gpu-autopilot", "namespace": "gpu-autopilot"}
        body = {"apiVersion": f"{EPOCH_GROUP}/{EPOCH_VERSION}", "kind": "Epoch", "metadata": meta, "spec": spec}
        client.create(STORAGE, body)
    else:
        client.patch(STORAGE, "gpu-autopilot", "gpu-autopilot", {"spec": spec})
