"""The ports: what the shell must bring. Live, replay and simulation differ only behind these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from autopilot.core.model.forecast import Forecasts
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.policy import Policy
from autopilot.core.model.policy_bounds import Forecasting
from autopilot.core.model.records import Batch, Command, Decision, Instruction, Observation, Outcome
from autopilot.core.model.snapshot import ClusterSnapshot


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


class FitWork(Protocol):
    """A fit that is due: all that it looks at. It may be run in another process, at any time."""

    def run(self) -> Any:
        """Fit. A function of the work alone: the same work gives the same models on any machine."""
        ...


@runtime_checkable
class Fitting(Protocol):
    """A forecaster whose models are fitted beside the loop."""

    name: str

    def due(self, now_s: float) -> FitWork | None:
        """The fit that is due, on a cadence or on drift; asking for it begins the next interval."""
        ...

    def adopt(self, fitted: Any) -> str | None:
        """Forecast with what a fit gave from now on; or why it is not, or not all of it, adopted."""
        ...


@dataclass(frozen=True, slots=True)
class Fit:
    """A fit that has ended. `problem` says why there is no `result`; "" when there is one."""

    owner: str
    result: Any
    problem: str = ""


class Worker(Protocol):
    """Runs the fits of all forecasters, one at a time."""

    def start(self, owner: str, work: FitWork, now_s: float, rules: Forecasting) -> None:
        """Begin the fit of the forecaster `owner` and return at once. Only called while `idle`."""
        ...

    def idle(self) -> bool:
        """True when no fit is under way or waits to be taken."""
        ...

    def ended(self, now_s: float) -> Fit | None:
        """The fit that has ended, once; None when there is none. Never waits for one."""
        ...


class Actuator(Protocol):
    """One way to change the world."""

    name: str

    def apply(self, instruction: Instruction, now_s: float) -> Outcome:
        """Carry out one instruction once; a repeated id returns the first outcome."""
        ...


class Journal(Protocol):
    """The append-only record of a run."""

    def intend(
        self,
        observation: Observation,
        policy: Policy,
        memory: ControllerMemory,
        decision: Decision,
        instructions: Sequence[Instruction],
    ) -> None:
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
    """Where commands of people and alerts arrive.

    It gives every command a `sequence` when it receives it: one counter for all, from 0 on, strictly increasing, kept
    on disk before the receipt is confirmed, and never used twice, not after a restart either. `at_s` is the time of
    receipt. A command may be delivered again, for example after a crash: one with a known number is ignored. A command
    without a number is obeyed only where its order does not matter (core/intake/commands.py).
    """

    def drain(self, now_s: float) -> tuple[Command, ...]:
        """Commands that arrived since the last call, in the order of their numbers."""
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
