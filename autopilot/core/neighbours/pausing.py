"""Let work wait at its next step boundary, and go on. Its memory is kept, and it computes nothing meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from autopilot.core.model.objects import Pausing, Subject
from autopilot.core.model.units import format_duration
from autopilot.core.model.verb import Deed, World

PAUSE: Final = "pause"
RESUME: Final = "resume"
MOST_PAUSE_S = 300.0
"""Most seconds of one request: the program then goes on by itself, also where the controller is gone
(autopilot/checkpoint_hook.py)."""


def _pausing(subject: Subject, world: World) -> int | None:
    """What the present view says of its pause; None where the run is gone."""
    row = world.rows.get(subject.uid)
    work = world.snapshot.workloads
    return None if row is None or int(work.incarnation[row]) != subject.revision else int(work.pausing[row])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause(Deed):
    """Wait at the next step boundary, for `seconds` at most."""

    planned_anew: ClassVar[bool] = True  # where it fails, what there is then decides

    seconds: float = field()  # until it goes on by itself
    victim: str  # id and uid of the work that may recover meanwhile
    victim_uid: str
    again: bool  # it is paused already, and is asked to stay so
    kind: Literal["pause"] = field(default=PAUSE, init=False)

    def seen(self, subject: Subject, world: World) -> bool:
        """All its members wait, or its run is over. A request to stay so shows nothing: its actuator tells."""
        now = _pausing(subject, world)
        return now is None or (now == Pausing.PAUSED and not self.again)

    def whose(self, subject: Subject) -> str:
        """The suspect and its victim."""
        return f"{subject.name}, beside {self.victim}"

    def told(self, place: str) -> str:
        """For how long."""
        return f"paused for at most {format_duration(self.seconds)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume(Deed):
    """Go on."""

    planned_anew: ClassVar[bool] = True

    kind: Literal["resume"] = field(default=RESUME, init=False)

    def seen(self, subject: Subject, world: World) -> bool:
        """It does not wait any more, or its run is over."""
        return _pausing(subject, world) != Pausing.PAUSED

    def told(self, place: str) -> str:
        """That it goes on."""
        return "resumed"
