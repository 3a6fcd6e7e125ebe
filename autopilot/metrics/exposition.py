"""The text of the metrics: what a scrape gets, and a history of a run for tests and pictures.

A shell calls `Exposition.tick` after each tick and `render` at each scrape, from any thread. The samples of a tick are
computed once: by `prepare`, or at the first scrape after it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Any

from autopilot.core.intake.signals import sees_the_cluster
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Decision, Observation
from autopilot.metrics.cluster_samples import put_cluster
from autopilot.metrics.samples import (
    Labels,
    Moment,
    Pricing,
    Samples,
    Tariff,
    ages_at,
    put_ages,
    put_control,
    put_forecasts,
    put_prices,
    put_recommendations,
)
from autopilot.metrics.table import METRICS
from autopilot.metrics.tally import Histogram, Tally

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

Shown = tuple[float, Mapping[str, float]]
"""Ages of the last tick, and of the newest data by collector."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Counted:
    """Counters and histograms as of one tick."""

    counters: Mapping[str, Mapping[Labels, float]]
    histograms: Mapping[str, Mapping[Labels, Histogram]]


def samples_of(moment: Moment, tariff: Tariff | None = None) -> Samples:
    """All samples of a tick that do not change until the next one. Pure."""
    out = Samples()
    put_control(out, moment)
    put_recommendations(out, moment)
    if sees_the_cluster(moment.observation):
        put_cluster(out, moment.observation, moment.decision, moment.memory, moment.policy)
        put_forecasts(out, moment.observation)
        if tariff is not None:
            put_prices(out, moment.observation, tariff)
    return out


class Exposition:
    """The metrics of one process. `memory` is that with which its controller started; `pricing` is the price file.

    `start_s`: time 0 of the ticks since 1970. None: not known, and the prices are those of now.
    """

    def __init__(
        self,
        memory: ControllerMemory | None,
        version: str,
        pricing: Pricing | None = None,
        start_s: float | None = None,
    ) -> None:
        self._pricing, self._start_s = pricing, start_s
        self._tally, self._version = Tally(memory or ControllerMemory()), version
        self._lock = threading.Lock()
        self._moment: Moment | None = None
        self._counted = Counted({}, {})
        self._samples: Samples | None = None  # of `_moment`, once a scrape has asked

    def tick(
        self,
        observation: Observation,
        decision: Decision,
        memory: ControllerMemory,
        policy: Policy,
        durations_s: Mapping[str, float] | None = None,
        policy_problem: str = "",
        spend_ratios: Mapping[str, float] | None = None,
        budget_ratios: Mapping[str, float] | None = None,
    ) -> None:
        """Take up one tick: `memory` after it, and how long its stages took by the names of `table.STAGES`.

        `policy_problem`: why the source of the policy is not obeyed, "" where it is. `spend_ratios`: the last whole day
        of a tenant / its mean day, by tenant, at most `table.MOST_SPENDERS`; `budget_ratios`: the forecast of its
        month / its budget, likewise.
        """
        self._tally.tick(observation, decision, memory, policy)
        self._tally.stages(durations_s or {})
        counted = Counted(deepcopy(self._tally.counters), deepcopy(self._tally.histograms))
        with self._lock:
            ratios = spend_ratios or {}, budget_ratios or {}
            self._moment = Moment(observation, decision, memory, policy, policy_problem, *ratios)
            self._counted, self._samples = counted, None

    def prepare(self) -> None:
        """Compute the samples of the last tick now, so that the next scrape only writes them."""
        self._prepared()

    def _prepared(self) -> tuple[Samples | None, Moment | None, Counted]:
        """The samples of the last tick, computed on first use; one thread computes them, others wait for it."""
        with self._lock:
            if self._moment is not None and self._samples is None:
                now_s = None if self._start_s is None else self._start_s + self._moment.observation.now_s
                self._samples = samples_of(self._moment, self._pricing.at(now_s) if self._pricing else None)
            return self._samples, self._moment, self._counted

    def samples(
        self,
        now_s: float,
        *,
        leads: bool = True,
        ages: Shown | None = None,
        audit_head: tuple[int, str] | None = None,
        shell: Mapping[str, Mapping[Labels, float]] | None = None,
    ) -> tuple[Samples, Counted]:
        """The samples at `now_s`. `ages`: of the last tick and of the newest data of each collector, by the clock of
        the shell; None: by `now_s`.

        `shell`: counters of the process beside the ticks, by name. `audit_head`: sequence and digest of the last line
        of the audit log. A process that does not lead shows its own state only: the cluster is that of the leader.
        """
        kept, moment, counted = self._prepared() if leads else (None, None, self._counted)
        out = Samples()
        out.values = dict(kept.values) if kept is not None else {}
        given = ages_at(moment.observation, now_s) if ages is None and moment is not None else ages
        put_ages(out, moment, *(given or (nan, {})))
        out.put("leader", float(leads))
        out.put("build_info", 1.0, self._version)
        if audit_head is not None:
            out.put("audit_head", float(audit_head[0]), audit_head[1])
        if shell:
            counted = Counted({**counted.counters, **shell}, counted.histograms)
        return out, counted

    def families(
        self,
        now_s: float,
        *,
        leads: bool = True,
        ages: Shown | None = None,
        audit_head: tuple[int, str] | None = None,
        shell: Mapping[str, Mapping[Labels, float]] | None = None,
    ) -> Iterator[Family]:
        """The metric families at `now_s`, as prometheus-client has them."""
        samples, counted = self.samples(now_s, leads=leads, ages=ages, audit_head=audit_head, shell=shell)
        return families_of([(None, samples, counted)])

    def render(
        self,
        now_s: float,
        *,
        leads: bool = True,
        ages: Shown | None = None,
        audit_head: tuple[int, str] | None = None,
        shell: Mapping[str, Mapping[Labels, float]] | None = None,
    ) -> bytes:
        """The text of a scrape (`CONTENT_TYPE`)."""
        from prometheus_client import generate_latest

        return generate_latest(
            _Registry(self.families(now_s, leads=leads, ages=ages, audit_head=audit_head, shell=shell))
        )


