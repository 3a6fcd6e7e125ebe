"""The actuator of a Kubernetes cluster: it finds the lever for an instruction and follows it to its end.

It judges nothing. Before a lever acts, the objects are read afresh and compared with the precondition of the
instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

from actuators.kubernetes import placement
from actuators.kubernetes.api import Answer, Api, Ref, Refusal
from actuators.kubernetes.effects import begun, lever_in
from actuators.kubernetes.events import Events
from actuators.kubernetes.hook import Hooks
from actuators.kubernetes.levers import LEVERS
from actuators.kubernetes.levers.base import (
    Effect,
    Ended,
    Lever,
    Probe,
    Progress,
    Reports,
    Tools,
    Upkeep,
    Waiting,
    changed,
    ended_by,
    gone,
    late,
)
from actuators.kubernetes.objects import Located, Objects, Target, refs_of, target_of
from actuators.kubernetes.writing import Writer
from autopilot.contract.notes import failure_text
from autopilot.contract.tree import PREFIX
from autopilot.core.capabilities.verbs import OPERATIONS
from autopilot.core.model.errors import InvariantError
from autopilot.core.model.objects import SubjectKind
from autopilot.core.model.records import Cause, Instruction, Outcome, OutcomeKind
from autopilot.core.model.stops import StopReason

OUTAGE_S = 10.0
"""Pause after a request without an answer of the server or a webhook: such a request may take as long itself."""

TICK_S = 20.0
"""Longest time of all requests of one tick together: after it, effects wait as in an outage."""

MOST_KEPT = 10_000
"""Kept outcomes of ended effects, for repeated instructions."""

TRIED = (
    ("Workload", "workloads/status", "status"),
    ("Workload", "workloads", ""),
    ("Job", "jobs", ""),
    ("Pod", "pods", ""),
)
"""Objects guarded by Kueue: kind, resource of the right to patch it, and subresource."""

SAYS = {kind: kind.title().replace("_", "") for kind, operation in OPERATIONS.items() if not operation.notifies}
"""Action of the Event for each kind of instruction; a notice is an Event itself and needs no other."""


@dataclass(slots=True)
class KubernetesActuator:
    """Carries out instructions (ports `Actuator` and `Following`)."""

    api: Api
    objects: Objects
    instance: str = "gpu-autopilot"
    levers: Sequence[Lever] = LEVERS
    upkeep: Sequence[Upkeep] = ()
    hooks: Hooks = field(default_factory=Hooks)
    probe: Probe | None = None
    on_problem: Callable[[str], None] = lambda _: None  # told once at the start of an outage, and "" at its end
    name: str = "kubernetes"
    _tools: Tools = field(init=False)
    _running: dict[str, Effect] = field(default_factory=dict)
    _ended: dict[str, Outcome] = field(default_factory=dict)
    _epoch: int = -1
    _outage: str = ""
    _again_s: float = -inf  # before this time no effect is continued: the server or a webhook does not answer
    _tick_s: float = -inf  # time of the present tick
    _spent_s: float = 0.0  # of requests at its start

    def __post_init__(self) -> None:
        """Connect the tools of the levers."""
        events = Events(self.api, self.instance)
        self._tools = Tools(self.api, Writer(self.api), events, self.objects, hooks=self.hooks, probe=self.probe)

    def read_reports(self, reports: Reports) -> None:
        """From now on metrics reported by training programs count too."""
        self._tools = replace(self._tools, reports=reports)

    def read_modes(self, acts: Callable[[str], bool]) -> None:
        """From now on take back an action's marks on objects if, by `acts`, it does not act."""
        self._tools = replace(self._tools, acts=acts)

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of instructions with a lever."""
        return frozenset(kind for lever in self.levers for kind in lever.kinds) & OPERATIONS.keys()

    def apply(self, instruction: Instruction, now_s: float) -> Outcome:
        """Begin an effect, or go on with it if the instruction comes again. `accepted`: it is under way."""
        known = self._ended.get(instruction.id)
        if known is not None and not known.retryable:
            return known
        if instruction.fence < self._epoch:
            reason = f"the instruction is of epoch {instruction.fence}, and epoch {self._epoch} acts already"
            return Outcome(instruction.id, OutcomeKind.FAILED, now_s, reason, cause=Cause.EPOCH)
        self._epoch = instruction.fence
        self._count(now_s)
        located = self._located(instruction)
        if now_s >= instruction.deadline_s and instruction.id not in self._running:
            located = Ended(OutcomeKind.CONFLICT, "its deadline was over before it was sent", cause=Cause.LATE)
        if isinstance(located, Ended):
            self._say_unfit(instruction, located, now_s)
            return self._answer(instruction, located, now_s)
        effect = self._running.get(instruction.id) or Effect(instruction, None, instruction.fence, now_s)
        effect.instruction, effect.epoch, effect.outage = instruction, instruction.fence, ""
        self._running[instruction.id] = effect
        outcome = self._contained(instruction, now_s, partial(self._continue, effect, located, now_s))
        return outcome or Outcome(instruction.id, OutcomeKind.ACCEPTED, now_s)

    def advance(self, now_s: float, fence: int | None, under_way: Sequence[Instruction]) -> tuple[Outcome, ...]:
        """Go on with every effect under way; returns the outcomes of the ended ones.

        `fence` None: nothing may be written now. `under_way`: the instructions awaited by the controller. Any other
        effect is taken back as far as it has not come about.
        """
        if fence is None or fence < self._epoch:
            return ()
        self._epoch = fence
        wanted = {each.id: each for each in under_way}
        self._count(now_s)
        for keep in self.upkeep if now_s >= self._again_s else ():
            keep.run(self._tools, fence, now_s, wanted.keys())
        outcomes = [self._contained(each, now_s, partial(self._resume, each, now_s)) for each in under_way]
        for effect in list(self._running.values()):
            self._count(now_s)
            effect.epoch = fence
            step = partial(self._followed, effect, now_s, waited_for=effect.id in wanted)
            outcomes.append(self._contained(effect.instruction, now_s, step))
        return tuple(each for each in outcomes if each is not None and each.kind != OutcomeKind.ACCEPTED)

    # --- parts --------------------------------------------------------------------------------

    def _count(self, now_s: float) -> None:
        """Bound the time of all requests of a tick: a server that answers slowly may not hold it up."""
        if now_s != self._tick_s:
            self._tick_s, self._spent_s = now_s, self.api.spent_s
        took_s = self.api.spent_s - self._spent_s
        if took_s > TICK_S and now_s >= self._again_s:
            self._note_outage(Waiting(f"the requests of one tick took {took_s:.0f} s", outage=True), now_s)

    def _contained(self, instruction: Instruction, now_s: float, step: Callable[[], Outcome | None]) -> Outcome | None:
        """The outcome of a step; an error from the object of one effect does not stop the other effects."""
        try:
            return step()
        except InvariantError:
            raise
        except Exception as error:  # noqa: BLE001 - an object that is not what the API promises
            return self._answer(instruction, Ended(OutcomeKind.FAILED, failure_text(error), cause=Cause.LEVER), now_s)

    def _followed(self, effect: Effect, now_s: float, *, waited_for: bool) -> Outcome | None:
        """Go on with one effect under way; its outcome. `waited_for`: by the controller."""
        due, located = now_s >= effect.instruction.deadline_s, self._located(effect.instruction)
        if now_s < self._again_s:  # nothing is asked now
            return self._decided_again(effect, now_s) if due and waited_for else None
        if isinstance(located, Ended):  # the view has it already: the controller sees its result
            self._running.pop(effect.id)
            return self._replaced(effect, now_s) if waited_for else None
        if not waited_for:
            self._let_go(effect, located, now_s)
            return None
        if not due:
            return self._continue(effect, located, now_s)
        ended = None if effect.outage else self._take_back(effect, located, now_s)
        answer = self._answer(effect.instruction, ended, now_s) if ended is not None else None
        return answer or self._decided_again(effect, now_s)

    def _located(self, instruction: Instruction) -> Located | Ended:
        """The objects of the instruction in the view, if they are unchanged since the decision."""
        subject = instruction.subject
        located = self.objects.find(subject.kind.value, subject.uid)
        if located is None:
            return gone(f"{subject.name} is gone")
        if located.incarnation != subject.revision:
            number = "incarnation" if subject.kind == SubjectKind.WORKLOAD else "generation"
            found = f"{number} {located.incarnation}, not {subject.revision}"
            return changed(f"{subject.name} changed since the decision: {found}")
        return located

    def _say_unfit(self, instruction: Instruction, ended: Ended, now_s: float) -> None:
        """Write an Event on the object of an instruction that is not begun, if it still exists."""
        found = self.objects.find(instruction.subject.kind.value, instruction.subject.uid)
        if found is not None:
            about = Target(instruction.subject.uid, found.incarnation, refs_of(found)).main
            effect = Effect(instruction, None, instruction.fence, now_s)
            self._say(effect, about, ended.kind.value.capitalize(), ended.reason, now_s, warning=True)

    def _replaced(self, effect: Effect, now_s: float) -> Outcome | None:
        """The end of an admission whose object was replaced under its name meanwhile, with an Event on the new object.

        Work to be stopped is gone, so its eviction has come about: the view shows it.
        """
        about = effect.about
        if about is None or not effect.instruction.operation.needs_room:
            return None
        read = self.api.read(about)
        if read.refusal != Refusal.OTHER_OBJECT:
            return None
        ended = gone(f"{about.shown} was replaced by another object of its name, which is left alone")
        new = replace(about, uid=str(read.body.get("metadata", {}).get("uid", "")))
        self._say(effect, new, "Conflict", ended.reason, now_s, warning=True)
        return self._answer(effect.instruction, ended, now_s)

    def _resume(self, instruction: Instruction, now_s: float) -> Outcome | None:
        """Follow an effect begun by another process: its objects show the id of the instruction.

        An effect shown by no object ended with that process: the outcome says so, and the controller decides again. One
        hidden by an outage until its deadline is followed as if it had been begun.
        """
        if instruction.id in self._running or instruction.id in self._ended:
            return None
        located = self._located(instruction)
        if isinstance(located, Ended):
            return None
        effect = Effect(instruction, None, self._epoch, now_s, begun=True)
        hidden = now_s < self._again_s
        if not hidden:
            target, failed = target_of(self.api, located, instruction.subject.uid)
            found = failed or self._begun(instruction, target)
            hidden = isinstance(found, Answer) and self._outage_in(found, now_s)
        if hidden or isinstance(found, Answer):
            if hidden and now_s >= instruction.deadline_s:
                self._running[instruction.id] = effect
            return None
        if found:
            self._running[instruction.id] = effect
            return None
        reason = "an earlier process did not begin it"
        lost = Outcome(instruction.id, OutcomeKind.FAILED, now_s, reason, retryable=True, cause=Cause.OTHER)
        self._ended[instruction.id] = lost
        return lost

    def _begun(self, instruction: Instruction, target: Target) -> bool | Answer:
        """True if an object shows that somebody began the effect; the failed request if that is not known."""
        levers = [each for each in self.levers if instruction.kind in each.kinds]
        shown = any(each.shows(self._tools, target, instruction.id) for each in levers)
        return shown or begun(self.api, target, instruction.id)

    def _continue(self, effect: Effect, located: Located, now_s: float) -> Outcome:
        """Read the objects, take the next step, and report its result."""
        if now_s < self._again_s:
            effect.outage = self._outage
            return self._answer(effect.instruction, Waiting(self._outage, outage=True), now_s)
        target, failed = target_of(self.api, located, effect.instruction.subject.uid)
        effect.about = target.main
        progress: Progress
        if failed is not None:
            progress = ended_by(failed, f"reading {effect.instruction.subject.name}")
        else:
            why_not = self._choose(effect, target)
            if effect.lever is None:
                evicts = effect.instruction.operation.stops  # it keeps its place, and is asked for no more for a while
                progress = Ended(OutcomeKind.DECLINED if evicts else OutcomeKind.FAILED, why_not, cause=Cause.LEVER)
            else:
                written = self._tools.writer.written
                progress = effect.lever.step(self._tools, effect, target, now_s)
                effect.begun = effect.begun or self._tools.writer.written > written
        self._note_outage(progress, now_s)
        if isinstance(progress, Waiting) and progress.outage:
            effect.outage = progress.reason
        elif effect.begun and effect.lever is not None:
            self._say(effect, target.main, "Begun", _begun_words(effect, effect.lever), now_s)  # the work waits for it
        if isinstance(progress, Waiting):
            effect.waits_for = progress.reason
        else:
            warning = progress.kind != OutcomeKind.DONE
            self._say(effect, target.main, progress.kind.value.capitalize(), progress.reason, now_s, warning=warning)
        return self._answer(effect.instruction, progress, now_s)

    def _decided_again(self, effect: Effect, now_s: float) -> Outcome:
        """The end of an effect that met an outage before its deadline: no attempt at it has failed.

        It is followed on, and its writes are taken back after the outage, unless it has come about by then: nobody
        waits for it any more.
        """
        reason = f"not done in time, it is decided again: {self._outage or effect.outage}"
        return Outcome(effect.id, OutcomeKind.CONFLICT, now_s, reason, cause=Cause.SERVER)

    def _let_go(self, effect: Effect, located: Located, now_s: float) -> None:
        """The controller does not wait for the effect any more: it was seen to come about, or was given up."""
        if effect.instruction.operation.starts_now:  # a growth counts its arrived pods itself
            target, failed = target_of(self.api, located, effect.instruction.subject.uid)
            found = failed or placement.started(self.api, target)
            if isinstance(found, Answer) and self._outage_in(found, now_s):
                return  # its result is unknown
            if isinstance(found, tuple) and found[0]:
                self._started(effect, target, found, now_s)
                return
        self._take_back(effect, located, now_s)

    def _started(self, effect: Effect, target: Target, pods: tuple[int, int], now_s: float) -> None:
        """Some pods have their nodes, and are not stopped for the pods without one: that is decided anew."""
        there, asked = pods
        if there < asked and now_s < effect.instruction.deadline_s:
            return  # the others may follow
        self._running.pop(effect.id, None)
        if there == asked:
            self._say(effect, target.main, "Done", "its pods are bound to nodes", now_s)
        else:
            note = f"{there} of its {asked} pods are bound to nodes, and the others found no room in time"
            self._say(effect, target.main, "GaveUp", note, now_s, warning=True)

    def _take_back(self, effect: Effect, located: Located, now_s: float) -> Ended | None:
        """Undo an effect that has not come about. None: its objects cannot be read or written now.

        Then it is tried again. At the deadline the server tries a write first: an effect may be late because Kueue is
        away, although no write of its own was refused.
        """
        target, failed = target_of(self.api, located, effect.instruction.subject.uid)
        if failed is None:
            self._choose(effect, target)
            tried = self._try(effect, target) if now_s >= effect.instruction.deadline_s else Answer()
        if self._outage_in(failed or tried, now_s):
            return None
        if failed is not None or effect.lever is None:
            self._running.pop(effect.id, None)
            return late(f"not done in time: {effect.waits_for or 'no progress'}")
        ended = effect.lever.undo(self._tools, effect, target, now_s)
        if isinstance(ended, Waiting):  # its pods cannot be read: its result is unknown
            self._note_outage(ended, now_s)
            return None
        self._running.pop(effect.id, None)
        done = ended.kind == OutcomeKind.DONE
        self._say(effect, target.main, "Done" if done else "GaveUp", ended.reason, now_s, warning=not done)
        return ended

    def _try(self, effect: Effect, target: Target) -> Answer:
        """Let the server try a write that changes nothing, on an object writable by the lever of the effect."""
        rules = effect.lever.rules if effect.lever is not None else ()
        may = {rule.resource for rule in rules if "patch" in rule.verbs}
        for kind, resource, subresource in TRIED:
            ref = target.first(kind)
            if ref is not None and resource in may:
                return self._tools.writer.change(ref, lambda _: {}, effect.epoch, subresource=subresource, dry=True)
        return Answer()

    def _choose(self, effect: Effect, target: Target) -> str:
        """Give the effect the lever that suits now; returns the reason for none. An effect under way keeps its lever.

        A first write may make a lever unsuitable: a Job that was started is not suspended any more. So a process that
        resumes the effect reads the lever from the record.
        """
        lever = self._lever(effect.instruction, target)
        if isinstance(lever, Lever):
            effect.lever = lever
            return ""
        if effect.lever is None:
            name = lever_in(target.read.values(), effect.id)
            effect.lever = next((each for each in self.levers if each.name == name), None)
        return lever

    def _lever(self, instruction: Instruction, target: Target) -> Lever | str:
        """The first suitable lever, or the reasons against all."""
        reasons = []
        for lever in self.levers:
            if instruction.kind not in lever.kinds:
                continue
            why_not = lever.suits(instruction, target)
            if not why_not:
                return lever
            reasons.append(f"{lever.name}: {why_not}")
        return f"no lever to {instruction.kind} {instruction.subject.name}: {'; '.join(reasons) or 'there is none'}"

    def _note_outage(self, progress: Progress, now_s: float) -> None:
        """While the server or a webhook does not answer, wait; say so once."""
        outage = progress.reason if isinstance(progress, Waiting) and progress.outage else ""
        if outage:
            self._again_s = now_s + OUTAGE_S
        if bool(outage) != bool(self._outage):
            self.on_problem(outage)
        self._outage = outage

    def _outage_in(self, answer: Answer, now_s: float) -> bool:
        """True if the server or a webhook did not answer this request; then it is waited for."""
        if answer.ok:
            return False
        progress = ended_by(answer, "its objects cannot be read or written")
        if not isinstance(progress, Waiting) or not progress.outage:
            return False
        self._note_outage(progress, now_s)
        return True

    def _answer(self, instruction: Instruction, progress: Progress, now_s: float) -> Outcome:
        """The outcome of the progress; an ended effect is followed no more."""
        if isinstance(progress, Waiting):
            return Outcome(instruction.id, OutcomeKind.ACCEPTED, now_s, progress.reason)
        cause = progress.cause
        if progress.kind != OutcomeKind.DONE and cause == Cause.NONE:
            cause = Cause.OTHER
        outcome = Outcome(instruction.id, progress.kind, now_s, progress.reason, progress.retryable, cause)
        self._running.pop(instruction.id, None)
        self._ended[instruction.id] = outcome
        while len(self._ended) > MOST_KEPT:
            del self._ended[next(iter(self._ended))]
        return outcome

    def _say(
        self, effect: Effect, about: Ref | None, word: str, note: str, now_s: float, *, warning: bool = False
    ) -> None:
        """Write an Event on `about`, once for each word and text of an effect."""
        action = SAYS.get(effect.instruction.kind)
        if action is None or about is None or f"{word} {note}" in effect.said:
            return
        effect.said.add(f"{word} {note}")
        name = effect.lever.name if effect.lever is not None else "none"
        text = f"{note} (instruction {effect.id}, lever {name})"
        self._tools.events.say(about, f"{action}{word}", action, text, now_s, effect=effect.id, warning=warning)


def _begun_words(effect: Effect, lever: Lever) -> str:
    """The words for the start of an effect. For reclaimed work, also the limit of its annotations."""
    takes = effect.instruction.operation.takes
    if takes not in {StopReason.RECLAIM, StopReason.RECLAIM_MOVE}:
        return lever.words
    return (
        f"{lever.words}; its queue holds more than its guarantee, and another queue takes back what it is guaranteed. "
        f"{PREFIX}preemptible, slo-class, exclude and window protect work inside the guarantee of its own queue only"
    )
