"""A controller whose ticks a test makes, and the keeper of its Recommendations, beside a server over HTTPS."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from apiserver.http.serve import Running
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.policy import Mode, Policy
from autopilot.core.model.records import Command
from autopilot.crds.approvals import Approvals
from autopilot.crds.keeper import KIND, Keeper, RecommendationObject
from autopilot.crds.names import collection, object_name
from autopilot.kube.access import Access, Address
from autopilot.kube.cluster_api import ClusterApi
from autopilot.service.inbox import SqliteInbox
from autopilot.service.published import Published, Publisher
from autopilot.service.record import Record
from collectors.kubernetes.cache import Changes, Health
from collectors.kubernetes.wire import Object
from tests.kits.core_world import AUTO, Item, decide, observe, snapshot

ASKS: Policy = replace(AUTO, modes=replace(AUTO.modes, admit_gang=Mode.APPROVE))
TELLS: Policy = replace(AUTO, modes=replace(AUTO.modes, admit_gang=Mode.RECOMMEND))


class Listed:
    """The list of Recommendations, read anew at each look."""

    def __init__(self, api: ClusterApi) -> None:
        self._api, self._known = api, dict[str, Any]()

    def drain(self, kind: object) -> Changes:
        assert kind is KIND
        answer = self._api.get(collection("recommendations"))
        items = answer.document["items"]
        there: list[Object] = [msgspec.convert(each, RecommendationObject) for each in items]
        now = {each.metadata.uid: each for each in there}
        gone = [each for uid, each in self._known.items() if uid not in now]
        self._known = now
        return Changes(there, gone)

    def health(self) -> list[Health]:
        return [Health(KIND, "", True, 0.0, 0)]


@dataclass
class Desk:
    """A controller whose ticks the test makes, and the keeper beside it. Its clock is that of the server."""

    running: Running
    kubeconfig: Path
    folder: Path
    policy: Policy = ASKS
    most: int = 100
    steady_s: float = 0.0
    ahead_s: float = 0.0  # of the clock of the server
    memory: ControllerMemory = field(default_factory=lambda: replace(ControllerMemory(), fence=7))

    def __post_init__(self) -> None:
        self.accesses: list[Access] = []
        self.api = self.api_of(self.kubeconfig)
        self.publisher, self.record = Publisher(), Record(self.folder / "audit")
        self.inbox = SqliteInbox(self.folder / "inbox.db", lambda: "")
        self.woken = 0
        self.restart()

    def api_of(self, kubeconfig: Path) -> ClusterApi:
        """The API server for the user of a kubeconfig."""
        self.accesses.append(Access(Address(kubeconfig)))
        return ClusterApi(self.accesses[-1])

    def close(self) -> None:
        """Release files and connections."""
        self.inbox.close()
        self.record.close()
        for each in self.accesses:
            each.connection()[0].clear()

    def restart(self) -> None:
        """Another process begins with what is on disk and in the cluster."""
        approvals = Approvals(self.publisher, self.inbox, self.record, self.now_s, self._wake)
        self.keeper = Keeper(
            Listed(self.api), self.api, self.publisher, approvals, self.most, steady_s=lambda: self.steady_s
        )

    def _wake(self) -> None:
        self.woken += 1

    def now_s(self) -> float:
        return self.running.shell.server.timeline.now.timestamp() + self.ahead_s

    def tick(self, *items: Item, halted: str = "") -> tuple[Command, ...]:
        """One tick on two nodes of 4 GPUs, then one look of the keeper; the commands that the tick read."""
        now_s = self.now_s()
        commands, since_s = self.inbox.drain(now_s), {"submit_s": now_s - 60.0, "start_s": now_s - 60.0}
        aged = [
            replace(
                each,
                columns={**since_s, **each.columns}
                if "state" in each.columns
                else {"submit_s": now_s - 60.0, **each.columns},
            )
            for each in items
        ]
        seen = observe(snapshot("2x4", aged), now_s, commands=commands)
        step = decide(seen, self.policy, self.memory)
        self.memory = step.memory
        decision = replace(step.decision, halted=halted) if halted else step.decision
        self.publisher.publish(Published(seen, decision, step.memory, self.policy, step.wake_at_s, 0.0))
        self.look()
        return commands

    def look(self) -> None:
        self.keeper.look()
        assert self.keeper.health.problem == ""

    @property
    def proposal(self) -> str:
        """Name of the object of the only proposal of the last tick."""
        assert self.publisher.latest is not None
        (proposal,) = self.publisher.latest.decision.plan.proposals
        return object_name(proposal.recommendation)
