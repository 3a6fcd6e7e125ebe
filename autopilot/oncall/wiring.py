"""The follower of alerts from the settings of the service."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autopilot.core.model.errors import InputError
from autopilot.oncall.alertmanager import alertmanager_reader
from autopilot.oncall.book import AlertBook
from autopilot.oncall.follow import Follower
from autopilot.oncall.queries import Asker, PrometheusAsker, no_prometheus
from autopilot.oncall.runbook import load_runbooks
from autopilot.records.journal import SqliteJournal
from autopilot.records.journal.alerts import AlertStep
from autopilot.service.published import Publisher
from autopilot.service.record import Record
from autopilot.service.settings import Settings


def open_follower(
    settings: Settings, path: Path, publisher: Publisher, record: Record, journal: SqliteJournal
) -> Follower:
    """The follower with its book at `path`. Raises `InputError` for a broken runbook or an unreadable token."""
    runbooks = load_runbooks(settings.alerts.runbooks)

    def keep(steps: Sequence[AlertStep]) -> None:
        record.alerts(steps)
        journal.note(steps)

    given = settings.alerts
    fires = alertmanager_reader(given.alertmanager, given.receiver) if given.alertmanager is not None else None
    return Follower(AlertBook(path), runbooks, asker_of(settings), publisher.wait_for_next, keep, fires)


def asker_of(settings: Settings) -> Asker:
    """The Prometheus for the queries of runbooks."""
    own, source = settings.alerts, settings.collectors.prometheus
    if own.prometheus is not None:
        return PrometheusAsker(own.prometheus, _token(own.token_file))
    if source is not None:
        return PrometheusAsker(source.url, _token(source.token_file))
    return no_prometheus


def _token(path: Path | None) -> str:
    try:
        return path.read_text("utf-8").strip() if path is not None else ""
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"alerts.token_file: {path}: the token cannot be read: {error}") from error
