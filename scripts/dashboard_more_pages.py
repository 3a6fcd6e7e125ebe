"""The rest of the dashboards: queue, autopilot, job."""

from __future__ import annotations

from scripts.dashboard_pages import (
    ALERTS,
    AUTOPILOT,
    CLUSTER,
    FLEET,
    FRAGMENTATION,
    INFERENCE,
    NOTHING_WAITS,
    RECOMMENDED,
    TENANTS,
    C,
    T,
    by,
    chosen,
    lines,
    stat,
    top,
)
from scripts.dashboard_panels import Page, Panel, Target, Variable

QUEUE = Page(
    "gpu-autopilot-queue",
    "GPU queue",
    "What waits, why, and for how long.",
    (
        stat(
            "Waiting workloads",
            "All pending workloads.",
            "none",
            f"sum(max by (reason) (gpu_autopilot_pending_workloads{{{C}}}))",
        ),
        stat(
            "Waiting GPUs",
            "GPUs that they request.",
            "none",
            f"sum(max by (reason) (gpu_autopilot_pending_gpus{{{C}}}))",
        ),
        stat(
            "Oldest",
            "Age of the oldest pending work that the autopilot may start.",
            "s",
            f"max(gpu_autopilot_tenant_oldest_pending_seconds{{{T}}})",
            NOTHING_WAITS,
        ),
        lines(
            "Waiting GPUs by reason",
            "Reason codes as in docs/output.md.",
            "none",
            Target(by("reason", "pending_gpus", C), "{{reason}}"),
            kind="stacked",
        ),
        lines(
            "Waiting workloads by reason",
            "`proposed`: a start is proposed.",
            "none",
            Target(by("reason", "pending_workloads", C), "{{reason}}"),
            kind="stacked",
        ),
        lines(
            "Oldest by tenant",
            "An alert fires at 4 h.",
            "s",
            Target(by("tenant", "tenant_oldest_pending_seconds", T), "{{tenant}}"),
            empty=NOTHING_WAITS,
        ),
        lines(
            "Waiting GPUs by tenant",
            "GPUs that the pending work of each tenant requests.",
            "none",
            Target(by("tenant", "tenant_pending_gpus", T), "{{tenant}}"),
            empty=NOTHING_WAITS,
            kind="stacked",
        ),
    ),
    (CLUSTER, chosen("tenant", "Tenant", "gpu_autopilot_tenant_held_gpus")),
    ALERTS,
)


def quantile(metric: str, label: str) -> str:
    """The 95th percentile of a histogram by a label."""
    return (
        f"histogram_quantile(0.95, sum by ({label}, le) (rate(gpu_autopilot_{metric}_bucket{{{C}}}[$__rate_interval])))"
    )


def hourly(metric: str, labels: str) -> str:
    """The increase of a counter within an hour."""
    return f"sum by ({labels}) (increase(gpu_autopilot_{metric}{{{C}}}[1h]))"


