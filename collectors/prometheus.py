"""GPU telemetry from a Prometheus that scrapes the exporters.

Prometheus keeps the samples and computes the windows; we query by label. A failed query costs its signal, a failed
source costs the batch: either is a gap with its reason. The mean of a sum (tx + rx) and of a partitioned board is
exact; their maximum is the sum of the parts' maxima, an upper bound, because Prometheus computes it per series.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from autopilot.contract.notes import shown
from autopilot.core.hardware import dcgm
from autopilot.core.intake.silent import nearest, seen
from autopilot.core.model.records import Batch, Errors, Gap
from autopilot.core.model.snapshot import F64
from autopilot.deadline import carried
from collectors import promql
from collectors.attribution import Attribution, Sightings
from collectors.energy import EnergyCounters
from collectors.entities import PROFILED, Entities, dead_counters, gaps_of
from collectors.exporter import check_url, get_limited, http_session, reason_of
from collectors.promerrors import errors_of, uuid_of
from collectors.promjoin import PodJoin
from collectors.promql import Answered, AnswerError, Row, Selection, Site
from collectors.promwindow import WindowAnswer, assemble, prefer_fuller, widen
from collectors.training import ALIKE, CHECKPOINT, PROGRESS, Told, TrainingMetrics

ANSWER_LIMIT_BYTES = 512 * 1024 * 1024
PROBE_S = 300.0
"""How long a detected site is valid."""
COUNT_S = 15.0
"""Time between two questions for the energy counters, and for the errors of GPUs."""
_ENERGY = dcgm.FIELDS[156]
_XID, _FAILED, _PENDING = dcgm.FIELDS[230], dcgm.FIELDS[395], dcgm.FIELDS[396]
LABELS_SEEN_S = 86400.0
"""How far back label styles are searched: at this instant no pod may hold a GPU."""

_ACTIVITY = {number for number, _ in dcgm.ACTIVITY}
_BAD = (OSError, AnswerError, ValueError, LookupError, TypeError)
Query = Callable[[Site, dcgm.Field, str, float, Selection], str]


class PrometheusCollector:
    """Windows of every GPU and MIG instance that a Prometheus knows.

    `headers` carries authentication, `matchers` restricts every query (`{"cluster": "a"}`), `refresh` is the fraction
    of a window for which its answer is reused (0 queries each time). With `joins` it also asks for `sightings`. Raises
    `InputError` when `url` is no http address.
    """

    name = "prometheus"

    def __init__(
        self,
        url: str,
        *,
        headers: dict[str, str] | None = None,
        matchers: Mapping[str, str] | None = None,
        timeout_s: float = 20.0,
        workers: int = 4,
        windows_s: Sequence[float] = dcgm.WINDOWS_S,
        refresh: float = 0.1,
        joins: bool = False,
    ) -> None:
        check_url(url, "prometheus")
        self.url = url.rstrip("/")
        self.windows_s = tuple(windows_s)
        self._matchers = promql.operator_matchers(matchers or {})
        self._timeout_s, self._workers, self._refresh = timeout_s, workers, refresh
        self._session = http_session(workers, headers)
        self._site: Site | None = None
        self._probed_s = float("-inf")
        self._near: dict[tuple[str, ...], tuple[float, str]] = {}  # when it was asked, and the words
        self._unprobed = ""  # the missing part of the last probe
        self._gaps: dict[tuple[str, str, str], Gap] = {}
        self._joins, self._join = joins, PodJoin(self._fetch)
        self._energy, self._counted_s = EnergyCounters(), float("-inf")
        self._errors: Errors | None = None
        self._training = TrainingMetrics(self._fetch, self._matchers)
        self._reset()

    def _reset(self) -> None:
        self._entities = Entities()
        self._windows: dict[float, WindowAnswer] = {}
        self._dead_s = np.empty(0)  # until when the counters of an entity stood at 0 against GPU_UTIL; NaN: never
        self._current: dict[str, str] = {}  # entity -> profile, for series that are alive
        self._whole = False  # a whole answer has said which are
        self._cut = False  # a part of the data is missing from an answer

    def collect(self, now_s: float) -> Batch:
        """Run the queries that are due and return the windows as of `now_s` (seconds since the epoch)."""
        self._gaps = {}
        try:
            site = self._detect(now_s)
        except _BAD as error:
            self._gap("", "", f"cannot be queried: {reason_of(error)}")
            return Batch(self.name, now_s, gaps=tuple(self._gaps.values()))
        if self._joins:
            self._ask_training(now_s)
        if not site.names:
            self._gap("", "", f"holds no DCGM series of the last 30 min{self._nearest(dcgm.ALIKE, now_s)}")
            return Batch(self.name, now_s, gaps=tuple(self._gaps.values()))
        self._targets_down(site, now_s)
        if site.lacks(_XID):
            self._gap("", _XID.signal, f"no series: {_XID.names[0]}, on every GPU")
        if self._joins:
            self._look(site, now_s)
        with ThreadPoolExecutor(self._workers, "promql") as pool:
            self._count(pool, site, now_s)
            newest = self._newest(pool, site, now_s)
            for width in self.windows_s:
                known = self._windows.get(width)
                if known is None or now_s < known.at_s or now_s - known.at_s >= self._refresh * width:
                    self._windows[width] = self._ask(pool, site, width, now_s)
        alive = np.array([entity in self._current for entity in self._entities.ids], bool)
        windows = [self._windows[width] for width in self.windows_s]
        since_s = now_s - widen(self._dead_s, len(alive))
        telemetry, gaps = assemble(self.name, self.windows_s, windows, self._entities, alive, now_s - newest, since_s)
        for gap in gaps:
            self._gap(gap.object_id, gap.signal, gap.reason)
        gaps_found = tuple(self._gaps.values())
        batch = Batch(self.name, now_s, telemetry=telemetry, gaps=gaps_found, errors=self._errors)
        if len(self._entities.ids) > 2 * len(telemetry.entity_ids) + 1000:
            self._reset()  # most entities seen so far have disappeared
        return batch

    def attributions(self, now_s: float) -> tuple[Attribution, ...]:
        """Containers on each entity. Raises the client's errors."""
        return self._join.attributions(self._detect(now_s), now_s)

    def sightings(self) -> Sightings:
        """GPUs and instances with their nodes, and the pods on them, as of the last `collect` with `joins`."""
        return self._join.sightings

    def training(self, now_s: float) -> Mapping[tuple[str, str], Told]:
        """What training programs report of each pod, as of the last `collect` with `joins`."""
        return self._training.told(now_s)

    def counted_w(self, now_s: float) -> dict[str, float]:
        """Mean watts by GPU UUID, by the energy counter; GPUs whose counter tells nothing are not in it."""
        return self._energy.power_w(now_s)

    def _count(self, pool: ThreadPoolExecutor, site: Site, now_s: float) -> None:
        """Read the energy counters, the times of their samples, and the errors of GPUs, every `COUNT_S`."""
        if 0 <= now_s - self._counted_s < COUNT_S:
            return
        self._counted_s = now_s
        for name in site.names_of(_ENERGY):
            queries = (promql.last_query, promql.time_query)
            found = self._run(pool, now_s, [(_ENERGY, query(site, _ENERGY, name, Selection())) for query in queries])
            if len(found) == len(queries):
                values, times = ({uuid_of(row): float(row.value[1]) for row in rows} for _, rows in found)
                energy_mj, _ = dcgm.clean(_ENERGY, np.array(list(values.values()), float))
                at_s = [times.get(uuid, np.nan) for uuid in values]
                self._energy.take(zip(values, at_s, energy_mj.tolist(), strict=True))
        asked = [
            (given, promql.codes_query(site, name))
            for given in (_XID, _FAILED, _PENDING)
            for name in site.names_of(given)
        ]
        asked += [(_XID, promql.counts_query(site, name)) for name in dcgm.XID_COUNTS if name in site.names]
        self._errors = errors_of(self._run(pool, now_s, asked)) if asked else None

    def _look(self, site: Site, now_s: float) -> None:
        """Ask for the nodes of GPUs and the pods on them, if due. A failure is a gap and keeps the last answer."""
        try:
            partial = self._join.ask(site, now_s)
        except _BAD as error:
            self._gap("", "pods", f"GPUs cannot be joined with pods: {reason_of(error)}")
        else:
            if partial:
                self._gap("", "pods", f"partial answer: {partial}; GPUs and pods missing in it keep their last state")

    def _ask_training(self, now_s: float) -> None:
        """Ask for the metrics of training programs; a failure is a gap and keeps the last answer for a while."""
        try:
            self._training.ask(now_s)
        except _BAD as error:
            self._gap("", "last_checkpoint", f"metrics of training programs cannot be read: {reason_of(error)}")
            return
        for metric in self._training.homeless:
            self._gap("", "last_checkpoint", f"series of {metric} without namespace and pod do not count")
        if not self._training.homeless and not self._training.told(now_s) and (near := self._nearest(ALIKE, now_s)):
            self._gap("", "last_checkpoint", f"no training program reports {CHECKPOINT} or {PROGRESS}{near}")

    # --- the site ------------------------------------------------------------------------------

    def _detect(self, now_s: float) -> Site:
        """The site, probed again if it holds no series or is older than PROBE_S. A new style discards the answers.

        A partial probe changes nothing.
        """
        if self._site is None or not self._site.names or not 0 <= now_s - self._probed_s < PROBE_S:
            found, self._unprobed = self._probe(now_s)
            if self._site is None or not self._site.names or not self._unprobed:
                if found != self._site:
                    self._reset()
                self._site = found
            self._probed_s = now_s
        if self._unprobed:
            self._gap("", "", f"partial answer: {self._unprobed}; some series may be missing")
        return self._site

    def _probe(self, now_s: float) -> tuple[Site, str]:
        """The site as it is now, and the missing parts of the answers about it."""
        missing: list[str] = []

        def ask(label: str, match: str, back_s: float) -> list[str]:
            values, gone = self._values(label, match, now_s - back_s, now_s)
            missing.append(gone)
            return values

        longest_s = max(self.windows_s)
        names = ask("__name__", promql.any_of([*dcgm.BY_NAME, *dcgm.XID_COUNTS], self._matchers), longest_s)
        site = Site(frozenset(names), matchers=self._matchers)
        if names:
            recent = partial(ask, match=promql.any_of(names, self._matchers), back_s=longest_s)
            site = Site(
                frozenset(names),
                ("UUID", "uuid") if recent("uuid") else ("UUID",),
                tuple(style for style in promql.STYLES if recent(style.pod, back_s=LABELS_SEEN_S)),
                mig=any(recent("GPU_I_ID")),
                vgpu=any(recent("vgpu")),
                jobs=tuple(recent("job")),
                matchers=self._matchers,
            )
        return site, next(filter(None, missing), "")

    def _nearest(self, parts: tuple[str, ...], now_s: float) -> str:
        """The end of a message with names that contain one of these parts; asked seldom, and "" after a failure."""
        asked_s, words = self._near.get(parts, (float("-inf"), ""))
        if not 0 <= now_s - asked_s < PROBE_S:
            match = promql.any_of([f"(?i).*({'|'.join(parts)}).*"], self._matchers)
            try:
                names, _ = self._values("__name__", match, now_s - max(self.windows_s), now_s)
            except _BAD:
                names = []
            words = seen([shown(each)[1:-1] for each in nearest(names, parts)])
            self._near[parts] = (now_s, words)
        return words

    def _values(self, label: str, match: str, from_s: float, to_s: float) -> tuple[list[str], str]:
        """Values of a label between two times, and the missing part of the answer."""
        params = {"match[]": match, "start": f"{from_s:.3f}", "end": f"{to_s:.3f}"}
        address = f"{self.url}/api/v1/label/{label}/values"
        return promql.values_of(get_limited(self._session, address, self._timeout_s, ANSWER_LIMIT_BYTES, params))

    def _targets_down(self, site: Site, now_s: float) -> None:
        if not site.jobs:
            return
        try:
            names = sorted({row.metric.instance for row in self._fetch(promql.down_query(site), now_s).rows})
        except _BAD as error:
            self._gap("", "", f"cannot determine which targets are down: {reason_of(error)}")
            return
        for gap in gaps_of(self.name, "", "up == 0: its last scrape failed", names):
            self._gap(gap.object_id, gap.signal, gap.reason)

    # --- bulk ----------------------------------------------------------------------------------

    def _fetch(self, query: str, now_s: float) -> Answered:
        params = {"query": query, "time": f"{now_s:.3f}", "timeout": f"{math.ceil(self._timeout_s)}s"}
        address = f"{self.url}/api/v1/query"
        return promql.decode(get_limited(self._session, address, self._timeout_s, ANSWER_LIMIT_BYTES, params))

    def _run(
        self, pool: ThreadPoolExecutor, now_s: float, asked: Iterable[tuple[dcgm.Field, str]]
    ) -> list[tuple[dcgm.Field, list[Row]]]:
        """Answers to (field, query) pairs in their order; a failed one is a gap without rows."""
        pending = [(given, pool.submit(carried(self._fetch, query, now_s))) for given, query in asked]
        answers: list[tuple[dcgm.Field, list[Row]]] = []
        for given, future in pending:
            signal = given.signal
            try:
                rows, warnings, missing = future.result()
            except _BAD as error:
                self._gap("", signal, f"query of {given.names[0]} failed: {reason_of(error)}")
                continue
            for warning in warnings:
                self._gap("", signal, f"partial answer: {warning}")
            self._cut = self._cut or bool(missing)
            answers.append((given, rows))
        return answers

    def _queries(self, site: Site, given: dcgm.Field, query: Query, width: float, shared: bool) -> Iterable[str]:
        levels = (False, True) if site.mig and given.level is not dcgm.Level.BOARD else (False,)
        for name in site.names_of(given):
            for instances in levels:
                yield query(site, given, name, width, Selection(instances, shared))

    def _table(
        self,
        pool: ThreadPoolExecutor,
        site: Site,
        now_s: float,
        fields: Sequence[dcgm.Field],
        query: Query,
        width: float,
        *,
        shared: bool = False,
    ) -> dict[int, F64]:
        """Values by field id, [entities known so far]; the larger of an old and a new name."""
        asked = [(given, text) for given in fields for text in self._queries(site, given, query, width, shared)]
        table: dict[int, F64] = {}
        for given, rows in self._run(pool, now_s, asked):
            columns, numbers = self._columns(rows)
            values = widen(table.get(given.id, np.empty(0)), len(self._entities.ids))
            np.fmax.at(values, columns, numbers)
            table[given.id] = values
        return table

    def _columns(self, rows: list[Row]) -> tuple[list[int], list[float]]:
        """Entity column and number of each series, without instances whose id was reused."""
        known, columns, numbers = self._entities, [], []
        for row in rows:
            labels = row.metric
            uuid = labels.UUID or labels.uuid
            if not uuid:
                continue
            if not labels.GPU_I_ID:
                columns.append(known.board(uuid))
            else:
                alive = self._current.get(dcgm.entity_id(uuid, labels.GPU_I_ID))
                if alive is not None and alive != labels.GPU_I_PROFILE:
                    continue
                columns.append(known.instance(uuid, labels.GPU_I_ID, labels.GPU_I_PROFILE, labels.modelName))
            numbers.append(float(row.value[1]))
        return columns, numbers

    def _newest(self, pool: ThreadPoolExecutor, site: Site, now_s: float) -> F64:
        """Time of the newest sample of SM activity by entity; also learns which instances exist."""
        fields = [dcgm.FIELDS[number] for number, _ in dcgm.ACTIVITY]
        asked = [
            (given, promql.time_query(site, given, name, Selection(instances)))
            for given in fields
            for name in site.names_of(given)
            for instances in ((False, True) if site.mig and given.id != 203 else (False,))
        ]
        self._cut = False
        answers = self._run(pool, now_s, asked)
        current = {
            dcgm.entity_id(uuid_of(row), row.metric.GPU_I_ID): row.metric.GPU_I_PROFILE
            for _, rows in answers
            for row in rows
        }
        if self._cut and not self._whole:  # a board is not known by some of its instances
            current = {entity: profile for entity, profile in current.items() if "/" not in entity}
        self._current = {**self._current, **current} if self._cut else current
        self._whole = self._whole or not self._cut
        newest = np.empty(0)
        for _, rows in answers:
            columns, numbers = self._columns(rows)
            newest = widen(newest, len(self._entities.ids))
            np.fmax.at(newest, columns, numbers)
        recut, self._entities.recut = self._entities.recut, set()
        if recut:
            self._windows.clear()
        return newest

    def _ask(self, pool: ThreadPoolExecutor, site: Site, width: float, now_s: float) -> WindowAnswer:
        """Mean, maximum and count of one window."""
        coarsest = dcgm.ACTIVITY[-1][0]
        fields = [f for f in dcgm.FIELDS.values() if f.signal in dcgm.SIGNALS and f.id != coarsest]
        window = self._ask_fields(pool, site, width, now_s, fields)
        have = [widen(window.mean[n], len(self._entities.ids)) for n, _ in dcgm.ACTIVITY if n in window.mean]
        if not have or np.isnan(np.fmax.reduce(have)).any():  # else the better counters count for all entities
            more = self._ask_fields(pool, site, width, now_s, [dcgm.FIELDS[coarsest]])
            window.mean |= more.mean
            window.maximum |= more.maximum
            window.count |= more.count
        if width == min(self.windows_s):
            self._find_dead(pool, site, width, now_s, window)
        return window

    def _find_dead(
        self, pool: ThreadPoolExecutor, site: Site, width: float, now_s: float, window: WindowAnswer
    ) -> None:
        """Note the entities with counters at 0 in the shortest window while GPU_UTIL shows running kernels."""
        means = {number: column for number, column in window.mean.items() if number in PROFILED}
        if 203 not in means:  # the better counters count for all
            means |= self._table(pool, site, now_s, [dcgm.FIELDS[203]], promql.mean_query, width)
        if 203 in means and len(means) > 1:
            size = len(self._entities.ids)
            cleaned = {
                number: dcgm.clean(dcgm.FIELDS[number], widen(column, size))[0] for number, column in means.items()
            }
            self._dead_s = widen(self._dead_s, size)
            dead = dead_counters(cleaned, self._entities.node)
            self._dead_s[dead] = now_s + width  # until then, a window holds a part of that time

    def _ask_fields(
        self, pool: ThreadPoolExecutor, site: Site, width: float, now_s: float, fields: Sequence[dcgm.Field]
    ) -> WindowAnswer:
        activities = [f for f in fields if f.id in _ACTIVITY]
        ask = partial(self._table, pool, site, now_s)
        window = WindowAnswer(
            now_s,
            ask(fields, promql.mean_query, width),
            ask(fields, promql.max_query, width),
            ask(activities, promql.count_query, width),
        )
        if site.vgpu:
            shared = WindowAnswer(
                now_s,
                ask(fields, promql.mean_query, width, shared=True),
                ask(fields, promql.max_query, width, shared=True),
                ask(activities, promql.count_query, width, shared=True),
            )
            prefer_fuller(window, shared, len(self._entities.ids))
        return window

    def _gap(self, object_id: str, signal: str, reason: str) -> None:
        self._gaps[object_id, signal, reason] = Gap(self.name, object_id, signal, reason)
