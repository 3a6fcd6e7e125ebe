"""The API over a published tick, in process: a desk with three tokens, and a client for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

from fastapi.testclient import TestClient

from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Observation
from autopilot.http.app import service_app
from autopilot.http.auth import Caller, Tokens
from autopilot.http.desk import Desk
from autopilot.oncall.book import AlertBook
from autopilot.oncall.follow import Follower
from autopilot.oncall.queries import no_prometheus
from autopilot.oncall.runbook import SECTIONS, parse_runbook
from autopilot.service.inbox import SqliteInbox
from autopilot.service.kill_switch import KillSwitch
from autopilot.service.published import CollectorHealth, Published, Publisher
from autopilot.service.record import Record
from autopilot.service.settings import Role
from tests.kits.core_world import AUTO, decide

BASE = "http://testserver"
ALERT = "GangWaits"
BOOK = f"""---
alert: {ALERT}
subject: tenant
diagnosis:
- title: Who waits
  query: waits{{tenant=$tenant}}
actions:
- action: admit_gang
  why: It starts the gang.
undo: Nothing to undo.
---
# {ALERT}

{"".join(f"## {name}" + chr(10) * 2 + "Text." + chr(10) * 2 for name in SECTIONS)}"""
RUNBOOKS = {ALERT: parse_runbook(BOOK.encode(), "kit.md")}
"""The one runbook of a desk."""
TOKENS = {role: f"token-of-the-{role.value}" for role in Role}


def published(observation: Observation, policy: Policy = AUTO) -> Published:
    """A tick on `observation` that ended just now."""
    step = decide(observation, policy, replace(ControllerMemory(), fence=1))
    health = CollectorHealth("dcgm", observation.now_s, observation.now_s, 0.1)
    return Published(observation, step.decision, step.memory, policy, step.wake_at_s, 0.1, collectors=(health,))


def desk_over(folder: Path, *ticks: Published) -> Desk:
    """A desk that shows the last of `ticks`. Commands reach the inbox, and no tick obeys them."""
    publisher, kill = Publisher(), KillSwitch(folder / "kill")
    tokens = Tokens((token, Caller(role.value, role)) for role, token in TOKENS.items())
    inbox = SqliteInbox(folder / "inbox.sqlite", kill.reason)
    record_folder = Path(mkdtemp(dir=folder))  # a desk writes to a log of its own
    record = Record(record_folder / "audit")
    follower = Follower(AlertBook(record_folder / "alerts.db"), RUNBOOKS, no_prometheus, publisher.wait_for_next)
    desk = Desk(publisher, inbox, kill, tokens, record, lambda: 0.0, lambda: None, answer_s=0.0, follower=follower)
    publisher.follow(desk.history.take)
    for tick in ticks:
        publisher.publish(tick)
    return desk


def deliver(desk: Desk, name: str = ALERT, number: int = 1, **labels: str) -> None:
    """An alert that fires, as Alertmanager sends it, looked at once."""
    alert = {
        "status": "firing",
        "labels": {"alertname": name, **labels},
        "annotations": {"summary": "A gang waits."},
        "startsAt": "2026-11-23T12:00:00Z",
        "fingerprint": f"{number:016x}",
    }
    answer = client(desk, Role.ALERTS).post("/api/v1/alerts", json={"version": "4", "alerts": [alert]})
    assert answer.status_code == 200, answer.text
    assert desk.follower is not None
    desk.follower.look(desk.latest())


def client(desk: Desk, role: Role | None = None) -> TestClient:
    """A client with the bearer token of a role, or without."""
    headers = {"Authorization": f"Bearer {TOKENS[role]}"} if role is not None else {}
    return TestClient(service_app(desk), base_url=BASE, headers=headers)


def signed_in(desk: Desk, role: Role) -> tuple[TestClient, str]:
    """A browser of a role as the page has it: the client with its cookie, and the CSRF value."""
    browser = client(desk)
    answer = browser.post("/api/v1/session", json={"token": TOKENS[role]}, headers={"Origin": BASE})
    assert answer.status_code == 200, answer.text
    return browser, str(answer.json()["csrf"])
