"""Objects that lead requests to pods: Services, routes of the Gateway API, and InferencePools.

A headless Service, or one owned by a batch kind, is for rendezvous: it counts only if a route leads to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from collectors.kubernetes import kinds
from collectors.kubernetes.cache import Changes
from collectors.kubernetes.front_wire import InferencePool, Route, Service
from collectors.kubernetes.wire import Object

Selector = frozenset[tuple[str, str]]
FRONTS = (kinds.SERVICES, kinds.HTTP_ROUTES, kinds.GRPC_ROUTES, kinds.OLD_POOLS, kinds.POOLS)
BATCH = ("Job", "JobSet", "RayCluster", "SparkApplication", "Workflow")
"""Ends of the kinds that make Services for rendezvous: Jobs of Kubernetes, Kubeflow, MPI, Ray and Volcano, and others.

The RayCluster of a RayService is known by the labels of its pods."""


def is_batch(found: Object) -> bool:
    """True if a batch kind owns an object."""
    return any(each.kind.endswith(BATCH) for each in found.metadata.owner_references or ())


@dataclass(slots=True)
class Fronts:
    """The selectors of the pods that receive requests, by namespace."""

    _found: dict[str, Object] = field(default_factory=dict)  # by uid
    _selectors: Mapping[str, frozenset[Selector]] = field(default_factory=dict)

    def update(self, changes: Iterable[Changes]) -> set[str]:
        """Take in the changes of all these kinds. Returns the namespaces with changed selectors."""
        moved = False
        for each in changes:
            moved |= bool(each.gone or each.there)
            for found in each.gone:
                self._found.pop(found.metadata.uid, None)
            for found in each.there:
                self._found[found.metadata.uid] = found
        return self._make() if moved else set()

    def _make(self) -> set[str]:
        before, after = self._selectors, defaultdict[str, set[Selector]](set)
        for space, labels in self._all():
            if labels:
                after[space].add(frozenset(labels.items()))
        self._selectors = {space: frozenset(each) for space, each in after.items()}
        return {each for each in before.keys() | after.keys() if before.get(each) != self._selectors.get(each)}

    def lead_to(self, namespace: str, labels: Mapping[str, str] | None) -> bool:
        """True if pods with these labels receive requests."""
        selectors = self._selectors.get(namespace)
        return bool(selectors and labels and any(each <= labels.items() for each in selectors))

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
