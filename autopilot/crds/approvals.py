"""Approvals and rejections by annotation: each becomes one command in the inbox, and its answer stands in the status.

`approve=yes` approves the plan in the status, and every plan within its cover; the digest of the status means the same,
and is refused after a change of the status; `exactly` approves the very plan. `reject=yes` rejects the action for this
object; `plan` and `queue` reject less and more, and a time may follow (`queue,1d`; `forever`). The API server knows the
people allowed to set the annotation (RBAC) and tells here only the program and the time of its setting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from actuators.kubernetes.wire import Object, Part
from autopilot.contract.annotations import APPROVE, REJECT
from autopilot.contract.written import writes
from autopilot.core.model.approvals import rejection_of, seen_of
from autopilot.core.model.errors import InputError
from autopilot.core.model.records import Command, CommandKind, Proposal, RejectionScope
from autopilot.core.model.units import format_duration
from autopilot.crds.documents import cut
from autopilot.records.audit.log import AuditError
from autopilot.service.deciding import Refusal, approval_refusal, became, recommendation, rejection_words, time_of
from autopilot.service.inbox import CommandInbox
from autopilot.service.published import Published, Publisher
from autopilot.service.record import Record

Obj = dict[str, Any]
ROLE = "approver"
VERBS = {CommandKind.REJECT: REJECT, CommandKind.APPROVE: APPROVE}
"""Of two set annotations, the more cautious one counts."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One annotation. `at_s` is by the clock of the API server; NaN: not told."""

    kind: CommandKind
    value: str
    manager: str
    at: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Answered:
    """Result of an annotation. It is taken off once this stands in the status."""

    asked: Asked
    verdict: str  # Approved, Rejected or Refused
    message: str
    sequence: int = -1

    @property
    def document(self) -> Obj:
        """As it stands in the status."""
        found: Obj = {
            "verb": self.asked.kind.value,
            "verdict": self.verdict,
            "value": cut(self.asked.value),
            "manager": cut(self.asked.manager),
            "message": cut(self.message, 4096),
            "sequence": self.sequence,
        }
        return found | ({"at": self.asked.at} if self.asked.at else {})


@dataclass(frozen=True, slots=True)
class _Pending:
    asked: Asked
    command: Command
    proposal: Proposal


class _Decision(Part):
    verb: str | None = None
    at: str | None = None
    value: str | None = None
    verdict: str | None = None
    message: str | None = None
    sequence: int = -1


class _Spec(Part):
    id: str


class _Status(Part):
    decision: _Decision | None = None
    digest: str = ""


class Written(Object):
    """The read part of a Recommendation annotated by a person."""

    spec: _Spec
    status: _Status | None = None


def asked_of(found: Mapping[str, Any]) -> Asked | None:
    """The annotation of an object, with its author and time as far as its managed fields tell."""
    metadata = found.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    for kind, name in VERBS.items():
        if name in annotations:
            manager, at = _setter(metadata.get("managedFields") or [], name)
            return Asked(kind, str(annotations[name]), manager, at, _seconds(at))
    return None


def _setter(managed: list[Obj], annotation: str) -> tuple[str, str]:
    """Manager and time of the newest entry that owns an annotation."""
    owners = writes(managed, ("f:metadata", "f:annotations", f"f:{annotation}"))
    manager, at = max(owners, key=lambda each: each[1], default=("", ""))
    return manager or "unknown", at


