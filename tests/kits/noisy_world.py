"""Small worlds with work that slows its neighbour, as a detector reports it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.modes import Mode
from autopilot.core.model.neighbours import Interference, Measure, Nearness
from autopilot.core.model.objects import Pausing
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import OutcomeKind
from tests.kits.core_world import AUTO, Item, decide, done, holds, with_policy
from tests.kits.sharing_world import seen, shared

POLICY = with_policy(AUTO, modes={"isolate": Mode.AUTO})
NOW_S = 7200.0
VICTIM = holds("victim", 1, [0], preemptible=False, start_s=0.0)
SUSPECT = holds("suspect", 1, [1], pausing=int(Pausing.ABLE), checkpoint_on_request=True, start_s=6000.0)


def record(**more: Any) -> Interference:
    """The victim takes 1.5 times as long since the suspect came to its node."""
    found = Interference(
        victim="victim",
        victim_uid="victim",
        suspect="suspect",
        suspect_uid="suspect",
        measure=Measure.LATENCY,
        nearness=Nearness.NODE,
        rise_ratio=1.5,
        now_ratio=1.5,
        z=8.0,
        confidence=0.9,
        against="siblings",
        arrived_s=6000.0,
        found_s=NOW_S,
    )
    return replace(found, **more)


@dataclass(slots=True)
class Noisy:
    """Tick after tick. What is asked is done, unless `answer` says otherwise."""

    work: dict[str, Item] = field(default_factory=lambda: {"victim": VICTIM, "suspect": SUSPECT})
    found: tuple[Interference, ...] = (record(),)
    policy: Policy = POLICY
    shape: str = "2x2"
    on: dict[int, int] = field(default_factory=dict)  # shared nodes
    answer: OutcomeKind | None = OutcomeKind.DONE
    now_s: float = NOW_S
    memory: ControllerMemory = field(default_factory=ControllerMemory)
    step: Step | None = None
    seen: Any = None  # the last observation
    sent: list[tuple[float, str, str]] = field(default_factory=list)  # when, kind, name
    _outcomes: tuple[Any, ...] = ()
    _tick: int = 0

    def change(self, name: str, **columns: Any) -> None:
        """Columns of a workload from now on."""
        self.work[name] = replace(self.work[name], columns={**self.work[name].columns, **columns})

    def tick(self, seconds: float = 0.0) -> Step:
        """One decision, `seconds` later."""
        self.now_s += seconds
        snap = shared(self.shape, list(self.work.values()), self.on)
        observation = seen(snap, self.now_s, tick=self._tick, outcomes=self._outcomes)
        observation = replace(observation, forecasts=replace(observation.forecasts, interference=self.found))
        self.seen = observation
        self.step = decide(observation, self.policy, self.memory)
        self.memory, self._tick, self._outcomes = self.step.memory, self._tick + 1, ()
        for each in self.step.instructions:
            self.sent.append((self.now_s, each.kind, each.subject.name))
            if self.answer is not None:
                self._outcomes += done([each], self.now_s, self.answer)
            if self.answer is OutcomeKind.DONE and each.kind in {"pause", "resume"}:
                self.change(each.subject.name, pausing=int(Pausing.PAUSED if each.kind == "pause" else Pausing.ABLE))
        return self.step

    def run(self, seconds: float, every_s: float = 60.0) -> None:
        """Ticks for so long."""
        for _ in range(round(seconds / every_s)):
            self.tick(every_s)

    def kinds(self) -> list[str]:
        """The kinds of what was sent, each once in a row."""
        kinds = [kind for _, kind, _ in self.sent]
        return [kind for at, kind in enumerate(kinds) if at == 0 or kinds[at - 1] != kind]

    def notes(self) -> dict[str, str]:
        """The reasons of notes of the last tick, by code."""
        assert self.step is not None
        return {
            note.code: str({each.name: each.value for each in note.facts}.get("why"))
            for note in self.step.decision.notes
        }


def after_pause(seconds: float, now_ratio: float, work: Mapping[str, Mapping[str, Any]] | None = None) -> Step:
    """The decision so long after the view has shown the pause, with this level of the victim."""
    world = Noisy()
    for name, columns in (work or {}).items():
        world.change(name, **columns)
    world.tick()
    world.tick(60.0)
    world.found = (record(now_ratio=now_ratio),)
    return world.tick(seconds)


VICTIM_MOVES: Mapping[str, Mapping[str, Any]] = {
    "victim": {"preemptible": True, "checkpoint_on_request": True, "start_s": NOW_S - 60.0},
    "suspect": {"checkpoint_on_request": False},
}
"""The victim has just begun, and the suspect never saves."""
