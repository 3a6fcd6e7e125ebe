"""The content of the dashboards: pages and panels as data. Addresses of pages (uid) never change."""

from __future__ import annotations

from autopilot.alerts.thresholds import THRESHOLDS
from scripts.dashboard_panels import (
    GPU_HOURS,
    GREEN,
    NEUTRAL,
    ORANGE,
    RED,
    Look,
    Page,
    Panel,
    Target,
    Variable,
    above,
    below,
    switch,
)
from scripts.dashboard_words import WHY

C = 'cluster=~"$cluster"'
P, T, S = (f'{C}, {name}=~"${name}"' for name in ("pool", "tenant", "service"))
NO_CONTROLLER = "no data: is the controller scraped, and does it lead?"
NO_SERVICES = "no services"
NO_TOKENS = "no service measures or promises it"
NOTHING_WAITS = "nothing waits"
NO_MEASURE = "not measured: telemetry is missing"
NOTHING_SHARED = "no work holds shares of a GPU"
LEAST = "Unmeasured GPUs count as neither active nor idle, so figures of activity are lower bounds."

CLUSTER = Variable(
    "cluster", "Cluster", "Clusters that this data source has.", "label_values(gpu_autopilot_leader, cluster)"
)
ALERTS = (("Alerts", f'ALERTS{{alertname=~"GPUAutopilot.+", alertstate="firing", severity=~"critical|warning", {C}}}'),)


def chosen(name: str, label: str, metric: str) -> Variable:
    """A choice from a label of a metric."""
    return Variable(name, label, f"Values of the label {name}.", f"label_values({metric}{{{C}}}, {name})")


def by(labels: str, metric: str, matchers: str = C) -> str:
    """A gauge by labels; the maximum, because for a moment two processes may expose it."""
    return f"max by ({labels}) (gpu_autopilot_{metric}{{{matchers}}})"


def top(metric: str) -> str:
    """A gauge of the fleet."""
    return f"max(gpu_autopilot_{metric}{{{C}}})"


def stat(
    title: str,
    description: str,
    unit: str,
    expr: str,
    empty: str = NO_CONTROLLER,
    look: Look = NEUTRAL,
    legend: str = "",
) -> Panel:
    """One number."""
    return Panel("stat", title, description, unit, (Target(expr, legend),), empty, look=look)


def lines(
    title: str,
    description: str,
    unit: str,
    *targets: Target,
    empty: str = NO_CONTROLLER,
    kind: str = "lines",
    look: Look = NEUTRAL,
) -> Panel:
    """Series over time."""
    return Panel(kind, title, description, unit, targets, empty, look=look)


def limit(name: str, colour: str = ORANGE) -> Look:
    """Green below the threshold of an alert."""
    return above((THRESHOLDS[name], colour))


COVERED = below((0.5, ORANGE), (1 - THRESHOLDS["missing_ratio"], GREEN))
"""The share that is measured: an alert fires where too much is missing."""
USED = below((0.3, ORANGE), (0.6, GREEN))
"""SM activity of what is allocated."""
ROOM = Look(((1.0, GREEN),), RED)
"""At least one."""
ZERO_IS_GOOD = above((1.0, ORANGE))
AUTOPILOT = Variable(
    "autopilot_url", "Autopilot", "Address of its API and page, for links.", text="http://localhost:9470"
)

RECOMMENDED = Panel(
    "table",
    "Recommended actions",
    "Open recommendations with their gain, cost and worst-case cost, the reason, and what they rest on. The id links "
    "to the explanation and to the approval.",
    "none",
    (
        Target(
            by("id, action, target, tenant, reason, mode, confidence", "recommendation_info", C),
            "1",
        ),
        Target(f"{by('id', 'recommendation_gain_gpu_seconds', C)} / 3600", "gain"),
        Target(f"{by('id', 'recommendation_cost_gpu_seconds', C)} / 3600", "cost"),
        Target(f"{by('id', 'recommendation_worst_cost_gpu_seconds', C)} / 3600", "worst case"),
    ),
    "no open recommendations",
    join="id",
    links=(
        ("Explain", "${autopilot_url}/#/decisions/${__data.fields.id:percentencode}"),
        ("Approve", "${autopilot_url}/#/recommendations/${__data.fields.id:percentencode}"),
    ),
    units=(("gain", GPU_HOURS), ("cost", GPU_HOURS), ("worst case", GPU_HOURS)),
    columns=(("reason", Look(words=WHY)),),
    names=(("reason", "why"),),
)

