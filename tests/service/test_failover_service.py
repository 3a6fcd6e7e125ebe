"""Two controllers as processes beside one API server: one leads, the other stands by and takes over."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from apiserver.http.serve import Running as Api
from apiserver.http.serve import serve
from apiserver.server import Server
from apiserver.timeline import Timeline
from tests.kits.lead_kit import NAME, with_namespace
from tests.service.kit import poll, service, settings

LEASE = {"duration_s": 2, "renew_s": 1.2, "retry_s": 0.3}


@pytest.fixture
def api() -> Iterator[Api]:
    """An empty cluster with the namespace of the service."""
    with serve(with_namespace(Server(Timeline(datetime.now(UTC)), random.Random(3)))) as running:
        yield running


def content(folder: Path, api: Api) -> dict[str, Any]:
    """Settings of one controller."""
    folder.mkdir()
    (folder / "kubeconfig").write_text(api.kubeconfig(), "utf-8")
    beside = {"kubeconfig": str(folder / "kubeconfig"), "watch_s": 2, "lease": LEASE}
    given = settings(folder / "state", policy="recommend", kubernetes=beside)
    del given["simulation"]
    return given


def test_the_other_controller_takes_over_what_was_decided(api: Api, tmp_path: Path) -> None:
    """The first one is killed after a person paused it: the second one leads with the next fence, and stays paused."""
    with service(tmp_path / "a", content(tmp_path / "a", api)) as one:
        poll(lambda: one.tick() > 0, "the first one leads")
        with service(tmp_path / "b", content(tmp_path / "b", api)) as two:
            ready = poll(lambda: two.ask("/readyz").json()["status"].startswith("stands by"), "the second one waits")
            assert ready
            refused = two.ask("/api/v1/pause", "POST")
            assert (refused.status_code, "stands by" in refused.text) == (503, True)
            assert two.ask("/api/v1/state").status_code == 503
            assert one.ask("/api/v1/pause", "POST").json()["result"] == "obeyed"
            one.end(signal.SIGKILL)
            poll(lambda: two.tick() > 0, "the second one leads")
            assert "paused" in str(two.ask("/api/v1/state").json()["halted"])
            with api.clock.lock:
                found = api.shell.server.store.get("leases.coordination.k8s.io", NAME.namespace, NAME.name)
            assert found is not None
            assert found["spec"]["leaseTransitions"] == 2
            assert two.end() == 0
            with api.clock.lock:
                found = api.shell.server.store.get("leases.coordination.k8s.io", NAME.namespace, NAME.name)
            assert found is not None
            assert found["spec"]["holderIdentity"] == ""
