"""Objects that lead requests to pods: Services, routes of the Gateway API, and InferencePools.

A headless Service, or one owned by a batch kind, is for rendezvous: it counts only if a route leads to it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from collectors.kubernetes import kinds
from collectors.kubernetes.cache import Changes
from collectors.kubernetes.front_wire import InferencePool, Route, Service
from collectors.kubernetes.wire import Object

Label = tuple[str, str]
Selector = frozenset[Label]
Front = Service | Route | InferencePool
FRONTS = (kinds.SERVICES, kinds.HTTP_ROUTES, kinds.GRPC_ROUTES, kinds.OLD_POOLS, kinds.POOLS)
BATCH = ("Job", "JobSet", "RayCluster", "SparkApplication", "Workflow")
"""Ends of the kinds with Services for rendezvous: Jobs of Kubernetes, Kubeflow, MPI, Ray and Volcano, and others.

The RayCluster of a RayService is known by the labels of its pods."""


def is_batch(found: Object) -> bool:
    """True if a batch kind owns an object."""
    return any(each.kind.endswith(BATCH) for each in found.metadata.owner_references or ())


@dataclass(slots=True)
class Fronts:
    """The selectors of the pods that receive requests, by namespace."""

    _found: dict[str, Front] = field(default_factory=dict)  # by uid
    _selectors: Mapping[str, frozenset[Selector]] = field(default_factory=dict)
    _by_label: dict[str, Mapping[Label, list[Selector]]] = field(default_factory=dict)  # see `_by_rarest`

    def update(self, changes: Iterable[Changes]) -> set[str]:
        """Take in the changes of all these kinds. Returns the namespaces with changed selectors."""
        moved = False
        for each in changes:
            for gone in each.gone:
                moved |= self._found.pop(gone.metadata.uid, None) is not None
            for found in each.there:
                if isinstance(found, Front):
                    before = self._found.get(found.metadata.uid)
                    moved |= before is None or before.spec != found.spec or is_batch(before) != is_batch(found)
                    self._found[found.metadata.uid] = found
        return self._make() if moved else set()

    def _make(self) -> set[str]:
        before, after = self._selectors, defaultdict[str, set[Selector]](set)
        for space, labels in self._all():
            if labels:
                after[space].add(frozenset(labels.items()))
        self._selectors = {space: frozenset(each) for space, each in after.items()}
        changed = {each for each in before.keys() | after.keys() if before.get(each) != self._selectors.get(each)}
        for space in changed:
            self._by_label[space] = _by_rarest(self._selectors.get(space, frozenset()))
        return changed

    def lead_to(self, namespace: str, labels: Mapping[str, str] | None) -> bool:
        """True if pods with these labels receive requests."""
        by_label = self._by_label.get(namespace)
        if not by_label or not labels:
            return False
        has = labels.items()
        return any(each <= has for label in has if label in by_label for each in by_label[label])

    def _all(self) -> Iterator[tuple[str, Mapping[str, str]]]:
        routed = set(self._routed())
        for found in self._found.values():
            meta = found.metadata
            if isinstance(found, InferencePool):
                selector = found.spec.selector or {}
                labels = selector.get("matchLabels", selector)
                if isinstance(labels, dict):
                    yield meta.namespace, {str(name): str(value) for name, value in labels.items()}
            elif isinstance(found, Service):
                plain = found.spec.cluster_ip != "None" and not is_batch(found)
                if plain or (meta.namespace, meta.name) in routed:
                    yield meta.namespace, found.spec.selector or {}

    def _routed(self) -> Iterator[tuple[str, str]]:
        """Services with a route to them."""
        for found in self._found.values():
            for rule in (found.spec.rules or ()) if isinstance(found, Route) else ():
                for each in rule.backend_refs or ():
                    if each.kind == "Service":
                        yield each.namespace or found.metadata.namespace, each.name


def _by_rarest(selectors: frozenset[Selector]) -> Mapping[Label, list[Selector]]:
    """Selectors by their least common label: few are compared with a pod."""
    askers, found = Counter(label for each in selectors for label in each), defaultdict[Label, list[Selector]](list)
    for each in selectors:
        found[min(each, key=lambda label: (askers[label], label))].append(each)
    return dict(found)
