"""A process that is paused between check and write: the API server refuses what it sends after the takeover."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from apiserver.audit import AuditLog
from apiserver.cluster import cluster
from apiserver.http.serve import Running, serve
from apiserver.timeline import Timeline
from apiserver.users import service_account
from autopilot.readiness.fence import EPOCH
from autopilot.service.leading.epoch import ClusterEpoch
from autopilot.service.leading.lease import Terms
from tests.kits.apiserver_kit import Asker
from tests.kits.fence_kit import install_fence
from tests.kits.lead_kit import NAME, Candidate, with_namespace
from tests.service.kit import poll
from tests.tidy.tree import ROOT

OURS = service_account("gpu-autopilot", "gpu-autopilot")


@pytest.fixture
def api() -> Iterator[Running]:
    """A cluster over HTTP where every request is one of our account, with a pod and the policy in force."""
    server = with_namespace(cluster(Timeline(datetime.now(UTC)), random.Random(1)))
    ask = Asker(server)
    ask("POST", "/api/v1/namespaces", {"metadata": {"name": "team"}})
    body = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main", "image": "app:1"}]}}
    ask("POST", "/api/v1/namespaces/team/pods", body)
    install_fence(server)
    server.authenticate, server.authorize = lambda _request: OURS, lambda _call: None
    server.audit = AuditLog()
    with serve(server) as running:
        yield running


def test_a_write_of_a_paused_leader_is_refused_after_the_takeover(api: Running, tmp_path: Path) -> None:
    """SIGSTOP between check and write, SIGCONT when another controller leads."""
    kubeconfig, server = tmp_path / "kubeconfig", api.shell.server
    kubeconfig.write_text(api.kubeconfig(), "utf-8")
    command = [sys.executable, "-m", "tests.service.paused_writer", str(kubeconfig)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as paused:
        try:
            _take_over(api, paused)
        finally:
            paused.kill()
    assert server.audit is not None
    writes = [each for each in server.audit.entries if each.resource == "pods"]
    assert [(each.status, each.body["metadata"]["annotations"]["by"]) for each in writes] == [
        (200, "the new one"),
        (403, "the paused one"),
    ]


def _take_over(api: Running, paused: subprocess.Popen[str]) -> None:
    server = api.shell.server
    assert paused.stdout is not None
    assert paused.stdout.readline() == "1\n"
    poll(lambda: "T (stopped)" in Path(f"/proc/{paused.pid}/status").read_text("utf-8"), "the process stops")
    other = Candidate(server, "other", Terms(2.0, 1.0, 0.3), user=OURS)

    def takes_over() -> bool:
        with api.clock.lock:
            other.elector.step()
            return other.elector.fence() == 2

    poll(takes_over, "nobody takes over")
    with api.clock.lock:
        body = {"metadata": {"annotations": {EPOCH: "2", "by": "the new one"}}}
        assert ClusterEpoch(other.api, NAME).claim(2) == ""
        assert other.api.patch("/api/v1/namespaces/team/pods/p", body).status == 200
    os.kill(paused.pid, signal.SIGCONT)
    answer = paused.stdout.readline()
    assert answer.startswith("403 ")
    assert "another controller leads" in answer
    assert paused.stdout.readline() == "False\n"
    assert paused.wait(10) == 0
