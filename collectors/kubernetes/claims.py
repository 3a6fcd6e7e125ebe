"""GPUs and MIG instances by dynamic resource allocation: offers of nodes, holdings of pods, and requests.

ResourceSlices list devices, allocated ResourceClaims name their pods. The request of a claim without an allocation is
read from its spec, and for pods that do not exist yet from the template of their claims.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autopilot.core.model.records import Gap
from collectors.kubernetes import kinds
from collectors.kubernetes.asks import UNCLAIMED, Claimed
from collectors.kubernetes.cache import Changes
from collectors.kubernetes.devices import Gpu
from collectors.kubernetes.dra_devices import DRIVER, Key, Taken
from collectors.kubernetes.dra_nodes import DraNodes
from collectors.kubernetes.dra_requests import wanted, wanted_by
from collectors.kubernetes.dra_wire import (
    AllocatedDevice,
    DeviceClass,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from collectors.kubernetes.unread import Unread
from collectors.kubernetes.wire import Object, Pod, PodSpec

PODS = "pods"
SIGNAL = "resourceclaims"


@dataclass(frozen=True, slots=True)
class Named:
    """GPUs by node, and the entities held by each pod, by its uid."""

    gpus: Mapping[str, tuple[Gpu, ...]]
    held: Mapping[str, tuple[str, ...]]


@dataclass(slots=True)
class Claims:
    """Slices, claims, templates and classes as they are now."""

    slices: dict[str, ResourceSlice] = field(default_factory=dict)
    claims: dict[tuple[str, str], ResourceClaim] = field(default_factory=dict)  # by namespace and name
    templates: dict[tuple[str, str], ResourceClaimTemplate] = field(default_factory=dict)
    classes: dict[str, DeviceClass] = field(default_factory=dict)
    nodes: DraNodes = field(default_factory=DraNodes)
    gpus: Mapping[str, tuple[Gpu, ...]] = field(default_factory=dict)  # by node, in the order of their numbers
    held: dict[str, tuple[str, ...]] = field(default_factory=dict)  # uid of a pod -> entities

    def update(self, drain: Callable[[kinds.Kind], Changes]) -> bool:
        """Take in the changes; true if there were any."""
        slices = _apply(self.slices, drain(kinds.SLICES), ResourceSlice, lambda each: each.metadata.uid)
        claims = _apply(self.claims, drain(kinds.CLAIMS), ResourceClaim, _name)
        asks = _apply(self.templates, drain(kinds.TEMPLATES), ResourceClaimTemplate, _name)
        asks |= _apply(self.classes, drain(kinds.CLASSES), DeviceClass, lambda each: each.metadata.name)
        if slices:
            self.nodes.read(self.slices.values())
        if slices or claims:
            self._allocate()
        return slices or claims or asks

    def named(self, ids: Mapping[str, str]) -> Named:
        """GPUs and the entities held by pods, with the exporter's ids of instances (`ids`)."""
        if not ids:
            return Named(self.gpus, self.held)
        gpus = {node: tuple(_renamed(gpu, ids) for gpu in found) for node, found in self.gpus.items()}
        return Named(gpus, {uid: tuple(ids.get(each, each) for each in found) for uid, found in self.held.items()})

    def gaps(self, source: str) -> list[Gap]:
        """Contradictions of slices and claims."""
        return [Gap(source, node, SIGNAL, reason) for node, reason in self.nodes.problems()]

    def _allocate(self) -> None:
        """Give each device to its pod."""
        self.held = {}
        having: Counter[Key] = Counter()
        used: set[Key] = set()
        by_pod: dict[str, list[Key]] = defaultdict(list)
        for claim in self.claims.values():
            keys = [(each.pool, each.device) for each in _results(claim)]
            users = [each.uid for each in claim.status.reserved_for or () if each.resource == PODS]
            having.update(keys)
            if users:
                used.update(keys)
                by_pod[users[0]] += keys
        self.nodes.allocate({key: Taken(many, key in used) for key, many in having.items()})
        self.gpus = self.nodes.gpus()
        for uid, keys in by_pod.items():
            found = (self.nodes.boards(key[0]).entities.get(key, "") for key in keys)
            self.held[uid] = tuple(sorted(each for each in found if each))

    def nodes_in_doubt(self, found: Unread) -> Iterable[str]:
        """Nodes with devices that an unreadable claim may have. A claim read before with devices holds those."""
        known = self.claims.get(_name(found))
        if known is not None and known.metadata.uid == found.metadata.uid and known.status.allocation is not None:
            return ()
        return {node for pool in found.pools for node in self.nodes.of_pool(pool)}

    # --- requests of pods -----------------------------------------------------------------

    def of_pod(self, pod: Pod) -> Claimed:
        """Devices of the claims of a pod, or their requests while they have none."""
        if not pod.spec.resource_claims:
            return UNCLAIMED
        made = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses or ()}
        total = UNCLAIMED
        for each in pod.spec.resource_claims:
            name = each.resource_claim_name or made.get(each.name)
            if each.name in made and name is None:
                continue  # the pod needs no claim for it
            claim = self.claims.get((pod.metadata.namespace, name)) if name else None
            if claim is not None:
                total += self._of_claim(claim, pod.metadata.uid)
            else:
                total += self._of_template(pod.metadata.namespace, each.resource_claim_template_name, name or "")
        return total

    def of_template(self, namespace: str, spec: PodSpec, count: int) -> Claimed:
        """Request of each of `count` equal pods of a template."""
        total = UNCLAIMED
        for each in spec.resource_claims or ():
            if each.resource_claim_name is None:
                total += self._of_template(namespace, each.resource_claim_template_name, "")
                continue
            claim = self.claims.get((namespace, each.resource_claim_name))
            asked = self._asked(claim) if claim is not None else _absent("claim", each.resource_claim_name)
            if count > 1 and (asked.gpus or asked.profiles):
                asked = Claimed(problem=f"its pods share the claim {each.resource_claim_name}")
            total += asked
        return total

    def _of_template(self, namespace: str, template: str | None, name: str) -> Claimed:
        found = self.templates.get((namespace, template or ""))
        if found is None:
            return _absent("claim template", template) if template else _absent("claim", name)
        asked = wanted(found.spec.spec, self.classes)
        return asked if not asked.problem else _unclear(asked, f"claim template {template}")

    def _asked(self, claim: ResourceClaim) -> Claimed:
        asked = wanted(claim.spec, self.classes)
        return asked if not asked.problem else _unclear(asked, f"claim {claim.metadata.name}")

    def _of_claim(self, claim: ResourceClaim, uid: str) -> Claimed:
        """Devices of a claim for a pod; its request while it has none."""
        if claim.status.allocation is None:
            return self._asked(claim)
        total = UNCLAIMED
        for each in _results(claim):
            total += self._of_device(claim, each)
        users = [each.uid for each in claim.status.reserved_for or () if each.resource == PODS]
        if (total.gpus or total.profiles) and users and (len(users) > 1 or users[0] != uid):
            problem = f"{len(users)} pods use its claim {claim.metadata.name}, and may share its devices"
            return Claimed(problem=problem) if users[0] != uid else total + Claimed(problem=problem)
        return total

    def _of_device(self, claim: ResourceClaim, each: AllocatedDevice) -> Claimed:
        """An allocated device. An unlisted device is taken as its request describes it."""
        key = (each.pool, each.device)
        offer = self.nodes.offer(each.pool)
        listed = offer.devices.get(key)
        named = f"its claim {claim.metadata.name} has device {each.device} of pool {each.pool}"
        if listed is not None:
            problem = f"{named}, which other claims have too" if key in self.nodes.boards(each.pool).unsound else ""
            return Claimed(0, ((listed.profile, 1),), problem) if listed.profile else Claimed(1, (), problem)
        reason = offer.refused.get(key)
        problem = f"{named}, and {reason}" if reason else f"{named}, which no ResourceSlice lists; check the DRA driver"
        request = next((one for one in claim.spec.devices.requests or () if one.name == each.request), None)
        asked = wanted_by(request, self.classes) if request is not None else UNCLAIMED
        one = Claimed(min(asked.gpus, 1), tuple((name, 1) for name, _ in asked.profiles))
        return Claimed(problem=problem) + one


