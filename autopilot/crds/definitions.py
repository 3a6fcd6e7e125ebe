"""The CustomResourceDefinitions, and the roles for them."""

from __future__ import annotations

from typing import Any

from autopilot.crds.names import (
    GROUP,
    POLICIES,
    POLICY_KIND,
    RECOMMENDATION_KIND,
    RECOMMENDATIONS,
    VERSION,
)
from autopilot.crds.policy_schema import policy_spec_schema
from autopilot.readiness.fence import EPOCH_KIND, EPOCHS

Obj = dict[str, Any]
LABELS = {"app.kubernetes.io/name": "gpu-autopilot"}
TEXT, LONG_TEXT = 300, 4096
MOST_VICTIMS, MOST_EVIDENCE, MOST_ACTIONS = 100, 50, 100
STATES = ("NeedsApproval", "Recommended", "Approved", "UnderWay", "Rejected", "Ended")


def text(meaning: str, most: int = TEXT) -> Obj:
    """A text of bounded length."""
    return {"type": "string", "maxLength": most, "description": meaning}


def _number(meaning: str, kind: str = "number") -> Obj:
    return {"type": kind, "description": meaning}


def _object(meaning: str, properties: Obj, **more: Any) -> Obj:
    return {"type": "object", "description": meaning, "properties": properties, **more}


def _list(meaning: str, most: int, properties: Obj) -> Obj:
    items = {"type": "object", "properties": properties}
    return {"type": "array", "maxItems": most, "description": meaning, "items": items}


def _time(meaning: str) -> Obj:
    return {"type": "string", "format": "date-time", "description": meaning}


def _conditions() -> Obj:
    fields = {
        "type": text("type of the condition"),
        "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
        "reason": text("one word"),
        "message": text("what is wrong, with the field and the fix", LONG_TEXT),
        "lastTransitionTime": _time("when the status last changed"),
        "observedGeneration": _number("generation of the object that it is about", "integer"),
    }
    found = _list("InForce: this policy, as it is written, is the one that the service obeys", 8, fields)
    found["items"]["required"] = ["type", "status"]
    return found | {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}


def _policy_status() -> Obj:
    action = {
        "action": text("name of the action"),
        "written": text("its mode in the policy"),
        "inForce": text("its mode now"),
        "why": text("why the two differ", LONG_TEXT),
    }
    return _object(
        "what is in force, and why not",
        {
            "observedGeneration": _number("the generation that was read last", "integer"),
            "conditions": _conditions(),
            "inForce": _object(
                "the policy that the service obeys; the last valid one while this one is not",
                {
                    "generation": _number("generation of this object that it came from; 0: another source", "integer"),
                    "digest": text("digest of all its fields, as in the journal"),
                },
            ),
            "halted": text("why nothing acts now", LONG_TEXT),
            "actions": _list("each action with its mode", MOST_ACTIONS, action),
            "epoch": _number("epoch of the leader that wrote this", "integer"),
        },
    )


def _recommendation_spec() -> Obj:
    fields = {
        "id": text("id of the recommendation, as the page and the command line show it", 600),
        "action": text("name of the action"),
        "workload": text("the workload, service, GPU or node that it is for", 600),
        "tenant": text("tenant of it"),
        "queue": text("queue of it"),
    }
    return _object(
        "what is recommended: an action for an object; its plan is in the status",
        fields,
        required=["id", "action", "workload"],
        **{
            "x-kubernetes-validations": [
                {"rule": "self == oldSelf", "message": "another action or object is another recommendation"}
            ]
        },
    )


