"""Ask cluster-autoscaler for the nodes of a gang by a ProvisioningRequest, and follow the request.

One request for each gang, owned by the object of the gang, and a PodTemplate for each set of its pods, owned by the
request. It stays until the gang has started: newly arrived nodes are no reason to forget it. It is removed after the
start of the gang, at a refusal by the autoscaler, and at its deadline.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace

from actuators.kubernetes.api import KINDS, Answer, Obj, Ref, Refusal
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
    late,
    not_set_up,
)
from actuators.kubernetes.levers.check_state import KUEUE
from actuators.kubernetes.merging import Contradiction, base_selectors, merge
from actuators.kubernetes.objects import Target, conditions, holds, label
from autopilot.contract.annotations import EPOCH, REQUEST
from autopilot.core.model.records import Cause, Instruction, OutcomeKind
from autopilot.core.model.verb import asked
from autopilot.core.nodes.provision import Provision

GROUP = "autoscaling.x-k8s.io"
KUEUE_CONTROLLER = "kueue.x-k8s.io/provisioning-request"
"""Controller of Kueue's own admission check for capacity."""
REFUSED = ("Failed", "CapacityRevoked", "BookingExpired")
"""Conditions of a request without a further result."""
TEMPLATES = "templates"
"""In `Effect.said`: the templates of the request are there."""
REACHED = ("Provisioned", "Accepted")
"""Conditions on the way, the last one first."""


def suits(_instruction: Instruction, target: Target) -> str:
    """A gang with one object that owns its pods."""
    owner = _owner(target)
    return "" if owner is not None else "it has no Job and no Workload that could own the request"


def step(tools: Tools, effect: Effect, target: Target, now_s: float) -> Progress:
    """Make the request, then report the answer of the autoscaler."""
    owner, operation = _owner(target), asked(effect.instruction.operation, Provision)
    if owner is None:
        return Ended(OutcomeKind.CONFLICT, "its object is gone", cause=Cause.REPLACED)
    ref = _request(owner, target.uid)
    found = tools.api.read(ref)
    if not found.ok and found.refusal != Refusal.GONE:
        return ended_by(found, f"reading {ref.shown}")
    if not found.ok:
        if not _is_served(found):
            return not_set_up("the cluster has no ProvisioningRequests (autoscaling.x-k8s.io/v1)", OutcomeKind.CONFLICT)
        return _make(tools, effect, target, owner, operation)
    if not wrote(found.body, effect.id):
        if label(found.body, REQUEST) != "true":
            return changed(f"{ref.shown} is of somebody else")
        removed = remove(tools, found.body)
        return Waiting("an earlier request is removed") if removed.ok else ended_by(removed, f"remove {ref.shown}")
    if TEMPLATES not in effect.said and not conditions(found.body):
        return _templates(tools, effect, target, replace(ref, uid=found.body["metadata"]["uid"]))
    return _follow(tools, effect, target, found.body, now_s)


def _make(tools: Tools, effect: Effect, target: Target, owner: Ref, operation: Provision) -> Progress:
    """The request, and then its templates."""
    asks = _asks_itself(tools, target.workload, owner.namespace)
    if isinstance(asks, Answer):
        return ended_by(asks, "the checks of its queue")
    if asks:
        return changed(f"Kueue asks for its capacity itself (check {asks})")
    sets = _pod_sets(tools, target)
    if not isinstance(sets, list):
        return sets
    ref = _request(owner, target.uid)
    named = enumerate(sets)
    pod_sets = [{"podTemplateRef": {"name": _template(ref, effect, at)}, "count": count} for at, (count, _) in named]
    spec = {"provisioningClassName": operation.provisioning_class, "podSets": pod_sets, "parameters": {}}
    made = tools.writer.create(ref.path.rpartition("/")[0], _owned(effect, owner, ref, {"spec": spec}))
    if not made.ok:
        return ended_by(made, f"create {ref.shown}")
    return _templates(tools, effect, target, replace(ref, uid=made.body["metadata"]["uid"]))


