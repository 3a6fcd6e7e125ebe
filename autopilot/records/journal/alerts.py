"""What happened to alerts, in the journal: a table of its own beside the ticks."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

TABLE = """CREATE TABLE IF NOT EXISTS alerts (number INTEGER, at_s REAL, alert TEXT, fingerprint TEXT, started TEXT,
    labels TEXT, stage TEXT, reason TEXT, proposals TEXT)"""


@dataclass(frozen=True, slots=True)
class AlertStep:
    """One stage of the work on one alert."""

    at_s: float  # time of the cluster
    alert: str
    fingerprint: str
    started: str
    labels: Mapping[str, str]
    stage: str
    reason: str
    proposals: tuple[str, ...] = ()


def write_steps(db: sqlite3.Connection, number: int, steps: Iterable[AlertStep]) -> None:
    """Store steps at a position of the journal, which is dropped with its tick."""
    for each in steps:
        object_of = (each.alert, each.fingerprint, each.started, json.dumps(dict(each.labels)))
        row = (number, each.at_s, *object_of, each.stage, each.reason, json.dumps(each.proposals))
        db.execute("INSERT INTO alerts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)


def read_steps(db: sqlite3.Connection) -> tuple[AlertStep, ...]:
    """All steps in their order; none in a journal of a simulation, which has no such table."""
    if not db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'alerts'").fetchone()[0]:
        return ()
    rows = db.execute(
        "SELECT at_s, alert, fingerprint, started, labels, stage, reason, proposals FROM alerts ORDER BY rowid"
    ).fetchall()
    return tuple(
        AlertStep(at_s, alert, mark, started, json.loads(labels), stage, reason, tuple(json.loads(proposals)))
        for at_s, alert, mark, started, labels, stage, reason, proposals in rows
    )
