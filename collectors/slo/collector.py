"""Measurements of inference services from a Prometheus that scrapes their servers.

A query without an answer, or with an answer for no request, is unknown and never 0: p99 and violations of fewer than
`min_requests` requests are noise, and are left out. The violation ratio is exact only at an edge of the buckets, so the
objective is rounded up to one, and a gap says so. A partial answer counts as none. A named source without series is a
gap, and so are unread series similar to those of a server.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from string import Template
from typing import Any

import numpy as np

from autopilot.contract.notes import shown
from autopilot.core.model.errors import InputError, unknown_name
from autopilot.core.model.records import Batch, Gap, ServiceSignals
from autopilot.deadline import carried
from collectors import promql
from collectors.exporter import check_url, get_limited, http_session, reason_of
from collectors.promql import AnswerError, Series
from collectors.slo.names import NamesThere, nearest
from collectors.slo.naming import Naming, by_key, key_of
from collectors.slo.replicas import Replicas
from collectors.slo.rows import number, pod_of
from collectors.slo.sources import ADDITIVE, DEFAULT_SOURCES, SOURCES, Source

WINDOW_S, RECENT_S = 300.0, 60.0
ANSWER_LIMIT_BYTES = 64 * 1024 * 1024
_BUCKETS = ("within", "ttft_within", "itl_within")
"""Measures by bucket, in the order of `Objectives`."""
_APART = frozenset({*_BUCKETS, "rate_rps", "requests", "waited", "ran", "finished"})
"""Measures that are no column as they are."""
_BAD = (OSError, AnswerError, ValueError)
_SIGNS = ("replicas", "queue_depth", "rate_rps")
"""Measures that tell whether there are servers of a source; the first that it has is asked for."""
_COLUMNS = (
    "p99_s",
    "violation_ratio",
    "rate_rps",
    "queue_depth",
    "tokens_per_s",
    "recent_rps",
    "recent_violation_ratio",
    "kv_cache_ratio",
    "replicas",
    "ttft_p99_s",
    "itl_p99_s",
    "recent_ttft_violation_ratio",
    "recent_itl_violation_ratio",
)
_P99 = ("p99_s", "ttft_p99_s", "itl_p99_s")
_LATE_NOW = ("recent_violation_ratio", "recent_ttft_violation_ratio", "recent_itl_violation_ratio")
"""Columns in the order of `Objectives`."""
Objectives = tuple[float, ...]
"""Seconds that a service promises, NaN where it promises none: latency, time to the first token, between two tokens."""

MOST = 1e12
"""Largest value that counts, in any unit: no service reaches it in requests, tokens or seconds."""
Answers = Mapping[tuple[str, str, float], Any]
"""Rows, or why there are none, by source, measure and window."""
_SLACK = 1.01
"""How far the rate of a bucket may exceed that of all requests: they are not read at one instant."""


class SloCollector:
    """Signals of every service that a source knows."""

    name = "slo"

    def __init__(
        self,
        url: str,
        *,
        sources: Sequence[str] | None = None,
        objectives: Mapping[str, float] | None = None,
        services: Mapping[str, str | Sequence[str]] | None = None,
        headers: dict[str, str] | None = None,
        matchers: Mapping[str, str] | None = None,
        interval_s: float = 15.0,
        timeout_s: float = 10.0,
        min_requests: float = 100.0,
        speed: float = 1.0,
        workers: int = 4,
    ) -> None:
        """`objectives`: service -> latency in seconds. `services`: name in a source -> our name.

        A name in a source may be that of one namespace, `NAMESPACE/NAME`. Ours may be several names: the pools behind
        one gateway.

        Named `sources` must hold series; without names, one of `DEFAULT_SOURCES` must. `speed`: of a simulated cluster;
        it shortens windows and lowers rates. Raises `InputError`.
        """
        check_url(url, "slo")
        self.url = url.rstrip("/")
        self._sources = [_source(name) for name in (DEFAULT_SOURCES if sources is None else sources)]
        self._named = sources is not None and tuple(sources) != DEFAULT_SOURCES
        ours = {name: (each,) if isinstance(each, str) else tuple(each) for name, each in (services or {}).items()}
        self._pools = {" + ".join(each): each for each in ours.values() if len(each) > 1}
        self.naming = Naming({name: " + ".join(each) for name, each in ours.items()})
        self._objectives = dict(objectives or {})
        self._declared: Callable[[], Mapping[str, Objectives]] = dict
        self._promised = tuple[dict[str, float], ...]()
        self._matchers = ",".join(promql.operator_matchers(matchers or {}))
        self._interval_s, self._timeout_s, self._min_requests = interval_s, timeout_s, min_requests
        self._speed, self._workers = speed, workers
        self._session = http_session(workers, headers)
        self._there = NamesThere(self._session, self.url, self._matchers, timeout_s)
        self._asked_s, self._held = -math.inf, set[str]()  # sources that had an answer the last time
        self._signals: ServiceSignals | None = None
        self._replicas = Replicas()
        self._gaps: dict[tuple[str, str, str], Gap] = {}

    def learn(
        self,
        services: Callable[[], Collection[str]],
        declared: Callable[[], Mapping[str, Objectives]] = dict,
        pods: Callable[[], Mapping[str, str]] = dict,
        sharing: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """Measure the services of a cluster. `services` gives their names, and `declared` their objectives; a setting
        takes precedence. `pods` gives the services of pods whose names do not tell them, `sharing` the replicas that
        share a GPU or a node. Another thread may call all.
        """
        self.naming.known, self._declared, self.naming.by_pod = services, declared, pods
        self._replicas.sharing = sharing

    def collect(self, now_s: float) -> Batch:
        """Ask when it is due; between two questions the answer ages."""
        if not 0 <= now_s - self._asked_s < self._interval_s:
            self._asked_s, self._gaps = now_s, {}
            self._signals = self._ask()
        signals = self._signals
        if signals is not None and now_s > self._asked_s:
            aged = signals.age_s + (now_s - self._asked_s)
            signals = replace(signals, age_s=aged)
        return Batch(self.name, now_s, services=signals, gaps=tuple(self._gaps.values()))

    def _ask(self) -> ServiceSignals | None:
        """All measures of all sources; for each service the first source that knows it counts."""
        columns: dict[str, dict[str, float]] = {}
        names, self._promised = self._names_there(), self._objectives_now()
        sources = [source.seen(names) for source in self._sources]
        with ThreadPoolExecutor(self._workers, "slo") as pool:
            pending = {
                (source.name, measure, window_s): pool.submit(carried(self._query, source, measure, window_s))
                for source in sources
                for measure in self._measures(source, names)
                for window_s in self._windows_s(measure)
            }
            answers = {key: self._settled(key, future.result()) for key, future in pending.items()}
        self._held = {name for (name, _, _), answer in answers.items() if answer}
        if all(isinstance(answer, str) for answer in answers.values()):
            return None
        self._say_unread(answers, names)
        if len(self._there.clusters) > 1:
            first = ", ".join(shown(each)[1:-1] for each in self._there.clusters[:3])
            reason = f"series of {len(self._there.clusters)} clusters (label cluster: {first}) are read as of one"
            self._gap("", "", f"{reason}; name this cluster in collectors.slo.matchers")
        asked = {source.name: source for source in sources}
        self.naming.learn(
            key_of(asked[name], row)
            for (name, _, _), rows in answers.items()
            for row in (() if isinstance(rows, str) else rows)
        )
        gateway_rps: dict[str, float] = {}
        for source in sources:
            found = self._of_source(source, answers)
            for service, values in found.items():
                columns.setdefault(service, values)
                if source.gateway and math.isfinite(values["recent_rps"]):
                    gateway_rps.setdefault(service, values["recent_rps"])
        for pools, each in self._pools.items():
            for known in (columns, gateway_rps):
                _share(known, pools, each)
        for text in (self.naming.mixed(), self.naming.unjoined(columns)):
            if text:
                self._gap("", "", text)
        services = np.empty(len(columns), object)
        services[:] = sorted(columns)
        table: dict[str, Any] = {
            column: np.array([columns[name].get(column, np.nan) for name in services]) for column in _COLUMNS
        }
        front = np.array([gateway_rps.get(name, np.nan) for name in services])
        held = [source for source in sources if source.name in self._held]
        table["latencies"] = self._replicas.table(held, self._asked_s, self._speed, self._of_replicas)
        return ServiceSignals(service=services, age_s=np.zeros(len(services)), gateway_rps=front, **table)

    def _names_there(self) -> tuple[str, ...]:
        return self._there.of(self._sources, self._asked_s)

    def _objectives_now(self) -> tuple[dict[str, float], ...]:
        """The objectives by service, of each kind of `Objectives`."""
        declared = self._declared()
        latency, *others = (
            {service: each[kind] for service, each in declared.items() if each[kind] > 0}
            for kind in range(len(_BUCKETS))
        )
        kinds = (latency | self._objectives, *others)
        for pools, each in self._pools.items():
            for promised_s in kinds:  # only the pools that answer for it have it
                if answer := [promised_s[name] for name in each if name in promised_s]:
                    promised_s[pools] = min(answer)
        return kinds

    def _measures(self, source: Source, names: Sequence[str]) -> Iterable[str]:
        """The measures to ask of a source: one, while Prometheus has no similar names and the source gave no answer."""
        if not names or source.name in self._held or nearest(source, names):
            return source.queries
        return [next(each for each in _SIGNS if each in source.queries)]

    def _windows_s(self, measure: str) -> tuple[float, ...]:
        """The windows to ask for. Buckets of tokens are many: they need an objective that counts."""
        if measure in {"within", "rate_rps"}:
            return WINDOW_S, RECENT_S
        if measure in _BUCKETS:
            return (RECENT_S,) if self._promised[_BUCKETS.index(measure)] else ()
        return (WINDOW_S,)

    def _settled(self, key: tuple[str, str, float], answer: list[Series] | str) -> list[Series] | str:
        if isinstance(answer, str):
            self._gap("", key[1], f"{key[0]}: the query of {key[1]} failed: {answer}")
        return answer

    def _of_source(self, source: Source, answers: Answers) -> dict[str, dict[str, float]]:
        """The columns of each service that one source knows."""

        def read(measure: str, window_s: float = WINDOW_S) -> dict[str, float]:
            rows = answers.get((source.name, measure, window_s), ())
            return {} if isinstance(rows, str) else self._merged(source, measure, rows)

        rates, recent = read("rate_rps"), read("rate_rps", RECENT_S)
        plain = {measure: read(measure) for measure in source.queries if measure not in _APART}
        enough = {service for service, count in read("requests").items() if count >= self._min_requests}
        late = self._late(source, answers, "within", WINDOW_S)
        late_now = [self._late(source, answers, measure, RECENT_S) for measure in _BUCKETS]
        stuck = self._stuck(source, answers)
        if source.steps:
            self._say_steps(source, answers)
        services = set(rates) | {service for values in plain.values() for service in values}
        found = {}
        for service in services:
            row = {measure: values[service] for measure, values in plain.items() if service in values}
            row |= {"tokens_per_s": row["tokens_per_s"] / self._speed} if "tokens_per_s" in row else {}
            if service in stuck and not row.get("queue_depth", 0.0) > stuck[service]:
                row.pop("queue_depth", None)
            elif service in stuck:
                row["queue_depth"] -= stuck[service]
            row["rate_rps"] = rates.get(service, math.nan) / self._speed
            row["recent_rps"] = recent.get(service, math.nan) / self._speed
            if service in enough:
                row["violation_ratio"] = late.get(service, math.nan)
                for column, known in zip(_LATE_NOW, late_now, strict=True):
                    row[column] = known.get(service, math.nan)
            else:
                for column in _P99:
                    row.pop(column, None)
            found[service] = row
        return found

    def _say_steps(self, source: Source, answers: Answers) -> None:
        """Name services with several models: whether one is a step of another, no metric says."""
        models: dict[str, set[str]] = defaultdict(set)
        rows = answers.get((source.name, "rate_rps", WINDOW_S), ())
        for key in by_key(source, () if isinstance(rows, str) else rows):
            models[self.naming.name(key)].add(key.given)
        for service, names in models.items():
            if service and len(names) > 1:
                reason = f"the requests to its {len(names)} models add up, also to one that is a step of another"
                self._gap(service, "rate_rps", f"{source.name}: {reason}; a request may count more than once")

    def _stuck(self, source: Source, answers: Answers) -> dict[str, float]:
        """Waiting requests by service, at engines that ran and ended none in the window. A gap names them."""

        def by_engine(measure: str) -> Iterator[tuple[frozenset[tuple[str, str]], Series, float]]:
            rows = answers.get((source.name, measure, WINDOW_S), ())
            for row in () if isinstance(rows, str) else rows:
                yield frozenset((name, text) for name, text in row.metric.items() if text), row, number(row.value[1])

        if isinstance(answers.get((source.name, "finished", WINDOW_S)), str):
            return {}
        ran = {engine: value for engine, _, value in by_engine("ran")}
        ended = {pod_of(source, engine) for engine, _, value in by_engine("finished") if value > 0}
        stuck: dict[str, float] = {}
        for engine, row, waiting in by_engine("waited"):
            if ran.get(engine) == 0 and pod_of(source, engine) not in ended and 0 < waiting <= MOST:
                service = self.naming.name(key_of(source, row))
                stuck[service] = stuck.get(service, 0.0) + waiting
        for service, waiting in stuck.items():
            reason = f"{waiting:g} requests wait at servers that ran and ended none for {WINDOW_S / 60:g} min"
            self._gap(service, "queue_depth", f"{source.name}: {reason}; they do not count")
        return stuck

    def _say_unread(self, answers: Answers, names: Sequence[str]) -> None:
        """Name the sources without series, and similar series. Failed ones are named already."""
        held = {name for (name, _, _), answer in answers.items() if answer}
        empty = [source for source in self._sources if source.name not in held]
        seen = {source.name: nearest(source, names) for source in empty}
        for source in empty:
            if seen[source.name]:
                reason = f"no series has a name that is read; the nearest seen: {', '.join(seen[source.name])}"
                self._gap("", "", f"{source.name}: {reason}")
            elif self._named:
                self._gap("", "", f"{source.name}: holds no series")
        if not held and not any(seen.values()) and not self._named:
            self._gap("", "", f"holds no series of {', '.join(source.name for source in empty)}")
        for source in self._sources:
            for prefix in (each for family in source.families for each in family.found(names)):
                named = f"with the prefix {prefix}" if prefix else "without a prefix"
                self._gap("", "", f"{source.name}: series {named} are read, by the shape of their names")

    def _late(self, source: Source, answers: Answers, measure: str, window_s: float) -> dict[str, float]:
        """The share of requests (of tokens: see `MEASURES`) over the objective, by service."""
        rows = answers.get((source.name, measure, window_s), ())
        signal = measure.replace("within", "violation_ratio")
        promised_s = self._promised[_BUCKETS.index(measure)]
        late = {}
        for service, counts in self._counts(source, signal, () if isinstance(rows, str) else rows).items():
            objective_s, whole = promised_s.get(service, math.nan), counts.get(math.inf, 0.0)
            edges = sorted(edge for edge in counts if edge >= objective_s * (1 - 1e-9))
            if not edges or not whole > 0:
                continue
            if edges[0] > objective_s * (1 + 1e-9) and edges[0] < math.inf:
                self._gap(
                    service,
                    signal,
                    f"the objective of {objective_s:g} s is no bucket edge of {source.name}; {edges[0]:g} s is used",
                )
            if math.isnan(counts[edges[0]]):
                continue
            if counts[edges[0]] > whole * _SLACK:
                reason = f"the bucket of {edges[0]:g} s counts {counts[edges[0]]:g}/s of {whole:g}/s requests"
                self._gap(service, signal, f"{source.name}: {reason}; it is unknown")
                continue
            late[service] = max(0.0, 1.0 - counts[edges[0]] / whole)
        return late

    def _counts(self, source: Source, signal: str, rows: Sequence[Series]) -> dict[str, dict[float, float]]:
        """Service -> edge in seconds -> requests/s. An edge with two rows, or with no number, is NaN: unknown."""
        buckets: dict[str, dict[float, float]] = defaultdict(dict)
        for key, same in by_key(source, rows).items():
            service, counts = self.naming.name(key), {}
            for row in same:
                label, value = row.metric.get("le", ""), number(row.value[1])
                edge = number(label) * source.unit_s
                if math.isnan(edge):
                    self._odd(source, service, signal, f"le={shown(label)} is no edge of a bucket", row)
                elif edge in counts:
                    counts[edge] = math.nan
                    self._odd(source, service, signal, f"the bucket le={shown(label)} is there twice", row)
                else:
                    counts[edge] = value if 0.0 <= value <= MOST else math.nan
                    if not 0.0 <= value <= MOST and not math.isnan(value):
                        what = f"the bucket le={shown(label)} is out of range"
                        self._odd(source, service, signal, what, row)
            for edge, value in counts.items():
                buckets[service][edge] = buckets[service].get(edge, 0.0) + value
        return buckets

    def _merged(self, source: Source, measure: str, rows: Sequence[Series]) -> dict[str, float]:
        """Service -> value: the sum over its owners, unknown if a part is, or the largest of them."""
        merged: dict[str, float] = {}
        found, pods = dict(by_key(source, rows)), {}
        if measure == "replicas":  # those of an owner, whatever number of names they serve
            nameless = [key for key in found if not key.given]
            pods = {(key.space, key.owner): self._value(source, measure, found.pop(key)) for key in nameless}
        for key, same in found.items():
            service, value = self.naming.name(key), self._value(source, measure, same)
            if not service:
                continue
            owner = (key.space, key.owner)
            if owner in pods and service == "/".join(owner):
                value, pods[owner] = pods[owner], 0.0
            if measure in ADDITIVE:
                merged[service] = merged.get(service, 0.0) + value
            elif not math.isnan(value):
                merged[service] = max(merged.get(service, value), value)
        return {service: value for service, value in merged.items() if math.isfinite(value)}

    def _value(self, source: Source, measure: str, rows: Sequence[Series]) -> float:
        """The value of one owner. NaN, infinity and contradicting rows are unknown."""
        found = math.nan
        for row in rows:
            service, value = self.naming.name(key_of(source, row)), number(row.value[1])
            if not service and value > 0 and measure != "replicas":
                self._gap("", measure, f"{source.name}: series without a label {' or '.join(source.by)} do not count")
            if not math.isfinite(value):
                continue
            if not 0.0 <= value <= MOST:
                self._odd(source, service, measure, "out of range", row)
            elif math.isnan(found) or found == value:
                found = value
            else:
                self._odd(source, service, measure, "another series of the service has another value", row)
                return math.nan
        return found

    def _odd(self, source: Source, service: str, signal: str, what: str, row: Series) -> None:
        """Name a row that does not count."""
        self._gap(shown(service)[1:-1], signal, f"{source.name}: {what} (value {shown(row.value[1])}); it is unknown")

    def _query(self, source: Source, measure: str, window_s: float) -> list[Series] | str:
        """The answer of one query, or why there is none. Prometheus answers for its own now."""
        return self._answer(source.queries[measure], window_s, f"{source.name}: the query of {measure}", measure)

    def _of_replicas(self, query: str) -> list[Series] | str:
        return self._answer(query, RECENT_S, "the query of the latencies of replicas", "replicas")

    def _answer(self, text: str, window_s: float, what: str, measure: str) -> list[Series] | str:
        window = f"{max(window_s / self._speed, 0.001) * 1000:.0f}ms"
        query = Template(text).substitute(W=window, M=self._matchers)
        try:
            params = {"query": query, "timeout": f"{math.ceil(self._timeout_s)}s"}
            body = get_limited(self._session, f"{self.url}/api/v1/query", self._timeout_s, ANSWER_LIMIT_BYTES, params)
            rows, odd = promql.series_of(body)
        except _BAD as error:
            return reason_of(error)
        if odd:
            self._gap("", measure, f"{what}: {odd}")
        return rows

    def _gap(self, service: str, signal: str, reason: str) -> None:
        self._gaps[service, signal, reason] = Gap(self.name, service, signal, reason)


def _share(known: dict[str, Any], pools: str, services: Iterable[str]) -> None:
    """Copy the joint values of pools to each pool without values of its own."""
    if pools in known:
        each = known.pop(pools)
        for service in services:
            known.setdefault(service, each)


def _source(name: str) -> Source:
    """The row of a source. Raises `InputError` with the nearest name."""
    for source in SOURCES:
        if source.name == name:
            return source
    raise InputError(f"slo.sources: {name!r} is no source; {unknown_name(name, [each.name for each in SOURCES])}")
