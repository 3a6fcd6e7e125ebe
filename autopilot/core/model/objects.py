"""Objects of the cluster as records name them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class SubjectKind(StrEnum):
    """Objects that a proposal or an instruction can be about."""

    WORKLOAD = "workload"
    SERVICE = "service"


@dataclass(frozen=True, slots=True)
class Subject:
    """The object that a proposal or an instruction is about. Its uid and revision are the precondition of an effect."""

    kind: SubjectKind
    name: str
    uid: str  # "" where its source states none: every effect on it is refused
    revision: int  # incarnation of a workload, generation of a service


@dataclass(frozen=True, slots=True)
class Slot:
    """One GPU (or a share of it, or one of its MIG instances) in a proposal or instruction."""

    node: str
    gpu: str  # UUID
    instance: str = ""
    milli: int = 1000
