"""Simulated approval: a person with occasional looks, and for comparison a delay for each effect.

Both are an inbox (port `Inbox`) and watch each tick. They compare the effects carried out with their approvals.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from autopilot.core.capabilities.actions import ACTIONS
from autopilot.core.model.approvals import group_of, seen_of
from autopilot.core.model.modes import Mode
from autopilot.core.model.objects import Taken
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Code, Command, CommandKind, Decision, Observation, Proposal
from autopilot.core.model.snapshot import State
from autopilot.core.model.verb import START
from autopilot.explain.proposals import Answer, answer_of

LOOK_S, CARD_S = 600.0, 60.0
"""The person looks this often, and needs this long for each card."""


@dataclass(slots=True)
class Given:
    """One approval: the shown proposal, its time, and the loss and GPUs of the plans carried out under it."""

    proposal: Proposal
    at_s: float
    shown_s: float  # first time of this recommendation
    plans: dict[str, tuple[float, float]] = field(default_factory=dict)
    waits: bool = True  # the gang that is to start still waits; of other wishes: it is still proposed
    waiting: bool = False  # its object was seen to wait
    held: str = "not proposed any more"  # reason against carrying it out, at the last tick


@dataclass(slots=True)
class People(ABC):
    """The common part of both: the inbox, open proposals, approvals, and effects beyond them."""

    policy: Policy
    given: list[Given] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)  # sentences
    ids: dict[tuple[str, int], set[str]] = field(default_factory=lambda: defaultdict(set))  # by object and hour
    first_s: dict[str, float] = field(default_factory=dict)  # recommendation -> its first time
    _sent: list[Command] = field(default_factory=list)
    _number: int = 0

    def drain(self, now_s: float) -> tuple[Command, ...]:
        """Commands since the last tick."""
        found, self._sent = tuple(self._sent), []
        return found

    def kill_switch(self) -> bool:
        """Off."""
        return False

    def on_tick(self, observation: Observation, decision: Decision) -> None:
        """Look at one decision."""
        open_ = {
            each.recommendation: each
            for each in decision.plan.proposals
            if answer_of(each, decision.halted) == Answer.NEEDS_APPROVAL
        }
        now_s = observation.now_s
        for name, each in open_.items():
            self.first_s.setdefault(name, now_s)
            self.ids[each.subject.uid, int(now_s // 3600.0)].add(name)
        self._judge(observation, decision)
        self.decide(open_, now_s)

    @abstractmethod
    def decide(self, open_: dict[str, Proposal], now_s: float) -> None:
        """Approve some of the open proposals."""

    def approve(self, proposal: Proposal, at_s: float) -> None:
        """Approve the shown proposal."""
        name = proposal.recommendation
        self._sent.append(
            Command(CommandKind.APPROVE, "somebody", at_s, name, sequence=self._number, seen=seen_of(proposal))
        )
        self._number += 1
        self.given.append(Given(proposal, at_s, self.first_s[name]))

    def _judge(self, observation: Observation, decision: Decision) -> None:
        """Note the plans carried out under each approval, and those covered by none."""
        now_s, rules = observation.now_s, self.policy.approval
        recent = [each for each in self.given if now_s < each.at_s + rules.valid_s]
        for proposal in decision.plan.proposals:
            asks = getattr(self.policy.modes, proposal.action) == Mode.APPROVE
            if not proposal.accepted or not asks or (proposal.action, proposal.reason) in _EXEMPT:
                continue
            found = [(each, _beyond(each, proposal)) for each in recent if _about(each.proposal, proposal)]
            covering = [each for each, beyond in found if not beyond]
            if not covering:
                why = found[-1][1] if found else "nobody approved it"
                self.outside.append(f"{proposal.recommendation} at {now_s:.0f} s: {why}")
            for each in covering[-1:]:
                each.plans[proposal.id] = _takes(proposal)
        made, work = {each.recommendation: each for each in decision.plan.proposals}, observation.snapshot.workloads
        for each in recent:
            subject, now = each.proposal.subject, made.get(each.proposal.recommendation)
            waiting = (work.uid == subject.uid) & (work.incarnation == subject.revision) & (work.state == State.PENDING)
            proposed = now is not None and not each.waiting and each.proposal.change.wish != START
            each.waits = bool(waiting.any()) or proposed
            each.waiting = each.waiting or bool(waiting.any())
            codes = [] if now is None else [verdict.code for verdict in now.verdicts if not verdict.allowed]
            each.held = ", ".join(codes) or "not proposed any more"


_EXEMPT = {
    (action.name, case.reason) for action in ACTIONS for case in action.cases if Code.NEEDS_APPROVAL in case.exempt
}
"""Cases exempt from approval."""


def _about(shown: Proposal, proposal: Proposal) -> bool:
    """True if an approval of one may be meant for the other."""
    one, other = shown.subject, proposal.subject
    same = (one.uid, one.revision) == (other.uid, other.revision)
    return same and (shown.recommendation == proposal.recommendation or proposal.change.starts_now)


def _takes(proposal: Proposal) -> tuple[float, float]:
    return proposal.cost_gpu_s, float(sum(each.gpus for each in proposal.victims))


def _from_waiting(proposal: Proposal) -> float:
    return sum(each.gpus for each in proposal.change.side_effects if each.what != Taken.TURN)


def _beyond(given: Given, proposal: Proposal) -> str:
    """The excess of a plan, together with earlier plans of the approval, over the shown proposal; "" without one."""
    shown = given.proposal
    plans = {**given.plans, proposal.id: _takes(proposal)}
    cost_gpu_s, gpus = (sum(each[at] for each in plans.values()) for at in (0, 1))
    if cost_gpu_s > max(1.2 * shown.cost_gpu_s, shown.cost_gpu_s + 360.0) + 1e-6:
        return f"it costs {cost_gpu_s:.0f} GPU-s, {shown.cost_gpu_s:.0f} were shown"
    if gpus > _takes(shown)[1] or len(proposal.slots) > len(shown.slots):
        return "it takes more GPUs than were shown"
    if _from_waiting(proposal) > _from_waiting(shown):
        return "it takes more reserved quota or room from waiting work than was shown"
    queues = {each.queue for each in shown.change.side_effects if each.what == Taken.TURN}
    if any(each.what == Taken.TURN and each.queue not in queues for each in proposal.change.side_effects):
        return "it passes starts of a queue that was not shown"
    for name in ("queue", "slo_class"):
        other = {getattr(each, name) for each in proposal.victims} - {getattr(each, name) for each in shown.victims}
        if other:
            return f"it stops work of {name} {', '.join(sorted(other))}, which was not shown"
    return ""


@dataclass(slots=True)
class Somebody(People):
    """Looks every `LOOK_S`, and decides about one card after another: a group of equal recommendations is one."""

    look_s: float = 0.0  # of the next look
    cards: list[str] = field(default_factory=list)  # groups left to read
    reading: dict[str, Proposal] = field(default_factory=dict)  # recommendations on the card being read
    done_s: float = 0.0  # time of the end of its reading

    def decide(self, open_: dict[str, Proposal], now_s: float) -> None:
        """Read, then approve the read proposals."""
        groups: dict[str, dict[str, Proposal]] = defaultdict(dict)
        for name, each in open_.items():
            groups[group_of(each)][name] = each
        while True:
            if self.reading and now_s < self.done_s:
                return
            for each in self.reading.values():
                self.approve(each, now_s)
            self.reading = {}
            if not self.cards:
                if now_s < self.look_s:
                    return
                ranked = sorted(groups, key=lambda key: -sum(each.benefit_gpu_s for each in groups[key].values()))
                self.cards, self.look_s, self.done_s = ranked, now_s + LOOK_S, now_s
                if not ranked:
                    return
            key = self.cards.pop(0)
            self.reading = dict(groups.get(key, {}))
            self.done_s = max(self.done_s, now_s - CARD_S) + CARD_S if self.reading else self.done_s


@dataclass(slots=True)
class Delay(People):
    """Approves each recommendation in its state of that time, after a delay drawn from those of a person."""

    delays_s: Sequence[float] = ()
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    due_s: dict[str, float] = field(default_factory=dict)

    def decide(self, open_: dict[str, Proposal], now_s: float) -> None:
        """Approve the due recommendations."""
        for name, each in open_.items():
            if name not in self.due_s:
                self.due_s[name] = now_s + float(self.random.choice(self.delays_s))
            if now_s >= self.due_s[name]:
                self.approve(each, now_s)
