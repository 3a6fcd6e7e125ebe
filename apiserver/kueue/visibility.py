"""The visibility API: the pending workloads of a queue, in the order of their trials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from apiserver.errors import Named, StatusError, bad_request, not_found
from apiserver.kinds.base import Call, Kind, State, Subresource
from apiserver.kueue.info import Info, Key
from apiserver.kueue.names import CLUSTER_QUEUES, GROUP, LOCAL_QUEUES, spec_of, target_of
from apiserver.kueue.pending import PendingQueue
from apiserver.requests import Response

if TYPE_CHECKING:
    from collections.abc import Iterable

    from apiserver.kueue.manager import Kueue

Obj = dict[str, Any]
VISIBILITY_GROUP = f"visibility.{GROUP}"
VERSIONS = ("v1beta2", "v1beta1")
LIMIT = 1000  # workloads of one answer, unless the request says otherwise
DOWN = "error trying to reach service: dial tcp VISIBILITY: connect: connection refused\n"


class Visibility:
    """Answers `pendingworkloads` of ClusterQueues and LocalQueues."""

    def __init__(self, kueue: Kueue) -> None:
        self._kueue = kueue

    def kinds(self) -> list[Kind]:
        """The served kinds: no objects, one subresource of each queue."""
        below = {"pendingworkloads": Subresource("pendingworkloads", verbs=("get",), handler=self.answer)}
        return [
            Kind(
                VISIBILITY_GROUP,
                version,
                plural,
                "PendingWorkloadsSummary",
                namespaced=plural == "localqueues",
                singular=plural.removesuffix("s"),
                verbs=(),
                subresources=below,
                custom=True,
            )
            for version in VERSIONS
            for plural in ("clusterqueues", "localqueues")
        ]

    def answer(self, _server: State, call: Call) -> Response:
        """The pending workloads of the queue named by a call. Raises StatusError."""
        if not self._kueue.running:
            return Response(503, DOWN, {"content-type": "text/plain; charset=utf-8"})
        if call.verb != "get":
            raise StatusError(
                405, "MethodNotAllowed", "the server does not allow this method on the requested resource"
            )
        if call.kind.plural == "clusterqueues":
            name, local = call.name, None
        else:
            queue = self._kueue.context.store.get(LOCAL_QUEUES, call.namespace, call.name)
            name, local = (target_of(queue) if queue else ""), (call.namespace, call.name)
        if self._kueue.context.store.get(CLUSTER_QUEUES, "", name) is None:
            kind = call.kind.singular
            raise not_found(Named(VISIBILITY_GROUP, kind, kind, call.name))
        offset, limit = _number(call, "offset", 0), _number(call, "limit", LIMIT)
        items = list(pending_workloads(self._kueue.context.pending.get(name), local))[offset : offset + limit]
        return Response(
            200,
            {
                "kind": "PendingWorkloadsSummary",
                "apiVersion": call.kind.api_version,
                "metadata": {},
                "items": items,
            },
        )


def _number(call: Call, name: str, default: int) -> int:
    given = call.option(name)
    if given and not given.isdigit():
        raise bad_request(f"{name} must be a number, 0 or more: {given!r}")
    return int(given or default)


def pending_workloads(queue: PendingQueue | None, local: Key | None) -> Iterable[Obj]:
    """Items for the workloads of a ClusterQueue, or (`local`) of one of its LocalQueues."""
    places: dict[Key, int] = {}
    for place, info in enumerate(queue.ordered() if queue is not None else ()):
        own = (info.key[0], spec_of(info.obj).get("queueName", ""))
        places[own] = places.get(own, -1) + 1
        if local is None or own == local:
            yield _item(info, place, places[own])


def _item(info: Info, place: int, place_in_local_queue: int) -> Obj:
    metadata = info.obj["metadata"]
    shown: Obj = {"name": metadata["name"], "namespace": metadata["namespace"]}
    shown["creationTimestamp"] = metadata["creationTimestamp"]
    owners = metadata.get("ownerReferences") or []
    if owners:
        names = ("apiVersion", "kind", "name", "uid")
        shown["ownerReferences"] = [{name: each[name] for name in names} for each in owners]
    return {
        "metadata": shown,
        "priority": info.priority,
        "localQueueName": spec_of(info.obj).get("queueName", ""),
        "positionInClusterQueue": place,
        "positionInLocalQueue": place_in_local_queue,
    }