def _recommendation_status() -> Obj:
    evidence = {"name": text("name of the value"), "value": text("the value with its unit")}
    check = {"guard": text("name of the guard"), "verdict": text("its verdict with its numbers", LONG_TEXT)}
    decision = {
        "verb": {"type": "string", "enum": ["approve", "reject"], "description": "which annotation it was"},
        "verdict": {"type": "string", "enum": ["Approved", "Rejected", "Refused"], "description": "what became of it"},
        "value": text("what the annotation said"),
        "manager": text("field manager that set the annotation: the program, not the person"),
        "at": _time("when it was set, by the clock of the API server"),
        "sequence": _number("number of the command in the inbox and the audit log", "integer"),
        "message": text("what became of it", LONG_TEXT),
    }
    victim = {
        "workload": text("its name"),
        "queue": text("its queue"),
        "how": text("evict, shrink or move"),
        "gpus": _number("GPUs", "integer"),
    }
    side = {
        "workload": text("its name"),
        "queue": text("its queue"),
        "gpus": _number("GPUs"),
        "what": text("what it loses: quota, room or turn"),
    }
    fields = {
        "state": {"type": "string", "enum": list(STATES), "description": "what it waits for, or what became of it"},
        "digest": text("digest of what is shown here; an approval may name it"),
        "since": _time("since when it is recommended"),
        "changed": _time("since when its plan and figures stand"),
        "kind": text("kind of the change"),
        "gpus": _number("GPUs that it assigns, or takes where it starts nothing", "integer"),
        "place": text("where it starts", LONG_TEXT),
        "victims": _list("work that loses GPUs or its place; the first hundred", MOST_VICTIMS, victim),
        "sideEffects": _list(
            "waiting work that loses reserved quota, room or its turn to this start; the first hundred",
            MOST_VICTIMS,
            side,
        ),
        "message": text("why it is in this state", LONG_TEXT),
        "why": text("why it is recommended", LONG_TEXT),
        "gain": text("gain"),
        "cost": text("expected cost, and the worst case where it is more"),
        "gainGPUSeconds": _number("gain in GPU-seconds"),
        "costGPUSeconds": _number("expected cost in GPU-seconds"),
        "worstCostGPUSeconds": _number("worst-case cost in GPU-seconds"),
        "confidence": text("what is known about the forecast behind it", LONG_TEXT),
        "evidence": _list("the numbers that it rests on", MOST_EVIDENCE, evidence),
        "guards": _list("the verdict of each guard", MOST_EVIDENCE, check),
        "decision": _object("the last approval or rejection by annotation", decision),
        "updated": _time("when this status was written, by the clock of the cluster"),
        "epoch": _number("epoch of the leader that wrote this", "integer"),
    }
    return _object("the state of it; only the service may write it", fields)


def _column(name: str, path: str, kind: str = "string", priority: int = 0, meaning: str = "") -> Obj:
    found = {"name": name, "type": kind, "jsonPath": path, "priority": priority, "description": meaning}
    return {key: value for key, value in found.items() if value or key == "name"}


def _definition(
    plural: str, kind: str, short: list[str], schema: Obj, columns: list[Obj], scope: str = "Cluster"
) -> Obj:
    known = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
    }
    whole = {"type": "object", "required": ["spec"], "properties": {**known, **schema["properties"]}}
    whole["description"] = schema["description"]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}", "labels": LABELS},
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": {
                "plural": plural,
                "singular": kind.lower(),
                "kind": kind,
                "listKind": f"{kind}List",
                "shortNames": short,
                "categories": ["gpu-autopilot"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": whole},
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": columns,
                }
            ],
        },
    }


AGE = _column("Age", ".metadata.creationTimestamp", "date")


def policy_definition() -> Obj:
    """The definition of AutopilotPolicy."""
    condition = '.status.conditions[?(@.type=="InForce")]'
    columns = [
        _column("In force", f"{condition}.status"),
        _column("Reason", f"{condition}.reason"),
        _column("Base", ".spec.base"),
        AGE,
        _column("Message", f"{condition}.message", priority=1),
    ]
    schema = _object(
        "How far the autopilot may go, and when. The service obeys the one that its settings name.",
        {"spec": policy_spec_schema(), "status": _policy_status()},
    )
    return _definition(POLICIES, POLICY_KIND, ["gpupolicy"], schema, columns)


def recommendation_definition() -> Obj:
    """The definition of Recommendation."""
    columns = [
        _column("Action", ".spec.action"),
        _column("Workload", ".spec.workload"),
        _column("Gain", ".status.gain"),
        _column("Cost", ".status.cost"),
        _column("State", ".status.state"),
        AGE,
        _column("Since", ".status.since", "date", priority=1),
        _column("Queue", ".spec.queue", priority=1),
        _column("Tenant", ".spec.tenant", priority=1),
        _column("Why", ".status.why", priority=1),
        _column("Message", ".status.message", priority=1),
        _column("Answer", ".status.decision.message", priority=1),
    ]
    schema = _object(
        "What the autopilot would do if a person agreed. The service writes it; a person annotates it to decide.",
        {"spec": _recommendation_spec(), "status": _recommendation_status()},
    )
    return _definition(RECOMMENDATIONS, RECOMMENDATION_KIND, ["rec"], schema, columns)


MOST_EPOCH = 2_000_000_000
"""Below the largest `leaseTransitions` of a Lease, so that the next leader can go above it."""


def epoch_definition() -> Obj:
    """The definition of Epoch, the parameter of the fence."""
    number = {
        "type": "integer",
        "format": "int64",
        "minimum": 1,
        "maximum": MOST_EPOCH,
        "description": "epoch of the leader: the only one whose writes the fence lets pass",
        "x-kubernetes-validations": [{"rule": "self >= oldSelf", "message": "an earlier leader cannot take it back"}],
    }
    spec = _object("who leads", {"epoch": number, "holder": text("identity of the leader")}, required=["epoch"])
    schema = _object("The epoch of the present leader. Each leader writes it before anything else.", {"spec": spec})
    columns = [_column("Epoch", ".spec.epoch", "integer"), _column("Holder", ".spec.holder"), AGE]
    return _definition(EPOCHS, EPOCH_KIND, ["gpuepoch"], schema, columns, "Namespaced")
