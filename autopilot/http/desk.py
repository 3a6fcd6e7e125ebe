"""Tools of the routers: the latest step and the last day, the way in for commands, tokens and sessions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request

from autopilot.app.when import When
from autopilot.core.model.errors import InputError
from autopilot.core.model.records import Command, CommandKind
from autopilot.http.auth import Caller, Tokens
from autopilot.http.documents import Documents
from autopilot.http.history import History
from autopilot.http.limits import Limits
from autopilot.http.oidc import Provider
from autopilot.http.sessions import Sessions
from autopilot.oncall.follow import Follower
from autopilot.records.audit.log import AuditError
from autopilot.service.inbox import CommandInbox
from autopilot.service.kill_switch import KillSwitch
from autopilot.service.published import Published, Publisher
from autopilot.service.record import Record


@dataclass(frozen=True, slots=True)
class Desk:
    """The service as the API sees it."""

    publisher: Publisher
    inbox: CommandInbox
    kill_switch: KillSwitch
    tokens: Tokens
    record: Record
    clock_s: Callable[[], float]  # time of the cluster
    wake: Callable[[], None]  # tick early
    answer_s: float = 5.0
    silent_s: float = 60.0  # after this wall time without a tick the service is not ready
    when: When = field(default_factory=When)
    waiting: Callable[[], str] = lambda: ""  # reason for another controller's lead, "" while this one decides
    hangs: Callable[[], str] = lambda: ""  # reason for the end of this process, "" while it ticks
    rearm: Callable[[], str] | None = None  # ends what the watchdog imposed; why it could not, "" where it did
    follower: Follower | None = None  # follows alerts
    history: History = field(default_factory=History)
    sessions: Sessions = field(default_factory=Sessions)
    documents: Documents = field(default_factory=Documents)
    limits: Limits = field(default_factory=Limits)
    body_bytes: int = 64 << 10  # longest body of a request
    alerts_bytes: int = 1 << 20  # of a delivery of alerts
    metering: Path | None = None  # folder of the metering of this run
    provider: Provider | None = None  # signs people in beside tokens
    certified: Caller | None = None  # the caller without a token, if the listener demands a client certificate

    def latest(self) -> Published:
        """The last tick. Raises 503 before the first one."""
        published = self.publisher.latest
        if published is None and (waits := self.waiting()):
            raise HTTPException(503, waits, {"Retry-After": "2"})
        if published is None:
            raise HTTPException(
                503, "the controller has not decided yet; ask again in some seconds", {"Retry-After": "2"}
            )
        return published

    def seen(self) -> Published:
        """The last tick, for a question about an object. Raises 503 if it did not see the cluster."""
        latest = self.latest()
        if not latest.sees:
            raise HTTPException(503, f"the cluster is not seen now: {latest.decision.halted}", {"Retry-After": "2"})
        return latest

    def command(
        self,
        kind: CommandKind,
        caller: Caller,
        origin: str,
        subject: str = "",
        **more: Any,
    ) -> Command:
        """Record and store a command of the caller, and wake the loop. Raises 503 if that is not possible.

        `more`: further fields of the command.

        After a failure to store a `kill` the kill switch is on for the life of this process.
        """
        at_s = self.clock_s()
        given = Command(kind, caller.name, at_s, subject, **more)
        try:
            self.record.command(given, caller.role.value, origin, caller.subject)
            stored = self.inbox.receive(given, origin)
        except (InputError, AuditError) as error:
            if kind == CommandKind.KILL:
                self.kill_switch.trip(f"{caller.name} sent `kill`, which could not be stored")
                self.wake()
                raise HTTPException(
                    503,
                    f"{error}. The kill switch is on until this process ends; keep it on with the file "
                    f"{self.kill_switch.file}",
                ) from error
            raise HTTPException(503, str(error)) from error
        self.wake()
        return stored

    def obeyed(self, command: Command) -> Published | None:
        """The tick of the command's reading; None if that takes longer than `answer_s`."""
        return self.publisher.wait_for(lambda each: each.memory.people.last_sequence >= command.sequence, self.answer_s)


def desk_of(request: Request) -> Desk:
    """The desk of the application."""
    desk: Desk = request.app.state.desk
    return desk


Asked = Annotated[Desk, Depends(desk_of)]
