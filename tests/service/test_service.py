"""`autopilot run --simulate` from start to end, as a person uses it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import requests

from autopilot.service.state_folder import read_note
from tests.service.kit import APPROVE, Running, poll, service, settings, write_yaml
from tests.tidy.tree import ROOT


def _cli(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "autopilot.cli", *words, "--config", str(folder / "service.yaml")],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def _open(running: Running) -> list[dict[str, object]]:
    answer = running.ask("/api/v1/recommendations")
    if answer.status_code != 200:
        return []
    return [each for each in answer.json()["recommendations"] if each["approvable"]]


def test_a_recommendation_is_shown_approved_and_carried_out(tmp_path: Path) -> None:
    """The whole way: cluster and controller start, a proposal waits, a person approves, work starts, both end."""
    policy = write_yaml(tmp_path / "policy.yaml", APPROVE)
    with service(tmp_path, settings(tmp_path / "state", policy=str(policy))) as running:
        shown = poll(lambda: _open(running), "a recommendation waits")[0]
        listed = _cli(tmp_path, "recommendations")
        assert listed.returncode == 0, listed.stderr
        approved = _cli(tmp_path, "approve", str(shown["id"]))
        if approved.returncode:  # time goes on at speed 600: the state may have changed since it was shown
            assert "no longer what was shown" in approved.stderr or "was not approved" in approved.stderr
            shown = poll(lambda: _open(running), "another recommendation waits")[0]
            answer = running.ask(f"/api/v1/recommendations/{shown['id']}/approve", "POST")
            assert answer.status_code in {200, 409}, answer.text
        decided = poll(
            lambda: running.ask("/api/v1/decisions?answer=accepted").json()["decisions"],
            "a decision is accepted",
        )
        assert decided
        cluster = read_note(running.state / "cluster.json")
        assert running.end(signal.SIGINT) == 0, running.log.read_text("utf-8")
        with pytest.raises(requests.ConnectionError):
            requests.get(f"{cluster['url']}/healthz", timeout=5)
        assert not (running.state / "cluster.json").exists()
        assert not (running.state / "service.json").exists()


def test_pause_resume_and_kill_reach_the_next_tick(tmp_path: Path) -> None:
    """Each command is obeyed by the tick that follows, and shown; the kill switch file needs no command."""
    with service(tmp_path, settings(tmp_path / "state", policy="autopilot")) as running:
        poll(running.tick, "the first tick")
        for verb, halted in (("pause", "paused by admin"), ("resume", None), ("kill", "kill switch"), ("resume", None)):
            answer = running.ask(f"/api/v1/{verb}", "POST").json()
            assert (answer["result"], answer["halted"]) == ("obeyed", halted)
        file = running.state / "kill"
        file.touch()
        poll(lambda: running.ask("/api/v1/state").json()["halted"] == "kill switch", "the switch is read")
        assert "still on" in running.ask("/api/v1/resume", "POST").json()["message"]
        file.write_text("off\n", "utf-8")
        poll(lambda: running.ask("/api/v1/state").json()["halted"] is None, "the switch is off")


def test_nothing_is_open_but_health(tmp_path: Path) -> None:
    """Without a token only health answers; metrics have a listener and a token of their own."""
    with service(tmp_path, settings(tmp_path / "state")) as running:
        poll(running.tick, "the first tick")
        assert requests.get(f"{running.url}/healthz", timeout=5).json() == {"status": "ok"}
        assert requests.get(f"{running.url}/readyz", timeout=5).status_code == 200
        for method, path in (
            ("GET", "/api/v1/state"),
            ("GET", "/api/v1/recommendations"),
            ("GET", "/api/v1/decisions"),
            ("POST", "/api/v1/kill"),
            ("POST", "/api/v1/recommendations/admit-x-1/approve"),
        ):
            assert requests.request(method, f"{running.url}{path}", timeout=5).status_code == 401
            assert running.ask(path, method, token="x" * 43).status_code == 401
        metrics = read_note(running.state / "service.json")["metrics"]
        assert requests.get(f"{metrics}/metrics", timeout=5).status_code == 401
        assert running.token not in running.log.read_text("utf-8")
