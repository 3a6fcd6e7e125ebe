"""The latest step of the controller, for all its readers: API, page, metrics. Written by the loop alone."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan

from autopilot.app.decisions.decision_rows import Fresh
from autopilot.core.capabilities.actions import ACTIONS
from autopilot.core.intake.sight import listed_s, newest_sample_s
from autopilot.core.intake.signals import sees_the_cluster
from autopilot.core.intake.silent import newest_of, problem_of
from autopilot.core.model.approvals import cover_digest, seen_of
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.policy import Policy
from autopilot.core.model.ports import Beginning, Collector, Recalling
from autopilot.core.model.records import (
    About,
    Batch,
    Decision,
    Instruction,
    Note,
    Observation,
    Outcome,
    OutcomeKind,
    Proposal,
)
from autopilot.explain.view import ProposalView, view_of
from autopilot.service.known import LastKnown

NEVER = float("nan")

RECENT = 2000
"""Decisions kept for the API; the journal has all."""

REMEMBERED = 5000
"""Proposals and instructions kept after they are gone, to say what changed since a person saw them, and what failed."""

STANDS_S = {case.code: case.stands_s for action in ACTIONS for case in action.notes}
"""Validity of the advice of an action, by code."""

MOST_FAILED = 50
"""Failed effects kept for the API and the page."""


@dataclass(frozen=True, slots=True)
class CollectorHealth:
    """Result of the last reads of one collector. Times by the cluster's clock."""

    name: str
    read_s: float = NEVER  # last read
    fresh_s: float = NEVER  # time of its newest data
    took_s: float = NEVER  # wall time of the last read
    gaps: int = 0
    problem: str = ""  # reason for a last read without data; "" while it answers


@dataclass(frozen=True, slots=True)
class FailedEffect:
    """An attempt at an effect that failed, met a conflict or was declined."""

    instruction: Instruction
    outcome: Outcome

    @property
    def words(self) -> str:
        """The attempt and the reason for its failure."""
        again = "; it is tried again" if self.outcome.retryable else ""
        return f"{self.instruction.kind} {self.instruction.subject.name}: {self.outcome.reason}{again}"


@dataclass(frozen=True, slots=True)
class Advice:
    """A note left by an action to a person, and the time of its last mention."""

    note: Note
    at_s: float


@dataclass(frozen=True, slots=True)
class Published:
    """One tick at its end: all inputs and outputs of the decision, with its times and results."""

    observation: Observation
    decision: Decision
    memory: ControllerMemory
    policy: Policy
    wake_at_s: float
    took_s: float
    stages_s: Mapping[str, float] = field(default_factory=dict)
    collectors: tuple[CollectorHealth, ...] = ()
    policy_problem: str = ""  # reason for a policy file not in force; "" for none
    policy_note: str = ""  # what an upgrade holds back of it; "" for nothing
    kill_reason: str = ""
    spend_ratios: Mapping[str, float] = field(default_factory=dict)  # by tenant: last whole day / mean day
    budget_ratios: Mapping[str, float] = field(default_factory=dict)  # by tenant: forecast of the month / budget
    leads: bool = True

    @property
    def sees(self) -> bool:
        """False for a tick without a trusted view: nothing of the cluster is known at it."""
        return sees_the_cluster(self.observation)

    def view(self, proposal: Proposal) -> ProposalView:
        """A proposal of this tick as every face shows it."""
        return view_of(proposal, self.decision, self.memory.people.open_proposals)


