"""Columns of pods and of what makes pods."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from apiserver.tables.columns import AGE, AGE_TEXT, NAME, Column, Printer, age, short_duration, since

Obj = dict[str, Any]
NONE = "<none>"

CONTAINERS = Column("Containers", "Names of each container in the template.", priority=1)
IMAGES = Column("Images", "Images referenced by each container in the template.", priority=1)
SELECTOR_TEXT = "Label selector for existing pods"


def _template(obj: Obj) -> list[str]:
    """Names and images of the containers of the pod template, and the selector."""
    spec = obj.get("spec") or {}
    containers = ((spec.get("template") or {}).get("spec") or {}).get("containers") or []
    names = ",".join(each.get("name", "") for each in containers)
    images = ",".join(each.get("image", "") for each in containers)
    return [names, images, selector_text(spec.get("selector"))]


def selector_text(selector: Any) -> str:
    """A label selector on one line; `<none>` for one that selects nothing."""
    if not selector:
        return NONE
    if "matchLabels" not in selector and "matchExpressions" not in selector:
        return ",".join(f"{key}={selector[key]}" for key in sorted(selector))
    parts = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for each in selector.get("matchExpressions") or []:
        key, values = each["key"], ",".join(sorted(each.get("values") or []))
        parts.append(
            {
                "In": f"{key} in ({values})",
                "NotIn": f"{key} notin ({values})",
                "Exists": key,
                "DoesNotExist": f"!{key}",
            }[each["operator"]]
        )
    return ",".join(parts) or NONE


# --- pods ---------------------------------------------------------------------------------------

POD_COLUMNS = (
    NAME,
    Column("Ready", "The aggregate readiness state of this pod for accepting traffic."),
    Column("Status", "The aggregate status of the containers in this pod."),
    Column(
        "Restarts",
        "The number of times the containers in this pod have been restarted and when the last container in this pod "
        "has restarted.",
    ),
    AGE,
    Column("IP", "podIP address allocated to the pod. Routable at least within the cluster. Empty if not yet "
           "allocated.", priority=1),
    Column("Node", "NodeName indicates in which node this pod is scheduled. If empty, this pod is a candidate for "
           "scheduling by the scheduler defined in schedulerName. Once this field is set, the kubelet for this node "
           "becomes responsible for the lifecycle of this pod. This field should not be used to express a desire for "
           "the pod to be scheduled on a specific node. "
           "https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#nodename", priority=1),
    Column("Nominated Node", "nominatedNodeName is set only when this pod preempts other pods on the node, but it "
           "cannot be scheduled right away as preemption victims receive their graceful termination periods. This "
           "field does not guarantee that the pod will be scheduled on this node. Scheduler may decide to place the "
           "pod elsewhere if other nodes become available sooner. Scheduler may also decide to give the resources on "
           "this node to a higher priority pod that is created after preemption. As a result, this field may be "
           "different than PodSpec.nodeName when the pod is scheduled.", priority=1),
    Column("Readiness Gates", "If specified, all readiness gates will be evaluated for pod readiness. A pod is ready "
           "when all its containers are ready AND all conditions specified in the readiness gates have status equal "
           'to "True" More info: https://git.k8s.io/enhancements/keps/sig-network/580-pod-readiness-gates',
           priority=1),
)  # fmt: skip


def _pod_cells(pod: Obj, now: datetime) -> list[Any]:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    states = status.get("containerStatuses") or []
    total = len(spec.get("containers") or [])
    restarts = str(sum(each.get("restartCount", 0) for each in states))
    ended = [_last_end(each) for each in states if each.get("restartCount")]
    if any(ended):
        restarts += f" ({since(max(filter(None, ended)), now)} ago)"
    ready = sum(1 for each in states if each.get("ready") and "running" in (each.get("state") or {}))
    gates = spec.get("readinessGates") or []
    met = {each["type"] for each in status.get("conditions") or [] if each["status"] == "True"}
    gates_text = f"{sum(1 for each in gates if each['conditionType'] in met)}/{len(gates)}" if gates else NONE
    return [
        pod["metadata"]["name"],
        f"{ready}/{total}",
        pod_status(pod),
        restarts,
        age(pod, now),
        status.get("podIP") or NONE,
        spec.get("nodeName") or NONE,
        status.get("nominatedNodeName") or NONE,
        gates_text,
    ]


def _last_end(state: Obj) -> str:
    return str(((state.get("lastState") or {}).get("terminated") or {}).get("finishedAt") or "")


def pod_status(pod: Obj) -> str:
    """The word under STATUS: the phase, or what is more telling about the containers."""
    status = pod.get("status") or {}
    reason = status.get("reason") or status.get("phase") or "Unknown"
    for each in status.get("conditions") or []:
        if each["type"] == "PodScheduled" and each.get("reason") == "SchedulingGated":
            reason = "SchedulingGated"
    running = False
    for each in reversed(status.get("containerStatuses") or []):
        state = each.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
        if waiting.get("reason"):
            reason = waiting["reason"]
        elif "terminated" in state:
            reason = ended.get("reason") or _exit_text(ended)
        elif each.get("ready") and "running" in state:
            running = True
    if reason == "Completed" and running:
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or [])
        reason = "Running" if ready else "NotReady"
    if pod["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            return "Unknown"
        if status.get("phase") not in {"Succeeded", "Failed"}:
            return "Terminating"
    return str(reason)


def _exit_text(ended: Obj) -> str:
    return f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"


# --- jobs ---------------------------------------------------------------------------------------

JOB_COLUMNS = (
    NAME,
    Column("Status", "Status of the job."),
    Column("Completions", "Completions of the job."),
    Column("Duration", "Time required to complete the job."),
    AGE,
    CONTAINERS,
    IMAGES,
    Column("Selector", SELECTOR_TEXT, priority=1),
)


def _job_cells(job: Obj, now: datetime) -> list[Any]:
    spec, status = job.get("spec") or {}, job.get("status") or {}
    done = status.get("succeeded", 0)
    wanted, width = spec.get("completions"), spec.get("parallelism", 1)
    completions = f"{done}/{wanted}" if wanted is not None else (f"{done}/1 of {width}" if width > 1 else f"{done}/1")
    duration = ""
    if status.get("startTime"):
        end = datetime.fromisoformat(status["completionTime"]) if status.get("completionTime") else now
        duration = short_duration((end - datetime.fromisoformat(status["startTime"])).total_seconds())
    names, images, selector = _template(job)
    name = job["metadata"]["name"]
    return [name, job_status(job), completions, duration, age(job, now), names, images, selector]


def job_status(job: Obj) -> str:
    """The word under STATUS."""
    true = {each["type"] for each in (job.get("status") or {}).get("conditions") or [] if each["status"] == "True"}
    for condition in ("Complete", "Failed"):
        if condition in true:
            return condition
    if job["metadata"].get("deletionTimestamp"):
        return "Terminating"
    for condition in ("Suspended", "FailureTarget", "SuccessCriteriaMet"):
        if condition in true:
            return condition
    return "Running"


CRON_COLUMNS = (
    NAME,
    Column("Schedule", "The schedule in Cron format, see https://en.wikipedia.org/wiki/Cron."),
    Column("Timezone", "The time zone name for the given schedule."),
    Column("Suspend", "Whether subsequent executions are suspended."),
    Column("Active", "The number of running jobs.", type="integer"),
    Column("Last Schedule", "When the job was last scheduled."),
    AGE,
    CONTAINERS,
    IMAGES,
    Column("Selector", SELECTOR_TEXT, priority=1),
)


def _cron_cells(cron: Obj, now: datetime) -> list[Any]:
    spec, status = cron.get("spec") or {}, cron.get("status") or {}
    last = status.get("lastScheduleTime")
    return [
        cron["metadata"]["name"],
        spec.get("schedule", ""),
        spec.get("timeZone") or NONE,
        "True" if spec.get("suspend") else "False",
        len(status.get("active") or []),
        since(last, now) if last else NONE,
        age(cron, now),
        *_template(spec.get("jobTemplate") or {}),
    ]


# --- sets ---------------------------------------------------------------------------------------

DEPLOYMENT_COLUMNS = (
    NAME,
    Column("Ready", "Number of the pod with ready state"),
    Column("Up-to-date", "Total number of non-terminating pods targeted by this deployment that have the desired "
           "template spec."),
    Column("Available", "Total number of available non-terminating pods (ready for at least minReadySeconds) targeted "
           "by this deployment."),
    AGE,
    CONTAINERS,
    IMAGES,
    Column("Selector", SELECTOR_TEXT, priority=1),
)  # fmt: skip


def _deployment_cells(obj: Obj, now: datetime) -> list[Any]:
    status = obj.get("status") or {}
    wanted = (obj.get("spec") or {}).get("replicas", 1)
    return [
        obj["metadata"]["name"],
        f"{status.get('readyReplicas', 0)}/{wanted}",
        str(status.get("updatedReplicas", 0)),
        str(status.get("availableReplicas", 0)),
        age(obj, now),
        *_template(obj),
    ]


REPLICA_SET_COLUMNS = (
    NAME,
    Column("Desired", "Replicas is the number of desired pods.", type="integer"),
    Column("Current", "Replicas is the most recently observed number of non-terminating pods.", type="integer"),
    Column("Ready", "The number of non-terminating pods targeted by this ReplicaSet with a Ready Condition.",
           type="integer"),
    AGE,
    CONTAINERS,
    IMAGES,
    Column("Selector", SELECTOR_TEXT, priority=1),
)  # fmt: skip


def _replica_set_cells(obj: Obj, now: datetime) -> list[Any]:
    status = obj.get("status") or {}
    counts = [(obj.get("spec") or {}).get("replicas", 1), status.get("replicas", 0), status.get("readyReplicas", 0)]
    return [obj["metadata"]["name"], *counts, age(obj, now), *_template(obj)]


STATEFUL_SET_COLUMNS = (
    NAME,
    Column("Ready", "Number of the pod with ready state"),
    AGE,
    CONTAINERS,
    IMAGES,
)


def _stateful_set_cells(obj: Obj, now: datetime) -> list[Any]:
    ready = (obj.get("status") or {}).get("readyReplicas", 0)
    wanted = (obj.get("spec") or {}).get("replicas", 1)
    return [obj["metadata"]["name"], f"{ready}/{wanted}", age(obj, now), *_template(obj)[:2]]


DAEMON_SET_COLUMNS = (
    NAME,
    *(Column(name, type="integer") for name in ("Desired", "Current", "Ready", "Up-to-date", "Available")),
    Column("Node Selector"),
    AGE,
    CONTAINERS,
    IMAGES,
    Column("Selector", SELECTOR_TEXT, priority=1),
)


def _daemon_set_cells(obj: Obj, now: datetime) -> list[Any]:
    status, spec = obj.get("status") or {}, obj.get("spec") or {}
    names = (
        "desiredNumberScheduled",
        "currentNumberScheduled",
        "numberReady",
        "updatedNumberScheduled",
        "numberAvailable",
    )
    nodes = ((spec.get("template") or {}).get("spec") or {}).get("nodeSelector")
    counts = [status.get(name, 0) for name in names]
    return [obj["metadata"]["name"], *counts, selector_text(nodes), age(obj, now), *_template(obj)]


AUTOSCALER_COLUMNS = (
    NAME,
    Column("Reference"),
    Column("Targets"),
    Column("MinPods"),
    Column("MaxPods", type="integer"),
    Column("Replicas", type="integer"),
    Column("Age", AGE_TEXT),
)


def _autoscaler_cells(obj: Obj, now: datetime) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    target = spec.get("scaleTargetRef") or {}
    return [
        obj["metadata"]["name"],
        f"{target.get('kind', '')}/{target.get('name', '')}",
        "<unknown>",
        str(spec.get("minReplicas", 1)),
        spec.get("maxReplicas", 0),
        status.get("currentReplicas", 0),
        age(obj, now),
    ]


PRINTERS = {
    "pods": Printer(POD_COLUMNS, _pod_cells),
    "jobs.batch": Printer(JOB_COLUMNS, _job_cells),
    "cronjobs.batch": Printer(CRON_COLUMNS, _cron_cells),
    "deployments.apps": Printer(DEPLOYMENT_COLUMNS, _deployment_cells),
    "replicasets.apps": Printer(REPLICA_SET_COLUMNS, _replica_set_cells),
    "replicationcontrollers": Printer(REPLICA_SET_COLUMNS, _replica_set_cells),
    "statefulsets.apps": Printer(STATEFUL_SET_COLUMNS, _stateful_set_cells),
    "daemonsets.apps": Printer(DAEMON_SET_COLUMNS, _daemon_set_cells),
    "horizontalpodautoscalers.autoscaling": Printer(AUTOSCALER_COLUMNS, _autoscaler_cells),
}
"""By resource."""
