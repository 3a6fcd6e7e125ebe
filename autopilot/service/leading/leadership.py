"""Leadership over the cluster: the Lease, and the memory and inbox taken over by a leader before it decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import structlog

from autopilot.core.model.ports import Actuator, Following
from autopilot.core.model.records import Cause, Instruction, Outcome, OutcomeKind
from autopilot.service.leading.elector import Elector
from autopilot.service.leading.epoch import ClusterEpoch
from autopilot.service.leading.inbox import ClusterInbox
from autopilot.service.leading.memory import ClusterMemory

log: Any = structlog.get_logger("leadership")


class ClusterLeadership:
    """Leads while the Lease is held and its term has claimed the last leader's memory and inbox (port `Leadership`)."""

    def __init__(
        self, elector: Elector, memory: ClusterMemory, inbox: ClusterInbox, epoch: ClusterEpoch | None = None
    ) -> None:
        self._elector, self._memory, self._inbox, self._epoch = elector, memory, inbox, epoch
        self._claimed: int | None = None
        self.problem = ""  # reason against the start of a term
        self.ended: Callable[[], None] = elector.release  # ends the election

    def fence(self) -> int | None:
        """The fence of this term; None while another controller leads. The loop alone calls it.

        Raises `InputError` for an untrustworthy memory.
        """
        fence = self._elector.fence()
        if fence is None or fence == self._claimed:
            return fence
        problem = self._claim_epoch(fence) or self._memory.claim(fence) or self._claim_inbox(fence)
        if self._epoch is not None and not problem:
            self._epoch.settle(fence)
        if problem != self.problem and problem:
            log.warning("the memory of the last leader cannot be taken over yet", reason=problem, fence=fence)
        self.problem = problem
        self._claimed = None if problem else fence
        return self._claimed

    def still(self, fence: int) -> bool:
        """True if a write of this term may leave now. A writer asks immediately before each write, from any thread."""
        return not self.why_not(fence)

    def still_leads(self, fence: int) -> bool:
        """True if this term goes on, with or without a writable memory."""
        return self._claimed == fence and self._elector.still(fence)

    def why_not(self, fence: int) -> str:
        """Reason against a write of this term now; "" for none."""
        if not self.still_leads(fence):
            return f"the term with fence {fence} is over: {self.waiting() or 'this controller leads with another one'}"
        return self._memory.problem

    def may_write(self) -> str:
        """Reason against any write of the present term now; "" for none."""
        return self.why_not(self._claimed) if self._claimed is not None else "this controller does not lead"

    def waiting(self) -> str:
        """Reason against commands to this controller; "" while it leads."""
        if self._elector.fence() is not None:
            return ""
        holder = self._elector.holder
        if holder and holder != self._elector.identity:
            return f"this controller stands by, {holder} leads; send it to the leader"
        return self._elector.problem or f"no controller leads {self._elector.name} yet; send it again in some seconds"

    def decided(self) -> None:
        """A tick ended: commands known to the memory in the cluster need not be kept."""
        memory = self._memory.load()
        if memory is not None and not self._memory.problem:
            self._inbox.decided(memory.people.last_sequence)

    def release(self) -> None:
        """Write the last counters, then let another controller lead at once."""
        if self._claimed is not None and self._elector.still(self._claimed):
            self._memory.flush()
        self.ended()

    def leads(self) -> bool:
        """True if a term with a claimed memory goes on."""
        return self._claimed is not None and self.still_leads(self._claimed)

    def unfenced(self) -> tuple[str, bool]:
        """Why the API server accepts writes of an earlier leader ("": it does not); True if it refuses ours."""
        if self._epoch is None or self._claimed is None:
            return "this controller does not lead", False
        problem = self._claim_epoch(self._claimed)
        return (problem, False) if problem else self._epoch.probe(self._claimed)

    def _claim_epoch(self, fence: int) -> str:
        """Write the epoch of this term. If the cluster knows a later one, the next term goes above that."""
        if self._epoch is None:
            return ""
        problem = self._epoch.claim(fence, self._elector.identity)
        if self._epoch.highest > fence:
            self._elector.outdone(fence)
        return problem

    def _claim_inbox(self, fence: int) -> str:
        memory = self._memory.load()
        return self._inbox.claim(fence, memory.people.last_sequence if memory is not None else -1)


class FencedActuator:
    """Holds back instructions of an ended term, or without their memory in the cluster (port `Actuator`)."""

    def __init__(self, inner: Actuator, leadership: ClusterLeadership) -> None:
        self.name, self._inner, self._leadership = inner.name, inner, leadership

    def apply(self, instruction: Instruction, now_s: float) -> Outcome:
        """Carry out one instruction of this term. An unsent one is no attempt: it is decided again."""
        reason = self._leadership.why_not(instruction.fence)
        if not reason:
            return self._inner.apply(instruction, now_s)
        cause = Cause.SERVER if self._leadership.still_leads(instruction.fence) else Cause.EPOCH
        return Outcome(instruction.id, OutcomeKind.CONFLICT, now_s, f"not sent: {reason}", cause=cause)


class FencedFollower(FencedActuator):
    """The same for an actuator with effects of several steps (port `Following`)."""

    def __init__(self, inner: Actuator, follower: Following, leadership: ClusterLeadership) -> None:
        """`inner` and `follower` are the same actuator."""
        super().__init__(inner, leadership)
        self._follower = follower

    def advance(self, now_s: float, fence: int | None, under_way: Sequence[Instruction]) -> tuple[Outcome, ...]:
        """Continue the effects under way; nothing is written while a write of this term may not leave."""
        stopped = fence is not None and self._leadership.why_not(fence) != ""
        return self._follower.advance(now_s, None if stopped else fence, under_way)
