"""Work stopped by the controller is marked as its own, by uid. Work stopped by a person is left to that person."""

from __future__ import annotations

import json
from dataclasses import dataclass

from actuators.kubernetes.api import Obj
from actuators.kubernetes.effects import fields_of
from actuators.kubernetes.objects import annotation
from autopilot.contract.annotations import STOPPED
from autopilot.core.model.stops import StopReason

STAYS = frozenset({StopReason.SUSPEND, StopReason.IDLE})
"""Reasons that keep the work away until its owner lets it continue."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The record of a stop. `returns`: the controller may start the work again; `of`: the work it was stopped for."""

    uid: str
    id: str
    reason: str
    returns: bool
    of: str = ""

    @property
    def moves(self) -> bool:
        """True if the work has a new place already."""
        return any(each.continues_elsewhere for each in StopReason if each.value == self.reason)

    @property
    def text(self) -> str:
        """As the annotation has it."""
        stop = {"uid": self.uid, "id": self.id, "reason": self.reason, "returns": self.returns}
        return json.dumps({**stop, "for": self.of} if self.of else stop)


def mark_for(found: Obj, effect: str, reason: StopReason) -> Obj:
    """The annotations of a stop."""
    mark = Mark(found["metadata"]["uid"], effect, reason.value, reason not in STAYS)
    return {STOPPED: mark.text}


def mark_of(found: Obj) -> Mark | None:
    """The mark of an object, if the controller set it on this very object; None otherwise."""
    record = fields_of(annotation(found, STOPPED))
    uid, effect, reason, of = (str(record.get(key, "")) for key in ("uid", "id", "reason", "for"))
    mark = Mark(uid, effect, reason, record.get("returns") is True, of)
    return mark if mark.uid == found["metadata"]["uid"] else None
