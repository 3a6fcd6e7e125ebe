"""Decide a record again under another policy, and compare the proposals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.policy import Policy
from autopilot.core.model.policy.names import ClusterNames, check_names
from autopilot.core.model.records import Decision, Plan
from autopilot.records.journal.reader import JournalReader
from autopilot.records.replay.again import Decide, Progress, remembered, reported
from autopilot.records.replay.findings import Counts, PolicyDiff, ReplayResult, Shift, TickDiff


@dataclass(slots=True)
class _Proposals:
    """The proposals of one side so far."""

    proposals: dict[str, int] = field(default_factory=dict)
    admitted_s: dict[str, float] = field(default_factory=dict)
    reserved: dict[str, None] = field(default_factory=dict)
    accepted: int = 0
    evictions: int = 0

    def add(self, decision: Decision) -> None:
        for proposal in decision.plan.proposals:
            kind = f"{proposal.action} {proposal.kind}"
            self.proposals[kind] = self.proposals.get(kind, 0) + 1
            self.accepted += proposal.accepted
            self.evictions += len(proposal.victims) if proposal.accepted else 0
            if proposal.change.starts_now:
                self.admitted_s.setdefault(proposal.subject.name, decision.now_s)
        for reservation in decision.plan.reservations:
            self.reserved[reservation.workload] = None

    def counts(self) -> Counts:
        return Counts(dict(sorted(self.proposals.items())), self.accepted, len(self.reserved), self.evictions)


def compare(
    reader: JournalReader, policy: Policy, total: int, progress: Progress | None, keep: int, decide: Decide
) -> ReplayResult:
    """Decide every tick under `policy` and under the recorded one; the first `keep` differing ticks are listed."""
    recorded, candidate = _Proposals(), _Proposals()
    past: ControllerMemory | None = None  # the recorded decisions led to this state
    own = _Intentions()
    names: dict[str, None] = {}
    differing, done, first, last = 0, 0, None, None
    listed: list[TickDiff] = []
    for record in reported(reader, total, progress):
        decided, observation = record.decided, record.observation
        if not done:
            check_names(policy, ClusterNames.of(observation.snapshot), f"--policy: {policy.name}")
        names[decided.policy.name] = None
        first, last = (decided.tick if first is None else first), decided.tick
        done += 1
        past, lost = remembered(past, record)
        if lost is not None and decided.memory is not None:
            past = replace(decided.memory, fence=decided.fence)
        step = decide(own.beside(past, observation.now_s), observation, policy)
        own.follow(step)
        past = decide(past, observation, decided.policy).memory
        recorded.add(decided.decision)
        candidate.add(step.decision)
        found = _tick_diff(decided.decision, step.decision)
        if found is not None:
            differing += 1
            if len(listed) < keep:
                listed.append(found)
    diff = PolicyDiff(
        recorded=recorded.counts(),
        candidate=candidate.counts(),
        ticks_that_differ=differing,
        ticks=tuple(listed),
        shifts=_shifts(recorded.admitted_s, candidate.admitted_s),
        reserved_only_recorded=tuple(name for name in recorded.reserved if name not in candidate.reserved),
        reserved_only_candidate=tuple(name for name in candidate.reserved if name not in recorded.reserved),
    )
    return ReplayResult(str(reader.path), done, first, last, tuple(names), policy.name, diff=diff)


@dataclass(slots=True)
class _Intentions:
    """The part of a memory that is only intended: it belongs to the policy, the rest to past events."""

    memory: ControllerMemory | None = None
    cooled_until_s: dict[str, float] = field(default_factory=dict)  # after reservations it released

    def beside(self, past: ControllerMemory, now_s: float) -> ControllerMemory:
        """Past events, with these reservations and proposals instead of the recorded ones."""
        if self.memory is None:
            return past
        self.cooled_until_s = {uid: until for uid, until in self.cooled_until_s.items() if until > now_s}
        disrupted = {entry.uid for entry in past.budget.disrupted}
        cooled = {uid: until for uid, until in past.budget.cooled_until_s.items() if uid in disrupted}
        return replace(
            past,
            plan=replace(
                past.plan,
                reservations=self.memory.plan.reservations,
                proposed_since_s=self.memory.plan.proposed_since_s,
            ),
            budget=replace(past.budget, cooled_until_s={**cooled, **self.cooled_until_s}),
        )

    def follow(self, step: Step) -> None:
        """Remember the intentions of this tick."""
        promised = self.memory.plan.reservations if self.memory is not None else ()
        self.memory = step.memory
        for record in promised:
            if record.workload in step.decision.plan.released:
                self.cooled_until_s[record.uid] = step.memory.budget.cooled_until_s[record.uid]


def _tick_diff(recorded: Decision, candidate: Decision) -> TickDiff | None:
    """The proposals that only one of two decisions of a tick makes; None when both make the same."""
    left, right = (_keys(decision.plan) for decision in (recorded, candidate))
    only_left = tuple(key for key in left if key not in right)
    only_right = tuple(key for key in right if key not in left)
    if not only_left and not only_right:
        return None
    return TickDiff(recorded.tick, recorded.now_s, only_left, only_right)


def _keys(plan: Plan) -> dict[tuple[str, str, str], None]:
    # a proposal that a guard blocks has no effect: marked, so that a mode shows as a difference
    proposed = {
        (
            proposal.action,
            proposal.kind if proposal.accepted else f"{proposal.kind} (blocked)",
            proposal.subject.name,
        ): None
        for proposal in plan.proposals
    }
    return proposed | {("reservation", "reserve", held.workload): None for held in plan.reservations}


def _shifts(recorded: Mapping[str, float], candidate: Mapping[str, float]) -> tuple[Shift, ...]:
    names = [*recorded, *(name for name in candidate if name not in recorded)]
    shifts = (Shift(name, recorded.get(name), candidate.get(name)) for name in names)
    return tuple(shift for shift in shifts if shift.recorded_s != shift.candidate_s)
