"""The samples of one moment: a pure function of what a tick observed and decided.

`Moment` has the records of the last tick. Samples are by metric name and label values; a value that is not finite is
unknown and has no sample. After a tick without a view of the cluster, nothing about the cluster is exposed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Protocol

import numpy as np

from autopilot.core.capabilities.verbs import OPERATIONS
from autopilot.core.intake.signals import sees_the_cluster
from autopilot.core.model.errors import InputError, invariant
from autopilot.core.model.forecast import REQUESTS
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.modes import Modes
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Code, Decision, Observation, Proposal
from autopilot.core.planning.restraint import is_capped
from autopilot.core.trust.follow_promises import sums_of
from autopilot.explain.proposals import Answer, answer_of, refusing_codes
from autopilot.explain.view import figures_of
from autopilot.metrics.table import BY_NAME, MOST_RECOMMENDATIONS

Labels = tuple[str, ...]

OPEN = frozenset({Answer.RECOMMENDED, Answer.NEEDS_APPROVAL})
"""Answers after which a person may act."""

RELIES_ON_NOTHING = "forecasts relied on"
"""Unit of the verdict of the guard `confidence` on a proposal without a forecast."""


class Tariff(Protocol):
    """What a GPU-hour costs at one moment (`autopilot.metering.prices.Tariff`)."""

    @property
    def currency(self) -> str:
        """Three letters."""
        ...

    def gpu_hour(self, pool: str, model: str) -> float:
        """The list price. Raises `InputError` where there is none."""
        ...


class Pricing(Protocol):
    """A price file (`autopilot.metering.prices.Prices`)."""

    def at(self, moment_s: float | None) -> Tariff:
        """The prices that are valid at a moment since 1970; None: now."""
        ...


@dataclass(frozen=True, slots=True)
class Moment:
    """The last tick. `memory` is that after its decision."""

    observation: Observation
    decision: Decision
    memory: ControllerMemory
    policy: Policy
    policy_problem: str = ""  # why the source of the policy is not obeyed; "" where it is
    spend_ratios: Mapping[str, float] = field(default_factory=dict)  # by tenant: last day / mean day
    budget_ratios: Mapping[str, float] = field(default_factory=dict)  # by tenant: forecast of the month / budget


class Samples:
    """Samples by metric. Only metrics of the table are accepted, with exactly their labels."""

    def __init__(self) -> None:
        self.values: dict[str, dict[Labels, float]] = {}

    def put(self, name: str, value: float, *labels: str) -> None:
        """One sample; a value that is not finite is left out."""
        self._add(name, len(labels), [(labels, value)])

    def column(self, name: str, values: Iterable[float], *labels: Iterable[str]) -> None:
        """Samples of one metric, with a column for each label; values that are not finite are left out."""
        self._add(name, len(labels), zip(zip(*labels, strict=True), values, strict=True))

    def _add(self, name: str, labels: int, samples: Iterable[tuple[Labels, float]]) -> None:
        metric = BY_NAME.get(name)
        invariant(
            metric is not None and len(metric.labels) == labels,
            f"metric {name} with {labels} labels is not in the table",
        )
        of = self.values.setdefault(name, {})
        for key, value in samples:
            if isfinite(value):
                of[key] = float(value)


def put_control(out: Samples, moment: Moment) -> None:
    """Modes, caps and what they are judged by, kill switch, pause, leadership, effects under way, disruptions."""
    observation, memory, policy = moment.observation, moment.memory, moment.policy
    for action in Modes.__dataclass_fields__:
        out.put("action_mode", 1.0, action, str(getattr(policy.modes, action)))
    for action, record in memory.trust.kept_promises.items():
        promised_gpu_s, realised_gpu_s = sums_of(record)
        out.put("action_capped", float(is_capped(memory, action)), action)
        out.put("promise_cases", record.count, action)
        out.put("promised_use_gpu_seconds", promised_gpu_s, action)
        out.put("realised_use_gpu_seconds", realised_gpu_s, action)
    out.put("kill_switch", float(observation.kill_switch or memory.halt.killed))
    out.put("policy_problem", float(bool(moment.policy_problem)))
    out.column("tenant_daily_spend_ratio", moment.spend_ratios.values(), moment.spend_ratios)
    out.column("tenant_budget_ratio", moment.budget_ratios.values(), moment.budget_ratios)
    by_person = bool(memory.halt.paused_reason and memory.halt.paused_by)
    out.put("paused", float(by_person), "person")
    out.put("paused", float(bool(memory.halt.paused_reason) and not by_person), "autopilot")
    out.put("fence", float(memory.fence))
    in_flight = Counter({(kind, "issued"): 0 for kind in OPERATIONS})  # 0 is a value: people wait for it
    in_flight.update((entry.instruction.kind, entry.state) for entry in memory.effects.in_flight.values())
    for labels, count in in_flight.items():
        out.put("effects_in_flight", count, *labels)
    stops = Counter(entry.uid for entry in memory.budget.disrupted)
    out.put("most_stops_of_one_workload", max(stops.values(), default=0))


def put_recommendations(out: Samples, moment: Moment) -> None:
    """Proposals that a person may act on, those with the highest gain first."""
    if not sees_the_cluster(moment.observation):
        return
    decision, policy = moment.decision, moment.policy
    found = [each for each in decision.plan.proposals if answer_of(each, decision.halted) in OPEN]
    out.put("contracts_held", sum(Code.CONTRACT_RATE in refusing_codes(each) for each in decision.plan.proposals))
    counts = dict.fromkeys(Modes.__dataclass_fields__, 0)
    for each in found:
        counts[each.action] = counts.get(each.action, 0) + 1
    if not decision.halted:
        out.column("recommendations", counts.values(), counts)
    shown = {each.recommendation: each for each in found}.values()
    for each in sorted(shown, key=lambda one: (-one.benefit_gpu_s, one.id))[:MOST_RECOMMENDATIONS]:
        figures = figures_of([each])
        mode = str(getattr(policy.modes, each.action, ""))
        words = (each.action, each.kind, each.subject.name, each.tenant, mode, each.reason or each.kind)
        out.put("recommendation_info", 1.0, each.recommendation, *words, confidence_of(each))
        out.put("recommendation_gain_gpu_seconds", figures.gain_gpu_s, each.recommendation)
        out.put("recommendation_cost_gpu_seconds", figures.cost_gpu_s, each.recommendation)
        out.put("recommendation_worst_cost_gpu_seconds", figures.worst_cost_gpu_s, each.recommendation)


def confidence_of(proposal: Proposal) -> str:
    """What a proposal rests on: `measured`, `forecast_proven`, or why its forecast is not reliable."""
    verdict = next((each for each in proposal.verdicts if each.guard == "confidence"), None)
    if verdict is None or verdict.unit == RELIES_ON_NOTHING:
        return "measured"
    return "forecast_proven" if verdict.allowed else str(verdict.code)


def put_prices(out: Samples, observation: Observation, tariff: Tariff) -> None:
    """The price of a GPU-hour of each pool and GPU model that the cluster has."""
    names, nodes = observation.snapshot.names, observation.snapshot.nodes
    found = np.unique(np.stack([nodes.pool, nodes.gpu_model]), axis=1).T.tolist() if len(nodes.pool) else []
    for pool, model in found:
        if pool < 0 or model < 0:
            continue
        labels = names.pools[pool], names.gpu_models[model]
        try:
            out.put("gpu_hour_price", tariff.gpu_hour(*labels), *labels, tariff.currency)
        except InputError:  # `autopilot showback` says which price is missing
            continue


def put_forecasts(out: Samples, observation: Observation) -> None:
    """Demand of services with what earlier forecasts delivered, and the share of jobs with a forecast."""
    for forecast in observation.forecasts.demand:
        if forecast.kind != REQUESTS or not forecast.levels:
            continue
        high = len(forecast.levels) - 1
        levels = {level: forecast.levels[level] for level in {*_median(forecast.levels), high}}
        for at, horizon_s in enumerate(forecast.horizons_s):
            horizon = f"{horizon_s:g}s"
            out.put("forecast_promised_coverage_ratio", forecast.levels[high], horizon)
            for row, service in enumerate(forecast.series):
                for level, quantile in levels.items():
                    value = float(forecast.values[row, at, level])
                    out.put("forecast_requests_per_second", value, service, horizon, f"{quantile:g}")
                if forecast.coverage.size:
                    delivered = float(forecast.coverage[row, at, high])
                    out.put("forecast_delivered_coverage_ratio", delivered, service, horizon)
        if len(forecast.drifting):
            out.column("forecast_drifting", forecast.drifting.tolist(), forecast.series)
    runtimes = observation.forecasts.runtimes
    jobs = observation.snapshot.workloads.service < 0
    if runtimes is not None and len(runtimes.known) == len(jobs) and jobs.any():
        out.put("forecast_runtime_known_ratio", float(runtimes.known[jobs].mean()))


def _median(levels: tuple[float, ...]) -> tuple[int, ...]:
    """The place of the median among `levels`, where there is one."""
    return (levels.index(0.5),) if 0.5 in levels else ()


def put_ages(out: Samples, moment: Moment | None, tick_s: float, collectors_s: Mapping[str, float]) -> None:
    """What grows while nothing happens: the age of the last tick, and of the newest data of each collector."""
    out.column("collector_age_seconds", collectors_s.values(), collectors_s)
    if moment is None:
        return
    out.put("tick_age_seconds", tick_s)
    gaps = dict.fromkeys(collectors_s, 0)
    for gap in moment.observation.gaps:
        gaps[gap.source] = gaps.get(gap.source, 0) + 1
    out.column("collector_gaps", gaps.values(), gaps)


def ages_at(observation: Observation, now_s: float) -> tuple[float, dict[str, float]]:
    """The ages for `put_ages` by the cluster's clock alone, for time that is virtual."""
    found: dict[str, float] = {}
    for view in observation.views:
        found[view.source] = max(found.get(view.source, view.listed_s), view.listed_s)
    telemetry = observation.snapshot.telemetry
    for source in telemetry.sources:
        found.setdefault(source, telemetry.collected_s)
    return now_s - observation.now_s, {source: now_s - at_s for source, at_s in found.items()}