MEASURED = f"max(gpu_autopilot_fleet_held_gpus{{{C}}} * gpu_autopilot_fleet_measured_ratio{{{C}}})"
GAP_PRICE = (
    f"sum by (currency) (max by (cluster, pool) (gpu_autopilot_pool_gap_gpus{{{C}}}) * on (cluster, pool) "
    f"group_right () max by (cluster, pool, currency) (gpu_autopilot_gpu_hour_price{{{C}}}))"
)
FLEET = Page(
    "gpu-autopilot-fleet",
    "GPU fleet",
    "Capacity, what is allocated, and what is really used.",
    (
        stat("Capacity", "All GPUs: held, free and out of use.", "none", top("fleet_capacity_gpus")),
        stat("Allocated", "GPUs held by workloads.", "none", top("fleet_held_gpus")),
        stat("Free", "GPUs without work, open to new work.", "none", top("fleet_free_gpus")),
        stat(
            "Out of use",
            "GPUs without work, closed to new work: not healthy, or on a node that is cordoned or not ready.",
            "none",
            top("fleet_out_of_use_gpus"),
            look=ZERO_IS_GOOD,
        ),
        stat(
            "Measured",
            f"The share of the held GPUs with known SM activity. {LEAST}",
            "percentunit",
            top("fleet_measured_ratio"),
            NO_MEASURE,
            COVERED,
        ),
        stat("SM-active", f"GPU equivalents of SM activity. {LEAST}", "none", top("fleet_active_gpus"), NO_MEASURE),
        stat("Gap", f"Held GPUs known to be idle. {LEAST}", "none", top("fleet_gap_gpus"), NO_MEASURE),
        stat(
            "Gap a day",
            "The gap of now over a day, at the list price of each pool; of its dearest GPU model where it has several.",
            "none",
            f"24 * {GAP_PRICE}",
            NO_MEASURE,
            legend="{{currency}}",
        ),
        stat(
            "Widest gang", "The widest gang of whole GPUs that fits now.", "none", top("largest_gang_gpus"), look=ROOM
        ),
        lines(
            "GPUs: capacity, allocated, SM-active",
            "The space between measured and SM-active is reserved and unused capacity.",
            "none",
            Target(top("fleet_capacity_gpus"), "capacity"),
            Target(top("fleet_held_gpus"), "allocated"),
            Target(MEASURED, "measured"),
            Target(top("fleet_active_gpus"), "SM-active"),
            Target(top("fleet_out_of_use_gpus"), "out of use"),
        ),
        lines(
            "Utilization",
            f"Allocation is what most dashboards show; real utilization is SM activity over capacity. {LEAST}",
            "percentunit",
            Target(top("fleet_allocation_ratio"), "allocation"),
            Target(top("fleet_hardware_ratio"), "SM-active / allocated"),
            Target(top("fleet_real_utilization_ratio"), "real utilization"),
            Target(top("fleet_useful_utilization_ratio"), "useful (estimated)"),
            Target(top("fleet_measured_ratio"), "measured"),
        ),
        lines(
            "Measured by pool",
            f"The share of the held GPUs with known SM activity. {LEAST}",
            "percentunit",
            Target(by("pool", "pool_measured_ratio", P), "{{pool}}"),
            empty=NO_MEASURE,
        ),
        lines(
            "Gap by pool",
            f"Held GPUs known to be idle. {LEAST}",
            "none",
            Target(by("pool", "pool_gap_gpus", P), "{{pool}}"),
            empty=NO_MEASURE,
            kind="stacked",
        ),
        lines(
            "Allocation by pool",
            "GPUs allocated over the capacity of the pool.",
            "percentunit",
            Target(by("pool", "pool_allocation_ratio", P), "{{pool}}"),
        ),
        lines(
            "Shared GPUs by pool",
            "GPUs on which several workloads hold shares by time slicing or MPS.",
            "none",
            Target(by("pool", "pool_shared_gpus", P), "{{pool}}"),
            empty=NOTHING_SHARED,
        ),
        lines(
            "Rates on shared GPUs",
            "Mean rate of work on shares over its rate alone: as predicted, and as its programs report their steps.",
            "percentunit",
            Target(by("pool, kind", "pool_shared_rate_ratio", P), "{{pool}} {{kind}}"),
            empty=NOTHING_SHARED,
        ),
        lines(
            "Work slowed by a neighbour",
            "Replicas and gangs that are slower since other work came beside them, by what is known of that work.",
            "none",
            Target(by("pool, state", "pool_disturbed_workloads", P), "{{pool}} {{state}}"),
            empty="No work is slowed by a neighbour.",
        ),
        lines(
            "Slow members of gangs",
            "Members that hold up their gang, and GPUs that were slow in several gangs: test these, or drain them.",
            "none",
            Target(by("pool, kind", "pool_slow_members", P), "{{pool}} {{kind}}"),
            empty="No gang is held up by a member.",
        ),
        RECOMMENDED,
    ),
    (CLUSTER, chosen("pool", "Pool", "gpu_autopilot_pool_capacity_gpus"), AUTOPILOT),
    ALERTS,
)

