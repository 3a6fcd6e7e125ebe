"""A pod that asks for a share of a node just turned, before the node is opened.

Labels and offer of a node do not prove that a container gets a GPU: an MPS server may die at its first client. The pod
is bound to the cordoned node by its name, in the namespace of the service; the kubelet admits it if the device plugin
allocates. Its image is that of the setting, and its own command has to end with success.
"""

from __future__ import annotations

import json
from hashlib import blake2s

from actuators.kubernetes.api import KINDS, Obj, Ref, Refusal
from actuators.kubernetes.effects import wrote
from actuators.kubernetes.levers.base import PROBE_NAME, Progress, Tools, Waiting, ended_by
from autopilot.contract.annotations import EFFECT, EPOCH, EXCLUDE

GPU = "nvidia.com/gpu"
PROBE_S = 180.0
"""Longest time from the request for the pod to its success, with the pull of its image."""


def probe(tools: Tools, epoch: int, node: Obj, effect: str, since_s: float, now_s: float) -> str | Progress:
    """An empty text once the pod has ended with success and is gone; else the reason against the node, or a wait.

    `effect`: id of the instruction. `since_s`: when the node was seen to be turned.
    """
    wanted = tools.probe
    if wanted is None:
        return ""
    name = node["metadata"]["name"]
    ref = Ref("Pod", wanted.namespace, f"{PROBE_NAME}{blake2s(name.encode(), digest_size=6).hexdigest()}")
    late = now_s >= since_s + PROBE_S
    found = tools.api.read(ref)
    if found.refusal == Refusal.GONE:
        if late:
            return f"its probe pod {ref.shown} did not end within {PROBE_S:.0f} s"
        made = tools.writer.create(ref.path.rpartition("/")[0], _pod(ref, name, effect, wanted.image, epoch))
        return Waiting("a probe pod asks for a share") if made.ok else ended_by(made, f"create {ref.shown}")
    if not found.ok:
        return ended_by(found, ref.shown)
    status = found.body.get("status") or {}
    phase, ours = str(status.get("phase", "Pending")), wrote(found.body, effect)
    if ours and not late and phase not in {"Succeeded", "Failed"}:
        return Waiting(f"its probe pod is {phase.lower()}")
    gone = tools.writer.delete(ref.path, {"preconditions": {"uid": found.body["metadata"]["uid"]}})
    if not gone.ok and gone.refusal != Refusal.GONE:
        return ended_by(gone, f"delete {ref.shown}")
    if ours and phase == "Succeeded":
        return ""
    if ours and phase == "Failed":
        return f"its probe pod {ref.shown} failed: {status.get('message') or status.get('reason') or 'see its log'}"
    return Waiting("a probe pod is removed")


def _pod(ref: Ref, node: str, effect: str, image: str, epoch: int) -> Obj:
    return {
        "apiVersion": KINDS["Pod"][0],
        "kind": "Pod",
        "metadata": {
            "name": ref.name,
            "namespace": ref.namespace,
            "annotations": {EFFECT: json.dumps({"id": effect}), EPOCH: str(epoch), EXCLUDE: "true"},
        },
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": round(PROBE_S),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {
                    "name": "probe",
                    "image": image,
                    "resources": {"limits": {GPU: "1"}},
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                }
            ],
        },
    }
