"""Sends the notices to owners of idle work further: to a webhook of Slack's shape, and by mail.

A notice leaves here after the actuator has given it, so the mode, the guards and the ladder have decided it, and it
leaves once. A thread sends; a way that fails is counted and logged, never repeated, and delays no tick.
"""

from __future__ import annotations

import smtplib
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol
from urllib.parse import urlsplit

import numpy as np
import structlog

from actuators.kubernetes.levers.notice import words
from autopilot.app.when import When
from autopilot.core.idle.notify import Notify
from autopilot.core.model.errors import InputError
from autopilot.core.model.records import Instruction, OutcomeKind, Proposal
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.model.verb import asked
from autopilot.deadline import Limit, within
from autopilot.printable import printable
from autopilot.records.audit.entry import Kind
from autopilot.records.audit.log import AuditError
from autopilot.service.published import Published
from autopilot.service.record import Record
from autopilot.service.settings_fields import check_secure
from autopilot.service.settings_notices import MailNotices, Notices, SlackNotices
from collectors.exporter import http_session, reason_of

SENDS_S = 10.0
"""Longest time of one message."""
MOST_AN_HOUR = 60
"""Messages of one way within an hour; the rest is dropped and counted."""
MOST_WAITING = 200
ENDS_S = 5.0
"""Wait of the ending process for messages about to leave."""
RESULTS = ("sent", "failed", "dropped", "no_address")

log: Any = structlog.get_logger("notices")


@dataclass(frozen=True, slots=True)
class Notice:
    """One notice, ready to be sent. `queues`: the queue of the work, then those above it."""

    workload: str
    queues: tuple[str, ...]
    text: str

    @property
    def title(self) -> str:
        """One line."""
        return f"GPUs idle: {self.workload}"


class Way(Protocol):
    """A way to people."""

    name: str

    def address(self, notice: Notice) -> str:
        """Its receiver, for the audit log; "" for no address."""

    def send(self, notice: Notice, address: str) -> None:
        """Send it within `SENDS_S`. Raises `OSError`, `ValueError` or `InputError`, without a secret in the text."""


class Slack:
    """An incoming webhook."""

    name = "slack"

    def __init__(self, settings: SlackNotices) -> None:
        """Raises `InputError` for an unreadable address."""
        self._file = settings.webhook_file
        self._url()

    def address(self, _notice: Notice) -> str:
        """The webhook, by the setting: its address is a secret."""
        return "notices.slack"

    def send(self, notice: Notice, _address: str) -> None:
        """One message."""
        url, text = self._url(), f"*{notice.title}*\n{notice.text}"
        for letter, escaped in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):  # no mention, no link with other words
            text = text.replace(letter, escaped)
        try:
            with (
                within(SENDS_S),
                http_session(1, None) as session,
                session.post(url, json={"text": text}, timeout=SENDS_S, stream=True, allow_redirects=False) as answer,
            ):
                status = answer.status_code
        except (OSError, ValueError) as error:
            reason = reason_of(error).replace(url, "the webhook").replace(urlsplit(url).path, "...")
            raise OSError(reason) from None
        if not 200 <= status < 300:
            raise OSError(f"the webhook answered HTTP {status}")

    def _url(self) -> str:
        """Read each time: a mounted secret may change."""
        url = _secret(self._file, "notices.slack.webhook_file")
        try:
            check_secure(url)
        except ValueError:
            what = f"notices.slack.webhook_file: {self._file}: its content is not an https address"
            raise InputError(f"{what}; write the address of the webhook into it") from None
        return url


