"""Prints alerts and runbooks in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from rich.markdown import Markdown

from autopilot.app.commands.json_out import STDOUT, write_json
from autopilot.app.commands.run_commands import out, print_rows, printable
from autopilot.core.model.errors import InputError, nearest
from autopilot.oncall.runbook import SUBJECTS, Runbook, load_runbooks
from autopilot.operate.client import Api
from autopilot.service.settings_file import load_settings


def show_alerts(api: Api, limit: int, json_out: Path | None) -> None:
    """Print the alerts, newest first."""
    answer = api.ask("GET", f"/api/v1/alerts?limit={limit}")
    if json_out is not None:
        write_json(json_out, {"schema": "gpu-autopilot/alerts/1", **answer})
        if json_out == STDOUT:
            return
    if not answer["alerts"]:
        out.print("no alert was delivered; Alertmanager sends them to /api/v1/alerts of this service")
        return
    rows = [
        (
            printable(each["alert"]),
            "firing" if each["firing"] else "ended",
            printable(" ".join(f"{name}={value}" for name, value in each["labels"].items() if name in SUBJECTS)),
            each["stage"].replace("_", " "),
            printable(each["reason"]),
            " ".join(printable(proposal) for proposal in each["proposals"]),
        )
        for each in answer["alerts"]
    ]
    print_rows(("alert", "state", "about", "stage", "reason", "proposals"), rows)


def show_runbook(api: Api, alert: str, labels: list[str]) -> None:
    """Print one runbook: what its queries answer now, then its text."""
    given = [_label(each) for each in labels]
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in given)
    answer = api.ask("GET", f"/api/v1/runbooks/{quote(alert, safe='')}" + (f"?{query}" if query else ""))
    out.print(Markdown(answer["text"]))
    if answer["evidence"]:
        out.print("\nNow:")
    for each in answer["evidence"]:
        out.print(f"\n{printable(each['title'])}", style="bold")
        out.print(f"  {printable(each['query'])}", soft_wrap=True, highlight=False, markup=False)
        _print_series(each, answer["subject"])


def _print_series(answer: dict[str, Any], subject: str) -> None:
    if answer["problem"]:
        hint = f"; give it with --label {subject}=VALUE" if "has no label" in answer["problem"] and subject else ""
        out.print(f"  unknown: {printable(answer['problem'])}{hint}", soft_wrap=True, markup=False)
    elif not answer["series"]:
        out.print("  no series: nothing matches, or the metric is missing")
    for each in answer["series"]:
        labels = " ".join(f"{name}={value}" for name, value in each["labels"].items() if name != "__name__")
        value = f"{each['text']} {answer['unit']}".rstrip()
        out.print(f"  {printable(labels)}  {value}".rstrip(), soft_wrap=True, markup=False)


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or name not in SUBJECTS:
        raise InputError(f"--label: {text!r}: write NAME=VALUE with one of {', '.join(SUBJECTS)}")
    return name, value


def _books(config: Path | None) -> dict[str, Runbook]:
    return load_runbooks(load_settings(config).alerts.runbooks)


def list_runbooks(config: Path | None) -> None:
    """Print the name of each runbook, and what it may ask for."""
    books = _books(config)
    if not books:
        out.print("there are no runbooks")
        return
    print_rows(
        ("alert", "about", "actions it may ask for"),
        [
            (book.alert, book.front.subject or "cluster", ", ".join(each.action for each in book.front.actions) or "-")
            for book in books.values()
        ],
    )


def print_runbook(config: Path | None, alert: str) -> None:
    """Print the text of one runbook."""
    books = _books(config)
    if alert not in books:
        raise InputError(f"{alert}: no such runbook; {nearest(alert, books) or 'autopilot runbook lists them'}")
    out.print(Markdown(books[alert].text))
