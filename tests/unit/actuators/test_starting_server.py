"""A server that has just started refuses what it will permit: that is no missing right."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping

import pytest

from actuators.kubernetes.api import Api, Refusal
from apiserver.http.faults import QUIET, STARTING, FaultPlan
from autopilot.core.model.records import OutcomeKind
from autopilot.core.model.stops import StopReason
from autopilot.kube.access import Access, Address
from autopilot.kube.cluster_api import ClusterApi
from autopilot.kube.starting import Starting, names_a_right
from autopilot.readiness.checks import run_checks
from autopilot.readiness.line import Asked, Status
from autopilot.service.leading.epoch import ClusterEpoch
from autopilot.service.leading.lease import LeaseName
from autopilot.service.watchdog.watch import LeaseWatch
from collectors.kubernetes import kinds
from collectors.kubernetes.cache import Cache
from collectors.kubernetes.reflector import Reflector, Timing
from collectors.kubernetes.transport import ApiError, Lines, Transport
from tests.kits.acting_kit import Acting, evict

LEASE = LeaseName("gpu-autopilot", "gpu-autopilot")
PERMITTED, FORBIDDEN = "/api/v1/nodes", "/api/v1/secrets"


@pytest.fixture
def starting(acting: Acting) -> Iterator[Access]:
    """An account with rights; the server has just started."""
    acting.faults.plan = FaultPlan(starting=1.0)
    yield acting.rights.access("admit")
    acting.faults.plan = QUIET


def by_transport(access: Access, path: str) -> tuple[int, str]:
    """Status and text of the sources' client."""
    try:
        Transport(access).get(path, {})
    except ApiError as error:
        return error.status, error.message
    return 200, ""


def by_levers(access: Access, path: str) -> tuple[int, str]:
    """Status and text of the levers' client."""
    answer = Api(access).get(path)
    assert (answer.refusal == Refusal.RIGHT) == (answer.status == 403)
    return answer.status, answer.message


def by_service(access: Access, path: str) -> tuple[int, str]:
    """Status and text of the client of leadership, watchdog and checks."""
    answer = ClusterApi(access).get(path)
    return answer.status, "" if answer.status == 200 else answer.reason


CLIENTS = [by_transport, by_levers, by_service]


@pytest.mark.parametrize("ask", CLIENTS)
def test_no_client_believes_a_403_of_a_server_that_starts(
    acting: Acting, starting: Access, ask: Callable[[Access, str], tuple[int, str]]
) -> None:
    """Of all its answers none is 403; afterwards what is permitted is answered, and what is forbidden is 403."""
    for _ in range(8):
        status, text = ask(starting, PERMITTED)
        assert status in {0, 429, 503}
        assert "start" in text or "before all known HTTP paths" in text or "does not answer" in text
    acting.faults.plan = QUIET
    assert ask(starting, PERMITTED) == (200, "")
    assert ask(starting, FORBIDDEN)[0] == 403


@pytest.mark.parametrize("ask", CLIENTS)
def test_a_403_just_before_the_rights_are_complete_is_asked_again(
    acting: Acting, ask: Callable[[Access, str], tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`/readyz` is ok by the time of the question, so the request itself is repeated."""

    def ready_now(_self: Starting) -> str:
        acting.faults.plan = QUIET
        return ""

    monkeypatch.setattr(Starting, "why", ready_now)
    monkeypatch.setattr("apiserver.http.faults.STARTING", STARTING[:2])
    acting.faults.plan = FaultPlan(starting=1.0)
    assert ask(acting.rights.access("admit"), PERMITTED) == (200, "")
    assert acting.faults.plan == QUIET


def test_a_kind_is_watched_on_after_the_server_has_started(acting: Acting) -> None:
    """A source neither skips a kind nor stops watching it, as it does where a right is missing."""
    asked: list[str] = []

    class Noted(Transport):
        """Notes in which way it is asked."""

        def get(self, path: str, query: Mapping[str, str]) -> bytes:
            asked.append("list")
            return super().get(path, query)

        def watch(self, path: str, query: Mapping[str, str], silence_s: float) -> Lines:
            asked.append("watch")
            return super().watch(path, query, silence_s)

    cache = Cache(kinds.NODES)
    rng, transport = random.Random(1), Noted(Access(Address(acting.kubeconfig)))
    reflector = Reflector(cache, transport, lambda: acting.now_s, Timing(watch_s=1, silence_s=0.2), rng)
    acting.faults.plan = FaultPlan(starting=1.0)
    for _ in range(6):
        assert reflector.step() < 5.0
        assert "grant it" not in cache.health.problem
    acting.faults.plan = QUIET
    asked.clear()
    reflector.step()  # until the stream is silent: the clock of the server stands still
    assert (cache.health.synced, cache.health.objects, asked) == (True, 3, ["watch"])


def test_a_leader_does_not_take_the_fence_for_absent(starting: Access) -> None:
    """Without the right to read it there is no fence; that is not known yet."""
    epoch = ClusterEpoch(ClusterApi(starting), LEASE)
    with pytest.raises(OSError, match=r"start|known HTTP paths"):
        epoch.known()
    assert epoch.claim(7) != ""


def test_the_watchdog_waits(starting: Access) -> None:
    """The Lease counts as not seen, and no absence begins."""
    seen = LeaseWatch(ClusterApi(starting), LEASE, 10.0).look()
    assert (seen.absent_s, seen.problem != "") == (0.0, True)


def test_the_check_says_that_the_server_starts(starting: Access) -> None:
    """It names no missing right."""
    lines = list(run_checks(Asked(ClusterApi(starting), None, lambda: 0.0, "gpu-autopilot")))
    failed = [line for line in lines if line.status == Status.FAILED]
    assert [line.check for line in failed] == ["api-server"]
    assert "the API server starts" in failed[0].text
    assert "permissions" not in {line.check for line in lines}


def test_an_effect_waits_until_the_server_has_started(acting: Acting) -> None:
    """It is no failure, and goes on afterwards."""
    uid = acting.running_job("patient", "n1")
    actuator, stop = acting.actuator(), acting.instruction(uid, evict(StopReason.MOVE))
    acting.faults.plan = FaultPlan(starting=1.0)
    assert actuator.apply(stop, acting.now_s).kind == OutcomeKind.ACCEPTED
    acting.run(12)
    assert actuator.advance(acting.now_s, 1, [stop]) == ()
    acting.faults.plan = QUIET
    acting.run(12)
    actuator.advance(acting.now_s, 1, [stop])
    acting.run(20)
    assert acting.revision(uid) == 1
    acting.finish("patient")


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ('nodes is forbidden: User "a" cannot list resource "nodes" in API group ""', True),
        ('forbidden: User "a" cannot get path "/apis": RBAC: [clusterrole "b" not found]', True),
        ('pods "p" is forbidden: exceeded quota: gpus', False),
        ("admission webhook \"v\" denied the request: forbidden: User 'a' cannot", False),
        ("configmaps \"c\" is forbidden: ValidatingAdmissionPolicy 'x' denied request: no", False),
    ],
)
def test_only_a_refusal_of_a_right_is_doubted(text: str, *, right: bool) -> None:
    """What an admission plugin says is final."""
    assert names_a_right(403, text) == right
    assert not names_a_right(422, text)
