"""The definition of a lever: one way to carry out one kind of instruction on one kind of object.

A lever is level-triggered. `step` looks at the present objects and takes the next missing step. It is called at the
arrival of the instruction and again at each tick until it returns `Ended`. A second call changes nothing twice.
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
    """A right of a lever, in the form of RBAC. `names`: only these objects; () for all.

    `changes`: its changes in such an object (keys of `actuators.kubernetes.changes.CHANGES`). RBAC cannot state them;
    the shipped admission policy does.
    """

    group: str
    resource: str  # "workloads/status" for a subresource
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()
    own_namespace: bool = False  # in the namespace of the service only
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Waiting:
    """The effect is under way; `reason`: the awaited event. `outage`: the server or a webhook does not answer."""

    reason: str
    outage: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing is left to do for this lever. `cause`: of an effect that did not come about; `NONE` with `DONE`."""

    kind: OutcomeKind
    reason: str
    retryable: bool = False
    cause: Cause = Cause.NONE


Progress = Waiting | Ended


@dataclass(slots=True)
class Effect:
    """One instruction under way."""

    instruction: Instruction
    lever: Lever | None  # of the last step
    epoch: int
    begun_s: float
    taken_s: float = -inf  # last time it took quota from other work
    waits_for: str = ""
    outage: str = ""  # the last outage of this attempt
    begun: bool = False  # something was written, or may have been
    about: Ref | None = None  # the main object for people, as last found
    said: set[str] = field(default_factory=set)  # Events written for it

    @property
    def id(self) -> str:
        """The id of its instruction."""
        return self.instruction.id


PROBE_NAME = "gpu-autopilot-probe-"
"""Prefix of the names of our probe pods."""


@dataclass(frozen=True, slots=True)
class Probe:
    """The pods that try a node that was turned to sharing: their image, and the namespace of the service."""

    image: str
    namespace: str


class Reports(Protocol):
    """Reports of training programs beside the annotations of their pods (`collectors.checkpoint_reports`).

    Pods are given by namespace and name. Both answer at once, and raise nothing.
    """

    def acknowledged(self, request: str, pods: Collection[tuple[str, str]]) -> bool:
        """True if one of these pods reports a complete checkpoint for the request."""
        ...

    def heartbeats_s(self, pods: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], float]:
        """Time of the last reported progress of these pods, in seconds since 1970; only of pods that report it."""
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
    """The tools of a lever."""

    api: Api
    writer: Writer
    events: Events
    objects: Objects
    reports: Reports = field(default_factory=NoReports)
    hooks: Hooks = field(default_factory=Hooks)
    probe: Probe | None = None
    acts: Callable[[str], bool] = _any_action  # True if the mode of an action goes further than `recommend` now


class Upkeep(Protocol):
    """Work of the actuator itself at each tick, beside the effects. It contains its own failures."""

    def run(self, tools: Tools, epoch: int, now_s: float, under_way: Collection[str]) -> None:
        """Do all due work. `under_way`: ids of the instructions awaited by the controller."""
        ...


Step = Callable[[Tools, Effect, Target, float], Progress]
"""(tools, effect, target, now_s) -> its progress. The target was read just before."""


def gone(what: str) -> Ended:
    """The object of the instruction is gone, or another object has its name. `what` names it."""
    return Ended(OutcomeKind.CONFLICT, what, cause=Cause.REPLACED)


def changed(what: str) -> Ended:
    """Somebody else changed the object: the instruction does not apply any more."""
    return Ended(OutcomeKind.CONFLICT, what, cause=Cause.CHANGED)


def no_place(what: str) -> Ended:
    """The place of the instruction cannot be used."""
    return Ended(OutcomeKind.CONFLICT, what, cause=Cause.PLACE)


def not_set_up(what: str, kind: OutcomeKind = OutcomeKind.FAILED) -> Ended:
    """The cluster is not configured for it, or the responsible component failed."""
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

    `suits` answers "" if the lever fits the objects of the instruction, else the reason against it. `undo` takes back
    the begun part after the deadline, or once the controller does not wait for the effect any more; it leaves an effect
    that has come about as it is, and waits if that is not known. `shows` answers True if an object beside those of the
    subject shows that this instruction (id) was begun.
    """

    name: str
    kinds: frozenset[str]  # of instructions (`OPERATIONS`)
    words: str  # its action in words, for `--check` and the documentation
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
"""The cause of an effect ended by a refusal. The others are waited out."""


def ended_by(answer: Answer, what: str) -> Progress:
    """The progress after a failed request. `what` names the request."""
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
