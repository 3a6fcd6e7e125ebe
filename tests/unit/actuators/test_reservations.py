"""Quota that Kueue holds for work that does not start, and that a gang which starts now lacks."""

from __future__ import annotations

import json
from dataclasses import replace

from actuators.kubernetes.actuator import KubernetesActuator
from actuators.kubernetes.levers.reservations import PATIENCE_S, WAITS, TakenQuota, WaitingChecks
from autopilot.contract.annotations import STOPPED
from autopilot.core.effects.admit import AdmitOperation
from autopilot.core.model.records import Instruction, OutcomeKind
from tests.kits.acting_kit import Acting, admit
from tests.kits.kueue_kit import SPACE

BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"


def test_a_gang_gets_the_quota_that_work_behind_it_holds(acting: Acting) -> None:
    """The work behind it is deactivated with our mark, says so, and is active again once the gang has started."""
    behind = acting.waiting_job("behind", 8, pods=2)
    first = acting.waiting_job("first", 8, pods=2)
    actuator, start = _actuator(acting), acting.instruction(first, _takes(behind))
    assert actuator.apply(start, acting.now_s).reason == WAITS
    assert _said(acting, "first") == "epoch 1: 1/p/w: it waits for quota; after 30 s it takes that of team/work"
    acting.run(PATIENCE_S - 1)
    assert actuator.advance(acting.now_s, 1, [start]) == ()
    assert acting.workload("behind")["spec"]["active"]

    acting.run(1)
    assert actuator.apply(start, acting.now_s).reason == f"{WAITS}; that of {_name(acting, 'behind')} was taken for it"
    acting.run(3)
    assert actuator.advance(acting.now_s, 1, [start]) == ()
    acting.run(5)
    assert sorted(each["spec"]["nodeName"] for each in acting.pods("first")) == ["n1", "n2"]
    actuator.advance(acting.now_s, 1, [start])
    held = acting.workload("behind")
    mark = json.loads(held["metadata"]["annotations"][STOPPED])
    assert (held["spec"]["active"], mark["id"], mark["returns"], mark["for"]) == (False, "1/p/w", True, "default/w")
    assert [reason for reason, _ in acting.events(_name(acting, "behind"))] == ["QuotaTaken"]
    taken = "its quota was taken for default/w, and it is activated again once that start is over"
    assert _said(acting, "behind") == f"epoch 1: 1/p/w: {taken}"

    acting.ask("DELETE", "/apis/batch/v1/namespaces/default/jobs/first", {"propagationPolicy": "Background"})
    acting.run(5)
    actuator.advance(acting.now_s, 1, ())  # the view shows its pods, so the controller waits for it no more
    acting.run(3)
    back = acting.workload("behind")
    assert (back["spec"]["active"], STOPPED in back["metadata"]["annotations"]) == (True, False)
    assert {"QuotaTaken", "QuotaReturned"} == {reason for reason, _ in acting.events(_name(acting, "behind"))}
    start = acting.instruction(behind, admit("n2", "n3"), number="2/p/w", revision=acting.revision(behind))
    actuator.apply(start, acting.now_s)
    acting.run(5)
    assert sorted(each["spec"]["nodeName"] for each in acting.pods("behind")) == ["n2", "n3"]
    acting.finish("behind")


def _taken(acting: Acting) -> tuple[KubernetesActuator, Instruction]:
    """A gang that waits for its start, after it has taken the quota of another one; the process that took it."""
    behind = acting.waiting_job("behind", 8, pods=2)
    first = acting.waiting_job("first", 8, pods=4)
    actuator, start = _actuator(acting), acting.instruction(first, _takes(behind))
    actuator.apply(start, acting.now_s)
    acting.run(PATIENCE_S)
    actuator.advance(acting.now_s, 1, [start])
    assert acting.workload("behind")["spec"]["active"] is False
    return actuator, start


def test_a_new_process_gives_back_by_the_mark(acting: Acting) -> None:
    """It keeps what a start that is under way has taken, and gives back where no such start is known any more."""
    _, start = _taken(acting)
    restarted = _actuator(acting)
    restarted.advance(acting.now_s, 2, [start])
    assert acting.workload("behind")["spec"]["active"] is False
    _actuator(acting).advance(acting.now_s, 3, ())
    assert acting.workload("behind")["spec"]["active"] is True
    acting.finish("behind", "first")


def test_quota_comes_back_where_the_gang_is_deleted(acting: Acting) -> None:
    """The controller does not wait for a start of work that is gone."""
    actuator, _ = _taken(acting)
    acting.ask("DELETE", "/apis/batch/v1/namespaces/default/jobs/first", {"propagationPolicy": "Background"})
    acting.run(5)
    actuator.advance(acting.now_s, 1, ())
    acting.run(3)
    assert acting.workload("behind")["spec"]["active"] is True
    assert acting.kueue.condition("behind", "QuotaReserved")[0] == "True"
    acting.finish("behind")


def test_what_a_person_deactivated_stays_out(acting: Acting) -> None:
    """Their word on `active` is the last, although our mark is still there."""
    actuator, _ = _taken(acting)
    path = f"{SPACE}/workloads/{_name(acting, 'behind')}"
    for active in (True, False):
        acting.ask("PATCH", path, {"spec": {"active": active}})
    actuator.advance(acting.now_s, 1, ())
    assert acting.workload("behind")["spec"]["active"] is False
    acting.finish("behind", "first")


