"""Bound the replicas of an idle service, or end that. A ceiling lapses by itself, and the replicas come back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from autopilot.core.model.identity import rows_by_uid
from autopilot.core.model.memory.idle import ShrunkService
from autopilot.core.model.objects import Subject, SubjectKind
from autopilot.core.model.snapshot import ClusterSnapshot, ServiceTable
from autopilot.core.model.verb import Deed, World

KIND: Final = "ceiling"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling(Deed):
    """An idle service has at most `replicas` until `until_s`."""

    about: ClassVar[SubjectKind] = SubjectKind.SERVICE
    exact: ClassVar[bool] = True
    bounds: ClassVar[bool] = True
    planned_anew: ClassVar[bool] = True
    renewable: ClassVar[bool] = True

    replicas: int = field()  # -1: no ceiling
    until_s: float
    had: int  # replicas that it held before the first ceiling; -1: unknown
    gpus: float  # that it gives up; NaN: unknown
    owner: str
    kind: Literal["ceiling"] = field(default=KIND, init=False)

    @property
    def wish(self) -> str:
        """To set a ceiling and to end it are two wishes."""
        return "bound" if self.replicas >= 0 else "unbound"

    def lowers(self, uid: str, services: ServiceTable) -> bool:
        """True if it bounds; a ceiling that ends within the hour is a reversal."""
        return self.replicas >= 0

    def shrunk(self, subject: Subject) -> ShrunkService | None:
        """The service with its former GPUs and replicas; None for the end of a ceiling."""
        return ShrunkService(self.owner, self.gpus, self.had, subject.revision) if self.replicas >= 0 else None

    def shown(self, row: int, snapshot: ClusterSnapshot) -> str:
        """The ceiling before and after."""
        return f"{int(snapshot.services.ceiling[row])}<{self.replicas}"

    def seen(self, subject: Subject, world: World) -> bool:
        """The service is gone, or has the ceiling for at least the requested time and no replicas above it.

        The ceiling is recorded before the replicas go: a controller that died in between has left the effect half done.
        """
        services = world.snapshot.services
        row = rows_by_uid(services).get(subject.uid)
        if row is None:
            return world.deleted(subject)
        stands = int(services.ceiling[row])
        lowered = services.replicas[row] <= stands and services.ceiling_until_s[row] >= self.until_s
        return stands == self.replicas and (stands < 0 or bool(lowered))
