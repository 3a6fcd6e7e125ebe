"""The delivered alerts, on disk before a delivery is confirmed.

One row per (fingerprint, start). A repeat updates nothing but the count; a late `firing` after the end is ignored.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import structlog

from autopilot.core.model.errors import InputError
from autopilot.oncall.payload import Delivered, Key
from autopilot.records.journal.alerts import AlertStep

log: Any = structlog.get_logger("alerts")

MOST_OPEN, MOST_EACH = 20_000, 5_000
"""Most unended alerts: of all senders, and of one. Beyond it the oldest ones of the fullest sender go."""
KEPT_ENDED = 20_000
MOST_HISTORY = 50


class Stage(StrEnum):
    """The stage of the work on an alert."""

    RECEIVED = "received"
    NO_RUNBOOK = "no_runbook"
    WAITING = "waiting"  # nothing helpful is proposed now
    PROPOSED = "proposed"  # a proposal waits for a person
    ACTING = "acting"  # its effects are under way
    VERIFYING = "verifying"  # the effects ended; the cause should go away
    VERIFIED = "verified"
    NOT_VERIFIED = "not_verified"  # the effects ended, and the cause is still there
    ENDED = "ended"  # the alert resolved


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one query of a runbook: (labels, value) of each series, or the reason for its absence."""

    title: str
    query: str
    unit: str
    at_s: float  # time of the cluster
    series: tuple[tuple[dict[str, str], float], ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Moment:
    """A change of the stage, with its reason."""

    at_s: float  # time of the cluster
    stage: Stage
    reason: str


@dataclass(frozen=True, slots=True)
class AlertRecord:
    """One alert and the work on it."""

    fingerprint: str
    started: str
    labels: dict[str, str]
    summary: str
    firing: bool
    received_s: float  # time of the cluster
    stage: Stage = Stage.RECEIVED
    deliveries: int = 1
    reason: str = ""
    proposals: tuple[str, ...] = ()  # recommendations for it, or under way
    sent: tuple[str, ...] = ()  # the ids of the plans with effects under way
    acted: tuple[str, ...] = ()  # recommendations with effects sent for it while it fired
    evidence: tuple[Answer, ...] = ()
    verify_by_s: float = float("inf")
    history: tuple[Moment, ...] = field(default_factory=tuple)

    @property
    def key(self) -> Key:
        """The identity of the alert."""
        return self.fingerprint, self.started

    @property
    def name(self) -> str:
        """The name of the alert."""
        return self.labels["alertname"]

    @property
    def position(self) -> dict[str, Any]:
        """The stage of the work, for the log."""
        return {"stage": self.stage.value, "reason": self.reason, "proposals": list(self.proposals)}

    def to(self, stage: Stage, reason: str, at_s: float, **changes: Any) -> AlertRecord:
        """The record at another stage. The history has one moment for each stage, with the latest reason."""
        history = self.history
        if stage != self.stage or not history:
            history = (*history, Moment(at_s, stage, reason))[-MOST_HISTORY:]
        elif reason != self.reason:
            history = (*history[:-1], replace(history[-1], reason=reason))
        return replace(self, stage=stage, reason=reason, history=history, **changes)

    def ended(self, reason: str, at_s: float) -> AlertRecord:
        """The record at its end. Recommendations not carried out are no part of it."""
        return replace(self.to(Stage.ENDED, reason, at_s), firing=False, proposals=(), sent=())

    def steps_since(self, before: AlertRecord) -> tuple[AlertStep, ...]:
        """The steps between an earlier state of this record and this one; the receipt with the first of it."""
        known = set() if before.stage == Stage.RECEIVED else {(each.at_s, each.stage) for each in before.history}
        new = [each for each in self.history if (each.at_s, each.stage) not in known]
        return tuple(
            AlertStep(each.at_s, self.name, *self.key, self.labels, each.stage.value, each.reason, self.proposals)
            for each in new
        )


_TABLE = """CREATE TABLE IF NOT EXISTS alerts (
    fingerprint TEXT NOT NULL, started TEXT NOT NULL, firing INTEGER NOT NULL, ended INTEGER NOT NULL,
    deliveries INTEGER NOT NULL, record TEXT NOT NULL, PRIMARY KEY (fingerprint, started))"""
_LATER = ("sender TEXT NOT NULL DEFAULT ''", "listed INTEGER NOT NULL DEFAULT 0")
_INSERTED = "fingerprint, started, firing, ended, deliveries, record, sender"
_COLUMNS = "firing, deliveries, record"


class AlertBook:
    """The store of alerts. Its methods may be called from any thread."""

    def __init__(self, path: Path) -> None:
        """Open or create the file. Raises `InputError`."""
        self._path, self._lock = path, threading.Lock()
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute(_TABLE)
            known = {name for _, name, *_ in self._db.execute("PRAGMA table_info(alerts)")}
            for column in _LATER:
                if column.split()[0] not in known:
                    self._db.execute(f"ALTER TABLE alerts ADD COLUMN {column}")
            self._db.execute("CREATE INDEX IF NOT EXISTS open_alerts ON alerts (ended)")
        except sqlite3.Error as error:
            raise self._refusal(error) from error

    def receive(
        self,
        alerts: Sequence[Delivered],
        now_s: float,
        record: Callable[[Sequence[Delivered]], None] = lambda _: None,
        sender: str = "",
    ) -> int:
        """Store the alerts of one delivery in one transaction; returns the number of alerts with a change.

        If a sender's alerts fill the book, it loses its own oldest ones, never those of others. `record` keeps the
        alerts with a change. An error raised by it, and `InputError` for a failed write, mean: nothing of the delivery
        is stored.
        """
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    changed = [alert for alert in alerts if self._receive(alert, now_s, sender)]
                    self._make_room()
                    record(changed)
                    self._db.execute("COMMIT")
                except BaseException:
                    self._db.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise self._refusal(error) from error
        return len(changed)

    def _make_room(self) -> None:
        """Remove the oldest open alerts of senders with too many."""
        counts = "SELECT count(*), sender FROM alerts WHERE ended = 0 GROUP BY sender ORDER BY 1 DESC"
        while True:
            found: list[tuple[int, str]] = self._db.execute(counts).fetchall()
            number, sender = found[0] if found else (0, "")
            others = sum(count for count, _ in found[1:])
            too_many = max(number - MOST_EACH, number - max(MOST_OPEN - others, MOST_OPEN // max(len(found), 1)))
            if too_many <= 0:
                return
            self._db.execute(
                "DELETE FROM alerts WHERE rowid IN "
                "(SELECT rowid FROM alerts WHERE ended = 0 AND sender = ? ORDER BY rowid LIMIT ?)",
                (sender, too_many),
            )
            log.warning("alerts were dropped", sender=sender, dropped=too_many, fix="resolve alerts of this sender")

    def _receive(self, alert: Delivered, now_s: float, sender: str) -> bool:
        key = alert.key
        row = self._db.execute("SELECT firing FROM alerts WHERE fingerprint = ? AND started = ?", key).fetchone()
        if row is None:
            came = (Moment(now_s, Stage.RECEIVED, "delivered"),)
            record = AlertRecord(*key, alert.labels, alert.summary, firing=True, received_s=now_s, history=came)
            values = (*key, alert.firing, _text(record), sender)
            self._db.execute(f"INSERT INTO alerts ({_INSERTED}) VALUES (?, ?, ?, 0, 1, ?, ?)", values)  # noqa: S608
            return True
        ends = bool(row[0]) and not alert.firing
        self._db.execute(
            "UPDATE alerts SET deliveries = deliveries + 1, firing = ? WHERE fingerprint = ? AND started = ?",
            (row[0] and alert.firing, *key),
        )
        return ends

    def open_alerts(self) -> list[AlertRecord]:
        """Unended alerts, in the order of receipt."""
        return self._read(f"SELECT {_COLUMNS} FROM alerts WHERE ended = 0 ORDER BY rowid", ())  # noqa: S608

    def recent(self, limit: int) -> list[AlertRecord]:
        """The latest alerts, newest first; unended ones come before the others."""
        return self._read(f"SELECT {_COLUMNS} FROM alerts ORDER BY ended, rowid DESC LIMIT ?", (limit,))  # noqa: S608

    def counts(self) -> tuple[int, int]:
        """(Number of unended alerts, number of all). Raises `InputError`."""
        with self._lock:
            try:
                every, ended = self._db.execute("SELECT count(*), total(ended) FROM alerts").fetchone()
            except sqlite3.Error as error:
                raise self._refusal(error) from error
        return int(every - ended), int(every)

    def listed(self, keys: frozenset[Key]) -> frozenset[Key]:
        """Note the presence of these alerts in an Alertmanager. Returns the open ones present in it now or before.
        Raises `InputError`.
        """
        with self._lock:
            try:
                query = "SELECT fingerprint, started, listed FROM alerts WHERE ended = 0"
                rows = self._db.execute(query).fetchall()
                new = [(mark, start) for mark, start, listed in rows if not listed and (mark, start) in keys]
                if new:
                    self._db.execute("BEGIN IMMEDIATE")
                    self._db.executemany("UPDATE alerts SET listed = 1 WHERE fingerprint = ? AND started = ?", new)
                    self._db.execute("COMMIT")
            except sqlite3.Error as error:
                raise self._refusal(error) from error
        return frozenset(new) | {(mark, start) for mark, start, listed in rows if listed}

    def keep(self, records: Sequence[AlertRecord]) -> None:
        """Store the work on alerts. An ended one fires no more; the number of its deliveries stays."""
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                self._db.executemany(
                    "UPDATE alerts SET record = ?, ended = ?, firing = firing AND ? "
                    "WHERE fingerprint = ? AND started = ?",
                    [(_text(each), each.stage == Stage.ENDED, each.firing, *each.key) for each in records],
                )
                self._db.execute(
                    "DELETE FROM alerts WHERE ended = 1 AND rowid NOT IN "
                    "(SELECT rowid FROM alerts WHERE ended = 1 ORDER BY rowid DESC LIMIT ?)",
                    (KEPT_ENDED,),
                )
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                self._db.execute("ROLLBACK")
                raise self._refusal(error) from error

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def _read(self, query: str, values: tuple[object, ...]) -> list[AlertRecord]:
        with self._lock:
            try:
                rows = self._db.execute(query, values).fetchall()
            except sqlite3.Error as error:
                raise self._refusal(error) from error
        return [replace(_record(text), firing=bool(firing), deliveries=count) for firing, count, text in rows]

    def _refusal(self, error: sqlite3.Error) -> InputError:
        return InputError(f"{self._path}: alerts cannot be kept: {error}; free some space or make the folder writable")


def _text(record: AlertRecord) -> str:
    return json.dumps(asdict(record))


def _record(text: str) -> AlertRecord:
    content = json.loads(text)
    evidence = tuple(
        Answer(**{**each, "series": tuple((labels, value) for labels, value in each["series"])})
        for each in content.pop("evidence")
    )
    history = tuple(Moment(each["at_s"], Stage(each["stage"]), each["reason"]) for each in content.pop("history"))
    stage, proposals = Stage(content.pop("stage")), tuple(content.pop("proposals"))
    plans: dict[str, Any] = {name: tuple(content.pop(name, ())) for name in ("sent", "acted")}
    return AlertRecord(**content, **plans, stage=stage, proposals=proposals, evidence=evidence, history=history)
