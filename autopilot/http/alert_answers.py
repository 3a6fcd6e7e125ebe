"""Answers of the routes of alerts and runbooks, for the OpenAPI schema; see `answers`."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict

from autopilot.http.answers import Number


class Series(TypedDict):
    """One series of an answer."""

    labels: dict[str, str]
    value: Number
    text: str


class QueryAnswer(TypedDict):
    """A diagnosis query with its answer, or the problem with it."""

    title: str
    query: str
    unit: str
    at_s: Number
    series: list[Series]
    problem: str | None


class AlertStep(TypedDict):
    """One step of the work on an alert."""

    at_s: float
    at: str | None
    stage: str
    reason: str


class AlertRow(TypedDict):
    """One alert with its stage, evidence and proposals."""

    alert: str
    fingerprint: str
    started: str
    firing: bool
    received_s: float
    about: dict[str, str]
    labels: dict[str, str]
    summary: str
    stage: str
    reason: str
    proposals: list[str]
    acted: list[str]
    deliveries: int
    evidence: list[QueryAnswer]
    history: list[AlertStep]


class AlertRows(TypedDict):
    """The latest alerts, open ones first."""

    open: int
    in_total: int
    alerts: list[AlertRow]


class DeliveryTaken(TypedDict):
    """Counts of received alerts, of news among them, and of alerts left out by the sender; reasons for refused ones."""

    received: int
    changed: int
    truncated: int
    refused: list[str]


class RunbookRow(TypedDict):
    """A runbook and its possible actions."""

    alert: str
    subject: str
    actions: list[str]


class RunbookRows(TypedDict):
    """All runbooks."""

    runbooks: list[RunbookRow]


class AskedAction(TypedDict):
    """An action requested by a runbook."""

    action: str
    why: str


class RunbookCase(TypedDict):
    """One runbook with live answers to its queries."""

    alert: str
    subject: str
    actions: list[AskedAction]
    undo: str
    text: str
    parts: list[Any]
    labels: dict[str, str]
    evidence: list[QueryAnswer]
