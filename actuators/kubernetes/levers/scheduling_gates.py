"""Start a gang of plain pods that wait for our scheduling gate: each pod gets its node and loses the gate in one patch.

All patches are tried on the server first, and nothing is written if one of them is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from actuators.kubernetes import placement
from actuators.kubernetes.api import CONFLICTS, Answer, Obj, Ref, Refusal
from actuators.kubernetes.changes import POD_GATES, POD_PLACE
from actuators.kubernetes.effects import record_of, wrote
from actuators.kubernetes.levers.base import (
    Effect,
    Ended,
    Lever,
    Progress,
    Rule,
    Tools,
    Waiting,
    changed,
    ended_by,
    no_place,
)
from actuators.kubernetes.objects import Target, devices
from actuators.kubernetes.writing import Decide, Stop, each
from autopilot.contract.annotations import CONTROLLER, EFFECT
from autopilot.core.effects.admit import AdmitOperation
from autopilot.core.model.records import Cause, Instruction, OutcomeKind
from autopilot.core.model.verb import asked

GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-"


def suits(_instruction: Instruction, target: Target) -> str:
    """Pods not managed by Kueue; our gate on them is read with the pods."""
    if target.workload:
        return "Kueue manages it"
    if target.job:
        return "its Job is started as a whole"
    return "" if target.of("Pod") else "it has no pods"


def step(tools: Tools, effect: Effect, target: Target, now_s: float) -> Progress:  # noqa: ARG001 - as every step
    """Open the gates of all pods."""
    operation = asked(effect.instruction.operation, AdmitOperation)
    answers = each(target.of("Pod"), tools.api.read)
    failed = next((answer for answer in answers if not answer.ok), None)
    if failed is not None:
        return ended_by(failed, "its pods")
    pods = [answer.body for answer in answers]
    gated = [pod for pod in pods if CONTROLLER in gates_of(pod)]
    if not gated:
        if any(wrote(pod, effect.id) for pod in pods):
            return Waiting("the scheduler binds its pods")
        return Ended(OutcomeKind.FAILED, f"its pods do not have our scheduling gate {CONTROLLER}", cause=Cause.LEVER)
    others = {name for pod in gated for name in gates_of(pod)} - {CONTROLLER}
    if others:
        return Waiting(f"its pods wait for other gates too: {', '.join(sorted(others))}")
    place = placement.place_of(tools.api, target.uid, operation.slots)
    if isinstance(place, Answer):
        if place.refusal in CONFLICTS:
            return no_place(f"its place is gone: {place.message}")
        return ended_by(place, "its nodes")
    node_of = _spread(pods, placement.by_node(operation.slots))
    if node_of is None:
        return changed("its pods do not fit the GPUs of the instruction any more")
    lacks = _lacks(gated, {uid: place.nodes[node] for uid, node in node_of.items()})
    if lacks:
        return no_place(f"{lacks}; its gates stay")
    return _open(tools, effect, gated, {uid: _host(place.nodes[node]) for uid, node in node_of.items()})


def _open(tools: Tools, effect: Effect, gated: list[Obj], host_of: Mapping[str, str]) -> Progress:
    """Try all patches, then write them."""
    refs = [Ref("Pod", meta["namespace"], meta["name"], meta["uid"]) for meta in (pod["metadata"] for pod in gated)]
    for dry in (True, False):

        def send(ref: Ref, dry: bool = dry) -> Answer:
            return tools.writer.change(ref, _opening(host_of[ref.uid], effect), effect.epoch, dry=dry)

        answers = each(refs, send)
        for ref, answer in zip(refs, answers, strict=True):
            if not answer.ok:
                return ended_by(answer, f"{ref.shown}: open the gate")
    return Waiting("the scheduler binds its pods")


def _opening(host: str, effect: Effect) -> Decide:
    def decide(found: Obj) -> Obj | Stop:
        gates = found["spec"].get("schedulingGates") or []
        if CONTROLLER not in gates_of(found):
            return Stop("its gate is open", done=True)
        held = (found["spec"].get("nodeSelector") or {}).get(placement.HOSTNAME)
        if held is not None and held != host:
            return Stop(f"it selects node {held} itself, not {host}", refusal=Refusal.INVALID)
        rest = [each for each in gates if each["name"] != CONTROLLER]
        return {
            "metadata": {"annotations": record_of(effect, "opened")},
            "spec": {"schedulingGates": rest or None, "nodeSelector": {placement.HOSTNAME: host}},
        }

    return decide


def _spread(pods: list[Obj], room: Counter[str]) -> dict[str, str] | None:
    """The node of each gated pod by its uid; None: they do not fit. Bound pods keep their node.

    Requests of claims are not read: pods with claims take equal parts of the GPUs left by the other pods.
    """
    left = Counter(room)
    node_of: dict[str, str] = {}
    asked = {pod["metadata"]["uid"]: units_of(pod) for pod in pods}
    claiming = [pod["metadata"]["uid"] for pod in pods if pod["spec"].get("resourceClaims") and not units_of(pod)]
    if claiming:
        asked |= dict.fromkeys(claiming, max(room.total() - sum(asked.values()), 0) // len(claiming))
    for pod in sorted(pods, key=lambda each: (-asked[each["metadata"]["uid"]], each["metadata"]["name"])):
        node, units = pod["spec"].get("nodeName"), asked[pod["metadata"]["uid"]]
        fits = [name for name in left if left[name] >= units]
        chosen = node if node in left else next(iter(sorted(fits, key=lambda name: (left[name], name))), None)
        if chosen is None or left[chosen] < units:
            return None
        left[chosen] -= units
        node_of[pod["metadata"]["uid"]] = chosen
    return node_of


def _lacks(gated: list[Obj], node_of: Mapping[str, Obj]) -> str:
    """Problem of a pod that selects a label missing on its node: it would wait there for good, without its gate."""
    for pod in gated:
        node = node_of[pod["metadata"]["uid"]]
        own = dict(pod["spec"].get("nodeSelector") or {})
        own.pop(placement.HOSTNAME, None)  # tried with the write
        lacks = placement.Place({node["metadata"]["name"]: node}, {}).lacks(own)
        if lacks:
            return f"pod {pod['metadata']['name']} cannot run there: {lacks}"
    return ""


def units_of(pod: Obj) -> int:
    """GPUs and MIG instances requested by the containers of a pod."""
    total = 0
    for container in pod["spec"].get("containers") or ():
        asked = (container.get("resources") or {}).get("limits") or {}
        total += sum(devices(name, value) for name, value in asked.items() if name == GPU or name.startswith(MIG))
    return total


def gates_of(pod: Obj) -> set[str]:
    """The scheduling gates of a pod."""
    return {each["name"] for each in pod["spec"].get("schedulingGates") or ()}


def _host(node: Obj) -> str:
    return str((node["metadata"].get("labels") or {}).get(placement.HOSTNAME, node["metadata"]["name"]))


LEVER = Lever(
    "scheduling-gates",
    frozenset({"admit"}),
    "select the node of each pod and remove our scheduling gate",
    (Rule("", "pods", ("get", "patch"), changes=(EFFECT, POD_GATES, POD_PLACE)), Rule("", "nodes", ("get",))),
    suits,
    step,
)
