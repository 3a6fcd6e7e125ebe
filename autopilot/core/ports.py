"""The ports: what the shell must bring. Live, replay and simulation differ only behind these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from autopilot.core.forecast import Forecasts
from autopilot.core.memory import ControllerMemory
from autopilot.core.policy import Policy
from autopilot.core.records import (
    Batch,
    Command,
    Decision,
    Instruction,
    Observation,
    Outcome,
)
from autopilot.core.snapshot import ClusterSnapshot


class Clock(Protocol):
    """Time in seconds; only its differences mean anything."""

    def now_s(self) -> float:
        """Seconds since the start of the run (simulation) or the epoch (live)."""
        ...


class Collector(Protocol):
    """One source of facts about the world."""

    name: str

    def collect(self, now_s: float) -> Batch:
        """Read the source. Bad news (a target down, a sample missing) is a `Gap`, not an exception."""
        ...


class Forecaster(Protocol):
    """One source of foresight."""

    name: str

    def update(self, now_s: float, snapshot: ClusterSnapshot) -> None:
        """Learn from what the snapshot shows (jobs that ended, requests that came), before `forecast`."""
        ...

    def forecast(self, now_s: float, snapshot: ClusterSnapshot) -> Forecasts:
        """What is foreseen for the rows of `snapshot`."""
        ...


class Actuator(Protocol):
    """One way to change the world."""

    name: str

    def apply(self, instruction: Instruction, now_s: float) -> Outcome:
        """Carry out one instruction once; a repeated id returns the first outcome."""
        ...


class Journal(Protocol):
    """The append-only record of a run."""

    def intend(self, observation: Observation, policy: Policy, memory: ControllerMemory,
               decision: Decision, instructions: Sequence[Instruction]) -> None:  # fmt: skip
        """Make the decision durable before its effects."""
        ...

    def conclude(self, tick: int, outcomes: Sequence[Outcome]) -> None:
        """Record what became of the instructions of `tick`."""
        ...


class MemoryStore(Protocol):
    """Where the controller's memory survives a restart."""

    def load(self) -> ControllerMemory | None:
        """The last saved memory, or None on a first start."""
        ...

    def save(self, memory: ControllerMemory) -> None:
        """Replace the saved memory at once or not at all."""
        ...


class Inbox(Protocol):
    """Where commands of people and alerts arrive."""

    def drain(self, now_s: float) -> tuple[Command, ...]:
        """Commands that arrived since the last call, oldest first."""
        ...

    def kill_switch(self) -> bool:
        """True when the switch is on or cannot be read."""
        ...


class PolicySource(Protocol):
    """Where the operator's policy comes from."""

    def current(self) -> Policy:
        """The policy in force now."""
        ...


class Leadership(Protocol):
    """Who may act."""

    def fence(self) -> int | None:
        """Fencing token while we lead and the lease can be trusted, else None."""
        ...
