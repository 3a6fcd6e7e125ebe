"""Dynamic resource allocation: resource.k8s.io/v1."""

from __future__ import annotations

from apiserver.kinds.base import STATUS, Kind

GROUP = "resource.k8s.io"
DRA = (
    Kind(
        GROUP, "v1", "resourceslices", "ResourceSlice", namespaced=False, generation=True,
        fields=("spec.nodeName", "spec.driver"),
    ),
    Kind(GROUP, "v1", "deviceclasses", "DeviceClass", namespaced=False, generation=True),
    Kind(GROUP, "v1", "resourceclaims", "ResourceClaim", subresources={"status": STATUS}),
    Kind(GROUP, "v1", "resourceclaimtemplates", "ResourceClaimTemplate"),
)  # fmt: skip
