"""A running service whose cluster stands still: every face says so, and nothing is shown as 0."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import requests

from autopilot.service.state_folder import read_note
from tests.kits.scraping import scrape
from tests.service.kit import Running, cli, poll, service, settings

FIGURES = ("capacity", "allocated", "free", "out of use", "active", "gap", "pending", "measured", "workloads")


def summary(running: Running) -> dict[str, Any]:
    """The summary now."""
    content: dict[str, Any] = running.ask("/api/v1/summary").json()
    return content


def metrics(running: Running) -> dict[str, float]:
    """A scrape now."""
    url = read_note(running.state / "service.json")["metrics"]
    answer = requests.get(f"{url}/metrics", headers={"Authorization": f"Bearer {running.token}"}, timeout=30)
    return scrape(answer.content)


@pytest.mark.soak
def test_a_cluster_process_that_stands_still_is_unknown_on_every_face(tmp_path: Path) -> None:
    """First the tick is late; then it ends without a view; and all is known again when the process goes on."""
    with service(tmp_path, settings(tmp_path / "state")) as running:
        poll(lambda: running.tick() > 3, "some ticks")
        stopped = int(read_note(running.state / "cluster.json")["pid"])
        os.kill(stopped, signal.SIGSTOP)
        try:
            first = poll(lambda: [each["what"] for each in summary(running)["stale"]], "something stale")
            assert first == ["the last tick"]
            assert running.ask("/api/v1/fleet").json()["fleet"]["capacity_gpus"] > 0, "it is the last tick that is old"
            poll(lambda: summary(running)["halted"], "a tick without a view")
            fleet = running.ask("/api/v1/fleet").json()
            assert {fleet["fleet"]["capacity_gpus"], fleet["signals"]["largest_gang_gpus"], fleet["nodes"]} == {None}
            assert fleet["age_s"] > 5.0
            scraped = metrics(running)
            assert not [name for name in scraped if name.startswith(("fleet", "pool", "tenant", "node"))]
            ages_s = {each["name"]: each["age_s"] for each in running.ask("/api/v1/state").json()["collectors"]}
            for name, age_s in ages_s.items():
                assert age_s >= scraped[f"collector_age_seconds{{collector={name}}}"] > 5.0
            told = cli(tmp_path, "status", "--state", str(running.state)).stdout
            assert "stale: the cluster, " in told
            assert told.splitlines()[-2].split() == ["-"] * len(FIGURES)
        finally:
            os.kill(stopped, signal.SIGCONT)
        poll(lambda: summary(running)["stale"] == [], "all is known again")
        assert running.ask("/api/v1/fleet").json()["fleet"]["capacity_gpus"] > 0
