"""What training programs report as metrics: when they last saved and last made progress (docs/checkpoints.md).

`checkpoint_reports` asks about one request and its pods. Here all pods are asked for, every `ASK_S`, because the price
of a stop is needed before anybody is asked to stop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from types import MappingProxyType

from collectors.promql import Answered, AnswerError

ASK_S = 30.0
"""Time between two queries."""
KEPT_S = 300.0
"""An answer counts for this long where later queries fail: as long as Prometheus itself looks back."""

CHECKPOINT = "gpu_autopilot_checkpoint_timestamp_seconds"
PROGRESS = "gpu_autopilot_heartbeat_timestamp_seconds"
ALIKE = ("checkpoint_timestamp", "heartbeat_timestamp")
"""Parts of names that look like theirs, for messages."""

_OF_POD = ("namespace", "pod", "exported_namespace", "exported_pod")

Pod = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class Told:
    """What one pod reports, in seconds since 1970; None where it reports no time."""

    saved_s: float | None = None
    beat_s: float | None = None


NOTHING = Told()
NOBODY: Mapping[Pod, Told] = MappingProxyType({})


class TrainingMetrics:
    """The newest answer of a Prometheus about all pods."""

    def __init__(self, fetch: Callable[[str, float], Answered], matchers: tuple[str, ...] = ()) -> None:
        """`fetch(query, now_s)` asks and raises; `matchers` restrict both queries."""
        self._fetch, self._matchers = fetch, matchers
        self._asked_s = self._answered_s = -inf
        self._told = NOBODY
        self.homeless: tuple[str, ...] = ()  # metrics with series that name no pod

    def ask(self, now_s: float) -> None:
        """Ask if due. Raises what `fetch` raises, and for a partial answer; it then keeps the last answer."""
        if 0 <= now_s - self._asked_s < ASK_S:
            return
        self._asked_s = now_s
        self.homeless = ()
        saved, beats = self._times(CHECKPOINT, now_s), self._times(PROGRESS, now_s)
        told = {pod: Told(saved.get(pod), beats.get(pod)) for pod in saved.keys() | beats.keys()}
        self._answered_s = now_s
        if told != self._told:
            self._told = told

    def told(self, now_s: float) -> Mapping[Pod, Told]:
        """What each pod reports; the same object as long as that is the same answer, and nobody when it is too old."""
        return self._told if now_s - self._answered_s <= KEPT_S else NOBODY

    def _times(self, metric: str, now_s: float) -> dict[Pod, float]:
        """The time that each pod reports. Where two targets report different ones for a pod, the older one counts."""
        query = f"max by ({', '.join(_OF_POD)}) ({metric}{{{','.join(self._matchers)}}})"
        answer = self._fetch(query, now_s)
        if answer.partial:  # of two targets that differ, the older time may be the missing one
            raise AnswerError(f"partial answer: {answer.partial}")
        found: dict[Pod, float] = {}
        for row in answer.rows:
            labels, at_s = row.metric, float(row.value[1])
            pod = (labels.exported_namespace or labels.namespace, labels.exported_pod or labels.pod)
            if not all(pod) and metric not in self.homeless:
                self.homeless = (*self.homeless, metric)
            if all(pod) and isfinite(at_s) and at_s > 0:
                found[pod] = min(at_s, found.get(pod, inf))
        return found
