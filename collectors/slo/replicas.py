"""The latencies of single replicas, by minute: only of those that share a GPU or a node with other work.

From the histograms of the servers in the pods (`Source.replicas`); of Triton, which has none of whole requests, the
logarithm of the mean. Gateways and meshes do not tell replicas apart. A replica whose buckets fall, lack `+Inf` or are
there twice is unknown in that minute.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from zlib import crc32

import numpy as np

from autopilot.core.model.latencies import ReplicaLatency
from autopilot.core.model.snapshot import empty
from collectors.promql import Series
from collectors.slo.mean_log import mean_log
from collectors.slo.queries import PLACE, by_replica, mean_by_replica
from collectors.slo.rows import number
from collectors.slo.sources import Source

MINUTE_S = 60.0
AT_ONCE = 10
"""Pods that one query names."""
SLACK = 0.01
"""Part by which a bucket may fall below the one before it: they are not read at one instant."""
NONE: ReplicaLatency = empty(ReplicaLatency)
Ask = Callable[[str], list[Series] | str]
Row = tuple[float, float, int]
"""Requests, mean log latency in seconds, and the mark of the buckets."""


class Replicas:
    """Asks once a minute; between two questions the answer ages."""

    def __init__(self) -> None:
        """Nothing is known, and nothing shares."""
        self.sharing: Callable[[], Collection[str]] = tuple  # ids of replicas that share, NAMESPACE/POD
        self._minute, self._table = -1, NONE

    def table(self, sources: Sequence[Source], now_s: float, speed: float, ask: Ask) -> ReplicaLatency:
        """The last whole minute of each replica that shares, by the first source that knows it."""
        minute = int(now_s // MINUTE_S) - 1
        if minute != self._minute:
            self._minute, pods = minute, sorted(self.sharing())
            rows: dict[str, Row] = {}
            for source in sources if pods else ():
                for query, read in queries_of(source):
                    for part in range(0, len(pods), AT_ONCE):
                        names = pods[part : part + AT_ONCE]
                        answer = ask(query.replace("$R", "|".join(_plain(each.partition("/")[2]) for each in names)))
                        found = {} if isinstance(answer, str) else read(source, answer)
                        rows = {each: found[each] for each in names if each in found} | rows
            self._table = _table_of(rows, minute, speed)
        age_s = np.full(len(self._table.id), now_s - MINUTE_S * (minute + 1))
        return replace(self._table, age_s=age_s)


Read = Callable[[Source, Iterable[Series]], dict[str, Row]]


def queries_of(source: Source) -> list[tuple[str, Read]]:
    """The queries for the replicas of a source, with `$R` for the names of pods, and how to read each."""
    if not source.replicas:
        return []
    names = sorted(set(re.findall(r"([\w:]+_bucket)\{", source.queries.get("within", ""))))
    return [(by_replica(names), _of_buckets)] if names else [(mean_by_replica(*source.mean), _of_means)]


def _of_buckets(source: Source, rows: Iterable[Series]) -> dict[str, Row]:
    by_pod: dict[str, dict[float, float]] = defaultdict(dict)
    bad = set[str]()
    for row in rows:
        pod, edge, count = _pod(row), number(row.metric.get("le", "")), number(row.value[1])
        if math.isnan(edge) or not 0.0 <= count < math.inf or edge in by_pod[pod]:
            bad.add(pod)
        by_pod[pod][edge] = count
    return {pod: _unknown if pod in bad else _row(buckets, source.unit_s) for pod, buckets in by_pod.items()}


_unknown: Row = (math.nan, math.nan, 0)


def _row(buckets: dict[float, float], unit_s: float) -> Row:
    """Cumulative counts by edge, as one row."""
    edges = sorted(buckets)
    up_to = np.array([buckets[edge] for edge in edges])
    if len(edges) < 3 or edges[-1] != math.inf or edges[0] <= 0.0:
        return _unknown
    if (np.diff(up_to) < -SLACK * up_to[-1]).any():
        return _unknown
    counts = np.maximum(np.diff(np.maximum.accumulate(up_to), prepend=0.0), 0.0)
    known_s = np.array(edges[:-1]) * unit_s
    mark = crc32(known_s.tobytes())
    return float(counts.sum()), float(mean_log(counts[None], known_s)[0]), mark


def _of_means(_source: Source, rows: Iterable[Series]) -> dict[str, Row]:
    """Mean seconds (`le` is "mean") and requests by pod."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for row in rows:
        found[_pod(row)][row.metric.get("le", "")] = number(row.value[1])
    table = {}
    for pod, each in found.items():
        mean, count = each.get("mean", math.nan), each.get("requests", math.nan)
        table[pod] = (count, math.log(mean) if 0.0 < mean < math.inf else math.nan, 1)
    return table


def _pod(row: Series) -> str:
    return "/".join(row.metric.get(each, "") for each in PLACE)


def _plain(name: str) -> str:
    """A name of a pod in a regular expression of PromQL, in a quoted text."""
    return re.sub(r"[^a-z0-9-]", ".", name)


def _table_of(rows: dict[str, Row], minute: int, speed: float) -> ReplicaLatency:
    if not rows:
        return NONE
    counts, levels, marks = (np.array(each) for each in zip(*rows.values(), strict=True))
    ids = np.empty(len(rows), object)
    ids[:] = list(rows)
    return ReplicaLatency(
        id=ids,
        minute_s=np.full(len(rows), minute * MINUTE_S),
        requests=counts,
        mean_log_s=levels + math.log(speed),
        buckets=marks.astype(np.int64),
        age_s=np.zeros(len(rows)),
    )
