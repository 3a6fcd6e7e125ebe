"""The loop: collect -> assemble -> forecast -> reconcile -> record -> apply.

There is one Controller. Live, a timer calls `tick`; in a simulation the engine does, in virtual time; replay calls
`reconcile` on the content of the journal. Intents are durable before effects. A defect in our own code stops the tick
before anything acts (`InvariantError` passes through to the caller).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from autopilot.core.capabilities.actions import ACTIONS
from autopilot.core.capabilities.guards import GUARDS
from autopilot.core.decision.intake_facts import IntakeFacts
from autopilot.core.decision.reconciler import reconcile
from autopilot.core.effects import lifecycle
from autopilot.core.effects.action import Action
from autopilot.core.facts.table import Kept
from autopilot.core.guards.base import Check
from autopilot.core.intake.assemble import assemble
from autopilot.core.intake.clock import not_of_the_future
from autopilot.core.intake.listing import Objects, Shown, views_of
from autopilot.core.intake.sight import key_of
from autopilot.core.intake.signals import UNMEASURED, measure
from autopilot.core.intake.silent import or_gap
from autopilot.core.intake.usage.facts import SnapshotFacts
from autopilot.core.model.colocation import RULE
from autopilot.core.model.errors import InvariantError
from autopilot.core.model.forecast import JOINED, ExpectedMix, Forecasts, RuntimeForecast, checked_mix
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.modes import LATEST_EDITION
from autopilot.core.model.policy import Policy
from autopilot.core.model.policy.names import ClusterNames, unknown_names
from autopilot.core.model.ports import (
    Actuator,
    Beginning,
    Collector,
    Fit,
    Fitting,
    Following,
    Forecaster,
    Inbox,
    Journal,
    Leadership,
    MemoryStore,
    PolicySource,
    Profiled,
    Recalling,
    Worker,
)
from autopilot.core.model.records import (
    Batch,
    Command,
    CommandKind,
    Decision,
    Gap,
    Instruction,
    Observation,
    Outcome,
    OutcomeKind,
    View,
)
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.recovery.follow_errors import with_gravest

STAGES = ("collect", "assemble", "forecast", "decide", "record", "apply")
"""The stages of a tick, in their order; `record` is entered again for the outcomes."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """The parts of a controller. `actuators` by kind of instruction."""

    collectors: Sequence[Collector]
    forecasters: Sequence[Forecaster]
    actuators: Mapping[str, Actuator]
    journal: Journal
    memory: MemoryStore
    inbox: Inbox
    policy: PolicySource
    leadership: Leadership
    on_decision: Callable[[Observation, Decision], None] | None = None  # called after each tick; changes nothing
    on_step: Callable[[Observation, Step], None] | None = None  # the same, with the sent instructions
    actions: tuple[Action, ...] = ACTIONS
    guards: tuple[tuple[str, Check], ...] = GUARDS
    worker: Worker | None = None  # runs the fits offered by forecasters; None: no fits are run
    monotonic_s: Callable[[], float] | None = None  # a monotonic clock; None: time is virtual
    on_stage: Callable[[str], None] | None = None  # called with one of STAGES at its start, and with "" after the last
    # (kind, source) of lists required at every tick; others are expected once they have been seen
    lists: tuple[tuple[str, str], ...] = ()
    # gaps for what the policy uses and no source reads (intake/ways_in.py); a simulation may leave telemetry out
    unread: Callable[[ClusterSnapshot, Policy], tuple[Gap, ...]] = lambda *_: ()
    on_begin: Callable[[ControllerMemory], None] | None = None  # called with the memory at the start of each term


class Controller:
    """Runs ticks. Keeps the memory between them and the outcomes for the next one."""

    def __init__(self, wiring: Wiring) -> None:
        """Load the memory of the last run, or start with an empty one. Raises `InputError` if it is unreadable."""
        self._wiring = wiring
        # asking an object for a port is slow, and the wiring stays
        self._following = list(
            {id(each): each for each in wiring.actuators.values() if isinstance(each, Following)}.values()
        )
        self._fitting = frozenset(id(each) for each in wiring.forecasters if isinstance(each, Fitting))
        self._profiled = frozenset(id(each) for each in wiring.forecasters if isinstance(each, Profiled))
        self._fits: dict[str, Fit] = {}  # ended fits, by owner, not yet adopted
        self._term: int | None = None  # fence of the term of `memory`
        self._begin()

    def _begin(self) -> None:
        """Go on from the saved memory: at the start, and after the term of another controller."""
        self.memory = self._wiring.memory.load() or ControllerMemory(edition=LATEST_EDITION)
        if self._wiring.on_begin is not None:
            self._wiring.on_begin(self.memory)
        self._outcomes: tuple[Outcome, ...] = ()
        self._late_gaps: tuple[Gap, ...] = ()  # of actuators unable to continue their effects
        self._commands: tuple[Command, ...] = ()  # drained commands, not yet decided on
        self._read_s: float | None = None  # monotonic time of the last decision
        self._known: dict[str, Objects] = {}  # objects of the last trusted list, by view
        self._listed: dict[str, Shown] = {}  # the contents of this tick's lists
        self._kept = Kept()  # facts of the last tick
        self.wake_at_s = float("-inf")
        for collector in self._wiring.collectors:
            if isinstance(collector, Recalling):
                collector.recall([each.instruction for each in self.memory.effects.in_flight.values()])

    def tick(self, now_s: float) -> Step | None:
        """Observe, decide, record and act once; None if another replica leads."""
        wiring = self._wiring
        read_s = wiring.monotonic_s() if wiring.monotonic_s is not None else None
        fence = wiring.leadership.fence()
        if fence is None:
            return None
        if fence != self._term:
            self._begin()
            self._term = fence
        policy = wiring.policy.current()
        elapsed_s = float("nan") if read_s is None else read_s - (read_s if self._read_s is None else self._read_s)
        if self.memory.fence != fence:
            self.memory = replace(self.memory, fence=fence)
        memory = self.memory
        self._advance(now_s, fence)
        self._enter("collect")
        observation = self.observe(now_s, elapsed_s)
        self._enter("decide")
        step = reconcile(memory, observation, policy, actions=wiring.actions, guards=wiring.guards, kept=self._kept)
        self._enter("record")
        wiring.journal.intend(observation, policy, memory, step.decision, step.instructions)
        wiring.memory.save(step.memory)
        self.memory, self._commands, self._read_s = step.memory, (), read_s
        self._trust(observation.views)
        self._enter("apply")
        self._outcomes = tuple(self._apply(instruction, now_s) for instruction in step.instructions)
        self._enter("record")
        wiring.journal.conclude(observation.tick, self._outcomes)
        self._enter("")
        if wiring.on_step is not None:
            wiring.on_step(observation, step)
        if wiring.on_decision is not None:
            wiring.on_decision(observation, step.decision)
        self.wake_at_s = min(step.wake_at_s, lifecycle.next_deadline_s(step.memory, self._outcomes, now_s))
        return step

    def observe(self, now_s: float, elapsed_s: float = float("nan")) -> Observation:
        """All input of the decision, from every answering source.

        `elapsed_s`: time since the last decision of this process by a monotonic clock. The first decision after a
        restart counts as 0: a promise lasts at least for its full time. Models learn nothing from a tick with a
        distrusted time.
        """
        wiring = self._wiring
        policy = wiring.policy.current()
        for collector in wiring.collectors:
            if isinstance(collector, Beginning):
                collector.begin(now_s)
        batches = [
            not_of_the_future(_collect(collector, now_s), now_s, policy.clock.max_skew_s)
            for collector in wiring.collectors
        ]
        self._enter("assemble")
        snapshot, gaps = assemble(batches, now_s)
        snapshot = with_gravest(self.memory, snapshot)
        gaps, self._late_gaps = (*gaps, *self._late_gaps), ()
        views, self._listed = views_of(batches, self._expected(), self._known, self._listed)
        self._commands += wiring.inbox.drain(now_s)
        observation = Observation(
            tick=self.memory.tick + 1,
            now_s=now_s,
            snapshot=snapshot,
            signals=UNMEASURED,
            forecasts=Forecasts(),
            commands=self._commands,
            outcomes=self._outcomes,
            gaps=gaps,
            kill_switch=wiring.inbox.kill_switch(),
            elapsed_s=elapsed_s,
            views=views,
        )
        intake = IntakeFacts(self.memory, observation, policy, self._kept)
        if intake.clock.doubt or intake.sight.blind:
            return observation  # no model learns from a snapshot without its objects
        facts = SnapshotFacts(observation=observation, policy=intake.in_force, kept=self._kept)
        self._enter("forecast")
        forecasts, silent = self._foresee(now_s, snapshot)
        return replace(
            observation,
            signals=measure(snapshot, facts.books, facts.parts),
            forecasts=forecasts,
            gaps=(
                *gaps,
                *silent,
                *_unknown_names(policy, snapshot),
                *self._wiring.unread(snapshot, policy),
                *facts.gaps,
            ),
        )

    def _advance(self, now_s: float, fence: int) -> None:
        """Continue effects of several steps, unless nothing may act. Their outcomes follow those of the last tick."""
        if not self._following:
            return
        memory = self.memory
        self._commands += self._wiring.inbox.drain(now_s)
        stops = any(each.kind in {CommandKind.KILL, CommandKind.PAUSE} for each in self._commands)
        still = stops or memory.halt.killed or bool(memory.halt.paused_reason) or self._wiring.inbox.kill_switch()
        under_way = [each.instruction for each in memory.effects.in_flight.values() if each.state != "withdrawn"]
        for each in self._following:
            try:
                self._outcomes += each.advance(now_s, None if still else fence, under_way)
            except InvariantError:
                raise
            except Exception as error:  # noqa: BLE001 - the boundary to code that talks to the world
                self._late_gaps += (Gap(each.name, "", "", f"effects not continued: {type(error).__name__}: {error}"),)

    def _enter(self, stage: str) -> None:
        if self._wiring.on_stage is not None:
            self._wiring.on_stage(stage)

    def _expected(self) -> list[tuple[str, str]]:
        """Required lists: those named in the wiring, and those delivered before by a wired source.

        A source without lists (`lists` is False) owes none, even after lists to an earlier process.
        """
        wired = {collector.name for collector in self._wiring.collectors if getattr(collector, "lists", True)}
        before = [(kind, source) for kind, _, source in (key.partition("/") for key in self.memory.intake.views)]
        return [*self._wiring.lists, *(each for each in before if each[1] in wired)]

    def _trust(self, views: tuple[View, ...]) -> None:
        """Keep the objects of the lists trusted by the decision: the next lists are compared with them."""
        for view in views:
            record = self.memory.intake.views.get(key_of(view))
            if view.complete and record is not None and not record.lists and record.listed_s == view.listed_s:
                self._known[key_of(view)] = self._listed[key_of(view)].objects

    def _foresee(self, now_s: float, snapshot: ClusterSnapshot) -> tuple[Forecasts, tuple[Gap, ...]]:
        """Forecasts of all models: records of `JOINED` add up, else the last one wins. A failing model abstains."""
        runtimes: RuntimeForecast | None = None
        mix: ExpectedMix | None = None
        colocation = RULE
        joined: dict[str, tuple[Any, ...]] = dict.fromkeys(JOINED, ())
        gaps: list[Gap] = []
        if self._wiring.worker is not None and (ended := self._wiring.worker.ended(now_s)) is not None:
            self._fits[ended.owner] = ended  # kept until its owner adopts it: that may fail at this tick
        for forecaster in self._wiring.forecasters:
            try:
                if id(forecaster) in self._profiled:
                    cast("Profiled", forecaster).know(self.memory.profiles)
                forecaster.update(now_s, snapshot)
                if id(forecaster) in self._fitting:
                    gaps += self._fit(cast("Fitting", forecaster), now_s)
                answer = forecaster.forecast(now_s, snapshot)
            except InvariantError:
                raise
            except Exception as error:  # noqa: BLE001 - a model must not stop the loop: it goes on reactively
                gaps.append(Gap(forecaster.name, "", "", f"forecaster failed: {type(error).__name__}: {error}"))
                continue
            runtimes = answer.runtimes or runtimes
            colocation = colocation if answer.colocation is RULE else answer.colocation
            joined = {kind: (*records, *getattr(answer, kind)) for kind, records in joined.items()}
            if answer.mix is not None:
                mix = checked_mix(answer.mix, now_s)
                if mix is not answer.mix:
                    gaps.append(Gap(forecaster.name, "mix", "", f"the demand mix is not used: {mix.reason}"))
        return Forecasts(runtimes, mix=mix, colocation=colocation, **joined), tuple(gaps)

    def _fit(self, forecaster: Fitting, now_s: float) -> tuple[Gap, ...]:
        """Adopt the ended fit, if it is the forecaster's, and start the next if one is due."""
        problem = None
        fit = self._fits.pop(forecaster.name, None)
        if fit is not None:
            problem = fit.problem or forecaster.adopt(fit.result)
        worker = self._wiring.worker
        if worker is not None and worker.idle():
            work = forecaster.due(now_s)
            if work is not None:
                worker.start(forecaster.name, work, now_s, self._wiring.policy.current().forecasting)
        if not problem:
            return ()
        return (Gap(forecaster.name, "fit", "", f"the previous models stay in use: {problem}"),)

    def _apply(self, instruction: Instruction, now_s: float) -> Outcome:
        """Carry out one instruction; an exception in an actuator is a failed effect, not a failed tick."""
        actuator = self._wiring.actuators.get(instruction.kind)
        if actuator is None:
            return Outcome(
                instruction.id, OutcomeKind.FAILED, now_s, f"no actuator for instructions of kind {instruction.kind}"
            )
        try:
            return actuator.apply(instruction, now_s)
        except InvariantError:
            raise
        except Exception as error:  # noqa: BLE001 - the boundary to code that talks to the world
            return Outcome(instruction.id, OutcomeKind.FAILED, now_s, f"{type(error).__name__}: {error}", True)


def _unknown_names(policy: Policy, snapshot: ClusterSnapshot) -> tuple[Gap, ...]:
    """Names in the policy unknown to the cluster: they have no effect, and every tick reports them."""
    if not len(snapshot.nodes.id):  # no inventory yet
        return ()
    there = ClusterNames.of(snapshot)
    return tuple(Gap("policy", path, "", wrong) for path, wrong in unknown_names(policy, there))


def _collect(collector: Collector, now_s: float) -> Batch:
    """The batch of one collector: data or a gap. An exception becomes a gap, so the other collectors still count."""
    try:
        return or_gap(collector.collect(now_s))
    except InvariantError:
        raise
    except Exception as error:  # noqa: BLE001 - the boundary to code that talks to the world
        gap = Gap(collector.name, "", "", f"collector failed: {type(error).__name__}: {error}")
        return Batch(collector.name, now_s, gaps=(gap,))
