"""Kueue's steps with one Workload beside the cluster: the projection turns them into conditions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Obj = dict[str, Any]
GATED_BY = "kueue.x-k8s.io/admission-gated-by"


class Gated(NamedTuple):
    """Its admission gates changed; "": none is left, and it waits for quota."""

    at_s: float
    job: int
    gates: str


class Reserved(NamedTuple):
    """Quota of one GPU model (-1: of none) was reserved for it."""

    at_s: float
    job: int
    model: int


class Checked(NamedTuple):
    """Its admission checks, as they are in its status from now on."""

    at_s: float
    job: int
    rows: tuple[Obj, ...]


class Admitted(NamedTuple):
    """Every check is ready: its Job is resumed, with this node selector."""

    at_s: float
    job: int
    selector: Mapping[str, str]
    tolerations: tuple[Obj, ...]


class Made(NamedTuple):
    """Its pods are created."""

    at_s: float
    job: int


class Told(NamedTuple):
    """Kueue evicts it. `by`: the job in need of the room, -1 for none."""

    at_s: float
    job: int
    reason: str
    message: str
    by: int = -1


class Left(NamedTuple):
    """It gave its quota back, and had no pods."""

    at_s: float
    job: int


class Switched(NamedTuple):
    """`spec.active` changed."""

    at_s: float
    job: int
    active: bool


class Widened(NamedTuple):
    """Its Job asks for another number of GPUs from now on."""

    at_s: float
    job: int
    gpus: int


class Misplaced(NamedTuple):
    """A check contradicts the flavor or the template: it is over for good."""

    at_s: float
    job: int
    message: str


Step = Gated | Reserved | Checked | Admitted | Made | Told | Left | Switched | Widened | Misplaced
EVICTED_FOR_CHECK, DEACTIVATED, PREEMPTED, REJECTED = (
    "AdmissionCheck",
    "Deactivated",
    "Preempted",
    "DeactivatedDueToAdmissionCheck",
)
"""Reasons of evictions, as Kueue names them."""


@dataclass(slots=True)
class Checks:
    """Kueue's knowledge of a Workload under an admission check of its queue."""

    gates: str = ""
    active: bool = True
    rows: tuple[Obj, ...] = ()
    model: int = -1
    reserved: bool = False
    admitted: bool = False
    made: bool = False  # its pods are there, since it was admitted
    reason: str = ""  # of its last eviction, until quota is reserved again
    selector: dict[str, str] = field(default_factory=dict)  # of the pods, since it was admitted
    tolerations: tuple[Obj, ...] = ()
    since_s: float = 0.0  # seconds since 1970 at its admission
    gpus: int = 0  # requested by its Job; 0: all of them
