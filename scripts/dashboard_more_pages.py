"""The rest of the dashboards: queue, autopilot, job."""

from __future__ import annotations

from autopilot.alerts.thresholds import THRESHOLDS
from scripts.dashboard_fragmentation import FRAGMENTATION
from scripts.dashboard_pages import (
    ALERTS,
    AUTOPILOT,
    CLUSTER,
    FLEET,
    INFERENCE,
    NOTHING_WAITS,
    RECOMMENDED,
    TENANTS,
    C,
    T,
    by,
    chosen,
    limit,
    lines,
    stat,
    top,
)
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

Q = f'{C}, queue=~"$queue"'


def waited(level: float, of: str = Q) -> str:
    """A quantile of the waits of work started within the shown time, by queue."""
    return (
        f"histogram_quantile({level:g}, sum by (queue, le) (increase(gpu_autopilot_queue_wait_seconds_bucket{{{of}}}"
        "[$__range])))"
    )


def of_range(metric: str, labels: str = "queue", of: str = Q) -> str:
    """The increase of a counter within the shown time."""
    return f"sum by ({labels}) (increase(gpu_autopilot_{metric}{{{of}}}[$__range]))"


WAITS = limit("starving_seconds")
NO_STARTS = "nothing started in this time"
BY_QUEUE = Panel(
    "table",
    "Queues",
    "Of the shown time: starts, their wait from the submission, evictions. Of now: guarantee, limit, borrowed GPUs. "
    "30 queues have waits and evictions of their own, the rest is (other).",
    "none",
    (
        Target(of_range("queue_wait_seconds_count"), "admissions"),
        Target(waited(0.5), "wait p50"),
        Target(waited(0.99), "wait p99"),
        Target(of_range("queue_evictions_total"), "evictions"),
        Target(by("queue", "queue_guaranteed_gpus", Q), "guarantee"),
        Target(by("queue", "queue_limit_gpus", Q), "limit"),
        Target(by("queue", "queue_borrowed_gpus", Q), "borrowed"),
    ),
    "no queues",
    join="queue",
    units=(("wait p50", "s"), ("wait p99", "s")),
    columns=(("wait p99", WAITS),),
)

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
            WAITS,
        ),
        BY_QUEUE,
        lines(
            "Wait by queue",
            "99th percentile and median of the waits of work that started within 1 h.",
            "s",
            Target(waited(0.99).replace("$__range", "1h"), "{{queue}} p99"),
            Target(waited(0.5).replace("$__range", "1h"), "{{queue}} p50"),
            empty=NO_STARTS,
            look=WAITS,
        ),
        lines(
            "Admissions and evictions by queue",
            "Within 1 h.",
            "none",
            Target(of_range("queue_wait_seconds_count").replace("$__range", "1h"), "{{queue}} admissions"),
            Target(of_range("queue_evictions_total").replace("$__range", "1h"), "{{queue}} evictions"),
            empty=NO_STARTS,
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
            look=WAITS,
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
    (
        CLUSTER,
        chosen("tenant", "Tenant", "gpu_autopilot_tenant_held_gpus"),
        chosen("queue", "Queue", "gpu_autopilot_queue_guaranteed_gpus"),
    ),
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
        stat(
            "Leader",
            "Whether a controller leads. Two do for a moment while one takes over.",
            "none",
            f"sum(gpu_autopilot_leader{{{C}}})",
            look=switch("none", "leads", on_is_bad=False),
        ),
        stat("Kill switch", "On: no effect leaves.", "none", top("kill_switch"), look=switch("off", "on")),
        stat("Paused", "By itself or by a person.", "none", top("paused"), look=switch("no", "paused")),
        stat(
            "Policy",
            "Whether it is in force.",
            "none",
            top("policy_problem"),
            look=switch("in force", "gone or invalid"),
        ),
        stat(
            "Last tick",
            "Time since the last decision.",
            "s",
            top("tick_age_seconds"),
            look=above((60.0, ORANGE), (THRESHOLDS["tick_age_seconds"], RED)),
        ),
        stat(
            "Jobs with a forecast",
            "Share of jobs whose run time is forecast.",
            "percentunit",
            top("forecast_runtime_known_ratio"),
            "no jobs",
            below((0.5, ORANGE), (0.8, GREEN)),
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
            "Gain and cost of accepted proposals",
            "Within 1 h.",
            GPU_HOURS,
            Target(f"{hourly('accepted_gain_gpu_seconds_total', 'action')} / 3600", "{{action}} gain"),
            Target(f"{hourly('accepted_cost_gpu_seconds_total', 'action')} / 3600", "{{action}} cost"),
            empty="no accepted proposals",
        ),
        lines(
            "Promised and realised use",
            "Use that finished cases promised and realised (measured use less the measured loss).",
            GPU_HOURS,
            Target(f"{by('action', 'promised_use_gpu_seconds')} / 3600", "{{action}} promised"),
            Target(f"{by('action', 'realised_use_gpu_seconds')} / 3600", "{{action}} realised"),
            empty="no finished cases",
        ),
        lines(
            "Realised use / promised use",
            "An action that realises less than half of its promise may only recommend (capped: 1).",
            "percentunit",
            Target(
                f"{by('action', 'realised_use_gpu_seconds')} / ({by('action', 'promised_use_gpu_seconds')} > 0)",
                "{{action}}",
            ),
            Target(by("action", "action_capped"), "{{action}} capped"),
            empty="no finished cases",
            look=below((0.5, ORANGE), (0.8, GREEN)),
        ),
        lines(
            "Disruptions",
            "Workloads stopped or moved within 1 h.",
            "none",
            Target(hourly("disruptions_total", "contract"), "contract: {{contract}}"),
            empty="nothing was stopped",
        ),
        lines(
            "Lost work",
            "Progress that stops lost within 1 h, where its source reports it.",
            GPU_HOURS,
            Target(f"sum(increase(gpu_autopilot_lost_gpu_seconds_total{{{C}}}[1h])) / 3600", "lost"),
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
            look=limit("collector_age_seconds", RED),
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
            columns=(
                ("mode", Look(words=(("auto", "auto", GREEN), ("approve", "approve", ORANGE), ("off", "off", RED)))),
            ),
        ),
    ),
    (CLUSTER, AUTOPILOT),
    ALERTS,
)

