"""The ports: interfaces of the shell. Live operation, replay and simulation differ only behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from autopilot.core.model.forecast import Forecasts
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.profiles import ProfilesMemory
from autopilot.core.model.policy import Policy
from autopilot.core.model.policy.bounds import Forecasting
from autopilot.core.model.records import Batch, Command, Decision, Instruction, Observation, Outcome
from autopilot.core.model.snapshot import ClusterSnapshot


class Clock(Protocol):
    """Time in seconds; only differences are meaningful."""

    def now_s(self) -> float:
        """Seconds since the start of the run (simulation) or the epoch (live)."""
        ...


class Collector(Protocol):
    """One source of observations. With an attribute `lists` of False it delivers no inventory and no work."""

    name: str

    def collect(self, now_s: float) -> Batch:
        """Read the source. A failure (a target is down, a sample is missing) is a `Gap`, not an exception."""
        ...


@runtime_checkable
class Beginning(Protocol):
    """A collector that reads its source beside the tick. `begin` is called before the first `collect` of a tick."""

    def begin(self, now_s: float) -> None:
        """Begin to read the source as of `now_s` and return at once; `collect` takes the result."""
        ...


@runtime_checkable
class Recalling(Protocol):
    """A collector that counts the restarts of work for clusters without such a count."""

    def recall(self, under_way: Sequence[Instruction]) -> None:
        """Count on from the revisions in these instructions of an earlier process.

        Called before the first observation on memory taken over: an effect holds for one revision.
        """
        ...


class Forecaster(Protocol):
    """One source of forecasts."""

    name: str

    def update(self, now_s: float, snapshot: ClusterSnapshot) -> None:
        """Learn from the snapshot (ended jobs, arrived requests). Called before `forecast`."""
        ...

    def forecast(self, now_s: float, snapshot: ClusterSnapshot) -> Forecasts:
        """Forecasts for the rows of `snapshot`."""
        ...


@runtime_checkable
class Profiled(Protocol):
    """A forecaster that compares work with what it does alone."""

    def know(self, profiles: ProfilesMemory) -> None:
        """Take the present profiles. Called before `update`."""
        ...


class FitWork(Protocol):
    """A due fit with all of its input. It may run in another process, at any time."""

    def run(self) -> Any:
        """Fit the models. The result depends on this work alone: it is the same on any machine."""
        ...


@runtime_checkable
class Fitting(Protocol):
    """A forecaster with models fitted beside the loop."""

    name: str

    def due(self, now_s: float) -> FitWork | None:
        """The due fit, by schedule or by drift, or None. The call starts the next interval."""
        ...

    def adopt(self, fitted: Any) -> str | None:
        """Use the result of a fit from now on. Returns the reason for a rejection in whole or in part, else None."""
        ...


@dataclass(frozen=True, slots=True)
class Fit:
    """An ended fit. `problem` is the reason for a missing `result`, else ""."""

    owner: str
    result: Any
    problem: str = ""


class Worker(Protocol):
    """Runs the fits of all forecasters, one at a time."""

    def start(self, owner: str, work: FitWork, now_s: float, rules: Forecasting) -> None:
        """Start the fit of the forecaster `owner` and return immediately. Called only while `idle`."""
        ...

    def idle(self) -> bool:
        """True without a fit that is running or waiting to be collected with `ended`."""
        ...

    def ended(self, now_s: float) -> Fit | None:
        """The ended fit, returned once, or None. Never blocks."""
        ...


class Actuator(Protocol):
    """One way to change the cluster."""

    name: str

    def apply(self, instruction: Instruction, now_s: float) -> Outcome:
        """Carry out one instruction. Idempotent: a repeated id returns the first outcome."""
        ...


@runtime_checkable
class Following(Protocol):
    """An actuator with effects of several steps, continued at each tick."""

    name: str

    def advance(self, now_s: float, fence: int | None, under_way: Sequence[Instruction]) -> tuple[Outcome, ...]:
        """Continue the effects under way; the outcomes of those ended since the last call.

        Called at each tick before the observation. `fence` is the present one, or None while nothing may be written.
        `under_way` are the pending instructions in memory: any other effect is taken back, and one begun by another
        process is resumed.
        """
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
        """Record the outcomes of the instructions of `tick`."""
        ...


class MemoryStore(Protocol):
    """Storage of the controller's memory across restarts."""

    def load(self) -> ControllerMemory | None:
        """The last saved memory, or None on a first start."""
        ...

    def save(self, memory: ControllerMemory) -> None:
        """Replace the saved memory atomically."""
        ...


class Inbox(Protocol):
    """Receives the commands of people and of alerts.

    The inbox assigns a `sequence` to each command on receipt. One counter serves all commands: it starts at 0, is
    strictly increasing, is on disk before the receipt is confirmed, and never repeats a number, even after a restart.
    `at_s` is the time of receipt. A command with a number unknown to saved memory is delivered again after a crash and
    to the next leader; a command with a known number is ignored. A command without a number is obeyed only if its order
    does not matter (core/intake/commands.py).
    """

    def drain(self, now_s: float) -> tuple[Command, ...]:
        """Commands received since the last call, ordered by number."""
        ...

    def kill_switch(self) -> bool:
        """True if the switch is on or cannot be read."""
        ...


class PolicySource(Protocol):
    """Source of the operator's policy."""

    def current(self) -> Policy:
        """The policy in force now."""
        ...


class Leadership(Protocol):
    """Leader election: the right of this controller to act."""

    def fence(self) -> int | None:
        """Fencing token while this controller leads and its lease can be trusted, else None."""
        ...
