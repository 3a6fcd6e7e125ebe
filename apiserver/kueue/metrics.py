"""Metrics of the manager, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from apiserver.kueue import conditions
from apiserver.kueue.names import CLUSTER_QUEUES
from apiserver.requests import Request, Response

if TYPE_CHECKING:
    from apiserver.kueue.manager import Kueue
    from apiserver.server import Handler, Server
    from apiserver.users import User

PATH = "/api/v1/namespaces/kueue-system/services/https:kueue-controller-manager-metrics-service:8443/proxy/metrics"
"""Where clients read them: the proxy of the metrics service of a standard installation."""
DOWN = "error trying to reach service: dial tcp METRICS: connect: connection refused\n"
ROLE = "leader"  # one replica
HELP = {
    "kueue_pending_workloads": "Workloads that wait: active ones are to be tried, inadmissible ones are put aside.",
    "kueue_reserving_active_workloads": "Workloads that hold quota in a ClusterQueue.",
    "kueue_admitted_active_workloads": "Workloads that are admitted and not finished.",
    "kueue_cluster_queue_status": "1 for the status that a ClusterQueue has, 0 for the others.",
}
Row = tuple[str, dict[str, str], int]


def rows(kueue: Kueue) -> Iterator[Row]:
    """Name, labels and value of each sample."""
    for name, queue in sorted(kueue.context.state.queues.items()):
        pending = kueue.context.pending.get(name)
        aside = len(pending.aside) if pending is not None else 0
        every = len(pending) if pending is not None else 0
        own = {"cluster_queue": name}
        yield "kueue_pending_workloads", own | {"status": "active"}, every - aside
        yield "kueue_pending_workloads", own | {"status": "inadmissible"}, aside
        yield "kueue_reserving_active_workloads", own, len(queue.workloads)
        yield "kueue_admitted_active_workloads", own, queue.admitted_count
        obj = kueue.context.store.get(CLUSTER_QUEUES, "", name)
        deleted = obj is not None and "deletionTimestamp" in obj["metadata"]
        active = obj is not None and conditions.is_true(obj, "Active")
        status = "terminating" if deleted else "active" if active else "pending"
        for each in ("active", "pending", "terminating"):
            yield "kueue_cluster_queue_status", own | {"status": each}, int(each == status)


def text(kueue: Kueue) -> str:
    """The whole page."""
    lines: dict[str, list[str]] = {
        name: [f"# HELP {name} {about}", f"# TYPE {name} gauge"] for name, about in HELP.items()
    }
    for name, labels, value in rows(kueue):
        shown = ",".join(f'{label}="{each}"' for label, each in sorted((labels | {"replica_role": ROLE}).items()))
        lines[name].append(f"{name}{{{shown}}} {value}")
    return "\n".join(line for each in lines.values() for line in each) + "\n"


def endpoint(kueue: Kueue) -> dict[str, Handler]:
    """The path and its handler."""

    def answer(_server: Server, _request: Request, _user: User) -> Response:
        headers = {"content-type": "text/plain; version=0.0.4; charset=utf-8"}
        return Response(200, text(kueue), headers) if kueue.running else Response(503, DOWN, headers)

    return {PATH: answer}
