"""The context of Kueue's controllers: the server, the state of the queues, indexes of workloads, and their clients."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from apiserver.errors import StatusError
from apiserver.kueue import workloads
from apiserver.kueue.config import Config
from apiserver.kueue.info import Key
from apiserver.kueue.names import (
    ADMISSION_MANAGER,
    API_VERSION,
    CLUSTER_QUEUES,
    LOCAL_QUEUES,
    MANAGER,
    WORKLOADS,
    group_name,
    key_of,
    spec_of,
    target_of,
)
from apiserver.kueue.pending import PendingQueue
from apiserver.kueue.queue_state import State
from apiserver.kueue.recorder import Recorder
from apiserver.users import service_account

if TYPE_CHECKING:
    from collections.abc import Callable

    from apiserver.client import Client
    from apiserver.server import Server

Obj = dict[str, Any]
NAMESPACE = "kueue-system"
ACCOUNT = "kueue-controller-manager"
PROCESS = "kueue"
USER = service_account(NAMESPACE, ACCOUNT)


class Context:
    """The shared part of the manager."""

    def __init__(self, server: Server, config: Config) -> None:
        self.server = server
        self.store = server.store
        self.timeline = server.process(PROCESS)
        self.config = config
        self.clients: dict[str, Client] = {}
        self.recorder = Recorder(self.client(), self.timeline)
        self.reset()

    def reset(self) -> None:
        """Forget everything, as at the end of a process."""
        self.state = State()
        self.pending: dict[str, PendingQueue] = {}
        self.by_queue: dict[Key, set[Key]] = defaultdict(set)  # LocalQueue: its workloads
        self.by_owner: dict[str, set[Key]] = defaultdict(set)  # uid of an owner: its workloads
        self.queue_of: dict[Key, Key] = {}
        self.owners_of: dict[Key, tuple[str, ...]] = {}
        self.local_queues: dict[str, set[Key]] = defaultdict(set)  # ClusterQueue: its LocalQueues
        self.groups: dict[Key, set[str]] = defaultdict(set)  # group of pods: their names

    @property
    def now(self) -> datetime:
        """The moment."""
        return self.timeline.now

    def client(self, manager: str = MANAGER) -> Client:
        """A client under a field manager."""
        if manager not in self.clients:
            self.clients[manager] = self.server.client(USER, manager)
        return self.clients[manager]

    def workload(self, key: Key) -> Obj | None:
        """A Workload as it is stored."""
        return self.store.get(WORKLOADS, *key)

    def local_queue(self, workload: Obj) -> Obj | None:
        """The LocalQueue of a Workload."""
        return self.store.get(LOCAL_QUEUES, workload["metadata"]["namespace"], spec_of(workload).get("queueName", ""))

    def cluster_queue(self, workload: Obj) -> Obj | None:
        """The ClusterQueue of a Workload, through its LocalQueue."""
        queue = self.local_queue(workload)
        return None if queue is None else self.store.get(CLUSTER_QUEUES, "", target_of(queue))

    def index(self, workload: Obj) -> None:
        """Note the queue and the owners of a Workload."""
        key = key_of(workload)
        self.unindex(key)
        queue = (key[0], spec_of(workload).get("queueName", ""))
        owners = tuple(each["uid"] for each in workload["metadata"].get("ownerReferences") or [])
        self.queue_of[key], self.owners_of[key] = queue, owners
        self.by_queue[queue].add(key)
        for uid in owners:
            self.by_owner[uid].add(key)

    def unindex(self, key: Key) -> None:
        """Forget a Workload."""
        queue = self.queue_of.pop(key, None)
        if queue is not None:
            self.by_queue[queue].discard(key)
        for uid in self.owners_of.pop(key, ()):
            self.by_owner[uid].discard(key)
            if not self.by_owner[uid]:
                del self.by_owner[uid]

    def note_pod(self, pod: Obj, *, gone: bool) -> None:
        """Note the group of a pod."""
        name = group_name(pod)
        if name:
            members = self.groups[pod["metadata"]["namespace"], name]
            (members.discard if gone else members.add)(pod["metadata"]["name"])

    def pods_of_group(self, namespace: str, name: str) -> list[Obj]:
        """The pods of a group, by name."""
        found = [self.store.get("pods", namespace, each) for each in sorted(self.groups.get((namespace, name), ()))]
        return [pod for pod in found if pod is not None]

    def owned(self, uid: str) -> list[Obj]:
        """The Workloads of an owner, by name."""
        found = [self.workload(key) for key in sorted(self.by_owner.get(uid, ()))]
        return [each for each in found if each is not None]

    def edit(self, workload: Obj, change: Callable[[Obj], bool]) -> Obj | None:
        """Edit the status of a Workload as the manager of admissions; None if nothing changed or it is gone.

        `change` gets a status of its own and returns True if it changed anything.
        """
        current = self.workload(key_of(workload))
        if current is None or current["metadata"]["uid"] != workload["metadata"]["uid"]:
            return None
        status = workloads.copied(current)
        if not change(status):
            return None
        return self.apply(current, workloads.applied(status), ADMISSION_MANAGER)

    def apply(self, workload: Obj, status: Obj, manager: str) -> Obj | None:
        """Apply a part of the status of a Workload under a field manager; None if the server refuses."""
        namespace, name = key_of(workload)
        body = {
            "apiVersion": API_VERSION,
            "kind": "Workload",
            "metadata": {"name": name, "namespace": namespace, "uid": workload["metadata"]["uid"]},
            "status": status,
        }
        try:
            return self.client(manager).patch(WORKLOADS, namespace, name, body, "status", how="apply")
        except StatusError:
            return None

    def update(self, workload: Obj, subresource: str = "") -> Obj | None:
        """Replace a Workload; None if the server refuses."""
        try:
            return self.client().update(WORKLOADS, workload, subresource)
        except StatusError:
            return None
