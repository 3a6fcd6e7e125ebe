"""Binding and eviction: the actions on a pod by a POST below it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from apiserver.decoding import recognized
from apiserver.deletion import check_preconditions
from apiserver.errors import Named, StatusError, bad_request, conflict, not_found, unexpected
from apiserver.kinds.base import Call, State
from apiserver.requests import Response
from apiserver.selectors import matches_labels
from apiserver.timeline import stamp

Obj = dict[str, Any]
SUCCESS = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
BUDGETS = "poddisruptionbudgets.policy"
RETRY_S = 10  # of an eviction while the status of the budget is behind its spec


def bind(server: State, call: Call) -> Response:
    """POST pods/NAME/binding: the node, and the annotations of the Binding."""
    if call.verb != "create":
        raise StatusError(
            405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {}
        )
    binding = recognized(call.request, "Binding") or {}
    metadata, target = binding.get("metadata") or {}, binding.get("target") or {}
    if not target.get("name"):
        raise unexpected("target.name: Required value")
    pod = _pod(server, call)
    server.writing.check_uid(call, metadata.get("uid"), pod)
    named = Named("", "pods/binding", "Pod", call.name)
    if pod["spec"].get("nodeName"):
        raise conflict(named, f"pod {call.name} is already assigned to node {quoted_node(pod)}")
    if pod["spec"].get("schedulingGates"):
        raise conflict(named, f"pod {call.name} has non-empty .spec.schedulingGates")
    if "deletionTimestamp" in pod["metadata"]:
        raise conflict(named, f"pod {call.name} is being deleted, cannot be assigned to a host")

    def change(old: Obj) -> Obj:
        old["spec"]["nodeName"] = target["name"]
        for part in ("annotations", "labels"):
            if metadata.get(part):
                old["metadata"][part] = (old["metadata"].get(part) or {}) | metadata[part]
        now = stamp(server.timeline.now)
        scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
        set_condition(old, scheduled)
        old["status"].pop("nominatedNodeName", None)
        return old

    server.writing.put_object(call, change)
    return Response(201, SUCCESS)


def quoted_node(pod: Obj) -> str:
    """The node of a pod, in quotation marks."""
    return f'"{pod["spec"]["nodeName"]}"'


def set_condition(obj: Obj, condition: Obj) -> None:
    """Set a condition in an object's status by its type."""
    conditions = list(obj.setdefault("status", {}).get("conditions") or [])
    for at, each in enumerate(conditions):
        if each["type"] == condition["type"]:
            conditions[at] = condition
            break
    else:
        conditions.append(condition)
    obj["status"]["conditions"] = conditions


def with_condition(obj: Obj, condition: Obj) -> Obj:
    """The object, with a condition set."""
    set_condition(obj, condition)
    return obj


def evict(server: State, call: Call) -> Response:
    """POST pods/NAME/eviction: a deletion subject to the disruption budgets."""
    if call.verb != "create":
        raise StatusError(
            405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {}
        )
    eviction = recognized(call.request, "Eviction") or {}
    if (eviction.get("metadata") or {}).get("name", call.name) != call.name:
        raise bad_request("name in URL does not match name in Eviction object")
    options = eviction.get("deleteOptions") or {}
    if options.get("dryRun"):
        call = replace(call, dry_run=True)
    server.writing.admit_action(call, eviction)
    pod = _pod(server, call)
    check_preconditions(call.kind, pod, options.get("preconditions") or {})
    if _asks_budget(pod):
        _use_budget(server, call, pod)
    if not call.dry_run and not _goes_at_once(pod):
        now = stamp(server.timeline.now)
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": now,
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
        }
        held = [each for each in pod["status"].get("conditions") or [] if each["type"] == "DisruptionTarget"]
        if not held:
            status_call = replace(call, subresource="status")
            server.writing.put_object(status_call, lambda old: with_condition(old, condition))
            pod = _pod(server, call)
    server.writing.delete_object(call.kind, pod, options, dry_run=call.dry_run)
    return Response(201, SUCCESS)


def _pod(server: State, call: Call) -> Obj:
    pod = server.store.get("pods", call.namespace, call.name)
    if pod is None:
        raise not_found(call.kind.named(call.name))
    return pod


def _goes_at_once(pod: Obj) -> bool:
    return not pod["spec"].get("nodeName")


def _asks_budget(pod: Obj) -> bool:
    """True for a running pod: the loss of any other disrupts nothing."""
    phase = pod["status"].get("phase")
    return phase == "Running" and "deletionTimestamp" not in pod["metadata"]


def _is_ready(pod: Obj) -> bool:
    conditions = pod["status"].get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _use_budget(server: State, call: Call, pod: Obj) -> None:
    """Take one disruption from the budget of a pod. Raises StatusError 429, or 500 for several budgets."""
    labels = pod["metadata"].get("labels") or {}
    budgets = [
        budget
        for budget in server.store.objects(BUDGETS, call.namespace)
        if matches_labels(budget["spec"].get("selector"), labels)
    ]
    if not budgets:
        return
    if len(budgets) > 1:
        raise unexpected(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        )
    (budget,) = budgets
    status = budget.get("status") or {}
    if not _is_ready(pod):
        policy = budget["spec"].get("unhealthyPodEvictionPolicy")
        healthy = status.get("currentHealthy", 0) >= status.get("desiredHealthy", 0) > 0
        if policy == "AlwaysAllow" or (policy in {None, "IfHealthyBudget"} and healthy):
            return
    _check_budget(budget, status)
    if call.dry_run:
        return
    left = status["disruptionsAllowed"] - 1
    disrupted = dict(status.get("disruptedPods") or {}) | {call.name: stamp(server.timeline.now)}
    new_status = status | {"disruptionsAllowed": left, "disruptedPods": disrupted}
    if left == 0:
        new_status["conditions"] = [_insufficient(each, budget) for each in status.get("conditions") or []]
    kind = server.kinds.stored(BUDGETS)
    if kind is not None:
        budget_call = replace(call, kind=kind, name=budget["metadata"]["name"], subresource="status")
        server.writing.put_object(budget_call, lambda old: old | {"status": new_status})


def _insufficient(condition: Obj, budget: Obj) -> Obj:
    if condition["type"] != "DisruptionAllowed":
        return condition
    generation = budget["metadata"].get("generation", 1)
    return condition | {"status": "False", "reason": "InsufficientPods", "observedGeneration": generation}


def _check_budget(budget: Obj, status: Obj) -> None:
    name = budget["metadata"]["name"]
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 1):
        why = f"The disruption budget {name} is still being processed by the server."
        details = {"causes": [{"reason": "DisruptionBudget", "message": why}], "retryAfterSeconds": RETRY_S}
        raise _too_many(details, {"retry-after": str(RETRY_S)})
    if status.get("disruptionsAllowed", 0) <= 0:
        needs, has = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
        why = f"The disruption budget {name} needs {needs} healthy pods and has {has} currently"
        raise _too_many({"causes": [{"reason": "DisruptionBudget", "message": why}]}, {})


def _too_many(details: Obj, headers: dict[str, str]) -> StatusError:
    message = "Cannot evict pod as it would violate the pod's disruption budget."
    return StatusError(429, "TooManyRequests", message, details, headers)
