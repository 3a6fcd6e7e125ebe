"""kube-controller-manager of the playground: it makes and deletes the pods of Jobs and Deployments.

Kueue evicts and admits work without it. While it stands still, the pods of evicted work run on without a
deletionTimestamp, and admitted work has no pods.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

Action = Callable[[float], None]


class ControllerManager:
    """Carries out the requests of Jobs and Deployments: at once, or after a pause."""

    def __init__(self, later: Callable[[float, Action], None]) -> None:
        """`later(at_s, action)`: call `action` at a virtual time."""
        self._later = later
        self._goes_on_s = -inf

    def stand_still(self, until_s: float) -> None:
        """It does nothing until this virtual time."""
        self._goes_on_s = max(self._goes_on_s, until_s)

    def stop(self, now_s: float, action: Action) -> None:
        """Delete pods."""
        self._act(now_s, action)

    def make(self, now_s: float, action: Action) -> None:
        """Create pods."""
        self._act(now_s, action)

    def _act(self, now_s: float, action: Action) -> None:
        if now_s < self._goes_on_s:
            self._later(self._goes_on_s, lambda then_s: self._act(then_s, action))
        else:
            action(now_s)