G = '{namespace=~"$namespace", pod=~"$pod"}'
NOT_EXPORTED = "its exporter does not export this; deploy/dcgm-exporter-counters.csv has it"
NO_GPUS = "the pod holds no GPUs that an exporter measures"


GPU = "{{Hostname}}{{hostname}} {{gpu}}"


def per_gpu(field: str) -> str:
    """One counter of the GPUs of a pod."""
    return f"avg by (Hostname, hostname, gpu) ({field}{G})"


def dcgm(
    title: str, description: str, unit: str, field: str, factor: str = "", look: Look = NEUTRAL, empty: str = NO_GPUS
) -> Panel:
    """One counter of the GPUs of a pod; `factor` is multiplied with it."""
    return lines(title, description, unit, Target(f"{per_gpu(field)}{factor}", GPU), empty=empty, look=look)


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
        dcgm(
            "Temperature",
            "Of the GPU. Boards of data centres slow down from about 85 °C on.",
            "celsius",
            "DCGM_FI_DEV_GPU_TEMP",
            look=above((80.0, ORANGE), (85.0, RED)),
            empty=NOT_EXPORTED,
        ),
        dcgm(
            "SM clock",
            "It falls when a board is too hot or at its power limit.",
            "hertz",
            "DCGM_FI_DEV_SM_CLOCK",
            " * 1e6",
            empty=NOT_EXPORTED,
        ),
        lines(
            "NVLink",
            "Bytes sent and received over all NVLinks of a GPU.",
            "Bps",
            Target(per_gpu("DCGM_FI_PROF_NVLINK_TX_BYTES"), f"{GPU} sent"),
            Target(per_gpu("DCGM_FI_PROF_NVLINK_RX_BYTES"), f"{GPU} received"),
            empty=NOT_EXPORTED,
        ),
        dcgm(
            "Last XID",
            "Code of the last XID error of a GPU since its driver was loaded; 0 is none.",
            "none",
            "DCGM_FI_DEV_XID_ERRORS",
            look=Look(((1.0, RED),), GREEN, (("0", "none", GREEN),)),
        ),
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
