"""Names of metrics that look like those of inference servers, for sources without a series that is read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec
import requests

from autopilot.contract.notes import shown
from collectors.exporter import get_limited
from collectors.slo.sources import Source

ASK_S = 300.0
"""Time between two looks at the names."""
BACK_S = 900.0
"""How far back a name counts as there."""
MOST = 3
"""Names that are told for each source."""
_LIMIT_BYTES = 8 * 1024 * 1024


class _Names(msgspec.Struct):
    data: list[str] = []


class UnreadNames:
    """Asks a Prometheus for names of metrics, seldom."""

    def __init__(self, session: requests.Session, url: str, matchers: str, timeout_s: float) -> None:
        self._session, self._url, self._matchers, self._timeout_s = session, url, matchers, timeout_s
        self._asked_s = -math.inf
        self._names: tuple[str, ...] = ()
        self._of: tuple[str, ...] = ()

    def like(self, sources: Sequence[Source], now_s: float) -> Mapping[str, tuple[str, ...]]:
        """Source -> names that look like its own. Nothing where Prometheus does not tell: that is a hint only."""
        parts = [part for source in sources for part in source.like]
        if not parts:
            return MappingProxyType({})
        of = tuple(source.name for source in sources)
        if of != self._of or not 0 <= now_s - self._asked_s < ASK_S:
            self._of, self._asked_s, self._names = of, now_s, self._ask(parts)
        return {
            source.name: tuple(
                shown(name)[1:-1] for name in self._names if any(part in name.lower() for part in source.like)
            )[:MOST]
            for source in sources
        }

    def _ask(self, parts: Sequence[str]) -> tuple[str, ...]:
        match = ",".join(filter(None, (f'__name__=~"(?i).*({"|".join(parts)}).*"', self._matchers)))
        params = {"match[]": f"{{{match}}}"}
        address = f"{self._url}/api/v1/label/__name__/values"
        try:
            body = get_limited(self._session, address, self._timeout_s, _LIMIT_BYTES, params)
            return tuple(sorted(msgspec.json.decode(body, type=_Names).data))
        except (OSError, ValueError, RecursionError):
            return ()