def _templates(tools: Tools, effect: Effect, target: Target, request: Ref) -> Progress:
    """The templates of a request, once for each process; the autoscaler skips a request until it finds them."""
    sets = _pod_sets(tools, target)
    if not isinstance(sets, list):
        return sets
    for number, (_, template) in enumerate(sets):
        ref = Ref("PodTemplate", request.namespace, _template(request, effect, number))
        body = _owned(effect, request, ref, {"template": template})
        made = tools.writer.create(ref.path.rpartition("/")[0], body)
        if not made.ok and made.refusal != Refusal.CHANGED:  # it exists already
            return ended_by(made, f"create {ref.shown}")
    effect.said.add(TEMPLATES)
    return Waiting(f"{request.shown} waits for the autoscaler")


def _follow(tools: Tools, effect: Effect, target: Target, found: Obj, now_s: float) -> Progress:
    """The answer of the autoscaler. A change in it is reported once, on the object of the gang."""
    known, name = conditions(found), found["metadata"]["name"]
    for kind in REFUSED:
        if holds(found, kind):
            removed = remove(tools, found)
            if not removed.ok:
                return ended_by(removed, f"remove ProvisioningRequest {name}")
            said = known[kind].get("message") or known[kind].get("reason") or "no reason given"
            return Ended(OutcomeKind.CONFLICT, f"ProvisioningRequest {name} is {kind}: {said}", cause=Cause.PLACE)
    reached = next((kind for kind in REACHED if holds(found, kind)), "")
    last = known.get(reached or "Provisioned", {})
    words = f"ProvisioningRequest {name} is {reached or 'not answered'}"
    words += f": {last['message']}" if last.get("message") else ""
    about = target.main
    if reached and about is not None and reached not in effect.said:
        effect.said.add(reached)
        text = f"{words} (instruction {effect.id})"
        tools.events.say(about, f"Provision{reached}", "Provision", text, now_s, effect=effect.id)
    return Waiting(words)


def undo(tools: Tools, effect: Effect, target: Target, now_s: float) -> Ended:
    """Remove the request: the gang has started or asks for other nodes, or it was not served in time."""
    owner = _owner(target)
    found = tools.api.read(_request(owner, target.uid)) if owner is not None else Answer()
    if found.ok and wrote(found.body, effect.id):
        found = remove(tools, found.body)
    if not found.ok and found.refusal != Refusal.GONE:
        return late(f"the request cannot be removed: {found.message}")
    if now_s < effect.instruction.deadline_s:
        return Ended(OutcomeKind.DONE, "it needs no more nodes; the request is removed")
    return late(f"not served in time, the request is removed: {effect.waits_for}")


def shows(tools: Tools, target: Target, effect: str) -> bool:
    """True if the request of the gang is of this instruction."""
    owner = _owner(target)
    found = tools.api.read(_request(owner, target.uid)) if owner is not None else None
    return found is not None and found.ok and wrote(found.body, effect)


def remove(tools: Tools, request: Obj) -> Answer:
    """Delete a request of ours exactly as it was read; its templates go with it."""
    meta = request["metadata"]
    exactly = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
    path = Ref("ProvisioningRequest", meta["namespace"], meta["name"]).path
    answer = tools.writer.delete(path, {"preconditions": exactly, "propagationPolicy": "Background"})
    return Answer() if answer.refusal == Refusal.GONE else answer


def _owner(target: Target) -> Ref | None:
    return target.first("Job") or target.first("Workload")


def _request(owner: Ref, uid: str) -> Ref:
    """The request of a gang: its name follows from the uid."""
    return Ref("ProvisioningRequest", owner.namespace, f"gpu-autopilot-{hashlib.sha256(uid.encode()).hexdigest()[:10]}")


def _is_served(missing: Answer) -> bool:
    """True for a 404 about the object, and not about its kind."""
    return bool((missing.body.get("details") or {}).get("name"))


