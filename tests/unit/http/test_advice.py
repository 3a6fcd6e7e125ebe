"""What actions leave to a person: it stands for as long as it may be repeated, in the API and on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autopilot.core.model.records import About, Evidence, Note
from autopilot.http.desk import Desk
from autopilot.operate.client import Api, show_recommendations
from autopilot.service.published import Published
from autopilot.service.settings import Role
from tests.kits.core_world import holds, world
from tests.kits.http_kit import client, desk_over, published

FACTS = (Evidence("owner", "t0/ada"), Evidence("memory_gib", 22.0), Evidence("gpus", 8), Evidence("size", "2g.20gb"))
SIZE = Note("idle_size", About.WORKLOAD, "a", 0.3, "GPUs", (*FACTS, Evidence("watched", 7 * 86_400.0, "s")))
IDLE = Note("idle_advice", About.WORKLOAD, "b", 1800.0, "s", (*FACTS[2:3], *FACTS[:1], Evidence("why", "opted out")))
OTHER = Note("effect_waits", About.WORKLOAD, "a", facts=(Evidence("effect", "evict"),))


def tick(number: int, now_s: float, notes: Sequence[Note], *work: str) -> Published:
    """A tick with these notes and this running work."""
    found = published(world("1x8", [holds(name, 2) for name in work], now_s, tick=number))
    return replace(found, decision=replace(found.decision, notes=tuple(notes)))


def advised(desk: Desk) -> list[str]:
    """Subjects of the advice, the newest first."""
    answer = client(desk, Role.VIEWER).get("/api/v1/recommendations").json()
    return [f"{row['code']} {row['subject']} {row['at_s']:g}" for row in answer["advice"]]


def test_advice_stands_until_it_may_be_repeated(tmp_path: Path) -> None:
    """A size is advised once a day and stands for longer; idle work is looked at every five minutes."""
    desk = desk_over(tmp_path, tick(1, 3600.0, (SIZE, IDLE, OTHER), "a", "b"))
    assert advised(desk) == ["idle_advice b 3600", "idle_size a 3600"]
    desk.publisher.publish(tick(2, 4100.0, (), "a", "b"))
    assert advised(desk) == ["idle_advice b 3600", "idle_size a 3600"]
    desk.publisher.publish(tick(3, 4200.0, (), "a", "b"))
    assert advised(desk) == ["idle_size a 3600"], "nothing was said of b for ten minutes"
    desk.publisher.publish(tick(4, 4300.0, (IDLE,), "b"))
    assert advised(desk) == ["idle_advice b 4300"], "a has left the cluster"


def test_it_is_printed_below_the_recommendations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where no recommendation is open."""
    asks = client(desk_over(tmp_path, tick(1, 3600.0, (SIZE,), "a")), Role.VIEWER)

    class Direct(Api):
        """Asks the application without a socket."""

        def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
            found: dict[str, Any] = asks.request(method, path, json=body).json()
            return found

    show_recommendations(Direct("", ""), None)
    assert capsys.readouterr().out.splitlines() == [
        "no recommendation is open at tick 1",
        "needs your attention:",
        "  a of t0/ada used at most 0.3 GPUs and 22 GiB of 8 GPUs for 7 d: 2g.20gb would do",
    ]
