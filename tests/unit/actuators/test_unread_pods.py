"""Pods that cannot be read in an outage: nothing is stopped, started or given up on what is not known."""

from __future__ import annotations

import pytest

from actuators.kubernetes.actuator import KubernetesActuator
from autopilot.contract.annotations import MANAGE
from autopilot.core.model.records import Cause, OutcomeKind
from autopilot.core.model.stops import Save, StopReason
from tests.kits.acting_kit import Acting, Silent, admit, evict
from tests.unit.actuators.test_job_width import ELASTIC, elastic_job, resize
from tests.unit.actuators.test_plain_levers import running_on
from tests.unit.actuators.test_saving import saving


class Half:
    """An actuator whose server answers reads of pods only after `hear`."""

    def __init__(self, acting: Acting, kind: str, *only: str) -> None:
        self.acting, self.api = acting, Silent(acting.rights.access(kind), steady_s=lambda: acting.now_s)
        self.api.only = frozenset(only)
        self.actuator = KubernetesActuator(self.api, acting)

    def hear(self) -> None:
        """The outage is over, also for the actuator, which waits for 10 s."""
        self.api.silent = False
        self.acting.run(12)


def test_a_job_does_not_shrink_by_the_pods_that_are_read(acting: Acting) -> None:
    """A lower number would let the Job controller choose in the place of the pod that is not seen."""
    uid = acting.plain_job("unread", 8, 3, annotations=ELASTIC, completions=None)
    before = running_on(acting, "unread")
    leaving = next(name for name, node in before.items() if node == "n1")
    half = Half(acting, "resize", leaving)
    order = acting.instruction(uid, resize("n2", "n3", reason=StopReason.PREEMPT))
    outcome = half.actuator.apply(order, acting.now_s)
    assert (outcome.kind, "its pods: no answer" in outcome.reason) == (OutcomeKind.ACCEPTED, True)
    assert (running_on(acting, "unread"), acting.job("unread")["spec"]["parallelism"]) == (before, 3)
    half.hear()
    for _ in range(10):
        acting.run(5)
        if found := half.actuator.advance(acting.now_s, 1, [order]):
            assert found[0].kind == OutcomeKind.DONE
            break
    assert sorted(running_on(acting, "unread").values()) == ["n2", "n3"]
    acting.finish("unread")


def test_growth_whose_pods_cannot_be_read_is_given_back_after_the_outage(acting: Acting) -> None:
    """A lower number would stop pods that run. At the deadline it is decided again, and no attempt has failed."""
    uid = elastic_job(acting, "grown")
    starts = acting.instruction(uid, admit("n1"), number="1/p/start")
    acting.actuator().apply(starts, acting.now_s)
    acting.actuator().advance(acting.now_s, 1, [starts])
    acting.run(4)
    acting.plain_job("other", 8, 2, completions=None)
    half = Half(acting, "resize")
    half.api.silent = False
    order = acting.instruction(uid, resize("n1", "n2"), number="2/p/grow", deadline_s=acting.now_s + 15)
    half.actuator.apply(order, acting.now_s)
    half.api.silent = True
    acting.run(16)
    (outcome,) = half.actuator.advance(acting.now_s, 1, [order])
    assert (outcome.kind, outcome.cause) == (OutcomeKind.CONFLICT, Cause.SERVER)
    assert acting.job("grown")["spec"]["parallelism"] == 2
    half.hear()
    assert half.actuator.advance(acting.now_s, 1, []) == ()
    assert acting.job("grown")["spec"]["parallelism"] == 1
    assert list(running_on(acting, "grown").values()) == ["n1"]
    acting.finish("grown", "other")


def test_growth_that_came_about_is_not_given_up(acting: Acting) -> None:
    """The controller has seen it, and waits no more: its Event says so."""
    uid = elastic_job(acting, "there")
    starts = acting.instruction(uid, admit("n1"), number="1/p/start")
    acting.actuator().apply(starts, acting.now_s)
    acting.actuator().advance(acting.now_s, 1, [starts])
    acting.run(4)
    actuator, order = acting.actuator(), acting.instruction(uid, resize("n1", "n2"), number="2/p/grow")
    actuator.apply(order, acting.now_s)
    acting.run(5)
    assert actuator.advance(acting.now_s, 1, []) == ()
    assert acting.job("there")["spec"]["parallelism"] == 2
    words = [reason for reason, _ in acting.events("there")]
    assert ("ResizeDone" in words, "ResizeGaveUp" in words) == (True, False)
    acting.finish("there")


