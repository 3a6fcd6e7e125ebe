"""Control resources that say anything: Recommendations, AutopilotPolicies, the Lease and the Epoch.

What one of them says stops neither the answers to others, nor the ticks, nor the election.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actuators.kubernetes.wire import Conditioned, Part, why_unfit
from autopilot.contract.annotations import APPROVE
from autopilot.contract.documents import parsed
from autopilot.core.model.memory import ControllerMemory
from autopilot.crds.approvals import Approvals, Written
from autopilot.crds.keeper import KIND, Keeper, RecommendationObject
from autopilot.crds.names import POLICIES, RECOMMENDATIONS, collection, path
from autopilot.crds.other_policies import OtherPolicies
from autopilot.crds.policy_status import PolicyStatus
from autopilot.kube.cluster_api import Answer
from autopilot.service.cluster_policy import ClusterPolicySource, PolicyObject
from autopilot.service.inbox import SqliteInbox
from autopilot.service.leading.elector import Elector
from autopilot.service.leading.epoch import ClusterEpoch, EpochObject
from autopilot.service.leading.lease import LeaseObject, Terms
from autopilot.service.published import Published, Publisher
from autopilot.service.record import Record
from autopilot.service.watchdog.watch import LeaseWatch
from collectors.kubernetes.cache import Changes, Health
from tests.hostile.objects import keys_read, names_in, over, sample, spoiled
from tests.hostile.written import ROUGH
from tests.kits.core_world import AUTO, decide, observe, snapshot
from tests.kits.kube_objects import Json, meta
from tests.kits.lead_kit import NAME
from tests.kits.tries import tries

OBJECTS = tries(60, soak=600)
READERS = (
    "autopilot/crds/approvals.py",
    "autopilot/crds/other_policies.py",
    "autopilot/service/leading/lease.py",
    "autopilot/service/leading/epoch.py",
)
OTHERS = {"items"}
"""Of lists."""


def hostile(number: int, kind: type[Part], real: Json, seed: int) -> bytes:
    """One object of a kind; the same one in every process."""
    rng = random.Random(seed * OBJECTS + number)
    found = over(sample(kind), real)
    found["metadata"] = {"annotations": {}, "labels": {}, **found["metadata"], "uid": f"uid-bad-{number}"}
    return spoiled(rng, {"kind": "x", **found})[1]


@dataclass
class Papers:
    """A server that checks nothing: bodies by path, and what is written."""

    bodies: dict[str, bytes] = field(default_factory=dict)
    sent: list[tuple[str, str]] = field(default_factory=list)

    def get(self, at: str, query: Mapping[str, str] | None = None) -> Answer:
        """Read."""
        return Answer(200, self.bodies[at].decode()) if at in self.bodies else Answer(404, "{}")

    def send(self, method: str, at: str, body: Any, media: str = "") -> Answer:
        """Change."""
        self.sent.append((method, at.partition("?")[0]))
        return Answer(201 if method == "POST" else 200, "{}")

    def put(self, at: str, body: Mapping[str, Any]) -> Answer:
        """Replace."""
        self.bodies[at] = json.dumps({**body, "metadata": {**body["metadata"], "resourceVersion": "2"}}).encode()
        return self.get(at)

    def post(self, at: str, body: Mapping[str, Any], query: Mapping[str, str] | None = None) -> Answer:
        """Create: there is one of the name already."""
        return Answer(409, "{}")


def latest() -> Published:
    """A tick of a leader in which nothing waits."""
    seen = observe(snapshot("1x4", []), 100.0)
    step = decide(seen, AUTO, replace(ControllerMemory(), fence=7))
    return Published(seen, step.decision, step.memory, AUTO, step.wake_at_s, 0.0)


@dataclass
class Listing:
    """Recommendations as the list shows them, all with an annotation."""

    names: list[str]

    def drain(self, kind: object) -> Changes:
        """Once."""
        names, self.names = self.names, []
        notes = {"annotations": {APPROVE: "perhaps"}}
        return Changes([msgspec.convert({"metadata": meta(each) | notes}, RecommendationObject) for each in names], [])

    def health(self) -> list[Health]:
        """It is whole."""
        return [Health(KIND, "", True, 0.0, 0)]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[tuple[Publisher, Approvals]]:
    """A leader that publishes, and its approvals."""
    publisher, record, inbox = Publisher(), Record(tmp_path / "audit"), SqliteInbox(tmp_path / "inbox.db", lambda: "")
    publisher.publish(latest())
    yield publisher, Approvals(publisher, inbox, record, lambda: 100.0, lambda: None)
    inbox.close()
    record.close()


@pytest.mark.seeds(100)
def test_a_recommendation_that_says_anything_keeps_no_other_from_its_answer(
    desk: tuple[Publisher, Approvals], soak_seed: int
) -> None:
    """The last one is answered, and the problem names the object, the field and the value."""
    publisher, approvals = desk
    names = [*(f"bad-{number}" for number in range(OBJECTS)), "good"]
    papers = Papers()
    real = {"metadata": meta("good") | {"annotations": {APPROVE: "perhaps"}}, "spec": {"id": "i", "digest": "d"}}
    for number, name in enumerate(names[:-1]):
        body = hostile(number, Written, {"metadata": meta(name) | {"annotations": {APPROVE: "yes"}}}, soak_seed)
        papers.bodies[path(RECOMMENDATIONS, name)] = body
    papers.bodies[path(RECOMMENDATIONS, "good")] = json.dumps(real).encode()
    keeper = Keeper(Listing(names), papers, publisher, approvals, 100, steady_s=lambda: 0.0)
    keeper.look()
    assert ("PATCH", path(RECOMMENDATIONS, "good", "status")) in papers.sent
    assert ("PATCH", path(RECOMMENDATIONS, "good")) in papers.sent
    assert keeper.health.problem.startswith("Recommendation bad-")
    assert " cannot be read: " in keeper.health.problem


@pytest.mark.seeds(100)
def test_a_policy_that_says_anything_stops_no_tick_and_no_other_policy(tmp_path: Path, soak_seed: int) -> None:
    """The last valid one stays in force; the others are told which one counts."""
    papers, seen = Papers(), latest()
    place = PolicyObject("fleet")
    for number in range(OBJECTS):
        real = {"metadata": meta("fleet"), "spec": {"base": "approve", "modes": {"admit_gang": "auto"}}}
        papers.bodies[place.path] = hostile(number, Conditioned, real, soak_seed)
        source = ClusterPolicySource(papers.get, place, tmp_path / "last", lambda: 0.0)
        source.current()
        assert not ROUGH.search(source.problem or ""), source.problem
        assert PolicyStatus(source, papers.get, papers.send, lambda: 0.0)(seen) == ""
    bad = [hostile(number, Conditioned, {"metadata": meta(f"bad-{number}")}, soak_seed) for number in range(OBJECTS)]
    items = b", ".join([*bad, json.dumps({"metadata": meta("second")}).encode()])
    papers.bodies[collection(POLICIES)] = b'{"items": [%s]}' % items
    problem = OtherPolicies(place, papers.get, papers.send, lambda: 0.0)(seen)
    assert ("PATCH", path(POLICIES, "second", "status")) in papers.sent
    assert re.fullmatch(r"AutopilotPolicy \S*bad-\d+ cannot be read: .* is .*", problem)


@pytest.mark.seeds(100)
@pytest.mark.parametrize("number", range(12))
def test_a_lease_that_says_anything_is_taken_over(number: int, soak_seed: int) -> None:
    """Nobody renews it: a controller leads after the time of a lease, and the watchdog counts its absence."""
    papers, now_s = Papers(), [0.0]
    real = {"metadata": meta(NAME.name, NAME.namespace), "spec": {"holderIdentity": "x", "leaseDurationSeconds": 10}}
    body = parsed(hostile(number, LeaseObject, real, soak_seed))
    body["metadata"] = {**body["metadata"], "resourceVersion": "1"}  # the server writes it
    papers.bodies[NAME.path] = json.dumps(body).encode()
    watch = LeaseWatch(papers, NAME, 10.0, lambda: now_s[0])
    elector = Elector(papers, NAME, Terms(), known_fence=lambda: 3, monotonic_s=lambda: now_s[0], wall_s=lambda: 0.0)
    for _ in range(3):
        absent_s, now_s[0] = watch.look().absent_s, now_s[0] + 10.0
    assert absent_s == 20.0
    while elector.fence() is None and now_s[0] < 400.0:
        elector.step()
        now_s[0] += 1.0
    assert (elector.fence() or 0) >= 4, elector.problem


def epoch_at(papers: Papers, at: str) -> Json:
    """What the server answers."""
    return papers.get(at).document


@pytest.mark.seeds(100)
def test_an_epoch_that_cannot_be_read_is_named(soak_seed: int) -> None:
    """Which epoch is the highest is not known then, so that no term begins."""
    papers, five = Papers(), {"metadata": meta(NAME.name), "spec": {"epoch": 5}}
    epoch = ClusterEpoch(papers, NAME)
    at = f"/apis/gpu-autopilot.io/v1alpha1/namespaces/{NAME.namespace}/epochs/{NAME.name}"
    for number in range(OBJECTS):
        papers.bodies[at] = hostile(number, EpochObject, five, soak_seed)
        if why_unfit(epoch_at(papers, at), EpochObject):
            with pytest.raises(OSError, match=" cannot be read: "):
                epoch.known()
            assert " cannot be read: " in epoch.claim(9)
        else:
            assert epoch.known() in {0, 5, 7}
    papers.bodies[at] = json.dumps({"metadata": meta(NAME.name), "spec": {"epoch": 10**20}}).encode()
    with pytest.raises(OSError, match=r"spec.epoch is 10{20}: Expected int <= 2147483646"):
        epoch.known()


def test_every_field_of_a_control_resource_that_is_read_has_a_type() -> None:
    """A name that the code reads and no type has would be met by no hostile object."""
    types = (Written, Conditioned, LeaseObject, EpochObject)
    known = set().union(*(names_in(sample(each)) for each in types))
    unknown = keys_read(*READERS).keys() - known - OTHERS
    assert unknown == set()
