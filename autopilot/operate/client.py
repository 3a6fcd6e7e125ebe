"""The commands that ask a running service over its API, and print its answer."""

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
from autopilot.core.model.units import format_duration, format_ratio

TIMEOUT_S = 90.0


@dataclass(frozen=True, slots=True)
class Api:
    """The address of a service, and the token for it."""

    url: str
    token: str

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One request. Raises `InputError` with the reason of the service."""
        answer = self._request(method, path, body)
        try:
            content: dict[str, Any] = answer.json()
        except ValueError:
            content = {}
        if answer.status_code >= HTTPStatus.BAD_REQUEST:
            raise InputError(str(content.get("detail") or f"{self.url}{path}: HTTP {answer.status_code}"))
        return content

    def read(self, path: str) -> bytes:
        """The content of a file. Raises `InputError` if the service does not send it."""
        answer = self._request("GET", path)
        if answer.status_code >= HTTPStatus.BAD_REQUEST:
            raise InputError(f"{self.url}{path}: HTTP {answer.status_code}; start the command again")
        return answer.content

    def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> requests.Response:
        headers = {"Authorization": f"Bearer {self.token}"}
        session = requests.Session()
        session.trust_env = False
        try:
            return session.request(method, f"{self.url}{path}", json=body, headers=headers, timeout=TIMEOUT_S)
        except requests.RequestException as error:
            raise InputError(
                f"{self.url}: the service does not answer ({type(error).__name__}); is it running?"
            ) from error


FLEET = {
    "capacity": "capacity_gpus",
    "allocated": "held_gpus",
    "free": "free_gpus",
    "out of use": "out_of_use_gpus",
    "active": "active_gpus",
    "gap": "gap_gpus",
}
"""Figures of the fleet in the status."""


def show_status(api: Api, json_out: Path | None) -> None:
    """Print the state of the service (acts, stands by, held), stale parts with their age, and the fleet; `-` is not
    known.
    """
    summary = api.ask("GET", "/api/v1/summary")
    fleet = api.ask("GET", "/api/v1/fleet") if summary["tick"] is not None else None
    if json_out is not None:
        write_json(json_out, {"schema": "gpu-autopilot/status/1", "summary": summary, "fleet": fleet})
        if json_out == STDOUT:
            return
    if fleet is None:
        out.print("the controller has not decided yet; its first tick is under way")
        return
    still = summary["kill_switch"] or ("killed" if summary["killed"] else summary["paused"] or summary["halted"])
    acts = f"nothing acts: {still}" if still else "acts" if summary["leads"] else "stands by"
    out.print(f"tick {summary['tick']}, {format_duration(summary['age_s'])} ago; policy {summary['policy']}; {acts}")
    if summary.get("policy_note"):
        out.print(f"policy: {summary['policy_note']}")
    say_stale(summary)
    window = format_duration(fleet["window_s"])
    print_rows(
        (*FLEET, "pending", "measured", "workloads"),
        [
            [
                *(_number(fleet["fleet"][name]) for name in FLEET.values()),
                _number(fleet["signals"]["pending_gpus"]),
                format_ratio(fleet["fleet"]["measured_ratio"]),
                _number(fleet["fleet"]["workloads"]),
            ]
        ],
    )
    seen, sampled = format_duration(fleet["age_s"]), format_duration(fleet["telemetry_age_s"])
    out.print(f"GPUs, active over {window}; cluster last seen {seen} ago, GPUs last sampled {sampled} ago")


def say_stale(summary: Mapping[str, Any]) -> None:
    """Print the parts without present data: their age and the reason."""
    for each in summary.get("stale", ()):
        since = "" if each["age_s"] is None else f", {format_duration(each['age_s'])} ago"
        out.print(f"stale: {each['what']}{since}: {each['why']}")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}".removesuffix(".0")


def show_recommendations(api: Api, json_out: Path | None) -> None:
    """Print the open recommendations."""
    answer = api.ask("GET", "/api/v1/recommendations")
    if json_out is not None:
        write_json(json_out, {"schema": "gpu-autopilot/recommendations/1", **answer})
        if json_out == STDOUT:
            return
    say_stale(api.ask("GET", "/api/v1/summary"))
    rows = answer["recommendations"]
    if rows is None:
        out.print(f"the cluster was not seen at tick {answer['tick']}, so what would be recommended is not known")
    elif rows:
        _print_open(rows)
    else:
        halted = answer["halted"]
        out.print(
            f"no recommendation is open at tick {answer['tick']}" + (f"; nothing acts: {halted}" if halted else "")
        )
    if advice := answer.get("advice"):
        out.print("needs your attention:")
        for each in advice:
            out.print(f"  {each['words']}")


def _print_open(rows: Sequence[Mapping[str, Any]]) -> None:
    print_rows(
        ("id", "mode", "gain", "cost", "age", "why"),
        [(row["id"], row["mode"], row["gain"], row["cost"], format_duration(row["age_s"]), row["why"]) for row in rows],
    )
    if any(row["approvable"] for row in rows):
        out.print("approve one with `autopilot approve ID`, or reject it with `autopilot reject ID`")
    if closed := sorted({row["action"] for row in rows if not row["approvable"] and row["mode"] == Mode.RECOMMEND}):
        fields = ", ".join(f"modes.{action}" for action in closed)
        out.print(f"mode recommend takes no approvals: set {fields} to approve in the policy")


def decide(api: Api, verb: str, recommendation: str, body: dict[str, Any]) -> None:
    """Approve or reject one recommendation."""
    answer = api.ask("POST", f"/api/v1/recommendations/{quote(recommendation, safe='/')}/{verb}", body)
    out.print(f"{recommendation}: {answer['result']}: {answer['message']}")


def show_rejections(api: Api, json_out: Path | None) -> None:
    """Print the rejections by people."""
    answer = api.ask("GET", "/api/v1/rejections")
    if json_out is not None:
        write_json(json_out, {"schema": "gpu-autopilot/rejections/1", **answer})
        if json_out == STDOUT:
            return
    rows = answer["rejections"]
    if not rows:
        out.print("nothing is rejected")
        return
    print_rows(("id", "what"), [(row["id"], row["words"]) for row in rows])
    out.print("end one with `autopilot revoke ID`")


def revoke_rejection(api: Api, rejection: str) -> None:
    """End a rejection."""
    answer = api.ask("POST", f"/api/v1/rejections/{quote(rejection, safe='/')}/revoke")
    out.print(f"{rejection}: {answer['result']}: {answer['message']}")


def command(api: Api, verb: str, subject: str = "") -> None:
    """A command without a proposal: pause, resume, kill; lift, release or confirm a subject."""
    answer = api.ask("POST", f"/api/v1/{verb}" + (f"/{quote(subject, safe='')}" if subject else ""))
    out.print(f"{verb}: {answer['message']}")