AUTOPILOT_PAGE = Page(
    "gpu-autopilot-autopilot",
    "Autopilot",
    "Decisions, refusals, effects, coverage and the health of the controller.",
    (
        stat("Leads", "1: a controller leads.", "none", f"sum(gpu_autopilot_leader{{{C}}})"),
        stat("Kill switch", "1: no effect leaves.", "none", top("kill_switch")),
        stat("Paused", "1: by itself or by a person.", "none", top("paused")),
        stat("Policy problem", "1: the policy is gone or invalid.", "none", top("policy_problem")),
        stat("Last tick", "Time since the last decision.", "s", top("tick_age_seconds")),
        stat(
            "Jobs with a forecast",
            "Share of jobs whose run time is forecast.",
            "percentunit",
            top("forecast_runtime_known_ratio"),
            "no jobs",
        ),
        stat(
            "Open recommendations",
            "Proposals that only their mode holds.",
            "none",
            f"sum(max by (action) (gpu_autopilot_recommendations{{{C}}}))",
        ),
        RECOMMENDED,
        lines(
            "Proposals by answer",
            "Within 1 h, counted at each tick.",
            "none",
            Target(hourly("decisions_total", "action, answer"), "{{action}} {{answer}}"),
            empty="no proposals",
            kind="stacked",
        ),
        lines(
            "Refusals by guard",
            "Within 1 h, counted at each tick.",
            "none",
            Target(hourly("refusals_total", "guard, code"), "{{guard}} {{code}}"),
            empty="no guard refused",
            kind="stacked",
        ),
        lines(
            "Ended effects",
            "By operation and result, within 1 h.",
            "none",
            Target(hourly("effects_total", "operation, result"), "{{operation}} {{result}}"),
            empty="no effects yet",
            kind="stacked",
        ),
        lines(
            "Effects in flight",
            "By state.",
            "none",
            Target(by("operation, state", "effects_in_flight", C), "{{operation}} {{state}}"),
            empty="no effect is under way",
        ),
        lines(
            "Promised gain and cost",
            "Of accepted proposals, within 1 h, in GPU-seconds.",
            "s",
            Target(hourly("promised_gain_gpu_seconds_total", "action"), "{{action}} gain"),
            Target(hourly("promised_cost_gpu_seconds_total", "action"), "{{action}} cost"),
            empty="no accepted proposals",
        ),
        lines(
            "Realised gain",
            "Use that finished cases promised and realised (measured use less the measured loss), in GPU-seconds.",
            "s",
            Target(by("action", "promised_use_gpu_seconds"), "{{action}} promised"),
            Target(by("action", "realised_use_gpu_seconds"), "{{action}} realised"),
            empty="no finished cases",
        ),
        lines(
            "Realised share of the promise",
            "Below promises.least_ratio an action may only recommend (capped: 1).",
            "percentunit",
            Target(
                f"{by('action', 'realised_use_gpu_seconds')} / ({by('action', 'promised_use_gpu_seconds')} > 0)",
                "{{action}}",
            ),
            Target(by("action", "action_capped"), "{{action}} capped"),
            empty="no finished cases",
        ),
        lines(
            "Disruptions and lost work",
            "Workloads stopped or moved within 1 h, and the GPU-seconds that stops lost.",
            "none",
            Target(hourly("disruptions_total", "contract"), "contract: {{contract}}"),
            Target(f"increase(gpu_autopilot_lost_gpu_seconds_total{{{C}}}[1h])", "lost GPU-s"),
            empty="nothing was stopped",
        ),
        lines(
            "Duration of effects",
            "95th percentile by operation.",
            "s",
            Target(quantile("effect_duration_seconds", "operation"), "{{operation}}"),
            empty="no effects yet",
        ),
        lines(
            "Duration of ticks",
            "95th percentile by stage.",
            "s",
            Target(quantile("tick_stage_duration_seconds", "stage"), "{{stage}}"),
        ),
        lines(
            "Age of the sources",
            "Age of the newest data of each collector.",
            "s",
            Target(by("collector", "collector_age_seconds", C), "{{collector}}"),
        ),
        lines(
            "Telemetry",
            "GPUs by the counter behind their fresh SM activity.",
            "none",
            Target(by("quality", "telemetry_gpus", C), "{{quality}}"),
            kind="stacked",
        ),
        Panel(
            "table",
            "Modes",
            "How far each action may go by itself.",
            "none",
            (Target(by("action, mode", "action_mode", C), "1"),),
            "no controller leads",
            join="action",
        ),
    ),
    (CLUSTER, AUTOPILOT),
    ALERTS,
)

G = '{namespace=~"$namespace", pod=~"$pod"}'
NO_GPUS = "the pod holds no GPUs that an exporter measures"


def dcgm(title: str, description: str, unit: str, field: str) -> Panel:
    """One counter of the GPUs of a pod."""
    return lines(
        title,
        description,
        unit,
        Target(f"avg by (Hostname, hostname, gpu) ({field}{G})", "{{Hostname}}{{hostname}} {{gpu}}"),
        empty=NO_GPUS,
    )


JOB = Page(
    "gpu-autopilot-job",
    "GPU job",
    "Every GPU of one job, from the exporters: activity, memory, power, and how equal its ranks are.",
    (
        dcgm("SM activity", "Share of cycles in which SMs had work.", "percentunit", "DCGM_FI_PROF_SM_ACTIVE"),
        dcgm(
            "Tensor activity",
            "Share of cycles in which the tensor pipe was active.",
            "percentunit",
            "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        ),
        dcgm(
            "DRAM activity",
            "Share of cycles in which device memory was active.",
            "percentunit",
            "DCGM_FI_PROF_DRAM_ACTIVE",
        ),
        dcgm("Memory in use", "Frame buffer.", "decmbytes", "DCGM_FI_DEV_FB_USED"),
        dcgm("Power", "Power of the board.", "watt", "DCGM_FI_DEV_POWER_USAGE"),
        lines(
            "Imbalance between ranks",
            "Highest minus lowest SM activity of its GPUs: a straggler shows here.",
            "percentunit",
            Target(f"max(DCGM_FI_PROF_SM_ACTIVE{G}) - min(DCGM_FI_PROF_SM_ACTIVE{G})", "max - min"),
            empty=NO_GPUS,
        ),
    ),
    (
        Variable(
            "namespace",
            "Namespace",
            "Namespaces with GPUs.",
            "label_values(DCGM_FI_PROF_SM_ACTIVE, namespace)",
            multi=False,
        ),
        Variable(
            "pod", "Pod", "Pods of the job.", 'label_values(DCGM_FI_PROF_SM_ACTIVE{namespace=~"$namespace"}, pod)'
        ),
    ),
)

PAGES: tuple[Page, ...] = (FLEET, TENANTS, INFERENCE, FRAGMENTATION, QUEUE, AUTOPILOT_PAGE, JOB)
"""All dashboards, in the order of their links."""
