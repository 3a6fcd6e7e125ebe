"""What training programs report about checkpoints as metrics: acknowledgements of requests, and heartbeats.

A program that may not annotate its own pod exports these metrics (docs/checkpoints.md), and a Prometheus scrapes them.
It is asked only while an effect waits for a checkpoint.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import structlog

from collectors import promql
from collectors.exporter import check_url, get_limited, http_session, reason_of

log: Any = structlog.get_logger("checkpoints")

ASK_S = 5.0
"""Least time between two queries for one request."""
AGAIN_S = 30.0
"""No query for this long after one that failed."""
ANSWER_S = 3.0
"""Longest time of one query: the controller waits for it."""
SLOW_S, RESTS = 1.0, 10.0
"""After an answer that took longer than `SLOW_S`, no query for `RESTS` times as long as it took."""
MOST_BYTES = 4 << 20
MOST_PODS = 200
"""Pods whose heartbeats are asked for in one query; a gang with more has the others unknown."""
MOST_KEPT = 1000

Pods = Collection[tuple[str, str]]
"""Namespace and name of each pod."""


class CheckpointReports:
    """Asks a Prometheus. Where it does not answer, nothing is acknowledged and no heartbeat is known."""

    def __init__(
        self,
        url: str,
        *,
        headers: dict[str, str] | None = None,
        matchers: Mapping[str, str] | None = None,
        steady_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`matchers` restricts every query. Raises `InputError` where `url` is no http address."""
        check_url(url, "prometheus")
        self._url = f"{url.rstrip('/')}/api/v1/query"
        self._matchers = promql.operator_matchers(matchers or {})
        self._session = http_session(1, headers)
        self._steady_s = steady_s
        self._known: dict[str, tuple[float, list[tuple[Mapping[str, str], float]]]] = {}
        self._again_s = -math.inf
        self.problem = ""  # why the last query failed, or which of its series do not count

    def acknowledged(self, request: str, pods: Pods) -> bool:
        """Whether one of these pods reports a complete checkpoint for the request."""
        rows = self._ask("gpu_autopilot_checkpoint_step", promql.matcher("request", "=", request))
        return any(_pod_of(labels) in pods for labels, _ in rows)

    def heartbeats_s(self, pods: Pods) -> dict[tuple[str, str], float]:
        """When these pods last reported progress, in seconds since 1970; only those that report it."""
        names = sorted({name for _, name in pods})[:MOST_PODS]
        either = "|".join(re.escape(name) for name in names)
        found: dict[tuple[str, str], float] = {}
        for label in ("pod", "exported_pod"):
            rows = self._ask("gpu_autopilot_heartbeat_timestamp_seconds", promql.matcher(label, "=~", either))
            found |= {_pod_of(labels): value for labels, value in rows if _pod_of(labels) in pods and value >= 0.0}
        return found

    def _ask(self, metric: str, *matchers: str) -> list[tuple[Mapping[str, str], float]]:
        """Labels and value of each series; the answer of before within `ASK_S`."""
        query, now_s = f"{metric}{{{','.join((*matchers, *self._matchers))}}}", self._steady_s()
        asked_s, rows = self._known.get(query, (-math.inf, []))
        if now_s - asked_s < ASK_S:
            return rows
        if now_s < self._again_s:
            return []
        try:
            body = get_limited(self._session, self._url, ANSWER_S, MOST_BYTES, {"query": query})
            found, odd = promql.series_of(body)
        except (OSError, ValueError, promql.AnswerError) as error:
            self.problem, self._again_s = reason_of(error), now_s + AGAIN_S
            return []
        took_s = self._steady_s() - now_s
        if took_s > SLOW_S:
            self._again_s = now_s + RESTS * took_s
        rows = [(each.metric, float(each.value[1])) for each in found]
        if odd and odd != self.problem:
            log.warning("reports of training programs do not count", metric=metric, reason=odd)
        self.problem = odd
        if len(self._known) >= MOST_KEPT:
            self._known.clear()
        self._known[query] = (now_s, rows)
        return rows


def _pod_of(labels: Mapping[str, str]) -> tuple[str, str]:
    """Namespace and name of the pod of a series. Labels of the program (`exported_`) win over those of the target."""
    return (
        labels.get("exported_namespace") or labels.get("namespace", ""),
        labels.get("exported_pod") or labels.get("pod", ""),
    )
