"""What a person knows better than the controller: a quarantined GPU is sound, the objects of a source are gone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autopilot.core.intake.commands import obey
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.geometry import GeometryMemory, RecutRecord
from autopilot.core.model.memory.intake import IntakeMemory, ViewRecord
from autopilot.core.model.records import CommandKind
from autopilot.http.desk import Desk
from autopilot.service.settings import Role
from tests.kits.core_world import holds, world
from tests.kits.http_kit import client, desk_over, published
from tests.kits.ticking_world import EAGER

BROKEN = RecutRecord("pool", None, (("1g.10gb", 0),), 900.0, 2400.0, state="quarantined", reason="it failed half-way")
MEMORY = ControllerMemory(
    geometry=GeometryMemory(recuts={"GPU-1": BROKEN, "GPU-2": replace(BROKEN, state="settled")}),
    intake=IntakeMemory(
        views={"pods/api": ViewRecord(100, 900.0, lists=1, found=10, lost=90), "nodes/inventory": ViewRecord(2, 900.0)}
    ),
)


def desk_with(folder: Path) -> Desk:
    """A desk after a tick with a quarantined GPU and a suspected source."""
    shown = published(world("1x8", [holds("v", 4)], 1000.0), EAGER)
    return desk_over(folder, replace(shown, memory=MEMORY))


@pytest.mark.parametrize(
    ("path", "kind", "subject"),
    [("release/GPU-1", CommandKind.RELEASE, "GPU-1"), ("confirm/api", CommandKind.CONFIRM, "api")],
)
def test_only_an_admin_may_and_the_next_tick_obeys(path: str, kind: CommandKind, subject: str, tmp_path: Path) -> None:
    """The command names its subject and who gave it; the core takes it without a refusal."""
    desk = desk_with(tmp_path)
    assert client(desk, Role.APPROVER).post(f"/api/v1/{path}").status_code == 403
    assert client(desk, Role.ADMIN).post(f"/api/v1/{path}").json()["result"] == "stored"
    (command,) = desk.inbox.drain(0.0)
    assert (command.kind, command.subject, command.who) == (kind, subject, "admin")
    after = obey(MEMORY, (command,), 1000.0, EAGER)
    assert after.notes == ()
    assert after.memory.geometry.recuts["GPU-1"].state == ("settled" if kind == CommandKind.RELEASE else "quarantined")
    assert after.memory.intake.views["pods/api"].confirmed == (kind == CommandKind.CONFIRM)


@pytest.mark.parametrize(
    ("path", "status", "detail"),
    [
        ("release/GPU-2", 409, "GPU-2 is not quarantined"),
        ("release/GPU-77", 404, "GPU-77: no such GPU"),
        ("confirm/inventory", 409, "inventory is not suspected"),
        ("confirm/other", 404, "other: no such source; GET /api/v1/state lists the collectors"),
    ],
)
def test_what_there_is_not_is_refused(path: str, status: int, detail: str, tmp_path: Path) -> None:
    """Each answer names the object, and no command is stored."""
    desk = desk_with(tmp_path)
    answer = client(desk, Role.ADMIN).post(f"/api/v1/{path}")
    assert (answer.status_code, answer.json()["detail"]) == (status, detail)
    assert desk.inbox.drain(0.0) == ()
