"""The service's entries in the audit log: person, action, origin and state.

A command that cannot be recorded is refused, and an effect that cannot be recorded is not sent.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from autopilot.core.model.approvals import cover_digest
from autopilot.core.model.ports import Actuator, Following
from autopilot.core.model.records import Command, CommandKind, Instruction, Outcome, OutcomeKind
from autopilot.records.audit.entry import Event, Fact, Kind
from autopilot.records.audit.keys import signing_key
from autopilot.records.audit.log import SEAL_EVERY_S, AuditError, AuditLog, Head
from autopilot.records.journal.alerts import AlertStep

DENIALS_EVERY_S = 10.0
"""Refused requests of one kind and origin are recorded once in this time, with their number: a flood fills no disk."""
MOST_ORIGINS = 1000
SHOWN_DENIALS = 20
"""The newest requests of callers without the role, as shown by the API."""

log: Any = structlog.get_logger("audit")


@dataclass(frozen=True, slots=True)
class Denial:
    """A request of a known caller with too low a role, such as an approval by a viewer."""

    at_s: float
    who: str
    role: str
    path: str
    reason: str


class Record:
    """The audit log of one service."""

    def __init__(self, folder: Path, now_s: Callable[[], float] = time.time) -> None:
        """Open the log in `folder`, with its key beside it. Raises `InputError` if that is not possible."""
        self.folder, self._now_s = folder, now_s
        self._log = AuditLog(folder, signing_key(folder.with_name(f"{folder.name}.key")), now_s)
        self._sealed_s = now_s()
        self._denied: dict[tuple[str, str], tuple[float, int]] = {}  # (origin, reason) -> last line, requests since
        self._denials = {"token": 0, "role": 0}  # since the start
        self.by_role: deque[Denial] = deque(maxlen=SHOWN_DENIALS)
        self._policy = ""

    @property
    def head(self) -> Head:
        """The last line."""
        return self._log.head

    def event(self, kind: Kind, **facts: Fact) -> None:
        """A fact of the service itself. Raises `AuditError`."""
        self._log.record(Event(kind, facts=facts))

    def signed_in(self, who: str, role: str, origin: str, oidc_subject: str) -> None:
        """A person signed in through an OpenID Connect provider. Raises `AuditError`."""
        self._log.record(Event(Kind.SIGN_IN, who, role, origin, facts={"oidc_subject": oidc_subject}))

    def command(self, command: Command, role: str, origin: str, oidc_subject: str = "") -> None:
        """A command of a person, before it is stored; `oidc_subject`: the person at the provider, "" for a token.

        Raises `AuditError`.
        """
        facts: dict[str, Fact] = {"command": command.kind.value}
        facts |= {"oidc_subject": oidc_subject} if oidc_subject else {}
        if command.kind == CommandKind.APPROVE:
            facts["covers"] = "the very plan" if command.exactly else "plans within its cover"
        if command.kind == CommandKind.REJECT:
            facts |= {"scope": command.scope.value, "for_s": "by policy" if command.for_s is None else command.for_s}
        digest, seen = "", command.seen
        if seen is not None:
            facts |= {"cost_gpu_s": seen.cost_gpu_s, "taken_gpus": seen.taken_gpus, "queues": ",".join(seen.queues)}
            digest = cover_digest(command.subject, seen, exactly=command.exactly)
        self._log.record(Event(Kind.COMMAND, command.who, role, origin, command.subject, digest, facts=facts))

    def alerts(self, steps: Iterable[AlertStep], who: str = "autopilot", role: str = "", origin: str = "") -> None:
        """Events of alerts: deliveries, and the controller's results from them. Raises `AuditError`."""
        events = [
            Event(
                Kind.ALERT,
                who,
                role,
                origin,
                each.alert,
                facts={
                    "fingerprint": each.fingerprint,
                    "started": each.started,
                    "stage": each.stage,
                    "reason": each.reason,
                    "proposals": " ".join(each.proposals),
                },
            )
            for each in steps
        ]
        if events:
            self._log.record(*events)

    def effect(self, kind: Kind, subject: str, facts: Mapping[str, Fact]) -> None:
        """An effect on the cluster, or its outcome. Raises `AuditError`."""
        self._log.record(Event(kind, subject=subject, facts=facts))

    def counts(self) -> dict[str, dict[tuple[str, ...], float]]:
        """Denied requests, as a metric."""
        return {"denied_requests_total": {(reason,): float(count) for reason, count in self._denials.items()}}

    def denied(self, who: str, role: str, origin: str, path: str, reason: str) -> None:
        """A refused request. It is refused in any case, so a failing log is only reported."""
        self._denials["role" if who else "token"] += 1
        now_s, key = self._now_s(), (origin, reason)
        if who:
            self.by_role.append(Denial(now_s, who, role, path, reason))
        last_s, count = self._denied.get(key, (-DENIALS_EVERY_S, 0))
        if now_s - last_s < DENIALS_EVERY_S:
            self._denied[key] = (last_s, count + 1)
            return
        if len(self._denied) >= MOST_ORIGINS:
            self._denied.clear()
        self._denied[key] = (now_s, 0)
        facts: dict[str, Fact] = {"path": path, "reason": reason, "unrecorded_before": count}
        try:
            self._log.record(Event(Kind.DENIED, who, role, origin, facts=facts))
        except AuditError as error:
            log.error("denied request not recorded", reason=str(error))  # noqa: TRY400 - no trace is needed

    def policy(self, name: str, digest: str) -> None:
        """The policy of this tick; a change is recorded once."""
        if digest != self._policy:
            self._policy = digest
            self.event(Kind.SETTINGS, policy=name, digest=digest)

    def rearmed(self, who: str, role: str, origin: str) -> None:
        """A person ends the restraint by the watchdog. Raises `AuditError`."""
        self._log.record(Event(Kind.SETTINGS, who, role, origin, "watchdog", facts={"rearmed": True}))

    def seal_when_due(self) -> None:
        """Sign the head each minute, and export it as a log line. A failing disk is reported."""
        if self._now_s() - self._sealed_s < SEAL_EVERY_S:
            return
        self._sealed_s = self._now_s()
        try:
            head = self._log.seal()
        except AuditError as error:
            log.error("audit not sealed", reason=str(error))  # noqa: TRY400 - no trace is needed
            return
        if head is not None:
            log.info(f"audit sealed {head}")  # noqa: G004 - the exported form, as `autopilot audit verify --head` takes it

    def close(self) -> None:
        """Seal and close."""
        self._log.close()


