"""A running service beside sources that never finish an answer."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from typing import Any

from tests.kits.slow_peers import slow_peer
from tests.service.kit import Running, poll, service, settings


def gap(running: Running, source: str) -> dict[str, Any] | None:
    """A gap of a source once the controller has one."""
    answer = running.ask("/api/v1/state")
    found = answer.json()["gaps"] if answer.status_code == 200 else []
    return next((each for each in found if each["source"] == source and "has not answered" not in each["reason"]), None)


def test_a_slow_source_is_a_gap_and_the_loop_goes_on(tmp_path: Path) -> None:
    """Each source costs its own numbers; neither ticks nor the end of the service wait for one."""
    with slow_peer("drips its body") as peer:
        given = settings(
            tmp_path / "state",
            collectors={
                "prometheus": {"url": peer.url, "timeout_s": 0.2},
                "exporters": {"targets": [peer.url], "timeout_s": 0.2},
                "slo": {"url": peer.url},  # in the middle of a read at the end
            },
        )
        with service(tmp_path, given) as running:
            first = poll(running.tick, "the first tick")
            poll(lambda: running.tick() > first + 5, "further ticks")
            for source in ("prometheus", "exporter"):
                poll(partial(gap, running, source), f"a gap of {source}")
            assert running.end(signal.SIGTERM) == 0
            assert "Fatal" not in running.log.read_text("utf-8"), "the cluster ends in order, too"
