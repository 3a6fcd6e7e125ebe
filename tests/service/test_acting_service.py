"""The service as a process that acts on a cluster with Kueue: it serves its check and starts a gang."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.kits.acting_kit import CHECKED, Acting
from tests.service.kit import poll, service, settings

POLICY = "base: recommend\nname: acts\nmodes: {admit_gang: auto}\nhysteresis: {dwell_s: 0}\n"


@pytest.fixture
def acting(tmp_path: Path) -> Iterator[Acting]:
    """Two nodes of eight GPUs, and a queue whose check nobody serves yet."""
    found = Acting(tmp_path, nodes=2, start=datetime.now(UTC))
    found.add_check(active=False)
    found.kueue.queue("a", 16, admissionChecksStrategy=CHECKED)
    found.run(2)
    yield found
    found.close()


def content(acting: Acting, folder: Path, **over: Any) -> dict[str, Any]:
    """Settings beside the cluster."""
    (folder / "policy.yaml").write_text(POLICY, "utf-8")
    kubernetes = {"kubeconfig": str(acting.kubeconfig), "watch_s": 2, "act": True}
    found = settings(folder / "state", policy=str(folder / "policy.yaml"), kubernetes=kubernetes, **over)
    del found["simulation"]
    return found


def test_a_gang_is_admitted_whole_by_the_service(acting: Acting, tmp_path: Path) -> None:
    """The check becomes active, and the gang starts on the nodes of the decision."""
    acting.release()
    with service(tmp_path, content(acting, tmp_path)) as running:
        poll(lambda: running.tick() > 1, "no tick")
        poll(acting.check_is_active, "the check is not served")
        acting.kueue.job("wide", "a", 8, 2)

        def started() -> list[str]:
            nodes = [each["spec"].get("nodeName", "") for each in acting.pods("wide")]
            return sorted(nodes) if len(nodes) == 2 and all(nodes) else []

        assert poll(started, "the gang does not start") == ["n1", "n2"]
        (check,) = acting.workload("wide")["status"]["admissionChecks"]
        assert "placed on" in check["message"]
        assert [reason for reason, _ in acting.events("wide")] == ["AdmitBegun"]
        assert running.end() == 0
