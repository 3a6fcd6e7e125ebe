"""An alert on its way: delivered to the running service, answered by a recommendation, approved, carried out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autopilot.oncall.runbook import SECTIONS
from tests.service.kit import APPROVE, poll, service, settings, write_yaml

NAME = "GPUAutopilotGangStarving"
RUNBOOK = f"""---
alert: {NAME}
actions:
  - action: admit_gang
    why: It starts the gang.
undo: A start is not undone.
---
# {NAME}

{"".join(f"## {name}" + chr(10) * 2 + "Text." + chr(10) * 2 for name in SECTIONS)}"""


def _payload(status: str) -> dict[str, Any]:
    alert = {
        "status": status,
        "labels": {"alertname": NAME},
        "annotations": {"summary": "A gang starves."},
        "startsAt": "2026-11-23T12:00:00Z",
        "fingerprint": "00000000000000aa",
    }
    return {"version": "4", "alerts": [alert]}


def test_an_alert_becomes_a_recommendation_and_its_approval_acts(tmp_path: Path) -> None:
    """The delivery leads to a recommendation; the approval is carried out; the end of the alert ends the work."""
    policy = write_yaml(tmp_path / "policy.yaml", APPROVE)
    books = tmp_path / "books"
    books.mkdir()
    (books / f"{NAME}.md").write_text(RUNBOOK, "utf-8")
    tokens = []
    for role in ("alerts", "viewer", "admin"):
        file = tmp_path / f"{role}.token"
        file.write_text(f"{role}-token-of-this-test", "utf-8")
        tokens.append({"name": role, "role": role, "file": str(file)})
    state = tmp_path / "state"
    content = settings(state, policy=str(policy), alerts={"runbooks": str(books)})
    content["http"]["tokens"] = tokens
    alerts, viewer, admin = (f"{role}-token-of-this-test" for role in ("alerts", "viewer", "admin"))
    with service(tmp_path, content) as running:

        def listed() -> bool:
            answer = running.ask("/api/v1/recommendations", token=viewer)
            return answer.status_code == 200 and any(
                each["approvable"] and each["action"] == "admit_gang" for each in answer.json()["recommendations"] or []
            )

        poll(listed, "a recommendation waits")
        for token, status in ((viewer, 403), ("x" * 40, 401), (alerts, 200)):
            assert running.ask("/api/v1/alerts", "POST", token, json=_payload("firing")).status_code == status

        def proposed() -> dict[str, Any] | None:
            found: dict[str, Any] = running.ask("/api/v1/alerts", token=viewer).json()["alerts"][0]
            return found if found["stage"] == "proposed" else None

        found = poll(proposed, "the alert is followed")
        assert found["proposals"]
        for method, path in (("GET", "/api/v1/alerts"), ("GET", "/api/v1/state"), ("POST", "/api/v1/kill")):
            assert running.ask(path, method, alerts).status_code == 403  # the sender of alerts may do nothing else

        def acted() -> bool:
            """Approve what is shown until an approval meets the state that it was given for: time is fast here."""
            shown = running.ask("/api/v1/alerts", token=viewer).json()["alerts"][0]
            for proposal in shown["proposals"]:
                running.ask(f"/api/v1/recommendations/{proposal}/approve", "POST", admin)
            stages = {each["stage"] for each in shown["history"]}
            return "acting" in stages

        poll(acted, "an approval is carried out")
        assert running.ask("/api/v1/alerts", "POST", alerts, json=_payload("resolved")).status_code == 200
        poll(lambda: running.ask("/api/v1/alerts", token=viewer).json()["alerts"][0]["stage"] == "ended", "the end")
        shown = running.ask(f"/api/v1/runbooks/{NAME}", token=viewer).json()
        assert shown["text"].startswith(f"# {NAME}")
