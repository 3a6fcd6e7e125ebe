"""Notices to owners of idle work, as Events on an API server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from actuators.kubernetes.actuator import KubernetesActuator
from actuators.kubernetes.api import Answer, Api, Refusal
from apiserver.http.faults import FaultPlan
from autopilot.core.idle.notify import Notify
from autopilot.core.model.records import Cause, OutcomeKind
from tests.kits.acting_kit import Acting

NOTICE = Notify(gpus=8.0, idle_s=7500.0, grace_s=3600.0)


@pytest.fixture(scope="module")
def acting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Acting]:
    """A cluster with one queue."""
    found = Acting(tmp_path_factory.mktemp("notices"), nodes=1)
    found.kueue.queue("a", 8)
    found.run(2)
    yield found
    found.close()


def _notices(acting: Acting, name: str) -> list[tuple[str, str]]:
    return [(reason, note) for reason, note in acting.events(name) if reason == "GpusIdle"]


def _job(acting: Acting, name: str) -> str:
    uid: str = acting.kueue.job(name, "a", 8)["metadata"]["uid"]
    acting.run(3)
    return uid


def test_the_owner_reads_what_may_follow_and_how_to_prevent_it(acting: Acting) -> None:
    """One Event on the Job; the work itself is not changed, and the notice is done."""
    uid = _job(acting, "quiet")
    before = acting.job("quiet")["metadata"]["resourceVersion"]
    outcome = acting.actuator().apply(acting.instruction(uid, NOTICE), acting.now_s)
    assert (outcome.kind, outcome.reason) == (
        OutcomeKind.DONE,
        "the owner of Job default/quiet has the notice as an Event",
    )
    ((_, note),) = acting.events("quiet")
    assert note == (
        "it has done nothing for 2 h 5 min on 8 GPUs; it may be suspended with a checkpoint from 1 h after this notice "
        'on. Use the GPUs, end the work, or annotate it with gpu-autopilot.io/exclude: "true"'
    )
    assert acting.job("quiet")["metadata"]["resourceVersion"] == before
    acting.ask("DELETE", "/apis/batch/v1/namespaces/default/jobs/quiet", propagationPolicy="Background")


def test_the_next_process_does_not_say_it_again(acting: Acting) -> None:
    """The first one wrote the Event and ended before its outcome was recorded. A later notice is another one."""
    uid = _job(acting, "once")
    first = acting.instruction(uid, NOTICE, number="n-4")
    for _ in range(2):
        assert acting.actuator().apply(first, acting.now_s).kind == OutcomeKind.DONE
        acting.run(20)
    assert len(_notices(acting, "once")) == 1
    acting.actuator().apply(acting.instruction(uid, NOTICE, number="n-5"), acting.now_s)
    assert len(_notices(acting, "once")) == 2
    acting.ask("DELETE", "/apis/batch/v1/namespaces/default/jobs/once", propagationPolicy="Background")


def test_the_owner_of_a_pod_without_a_job_reads_it_too(acting: Acting) -> None:
    """The Event is on the pod."""
    uid = acting.pod("alone", 1)
    assert acting.actuator().apply(acting.instruction(uid, NOTICE, number="n-1"), acting.now_s).kind == OutcomeKind.DONE
    assert len(_notices(acting, "alone")) == 1
    acting.finish()


def test_a_notice_that_comes_twice_is_given_once(acting: Acting) -> None:
    """The id decides."""
    uid, actuator = _job(acting, "twice"), acting.actuator()
    made = acting.instruction(uid, NOTICE, number="n-2")
    assert actuator.apply(made, acting.now_s) == actuator.apply(made, acting.now_s)
    assert len(_notices(acting, "twice")) == 1


def test_a_notice_that_cannot_be_written_is_not_given(acting: Acting) -> None:
    """Without the Event no later step may follow: the outcome is a failure that may be repeated."""
    uid, actuator = _job(acting, "refused"), acting.actuator().of("notify")
    tools: Any = actuator._tools
    post, tools.events._api = tools.events._api, _NoPosts(tools.api)
    outcome = actuator.apply(acting.instruction(uid, NOTICE, number="n-3"), acting.now_s)
    assert (outcome.kind, outcome.retryable) == (OutcomeKind.FAILED, True)
    assert "the Event on Job default/refused could not be written" in outcome.reason
    tools.events._api = post
    assert actuator.apply(acting.instruction(uid, NOTICE, number="n-3"), acting.now_s).kind == OutcomeKind.DONE
    assert acting.faults.plan == FaultPlan()


class _NoPosts:
    """An API server whose account may not create Events."""

    def __init__(self, api: Any) -> None:
        self._api = api

    def post(self, *_: Any) -> Any:
        """A missing right."""
        return self._api.post("/apis/events.k8s.io/v1/namespaces/absent/events", {})


def test_a_notice_in_an_outage_is_no_attempt(acting: Acting) -> None:
    """It waits, is written when the server answers again, and is decided again where that is after its deadline."""
    for name, late in (("soon", False), ("late", True)):
        uid, api = _job(acting, name), _Mute(acting.rights.access("notify"))
        actuator, order = KubernetesActuator(api, acting), acting.instruction(uid, NOTICE, number=f"n-{name}")
        outcome = actuator.apply(order, acting.now_s)
        assert (outcome.kind, "could not be written: no answer" in outcome.reason) == (OutcomeKind.ACCEPTED, True)
        acting.run(70 if late else 12)
        api.mute = late
        (outcome,) = actuator.advance(acting.now_s, 1, [order])
        assert (outcome.kind, outcome.cause) == (
            (OutcomeKind.CONFLICT, Cause.SERVER) if late else (OutcomeKind.DONE, Cause.NONE)
        )
        assert len(_notices(acting, name)) == (not late)
        acting.ask("DELETE", f"/apis/batch/v1/namespaces/default/jobs/{name}", propagationPolicy="Background")


class _Mute(Api):
    """A server that does not answer what is created."""

    mute = True

    def post(self, path: str, body: Any, query: Mapping[str, str] | None = None) -> Answer:
        """Nothing comes back."""
        return Answer({}, Refusal.UNREACHABLE, "no answer", 0) if self.mute else super().post(path, body, query)