class _Registry:
    """What prometheus-client asks of a registry."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        """The families."""
        return self._families


def families_of(moments: Iterable[tuple[float | None, Samples, Counted]]) -> Iterator[Family]:
    """Families with the samples of one or more moments (time, samples, counters); time None has no timestamp."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    kinds: dict[str, Any] = {
        "gauge": GaugeMetricFamily,
        "counter": CounterMetricFamily,
        "histogram": HistogramMetricFamily,
    }
    found = list(moments)
    for metric in METRICS:
        family = kinds[metric.kind](metric.full_name, metric.meaning, labels=metric.labels)
        for at_s, samples, counted in found:
            if metric.kind == "histogram":
                for labels, histogram in counted.histograms.get(metric.name, {}).items():
                    family.add_metric(_clean(labels), _buckets(histogram), histogram.total, timestamp=at_s)
                continue
            source = counted.counters if metric.kind == "counter" else samples.values
            for labels, value in source.get(metric.name, {}).items():
                family.add_metric(_clean(labels), value, timestamp=at_s)
        if family.samples:
            yield family


def _clean(labels: Labels) -> list[str]:
    """Labels that can be encoded: a broken character becomes `?`. prometheus-client escapes the rest."""
    return [label if label.isascii() else label.encode("utf-8", "replace").decode() for label in labels]


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Cumulative counts by upper bound."""
    bounds, so_far, out = [*(f"{bound:g}" for bound in histogram.bounds), "+Inf"], 0, []
    for bound, count in zip(bounds, histogram.counts, strict=True):
        so_far += count
        out.append((bound, float(so_far)))
    return out


def history_text(moments: Iterable[tuple[float | None, Samples, Counted]]) -> bytes:
    """The samples of many moments in the OpenMetrics format, for `promtool tsdb create-blocks-from openmetrics`."""
    from prometheus_client.openmetrics.exposition import generate_latest

    text: bytes = generate_latest(_Registry(families_of(moments)))  # type: ignore[no-untyped-call]
    return text
