"""The API objects of a subject of an instruction, and their content read before anything is written.

The view of the cluster names the objects of a subject (`Objects`, provided by the collector). Their content is read
afresh: a decision is some hundred milliseconds old at its execution.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import nan
from typing import Protocol

from actuators.kubernetes.api import Answer, Api, Obj, Ref, Refusal
from autopilot.contract.notes import shown


class Named(Protocol):
    """An object by its identity."""

    @property
    def kind(self) -> str:
        """Kind of the object: Workload, Job, Pod, Node, Deployment, StatefulSet."""
        ...

    @property
    def namespace(self) -> str:
        """Its namespace; "" for objects of the cluster."""
        ...

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def uid(self) -> str:
        """Its uid."""
        ...


class Located(Protocol):
    """The objects of a subject as the view shows them."""

    @property
    def incarnation(self) -> int:
        """Number of stops of work, as counted by the view; the generation of a service; 0 for a node or a GPU."""
        ...

    @property
    def objects(self) -> Sequence[Named]:
        """Its Workload, its Job and its pods, as far as there are any."""
        ...


class Objects(Protocol):
    """Finds the objects of a subject in the view. Called by the thread of the loop only."""

    def find(self, kind: str, uid: str) -> Located | None:
        """The objects of a subject (`kind`: workload, service, gpu, node) by its uid; None: not in the view."""
        ...

    def changing(self) -> Iterable[tuple[Named, str]]:
        """Every node of the view with a record of an effect (annotation `gpu-autopilot.io/effect`), and the record."""
        ...

    def offered(self) -> Iterable[Named]:
        """Every node of the view offered back (annotation `gpu-autopilot.io/offered-back`)."""
        ...

    def ceiled(self) -> Iterable[tuple[Named, str]]:
        """Every service of the view with a record of a ceiling (`gpu-autopilot.io/ceiling`), and the record."""
        ...

    def placed(self) -> Iterable[tuple[str, str, str]]:
        """Name and uid of a node, and the key of a label with our prefix of placements on it."""
        ...

    def uids(self) -> Iterable[str]:
        """The uids of all work in the view that has not ended."""
        ...

    def reservations(self, uids: Sequence[str]) -> Iterable[Named]:
        """The Workloads of Kueue of these uids of work that have quota and wait for our check, in this order.

        Opted-out ones are left out.
        """
        ...

    def taken(self) -> Iterable[Named]:
        """Workloads of Kueue deactivated by us to free their quota for other work (`levers.reservations`)."""
        ...

    def left_over(self) -> Iterable[Named]:
        """Workloads of Kueue with a Retry of our check left over, or taken back (`levers.leftover`)."""
        ...


@dataclass(slots=True)
class Target:
    """The objects of one subject: their names in the view, and their content as read."""

    uid: str
    incarnation: int
    refs: tuple[Ref, ...]
    read: dict[str, Obj] = field(default_factory=dict)  # by uid

    def of(self, kind: str) -> list[Ref]:
        """Its objects of a kind."""
        return [each for each in self.refs if each.kind == kind]

    def first(self, kind: str) -> Ref | None:
        """Its only object of a kind."""
        return next(iter(self.of(kind)), None)

    def doc(self, ref: Ref | None) -> Obj:
        """The read content of an object; {}: not read."""
        return self.read.get(ref.uid, {}) if ref is not None else {}

    @property
    def workload(self) -> Obj:
        """Its Workload of Kueue; {} for none."""
        return self.doc(self.first("Workload"))

    @property
    def job(self) -> Obj:
        """Its Job; {} for none."""
        return self.doc(self.first("Job"))

    @property
    def main(self) -> Ref | None:
        """The main object for people: the Job, else the Workload, else the first pod or any other object."""
        for kind in ("Job", "Workload", "Deployment", "StatefulSet", "Node", "Pod"):
            found = self.first(kind)
            if found is not None:
                return found
        return None


def refs_of(located: Located) -> tuple[Ref, ...]:
    """The objects of a subject."""
    return tuple(Ref(each.kind, each.namespace, each.name, each.uid) for each in located.objects)


def target_of(api: Api, located: Located, uid: str) -> tuple[Target, Answer | None]:
    """The target with its Workload and its Job read, and the failed read (None: none failed)."""
    refs = refs_of(located)
    target = Target(uid, located.incarnation, refs)
    for ref in refs:
        if ref.kind not in {"Workload", "Job"}:
            continue
        answer = api.read(ref)
        if not answer.ok:
            return target, answer
        if answer.body["metadata"].get("deletionTimestamp"):
            return target, Answer(answer.body, Refusal.GONE, f"{ref.shown} is being deleted", 404)
        target.read[ref.uid] = answer.body
    return target, None


def conditions(found: Obj) -> dict[str, Obj]:
    """The conditions of a status by type."""
    return {each["type"]: each for each in (found.get("status") or {}).get("conditions") or ()}


def holds(found: Obj, kind: str) -> bool:
    """True if the condition of this type is True."""
    return conditions(found).get(kind, {}).get("status") == "True"


def moment_s(condition: Obj) -> float:
    """Time of the last change of a condition or a check; NaN: not stated."""
    try:
        return datetime.fromisoformat(str(condition.get("lastTransitionTime"))).timestamp()
    except (ValueError, OverflowError):
        return nan


OVER = ("Complete", "Failed", "SuccessCriteriaMet", "FailureTarget")
"""Conditions of a Job that has ended, or is about to: its controller stops the rest of it."""


def over(job: Obj) -> str:
    """The condition by which a Job has ended or is about to; "" for none."""
    return next((kind for kind in OVER if holds(job, kind)), "")


MOST_DIGITS = 9
"""Of a number of devices: more is a mistake, or an attack."""


def devices(name: str, amount: object) -> int:
    """A number of devices stated by an object. Raises `ValueError` with its name and value."""
    text = str(amount)
    if not text.isdecimal() or len(text) > MOST_DIGITS:
        raise ValueError(f"{name} is {shown(text)}, not a number of devices")
    return int(text)


def annotation(found: Obj, key: str) -> str:
    """The value of an annotation; "": absent."""
    return str(((found.get("metadata") or {}).get("annotations") or {}).get(key, ""))


def label(found: Obj, key: str) -> str:
    """The value of a label; "": absent."""
    return str(((found.get("metadata") or {}).get("labels") or {}).get(key, ""))