def _seconds(at: str) -> float:
    try:
        return datetime.fromisoformat(at).timestamp()
    except (ValueError, OverflowError):
        return float("nan")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The request of an annotation."""

    digest: str
    exactly: bool = False
    scope: RejectionScope = RejectionScope.WORKLOAD
    for_s: float | None = None


def _wanted(asked: Asked, found: Mapping[str, Any]) -> _Wanted:
    """The request of an annotation. Raises `InputError` for any other value."""
    status, value = found.get("status") or {}, asked.value.strip()
    digest, scopes = str(status.get("digest", "")), [each.value for each in RejectionScope]
    if value in {"yes", digest, str((found.get("spec") or {}).get("id", ""))}:
        return _Wanted(digest)
    if asked.kind == CommandKind.APPROVE:
        if value == "exactly":
            return _Wanted(digest, exactly=True)
        raise InputError(f"{value[:60]!r} is no answer to a recommendation; write yes, exactly or the digest {digest}")
    scope, _, time = value.partition(",")
    if scope not in scopes or not (time or scope == value):
        raise InputError(
            f"{value[:60]!r} is no answer to a recommendation; write yes, plan, workload or queue, with a time if you "
            "like: queue,1d or plan,forever"
        )
    return _Wanted(digest, scope=RejectionScope(scope), for_s=time_of(time) if time else None)


class Approvals:
    """Takes annotations and reports their results. Used by one thread."""

    def __init__(
        self,
        publisher: Publisher,
        inbox: CommandInbox,
        record: Record,
        clock_s: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        """`clock_s`: time of the cluster; `wake`: tick early."""
        self._publisher, self._inbox, self._record = publisher, inbox, record
        self._clock_s, self._wake = clock_s, wake
        self._pending: dict[str, _Pending] = {}  # by uid

    def take(self, found: Mapping[str, Any], latest: Published) -> Answered | None:
        """Result of the annotation of an object, read whole; None while it is unknown, or without one.

        Raises `InputError` or `AuditError` for a command that cannot be recorded; it is tried again later.
        """
        asked, uid = asked_of(found), str((found.get("metadata") or {}).get("uid", ""))
        if asked is None:
            self._pending.pop(uid, None)
            return None
        pending = self._pending.get(uid)
        if pending is not None and pending.asked == asked:
            return self._outcome(uid, pending, latest)
        before = (found.get("status") or {}).get("decision") or {}
        same = (asked.kind.value, asked.at, cut(asked.value))
        if asked.at and (before.get("verb"), before.get("at"), before.get("value")) == same:
            known = Answered(asked, str(before.get("verdict", "")), str(before.get("message", "")))
            return replace(known, sequence=int(before.get("sequence", -1)))  # answered, and not taken off yet
        try:
            wanted = _wanted(asked, found)
        except InputError as error:
            return Answered(asked, "Refused", str(error))
        return self._decide(uid, found, asked, wanted, latest)

    def _decide(
        self, uid: str, found: Mapping[str, Any], asked: Asked, wanted: _Wanted, latest: Published
    ) -> Answered | None:
        origin = f"annotation {uid} {asked.kind.value} {asked.at or found['metadata'].get('resourceVersion', '')}"
        stored = self._inbox.received(origin)
        name = str(found["spec"]["id"])
        proposal = recommendation(self._publisher, latest, name, wanted.digest, exactly=wanted.exactly)
        if isinstance(proposal, Refusal):
            if stored is not None:  # it was taken before this process started
                return Answered(asked, _VERDICTS[asked.kind], proposal.text, stored.sequence)
            return Answered(asked, "Refused", proposal.text)
        refusal = self._late(asked, latest)
        if refusal is None and asked.kind == CommandKind.APPROVE:
            refusal = approval_refusal(proposal)
        if refusal is not None:
            return Answered(asked, "Refused", refusal.text)
        command = stored or self._store(asked, wanted, proposal, origin)
        self._pending[uid] = _Pending(asked, command, proposal)
        return self._outcome(uid, self._pending[uid], latest)

    def _late(self, asked: Asked, latest: Published) -> Refusal | None:
        age_s, valid_s = self._clock_s() - asked.at_s, latest.policy.approval.valid_s
        if not age_s > valid_s or asked.kind == CommandKind.REJECT:
            return None
        held = format_duration(valid_s)
        return Refusal(
            f"it was annotated {format_duration(age_s)} ago, and an approval holds for {held}; annotate again"
        )

    def _store(self, asked: Asked, wanted: _Wanted, proposal: Proposal, origin: str) -> Command:
        """Record the command, then put it into the inbox."""
        now_s = self._clock_s()
        given = Command(
            asked.kind,
            f"annotation ({asked.manager})",
            min(asked.at_s, now_s) if asked.at else now_s,
            proposal.recommendation,
            seen=seen_of(proposal),
            exactly=wanted.exactly,
            scope=wanted.scope,
            for_s=wanted.for_s,
        )
        self._record.command(given, ROLE, origin)
        stored = self._inbox.receive(given, origin)
        self._wake()
        return stored

    def _outcome(self, uid: str, pending: _Pending, latest: Published) -> Answered | None:
        if latest.memory.people.last_sequence < pending.command.sequence:
            return None
        del self._pending[uid]
        sequence, asked = pending.command.sequence, pending.asked
        if asked.kind == CommandKind.REJECT:
            found = rejection_of(latest.memory.people.rejections, pending.proposal, latest.observation.now_s)
            words = rejection_words(found[1], latest.observation.now_s) if found is not None else "it was rejected"
            return Answered(asked, "Rejected", words, sequence)
        result = became(pending.proposal, latest)
        if isinstance(result, Refusal):
            return Answered(asked, "Refused", result.text, sequence)
        return Answered(asked, "Approved", f"{result.result}: {result.message}", sequence)


_VERDICTS = {CommandKind.APPROVE: "Approved", CommandKind.REJECT: "Rejected"}
Failures = (InputError, AuditError)
"""Reason for a command that could not be stored."""
