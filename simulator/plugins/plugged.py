"""Runs a policy of somebody else in the engine: an exception, a wrong answer or a delay becomes one message."""

from __future__ import annotations

import traceback
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

from autopilot.core.model.errors import InputError
from autopilot.core.model.units import counted, format_duration
from simulator.plugins.policy import Policy, View
from simulator.plugins.watch import Overtime, at_most
from simulator.world.cluster import Cluster

DECIDE_LIMIT_S = 30.0
"""Real time of one call of `decide`, where the policy states no `decide_limit_s`."""
LEAST_WAKE_S = 1.0
"""Least virtual time from one call to the next one without an event between them."""


class Plugged:
    """The scheduler asking a policy. `name` is its registered one."""

    def __init__(self, name: str, policy: Policy) -> None:
        self.name, self._policy = name, policy
        self._limit_s = float(getattr(policy, "decide_limit_s", DECIDE_LIMIT_S))

    def attach(self, cluster: Cluster) -> None:
        """Take charge of `cluster`."""
        self.view = View(cluster)

    def on_submit(self, job: int, now_s: float) -> None:
        """The view shows it."""

    def on_requeue(self, job: int, now_s: float) -> None:
        """The view shows it."""

    def on_end(self, job: int, now_s: float) -> None:
        """The view shows it."""

    def on_change(self, now_s: float) -> None:
        """The view shows it."""

    def decide(self, now_s: float) -> float | None:
        """One call of the policy. Raises `InputError` naming the policy, the virtual time and the failed line."""
        self.view.at(now_s)
        try:
            with at_most(self._limit_s):
                again_s: Any = self._policy.decide(self.view)
        except Overtime as error:
            raise self._failed(
                now_s,
                f"took more than {self._limit_s:g} s of real time{_line(error)}; end its loop, or state a longer "
                "time in its attribute decide_limit_s",
            ) from None
        except (Exception, SystemExit) as error:
            raise self._failed(now_s, f"raised {type(error).__name__}: {error}{_line(error)}") from error
        if again_s is None:
            return None
        if isinstance(again_s, bool) or not isinstance(again_s, int | float) or not isfinite(again_s):
            raise self._failed(now_s, f"returned {again_s!r}; return None, or the virtual time of the next call")
        if again_s <= now_s:
            raise self._failed(now_s, f"returned {again_s:g}, which is not after view.now_s ({now_s:g})")
        return max(float(again_s), now_s + LEAST_WAKE_S)

    def result(self) -> dict[str, Any]:
        """The entry `refused` of a policy in the result: refused requests counted by reason, and the first ones."""
        return {"refused": {"by_reason": self.view.refusals, "first": [asdict(each) for each in self.view.refused]}}

    def _failed(self, now_s: float, what: str) -> InputError:
        waiting = counted(len(self.view.waiting), "job")
        return InputError(f"policy {self.name}: decide at {format_duration(now_s)}, with {waiting} waiting: {what}")


_ENGINE = str(Path(__file__).parent.parent)


def _line(error: BaseException) -> str:
    """The innermost line outside the simulator; empty if there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((_ENGINE, "<string>")):
            return f" ({frame.filename}, line {frame.lineno})"
    return ""
