"""Quota that Kueue holds for work that does not start, and that a gang which starts now lacks."""

from __future__ import annotations

import json

from actuators.kubernetes.levers.reservations import PATIENCE_S, WAITS
from autopilot.contract.annotations import STOPPED
from autopilot.core.model.records import OutcomeKind
from tests.kits.acting_kit import Acting, admit
from tests.kits.kueue_kit import SPACE

BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"


def test_a_gang_gets_the_quota_that_work_behind_it_holds(acting: Acting) -> None:
    """The work behind it is deactivated with our mark, and starts later by an instruction of its own."""
    behind = acting.waiting_job("behind", 8, pods=2)
    first = acting.waiting_job("first", 8, pods=2)
    actuator, start = acting.actuator(), acting.instruction(first, admit("n1", "n2"))
    assert actuator.apply(start, acting.now_s).reason == WAITS
    acting.run(PATIENCE_S - 1)
    assert actuator.advance(acting.now_s, 1, [start]) == ()
    assert acting.workload("behind")["spec"]["active"]

    acting.run(1)
    assert actuator.apply(start, acting.now_s).reason == f"{WAITS}; that of {_name(acting, 'behind')} was taken for it"
    acting.run(3)
    assert actuator.advance(acting.now_s, 1, [start]) == ()
    acting.run(5)
    assert sorted(each["spec"]["nodeName"] for each in acting.pods("first")) == ["n1", "n2"]
    held = acting.workload("behind")
    mark = json.loads(held["metadata"]["annotations"][STOPPED])
    assert (held["spec"]["active"], mark["id"], mark["returns"]) == (False, "1/p/w", True)
    assert [reason for reason, _ in acting.events(_name(acting, "behind"))] == ["QuotaTaken"]

    acting.ask("DELETE", "/apis/batch/v1/namespaces/default/jobs/first", {"propagationPolicy": "Background"})
    acting.run(5)
    start = acting.instruction(behind, admit("n2", "n3"), number="2/p/w", revision=acting.revision(behind))
    assert actuator.apply(start, acting.now_s).reason == "Kueue puts it back in its queue"
    acting.run(3)
    assert actuator.advance(acting.now_s, 1, [start]) == ()
    acting.run(5)
    assert sorted(each["spec"]["nodeName"] for each in acting.pods("behind")) == ["n2", "n3"]
    acting.finish("behind")


def test_no_more_is_taken_than_the_gang_asks_for(acting: Acting) -> None:
    """The first reservation of the view covers it, and the other stays."""
    acting.waiting_job("old", 8)
    acting.waiting_job("young", 8, pods=2)
    first = acting.waiting_job("first", 8)
    actuator, start = acting.actuator(), acting.instruction(first, admit("n1"))
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
    actuator, start = acting.actuator(), acting.instruction(first, admit("n1", "n2", "n3"))
    actuator.apply(start, acting.now_s)
    acting.waiting_job("fresh", 8, pods=2)
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
    acting.running_job("runs", "n1", "n2", number="1/p/runs")
    runs, rows = f"{SPACE}/workloads/{_name(acting, 'runs')}/status", acting.workload("runs")["status"]
    acting.ask("PATCH", runs, {"status": {"admissionChecks": [{**rows["admissionChecks"][0], "state": "Pending"}]}})
    first = acting.waiting_job("late", 8, pods=2)
    actuator, start = acting.actuator(), acting.instruction(first, admit("n2", "n3"))
    for _ in range(3):
        outcome = actuator.apply(start, acting.now_s)
        assert (outcome.kind, outcome.reason) == (OutcomeKind.ACCEPTED, WAITS)
        acting.run(PATIENCE_S)
    found = acting.workload("runs")
    assert (found["spec"]["active"], found["status"]["admissionChecks"][0]["state"]) == (True, "Pending")
    assert len(acting.pods("runs")) == 2
    acting.finish("runs", "late")


def _name(acting: Acting, job: str) -> str:
    name: str = acting.workload(job)["metadata"]["name"]
    return name
