"""Ready is written for the very reading that the placement was computed from, whatever happens in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from actuators.kubernetes.actuator import KubernetesActuator
from actuators.kubernetes.api import Answer, Api, Ref
from actuators.kubernetes.levers.check_state import our_check
from autopilot.core.model.records import Cause, OutcomeKind
from tests.kits.acting_kit import Acting, admit
from tests.kits.kueue_kit import JOBS, SPACE


class Meanwhile(Api):
    """Somebody acts once: before the Workload is read again, or before it is written."""

    act: Callable[[], None] | None = None
    before = "read"
    reads = 0

    def _acts(self) -> None:
        act, self.act = self.act, None
        if act is not None:
            act()

    def read(self, ref: Ref) -> Answer:
        """As the server answers."""
        self.reads += ref.kind == "Workload"
        if ref.kind == "Workload" and self.reads == 2 and self.before == "read":
            self._acts()
        return super().read(ref)

    def patch(self, path: str, *words: Any, **more: Any) -> Answer:
        """As the server answers."""
        if path.endswith("/status") and self.before == "write":
            self._acts()
        return super().patch(path, *words, **more)


def racing(acting: Acting, before: str, act: Callable[[], None]) -> KubernetesActuator:
    """An actuator in whose way somebody gets."""
    api = Meanwhile(acting.rights.access("admit"))
    api.act, api.before = act, before
    return KubernetesActuator(api, acting)


@pytest.mark.parametrize("before", ["read", "write"])
def test_a_workload_that_was_written_meanwhile_is_looked_at_again(acting: Acting, before: str) -> None:
    """Its pod sets, its reservation or another check may differ: the place is checked against them first."""
    uid = acting.waiting_job("moving", 8)
    path = f"{SPACE}/workloads/{acting.workload('moving')['metadata']['name']}"

    def annotate() -> None:
        acting.ask("PATCH", path, {"metadata": {"annotations": {"a": "b"}}})

    actuator, start = racing(acting, before, annotate), acting.instruction(uid, admit("n2"))
    outcome = actuator.apply(start, acting.now_s)
    assert (outcome.kind, "written meanwhile" in outcome.reason) == (OutcomeKind.ACCEPTED, True)
    assert our_check(acting.workload("moving"))["state"] == "Pending"
    assert actuator.advance(acting.now_s, 1, [start]) == ()
    assert our_check(acting.workload("moving"))["state"] == "Ready"
    acting.finish("moving")


@pytest.mark.parametrize("before", ["read", "write"])
def test_a_workload_made_anew_under_its_name_gets_no_earlier_placement(acting: Acting, before: str) -> None:
    """Kueue does that where a user changes the parallelism of a waiting Job. The server does not compare the uid."""
    uid = acting.waiting_job("anew", 8, 2)
    old = acting.workload("anew")["metadata"]

    def narrow() -> None:
        acting.ask("PATCH", f"{JOBS}/anew", {"spec": {"parallelism": 1}})
        acting.run(1)

    outcome = racing(acting, before, narrow).apply(acting.instruction(uid, admit("n2", "n3")), acting.now_s)
    new = acting.workload("anew")
    assert (new["metadata"]["name"], new["metadata"]["uid"] != old["uid"]) == (old["name"], True)
    assert (outcome.kind, outcome.cause) == (OutcomeKind.CONFLICT, Cause.REPLACED)
    assert our_check(new)["state"] == "Pending"
    assert "podSetUpdates" not in our_check(new)
    acting.finish("anew")