class Mail:
    """A mail server."""

    name = "mail"

    def __init__(self, settings: MailNotices) -> None:
        """Raises `InputError` for an unreadable password or authority."""
        self._settings = settings
        self._password()
        if settings.starttls:
            self._context()

    def address(self, notice: Notice) -> str:
        """The address of the queue, else of the nearest queue above it with one."""
        known = self._settings.recipients
        return next((known[each] for each in notice.queues if each in known), self._settings.default or "")

    def send(self, notice: Notice, address: str) -> None:
        """One mail."""
        given, mail = self._settings, EmailMessage()
        mail["From"], mail["To"], mail["Subject"] = given.sender, address, notice.title
        mail["Date"], mail["Message-ID"] = formatdate(), make_msgid(domain="gpu-autopilot")
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(notice.text)
        with within(SENDS_S) as limit, _Server(limit) as server:
            server.connect(given.host, given.port)
            if given.starttls:
                server.starttls(context=self._context())
            if given.user is not None:
                server.login(given.user, self._password())
            server.send_message(mail)

    def _context(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self._settings.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise InputError(f"notices.mail.ca_file: {self._settings.ca_file}: {error}; give it as PEM") from error

    def _password(self) -> str:
        file = self._settings.password_file
        return _secret(file, "notices.mail.password_file") if file is not None else ""


class _Server(smtplib.SMTP):
    """A connection that the deadline can shut."""

    def __init__(self, limit: Limit) -> None:
        super().__init__(timeout=SENDS_S)
        self._limit = limit

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        self._host = host  # the name in the certificate: smtplib sets it only if it connects by itself
        made = socket.create_connection((host, port), timeout)
        self._limit.hold(made.fileno())
        return made


class Notifier:
    """Follows the ticks of the leader, and sends each given notice on. `page`: its address, "" for none."""

    def __init__(
        self,
        ways: tuple[Way, ...],
        record: Record,
        page: str = "",
        when: When = When(),  # noqa: B008 - frozen
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ways, self._record, self._page, self._when, self._clock_s = ways, record, page, when, clock_s
        self._given: dict[str, Notice] = {}  # by instruction under way
        self._waiting: SimpleQueue[Notice | None] = SimpleQueue()  # None: the end
        self._left_s: dict[str, deque[float]] = {each.name: deque() for each in ways}
        self._counts: dict[tuple[str, ...], float] = {(each.name, result): 0.0 for each in ways for result in RESULTS}
        self._thread = threading.Thread(target=self._run, name="notices", daemon=True)
        self._thread.start()

    def take(self, published: Published) -> None:
        """One tick: keep the notices about to be given, and pass on those given by the actuator."""
        for outcome in published.observation.outcomes:
            notice = self._given.pop(outcome.instruction_id, None) if outcome.kind == OutcomeKind.DONE else None
            if notice is not None and published.leads:
                self._pass(notice)
        under_way = published.memory.effects.in_flight
        self._given = {key: notice for key, notice in self._given.items() if key in under_way}
        for key, entry in under_way.items():
            operation = entry.instruction.operation
            if operation.notifies and key not in self._given:
                self._given[key] = self._notice(entry.instruction, asked(operation, Notify), published)

    def counts(self) -> Mapping[str, Mapping[tuple[str, ...], float]]:
        """Messages by way and result, as a metric."""
        return {"notices_total": dict(self._counts)}

    def close(self) -> None:
        """Send the waiting messages, within `ENDS_S`."""
        self._waiting.put(None)
        self._thread.join(ENDS_S)

    def _notice(self, instruction: Instruction, operation: Notify, published: Published) -> Notice:
        plan, name = published.decision.plan.proposals, printable(instruction.subject.name)
        facts = _facts(next((each for each in plan if each.id == instruction.proposal_id), None))
        queues = queues_of(published.observation.snapshot, instruction.subject.uid)
        since = self._when.stamp(published.observation.now_s - operation.idle_s)
        lines = [
            f"{name}: {words(operation)}.",
            f"Idle since {since}." if since is not None else "",
            f"Owner {facts['owner'].rstrip('/')}." if "owner" in facts else "",
            f"Queue {queues[0]}." if queues else "",
            f"The GPUs are {facts['held']}." if "held" in facts else "",  # above the guarantee, or inside one
            f"{self._page}/#/workloads" if self._page else "",
        ]
        return Notice(name, queues, "\n".join(filter(None, lines)))

    def _pass(self, notice: Notice) -> None:
        if self._waiting.qsize() < MOST_WAITING:
            self._waiting.put(notice)
            return
        for way in self._ways:
            self._count(way, "dropped", notice, "", f"{MOST_WAITING} notices wait already")

    def _run(self) -> None:
        while (notice := self._waiting.get()) is not None:
            for way in self._ways:
                self._send(way, notice)

    def _send(self, way: Way, notice: Notice) -> None:
        now_s, left_s = self._clock_s(), self._left_s[way.name]
        while left_s and left_s[0] <= now_s - 3600.0:
            left_s.popleft()
        address = way.address(notice)
        if not address:
            self._count(way, "no_address", notice, "", "its queue has no address; set notices.mail.recipients")
            return
        if len(left_s) >= MOST_AN_HOUR:
            self._count(way, "dropped", notice, address, f"{MOST_AN_HOUR} messages left within the hour")
            return
        left_s.append(now_s)
        try:
            way.send(notice, address)
        except (OSError, ValueError, InputError) as error:
            self._count(way, "failed", notice, address, reason_of(error))
        else:
            self._count(way, "sent", notice, address, "")

    def _count(self, way: Way, result: str, notice: Notice, address: str, reason: str) -> None:
        """Count, log and record the result of a message."""
        self._counts[way.name, result] += 1
        facts = {"way": way.name, "result": result, "to": address, "reason": reason}
        if reason:
            log.warning("notice not sent", workload=notice.workload, **facts)
        try:
            self._record.effect(Kind.NOTICE, notice.workload, facts)
        except AuditError as error:
            log.error("notice not recorded", reason=str(error))  # noqa: TRY400 - no trace is needed


def open_notifier(settings: Notices, record: Record, page: str, when: When) -> Notifier | None:
    """The notifier of the settings; None without a way. Raises `InputError` for an unreadable secret."""
    ways = ways_of(settings)
    return Notifier(ways, record, page, when) if ways else None


def ways_of(settings: Notices) -> tuple[Way, ...]:
    """The ways in the settings. Raises `InputError`."""
    slack = [Slack(settings.slack)] if settings.slack is not None else []
    return (*slack, *([Mail(settings.mail)] if settings.mail is not None else []))


def queues_of(snapshot: ClusterSnapshot, uid: str) -> tuple[str, ...]:
    """The queue of a workload and those above it, without the root; empty for an absent workload."""
    rows, found = np.flatnonzero(snapshot.workloads.uid == uid), list[str]()
    row = int(snapshot.workloads.queue[rows[0]]) if len(rows) else 0
    while row > 0:
        found.append(str(snapshot.queues.id[row]))
        row = int(snapshot.queues.parent[row])
    return tuple(found)


def _facts(proposal: Proposal | None) -> dict[str, str]:
    evidence = proposal.evidence if proposal is not None else ()
    return {each.name: printable(str(each.value)) for each in evidence}


def _secret(file: Path, field: str) -> str:
    try:
        found = file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{field}: {file}: cannot be read: {error}; create it, readable by its owner") from error
    if not found:
        raise InputError(f"{field}: {file}: is empty; write the secret into it")
    return found
