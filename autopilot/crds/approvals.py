"""Approvals and rejections by annotation: each becomes one command in the inbox, and its answer stands in the status.

An object is about one state, and its spec never changes. So `yes` means the state that its reader saw; the digest or
the id of the proposal mean the same. The API server knows who may set the annotation (RBAC) and tells here only with
which program it was set, and when.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import msgspec

from actuators.kubernetes.wire import Object, Part
from autopilot.audit.log import AuditError
from autopilot.contract.annotations import APPROVE, REJECT
from autopilot.contract.written import writes
from autopilot.core.model.errors import InputError
from autopilot.core.model.records import Command, CommandKind, Proposal
from autopilot.core.model.units import format_duration
from autopilot.crds.documents import cut
from autopilot.service.deciding import Refusal, approval_refusal, became, recommendation
from autopilot.service.inbox import CommandInbox
from autopilot.service.published import Published, Publisher
from autopilot.service.record import Record

Obj = dict[str, Any]
ROLE = "approver"
VERBS = {CommandKind.REJECT: REJECT, CommandKind.APPROVE: APPROVE}
"""Where both annotations are set, the more cautious one counts."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One annotation. `at_s` is by the clock of the API server, NaN where it does not tell."""

    kind: CommandKind
    value: str
    manager: str
    at: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of an annotation. It is taken off once this stands in the status."""

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
    digest: str


class _Status(Part):
    decision: _Decision | None = None
    gain: float = msgspec.field(name="gainGPUSeconds", default=0.0)
    cost: float = msgspec.field(name="costGPUSeconds", default=0.0)


class Written(Object):
    """What is read of a Recommendation that a person has annotated."""

    spec: _Spec
    status: _Status | None = None


def asked_of(found: Mapping[str, Any]) -> Asked | None:
    """The annotation of an object, with who set it and when as far as its managed fields tell."""
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


class Approvals:
    """Takes annotations and tells what became of them. Used by one thread."""

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
        """What became of the annotation of an object, read whole; None while that is not known yet, or without one.

        Raises `InputError` or `AuditError` where the command cannot be recorded; it is tried again later.
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
        spec = found.get("spec") or {}
        known_values = {"yes", str(spec.get("digest", "")), str(spec.get("id", ""))}
        if asked.value.strip() not in known_values:
            fix = f"write yes, or the digest {spec.get('digest', '')}"
            return Answered(asked, "Refused", f"{asked.value[:60]!r} is no answer to a recommendation; {fix}")
        return self._decide(uid, found, asked, latest)

    def _decide(self, uid: str, found: Mapping[str, Any], asked: Asked, latest: Published) -> Answered | None:
        origin = f"annotation {uid} {asked.kind.value} {asked.at or found['metadata'].get('resourceVersion', '')}"
        spec = found["spec"]
        stored = self._inbox.received(origin)
        proposal = recommendation(self._publisher, latest, str(spec["id"]), str(spec["digest"]))
        if isinstance(proposal, Refusal):
            if stored is not None:  # it was taken before this process started
                return Answered(asked, _VERDICTS[asked.kind], proposal.text, stored.sequence)
            return Answered(asked, "Refused", proposal.text)
        refusal = self._late(asked, latest)
        if refusal is None and asked.kind == CommandKind.APPROVE:
            refusal = approval_refusal(proposal)
        if refusal is not None:
            return Answered(asked, "Refused", refusal.text)
        command = stored or self._store(found, asked, proposal, origin)
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

    def _store(self, found: Mapping[str, Any], asked: Asked, proposal: Proposal, origin: str) -> Command:
        """Record the command, then put it into the inbox. What the person saw is what the status shows."""
        now_s, status = self._clock_s(), found.get("status") or {}
        given = Command(
            asked.kind,
            f"annotation ({asked.manager})",
            min(asked.at_s, now_s) if asked.at else now_s,
            proposal.id,
            proposal.state_digest,
            benefit_gpu_s=float(status.get("gainGPUSeconds", proposal.benefit_gpu_s)),
            cost_gpu_s=float(status.get("costGPUSeconds", proposal.cost_gpu_s)),
        )
        self._record.command(given, ROLE, origin)
        stored = self._inbox.receive(given, origin)
        self._wake()
        return stored

    def _outcome(self, uid: str, pending: _Pending, latest: Published) -> Answered | None:
        if latest.memory.last_sequence < pending.command.sequence:
            return None
        del self._pending[uid]
        sequence, asked = pending.command.sequence, pending.asked
        if asked.kind == CommandKind.REJECT:
            return Answered(asked, "Rejected", "it is not carried out in this state", sequence)
        result = became(pending.proposal, latest)
        if isinstance(result, Refusal):
            return Answered(asked, "Refused", result.text, sequence)
        return Answered(asked, "Approved", f"{result.result}: {result.message}", sequence)


_VERDICTS = {CommandKind.APPROVE: "Approved", CommandKind.REJECT: "Rejected"}
Failures = (InputError, AuditError)
"""Why a command could not be stored."""
