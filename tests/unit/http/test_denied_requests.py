"""An approval by somebody without the role: refused, named in the state of the controller, and counted."""

from __future__ import annotations

from pathlib import Path

from autopilot.service.settings import Role
from tests.kits.core_world import world
from tests.kits.http_kit import client, desk_over, published


def test_an_approval_by_a_viewer_is_refused_and_shown(tmp_path: Path) -> None:
    """Who it was, what it asked for, and which role that needs. A request without a token names nobody."""
    desk = desk_over(tmp_path, published(world("1x8", [], 1000.0)))
    path = "/api/v1/recommendations/preempt-w/approve"
    assert client(desk, Role.VIEWER).post(path).status_code == 403
    assert client(desk).post(path).status_code == 401
    (row,) = client(desk, Role.VIEWER).get("/api/v1/state").json()["denied_requests"]
    assert (row["who"], row["role"], row["path"], row["reason"]) == ("viewer", "viewer", path, "needs approver")
    assert desk.record.counts()["denied_requests_total"] == {("token",): 1.0, ("role",): 1.0}
    desk.inbox.close()
