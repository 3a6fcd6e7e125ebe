"""The ports of a Controller in the hostile world: views that lie or fall silent, effects with a fate, people, leaders.

`Ports` carries out what the controller asks for and notes each instruction with what the controller was shown in the
same tick; tests/hostile/watch.py judges it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import (
    Batch,
    Command,
    Decision,
    Gap,
    Instruction,
    Inventory,
    Listing,
    Observation,
    Outcome,
    OutcomeKind,
    Work,
)
from autopilot.records.memory import memory_text, read_memory_text
from tests.hostile.world import TENANTS, Cluster, Late
from tests.kits.core_world import names

LIE_LISTS = 2
"""A source may lie in at most this many consecutive lists: the contract is to believe three complete lists."""


class CrashError(Exception):
    """The process dies here."""


class Fate(StrEnum):
    """What becomes of one effect."""

    DONE = "done"
    ACCEPTED = "accepted"  # takes place, and is only accepted
    CONFLICT = "conflict"
    RETRY = "retry"  # fails, and may be tried again
    FAIL = "fail"  # fails for good
    LOST = "lost"  # accepted, and never takes place
    LATE = "late"  # accepted, and takes place later
    UNSEEN = "unseen"  # takes place, and is reported as failed, to be tried again


class Sight(StrEnum):
    """What a collector brings."""

    CLEAR = "clear"
    RAISES = "raises"
    GAP = "gap"  # an empty batch with a gap
    PAGE = "page"  # the last page of the list is missing, and the batch says so
    STALE = "stale"  # what it saw at the last clear view, and says when that was
    LIE = "lie"  # a third of the objects, as if that were all


@dataclass(frozen=True)
class Sent:
    """One instruction, and all that it was sent on."""

    true_s: float
    now_s: float
    instruction: Instruction
    observation: Observation
    decision: Decision
    memory: ControllerMemory  # after the decision
    policy: Policy
    fence: int
    clear: bool  # both views were clear and fresh in this tick
    lied_s: float  # true time at which the last lie was told; -inf: never


@dataclass
class Ports:
    """See the module."""

    cluster: Cluster
    policy: Policy
    name: str = "hostile"
    work_sight: Sight = Sight.CLEAR
    nodes_sight: Sight = Sight.CLEAR
    exporter: str = "clear"  # clear | zeros | silent
    fates: list[Fate] = field(default_factory=list)
    late_s: float = 60.0
    killed: bool = False
    leader: int = 1
    crash: str = ""  # intend | save | apply: where the process dies in the next tick
    skew_s: float = 0.0
    commands: list[Command] = field(default_factory=list)
    delivered: int = -1  # the number of the last command that a process got
    received: int = 0
    store: str = ""
    sent: list[Sent] = field(default_factory=list)
    lied_s: float = float("-inf")
    lies: int = 0
    lying: bool = False  # in this tick
    last: Observation | None = None
    decision: Decision | None = None
    saved: ControllerMemory | None = None
    _seen: dict[str, tuple[float, Any]] = field(default_factory=dict)
    _first: dict[str, Outcome] = field(default_factory=dict)
    _fence: int = 0

    @property
    def now_s(self) -> float:
        """What the controller's clock says."""
        return self.cluster.true_s + self.skew_s

    # --- collectors -----------------------------------------------------------------------------

    def collect_nodes(self, now_s: float) -> Batch:
        """The hardware."""
        found = Inventory(names(TENANTS), *self.cluster.reported())
        return self._batch("nodes", self.nodes_sight, now_s, "inventory", found)

    def collect_work(self, now_s: float) -> Batch:
        """The work."""
        self.lying = self.work_sight == Sight.LIE
        if self.lying:
            self.lies += 1
            keep = [gang.item() for number, gang in enumerate(self.cluster.gangs.values()) if number % 3 == 0]
            view = self.cluster.view(keep)
            if self.lies >= LIE_LISTS:
                self.work_sight, self.lies = Sight.CLEAR, 0
        else:
            view = self.cluster.view()
        if self.work_sight == Sight.PAGE:
            shown = [gang.item() for gang in self.cluster.gangs.values()]
            view = self.cluster.view(shown[: len(shown) // 2])
        found = Work(view.names.tenants, view.workloads, view.placements, view.services, view.queues)
        batch = self._batch("jobs", self.work_sight, now_s, "work", found)
        if batch.work is not None and self.work_sight == Sight.CLEAR:
            self.cluster.ended.clear()
            self.cluster.deleted.clear()
        return batch

    def _batch(self, source: str, sight: Sight, now_s: float, kind: str, found: Any) -> Batch:
        if sight == Sight.RAISES:
            raise ConnectionError(f"{source}: connection refused")
        if sight == Sight.GAP:
            return Batch(source, now_s, gaps=(Gap(source, "", "", "timed out"),))
        if sight == Sight.STALE and source in self._seen:
            at_s, old = self._seen[source]
            return Batch(source, at_s, **{kind: old})
        if sight == Sight.CLEAR:
            self._seen[source] = (now_s, found)
        deleted = tuple(self.cluster.deleted) if kind == "work" else ()
        listing = Listing(
            sight != Sight.PAGE, "the last page is missing" if sight == Sight.PAGE else "", deleted=deleted
        )
        return Batch(source, now_s, **{kind: found, f"{kind}_list": listing})

    def collect_telemetry(self, now_s: float) -> Batch:
        """What the GPUs do."""
        if self.exporter == "silent":
            return Batch("dcgm", now_s, gaps=(Gap("dcgm", "", "", "target down"),))
        return Batch("dcgm", now_s, telemetry=self.cluster.telemetry(broken=self.exporter == "zeros"))

    # --- the other ports ------------------------------------------------------------------------

    def drain(self, _now_s: float) -> tuple[Command, ...]:
        """Those since the last call; the next process gets those again that no saved memory knows."""
        found = tuple(each for each in self.commands if each.sequence > self.delivered)
        self.delivered = found[-1].sequence if found else self.delivered
        return found

    def kill_switch(self) -> bool:
        """As set."""
        return self.killed

    def current(self) -> Policy:
        """The policy in force."""
        return self.policy

    def fence(self) -> int | None:
        """The token of who leads."""
        return self.leader

    def load(self) -> ControllerMemory | None:
        """The saved memory, from its text."""
        return read_memory_text(self.store, "memory") if self.store else None

    def save(self, memory: ControllerMemory) -> None:
        """Keep the text."""
        if self.crash == "save":
            raise CrashError
        self.store, self.saved = memory_text(memory), memory
        if self.lying and self.decision is not None and "clock" not in self.decision.halted:
            self.lied_s = self.cluster.true_s  # a lie that no process remembers was not told

    def intend(
        self,
        observation: Observation,
        _policy: Policy,
        _memory: ControllerMemory,
        decision: Decision,
        _instructions: Sequence[Instruction],
    ) -> None:
        """Note what the decision was made on."""
        self.last, self.decision = observation, decision
        if self.crash == "intend":
            raise CrashError

    def conclude(self, *_: Any) -> None:
        """Nothing is kept."""

    # --- effects --------------------------------------------------------------------------------

    def apply(self, order: Instruction, now_s: float) -> Outcome:
        """Carry it out as its fate has it. A repeated id returns the first outcome, unless that may be tried again."""
        assert self.last is not None
        assert self.decision is not None
        assert self.saved is not None
        if self.crash == "apply":
            raise CrashError
        self.sent.append(
            Sent(
                self.cluster.true_s,
                now_s,
                order,
                self.last,
                self.decision,
                self.saved,
                self.policy,
                self.leader,
                self._clear(),
                self.lied_s,
            )
        )
        if order.fence < self._fence:
            return Outcome(order.id, OutcomeKind.CONFLICT, now_s, "a newer leader acts")
        self._fence = order.fence
        self._promise(order)
        if order.id in self._first:
            return replace(self._first[order.id], at_s=now_s)
        outcome = self._carry_out(order, now_s)
        if not outcome.retryable and outcome.kind in {OutcomeKind.DONE, OutcomeKind.ACCEPTED}:
            self._first[order.id] = outcome
        return outcome

    def _clear(self) -> bool:
        fresh = self.policy.freshness
        snapshot = self.last.snapshot if self.last is not None else None
        honest = self.nodes_sight in {Sight.CLEAR, Sight.STALE} and self.work_sight in {
            Sight.CLEAR,
            Sight.STALE,
        }
        return bool(
            honest
            and snapshot is not None
            and snapshot.work_age_s <= fresh.work_s
            and snapshot.inventory_age_s <= fresh.inventory_s
        )

    def _promise(self, order: Instruction) -> None:
        """GPUs of a start that others hold, or that a start under way was promised, are a defect."""
        if order.kind not in {"admit", "resize"}:
            return
        asked = places_of(order)
        for gang in self.cluster.gangs.values():
            held = self.cluster.places(gang)
            if gang.name != order.subject.name and asked & held:
                self.cluster.problems.append(f"{order.id}: {sorted(asked & held)} are held by {gang.name}")
        for each in self.cluster.late:
            other = each.instruction
            alive = each.until_s >= self.cluster.true_s and not self.cluster.refusal(other)
            if alive and other.id != order.id and asked & places_of(other):
                self.cluster.problems.append(f"{order.id}: GPUs are promised to {other.id}, which is under way")

    def _carry_out(self, order: Instruction, now_s: float) -> Outcome:
        fate = self.fates.pop(0) if self.fates else Fate.DONE
        if fate == Fate.CONFLICT:
            return Outcome(order.id, OutcomeKind.CONFLICT, now_s, "the object changed")
        if fate in {Fate.RETRY, Fate.FAIL}:
            return Outcome(order.id, OutcomeKind.FAILED, now_s, "internal error", fate == Fate.RETRY)
        if fate == Fate.LOST:
            return Outcome(order.id, OutcomeKind.ACCEPTED, now_s)
        if fate == Fate.LATE:
            until_s = self.cluster.true_s + order.deadline_s - now_s
            self.cluster.late.append(Late(order, self.cluster.true_s + self.late_s, until_s))
            return Outcome(order.id, OutcomeKind.ACCEPTED, now_s)
        refusal = self.cluster.carry_out(order)
        if refusal:
            return Outcome(order.id, OutcomeKind.CONFLICT, now_s, refusal)
        if fate == Fate.UNSEEN:
            return Outcome(order.id, OutcomeKind.FAILED, now_s, "timed out", True)
        slow = order.kind == "evict" and self.cluster.slow
        done = OutcomeKind.ACCEPTED if slow or fate == Fate.ACCEPTED else OutcomeKind.DONE
        return Outcome(order.id, done, now_s)


def places_of(order: Instruction) -> set[str]:
    """The GPUs and instances that an instruction uses."""
    return {slot.instance or slot.gpu for slot in order.operation.slots}


@dataclass
class Collect:
    """One of the collectors of `Ports` under a name of its own."""

    name: str
    collect: Any
