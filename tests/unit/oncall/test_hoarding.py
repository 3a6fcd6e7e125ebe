"""An alert about a tenant that hoards: what helps takes from that tenant, and where nothing helps it says who may."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from autopilot.core.model.memory import Step
from autopilot.core.model.policy import Mode
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.oncall.book import AlertBook, AlertRecord, Stage
from autopilot.oncall.follow import Follower
from autopilot.oncall.payload import Delivered
from autopilot.oncall.queries import QueryError, Series
from autopilot.oncall.runbook import load_runbooks
from autopilot.service.published import Published, Publisher
from tests.kits.core_world import observe, with_policy
from tests.kits.idle_world import NOW_S, QUICK, idle_scene, look

NAME, HOUR_S = "GPUAutopilotTenantHoarding", 3600.0
ASKS = with_policy(QUICK, modes={"suspend_idle": Mode.APPROVE})


class OnCall:
    """Ticks of a cluster, and one alert about a tenant that is followed after each of them."""

    def __init__(self, book: AlertBook, tenant: str) -> None:
        labels = {"alertname": NAME, "tenant": tenant}
        book.receive([Delivered("1", "2026-11-29T00:00:00.000Z", True, labels, "")], NOW_S)
        self._book = book
        self._follower = Follower(book, load_runbooks(), silent, Publisher().wait_for_next)
        self._step: Step | None = None

    def at(self, snap: ClusterSnapshot, now_s: float) -> AlertRecord:
        """The alert after the tick of a time."""
        self._step = look(snap, now_s, self._step, ASKS)
        step = self._step
        self._follower.look(Published(observe(snap, now_s), step.decision, step.memory, ASKS, 0.0, 0.0))
        return self._book.recent(1)[0]


def silent(_query: str) -> Series:
    """No Prometheus."""
    raise QueryError("HTTP 503")


@pytest.fixture
def book(tmp_path: Path) -> Iterator[AlertBook]:
    """An empty book."""
    made = AlertBook(tmp_path / "alerts.db")
    yield made
    made.close()


def tenants(snap: ClusterSnapshot) -> ClusterSnapshot:
    """`w` is of tenant t0, `p` of tenant t1."""
    snap.workloads.tenant[:] = np.array([0, 1])
    return snap


def test_after_a_notice_the_suspension_that_becomes_due_is_proposed(book: AlertBook) -> None:
    """The alert does not wait for the end of its verification with something at hand that a person may approve."""
    snap = tenants(idle_scene())
    on = OnCall(book, "t0")
    assert on.at(snap, NOW_S).stage == Stage.ACTING
    noticed = on.at(snap, NOW_S + 200.0)
    assert noticed.stage == Stage.VERIFYING
    found = on.at(snap, NOW_S + 200.0 + HOUR_S)
    assert found.stage == Stage.PROPOSED
    assert [each.startswith("suspend-idle-p") for each in found.proposals] == [True]
    assert found.acted == noticed.acted != ()


def test_what_gives_to_a_tenant_does_not_end_its_hoarding(book: AlertBook) -> None:
    """The suspension of `w` starts work of t1, and an alert about t1 is not ended by it."""
    snap = tenants(idle_scene())
    on = OnCall(book, "t1")
    for at_s in (NOW_S, NOW_S + 200.0, NOW_S + 200.0 + HOUR_S):
        found = on.at(snap, at_s)
        assert (found.stage, found.acted) == (Stage.WAITING, ())
        assert "Idle" not in found.reason


def test_where_nobody_waits_it_names_the_work_and_who_may_stop_it(book: AlertBook) -> None:
    """At once after the notice, and after the time of the runbook."""
    snap = tenants(idle_scene())
    snap.workloads.excluded[1] = True  # `p` is not to be started
    on = OnCall(book, "t0")
    on.at(snap, NOW_S)
    words = "Idle: w (8 GPUs); its owner or an admin of its queue may stop it, as the runbook says"
    for at_s, stage in ((NOW_S + 200.0, Stage.VERIFYING), (NOW_S + 400.0 + HOUR_S, Stage.NOT_VERIFIED)):
        found = on.at(snap, at_s)
        assert (found.stage, words in found.reason) == (stage, True), found
    text = load_runbooks()[NAME].text
    assert "kubectl -n NAMESPACE delete job NAME" in text
    assert "kubectl -n NAMESPACE patch workload WORKLOAD" in text
