"""One case for each alert: series that fire it, series just under its threshold, and what it then says.

Times are minutes of speed 1. At speed S the same series are S times as dense in time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autopilot.alerts.rules import RuleSettings
from autopilot.alerts.table import ALERTS, Alert

Series = Mapping[str, float]
"""Value by series, the prefix `gpu_autopilot_` left out. A counter (`_total`) grows by its value each minute."""


@dataclass(frozen=True)
class AlertCase:
    """`fires_m`: minutes after which it fires; `resolves_m`: minutes after the end of the cause by which it is over."""

    high: Series
    low: Series
    description: str
    fires_m: int
    resolves_m: int
    labels: Mapping[str, str] = field(default_factory=dict)
    quiet: tuple[Series, ...] = ()  # more series that must not fire it
    also: tuple[tuple[Series, str], ...] = ()  # more series that fire it, with the description
    step_m: int = 1  # between two samples, and two evaluations


POOL = 'stranded_gpus{pool="p", cause="%s", demand="pending"}'
MIG, NODE = POOL % "mig_geometry", POOL % "node_remainder"
CAPACITY = 'pool_capacity_gpus{pool="p"}'
FAILED, DONE = (f'effects_total{{operation="admit", result="{result}"}}' for result in ("failed", "done"))
LATE, REQUESTS = (f'service_{name}_per_second{{service="chat"}}' for name in ("late_requests", "requests"))
PROMISED = 'forecast_promised_coverage_ratio{horizon="300s"}'
DELIVERED = 'forecast_delivered_coverage_ratio{horizon="300s", service="chat"}'
QUALITY = {name: f'telemetry_gpus{{quality="{name}"}}' for name in ("none", "gpu_util", "sm_active")}
HOARDING, HELD = (f'tenant_{name}{{tenant="vision"}}' for name in ("hoarding_ratio", "held_gpus"))
BUDGET = 'tenant_budget_ratio{tenant="vision"}'
SPEND = 'tenant_daily_spend_ratio{tenant="vision"}'
BORROWED, PENDING = 'queue_borrowed_idle_gpus{queue="q"}', 'pending_gpus{reason="capacity"}'
CAPPED = 'action_capped{action="preempt"}'
PERSON, ITSELF = (f'paused{{by="{who}"}}' for who in ("person", "autopilot"))

CASES: dict[str, AlertCase] = {
    "GPUAutopilotClusterFragmented": AlertCase(
        {NODE: 11, CAPACITY: 100},
        {NODE: 9.9, CAPACITY: 100},
        "In pool p, 11% of the GPUs are free, wanted by pending work, and in the wrong shape for it (mean of 15 min).",
        fires_m=6,
        resolves_m=7,
        labels={"pool": "p"},
        quiet=({POOL % "quota": 50, CAPACITY: 100},),
    ),
    "GPUAutopilotStrandedGPUs": AlertCase(
        {'fragmentation_ratio{pool="p"}': 0.6},
        {'fragmentation_ratio{pool="p"}': 0.49},
        "In pool p, 60% of the free GPUs cannot be used by the work that usually arrives (mean of 1 h).",
        fires_m=16,
        resolves_m=17,
        labels={"pool": "p"},
    ),
    "GPUAutopilotSlowPair": AlertCase(
        {'pool_shared_shortfall_ratio{pool="p"}': 0.3},
        {'pool_shared_shortfall_ratio{pool="p"}': 0.15},
        "In pool p, work on a shared GPU has run for 15 min at a rate below the predicted one, now by 0.30 of its rate "
        "alone.",
        fires_m=16,
        resolves_m=7,
        labels={"pool": "p"},
    ),
    "GPUAutopilotNoisyNeighbour": AlertCase(
        {'pool_disturbed_workloads{pool="p",state="suspected"}': 2},
        {'pool_disturbed_workloads{pool="p",state="suspected"}': 0},
        "In pool p, a neighbour has slowed 2 workloads for 15 min, and it is neither cleared nor moved away.",
        fires_m=16,
        resolves_m=7,
        labels={"pool": "p"},
    ),
    "GPUAutopilotMIGGeometryMismatch": AlertCase(
        {MIG: 2},
        {MIG: 0.9},
        "In pool p, pending work could use 2.0 GPUs that are cut into other MIG profiles (mean of 15 min).",
        fires_m=16,
        resolves_m=7,
        labels={"pool": "p"},
    ),
    "GPUAutopilotReconfigureStuck": AlertCase(
        {'node_recut_gpus{node="n1", state="changing"}': 1},
        {'node_recut_gpus{node="n1", state="changing"}': 0},
        "On node n1, 1 GPUs have been in the state changing for more than 15 min. Their free capacity is lost "
        "meanwhile.",
        fires_m=16,
        resolves_m=4,
        labels={"node": "n1", "state": "changing"},
    ),
    "GPUAutopilotTenantHoarding": AlertCase(
        {HOARDING: 0.8, HELD: 10},
        {HOARDING: 0.49, HELD: 10},
        "80% of the GPUs that tenant vision holds have been idle (mean of 30 min).",
        fires_m=11,
        resolves_m=12,
        labels={"tenant": "vision"},
        quiet=({HOARDING: 0.8, HELD: 4}, {HOARDING: 0.8}),
    ),
    "GPUAutopilotQuotaBorrowedIdle": AlertCase(
        {BORROWED: 3, PENDING: 5},
        {BORROWED: 1.9, PENDING: 5},
        "Queue q leaves 3.0 borrowed GPUs idle (mean of 30 min) while work of the cluster waits.",
        fires_m=11,
        resolves_m=12,
        labels={"queue": "q"},
        quiet=({BORROWED: 3, PENDING: 0}, {BORROWED: 3}),
    ),
    "GPUAutopilotPendingGangStarving": AlertCase(
        {'tenant_oldest_pending_seconds{tenant="vision"}': 14460},
        {'tenant_oldest_pending_seconds{tenant="vision"}': 14400},
        "The oldest pending work of tenant vision has waited for 4h 1m 0s.",
        fires_m=6,
        resolves_m=7,
        labels={"tenant": "vision"},
    ),
    "GPUAutopilotGangHalfStarted": AlertCase(
        {"half_started_gpus": 32},
        {"half_started_gpus": 0},
        "32 GPUs are held by gangs that have lacked pods for more than 30 min and show no activity.",
        fires_m=16,
        resolves_m=7,
    ),
    "GPUAutopilotQuotaWithoutPods": AlertCase(
        {'pending_gpus{reason="no_pods"}': 8},
        {'pending_gpus{reason="no_pods"}': 0},
        "Quota of 8 GPUs has been held by admitted work without pods for more than 15 min.",
        fires_m=16,
        resolves_m=7,
        quiet=({'pending_gpus{reason="check"}': 8},),
    ),
    "GPUAutopilotElsewhereNotStarted": AlertCase(
        {"elsewhere_not_started_workloads": 2},
        {"elsewhere_not_started_workloads": 0},
        "MultiKueue has 2 workloads with quota for more than 30 min, and their status shows no start in another "
        "cluster.",
        fires_m=6,
        resolves_m=7,
    ),
    "GPUAutopilotDailySpendHigh": AlertCase(
        {SPEND: 1.5},
        {SPEND: 1.3},
        "The last whole day of tenant vision was charged with 150% of its mean day (30 days before).",
        fires_m=6,
        resolves_m=7,
        labels={"tenant": "vision"},
    ),
    "GPUAutopilotBudgetAtRisk": AlertCase(
        {BUDGET: 1.25},
        {BUDGET: 1},
        "The charge of tenant vision in this month is forecast at 125% of its budget.",
        fires_m=6,
        resolves_m=7,
        labels={"tenant": "vision"},
    ),
    "GPUAutopilotSLOBurnFast": AlertCase(
        {LATE: 1.5, REQUESTS: 10},
        {LATE: 1.43, REQUESTS: 10},
        "15% of the requests of service chat were over their objective within 1 h, and the last 5 min are as bad.",
        fires_m=3,
        resolves_m=12,
        labels={"service": "chat"},
        quiet=({LATE: 0, REQUESTS: 0}, {LATE: 1.5}),
    ),
    "GPUAutopilotSLOBurnSlow": AlertCase(
        {LATE: 0.7, REQUESTS: 10},
        {LATE: 0.59, REQUESTS: 10},
        "7% of the requests of service chat were over their objective within 6 h, and the last 30 min are as bad.",
        fires_m=16,
        resolves_m=47,
        labels={"service": "chat"},
    ),
    "GPUAutopilotForecastDrift": AlertCase(
        {'forecast_drifting{service="chat"}': 1},
        {'forecast_drifting{service="chat"}': 0},
        "The errors of the demand forecast of service chat have been out of their usual range for 30 min. Nothing is "
        "scaled ahead for it meanwhile.",
        fires_m=31,
        resolves_m=12,
        labels={"service": "chat"},
    ),
    "GPUAutopilotForecastUncalibrated": AlertCase(
        {PROMISED: 0.99, DELIVERED: 0.9},
        {PROMISED: 0.99, DELIVERED: 0.945},
        "The forecast of service chat for the next 300s delivers 9% less coverage than it promises.",
        fires_m=61,
        resolves_m=17,
        labels={"service": "chat", "horizon": "300s"},
        quiet=({PROMISED: 0.99}, {DELIVERED: 0.1}),
    ),
    "GPUAutopilotActionFailureRate": AlertCase(
        {FAILED: 1, DONE: 2},
        {FAILED: 1, DONE: 5},
        "33.33% of the effects that ended within 1 h have failed.",
        fires_m=20,
        resolves_m=75,
        quiet=({FAILED: 0.05, DONE: 0},),
    ),
    "GPUAutopilotActionOscillation": AlertCase(
        {"most_stops_of_one_workload": 3},
        {"most_stops_of_one_workload": 2},
        "One workload was stopped, shrunk or moved 3 times within the window of the disruption budget.",
        fires_m=2,
        resolves_m=17,
    ),
    "GPUAutopilotPreemptionWasteHigh": AlertCase(
        {"lost_gpu_seconds_total": 600, "fleet_held_gpus": 100},
        {"lost_gpu_seconds_total": 170, "fleet_held_gpus": 100},
        "Stops have lost 10% of the GPU time that was allocated within 6 h.",
        fires_m=400,
        resolves_m=400,
        step_m=10,
        quiet=({"lost_gpu_seconds_total": 600},),
    ),
    "GPUAutopilotContractsHeld": AlertCase(
        {"contracts_held": 1},
        {"contracts_held": 0},
        "1 proposals wait for a person: contracts have stopped work for the same workload within the hour, and with "
        "them it would be more than twice the GPUs that it needs.",
        fires_m=2,
        resolves_m=7,
    ),
    "GPUAutopilotActionCapped": AlertCase(
        {CAPPED: 1},
        {CAPPED: 0},
        "The action preempt only recommends: over its finished cases it realised less than the policy asks of its "
        "promise. It stays so until a person lifts the cap.",
        fires_m=2,
        resolves_m=7,
        labels={"action": "preempt"},
    ),
    "GPUAutopilotActuatorFrozen": AlertCase(
        {"kill_switch": 1, PERSON: 0},
        {"kill_switch": 0, PERSON: 0},
        "The kill switch or the pause of a person has been on for more than 24 h: the autopilot changes nothing, and "
        "keeps no promise.",
        fires_m=1470,
        resolves_m=30,
        step_m=30,
        quiet=({"kill_switch": 0, ITSELF: 1},),
    ),
    "GPUAutopilotPolicyNotInForce": AlertCase(
        {"policy_problem": 1},
        {"policy_problem": 0},
        "For more than 5 min the policy has been gone or invalid, or its modes are restrained: by the mark of the "
        "watchdog (`autopilot rearm`), or because the fence is not in the cluster. The page names the reason.",
        fires_m=6,
        resolves_m=6,
    ),
    "GPUAutopilotPausedItself": AlertCase(
        {ITSELF: 1},
        {ITSELF: 0},
        "The autopilot paused itself more than 5 min ago because effects failed. It continues by itself when the pause "
        "has passed.",
        fires_m=6,
        resolves_m=7,
        quiet=({PERSON: 1},),
    ),
    "GPUAutopilotSignalQualityDegraded": AlertCase(
        {QUALITY["gpu_util"]: 20, QUALITY["sm_active"]: 80, QUALITY["none"]: 0},
        {QUALITY["gpu_util"]: 9, QUALITY["sm_active"]: 91, QUALITY["none"]: 0},
        "20% of the GPUs report only a duty cycle or engine activity. What relies on their activity is estimated.",
        fires_m=31,
        resolves_m=12,
        quiet=(
            {QUALITY["gpu_util"]: 0, QUALITY["sm_active"]: 0, QUALITY["none"]: 100},
            {QUALITY["gpu_util"]: 9, QUALITY["sm_active"]: 9, QUALITY["none"]: 82},
        ),
    ),
    "GPUAutopilotSignalMissing": AlertCase(
        {QUALITY["none"]: 20, QUALITY["sm_active"]: 80},
        {QUALITY["none"]: 9, QUALITY["sm_active"]: 91},
        "20% of the GPUs have no fresh telemetry. Their use is unknown, and nothing that relies on it is done.",
        fires_m=11,
        resolves_m=7,
    ),
    "GPUAutopilotCollectorStale": AlertCase(
        {'collector_age_seconds{collector="dcgm"}': 301},
        {'collector_age_seconds{collector="dcgm"}': 300},
        "The newest data of collector dcgm is 5m 1s old. A tick without fresh lists does nothing.",
        fires_m=3,
        resolves_m=4,
        labels={"collector": "dcgm"},
    ),
    "GPUAutopilotWatchRestarted": AlertCase(
        {'watch_restarts_total{kind="jobs.batch"}': 1},
        {'watch_restarts_total{kind="jobs.batch"}': 0.1},
        "The watch of jobs.batch ended by errors that nobody expects and was restarted several times within 15 min. "
        "Between two restarts its list is old.",
        fires_m=5,
        resolves_m=21,
        labels={"kind": "jobs.batch"},
    ),
    "GPUAutopilotControllerSilent": AlertCase(
        {"tick_age_seconds": 301},
        {"tick_age_seconds": 300},
        (
            silent := "No controller has decided recently: the last tick is too long ago, or no leading controller is "
            "scraped. Running work goes on; nothing is started, and no promise is kept."
        ),
        fires_m=3,
        resolves_m=1,
        also=(({}, silent),),
    ),
    "GPUAutopilotNoSingleLeader": AlertCase(
        {'leader{pod="a"}': 0, 'leader{pod="b"}': 0},
        {'leader{pod="a"}': 1, 'leader{pod="b"}': 0},
        "0 controllers lead. With none, nothing is decided; with several, fences hold the effects of the older ones.",
        fires_m=3,
        resolves_m=1,
        also=(
            (
                {'leader{pod="a"}': 1, 'leader{pod="b"}': 1},
                "2 controllers lead. With none, nothing is decided; with several, fences hold the effects of the older "
                "ones.",
            ),
        ),
    ),
    "GPUAutopilotWatchdog": AlertCase(
        {}, {}, "If it does not arrive, the way from Prometheus to the receiver is broken.", fires_m=1, resolves_m=0
    ),
}


def alert_of(name: str) -> Alert:
    """The row of the table."""
    return next(alert for alert in ALERTS if alert.name == name)


def promtool_tests(name: str, settings: RuleSettings) -> list[dict[str, Any]]:
    """Test groups of promtool: fires, stays quiet just under, stays quiet on gaps, resolves."""
    case, alert = CASES[name], alert_of(name)
    kit = _Kit(alert, case, settings)
    tests = [kit.fires(case.high, case.description), *(kit.fires(each, words) for each, words in case.also)]
    if case.high:
        tests += [kit.stays_quiet(case.low), kit.fires_not_before(), kit.resolves()]
        tests += [kit.stays_quiet(each) for each in case.quiet]
    if not alert.on_missing:
        tests += [kit.gap(), kit.stays_quiet({})]
    return tests


@dataclass(frozen=True)
class _Kit:
    alert: Alert
    case: AlertCase
    settings: RuleSettings

    def _group(self, values: Mapping[str, str], at_m: int, expected: list[dict[str, Any]]) -> dict[str, Any]:
        minute_s = 60.0 / self.settings.speed
        return {
            "interval": f"{self.case.step_m * minute_s:g}s",
            "input_series": [{"series": f"gpu_autopilot_{name}", "values": text} for name, text in values.items()],
            "alert_rule_test": [
                {"eval_time": f"{at_m * minute_s:g}s", "alertname": self.alert.name, "exp_alerts": expected}
            ],
        }

    def _expected(self, description: str) -> list[dict[str, Any]]:
        base = self.settings
        annotations = {
            "summary": self.alert.summary,
            "description": description,
            "runbook_url": f"{base.runbook_base}/{self.alert.name}.md",
            "dashboard_url": f"{base.dashboard_base}/{self.alert.dashboard}",
        }
        labels = {**self.case.labels, "severity": self.alert.severity}
        return [{"exp_labels": labels, "exp_annotations": annotations}]

    def _steady(self, name: str, value: float, minutes: int) -> str:
        """Values in promtool's notation: a gauge stays, a counter grows."""
        steps = minutes // self.case.step_m + 1
        grows = name.partition("{")[0].endswith("_total")
        return f"0+{value * self.case.step_m:g}x{steps}" if grows else f"{value:g}+0x{steps}"

    def _for(self, series: Series, minutes: int) -> dict[str, str]:
        return {name: self._steady(name, value, minutes) for name, value in series.items()}

    def fires(self, series: Series, description: str) -> dict[str, Any]:
        """Constant for as long as it takes."""
        return self._group(self._for(series, self.case.fires_m), self.case.fires_m, self._expected(description))

    def fires_not_before(self) -> dict[str, Any]:
        """A step before its `for` has passed it is quiet."""
        at_m = max(int(self.alert.for_s / 60) - self.case.step_m, 0)
        return self._group(self._for(self.case.high, at_m), at_m, [])

    def stays_quiet(self, series: Series) -> dict[str, Any]:
        """Long enough to fire, and not high enough; or not there at all."""
        return self._group(self._for(series, self.case.fires_m), self.case.fires_m, [])

    def gap(self) -> dict[str, Any]:
        """A high sample, then a scrape without it (which marks the series as stale), and none after it."""
        values = {name: f"{value:g} stale _x{self.case.fires_m}" for name, value in self.case.high.items()}
        return self._group(values, self.case.fires_m, [])

    def resolves(self) -> dict[str, Any]:
        """The cause ends; after the window and `keep_firing_for` the alert is over."""
        case, end_m = self.case, self.case.fires_m + self.case.resolves_m
        values = {}
        for name, value in case.high.items():
            then = self._steady(name, case.low[name], case.resolves_m)
            if name.partition("{")[0].endswith("_total"):  # the counter stands still
                then = f"{value * case.fires_m:g}+0x{case.resolves_m // case.step_m + 1}"
            values[name] = f"{self._steady(name, value, case.fires_m - case.step_m)} {then}"
        return self._group(values, end_m, [])