GAP = (
    f"max by (tenant) (gpu_autopilot_tenant_held_gpus{{{T}}} * "
    f"(gpu_autopilot_tenant_measured_ratio{{{T}}} - gpu_autopilot_tenant_hardware_ratio{{{T}}}))"
)
SHARE = f"{by('tenant', 'tenant_held_gpus', T)} / scalar({top('fleet_capacity_gpus')})"

TENANTS = Page(
    "gpu-autopilot-tenants",
    "GPU tenants",
    "What each tenant holds, uses and waits for; what queues borrow.",
    (
        Panel(
            "table",
            "Tenants",
            f"GPUs held, the measured share, SM activity, the gap, the hoarding score, and GPUs waited for. {LEAST}",
            "none",
            (
                Target(by("tenant", "tenant_held_gpus", T), "held"),
                Target(by("tenant", "tenant_measured_ratio", T), "measured"),
                Target(by("tenant", "tenant_hardware_ratio", T), "SM-active"),
                Target(GAP, "gap"),
                Target(by("tenant", "tenant_hoarding_ratio", T), "hoarding"),
                Target(by("tenant", "tenant_pending_gpus", T), "waiting"),
            ),
            "no tenant holds or waits for GPUs",
            join="tenant",
            units=(("measured", "percentunit"), ("SM-active", "percentunit"), ("hoarding", "percentunit")),
            columns=(("measured", COVERED), ("SM-active", USED), ("hoarding", limit("hoarding_ratio"))),
        ),
        lines(
            "GPUs held", "By tenant.", "none", Target(by("tenant", "tenant_held_gpus", T), "{{tenant}}"), kind="stacked"
        ),
        lines(
            "Gap in GPUs",
            f"Held GPUs known to be idle, by tenant. {LEAST}",
            "none",
            Target(GAP, "{{tenant}}"),
            empty=NO_MEASURE,
            kind="stacked",
        ),
        lines(
            "Share of the fleet",
            "GPUs held by a tenant over the capacity of the fleet.",
            "percentunit",
            Target(SHARE, "{{tenant}}"),
        ),
        lines(
            "Hoarding score",
            "Idle GPUs over GPUs held. A GPU that cannot be judged counts as not idle.",
            "percentunit",
            Target(by("tenant", "tenant_hoarding_ratio", T), "{{tenant}}"),
            empty=NO_MEASURE,
            look=limit("hoarding_ratio"),
        ),
        lines(
            "Daily spending",
            "The charge of the last whole day over the mean of the 30 days before; 1 is as usual. At most 8 tenants, "
            "those above 1.3 first.",
            "percentunit",
            Target(by("tenant", "tenant_daily_spend_ratio", T), "{{tenant}}"),
            empty="fewer than 7 metered days, or no price",
            look=limit("daily_spend_ratio"),
        ),
        lines(
            "Guarantee and borrowed",
            "GPUs that belong to each queue, and those that it holds above that.",
            "none",
            Target(by("queue", "queue_guaranteed_gpus", C), "{{queue}} guaranteed"),
            Target(by("queue", "queue_borrowed_gpus", C), "{{queue}} borrowed"),
        ),
        lines(
            "Borrowed and idle",
            "Borrowed GPUs that do nothing.",
            "none",
            Target(by("queue", "queue_borrowed_idle_gpus", C), "{{queue}}"),
            empty="no queue borrows",
            look=limit("borrowed_idle_gpus"),
        ),
    ),
    (CLUSTER, chosen("tenant", "Tenant", "gpu_autopilot_tenant_held_gpus")),
    ALERTS,
)