class RecordedActuator:
    """Records each instruction before it is sent, and its outcome after (port `Actuator`)."""

    def __init__(self, inner: Actuator, record: Record) -> None:
        self.name, self._inner, self._record = inner.name, inner, record

    def apply(self, instruction: Instruction, now_s: float) -> Outcome:
        """Carry out one instruction, unless it cannot be recorded."""
        subject, facts = instruction.subject.name, {"id": instruction.id, "operation": instruction.kind}
        try:
            self._record.effect(Kind.INSTRUCTION, subject, {**facts, "proposal": instruction.proposal_id})
        except AuditError as error:
            return Outcome(instruction.id, OutcomeKind.FAILED, now_s, f"not sent: {error}", retryable=True)
        outcome = self._inner.apply(instruction, now_s)
        self._keep(outcome, subject, instruction.kind)
        return outcome

    def _keep(self, outcome: Outcome, subject: str, kind: str) -> None:
        facts: dict[str, Fact] = {"id": outcome.instruction_id, "operation": kind, "outcome": outcome.kind.value}
        facts |= {"cause": outcome.cause.value} if outcome.cause else {}
        try:
            self._record.effect(Kind.OUTCOME, subject, {**facts, "reason": outcome.reason})
        except AuditError as error:
            reason = str(error)
            log.error("outcome not recorded", id=outcome.instruction_id, reason=reason)  # noqa: TRY400 - no trace is needed


class RecordedFollower(RecordedActuator):
    """The same for an actuator with effects of several steps (port `Following`): late outcomes are recorded too."""

    def __init__(self, inner: Actuator, follower: Following, record: Record) -> None:
        """`inner` and `follower` are the same actuator."""
        super().__init__(inner, record)
        self._follower = follower

    def advance(self, now_s: float, fence: int | None, under_way: Sequence[Instruction]) -> tuple[Outcome, ...]:
        """Continue the effects under way."""
        outcomes = self._follower.advance(now_s, fence, under_way)
        known = {each.id: each for each in under_way}
        for each in outcomes:
            found = known.get(each.instruction_id)
            self._keep(each, found.subject.name if found else "", found.kind if found else "")
        return outcomes
