"""Kueue is away for ten minutes: its webhooks do not answer, and the API server refuses every write of Jobs and pods.

What runs goes on. A person deletes a Job meanwhile, so that there is room for work that waits behind the gate of the
autopilot. The autopilot decides its start, is refused, and waits: nothing is written by half, no attempt counts as
failed, and the autopilot does not pause itself. When Kueue answers again, all of it starts.

So it is with starts that Kueue was to carry out when it went away: nothing that the autopilot writes is refused then,
and yet they are late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actuators.kubernetes.changes import GATED_BY
from autopilot.contract.annotations import CONTROLLER
from tests.kits.deciding_kit import Deciding
from tests.kits.kueue_kit import JOBS
from tests.kits.playground_acting import policy_of

DOWN_S = 600.0
WAITING = tuple(f"waits-{number}" for number in range(5))
"""As many as the failed effects after which the autopilot pauses itself."""


def open_cluster(folder: Path, kind: Callable[..., Deciding] = Deciding) -> Deciding:
    """Three nodes of eight GPUs, and the autopilot in charge of their queue."""
    return kind(folder, policy_of())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Deciding]:
    """That cluster."""
    found = open_cluster(tmp_path)
    yield found
    found.close()


def test_an_outage_of_kueue_is_waited_out(cluster: Deciding) -> None:
    """The work has not changed when Kueue is back, and has started soon after."""
    cluster.run_gang("runs", pods=1)
    cluster.run_gang("ends", pods=2)
    for name in WAITING:
        cluster.ask("POST", JOBS, cluster.kueue.job_of(name, "a", 2, gate=CONTROLLER))
    cluster.wait(20.0)
    before = [cluster.job(name) for name in WAITING]
    runs = cluster.hosts("runs")

    cluster.kueue.kueue.stop()
    refused = cluster.ask.response("POST", JOBS, cluster.kueue.job_of("new", "a", 1))
    assert "failed calling webhook" in refused.body["message"]
    cluster.ask("DELETE", f"{JOBS}/ends", {"propagationPolicy": "Background"})
    cluster.wait(DOWN_S)
    assert cluster.hosts("ends") == []
    assert cluster.actions["admit_gang"] >= len(WAITING), cluster.actions
    assert [cluster.job(name) for name in WAITING] == before

    cluster.kueue.kueue.restart()
    cluster.wait(30.0)
    assert [len(cluster.hosts(name)) for name in WAITING] == [1] * len(WAITING)
    assert cluster.hosts("runs") == runs


def test_starts_that_kueue_does_not_carry_out_do_not_fail(cluster: Deciding) -> None:
    """The gates are open, and Kueue goes away before it admits the work."""
    for name in WAITING:
        cluster.ask("POST", JOBS, cluster.kueue.job_of(name, "a", 2, gate=CONTROLLER))
    cluster.wait(2.0)
    cluster.until(lambda: not any(GATED_BY in cluster.workload(name)["metadata"]["annotations"] for name in WAITING))
    cluster.kueue.kueue.stop()
    for _ in range(10):
        cluster.wait(DOWN_S / 10)
        assert cluster.failures == 0
        assert cluster.attempts <= 1
    assert not any(cluster.hosts(name) for name in WAITING)

    cluster.kueue.kueue.restart()
    cluster.wait(90.0)
    assert [len(cluster.hosts(name)) for name in WAITING] == [1] * len(WAITING)
    assert cluster.failures == 0