def _template(request: Ref, effect: Effect, number: int) -> str:
    """The name of a template: those of an earlier request of the gang may still be on their way out."""
    return f"{request.name}-{hashlib.sha256(effect.id.encode()).hexdigest()[:6]}-{number}"


def _owned(effect: Effect, owner: Ref, ref: Ref, content: Obj) -> Obj:
    """An object of ours that goes with its owner."""
    by = {"apiVersion": KINDS[owner.kind][0], "kind": owner.kind, "name": owner.name, "uid": owner.uid}
    return {
        "apiVersion": KINDS[ref.kind][0],
        "kind": ref.kind,
        "metadata": {
            "name": ref.name,
            "namespace": ref.namespace,
            "labels": {REQUEST: "true"},
            "annotations": {**record_of(effect, "requested"), EPOCH: str(effect.epoch)},
            "ownerReferences": [by],
        },
        **content,
    }


def _pod_sets(tools: Tools, target: Target) -> list[tuple[int, Obj]] | Progress:
    """Count and template of each set of pods, with its required node labels."""
    workload, job = target.workload, target.job
    if not workload:
        spec = job["spec"]
        return [(int(spec.get("parallelism") or 1), _bare(spec["template"], {}))]
    bases = base_selectors(tools.api, workload)
    if isinstance(bases, str):
        return Waiting(bases)
    found = []
    for each in workload["spec"]["podSets"]:
        merged = merge(bases[each["name"]])
        if isinstance(merged, Contradiction):
            return Ended(OutcomeKind.CONFLICT, f"no node can have both: {merged}", cause=Cause.PLACE)
        found.append((int(each.get("count") or 1), _bare(each["template"], dict(merged.selector))))
    return found


def _bare(template: Obj, selector: Obj) -> Obj:
    """The part of a template that decides its fit; a gate would keep the autoscaler from looking for a place."""
    spec = {key: value for key, value in template["spec"].items() if key != "schedulingGates"}
    if selector:
        spec["nodeSelector"] = selector
    labels = (template.get("metadata") or {}).get("labels") or {}
    return {"metadata": {"labels": labels}, "spec": spec}


def _asks_itself(tools: Tools, workload: Obj, space: str) -> str | Answer:
    """The check of the gang's queue by which Kueue asks for capacity; "" for none."""
    if not workload:
        return ""
    queue = ((workload.get("status") or {}).get("admission") or {}).get("clusterQueue")
    if not queue:
        local = tools.api.read(Ref("LocalQueue", space, workload["spec"].get("queueName", "")))
        if not local.ok:
            return local
        queue = local.body["spec"]["clusterQueue"]
    found = tools.api.read(Ref("ClusterQueue", "", queue))
    if not found.ok:
        return found
    strategy = found.body["spec"].get("admissionChecksStrategy") or {}
    return _by_kueue(tools, (each["name"] for each in strategy.get("admissionChecks") or ()))


def _by_kueue(tools: Tools, checks: Iterable[str]) -> str | Answer:
    for name in checks:
        check = tools.api.read(Ref("AdmissionCheck", "", name))
        if not check.ok:
            return check
        if check.body["spec"].get("controllerName") == KUEUE_CONTROLLER:
            return name
    return ""


LEVER = Lever(
    "provisioning-request",
    frozenset({"provision"}),
    "ask cluster-autoscaler for its nodes by a ProvisioningRequest",
    (
        Rule(GROUP, "provisioningrequests", ("get", "list", "create", "delete")),
        Rule("", "podtemplates", ("create",)),
        Rule("batch", "jobs", ("get",)),
        Rule(KUEUE, "workloads", ("get",)),
        Rule(KUEUE, "localqueues", ("get",)),
        Rule(KUEUE, "clusterqueues", ("get",)),
        Rule(KUEUE, "admissionchecks", ("get",)),
        Rule(KUEUE, "resourceflavors", ("get",)),
    ),
    suits,
    step,
    undo,
    shows,
)