class Publisher:
    """Keeps the latest step and the shown proposals. Readers may be in any thread."""

    def __init__(self, known: LastKnown | None = None) -> None:
        """`known`: keeper of the last known times."""
        self.known = known or LastKnown()
        self._latest: Published | None = None
        self._shown: OrderedDict[str, Proposal] = OrderedDict()  # by recommendation, as it was made last
        self._versions: OrderedDict[str, Proposal] = OrderedDict()  # by digest of its cover
        self._sent: OrderedDict[str, Instruction] = OrderedDict()
        self._failed_of: OrderedDict[str, FailedEffect] = OrderedDict()  # the last one, by proposal
        self._failed: deque[FailedEffect] = deque(maxlen=MOST_FAILED)
        self._advice: OrderedDict[tuple[str, str], Advice] = OrderedDict()  # by code and subject
        self._fresh = Fresh()
        self._recent: deque[ProposalView] = deque(maxlen=RECENT)
        self._news = threading.Condition()
        self._followers: list[Callable[[Published], None]] = []
        self._closed = False

    def follow(self, take: Callable[[Published], None]) -> None:
        """Call `take` with each later tick, in the thread of the loop."""
        self._followers.append(take)

    @property
    def latest(self) -> Published | None:
        """The last tick; None before the first."""
        return self._latest

    def publish(self, published: Published) -> None:
        """Replace the latest step, and wake its waiting readers."""
        with self._news:
            for proposal in published.decision.plan.proposals:
                self._shown[proposal.recommendation] = proposal
                self._shown.move_to_end(proposal.recommendation)
            for each in published.memory.people.open_proposals.values():
                digest = cover_digest(each.proposal.recommendation, seen_of(each.proposal), exactly=True)
                self._versions[digest] = each.proposal
                self._versions.move_to_end(digest)
            if self._latest is None or self._latest.decision is not published.decision:
                self._recent.extend(self._fresh.of(published.decision))
                self._take_outcomes(published)
                self._take_advice(published)
                self._take_times(published)
            self._sent.update((key, entry.instruction) for key, entry in published.memory.effects.in_flight.items())
            for kept in (self._shown, self._versions, self._sent, self._failed_of):
                while len(kept) > REMEMBERED:
                    kept.popitem(last=False)
            self._latest = published
            self._news.notify_all()
        for take in self._followers:
            take(published)

    def _take_outcomes(self, published: Published) -> None:
        """Keep the reasons for effects that did not come about."""
        for outcome in published.observation.outcomes:
            sent = self._sent.get(outcome.instruction_id)
            if sent is None or outcome.kind in {OutcomeKind.DONE, OutcomeKind.ACCEPTED}:
                continue
            failed = FailedEffect(sent, outcome)
            self._failed.append(failed)
            self._failed_of[sent.proposal_id] = failed
            self._failed_of.move_to_end(sent.proposal_id)

    def _take_advice(self, published: Published) -> None:
        """Keep notes left to a person, as long as they stand and their workload is there."""
        now_s = published.observation.now_s
        for note in published.decision.notes:
            if note.code in STANDS_S:
                self._advice[note.code, note.subject] = Advice(note, now_s)
                self._advice.move_to_end((note.code, note.subject))
        here = set(published.observation.snapshot.workloads.id.tolist()) if self._advice else set()
        for key, each in list(self._advice.items()):
            gone = each.note.about == About.WORKLOAD and each.note.subject not in here
            if gone or not each.at_s <= now_s < each.at_s + STANDS_S[each.note.code]:
                del self._advice[key]

    def _take_times(self, published: Published) -> None:
        """Keep the last known times of the cluster, its lists and the data of the collectors."""
        observation, records = published.observation, published.memory.intake.views
        self.known.tick(
            observation.now_s,
            listed_s(observation) if published.sees else NEVER,
            newest_sample_s(observation) if published.sees else NEVER,
            {key: record.listed_s for key, record in records.items()},
            [(each.name, each.fresh_s) for each in published.collectors],
        )

    def advice(self) -> list[Advice]:
        """Notes left to a person now, newest first."""
        with self._news:
            return list(reversed(self._advice.values()))

    def failed(self) -> list[FailedEffect]:
        """The latest failed effects, newest first."""
        with self._news:
            return list(reversed(self._failed))

    def failed_of(self, proposal_id: str) -> FailedEffect | None:
        """The last failed effect of a proposal, since this process started."""
        with self._news:
            return self._failed_of.get(proposal_id)

    def recent(self) -> list[ProposalView]:
        """The latest decisions, newest first; a decision repeated at the next tick is listed once."""
        with self._news:
            return list(reversed(self._recent))

    def shown(self, recommendation: str, digest: str = "") -> Proposal | None:
        """A recommendation of this or an earlier tick, as it was made last; with a digest as it was shown with it."""
        with self._news:
            found = self._versions.get(digest) if digest else self._shown.get(recommendation)
            return found if found is None or found.recommendation == recommendation else None

    def wait_for(self, done: Callable[[Published], bool], timeout_s: float) -> Published | None:
        """The first published step that meets `done`; None without one in time."""
        with self._news:
            self._news.wait_for(lambda: self._closed or self._holds(done), timeout_s)
            return self._latest if self._holds(done) else None

    def _holds(self, done: Callable[[Published], bool]) -> bool:
        return self._latest is not None and done(self._latest)

    @property
    def closed(self) -> bool:
        """True once the service is about to end: streams of news end."""
        return self._closed

    def close(self) -> None:
        """Answer the waiting readers: there is no further tick."""
        with self._news:
            self._closed = True
            self._news.notify_all()

    def wait_for_next(self, last: Published | None, timeout_s: float) -> Published | None:
        """The first published step other than `last`; None without one in time."""
        return self.wait_for(lambda each: each is not last, timeout_s)


class WatchedCollector:
    """A collector that keeps the result of its last read (port `Collector`)."""

    def __init__(self, inner: Collector, wall_s: Callable[[], float]) -> None:
        self.name, self._inner, self._wall_s = inner.name, inner, wall_s
        self.lists = getattr(inner, "lists", True)
        self.health = CollectorHealth(inner.name)

    def begin(self, now_s: float) -> None:
        """Begin to read a source beside the tick."""
        if isinstance(self._inner, Beginning):
            self._inner.begin(now_s)

    def recall(self, under_way: Sequence[Instruction]) -> None:
        """Let a collector of restarts go on from these revisions."""
        if isinstance(self._inner, Recalling):
            self._inner.recall(under_way)

    def collect(self, now_s: float) -> Batch:
        """The batch of the collector."""
        began_s = self._wall_s()
        try:
            batch = self._inner.collect(now_s)
        except Exception as error:
            self._keep(now_s, self.health.fresh_s, began_s, 1, f"{type(error).__name__}: {error}")
            raise
        newest_s = newest_of(batch)
        fresh_s = self.health.fresh_s if isnan(newest_s) else newest_s
        self._keep(now_s, fresh_s, began_s, len(batch.gaps), problem_of(batch))
        return batch

    def _keep(self, now_s: float, fresh_s: float, began_s: float, gaps: int, problem: str) -> None:
        self.health = CollectorHealth(self.name, now_s, fresh_s, self._wall_s() - began_s, gaps, problem)
