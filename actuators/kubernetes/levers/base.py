"""What a lever is: one way to carry out one kind of instruction on one kind of object.

A lever is level-triggered. `step` looks at the objects as they are now and does the next thing that is missing. It is
called when the instruction arrives and again at each tick until it returns `Ended`. Calling it twice changes nothing
twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from actuators.kubernetes.api import CONFLICTS, Answer, Api, Ref, Refusal
from actuators.kubernetes.events import Events
from actuators.kubernetes.hook import Hooks
from actuators.kubernetes.objects import Objects, Target
from actuators.kubernetes.writing import Writer
from autopilot.core.model.records import Cause, Instruction, OutcomeKind


@dataclass(frozen=True, slots=True)
class Rule:
    """A right that a lever needs, as RBAC writes it. `names`: only these objects; () for all.

    `changes`: what it may change in such an object (keys of `actuators.kubernetes.changes.CHANGES`). RBAC cannot say
    that; the shipped admission policy does.
    """

    group: str
    resource: str  # "workloads/status" for a subresource
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()
    own_namespace: bool = False  # in the namespace of the service only
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Waiting:
    """The effect is under way: what it waits for. `outage`: the server or a webhook does not answer."""

    reason: str
    outage: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing is left to do for this lever. `cause`: why the effect did not come about; `NONE` with `DONE`."""

    kind: OutcomeKind
    reason: str
    retryable: bool = False
    cause: Cause = Cause.NONE


Progress = Waiting | Ended


@dataclass(slots=True)
class Effect:
    """One instruction under way."""

    instruction: Instruction
    lever: Lever | None  # that took the last step
    epoch: int
    begun_s: float
    taken_s: float = -inf  # when it last took quota from other work
    waits_for: str = ""
    outage: str = ""  # the last outage that this attempt has met
    begun: bool = False  # something was written, or may have been
    about: Ref | None = None  # the object that people look at, as it was last found
    said: set[str] = field(default_factory=set)  # Events written for it

    @property
    def id(self) -> str:
        """The id of its instruction."""
        return self.instruction.id


class Reports(Protocol):
    """What training programs report beside the annotations of their pods (`collectors.checkpoint_reports`).

    Pods are given by namespace and name. Both answer at once, and raise nothing.
    """

    def acknowledged(self, request: str, pods: Collection[tuple[str, str]]) -> bool:
        """Whether one of these pods reports a complete checkpoint for the request."""
        ...

    def heartbeats_s(self, pods: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], float]:
        """When these pods last reported progress, in seconds since 1970; only those that report it."""
        ...


class NoReports:
    """Without a Prometheus only annotations count."""

    def acknowledged(self, request: str, pods: Collection[tuple[str, str]]) -> bool:
        """No."""
        return False

    def heartbeats_s(self, pods: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], float]:
        """None."""
        return {}


