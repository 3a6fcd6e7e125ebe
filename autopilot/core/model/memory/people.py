"""What people were shown, and what they answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autopilot.core.model.records import Proposal, RejectionScope, Seen
from autopilot.core.model.times import Time


@dataclass(frozen=True, slots=True)
class OpenProposal:
    """A recommendation that waits for a person, as decisions show it."""

    proposal: Proposal
    since_s: Time  # it has been shown without a break
    changed_s: Time  # its plan or figures have stood since


@dataclass(frozen=True, slots=True)
class Approval:
    """A person's approval of a recommendation, and the effects under it (core/model/approvals.py)."""

    seen: Seen
    exactly: bool
    given_s: Time
    who: str
    sent: tuple[str, ...] = ()  # digests of the plans carried out under it; it holds for their retries and starts
    taken_gpus: float = 0.0  # by these
    spent_gpu_s: float = 0.0
    side_gpus: float = 0.0  # taken by these from waiting work


@dataclass(frozen=True, slots=True)
class Rejection:
    """A person's rejection. `plan`: digest of the shown plan, if only this plan is rejected."""

    scope: RejectionScope
    action: str
    about: str  # recommendation, or queue
    plan: str
    until_s: Time
    who: str


@dataclass(frozen=True, slots=True)
class PeopleMemory:
    """Recommendations and answers (core/intake/commands.py)."""

    open_proposals: Mapping[str, OpenProposal] = field(default_factory=dict)  # by recommendation
    approvals: Mapping[str, Approval] = field(default_factory=dict)  # by recommendation
    rejections: Mapping[str, Rejection] = field(default_factory=dict)  # by scope and object
    last_sequence: int = -1  # the highest sequence number of a command so far
