"""The objects unreadable now, of all kinds, and the work, nodes and queues left alone for them.

An object that its list cannot decode and one without a possible row are treated the same: work is left alone, a node
gets no new work, a queue keeps its last good quotas and starts and loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from autopilot.core.model.records import Gap
from collectors.kubernetes import kinds
from collectors.kubernetes.cache import Changes
from collectors.kubernetes.kinds import Kind
from collectors.kubernetes.unread import Unread, named, unread_as
from collectors.kubernetes.wire import Object

TEXT = "{} {} cannot be read ({}); it is left alone"
BY_NAME = {"Deployment": kinds.DEPLOYMENTS, "StatefulSet": kinds.STATEFULSETS}
OF_NAMESPACE = (kinds.NAMESPACES, kinds.BUDGETS, kinds.QUOTAS)
"""Kinds with rules for all work of their namespace."""
OF_QUEUES = ((kinds.CLUSTER_QUEUES, ""), (kinds.COHORTS, "cohort/"), (kinds.KAI_QUEUES, ""))
"""Kinds of queues, and the prefix of their names in the tree."""


@dataclass(frozen=True, slots=True)
class Alone:
    """Work, services, nodes and queues left alone, with the reasons."""

    gangs: dict[str, str] = field(default_factory=dict)  # by key
    services: dict[tuple[str, str], str] = field(default_factory=dict)  # by namespace and "Kind/name"
    scaled: dict[tuple[str, str], str] = field(default_factory=dict)  # the same, of autoscalers
    namespaces: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)
    queues: dict[str, str] = field(default_factory=dict)
    local_queues: dict[tuple[str, str], str] = field(default_factory=dict)

    def why(self, key: str, namespace: str, service: str) -> str:
        """Reason for leaving a gang alone: its own objects, its namespace or its service; "" for none."""
        return self.gangs.get(key) or self.namespaces.get(namespace) or self.why_service((namespace, service))

    def why_service(self, key: tuple[str, str]) -> str:
        """Reason for leaving a service alone: itself, or an autoscaler that may be its own."""
        space = key[0]
        found = self.namespaces.get(space) or self.services.get(key) or self.scaled.get(key)
        return found or (self.scaled.get((space, "/"), "") if key[1] else "")

    def changed(self, other: Alone) -> tuple[set[str], set[str]]:
        """Keys of gangs, and namespaces, with another state in `other`."""
        spaces = {name for name, _ in self.namespaces.items() ^ other.namespaces.items()}
        spaces |= {key[0] for key, _ in self.services.items() ^ other.services.items()}
        spaces |= {key[0] for key, _ in self.scaled.items() ^ other.scaled.items()}
        spaces |= {key[0] for key, _ in self.local_queues.items() ^ other.local_queues.items()}
        return {key for key, _ in self.gangs.items() ^ other.gangs.items()}, spaces


@dataclass(slots=True)
class Unreadable:
    """The unreadable objects, by kind and uid."""

    listed: dict[str, dict[str, Unread]] = field(default_factory=dict)  # undecodable by the list
    failed: dict[str, dict[str, Unread]] = field(default_factory=dict)  # without a possible row
    version: int = 0

    def take(self, kind: Kind, changes: Changes) -> Changes:
        """Take in the changes of a kind, before they are converted."""
        if changes.unread is not None:
            self.listed[kind.title] = changes.unread
            self.version += 1
        known = self.failed.get(kind.title)
        for found in (*changes.gone, *changes.there) if known else ():
            self.version += known.pop(found.metadata.uid, None) is not None if known else 0
        return changes

    @contextmanager
    def net(self, kind: Kind, found: Object) -> Iterator[None]:
        """Contain any error in the conversion of one object: it counts as unreadable."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever an object says, the others are read
            self.failed.setdefault(kind.title, {})[found.metadata.uid] = unread_as(found, error)
            self.version += 1

    def of(self, kind: Kind) -> Iterator[tuple[str, Unread]]:
        """Every unreadable object of a kind, with a text naming it."""
        for each in (*self.listed.get(kind.title, {}).values(), *self.failed.get(kind.title, {}).values()):
            yield TEXT.format(kind.title, each.shown, each.reason), each

    def gaps(self, source: str) -> Iterator[Gap]:
        """A gap for each object without a possible row; the lists name the others."""
        for title, found in self.failed.items():
            for each in found.values():
                yield Gap(source, each.shown, title, f"cannot be read: {each.reason}")

    def alone(
        self,
        key_of: Callable[[Kind, Unread], str],
        reads: Callable[[str], bool],
        nodes_of: Callable[[Unread], Iterable[str]],
    ) -> Alone:
        """Everything left alone.

        `key_of`: the gang of a pod, Job or Workload. `reads`: a pod was read before. `nodes_of`: the nodes where a
        claim may have devices without a known holder.
        """
        found = Alone()
        for kind in (kinds.PODS, kinds.JOBS, kinds.WORKLOADS):
            for text, each in self.of(kind):
                found.gangs[key_of(kind, each)] = text
                if each.node and not each.over and not reads(each.metadata.uid):
                    found.nodes[each.node] = f"its pod {named(each.metadata)} cannot be read ({each.reason})"
        for name, kind in BY_NAME.items():
            for text, each in self.of(kind):
                found.services[each.metadata.namespace, f"{name}/{each.metadata.name}"] = text
        for text, each in self.of(kinds.AUTOSCALERS):
            found.scaled[each.metadata.namespace, each.target] = text
        for kind in OF_NAMESPACE:
            for text, each in self.of(kind):
                found.namespaces[each.metadata.namespace or each.metadata.name] = text
        for kind, prefix in OF_QUEUES:
            found.queues.update({prefix + each.metadata.name: text for text, each in self.of(kind)})
        for text, each in self.of(kinds.LOCAL_QUEUES):
            found.local_queues[each.metadata.namespace, each.metadata.name] = text
        for _, each in self.of(kinds.NODES):
            found.nodes[each.metadata.name] = f"it cannot be read ({each.reason})"
        for text, each in self.of(kinds.CLAIMS):
            found.nodes.update(dict.fromkeys(nodes_of(each), f"{text}, and may have its devices"))
        found.nodes.update({each.node: f"its {text}" for text, each in self.of(kinds.SLICES) if each.node})
        return found
