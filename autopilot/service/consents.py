"""Approvals of owners: an annotation on work, or on its namespace, approves actions on this work alone.

Off unless `kubernetes.approve_on_work` is set, because the right to annotate work is not the right to approve. Each
approval is an ordinary command: it is recorded in the audit log and covers one state. The annotation stays until its
owner removes it, and each new state gets a new command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog

from autopilot.core.model.approvals import seen_of
from autopilot.core.model.errors import InputError
from autopilot.core.model.objects import SubjectKind
from autopilot.core.model.records import Command, CommandKind, Proposal
from autopilot.explain.proposals import Answer, answer_of
from autopilot.records.audit.log import AuditError
from autopilot.service.inbox import CommandInbox
from autopilot.service.published import Published
from autopilot.service.record import Record

ROLE = "owner"

log = structlog.get_logger("consents")


class Consents:
    """Looks at the proposals waiting for an approval after each tick."""

    def __init__(
        self,
        owners: Callable[[], Mapping[str, str]],
        inbox: CommandInbox,
        record: Record,
        wake: Callable[[], None],
    ) -> None:
        """`owners`: uid of work -> the approving annotation, in words. `wake`: tick early."""
        self._owners, self._inbox, self._record, self._wake = owners, inbox, record, wake

    def __call__(self, latest: Published) -> None:
        """Approve on behalf of the owners. Without a record there is no approval; it is tried again."""
        owners = self._owners()
        for proposal in latest.decision.plan.proposals if owners else ():
            who = consent(proposal, owners)
            if not who or answer_of(proposal, latest.decision.halted) != Answer.NEEDS_APPROVAL:
                continue
            try:
                self._approve(proposal, who, latest)
            except (InputError, AuditError) as error:
                log.warning("an approval was not taken", proposal=proposal.id, who=who, error=str(error))
                return

    def _approve(self, proposal: Proposal, who: str, latest: Published) -> None:
        given = Command(
            CommandKind.APPROVE, who, latest.observation.now_s, proposal.recommendation, seen=seen_of(proposal)
        )
        origin = f"annotation {proposal.subject.uid} {proposal.state_digest} tick {latest.observation.tick}"
        self._record.command(given, ROLE, origin)
        self._inbox.receive(given, origin)
        self._wake()


def consent(proposal: Proposal, owners: Mapping[str, str]) -> str:
    """The owners behind the approval of a proposal, if those of all touched work approve; else ""."""
    if proposal.subject.kind != SubjectKind.WORKLOAD:
        return ""
    touched = dict.fromkeys([proposal.subject.uid, *(victim.uid for victim in proposal.victims)])
    words = [owners.get(uid, "") for uid in touched]
    return ", ".join(dict.fromkeys(words)) if all(words) else ""
