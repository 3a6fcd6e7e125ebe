"""Set the floor of a service, or give it back. A floor lapses by itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from autopilot.core.model.identity import rows_by_uid
from autopilot.core.model.objects import Subject, SubjectKind
from autopilot.core.model.snapshot import ClusterSnapshot, ServiceTable
from autopilot.core.model.verb import Deed, World

KIND: Final = "scale"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale(Deed):
    """A service has at least `replicas` until `until_s`."""

    about: ClassVar[SubjectKind] = SubjectKind.SERVICE
    sets_floor: ClassVar[bool] = True
    uncapped: ClassVar[bool] = True

    replicas: int = field()  # 0 gives the floor back
    until_s: float
    kind: Literal["scale"] = field(default=KIND, init=False)

    @property
    def wish(self) -> str:
        """To raise a floor and to give it back are two wishes."""
        return "raise" if self.replicas else "give_back"

    @property
    def size(self) -> float:
        """Its replicas."""
        return float(self.replicas)

    def lowers(self, uid: str, services: ServiceTable) -> bool:
        """True if the floor comes down."""
        return self.replicas < int(services.floor[services.uid == uid].sum())

    def shown(self, row: int, snapshot: ClusterSnapshot) -> str:
        """The floor before and after."""
        return f"{int(snapshot.services.floor[row])}>{self.replicas}"

    def seen(self, subject: Subject, world: World) -> bool:
        """The service is gone, or has the floor for at least the requested time."""
        services = world.snapshot.services
        row = rows_by_uid(services).get(subject.uid)
        if row is None:
            return world.deleted(subject)
        stands = int(services.floor[row])
        lasts = stands == 0 or float(services.floor_until_s[row]) >= self.until_s
        return stands == self.replicas and lasts
