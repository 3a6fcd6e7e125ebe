"""The service as a process beside an API server: it recommends, touches nothing, and says what it cannot see."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import requests

from apiserver.http.serve import Running as Api
from apiserver.http.serve import serve
from apiserver.server import Server
from apiserver.timeline import Timeline
from apiserver.users import ADMIN
from autopilot.contract.annotations import MANAGE
from autopilot.metering.amounts import GRAINS_PER_GPU_S, Row
from autopilot.metering.segments import DAY, Segments
from autopilot.service.state_folder import read_note
from tests.kits.kube_objects import job, node
from tests.service.kit import Running, poll, service, settings

GIVEN = {"name", "namespace", "labels", "annotations"}
CONTRACT = {"gpu-autopilot.io/slo-class": "batch"}


@pytest.fixture
def api() -> Iterator[Api]:
    """A server with two nodes of eight GPUs and no controllers."""
    server = Server(Timeline(datetime.now(UTC)), random.Random(3))
    client = server.client(ADMIN, "test")
    client.create("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    for name in ("n1", "n2"):
        found = node(name)
        client.create("nodes", _bare(found))
        client.patch("nodes", "", name, {"status": found["status"]}, "status")
    with serve(server) as running:
        yield running


def _bare(found: dict[str, Any]) -> dict[str, Any]:
    """An object as a client creates it: the server gives uid, version and time."""
    given = {
        key: value for key, value in found["metadata"].items() if key in {"name", "namespace", "labels", "annotations"}
    }
    return {**{key: value for key, value in found.items() if key != "status"}, "metadata": given}


def create_job(api: Api, name: str, gpus: int) -> None:
    """A suspended Job that asks to be managed."""
    found = _bare(job(name, gpus, suspend=True, annotations=CONTRACT, restartPolicy="Never"))
    found["spec"]["template"]["spec"]["containers"][0]["image"] = "app:1"
    found["metadata"]["labels"] = {MANAGE: "true"}
    with api.clock.lock:
        api.shell.server.client(ADMIN, "test").create("jobs.batch", found)


def test_it_recommends_beside_a_cluster_and_touches_nothing(api: Api, tmp_path: Path) -> None:
    """A Job that waits is recommended, under a policy that would act; the Job stays as it is."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(api.kubeconfig(), "utf-8")
    content = settings(tmp_path / "state", policy="autopilot", kubernetes={"kubeconfig": str(kubeconfig), "watch_s": 2})
    del content["simulation"]
    content["metering"] = {"prices": str(metered_before(tmp_path))}
    with service(tmp_path, content) as running:
        poll(lambda: running.tick() > 1, "no tick")
        poll(lambda: budget_ratios(running).keys() == {"team", "(all)"}, "no ratio, or one without a budget")
        assert all(each > 1.0 for each in budget_ratios(running).values()), "the alert fires"
        create_job(api, "train", 8)

        def recommended() -> list[dict[str, Any]]:
            found = running.ask("/api/v1/recommendations").json()["recommendations"] or []
            return [each for each in found if each["workload"] == "team/train"]

        (found,) = poll(recommended, "no recommendation")
        assert (found["action"], found["gpus"], found["answer"]) == ("admit_gang", 8, "recommended")
        state = running.ask("/api/v1/state").json()
        assert (state["halted"], state["signals"]["capacity_gpus"]) == (None, 16.0)
        assert {each["signal"] for each in state["gaps"] if each["object_id"] == "modes.recover"} >= {"xid_code"}
        with api.clock.lock:
            (there,) = api.shell.server.client(ADMIN, "test").list("jobs.batch")
        assert there["spec"]["suspend"]
        assert there["metadata"]["generation"] == 1
        api.close()
        halted = poll(lambda: _problems(running.ask("/api/v1/state").json()), "the outage is not named")
        assert any("the API server does not answer" in each or "the watch was cut" in each for each in halted)
        assert running.end() == 0


def metered_before(folder: Path) -> Path:
    """Nine weeks of two tenants with one GPU each beside the journal; the price file, with a budget of one of them."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
    segments = Segments(folder / "state" / "autopilot.metering", start_s=0.0, every=10_000)
    for day in range(round(today / 86_400) - 63, round(today / 86_400)):
        held = 86_400 * GRAINS_PER_GPU_S
        rows = [
            Row(day * DAY, (day + 1) * DAY, (kind, tenant, *[""] * 11), (held * gpus, 0, 0, borrowed, *[0] * 8))
            for kind, tenant, gpus, borrowed in (
                ("capacity", "", 2, 0),
                ("held", "team", 1, held),
                ("held", "free", 1, held),
            )
        ]
        segments.put(day * DAY, (day + 1) * DAY, rows)
    segments.close()
    prices = "currency: EUR\nregion: a\nregions: {a: {gpu_hour: {other: 1}}}\nbudgets: {team: 600}\nbudget: 1200\n"
    (folder / "prices.yaml").write_text(prices)
    return folder / "prices.yaml"


def budget_ratios(running: Running) -> dict[str, float]:
    """What the metrics of the service say of each tenant."""
    url = f"{read_note(running.state / 'service.json')['metrics']}/metrics"
    text = requests.get(url, headers={"Authorization": f"Bearer {running.token}"}, timeout=30).text
    found = re.findall(r'^gpu_autopilot_tenant_budget_ratio\{.*tenant="([^"]+)".*\} (\S+)$', text, re.MULTILINE)
    return {tenant: float(value) for tenant, value in found}


def _problems(state: dict[str, Any]) -> list[str]:
    return [each["reason"] for each in state["gaps"] if each["signal"] == "pods"]
