"""The ports of a controller in the hostile API world that are in the hands of the world: election, people, memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from actuators.kubernetes.levers import LEVERS
from autopilot.app.runs.wiring import NoJournal
from autopilot.core.model.approvals import seen_of
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.policy import Policy, RuleSetName
from autopilot.core.model.records import Command, CommandKind, Decision, Instruction, Observation, Proposal
from autopilot.service.capping import Capped
from autopilot.service.leading.memory import ClusterMemory
from tests.hostile.machine import POLICY

Told = Callable[[Observation, Decision, ControllerMemory, Sequence[Instruction]], None]
"""Called with what is about to be sent, before the memory is saved."""


def policy_of() -> Policy:
    """Eager, by itself, with tight bounds; no action without a lever."""
    kinds = frozenset(kind for lever in LEVERS for kind in lever.kinds)
    eager = replace(
        POLICY,
        rules=RuleSetName.COHORT_CLASSIC,
        recovery=replace(POLICY.recovery, hung_after_s=1e9),
        pause=replace(POLICY.pause, failures=1000),  # refused requests would pause it most of the time
    )
    return Capped(kinds).of(eager)


class Elected:
    """The election of one controller, in the hands of the world: it leads, or believes so, until it is told."""

    def __init__(self, number: int) -> None:
        self.number, self.identity, self.holder, self.problem, self.name = number, f"c{number}", "", "", "lease"
        self.leads = True

    def fence(self) -> int | None:
        """Its fence."""
        return self.number if self.leads else None

    def still(self, fence: int) -> bool:
        """Whether it believes that it leads."""
        return self.leads and fence == self.number

    def release(self) -> None:
        """Nothing."""


class People:
    """Commands and the kill switch (port `Inbox`)."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.numbers, self.known, self.killed = 0, -1, False

    def give(self, kind: CommandKind, now_s: float, shown: Proposal | None = None) -> None:
        """A command."""
        seen, subject = (seen_of(shown), shown.recommendation) if shown else (None, "")
        given = Command(kind, "anna", now_s, subject, sequence=self.numbers, seen=seen)
        self.numbers += 1
        self.commands.append(given)

    def drain(self, _now_s: float) -> tuple[Command, ...]:
        """Those since the last call; the next leader gets those again that no saved memory knows."""
        found = tuple(each for each in self.commands if each.sequence > self.known)
        self.known = found[-1].sequence if found else self.known
        return found

    def claim(self, _fence: int, known: int) -> str:
        """The next leader takes them over."""
        self.known = known
        return ""

    def kill_switch(self) -> bool:
        """As set."""
        return self.killed


class Noting(NoJournal):
    """Journal and memory: the world learns what is about to be sent."""

    def __init__(self, told: Told, inner: ClusterMemory, saved: Callable[[], None] = lambda: None) -> None:
        """`saved` is called when the memory was saved, or could not be."""
        self._told, self._inner, self._saved = told, inner, saved
        self._pending: tuple[Observation, Decision, Sequence[Instruction]] | None = None

    def intend(
        self,
        observation: Observation,
        _policy: Policy,
        _memory: ControllerMemory,
        decision: Decision,
        sent: Sequence[Instruction],
    ) -> None:
        """Before the memory is saved."""
        self._pending = (observation, decision, sent)

    def load(self) -> ControllerMemory | None:
        """What the cluster has."""
        return self._inner.load()

    def save(self, memory: ControllerMemory) -> None:
        """Keep it."""
        if self._pending is not None:
            observation, decision, sent = self._pending
            self._told(observation, decision, memory, sent)
        self._inner.save(memory)
        self._saved()
