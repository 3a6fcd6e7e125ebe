"""Services of pod groups as replicas: LeaderWorkerSets, and PodCliqueSets of Grove.

They are known by their pods alone, so no further right is needed. A group of a LeaderWorkerSet is one replica. So is a
PodGang of a PodCliqueSet, with cliques for prefill and decode: the pods of one role are a pool, a service inside the
gangs of the set (`SET~prefill`), because its tokens are judged apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from autopilot.contract.scaling import SCALE
from autopilot.contract.tree import PREFIX
from autopilot.core.model.objects import ServingRole
from collectors.kubernetes.gangs import SET_SIZE, PodFacts, declarations
from collectors.kubernetes.serving import (
    CLIQUE,
    CLIQUE_SETS,
    GROUPED,
    SCALING_GROUP,
    SCALING_INDEX,
    role_in,
    role_of,
)
from collectors.kubernetes.wire import Meta, Owner, PodTemplate, Scaled, ScaledSpec, ScaledStatus

Key = tuple[str, str]
ROLE = PREFIX + "serving-role"
POOL = "~"
"""Stands between the name of a set and the role of its pool; no name in Kubernetes has it."""


def whole_of(key: Key) -> Key | None:
    """The set of a pool; None for another service."""
    name, pool, role = key[1].partition(POOL)
    return (key[0], name) if pool and role else None


@dataclass(slots=True)
class Grouped:
    """The pods of such services, by service and uid."""

    _pods: dict[Key, dict[str, PodFacts]] = field(default_factory=lambda: defaultdict(dict))
    _keys: dict[str, tuple[Key, ...]] = field(default_factory=dict)  # by the uid of a pod

    def put(self, found: PodFacts) -> bool:
        """Take in a pod; true if it counts for such a service, or did."""
        uid, dropped = found.pod.metadata.uid, self.drop(found.pod.metadata.uid)
        if not found.service.startswith(GROUPED):
            return dropped
        keys = self._keys[uid] = _keys_of(found)
        for key in keys:
            self._pods[key][uid] = found
        return True

    def drop(self, uid: str) -> bool:
        """Forget a pod; true if it counted."""
        keys = self._keys.pop(uid, ())
        for key in keys:
            del self._pods[key][uid]
            if not self._pods[key]:
                del self._pods[key]
        return bool(keys)

    def services(self) -> dict[Key, Scaled]:
        """Each service with GPUs, as an object whose controller would undo another number of replicas."""
        found = {}
        for key, pods in self._pods.items():
            there = [each for each in pods.values() if not each.over]
            if any(each.ask.any_gpu for each in there):
                found[key] = _scaled(key, sorted(there, key=lambda each: each.pod.metadata.name))
        return found

    def by_pod(self, ids: Mapping[Key, str]) -> dict[str, str]:
        """NAMESPACE/POD -> id of its service: of its pool, if it has one."""
        return {
            f"{key[0]}/{each.pod.metadata.name}": ids[key]
            for key in sorted(self._pods, key=lambda key: POOL in key[1])
            if key in ids
            for each in self._pods[key].values()
        }


def _keys_of(found: PodFacts) -> tuple[Key, ...]:
    """The services of a pod: its set, and the pool of its role there."""
    space, set_name = found.pod.metadata.namespace, found.service
    role = _role(found) if set_name.startswith(CLIQUE_SETS) else ServingRole.WHOLE
    if role == ServingRole.WHOLE:
        return ((space, set_name),)
    return (space, set_name), (space, f"{set_name}{POOL}{role.name.lower()}")


def _role(found: PodFacts) -> ServingRole:
    """The role as declared, else by labels, else by the name of the clique or its scaling group in the set."""
    meta = found.pod.metadata
    declared = meta.note(ROLE) or meta.label(ROLE)
    if declared:
        return ServingRole.__members__.get(declared.upper(), ServingRole.WHOLE)
    said, prefix = role_of(meta), found.service.partition("/")[2] + "-"
    return said if said != ServingRole.WHOLE else role_in([meta.label(CLIQUE).removeprefix(prefix)])


def _scaled(key: Key, pods: list[PodFacts]) -> Scaled:
    """The service as it would be if one object had all its pods as its template."""
    space, (kind, _, name) = key[0], key[1].partition("/")
    pool, units = whole_of(key) is not None, defaultdict[str, list[PodFacts]](list)
    for each in pods:
        units[_instance(each) if pool else each.name].append(each)
    held = [unit for unit in units.values() if any(each.ask.any_gpu for each in unit)]
    mine = pods if pool else [each for each in pods if len(_keys_of(each)) == 1]  # a pool speaks for itself
    metas = [each.pod.metadata for each in reversed(mine)]
    labels = {name: value for meta in metas for name, value in (meta.labels or {}).items()}
    declared = declarations(*metas)
    template = Meta(namespace=space, labels=labels, annotations=declared)
    if pool:
        declared[ROLE] = key[1].partition(POOL)[2]
    meta = Meta(name, space, f"set/{space}/{key[1]}")
    meta.owner_references = [Owner(kind, name.partition(POOL)[0], "", controller=True)]
    meta.annotations = {text: value for text, value in declared.items() if text == PREFIX + SCALE} or None
    spec = next(each.pod.spec for each in pods if each.ask.any_gpu)
    ready = sum(all(each.ready for each in unit) and len(unit) >= _size(unit) for unit in held)
    return Scaled(meta, ScaledSpec(len(held), PodTemplate(template, spec)), ScaledStatus(len(held), ready))


def _instance(found: PodFacts) -> str:
    """One engine of a pool: a replica of its scaling group (engines over several nodes), else its pod."""
    meta = found.pod.metadata
    group = meta.label(SCALING_GROUP)
    return f"{group}/{meta.label(SCALING_INDEX)}" if group else meta.name


def _size(unit: Iterable[PodFacts]) -> int:
    """Stated number of pods of a group of a LeaderWorkerSet; 1 without a statement."""
    text = next((note for each in unit if (note := each.pod.metadata.note(SET_SIZE))), "")
    return int(text) if text.isdecimal() and len(text) < 7 else 1