READY, NEEDED = (by("service", "service_replicas", f'{S}, state="{state}"') for state in ("ready", "needed"))
INFERENCE = Page(
    "gpu-autopilot-inference",
    "Inference objectives",
    "Latency against the objective, error budget, load with its forecast, replicas and headroom.",
    (
        lines(
            "p99 latency and objective",
            "99th percentile over 5 min, and what the service promises.",
            "s",
            Target(by("service", "service_p99_seconds", S), "{{service}} p99"),
            Target(by("service", "service_objective_seconds", S), "{{service}} objective"),
            empty=NO_SERVICES,
        ),
        lines(
            "First token: p99 and objective",
            "Time from the request to its first token, over 5 min; the objective if the role answers for it.",
            "s",
            Target(by("service", "service_ttft_p99_seconds", S), "{{service}} p99"),
            Target(by("service", "service_ttft_objective_seconds", S), "{{service}} objective"),
            empty=NO_TOKENS,
        ),
        lines(
            "Next token: p99 and objective",
            "Time from one token to the next, over 5 min; the objective if the role answers for it.",
            "s",
            Target(by("service", "service_itl_p99_seconds", S), "{{service}} p99"),
            Target(by("service", "service_itl_objective_seconds", S), "{{service}} objective"),
            empty=NO_TOKENS,
        ),
        lines(
            "Late requests",
            "Largest share of requests over an objective, by window. The error budget is 1 %.",
            "percentunit",
            Target(f"max by (service) (service:gpu_autopilot_late_requests:ratio_5m{{{S}}})", "{{service}} 5 min"),
            Target(f"max by (service) (service:gpu_autopilot_late_requests:ratio_1h{{{S}}})", "{{service}} 1 h"),
            empty=NO_SERVICES,
            look=limit("error_budget_ratio", RED),
        ),
        lines(
            "Load and forecast",
            "Requests per second, and the median and upper forecast of the highest rate within 5 min.",
            "reqps",
            Target(by("service", "service_requests_per_second", S), "{{service}} load"),
            Target(
                f'max by (service, level) (gpu_autopilot_forecast_requests_per_second{{{S}, horizon="300s"}})',
                "{{service}} level {{level}}",
            ),
            empty=NO_SERVICES,
        ),
        lines(
            "Headroom",
            "Replicas that are ready minus those that the load needs. Below 0, requests wait.",
            "none",
            Target(
                f"{READY} - {NEEDED}",
                "{{service}}",
            ),
            empty=NO_SERVICES,
            look=Look(((0.0, GREEN),), RED),
        ),
        lines(
            "Replicas",
            "Present, ready, needed by the autoscaler, and the floor and the ceiling that the autopilot set.",
            "none",
            Target(by("service, state", "service_replicas", S), "{{service}} {{state}}"),
            empty=NO_SERVICES,
        ),
        lines(
            "Waiting requests",
            "Requests in the queues of a service.",
            "none",
            Target(by("service", "service_queued_requests", S), "{{service}}"),
            empty=NO_SERVICES,
        ),
        lines(
            "Coverage",
            "Promised: the highest level of the forecast. Delivered: outcomes of the last week within it.",
            "percentunit",
            Target(by("horizon", "forecast_promised_coverage_ratio", C), "promised {{horizon}}"),
            Target(
                f"min by (service, horizon) (gpu_autopilot_forecast_delivered_coverage_ratio{{{S}}})",
                "{{service}} {{horizon}}",
            ),
            empty="no forecast has outcomes yet",
        ),
        lines(
            "Drift",
            "1 while the errors of a model are out of their usual range.",
            "none",
            Target(by("service", "forecast_drifting", S), "{{service}}"),
            empty="no forecasts of demand",
            look=switch("as usual", "drifting"),
        ),
    ),
    (CLUSTER, chosen("service", "Service", "gpu_autopilot_service_objective_seconds")),
    ALERTS,
)
