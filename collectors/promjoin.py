"""The nodes of GPUs and the pods on them, by the labels of their series in a Prometheus.

Each series has its own style of pod labels, because one Prometheus may scrape one target with `honor_labels` and
another without. A partial answer changes only the series in it: absence counts only in a whole answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from autopilot.core.hardware import dcgm
from collectors import promql
from collectors.attribution import Attribution, Sighting, Sightings, attribute
from collectors.exposition import Owned, Owner
from collectors.promql import Answered, Row, Site

JOIN_S = 30.0
"""Time between two questions who holds which GPU."""
_UTIL, _FB_USED = dcgm.FIELDS[203], dcgm.FIELDS[252]


class PodJoin:
    """The newest answer about GPUs and the pods on them. `fetch(query, now_s)` asks, and raises."""

    def __init__(self, fetch: Callable[[str, float], Answered]) -> None:
        self._fetch = fetch
        self._asked_s = float("-inf")
        self._partial = ""
        self.sightings = Sightings()

    def ask(self, site: Site, now_s: float) -> str:
        """Ask if due. Returns the missing part of the newest answer. Raises what `fetch` raises, and then keeps the
        last answer.
        """
        if 0 <= now_s - self._asked_s < JOIN_S:
            return self._partial
        self._asked_s, self._partial = now_s, ""
        rows = [
            row
            for field in (_UTIL, _FB_USED)
            for name in site.names_of(field)
            for row in self._rows(promql.place_query(site, name), now_s)
            if _uuid(row)
        ]
        seen = {
            Sighting(
                _uuid(row),
                row.metric.GPU_I_ID,
                row.metric.GPU_I_PROFILE,
                promql.host_of(row.metric),
                model=row.metric.modelName,
            )
            for row in rows
        }
        held = self.attributions(site, now_s)
        if self._partial:
            named = {dcgm.entity_id(each.uuid, each.gi_id) for each in seen}
            owned = named | {each.entity_id for each in held}
            seen |= {
                replace(each, now=False)
                for each in self.sightings.seen
                if dcgm.entity_id(each.uuid, each.gi_id) not in named
            }
            held += tuple(each for each in self.sightings.attributions if each.entity_id not in owned)
        ordered = sorted(seen, key=lambda each: (each.host, each.uuid, each.gi_id, each.profile))
        self.sightings = Sightings(tuple(ordered), held)
        return self._partial

    def attributions(self, site: Site, now_s: float) -> tuple[Attribution, ...]:
        """Containers on each entity, each by the label style of its series. Raises what `fetch` raises."""
        rows: dict[tuple[str, Owner], list[float]] = {}
        for place, field in enumerate((_UTIL, _FB_USED)):
            for name in site.names_of(field):
                for style in site.styles:
                    for row in self._rows(promql.owner_query(site, name, style), now_s):
                        entity = dcgm.entity_id(_uuid(row), row.metric.GPU_I_ID)
                        owner = promql.owner_of(row.metric, style)
                        cleaned, _ = dcgm.clean(field, np.array(float(row.value[1])))
                        use = rows.setdefault((entity, owner), [np.nan, np.nan])
                        use[place] = float(np.fmax(use[place], cleaned))
        table = np.array(list(rows.values())).reshape(-1, 2)
        return attribute(Owned(tuple(e for e, _ in rows), tuple(p for _, p in rows), table[:, 0], table[:, 1]))

    def _rows(self, query: str, now_s: float) -> list[Row]:
        answer = self._fetch(query, now_s)
        self._partial = self._partial or answer.partial
        return answer.rows


def _uuid(row: Row) -> str:
    return row.metric.UUID or row.metric.uuid
