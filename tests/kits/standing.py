"""kube-controller-manager stands still from the first stop of a story on, and pods end after their deletion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autopilot.playground.controller_manager import ControllerManager

Action = Callable[[float], None]
STOP_SECONDS = "kubelet.playground/stop-seconds"


@dataclass(frozen=True, slots=True)
class Standing:
    """How long it stands still, and how long pods take to end."""

    stands_s: float
    ends_s: float

    @property
    def late_s(self) -> float:
        """How much later the GPUs of stopped work are free."""
        return self.stands_s + self.ends_s

    def __str__(self) -> str:
        """For the name of a test."""
        return f"{self.stands_s:g}-{self.ends_s:g}"


USUAL = Standing(0.3, 1.0)
"""As on a cluster at rest."""
WORST = Standing(600.0, 20.0)
EVERY = tuple(Standing(stands_s, ends_s) for stands_s in (0.3, 30.0, 600.0) for ends_s in (1.0, 20.0))


@dataclass
class Delay:
    """Time that a story has not waited out yet, because the controller-manager stood still.

    `act(stands_s)`: it stands still from now on.
    """

    standing: Standing
    act: Callable[[float], None]
    begun: bool = False
    owed_s: float = 0.0

    def begin(self) -> None:
        """It begins to stand still, unless it did before."""
        if not self.begun:
            self.begun, self.owed_s = True, self.standing.late_s
            self.act(self.standing.stands_s)

    def take_s(self) -> float:
        """The time that is to be waited out now."""
        owed_s, self.owed_s = self.owed_s, 0.0
        return owed_s


class Late(ControllerManager):
    """The controller-manager of the playground, which says when it is to stop work."""

    def __init__(self, later: Callable[[float, Action], None], on_stop: Callable[[], None]) -> None:
        """`on_stop`: called before each stop."""
        super().__init__(later)
        self._on_stop = on_stop

    def stop(self, now_s: float, action: Action) -> None:
        """Delete pods."""
        self._on_stop()
        super().stop(now_s, action)


def stops_work(path: str, body: Any) -> bool:
    """Whether a write of the controller stops work: a check that says Retry, a Workload or Job that is switched off."""
    spec, status = body.get("spec") or {}, body.get("status") or {}
    retried = any(each.get("state") == "Retry" for each in status.get("admissionChecks") or ())
    return retried or spec.get("active") is False or (spec.get("suspend") is True and "/jobs/" in path)
