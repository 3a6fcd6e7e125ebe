"""Prints alerts and runbooks in the terminal."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rich.markdown import Markdown

from autopilot.app.commands.json_out import STDOUT, write_json
from autopilot.app.commands.run_commands import out, print_rows
from autopilot.core.model.errors import InputError, nearest
from autopilot.core.model.units import format_clock
from autopilot.oncall.runbook import SUBJECTS, Runbook, load_runbooks
from autopilot.operate.client import Api
from autopilot.printable import printable
from autopilot.service.settings_file import load_settings

OF_THE_SCRAPE = ("__name__", "instance", "job")
"""Labels for the place of a series' reading, not for its subject."""


def show_steps(journal: Path, json_out: Path | None) -> None:
    """Print the steps of alerts from a journal."""
    from autopilot.records.journal.reader import JournalReader

    with JournalReader(journal) as reader:
        steps = reader.alerts()
    if json_out is not None:
        write_json(json_out, {"schema": "gpu-autopilot/alert-steps/1", "steps": [asdict(each) for each in steps]})
        if json_out == STDOUT:
            return
    if not steps:
        out.print(f"{journal}: no alert is recorded here")
        return
    rows = [
        (
            format_clock(each.at_s),
            printable(each.alert),
            printable(" ".join(f"{name}={value}" for name, value in each.labels.items() if name in SUBJECTS)),
            each.stage.replace("_", " "),
            printable(each.reason),
            " ".join(printable(proposal) for proposal in each.proposals),
        )
        for each in steps
    ]
    print_rows(("at", "alert", "about", "stage", "reason", "proposals"), rows)


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
            " ".join(printable(proposal) for proposal in each["acted"]),
        )
        for each in answer["alerts"]
    ]
    print_rows(("alert", "state", "about", "stage", "reason", "proposals", "acted"), rows)


def show_runbook(api: Api, alert: str, labels: list[str], journal: str = "") -> None:
    """Print one runbook, the subject of its alert, and the present answers of its queries.

    Without labels those of the firing alert are taken. `journal`: the path behind `$JOURNAL` in its commands.
    """
    given, firing = [_label(each) for each in labels], _firing(api, alert)
    if not given and firing:
        given = list(firing[0]["about"].items())
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in given)
    answer = api.ask("GET", f"/api/v1/runbooks/{quote(alert, safe='')}" + (f"?{query}" if query else ""))
    out.print(Markdown(answer["text"]), soft_wrap=False)  # wrapped, not cut, at the width of the terminal
    if journal:
        out.print("\nIn the commands:", style="bold")
        out.print(f"  export JOURNAL={shlex.quote(journal)}")
    print_state(firing, dict(given), approvable=_approvable(api) if firing else frozenset())
    if answer["evidence"]:
        out.print("\nNow:")
    for each in answer["evidence"]:
        out.print(f"\n{printable(each['title'])}", style="bold")
        out.print(f"  {printable(each['query'])}", soft_wrap=True, highlight=False, markup=False)
        _print_series(each, answer["subject"])


def _firing(api: Api, alert: str) -> list[dict[str, Any]]:
    """The firing alerts of this name, the latest first."""
    found = api.ask("GET", "/api/v1/alerts?limit=1000")["alerts"]
    return [each for each in found if each["alert"] == alert and each["firing"]]


def _approvable(api: Api) -> frozenset[str]:
    """The recommendations open for approval now."""
    found = api.ask("GET", "/api/v1/recommendations")["recommendations"] or []
    return frozenset(each["id"] for each in found if each["approvable"])


def print_state(firing: list[dict[str, Any]], given: dict[str, str], *, approvable: frozenset[str]) -> None:
    """Print the firing alerts, the stage of the shown one, and the commands for approval of its possible remedies."""
    out.print("\nThe alert:", style="bold")
    if not any(given.items() <= each["about"].items() for each in firing):
        about = " about " + " ".join(f"{name}={value}" for name, value in given.items()) if given else ""
        out.print(f"  none{printable(about)} fires, as far as it was delivered to this service", soft_wrap=True)
    for each in firing:
        about = " ".join(f"{name}={value}" for name, value in each["about"].items())
        stage = f"{each['stage'].replace('_', ' ')}: {each['reason']}"
        out.print(f"  {printable(about) or 'the cluster'}  {printable(stage)}", soft_wrap=True, markup=False)
        if each["stage"] == "proposed" and each["about"] == given:
            for proposal in each["proposals"]:
                out.print(f"    recommended: {printable(proposal)}", soft_wrap=True, markup=False)
                if proposal in approvable:
                    out.print(f"      autopilot approve {shlex.quote(proposal)}", soft_wrap=True, markup=False)
    if any(each["about"] != given for each in firing):
        out.print("  choose another one with --label")


def _print_series(answer: dict[str, Any], subject: str) -> None:
    if answer["problem"]:
        hint = f"; give it with --label {subject}=VALUE" if "has no label" in answer["problem"] and subject else ""
        out.print(f"  unknown: {printable(answer['problem'])}{hint}", soft_wrap=True, markup=False)
    elif not answer["series"]:
        out.print("  no series: nothing matches, or the metric is missing")
    for each in answer["series"]:
        labels = " ".join(f"{name}={value}" for name, value in each["labels"].items() if name not in OF_THE_SCRAPE)
        out.print(f"  {printable(labels)}  {printable(each['text'])}".rstrip(), soft_wrap=True, markup=False)


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or name not in SUBJECTS:
        raise InputError(f"--label: {text!r}: write NAME=VALUE with one of {', '.join(SUBJECTS)}")
    return name, value


def _books(config: Path | None) -> dict[str, Runbook]:
    return load_runbooks(load_settings(config).alerts.runbooks)


def list_runbooks(config: Path | None) -> None:
    """Print the name of each runbook, and its possible actions."""
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
    out.print(Markdown(books[alert].text), soft_wrap=False)