def _renamed(gpu: Gpu, ids: Mapping[str, str]) -> Gpu:
    numbers = [ids.get(f"{gpu.uuid}/{part.gi_id}", f"/{part.gi_id}").rpartition("/")[2] for part in gpu.parts]
    parts = [replace(part, gi_id=int(number)) for part, number in zip(gpu.parts, numbers, strict=True)]
    return replace(gpu, parts=tuple(parts))


def _absent(what: str, name: str | None) -> Claimed:
    return Claimed(problem=f"its {what} {name} is not in the view")


def _unclear(asked: Claimed, where: str) -> Claimed:
    return Claimed(asked.gpus, asked.profiles, f"its {where} is not understood: {asked.problem}")


def _results(claim: ResourceClaim) -> Sequence[AllocatedDevice]:
    """GPUs and instances of a claim. A device with administrator's access is shared, and is not taken."""
    allocation = claim.status.allocation
    results = (allocation.devices.results or ()) if allocation is not None else ()
    return [each for each in results if each.driver == DRIVER and not each.admin_access]


def _name(found: Object) -> tuple[str, str]:
    return found.metadata.namespace, found.metadata.name


def _apply(kept: dict[Any, Any], changes: Changes, kind: type[Object], key: Callable[[Any], Any]) -> bool:
    """Take in changes by key; true if there were any."""
    changed = False
    for found in changes.gone:
        known = kept.get(key(found))
        if known is not None and known.metadata.uid == found.metadata.uid:
            del kept[key(found)]
            changed = True
    for found in changes.there:
        if isinstance(found, kind):
            kept[key(found)] = found
            changed = True
    return changed
