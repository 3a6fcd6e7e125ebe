"""Names of the marks of the controller and of running work on objects of a cluster, beside the declarations of a job.

Actuators, collectors and the checkpoint library take them from here, so that they agree.
"""

from __future__ import annotations

from typing import Any

from autopilot.contract.notes import read_record
from autopilot.contract.tree import PREFIX

MANAGER = "gpu-autopilot"
"""Field manager of the writes of the controller; our check has one of its own."""

MANAGE = PREFIX + "manage"
"""Label `"true"` on a suspended Job since its creation: the controller may start it."""

ELASTIC_JOB = "kueue.x-k8s.io/elastic-job"
"""Annotation `"true"` of Kueue on a Job since its creation: its number of pods may change while it runs."""

EFFECT = PREFIX + "effect"
"""Annotation: the instruction behind the last write, as JSON (actuators/kubernetes/effects.py)."""
EPOCH = PREFIX + "epoch"
"""Annotation: the epoch (`Instruction.fence`) of the last writing controller."""
STOPPED = PREFIX + "stopped"
"""Annotation: the object was stopped by the controller, as JSON `{"uid", "id", "reason", "returns", "for"}`."""
QUOTA = "quota"
"""Reason of a stop: waiting work was deactivated so that the start `id` of the work `for` gets its quota."""

EXCLUDE = PREFIX + "exclude"
"""Annotation `"true"` on work or on a namespace: no action starts or changes it."""
WINDOW = PREFIX + "window"
"""Annotation on work or on a namespace: no action starts or changes it outside of these hours."""
APPROVE, REJECT = PREFIX + "approve", PREFIX + "reject"
"""Annotations on a Recommendation: a person decides (docs/control-resources.md)."""
GUARANTEE_KEPT = PREFIX + "guarantee-kept"
"""Annotation on ClusterQueues: how the guarantee of the queue is kept, `strict`, `elastic` or `none`."""
MIG_GEOMETRY = PREFIX + "mig-geometry"
"""Annotation on nodes: a JSON list with the instances by profile of each GPU by index (null: not in MIG mode)."""

SHARING_CONFIG = PREFIX + "sharing-config"
"""Annotation on nodes: the configuration of the device plugin that we set by its label."""

CORDONED = PREFIX + "cordoned"
"""Annotation on nodes cordoned by us, as JSON `{"id", "reason", "cordoned"}`; `cordoned`: it was open before."""
CONDEMNED = PREFIX + "condemned"
"""Taint (NoSchedule) on a node with an error in need of its restart."""

OFFERED = PREFIX + "offered-back"
"""Annotation on nodes: nothing has needed it since long before this time (RFC 3339), so it may be removed."""

SCRUBBED = PREFIX + "scrubbed-at"
"""Annotation on nodes, by their owner: since then (seconds since 1970) all GPUs that were free there are scrubbed."""

NUMA_POLICY = PREFIX + "numa-policy"
"""Label of nodes: the policy of the kubelet's topology manager (none, best-effort, restricted, single-numa-node)."""

REQUEST = PREFIX + "capacity-request"
"""Label `"true"` on our ProvisioningRequests and PodTemplates."""

CHECKPOINT_REQUEST = PREFIX + "checkpoint-request"
"""Annotation on pods: `{"id", "deadline"}`. Write a checkpoint before `deadline` (seconds since 1970)."""
CHECKPOINT_ACK = PREFIX + "checkpoint-ack"
"""Annotation on pods: `{"id", "step", "path", "at"}`. The checkpoint of the request `id` is complete."""
CHECKPOINT_PORT = PREFIX + "checkpoint-port"
"""Annotation on pods: the program's port for requests for checkpoints by HTTP."""
CHECKPOINT_PATH = PREFIX + "checkpoint-path"
"""Annotation on pods: the path there; `/checkpoint` by default."""
HEARTBEAT = PREFIX + "heartbeat"
"""Annotation on pods: time of the trainer's last progress, in seconds since 1970."""
HEARTBEAT_OLD_S = 300.0
"""Heartbeats are written once a minute: after this time the work hangs, or does not train any more."""
STEP = PREFIX + "step"
"""Annotation on pods: number of the step of the heartbeat."""
PAUSED = PREFIX + "paused"
"""Annotation on pods: `"true"` while the program waits at a step boundary because it was asked to."""
BUSY = PREFIX + "busy"
"""Annotation on pods: `{"busy_s", "stage", "rank"}`, the time of a step in which the rank computed."""
MODEL_FLOPS = PREFIX + "model-flops-s"
"""Annotation on pods: model FLOP/s of all GPUs of the pod; it counts while the heartbeat is fresh."""

CONTROLLER = PREFIX + "admission"
"""`spec.controllerName` of our AdmissionCheck, the name of our scheduling gate, and our value of Kueue's gate."""
CHECK = "gpu-autopilot"
"""Name of our AdmissionCheck."""
REPAIR = "repair"
"""In place of an instruction in the message of our check: a Retry that Kueue would not act on was taken back."""
PLACEMENT = "placement.gpu-autopilot.io/"
"""Prefix of the node label for the nodes of one gang; the rest is 10 hex digits of the gang's uid."""


def mark_on(stopped: str, uid: str) -> dict[str, Any]:
    """The mark `stopped` if the controller set it on this very object; {} otherwise."""
    record = read_record(stopped)
    return record if record.get("uid") == uid else {}


def may_return(stopped: str, uid: str) -> bool:
    """True if the mark `stopped` says that the controller stopped this very object and may start it again."""
    return mark_on(stopped, uid).get("returns") is True


def lost_quota(stopped: str, uid: str) -> bool:
    """True if the mark `stopped` says that the controller deactivated this very object for its quota."""
    return bool(mark_on(stopped, uid)) and f'"{QUOTA}"' in stopped


REPORTED = frozenset(
    name.removeprefix(PREFIX)
    for name in (
        MANAGE,
        EFFECT,
        EPOCH,
        STOPPED,
        WINDOW,
        APPROVE,
        REJECT,
        MIG_GEOMETRY,
        CHECKPOINT_REQUEST,
        CHECKPOINT_ACK,
        CHECKPOINT_PORT,
        CHECKPOINT_PATH,
        HEARTBEAT,
        STEP,
        PAUSED,
        BUSY,
        MODEL_FLOPS,
    )
)
"""Names with our prefix without a declaration."""
