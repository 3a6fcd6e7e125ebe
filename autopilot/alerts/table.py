"""The table of alerts.

An expression names thresholds as `<name>`; thresholds.py has their values, and a site may override them. Durations are
those of speed 1. Every alert on a measure needs a present value of it, so that missing data never fires it; the alerts
with `on_missing` are those about missing data. Counters are compared by `increase`, not by `rate`: an increase over a
scaled window is the same at every speed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. `summary` is one fixed sentence, `description` has the labels and numbers."""

    name: str
    group: str
    severity: Literal["critical", "warning", "info", "none"]
    expr: str
    for_s: float
    keep_firing_s: float
    summary: str
    description: str
    dashboard: str  # uid of the dashboard that shows it
    on_missing: bool = False


ALERTS: tuple[Alert, ...] = (
    Alert(
        name="GPUAutopilotClusterFragmented",
        group="shape",
        severity="warning",
        expr="avg_over_time(pool:gpu_autopilot_pending_stranded:ratio[15m]) > <fragmented_ratio> "
        "and pool:gpu_autopilot_pending_stranded:ratio > <fragmented_ratio>",
        for_s=300,
        keep_firing_s=300,
        summary="Work waits for GPUs that are free in the wrong shape.",
        description="In pool {{ $labels.pool }}, {{ $value | humanizePercentage }} of the GPUs are free, wanted by "
        "pending work, and in the wrong shape for it (mean of 15 min).",
        dashboard="gpu-autopilot-fragmentation",
    ),
    Alert(
        name="GPUAutopilotStrandedGPUs",
        group="shape",
        severity="info",
        expr="avg_over_time(pool:gpu_autopilot_fragmentation_ratio:max[1h]) > <expected_fragmented_ratio> "
        "and pool:gpu_autopilot_fragmentation_ratio:max > <expected_fragmented_ratio>",
        for_s=900,
        keep_firing_s=900,
        summary="Most of the free GPUs would not fit the work that is expected.",
        description="In pool {{ $labels.pool }}, {{ $value | humanizePercentage }} of the free GPUs cannot be used by "
        "the work that usually arrives (mean of 1 h).",
        dashboard="gpu-autopilot-fragmentation",
    ),
    Alert(
        name="GPUAutopilotSlowPair",
        group="shape",
        severity="warning",
        expr="max by (cluster, pool) (gpu_autopilot_pool_shared_shortfall_ratio) > <shortfall_ratio>",
        for_s=900,
        keep_firing_s=300,
        summary="Work on a shared GPU runs slower than was promised.",
        description="In pool {{ $labels.pool }}, work on a shared GPU has run for 15 min at a rate below the predicted "
        'one, now by {{ $value | printf "%.2f" }} of its rate alone.',
        dashboard="gpu-autopilot-fleet",
    ),
    Alert(
        name="GPUAutopilotNoisyNeighbour",
        group="shape",
        severity="warning",
        expr="sum by (cluster, pool) (max by (cluster, pool, state) (gpu_autopilot_pool_disturbed_workloads"
        '{state=~"suspected|confirmed"})) >= <disturbed_workloads>',
        for_s=900,
        keep_firing_s=300,
        summary="Work runs slower because of a neighbour, and nothing ends it.",
        description="In pool {{ $labels.pool }}, a neighbour has slowed {{ $value }} workloads for 15 min, and it is "
        "neither cleared nor moved away.",
        dashboard="gpu-autopilot-fleet",
    ),
    Alert(
        name="GPUAutopilotMIGGeometryMismatch",
        group="shape",
        severity="warning",
        expr="avg_over_time((sum by (cluster, pool) (max by (cluster, pool, cause) (gpu_autopilot_stranded_gpus"
        '{demand="pending", cause="mig_geometry"})))[15m:1m]) >= <mismatched_gpus> '
        "and sum by (cluster, pool) (max by (cluster, pool, cause) (gpu_autopilot_stranded_gpus"
        '{demand="pending", cause="mig_geometry"})) >= <mismatched_gpus>',
        for_s=900,
        keep_firing_s=300,
        summary="Work waits for MIG profiles that the free GPUs are not cut into.",
        description='In pool {{ $labels.pool }}, pending work could use {{ $value | printf "%.1f" }} GPUs that are cut '
        "into other MIG profiles (mean of 15 min).",
        dashboard="gpu-autopilot-fragmentation",
    ),
    Alert(
        name="GPUAutopilotReconfigureStuck",
        group="shape",
        severity="warning",
        expr="max by (cluster, node, state) (gpu_autopilot_node_recut_gpus) > 0",
        for_s=900,
        keep_firing_s=120,
        summary="A change of MIG geometry does not end.",
        description="On node {{ $labels.node }}, {{ $value }} GPUs have been in the state {{ $labels.state }} for more "
        "than 15 min. Their free capacity is lost meanwhile.",
        dashboard="gpu-autopilot-fragmentation",
    ),
    Alert(
        name="GPUAutopilotTenantHoarding",
        group="owners",
        severity="warning",
        expr="avg_over_time(tenant:gpu_autopilot_hoarding_ratio:max[30m]) > <hoarding_ratio> "
        "and tenant:gpu_autopilot_hoarding_ratio:max > <hoarding_ratio> "
        "and tenant:gpu_autopilot_idle_gpus:product >= <hoarded_gpus>",
        for_s=600,
        keep_firing_s=600,
        summary="A tenant holds GPUs that do nothing.",
        description="{{ $value | humanizePercentage }} of the GPUs that tenant {{ $labels.tenant }} holds have been "
        "idle (mean of 30 min).",
        dashboard="gpu-autopilot-tenants",
    ),
    Alert(
        name="GPUAutopilotQuotaBorrowedIdle",
        group="owners",
        severity="warning",
        expr="avg_over_time(queue:gpu_autopilot_borrowed_idle_gpus:max[30m]) >= <borrowed_idle_gpus> "
        "and queue:gpu_autopilot_borrowed_idle_gpus:max >= <borrowed_idle_gpus> "
        "and on (cluster) cluster:gpu_autopilot_pending_gpus:sum > 0",
        for_s=600,
        keep_firing_s=600,
        summary="Borrowed GPUs are idle while other work waits.",
        description='Queue {{ $labels.queue }} leaves {{ $value | printf "%.1f" }} borrowed GPUs idle (mean of '
        "30 min) while work of the cluster waits.",
        dashboard="gpu-autopilot-tenants",
    ),
    Alert(
        name="GPUAutopilotPendingGangStarving",
        group="owners",
        severity="warning",
        expr="max by (cluster, tenant) (gpu_autopilot_tenant_oldest_pending_seconds) > <starving_seconds>",
        for_s=300,
        keep_firing_s=300,
        summary="A gang has waited for hours.",
        description="The oldest pending work of tenant {{ $labels.tenant }} has waited for "
        "{{ $value | humanizeDuration }}.",
        dashboard="gpu-autopilot-queue",
    ),
    Alert(
        name="GPUAutopilotGangHalfStarted",
        group="owners",
        severity="warning",
        expr="max by (cluster) (gpu_autopilot_half_started_gpus) > 0",
        for_s=900,
        keep_firing_s=300,
        summary="A gang holds GPUs and waits for the rest of its pods.",
        description="{{ $value }} GPUs are held by gangs that have lacked pods for more than 30 min and show no "
        "activity.",
        dashboard="gpu-autopilot-queue",
    ),
    Alert(
        name="GPUAutopilotQuotaWithoutPods",
        group="owners",
        severity="warning",
        expr='max by (cluster) (gpu_autopilot_pending_gpus{reason="no_pods"}) > 0',
        for_s=900,
        keep_firing_s=300,
        summary="Admitted work holds quota and has no pods.",
        description="Quota of {{ $value }} GPUs has been held by admitted work without pods for more than 15 min.",
        dashboard="gpu-autopilot-queue",
    ),
    Alert(
        name="GPUAutopilotElsewhereNotStarted",
        group="owners",
        severity="warning",
        expr="max by (cluster) (gpu_autopilot_elsewhere_not_started_workloads) > 0",
        for_s=300,
        keep_firing_s=300,
        summary="Work that another cluster should run does not start there.",
        description="MultiKueue has {{ $value }} workloads with quota for more than 30 min, and their status shows no "
        "start in another cluster.",
        dashboard="gpu-autopilot-queue",
    ),
    Alert(
        name="GPUAutopilotDailySpendHigh",
        group="owners",
        severity="warning",
        expr="max by (cluster, tenant) (gpu_autopilot_tenant_daily_spend_ratio) > <daily_spend_ratio>",
        for_s=300,
        keep_firing_s=300,
        summary="A tenant spent far more in a day than it usually does.",
        description="The last whole day of tenant {{ $labels.tenant }} was charged with "
        "{{ $value | humanizePercentage }} of its mean day (30 days before).",
        dashboard="gpu-autopilot-tenants",
    ),
    Alert(
        name="GPUAutopilotBudgetAtRisk",
        group="owners",
        severity="warning",
        expr="max by (cluster, tenant) (gpu_autopilot_tenant_budget_ratio) > <budget_ratio>",
        for_s=300,
        keep_firing_s=300,
        summary="The month of a tenant is forecast to end above its budget.",
        description="The charge of tenant {{ $labels.tenant }} in this month is forecast at "
        "{{ $value | humanizePercentage }} of its budget.",
        dashboard="gpu-autopilot-tenants",
    ),
    Alert(
        name="GPUAutopilotSLOBurnFast",
        group="services",
        severity="critical",
        expr="service:gpu_autopilot_late_requests:ratio_1h > <fast_burn> * <error_budget_ratio> "
        "and service:gpu_autopilot_late_requests:ratio_5m > <fast_burn> * <error_budget_ratio> "
        "and max by (cluster, service) (gpu_autopilot_service_late_requests_per_second) >= 0",
        for_s=120,
        keep_firing_s=300,
        summary="An inference service spends its error budget within two days.",
        description="{{ $value | humanizePercentage }} of the requests of service {{ $labels.service }} were over "
        "their objective within 1 h, and the last 5 min are as bad.",
        dashboard="gpu-autopilot-inference",
    ),
    Alert(
        name="GPUAutopilotSLOBurnSlow",
        group="services",
        severity="warning",
        expr="service:gpu_autopilot_late_requests:ratio_6h > <slow_burn> * <error_budget_ratio> "
        "and service:gpu_autopilot_late_requests:ratio_30m > <slow_burn> * <error_budget_ratio> "
        "and max by (cluster, service) (gpu_autopilot_service_late_requests_per_second) >= 0",
        for_s=900,
        keep_firing_s=900,
        summary="An inference service spends its error budget within five days.",
        description="{{ $value | humanizePercentage }} of the requests of service {{ $labels.service }} were over "
        "their objective within 6 h, and the last 30 min are as bad.",
        dashboard="gpu-autopilot-inference",
    ),
    Alert(
        name="GPUAutopilotForecastDrift",
        group="forecasts",
        severity="info",
        expr="max by (cluster, service) (gpu_autopilot_forecast_drifting) == 1",
        for_s=1800,
        keep_firing_s=600,
        summary="A demand model no longer fits its service.",
        description="The errors of the demand forecast of service {{ $labels.service }} have been out of their usual "
        "range for 30 min. Nothing is scaled ahead for it meanwhile.",
        dashboard="gpu-autopilot-inference",
    ),
    Alert(
        name="GPUAutopilotForecastUncalibrated",
        group="forecasts",
        severity="warning",
        expr="max by (cluster, horizon) (gpu_autopilot_forecast_promised_coverage_ratio) - on (cluster, horizon) "
        "group_right () min by (cluster, horizon, service) (gpu_autopilot_forecast_delivered_coverage_ratio) "
        "> <coverage_slack_ratio>",
        for_s=3600,
        keep_firing_s=900,
        summary="Demand forecasts keep fewer promises than stated.",
        description="The forecast of service {{ $labels.service }} for the next {{ $labels.horizon }} delivers "
        "{{ $value | humanizePercentage }} less coverage than it promises.",
        dashboard="gpu-autopilot-inference",
    ),
    Alert(
        name="GPUAutopilotActionFailureRate",
        group="effects",
        severity="warning",
        expr='sum by (cluster) (increase(gpu_autopilot_effects_total{result="failed"}[1h])) '
        "/ sum by (cluster) (increase(gpu_autopilot_effects_total[1h])) > <failed_ratio> "
        'and sum by (cluster) (increase(gpu_autopilot_effects_total{result="failed"}[1h])) >= <failed_effects>',
        for_s=300,
        keep_firing_s=600,
        summary="Effects on the cluster fail.",
        description="{{ $value | humanizePercentage }} of the effects that ended within 1 h have failed.",
        dashboard="gpu-autopilot-autopilot",
    ),
    Alert(
        name="GPUAutopilotActionOscillation",
        group="effects",
        severity="warning",
        expr="max by (cluster) (gpu_autopilot_most_stops_of_one_workload) >= <stops_of_one_workload>",
        for_s=60,
        keep_firing_s=900,
        summary="One workload is stopped again and again.",
        description="One workload was stopped, shrunk or moved {{ $value }} times within the window of the disruption "
        "budget.",
        dashboard="gpu-autopilot-autopilot",
    ),
    Alert(
        name="GPUAutopilotContractsHeld",
        group="effects",
        severity="warning",
        expr="max by (cluster) (gpu_autopilot_contracts_held) > 0",
        for_s=60,
        keep_firing_s=300,
        summary="Contracts took twice what a waiting workload needs.",
        description="{{ $value }} proposals wait for a person: contracts have stopped work for the same workload "
        "within the hour, and with them it would be more than twice the GPUs that it needs.",
        dashboard="gpu-autopilot-autopilot",
    ),
    Alert(
        name="GPUAutopilotPreemptionWasteHigh",
        group="effects",
        severity="warning",
        expr="sum by (cluster) (increase(gpu_autopilot_lost_gpu_seconds_total[6h])) "
        "/ (21600 * max by (cluster) (avg_over_time(gpu_autopilot_fleet_held_gpus[6h]))) > <lost_ratio> "
        "and max by (cluster) (gpu_autopilot_fleet_held_gpus) > 0",
        for_s=900,
        keep_firing_s=1800,
        summary="Stops cost more progress than they should.",
        description="Stops have lost {{ $value | humanizePercentage }} of the GPU time that was allocated within 6 h.",
        dashboard="gpu-autopilot-autopilot",
    ),
    Alert(
        name="GPUAutopilotActionCapped",
        group="effects",
        severity="warning",
        expr="max by (cluster, action) (gpu_autopilot_action_capped) == 1",
        for_s=60,
        keep_firing_s=300,
        summary="An action realised too little of what it promised.",
        description="The action {{ $labels.action }} only recommends: over its finished cases it realised less than "
        "the policy asks of its promise. It stays so until a person lifts the cap.",
        dashboard="gpu-autopilot-autopilot",
    ),
    Alert(
        name="GPUAutopilotActuatorFrozen",
        group="controller",
        severity="warning",
        expr='max by (cluster) (gpu_autopilot_kill_switch or gpu_autopilot_paused{by="person"}) == 1',
        for_s=86400,
        keep_firing_s=0,
        summary="The autopilot has been switched off for a day.",
        description="The kill switch or the pause of a person has been on for more than 24 h: the autopilot changes "
        "nothing, and keeps no promise.",
        dashboard="gpu-autopilot-autopilot",
    ),
    Alert(
        name="GPUAutopilotPolicyNotInForce",
        group="controller",
        severity="warning",
        expr="max by (cluster) (gpu_autopilot_policy_problem) == 1",
        for_s=300,
        keep_firing_s=300,
        summary="The policy is not in force as it is written.",
        description="For more than 5 min the policy has been gone or invalid, or its modes are restrained: by the mark "
        "of the watchdog (`autopilot rearm`), or because the fence is not in the cluster. The page names the reason.",
        dashboard="gpu-autopilot-autopilot",
    ),
    Alert(
        name="GPUAutopilotPausedItself",
        group="controller",
        severity="warning",
        expr='max by (cluster) (gpu_autopilot_paused{by="autopilot"}) == 1',
        for_s=300,
        keep_firing_s=300,
        summary="The autopilot paused itself after failed effects.",
        description="The autopilot paused itself more than 5 min ago because effects failed. It continues by itself "
        "when the pause has passed.",
        dashboard="gpu-autopilot-autopilot",
    ),
    Alert(
        name="GPUAutopilotSignalQualityDegraded",
        group="telemetry",
        severity="info",
        expr="cluster:gpu_autopilot_telemetry_coarse:ratio > <coarse_ratio>",
        for_s=1800,
        keep_firing_s=600,
        summary="GPUs are measured without SM activity.",
        description="{{ $value | humanizePercentage }} of the GPUs report only a duty cycle or engine "
        "activity. What relies on their activity is estimated.",
        dashboard="gpu-autopilot-autopilot",
    ),
    Alert(
        name="GPUAutopilotSignalMissing",
        group="telemetry",
        severity="warning",
        expr="cluster:gpu_autopilot_telemetry_missing:ratio > <missing_ratio>",
        for_s=600,
        keep_firing_s=300,
        summary="Telemetry of GPUs is missing or stale.",
        description="{{ $value | humanizePercentage }} of the GPUs have no fresh telemetry. Their use is unknown, and "
        "nothing that relies on it is done.",
        dashboard="gpu-autopilot-autopilot",
        on_missing=True,
    ),
    Alert(
        name="GPUAutopilotCollectorStale",
        group="telemetry",
        severity="warning",
        expr="max by (cluster, collector) (gpu_autopilot_collector_age_seconds) > <collector_age_seconds>",
        for_s=120,
        keep_firing_s=120,
        summary="A collector delivers no new data.",
        description="The newest data of collector {{ $labels.collector }} is {{ $value | humanizeDuration }} old. A "
        "tick without fresh lists does nothing.",
        dashboard="gpu-autopilot-autopilot",
        on_missing=True,
    ),
    Alert(
        name="GPUAutopilotWatchRestarted",
        group="telemetry",
        severity="warning",
        expr="sum by (cluster, kind) (increase(gpu_autopilot_watch_restarts_total[15m])) > <watch_restarts>",
        for_s=60,
        keep_firing_s=300,
        summary="A watch of the cluster ends again and again.",
        description="The watch of {{ $labels.kind }} ended by errors that nobody expects and was restarted several "
        "times within 15 min. Between two restarts its list is old.",
        dashboard="gpu-autopilot-autopilot",
    ),
    Alert(
        name="GPUAutopilotControllerSilent",
        group="controller",
        severity="critical",
        expr="max by (cluster) (gpu_autopilot_tick_age_seconds) > <tick_age_seconds> "
        "or absent(gpu_autopilot_tick_age_seconds)",
        for_s=120,
        keep_firing_s=0,
        summary="The controller does not decide.",
        description="No controller has decided recently: the last tick is too long ago, or no leading controller is "
        "scraped. Running work goes on; nothing is started, and no promise is kept.",
        dashboard="gpu-autopilot-autopilot",
        on_missing=True,
    ),
    Alert(
        name="GPUAutopilotNoSingleLeader",
        group="controller",
        severity="critical",
        expr="sum by (cluster) (gpu_autopilot_leader) != 1",
        for_s=120,
        keep_firing_s=0,
        summary="Not exactly one controller leads.",
        description="{{ $value }} controllers lead. With none, nothing is decided; with several, fences hold the "
        "effects of the older ones.",
        dashboard="gpu-autopilot-autopilot",
    ),
    Alert(
        name="GPUAutopilotWatchdog",
        group="controller",
        severity="none",
        expr="vector(1)",
        for_s=0,
        keep_firing_s=0,
        summary="This alert always fires: it shows that alerts arrive.",
        description="If it does not arrive, the way from Prometheus to the receiver is broken.",
        dashboard="gpu-autopilot-autopilot",
        on_missing=True,
    ),
)