def test_one_reservation_is_taken_at_a_time(acting: Acting) -> None:
    """The first that the decision names covers it, and the other stays. One that it does not name stays always."""
    old, young = acting.waiting_job("old", 8), acting.waiting_job("young", 8, pods=2)
    first = acting.waiting_job("first", 8)
    actuator, start = acting.actuator(), acting.instruction(first, admit("n1"))
    actuator.apply(start, acting.now_s)
    acting.run(PATIENCE_S)
    actuator.apply(start, acting.now_s)
    assert [acting.workload(name)["spec"]["active"] for name in ("old", "young")] == [True, True]
    start = acting.instruction(first, _takes(young, old), number="2/p/w")
    actuator.apply(start, acting.now_s)
    acting.run(PATIENCE_S)
    for _ in range(2):  # Kueue has not reserved it yet when it is looked at again
        actuator.apply(start, acting.now_s)
    assert [acting.workload(name)["spec"]["active"] for name in ("old", "young")] == [True, False]
    acting.finish("old", "young", "first")


def test_a_reservation_of_this_moment_stays(acting: Acting) -> None:
    """It may be that of work whose start is under way."""
    acting.running_job("runs", "n1", number="0/p/runs")
    acting.waiting_job("leaves", 8, pods=2)
    first = acting.waiting_job("first", 8, pods=3)
    fresh = acting.waiting_job("fresh", 8, pods=2)
    actuator, start = acting.actuator(), acting.instruction(first, _takes(fresh))
    actuator.apply(start, acting.now_s)
    acting.run(PATIENCE_S - 5)
    acting.ask("DELETE", "/apis/batch/v1/namespaces/default/jobs/leaves", {"propagationPolicy": "Background"})
    acting.run(6)
    assert acting.kueue.condition("fresh", "QuotaReserved")[0] == "True"
    actuator.apply(start, acting.now_s)
    assert acting.workload("fresh")["spec"]["active"]
    acting.run(PATIENCE_S)
    actuator.apply(start, acting.now_s)
    assert not acting.workload("fresh")["spec"]["active"]
    acting.finish("runs", "first", "fresh")


def test_work_that_runs_keeps_its_quota(acting: Acting) -> None:
    """Also where its queue got our check while it ran, so that the check is still pending, and no policy guards it."""
    acting.ask("DELETE", f"{BINDINGS}/gpu-autopilot-fields")
    running = acting.running_job("runs", "n1", "n2", number="1/p/runs")
    runs, rows = f"{SPACE}/workloads/{_name(acting, 'runs')}/status", acting.workload("runs")["status"]
    acting.ask("PATCH", runs, {"status": {"admissionChecks": [{**rows["admissionChecks"][0], "state": "Pending"}]}})
    first = acting.waiting_job("late", 8, pods=2)
    actuator, start = acting.actuator(), acting.instruction(first, _takes(running))
    for _ in range(3):
        outcome = actuator.apply(start, acting.now_s)
        assert (outcome.kind, outcome.reason) == (OutcomeKind.ACCEPTED, WAITS)
        acting.run(PATIENCE_S)
    found = acting.workload("runs")
    assert (found["spec"]["active"], found["status"]["admissionChecks"][0]["state"]) == (True, "Pending")
    assert len(acting.pods("runs")) == 2
    acting.finish("runs", "late")


def test_the_check_says_whose_approval_a_gang_waits_for(acting: Acting) -> None:
    """Written once; words about an approval are replaced once it is given, and those of a start under way are not."""
    upkeep, (first, behind) = WaitingChecks(), (acting.waiting_job(name, 8, pods=2) for name in ("first", "behind"))
    actuator = KubernetesActuator(acting.api("admit"), acting, upkeep=(upkeep,))
    words = "its start waits for a person: `autopilot approve x`"
    upkeep.tell({first: words, behind: words, "gone": words})
    actuator.advance(acting.now_s, 1, ())
    assert [_said(acting, name) for name in ("first", "behind")] == [f"epoch 1: waits: {words}"] * 2
    version = acting.workload("first")["metadata"]["resourceVersion"]
    actuator.advance(acting.now_s, 1, ())
    assert acting.workload("first")["metadata"]["resourceVersion"] == version

    upkeep.tell({})
    start = acting.instruction(behind, _takes(first))
    actuator.apply(start, acting.now_s)
    actuator.advance(acting.now_s, 1, [start])
    assert _said(acting, "behind").startswith("epoch 1: 1/p/w: it waits for quota")
    assert _said(acting, "first") == "epoch 1: waits: it waits; `autopilot explain --workload NAME` says for what"
    acting.finish("first", "behind")


def _actuator(acting: Acting) -> KubernetesActuator:
    """A process that also gives back what was taken."""
    return KubernetesActuator(acting.api("admit"), acting, upkeep=(TakenQuota(),))


def _takes(*uids: str) -> AdmitOperation:
    """A start that may take the quota of these."""
    return replace(admit("n1", "n2"), quota_from=dict.fromkeys(uids, "team/work"))


def _said(acting: Acting, job: str) -> str:
    """The message of our check."""
    text: str = acting.workload(job)["status"]["admissionChecks"][0]["message"]
    return text


def _name(acting: Acting, job: str) -> str:
    name: str = acting.workload(job)["metadata"]["name"]
    return name
