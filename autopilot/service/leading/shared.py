"""The shared state of the controllers of one cluster: the Lease, the memory and the commands, from the settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autopilot.kube.cluster_api import TICK_S, ClusterApi
from autopilot.records.memory import FileMemoryStore
from autopilot.service.leading.elector import Elector, ElectorThread
from autopilot.service.leading.epoch import ClusterEpoch
from autopilot.service.leading.inbox import ClusterInbox
from autopilot.service.leading.leadership import ClusterLeadership
from autopilot.service.leading.lease import LeaseName
from autopilot.service.leading.memory import ClusterMemory
from autopilot.service.settings import Kubernetes


@dataclass(slots=True)
class Shared:
    """The parts, connected. `start` begins the election."""

    elector: Elector
    memory: ClusterMemory
    inbox: ClusterInbox
    leadership: ClusterLeadership
    retry_s: float
    wake: list[Callable[[], None]]

    def start(self, wake: Callable[[], None]) -> None:
        """Elect from now on; `wake` is called at the start and the end of this controller's leadership."""
        self.wake.append(wake)
        thread = ElectorThread(self.elector, self.retry_s)
        self.leadership.ended = thread.close
        thread.start()


def open_shared(
    given: Kubernetes | None, api: ClusterApi | None, local: FileMemoryStore, kill_switch: Callable[[], str]
) -> Shared | None:
    """The shared state of the settings; None for an only controller."""
    if given is None or given.lease is None or api is None:
        return None
    terms = given.lease.terms()
    prompt = api.within(TICK_S)
    memory = ClusterMemory(prompt, given.namespace, local)
    name = LeaseName(given.namespace, given.lease.name)
    epoch = ClusterEpoch(prompt, name)
    wakes: list[Callable[[], None]] = []
    elector = Elector(
        api.within(terms.renew_s / 3.0),
        name,
        terms,
        known_fence=lambda: max(memory.known_fence(), epoch.known()),
        on_change=lambda: wakes[-1]() if wakes else None,
    )
    inbox = ClusterInbox(api, given.namespace, kill_switch, lambda: leadership.waiting())  # noqa: PLW0108 - made below
    leadership = ClusterLeadership(elector, memory, inbox, epoch)
    return Shared(elector, memory, inbox, leadership, terms.retry_s, wakes)
