"""The playground engine's knowledge of a Workload beside its quota, and its questions to the API."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

Obj = dict[str, Any]
PENDING, READY, RETRY, REJECTED = "Pending", "Ready", "Retry", "Rejected"


@dataclass(slots=True)
class Entry:
    """One Workload as Kueue sees it beside its quota."""

    gates: str = ""
    active: bool = True
    row: Obj = field(default_factory=dict)  # of our check
    others: list[Obj] = field(default_factory=list)  # of checks other than ours
    model: int = -1  # of its reservation
    admitted: bool = False
    over: bool = False  # it can never start
    gpus: int = 0  # requested by its Job; 0: all of them
    placement: Placement | None = None  # since it was admitted
    refused: bool = False  # a check rejected it: Kueue does not queue it again, active or not
    by_owner: bool = False  # its owner was away when it was deactivated, and lets it continue

    @property
    def state(self) -> str:
        """Of our check."""
        return str(self.row.get("state", PENDING))

    def rows(self) -> tuple[Obj, ...]:
        """All checks."""
        return (self.row, *self.others)

    @property
    def ready(self) -> bool:
        """True if no check holds it back."""
        return all(each["state"] == READY for each in self.rows())


@dataclass(frozen=True, slots=True)
class Placement:
    """Conditions of an admitted gang on its nodes."""

    selector: dict[str, str]
    tolerations: tuple[Obj, ...]


class Surroundings(Protocol):
    """The engine's questions to the API: labels of flavors and nodes, templates, and owners."""

    start_s: float

    def template(self, job: int) -> Obj:
        """The pod template of a job as its owner wrote it."""
        ...

    def flavor_labels(self, model: int) -> dict[str, str]:
        """The node labels of the flavor of a GPU model."""
        ...

    def nodes(self, placement: Placement) -> int:
        """The nodes suitable for a placement, as a bit set."""
        ...

    def away(self, job: int) -> bool:
        """True if the owner of a job is away."""
        ...
