"""How a service ends: when its loop hangs, when it is told to while it hangs, and when it is killed."""

from __future__ import annotations

import signal
from pathlib import Path

import requests

from autopilot.service.state_folder import read_note
from tests.kits.processes import gone
from tests.service.hung_service import HANGS
from tests.service.kit import Running, poll, service, settings, start

HUNG = str(Path(__file__).with_name("hung_service.py"))


def hung(folder: Path, least_s: float) -> Running:
    """A service whose third tick never ends."""
    return start(folder, settings(folder / "state"), (HUNG, str(least_s), "run"))


def test_a_loop_that_hangs_is_said_and_ends_the_process(tmp_path: Path) -> None:
    """First /healthz has the reason, then the process ends, and with it its simulated cluster."""
    running = hung(tmp_path, 1.0)
    url, cluster = running.url, int(read_note(running.state / "cluster.json")["pid"])

    def reason() -> str:
        answer = requests.get(f"{url}/healthz", timeout=30)
        return str(answer.json()["status"]) if answer.status_code == 503 else ""

    assert "no tick has ended for 1 s" in poll(reason, "it says so")
    assert running.process.wait(60) == 1
    poll(lambda: gone(cluster), "its cluster ends")
    assert "the loop hangs" in running.log.read_text("utf-8")


def test_a_signal_ends_a_service_that_hangs(tmp_path: Path) -> None:
    """The tick in which it hangs does not end."""
    running = hung(tmp_path, 3600.0)
    poll(lambda: HANGS in running.log.read_text("utf-8"), "the tick in which it hangs")
    assert running.end(signal.SIGTERM) == 1
    assert "did not end within" in running.log.read_text("utf-8")


def test_a_killed_service_leaves_no_process_behind(tmp_path: Path) -> None:
    """Its simulated cluster ends with it, also where nothing of the service can tell it."""
    with service(tmp_path, settings(tmp_path / "state")) as running:
        cluster = int(read_note(running.state / "cluster.json")["pid"])
        assert not gone(cluster)
        assert running.end(signal.SIGKILL) == -signal.SIGKILL
        poll(lambda: gone(cluster), "its cluster ends")
