"""Forced failovers on virtual time: several controllers with pauses, clocks that differ and lost requests.

Each controller writes objects with the epoch of its term: it checks the fence, may be paused for seconds, and sends.
The audit log of the server then tells whether two of them ever acted at once.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from apiserver.audit import AuditLog, Entry
from apiserver.cluster import cluster
from apiserver.server import Server
from apiserver.timeline import Timeline
from apiserver.users import service_account
from autopilot.readiness.fence import EPOCH
from autopilot.service.leading.epoch import ClusterEpoch
from autopilot.service.leading.lease import Terms
from autopilot.service.leading.memory import ClusterMemory
from tests.kits.apiserver_kit import START, Asker
from tests.kits.fence_kit import install_fence
from tests.kits.lead_kit import NAME, Candidate, InProcess, with_namespace

TERMS = Terms(2.0, 1.2, 0.3)
OURS = service_account("gpu-autopilot", "gpu-autopilot")
TARGET = "/api/v1/namespaces/team/configmaps/target"
WRITE_S = 0.1
BOUND_S = TERMS.duration_s + 2 * TERMS.retry_s
"""From the last renewal of a leader that died to the next one: the lease, one turn to see it, one to take it."""


class Memoryless:
    """A disk without a memory."""

    def load(self) -> None:
        """Nothing."""

    def save(self, memory: object) -> None:
        """Nothing."""


@dataclass
class Actor:
    """One controller: an election, and a loop that checks and writes. `paused_until_s`: nothing runs before."""

    name: str
    server: Server
    rng: random.Random
    checks: bool = True  # False: a planted defect, it asks nothing before it writes
    paused_until_s: float = 0.0
    dead: bool = False
    held: int | None = None  # the fence that was checked, between check and write
    candidate: Candidate = field(init=False)
    epoch: ClusterEpoch = field(init=False)
    claimed: int = 0  # the fence of the term whose epoch it has written

    def __post_init__(self) -> None:
        """Clocks run up to 2 % fast or slow, and wall clocks are up to an hour off."""
        memory = ClusterMemory(InProcess(self.server, OURS), NAME.namespace, Memoryless())
        self.epoch = ClusterEpoch(InProcess(self.server, OURS), NAME, lambda _seconds: None)
        self.candidate = Candidate(
            self.server,
            self.name,
            TERMS,
            user=OURS,
            known_fence=lambda: max(memory.known_fence(), self.epoch.known()),
            rate=self.rng.uniform(0.98, 1.02),
            wall_off_s=self.rng.uniform(-3600.0, 3600.0),
        )
        self._election()
        self._acting()

    @property
    def stands(self) -> bool:
        """Whether it runs now."""
        return not self.dead and self.server.timeline.now_s >= self.paused_until_s

    def _election(self) -> None:
        if self.dead:
            return
        if self.stands:
            self.candidate.elector.step()
        self._later(TERMS.retry_s * self.rng.uniform(0.9, 1.1), self._election)

    def _acting(self) -> None:
        """Check, then write a moment later. A pause may come between."""
        if self.dead:
            return
        elector = self.candidate.elector
        if self.stands and self.held is not None:
            sent, self.held = self.held, None
            body = {"metadata": {"annotations": {EPOCH: str(sent), "by": self.name}}}
            self.candidate.api.patch(TARGET, body)
        elif self.stands and (fence := elector.fence()) is not None and (elector.still(fence) or not self.checks):
            if fence == self.claimed or not self.epoch.claim(fence):
                self.held = self.claimed = fence
        elif self.stands and not self.checks:
            self.held = self.epoch.known()  # of a controller that takes itself for the leader
        self._later(WRITE_S * self.rng.uniform(0.5, 1.5), self._acting)

    def _later(self, delay_s: float, what: object) -> None:
        self.server.timeline.at(max(delay_s, self.paused_until_s - self.server.timeline.now_s), what)  # type: ignore[arg-type]


@dataclass
class Outcome:
    """What a run found."""

    failovers: int = 0
    refused: int = 0  # late writes that the server refused
    writes: int = 0
    longest_s: float = 0.0  # from the last renewal of one leader to the first write of the next
    violation: str = ""


def served(seed: int) -> Server:
    """A cluster with the policy in force and an object to write."""
    server = with_namespace(cluster(Timeline(START), random.Random(seed)))
    ask = Asker(server)
    ask("POST", "/api/v1/namespaces", {"metadata": {"name": "team"}})
    ask("POST", "/api/v1/namespaces/team/configmaps", {"metadata": {"name": "target"}})
    install_fence(server)
    server.authorize = lambda _call: None
    server.audit = AuditLog()
    return server


def run(seed: int, failovers: int, *, checks: bool = True) -> Outcome:
    """Force the given number of failovers, each in one of five ways, and check the audit log."""
    server, rng = served(seed), random.Random(seed)
    actors = [Actor(f"c{number}", server, random.Random(rng.random()), checks) for number in range(3)]
    found, numbers = Outcome(), len(actors)
    while found.failovers < failovers:
        leader = _leader(server, actors)
        if leader is None:
            found.violation = f"no controller led within {4 * BOUND_S:g} s"
            break
        server.timeline.run_for(rng.uniform(0.3, 2.0))
        actors.remove(leader)
        way = rng.choice(["killed", "paused", "cut off", "answers lost", "released"])
        began_s = server.timeline.now_s
        if way == "paused":
            leader.paused_until_s = began_s + rng.uniform(BOUND_S, 3 * BOUND_S)
        elif way in {"cut off", "answers lost"}:
            leader.candidate.cut(fate="request lost" if way == "cut off" else "answer lost")
        else:
            leader.dead = True
            if way == "released":
                leader.candidate.elector.release()
        following = _leader(server, actors)
        if following is None:
            found.violation = f"no controller led within {4 * BOUND_S:g} s after {leader.name} was {way}"
            break
        found.failovers += 1
        found.longest_s = max(found.longest_s, server.timeline.now_s - began_s)
        server.timeline.run_for(rng.uniform(0.0, 4 * BOUND_S))
        leader.candidate.join()
        if leader.dead:
            leader = Actor(f"c{numbers}", server, random.Random(rng.random()), checks)
            numbers += 1
        actors.append(leader)
    server.timeline.run_for(4 * BOUND_S)
    _judge(server, found)
    return found


def _leader(server: Server, actors: list[Actor]) -> Actor | None:
    """The one that leads now, or the next one that does."""
    ends_s = server.timeline.now_s + 4 * BOUND_S
    while server.timeline.now_s < ends_s:
        for each in actors:
            if each.stands and each.candidate.elector.fence() is not None:
                return each
        server.timeline.run_for(0.05)
    return None


def _judge(server: Server, found: Outcome) -> None:
    """One actor for each epoch, epochs that only rise, and no change by one whose term was over."""
    assert server.audit is not None
    highest = 0
    who: dict[int, str] = {}
    for each in server.audit.by(OURS.name):
        if each.resource == "configmaps" and each.name == "target":
            epoch, name = _stated(each)
            found.writes += each.done
            found.refused += each.status == 403
            if not each.done:
                continue
            if epoch < highest and not found.violation:
                found.violation = f"{name} wrote with epoch {epoch} at {each.at_s:.2f} s, after epoch {highest} began"
            if who.setdefault(epoch, name) != name and not found.violation:
                found.violation = f"{name} and {who[epoch]} both wrote with epoch {epoch}"
            highest = max(highest, epoch)
        elif each.resource == "epochs.gpu-autopilot.io" and each.done:
            highest = max(highest, int(each.body["spec"]["epoch"]))


def _stated(entry: Entry) -> tuple[int, str]:
    notes = entry.body["metadata"]["annotations"]
    return int(notes[EPOCH]), str(notes["by"])