def _any_action(_action: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Tools:
    """What a lever works with."""

    api: Api
    writer: Writer
    events: Events
    objects: Objects
    reports: Reports = field(default_factory=NoReports)
    hooks: Hooks = field(default_factory=Hooks)
    acts: Callable[[str], bool] = _any_action  # whether the mode of an action goes further than `recommend` now


class Upkeep(Protocol):
    """Work of the actuator itself at each tick, beside the effects. It contains its own failures."""

    def run(self, tools: Tools, epoch: int, now_s: float, under_way: Collection[str]) -> None:
        """Do what is due. `under_way`: ids of the instructions that the controller waits for."""
        ...


Step = Callable[[Tools, Effect, Target, float], Progress]
"""(tools, effect, target, now_s) -> what came of it. The target was read just before."""


def gone(what: str) -> Ended:
    """The object of the instruction is gone, or another object has its name. `what` names it."""
    return Ended(OutcomeKind.CONFLICT, what, cause=Cause.REPLACED)


def changed(what: str) -> Ended:
    """Somebody else changed the object so that the instruction does not apply any more."""
    return Ended(OutcomeKind.CONFLICT, what, cause=Cause.CHANGED)


def no_place(what: str) -> Ended:
    """The place of the instruction cannot be used."""
    return Ended(OutcomeKind.CONFLICT, what, cause=Cause.PLACE)


def not_set_up(what: str, kind: OutcomeKind = OutcomeKind.FAILED) -> Ended:
    """The cluster is not configured for it, or the component that does it failed."""
    return Ended(kind, what, cause=Cause.CONFIG)


def late(what: str) -> Ended:
    """The deadline has passed."""
    return Ended(OutcomeKind.FAILED, what, retryable=True, cause=Cause.LATE)


def _give_up(tools: Tools, effect: Effect, target: Target, now_s: float) -> Ended:  # noqa: ARG001 - as every `undo`
    return late(f"not done in time: {effect.waits_for or 'no progress'}")


def _shows_nothing(_tools: Tools, _target: Target, _effect: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Lever:
    """One row of the table of levers.

    `suits` answers "" where the lever fits the objects of the instruction, else why not. `undo` takes back what was
    begun, where the deadline has passed or the controller does not wait for the effect any more; it leaves an effect
    that has come about as it is, and waits where that is not known. `shows` answers whether an object beside those of
    the subject shows that this instruction (id) was begun.
    """

    name: str
    kinds: frozenset[str]  # of instructions (`OPERATIONS`)
    words: str  # what it does, for `--check` and the documentation
    rules: tuple[Rule, ...]
    suits: Callable[[Instruction, Target], str]
    step: Step
    undo: Step = _give_up
    shows: Callable[[Tools, Target, str], bool] = _shows_nothing


CAUSES: Mapping[Refusal | None, Cause] = {
    Refusal.GONE: Cause.REPLACED,
    Refusal.OTHER_OBJECT: Cause.REPLACED,
    Refusal.CHANGED: Cause.CHANGED,
    Refusal.TAKEN: Cause.CHANGED,
    Refusal.FENCED: Cause.EPOCH,
    Refusal.WEBHOOK: Cause.WEBHOOK,
    Refusal.RIGHT: Cause.RIGHT,
    Refusal.BUDGET: Cause.BUDGET,
    Refusal.INVALID: Cause.INVALID,
    Refusal.UNFIT: Cause.LEVER,
    Refusal.SERVER: Cause.SERVER,
}
"""The cause of an effect that ended by a refusal. The others are waited out."""


def ended_by(answer: Answer, what: str) -> Progress:
    """The progress after a request that failed. `what` names the request."""
    text, cause = f"{what}: {answer.message}", CAUSES.get(answer.refusal, Cause.OTHER)
    if answer.refusal in CONFLICTS:
        return Ended(OutcomeKind.CONFLICT, text, cause=cause)
    if answer.refusal == Refusal.BUDGET:
        return Ended(OutcomeKind.CONFLICT, f"{what}: a PodDisruptionBudget forbids it: {answer.message}", cause=cause)
    if answer.refusal == Refusal.WEBHOOK_DOWN:
        reason = f"an admission webhook does not answer, so the server refuses writes: {answer.message}"
        return Waiting(reason, outage=True)
    if answer.refusal == Refusal.UNREACHABLE or (answer.refusal == Refusal.BUSY and answer.status == 429):
        return Waiting(text, outage=True)
    if answer.refusal == Refusal.BUSY:
        return Waiting(text)
    if answer.refusal == Refusal.RIGHT:
        return Ended(OutcomeKind.FAILED, f"{text}; `autopilot check` lists the rights that are missing", cause=cause)
    if answer.refusal == Refusal.FENCED:
        return Ended(OutcomeKind.FAILED, f"{text}; another controller leads now", cause=cause)
    return Ended(OutcomeKind.FAILED, text, retryable=answer.retryable, cause=cause)
