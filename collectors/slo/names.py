"""Names of metrics similar to those of inference servers: unknown prefixes, and unread metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import requests

from autopilot.contract.notes import shown
from autopilot.core.intake import silent
from collectors import promql
from collectors.exporter import get_limited
from collectors.slo.sources import Source

ASK_S = 300.0
"""Time between two looks at the names."""
_LIMIT_BYTES = 8 * 1024 * 1024


class _Names(msgspec.Struct):
    data: list[str] = []


class NamesThere:
    """Asks a Prometheus for names of metrics, and for the clusters whose servers it has, seldom."""

    def __init__(self, session: requests.Session, url: str, matchers: str, timeout_s: float) -> None:
        self._session, self._url, self._matchers, self._timeout_s = session, url, matchers, timeout_s
        self._asked_s = -math.inf
        self._names: tuple[str, ...] = ()
        self.clusters: tuple[str, ...] = ()  # values of the label `cluster` of the series that are read

    def of(self, sources: Sequence[Source], now_s: float) -> tuple[str, ...]:
        """Names that may be of these sources. Empty if Prometheus does not answer: names are a hint only."""
        if not 0 <= now_s - self._asked_s < ASK_S:
            self._asked_s = now_s
            parts = sorted({part for source in sources for part in source.alike})
            self._names, self.clusters = self._ask(parts), self._ask_clusters(parts)
        return self._names

    def _match(self, parts: Sequence[str], *more: str) -> str:
        return ",".join(filter(None, (f'__name__=~"(?i).*({"|".join(parts)}).*"', *more, self._matchers)))

    def _ask_clusters(self, parts: Sequence[str]) -> tuple[str, ...]:
        match = self._match(parts, '__name__!~".*_(bucket|count|sum|created)"', 'cluster!=""')
        address = f"{self._url}/api/v1/query"
        try:
            params = {"query": f"count by (cluster) ({{{match}}})"}
            body = get_limited(self._session, address, self._timeout_s, _LIMIT_BYTES, params)
            return tuple(sorted(row.metric.get("cluster", "") for row in promql.series_of(body)[0]))
        except (OSError, ValueError, RecursionError, promql.AnswerError):
            return ()

    def _ask(self, parts: Sequence[str]) -> tuple[str, ...]:
        params = {"match[]": f"{{{self._match(parts)}}}"}
        address = f"{self._url}/api/v1/label/__name__/values"
        try:
            body = get_limited(self._session, address, self._timeout_s, _LIMIT_BYTES, params)
            return tuple(sorted(msgspec.json.decode(body, type=_Names).data))
        except (OSError, ValueError, RecursionError):
            return ()


def nearest(source: Source, names: Sequence[str]) -> list[str]:
    """A few of these names that are similar to those of a source, for a message."""
    return [shown(each)[1:-1] for each in silent.nearest(names, source.alike)]
