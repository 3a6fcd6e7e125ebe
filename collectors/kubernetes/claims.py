"""GPUs by dynamic resource allocation: ResourceSlices name those of a node, allocated ResourceClaims those of a pod."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from collectors.kubernetes.cache import Changes
from collectors.kubernetes.devices import DRIVER, Gpu, of_slices
from collectors.kubernetes.dra_wire import ResourceClaim, ResourceSlice

PODS = "pods"


@dataclass(slots=True)
class Claims:
    """Slices and claims as they are now."""

    slices: dict[str, ResourceSlice] = field(default_factory=dict)
    claims: dict[str, ResourceClaim] = field(default_factory=dict)
    nodes: dict[str, dict[str, Gpu]] = field(default_factory=dict)  # node -> device -> GPU
    held: dict[str, tuple[str, ...]] = field(default_factory=dict)  # uid of a pod -> UUIDs

    def update(self, slices: Changes, claims: Changes) -> bool:
        """Take in what changed; true where a GPU or a holder changed."""
        if not (slices.there or slices.gone or claims.there or claims.gone):
            return False
        for found in (*slices.gone, *claims.gone):
            self.slices.pop(found.metadata.uid, None)
            self.claims.pop(found.metadata.uid, None)
        for found in (*slices.there, *claims.there):
            if isinstance(found, ResourceSlice):
                self.slices[found.metadata.uid] = found
            elif isinstance(found, ResourceClaim):
                self.claims[found.metadata.uid] = found
        before = (self.nodes, self.held)
        self.nodes = of_slices(self.slices.values())
        self.held = self._held()
        return before != (self.nodes, self.held)

    @property
    def gpus(self) -> dict[str, tuple[Gpu, ...]]:
        """GPUs by node, in the order of their numbers."""
        return {
            node: tuple(
                Gpu(each.uuid, index) for index, each in enumerate(sorted(found.values(), key=lambda each: each.index))
            )
            for node, found in self.nodes.items()
        }

    def _held(self) -> dict[str, tuple[str, ...]]:
        """Pods by the claims that are reserved for them. A pool is the node of its devices."""
        found: dict[str, list[str]] = defaultdict(list)
        by_pool = {
            (each.spec.pool.name, device): gpu.uuid
            for each in self.slices.values()
            if each.spec.driver == DRIVER
            for device, gpu in self.nodes.get(each.spec.node_name or "", {}).items()
        }
        for claim in self.claims.values():
            allocation = claim.status.allocation
            results = (allocation.devices.results or ()) if allocation is not None else ()
            uuids = [
                uuid for each in results if each.driver == DRIVER and (uuid := by_pool.get((each.pool, each.device)))
            ]
            for consumer in claim.status.reserved_for or ():
                if consumer.resource == PODS and uuids:
                    found[consumer.uid] += uuids
        return {uid: tuple(sorted(uuids)) for uid, uuids in found.items()}
