"""The actuator of a Kubernetes cluster: it finds the lever for an instruction and follows it to its end.

It judges nothing. Before a lever acts, the objects are read afresh and compared with the precondition of the
instruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from actuators.kubernetes.api import Answer, Api, Refusal
from actuators.kubernetes.events import Events
from actuators.kubernetes.levers import LEVERS
from actuators.kubernetes.levers.base import Effect, Ended, Lever, Tools, Waiting, ended_by
from actuators.kubernetes.objects import Objects, Target, target_of
from actuators.kubernetes.writing import Writer
from autopilot.core.model.operations import OPERATIONS
from autopilot.core.model.records import Instruction, Outcome, OutcomeKind

MOST_KEPT = 10_000
"""Outcomes of ended effects that are kept, for instructions that come twice."""

SAYS: dict[str, str] = {"admit": "Admit", "evict": "Evict", "resize": "Resize", "scale": "Scale", "recut": "Recut"}
"""Action of the Event for each kind of instruction."""


@dataclass(slots=True)
class KubernetesActuator:
    """Carries out instructions (ports `Actuator` and `Following`)."""

    api: Api
    objects: Objects
    instance: str = "gpu-autopilot"
    levers: Sequence[Lever] = LEVERS
    name: str = "kubernetes"
    _tools: Tools = field(init=False)
    _running: dict[str, Effect] = field(default_factory=dict)
    _ended: dict[str, Outcome] = field(default_factory=dict)
    _epoch: int = -1

    def __post_init__(self) -> None:
        """Connect the parts that levers use."""
        self._tools = Tools(self.api, Writer(self.api), Events(self.api, self.instance), self.objects)

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of instructions for which there is a lever."""
        return frozenset(kind for lever in self.levers for kind in lever.kinds) & OPERATIONS.keys()

    def apply(self, instruction: Instruction, now_s: float) -> Outcome:
        """Begin an effect, or go on with it where the instruction comes again. `accepted`: it is under way."""
        known = self._ended.get(instruction.id)
        if known is not None and not known.retryable:
            return known
        if instruction.fence < self._epoch:
            reason = f"the instruction is of epoch {instruction.fence}, and epoch {self._epoch} acts already"
            return Outcome(instruction.id, OutcomeKind.FAILED, now_s, reason)
        self._epoch = instruction.fence
        target = self._target(instruction)
        if isinstance(target, Ended | Waiting):
            return self._answer(instruction, target, now_s)
        effect = self._running.get(instruction.id)
        if effect is None:
            lever = self._lever(instruction, target)
            if isinstance(lever, str):
                return self._answer(instruction, Ended(OutcomeKind.FAILED, lever), now_s)
            effect = Effect(instruction, lever, instruction.fence, now_s)
        effect.instruction, effect.epoch = instruction, instruction.fence
        self._running[instruction.id] = effect
        self._say(effect, target, "Begun", effect.lever.words, now_s)
        return self._follow(effect, target, now_s)

    def advance(self, now_s: float, fence: int | None, under_way: Sequence[Instruction]) -> tuple[Outcome, ...]:
        """Go on with every effect under way; the outcomes of those that ended.

        `fence` None: nothing may be written now. `under_way`: the instructions that the controller still waits for;
        an effect that is not among them is taken back.
        """
        if fence is None:
            return ()
        self._epoch = max(self._epoch, fence)
        wanted = {each.id for each in under_way}
        outcomes = []
        for effect in list(self._running.values()):
            effect.epoch = self._epoch
            target = self._target(effect.instruction)
            if isinstance(target, Waiting):
                continue
            if isinstance(target, Ended):
                outcome = self._answer(effect.instruction, target, now_s)
            elif effect.id not in wanted:
                self._answer(effect.instruction, effect.lever.undo(self._tools, effect, target, now_s), now_s)
                continue
            elif now_s >= effect.instruction.deadline_s:
                ended = effect.lever.undo(self._tools, effect, target, now_s)
                self._say(effect, target, "GaveUp", ended.reason, now_s, warning=True)
                outcome = self._answer(effect.instruction, ended, now_s)
            else:
                outcome = self._follow(effect, target, now_s)
            if outcome.kind != OutcomeKind.ACCEPTED:
                outcomes.append(outcome)
        return tuple(outcomes)

    # --- parts --------------------------------------------------------------------------------

    def _target(self, instruction: Instruction) -> Target | Ended | Waiting:
        """The objects of the instruction, if they are still those that it was decided on."""
        subject = instruction.subject
        located = self.objects.find(subject.kind.value, subject.uid)
        if located is None:
            return Ended(OutcomeKind.CONFLICT, f"{subject.name} is gone")
        if located.incarnation != subject.revision:
            reason = f"{subject.name} was stopped meanwhile: incarnation {located.incarnation}, not {subject.revision}"
            return Ended(OutcomeKind.CONFLICT, reason)
        target, failed = target_of(self.api, located, subject.uid)
        return target if failed is None else ended_by(_as_read(failed), f"reading {subject.name}")

    def _lever(self, instruction: Instruction, target: Target) -> Lever | str:
        """The first lever that suits, or why none does."""
        reasons = []
        for lever in self.levers:
            if instruction.kind not in lever.kinds:
                continue
            why_not = lever.suits(instruction, target)
            if not why_not:
                return lever
            reasons.append(f"{lever.name}: {why_not}")
        return f"no lever to {instruction.kind} {instruction.subject.name}: {'; '.join(reasons) or 'there is none'}"

    def _follow(self, effect: Effect, target: Target, now_s: float) -> Outcome:
        progress = effect.lever.step(self._tools, effect, target, now_s)
        if isinstance(progress, Waiting):
            effect.waits_for = progress.reason
        else:
            warning = progress.kind != OutcomeKind.DONE
            self._say(effect, target, progress.kind.value.capitalize(), progress.reason, now_s, warning=warning)
        return self._answer(effect.instruction, progress, now_s)

    def _answer(self, instruction: Instruction, progress: Ended | Waiting, now_s: float) -> Outcome:
        """The outcome of the progress; an effect that ended is followed no more."""
        if isinstance(progress, Waiting):
            return Outcome(instruction.id, OutcomeKind.ACCEPTED, now_s, progress.reason)
        outcome = Outcome(instruction.id, progress.kind, now_s, progress.reason, progress.retryable)
        self._running.pop(instruction.id, None)
        self._ended[instruction.id] = outcome
        while len(self._ended) > MOST_KEPT:
            del self._ended[next(iter(self._ended))]
        return outcome

    def _say(
        self, effect: Effect, target: Target, word: str, note: str, now_s: float, *, warning: bool = False
    ) -> None:
        """An Event on the object that people look at, once for each word and text of an effect."""
        action, about = SAYS.get(effect.instruction.kind, "Act"), target.main
        if about is None or f"{word} {note}" in effect.said:
            return
        effect.said.add(f"{word} {note}")
        text = f"{note} (instruction {effect.id}, lever {effect.lever.name})"
        self._tools.events.say(about, f"{action}{word}", action, text, now_s, warning=warning)


def _as_read(answer: Answer) -> Answer:
    """A failed read: an object that changed its uid or is gone is a conflict."""
    return answer if answer.refusal != Refusal.CHANGED else Answer(answer.body, Refusal.BUSY, answer.message)
