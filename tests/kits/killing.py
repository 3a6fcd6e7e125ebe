"""A controller that is killed at one boundary of its effects, and the next one that goes on from the cluster.

The boundaries of an effect are counted over a whole story: before each write, after the write and before anything
recorded it, and after the record (the memory in the cluster, the outcome in the journal). The controller dies at the
boundary that the test names: nothing of its process is left but what the server has. `TAKEOVER_S` later the next one
leads, with the next fence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any

from actuators.kubernetes.actuator import KubernetesActuator
from actuators.kubernetes.api import Answer, Api
from apiserver.client import Client
from apiserver.requests import Response
from apiserver.server import Server
from apiserver.users import ADMIN
from autopilot.app.runs.world import World
from autopilot.contract.annotations import EFFECT, EPOCH
from autopilot.controller import Wiring
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.policy import Policy
from autopilot.core.model.ports import MemoryStore
from autopilot.core.model.records import Decision, Observation, Outcome
from autopilot.kube import cluster_api
from autopilot.kube.access import Access, Address
from autopilot.kube.cluster_api import ClusterApi
from autopilot.records.memory import InMemoryStore
from autopilot.service.leading.memory import ClusterMemory
from autopilot.service.site import Site
from collectors.kubernetes.collector import KubernetesCollector
from tests.hostile.api_wire import Write
from tests.kits.acting_kit import Locked
from tests.kits.deciding_kit import STEP_S, Deciding
from tests.kits.kueue_kit import JOBS
from tests.kits.lead_kit import NAME, with_namespace
from tests.kits.playground_acting import ActingRun
from tests.kits.standing import STOP_SECONDS, Delay, Standing, stops_work

Obj = dict[str, Any]
TAKEOVER_S = 12.0
"""From the death of a leader until the next one acts: the lease of 10 s, and one turn to see it and one to take it."""
LATE_TICK_S = 30.0
"""While the controller-manager stands still, the controller looks this often."""
LONGEST_S = 600.0
"""No effect of a story stays in one state for longer."""
LEASES = "leases.coordination.k8s.io"
OWN = (f"/namespaces/{NAME.namespace}/configmaps", "/recommendations/")
"""What the controller keeps for itself, and reports: written again by each leader."""
VOLATILE = ("resourceVersion", "uid")


class Killed(BaseException):
    """The process ends here. No error: nothing may catch it."""


@dataclass
class Boundaries:
    """Counts the boundaries of a story. `at`: where the controller dies (from 1); 0: it lives.

    `stands`: it lives there too, and the controller-manager begins to stand still, which `reach` does.
    """

    at: int = 0
    stands: bool = False
    passed: int = 0
    where: str = ""  # of the boundary that was named
    reach: Callable[[], None] = lambda: None
    writes: dict[str, set[str]] = field(default_factory=dict)  # what was changed -> versions after it
    names: list[str] = field(default_factory=list)

    def cross(self, what: str) -> None:
        """One boundary. Raises `Killed` at the one that was named."""
        self.passed += 1
        self.names.append(what)
        if self.passed == self.at:
            self.where = what
            if not self.stands:
                raise Killed(what)
            self.reach()

    def note(self, method: str, path: str, body: Any, answer: Answer | cluster_api.Answer) -> None:
        """Keep what a write changed."""
        found = answer.body if isinstance(answer, Answer) else answer.document
        if 200 <= answer.status < 300 and not any(part in path for part in OWN):
            what = f"{method} {path.partition('?')[0]} {essence(body)}"
            self.writes.setdefault(what, set()).add(str(found.get("metadata", {}).get("resourceVersion", "")))

    def doubled(self) -> list[str]:
        """Changes that were made twice: the same content for the same object, and the object changed both times."""
        return [f"{len(versions)} times: {what}" for what, versions in self.writes.items() if len(versions) > 1]


def essence(body: Any) -> str:
    """What a write is about: without versions, epochs and times."""
    found = json.loads(body) if isinstance(body, bytes) else json.loads(json.dumps(body))
    if isinstance(found, list):  # a JSON patch
        return json.dumps([each for each in found if not each["path"].endswith("epoch")])
    meta = found.get("metadata", {})
    for key in VOLATILE:
        meta.pop(key, None)
    if found.get("kind") == "Event":
        meta.pop("name", None)
        for key in ("eventTime", "reportingInstance"):
            found.pop(key, None)
    notes = meta.get("annotations", {})
    notes.pop(EPOCH, None)
    if isinstance(notes.get(EFFECT), str):
        notes[EFFECT] = {
            key: each for key, each in json.loads(notes[EFFECT]).items() if key not in {"epoch", "deadline"}
        }
    rows = found.get("status", {})
    for each in (*rows.get("admissionChecks", ()), *rows.get("conditions", ())):
        each.pop("lastTransitionTime", None)
        each["message"] = each.get("message", "").partition(": ")[2]
    return json.dumps(found, sort_keys=True)


def make_mortal(api: Api | ClusterApi, boundaries: Boundaries) -> Callable[[], None]:
    """Every write of `api` is two boundaries. The result ends it: a process that is dead writes nothing any more."""
    inner, alive = api._ask, [True]

    def ask(method: str, path: str, *content: Any, **more: Any) -> Any:
        if not alive:
            raise Killed("it is dead")
        query, body = content[0] if len(content) > 1 else None, content[-1] if len(content) == 1 else content[1]
        if method == "GET" or (query or {}).get("dryRun"):
            return inner(method, path, *content, **more)
        boundaries.cross(f"before {method} {path}")
        answer = inner(method, path, *content, **more)
        boundaries.note(method, path, body, answer)
        boundaries.cross(f"after {method} {path}")
        return answer

    api._ask = ask  # type: ignore[method-assign]
    return alive.clear


class MortalMemory:
    """Memory in the cluster (port `MemoryStore`). A save that knows other effects than the one before is a record."""

    def __init__(self, inner: MemoryStore, boundaries: Boundaries) -> None:
        self._inner, self._boundaries = inner, boundaries
        self._effects: object = None

    def load(self) -> ControllerMemory | None:
        """What the cluster has."""
        return self._inner.load()

    def save(self, memory: ControllerMemory) -> None:
        """Keep it, then perhaps die."""
        self._inner.save(memory)
        effects = (memory.effects.in_flight, memory.starts.pipelined_starts)
        before, self._effects = self._effects, effects
        if before != effects:
            self._boundaries.cross("after the record of memory")


class MortalJournal:
    """A journal that keeps nothing. The outcomes of effects are a record.

    `saw`: called with each decision before it is carried out, so also with those of a process that dies then.
    """

    def __init__(self, boundaries: Boundaries, saw: Callable[[Observation, Decision], None] | None = None) -> None:
        self._boundaries, self._saw = boundaries, saw

    def intend(self, observation: Observation, _policy: Any, _memory: Any, decision: Decision, _sent: Any) -> None:
        """What is about to be done."""
        if self._saw is not None:
            self._saw(observation, decision)

    def conclude(self, _tick: int, outcomes: Sequence[Outcome]) -> None:
        """Perhaps die."""
        if outcomes:
            self._boundaries.cross("after the record of outcomes")


class Nowhere:
    """The disk of a process whose node is gone with it."""

    def load(self) -> None:
        """Nothing."""

    def save(self, memory: ControllerMemory) -> None:
        """Nothing is kept."""


@dataclass(frozen=True)
class Term:
    """Leadership of one process."""

    number: int

    def fence(self) -> int:
        """Its fence."""
        return self.number


def take_lease(client: Client, fence: int) -> None:
    """The Lease says who leads, for the policy that refuses writes of earlier leaders."""
    spec = {"holderIdentity": f"c{fence}", "leaseTransitions": fence, "leaseDurationSeconds": 10}
    if client.get(LEASES, NAME.namespace, NAME.name) is None:
        meta = {"name": NAME.name, "namespace": NAME.namespace}
        client.create(LEASES, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec})
    else:
        client.patch(LEASES, NAME.namespace, NAME.name, {"spec": spec})


class MortalRun(ActingRun):
    """The playground with a controller that dies once, and the one that takes over."""

    def __init__(self, world: World, folder: Path, policy: Policy, *, boundaries: Boundaries, **more: Any) -> None:
        self.boundaries, self.fence, self._gone = boundaries, 0, False
        super().__init__(world, folder, policy, **more)

    def _begin(self) -> None:
        """The next process takes the Lease and the memory of the cluster over."""
        if not self.fence:
            with_namespace(self.stage.server)
        self.fence += 1
        take_lease(self.stage.server.client(ADMIN, "test"), self.fence)
        try:
            super()._begin()
        except Killed:
            self._succeed()

    def _succeed(self) -> None:
        """The process is gone, and some time later the next one leads. None leads while the API server is down."""
        if not self._gone:
            self._end()
            self.stage.clock.run_to(self.now_s + TAKEOVER_S)
        self._gone = self.faults.plan.error == 1.0
        if not self._gone:
            self._begin()

    def _wiring(self, site: Site) -> Wiring:
        wiring = super()._wiring(site)
        assert isinstance(site.actuator, KubernetesActuator)
        self._process.callback(make_mortal(site.actuator.api, self.boundaries))
        own = ClusterApi(Access(Address(self.kubeconfig)))
        memory = ClusterMemory(own, NAME.namespace, Nowhere(), lambda: self.now_s)
        problem = memory.claim(self.fence)
        assert not problem, problem
        return replace(
            wiring,
            memory=MortalMemory(memory, self.boundaries),
            journal=MortalJournal(self.boundaries, self._see),
            leadership=Term(self.fence),
        )

    def _see(self, observation: Observation, decision: Decision) -> None:
        """A decision that is about to be carried out: of a process that dies then, nobody hears afterwards."""
        for each in self.decisions:
            each(observation, decision)

    @property
    def lost(self) -> list[str]:
        """Effects that are under way beyond any deadline."""
        return overdue(self.controller.memory)

    def tick(self) -> None:
        """Decide; where the controller dies, the next one decides a moment later."""
        try:
            if self._gone:
                self._succeed()
            if not self._gone:
                super().tick()
        except Killed:
            self._succeed()
            self.tick()


class Lasting(Locked):
    """People create Jobs whose pods take some time to end."""

    def __init__(self, server: Server, lock: RLock, ends_s: float) -> None:
        super().__init__(server, lock)
        self._ends_s = ends_s

    def response(self, method: str, path: str, body: Any = None, **query: Any) -> Response:
        """The answer."""
        if method == "POST" and path == JOBS:
            template = body["spec"]["template"]
            template["metadata"] = {"annotations": {STOP_SECONDS: f"{self._ends_s:g}"}}
        return super().response(method, path, body, **query)


class MortalDeciding(Deciding):
    """A cluster whose pods live by themselves, with a controller that dies once, and the one that takes over.

    Its memory in the cluster is a store that outlives the processes. `standing`: how long the controller-manager stands
    still from the first stop of work on, which every `wait` waits out, and how long pods take to end.
    """

    def __init__(
        self,
        folder: Path,
        policy: Policy,
        nodes: int = 3,
        *,
        boundaries: Boundaries,
        standing: Standing | None = None,
    ) -> None:
        self.boundaries, self.fence, self._kept = boundaries, 0, InMemoryStore()
        self.stops: set[tuple[str, str]] = set()
        """Objects whose work the controller has stopped, with their uid."""
        self._standing, self._delay = standing, Delay(standing or Standing(0.0, 0.0), self._stand_still)
        boundaries.reach = self._delay.begin
        super().__init__(folder, policy, nodes)
        if standing is not None:
            self.ask = self.kueue.ask = Lasting(self.kueue.server, self.running.clock.lock, standing.ends_s)

    def _stand_still(self, for_s: float) -> None:
        """The controller-manager stands still from now on."""
        self.stop_controllers()
        self.kueue.server.timeline.at(for_s, partial(self.stop_controllers, stopped=False))

    def _wrote(self, write: Write) -> None:
        """The first stop of work finds the controller-manager standing still."""
        if stops_work(write.path, write.body):
            self.stops.add((write.path.removesuffix("/status"), write.after["metadata"]["uid"]))
            if self._standing is not None and not self.boundaries.stands:
                self._delay.begin()

    def wait(self, seconds: float) -> None:
        """Time passes; what the controller-manager delays is waited for, with a look every half a minute."""
        super().wait(seconds)
        late_s = self._delay.take_s()
        while late_s > 0:
            self.run(min(LATE_TICK_S, late_s))
            late_s -= LATE_TICK_S
            super().wait(STEP_S)

    def _wiring(self, collector: KubernetesCollector, actuator: KubernetesActuator) -> Wiring:
        """The next process takes the memory of the cluster over."""
        self.fence += 1
        self._die = make_mortal(actuator.api, self.boundaries)
        return replace(
            super()._wiring(collector, actuator),
            memory=MortalMemory(self._kept, self.boundaries),
            journal=MortalJournal(self.boundaries, self._saw),
            leadership=Term(self.fence),
        )

    def _tick(self) -> None:
        """Decide; where the controller dies, the next one decides a moment later."""
        try:
            super()._tick()
        except Killed:
            self._die()
            self.run(TAKEOVER_S)
            self._begin()
            self._tick()

    @property
    def lost(self) -> list[str]:
        """Effects that are under way beyond any deadline."""
        return overdue(self.controller.memory)


def overdue(memory: ControllerMemory) -> list[str]:
    """Effects that are under way for longer than any effect of a story takes."""
    entries = memory.effects.in_flight.values()
    return [f"{each.instruction.id} is {each.state}" for each in entries if memory.now_s - each.since_s > LONGEST_S]