@pytest.mark.parametrize("room", [True, False])
def test_a_start_that_nobody_waits_for_is_judged_after_the_outage(acting: Acting, room: bool) -> None:
    """Neither "its pods are bound to nodes" is said, nor is it taken back, until its pods are read."""
    name = f"begun-{room}".lower()
    uid = acting.plain_job(name, 8, 1, labels={MANAGE: "true"}, suspend=True)
    acting.plain_job("other", 8, 2 if room else 3)
    half = Half(acting, "admit")
    free = ({"n1", "n2", "n3"} - set(running_on(acting, "other").values())) or {"n1"}
    half.actuator.apply(acting.instruction(uid, admit(*free)), acting.now_s)
    acting.run(3)
    assert bool(running_on(acting, name)) == room
    assert half.actuator.advance(acting.now_s, 1, []) == ()
    said = {reason for reason, _ in acting.events(name)}
    assert not said & {"AdmitDone", "AdmitGaveUp"}
    assert not acting.job(name)["spec"]["suspend"]
    half.hear()
    assert half.actuator.advance(acting.now_s, 1, []) == ()
    said = {reason for reason, _ in acting.events(name)} - said
    assert said == ({"AdmitDone"} if room else {"AdmitGaveUp"})
    assert acting.job(name)["spec"]["suspend"] == (not room)
    acting.finish(name, "other")


def test_a_job_that_runs_is_not_suspended_by_pods_that_cannot_be_read(acting: Acting) -> None:
    """The deadline of its start comes in the outage: whether its pods have nodes is not known."""
    uid = acting.plain_job("runs", 8, 1, labels={MANAGE: "true"}, suspend=True)
    half = Half(acting, "admit")
    start = acting.instruction(uid, admit("n1"), deadline_s=acting.now_s + 15)
    half.actuator.apply(start, acting.now_s)
    acting.run(16)
    (outcome,) = half.actuator.advance(acting.now_s, 1, [start])
    assert (outcome.kind, outcome.cause) == (OutcomeKind.CONFLICT, Cause.SERVER)
    half.hear()
    assert half.actuator.advance(acting.now_s, 1, []) == ()
    assert (acting.job("runs")["spec"]["suspend"], len(running_on(acting, "runs"))) == (False, 1)
    acting.finish("runs")


def test_no_pod_of_a_gang_is_evicted_while_another_cannot_be_read(acting: Acting) -> None:
    """A gang that lost a pod is of no use, and the other one would stay."""
    for name in ("e0", "e1"):
        acting.pod(name, 8, group="both")
    half = Half(acting, "evict", "e1")
    order = acting.instruction("group/default/both", evict(StopReason.SUSPEND, save=Save.SKIP))
    assert half.actuator.apply(order, acting.now_s).kind == OutcomeKind.ACCEPTED
    acting.run(2)
    assert sorted(running_on(acting)) == ["e0", "e1"]
    half.hear()
    half.actuator.advance(acting.now_s, 1, [order])
    acting.run(40)
    assert running_on(acting) == {}
    acting.finish("e0", "e1")


def test_an_effect_whose_pods_cannot_be_read_is_not_taken_for_lost(acting: Acting) -> None:
    """The request of an earlier process is on the pods: the next one waits until it can see it."""
    _, instruction = saving(acting, "asked", Save.TRY)
    acting.actuator().apply(instruction, acting.now_s)
    half = Half(acting, "evict")
    assert half.actuator.advance(acting.now_s, 2, [instruction]) == ()
    half.hear()
    assert half.actuator.advance(acting.now_s, 2, [instruction]) == ()
    acting.run(190)
    half.actuator.advance(acting.now_s, 2, [instruction])
    assert acting.job("asked")["spec"]["suspend"]
    acting.finish("asked")
