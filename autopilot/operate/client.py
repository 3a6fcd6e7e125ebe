"""The commands that talk to a running service over its API, and print what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

import requests

from autopilot.app.commands.json_out import STDOUT, write_json
from autopilot.app.commands.run_commands import out, print_rows
from autopilot.core.model.errors import InputError
from autopilot.core.model.modes import Mode
from autopilot.core.model.units import format_gpu_s

TIMEOUT_S = 90.0


@dataclass(frozen=True, slots=True)
class Api:
    """The address of a service, and the token for it."""

    url: str
    token: str

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One request. Raises `InputError` with the reason that the service gives."""
        headers = {"Authorization": f"Bearer {self.token}"}
        session = requests.Session()
        session.trust_env = False
        try:
            answer = session.request(method, f"{self.url}{path}", json=body, headers=headers, timeout=TIMEOUT_S)
        except requests.RequestException as error:
            raise InputError(
                f"{self.url}: the service does not answer ({type(error).__name__}); is it running?"
            ) from error
        try:
            content: dict[str, Any] = answer.json()
        except ValueError:
            content = {}
        if answer.status_code >= HTTPStatus.BAD_REQUEST:
            raise InputError(str(content.get("detail") or f"{self.url}{path}: HTTP {answer.status_code}"))
        return content


def show_recommendations(api: Api, json_out: Path | None) -> None:
    """Print the open recommendations."""
    answer = api.ask("GET", "/api/v1/recommendations")
    if json_out is not None:
        write_json(json_out, {"schema": "gpu-autopilot/recommendations/1", **answer})
        if json_out == STDOUT:
            return
    rows = answer["recommendations"]
    if rows:
        _print_open(rows)
    else:
        halted = answer["halted"]
        out.print(
            f"no recommendation is open at tick {answer['tick']}" + (f"; nothing acts: {halted}" if halted else "")
        )
    if advice := answer.get("advice"):
        out.print("left to you, without a proposal:")
        for each in advice:
            out.print(f"  {each['words']}")


def _print_open(rows: Sequence[Mapping[str, Any]]) -> None:
    print_rows(
        ("id", "mode", "gain", "cost", "why"),
        [
            (row["id"], row["mode"], format_gpu_s(row["benefit_gpu_s"]), format_gpu_s(row["cost_gpu_s"]), row["words"])
            for row in rows
        ],
    )
    if any(row["approvable"] for row in rows):
        out.print("approve one with `autopilot approve ID`, or reject it with `autopilot reject ID`")
    if closed := sorted({row["action"] for row in rows if not row["approvable"] and row["mode"] == Mode.RECOMMEND}):
        fields = ", ".join(f"modes.{action}" for action in closed)
        out.print(f"mode recommend takes no approvals: set {fields} to approve in the policy")


def decide(api: Api, verb: str, proposal_id: str, digest: str | None) -> None:
    """Approve or reject one recommendation."""
    body = {"state_digest": digest or ""}
    answer = api.ask("POST", f"/api/v1/recommendations/{quote(proposal_id, safe='/')}/{verb}", body)
    out.print(f"{proposal_id}: {answer['result']}: {answer['message']}")


def command(api: Api, verb: str, subject: str = "") -> None:
    """A command without a proposal: pause, resume, kill; lift, release or confirm a subject."""
    answer = api.ask("POST", f"/api/v1/{verb}" + (f"/{quote(subject, safe='')}" if subject else ""))
    out.print(f"{verb}: {answer['message']}")
