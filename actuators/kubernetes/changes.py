"""Changes allowed to the levers and the watchdog in objects of others, piece by piece, as checked by the API server.

A piece is an annotation, a label, or one field of `spec`, `status` or `data`. `free` is the condition in CEL for a key
`k` of that map to differ at all; `holds` is the condition on the change. Both are written for Kubernetes 1.30 and
later: `object` and `oldObject` are untyped there, and the variables are those of `field_policy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from actuators.kubernetes.mig_node import CONFIG, DEPLOY, STATE
from actuators.kubernetes.placement import HOSTNAME
from autopilot.contract.annotations import (
    APPROVE,
    CHECK,
    CHECKPOINT_ACK,
    CHECKPOINT_REQUEST,
    CONDEMNED,
    CONTROLLER,
    CORDONED,
    EFFECT,
    EPOCH,
    MANAGE,
    MIG_GEOMETRY,
    OFFERED,
    PLACEMENT,
    REJECT,
    SHARING_CONFIG,
    STOPPED,
)
from autopilot.contract.scaling import CEILING, FLOOR, MOST_REPLICAS
from autopilot.contract.sharing_engines import PLUGIN_CONFIG
from autopilot.contract.tree import PREFIX

Part = Literal["annotations", "labels", "spec", "status", "data"]


@dataclass(frozen=True, slots=True)
class Change:
    """One changeable piece of an object."""

    part: Part
    free: str
    holds: str = "true"
    key: str = ""  # if `free` is about one key


def _of(whose: str, path: str, otherwise: str) -> str:
    """A part of an object, if it and all around it are present."""
    steps = path.split(".")
    there = [f"has({whose}.{'.'.join(steps[: count + 1])})" for count in range(len(steps))]
    return f"{' && '.join(there)} ? {whose}.{path} : {otherwise}"


PATHS: Mapping[str, tuple[str, str]] = {
    "Notes": ("metadata.annotations", "{}"),
    "Labels": ("metadata.labels", "{}"),
    "TemplateNotes": ("spec.template.metadata.annotations", "{}"),
    "TemplateLabels": ("spec.template.metadata.labels", "{}"),
    "TemplatePlace": ("spec.template.spec.nodeSelector", "{}"),
    "Place": ("spec.nodeSelector", "{}"),
    "Gates": ("spec.schedulingGates", "[]"),
    "Taints": ("spec.taints", "[]"),
    "Checks": ("status.admissionChecks", "[]"),
    "QueueChecks": ("spec.admissionChecksStrategy.admissionChecks", "[]"),
    "Strategy": ("spec.admissionChecksStrategy", "{}"),
    "Replicas": ("spec.replicas", "0"),
    "Suspend": ("spec.suspend", "false"),
    "Active": ("spec.active", "true"),
    "Closed": ("spec.unschedulable", "false"),
    "Conditions": ("status.conditions", "[]"),
}
VARIABLES: Mapping[str, str] = {
    f"{age}{name}": _of(whose, path, otherwise)
    for name, (path, otherwise) in PATHS.items()
    for age, whose in (("old", "oldObject"), ("new", "object"))
}
"""Parts of the object before and after the write, for the expressions of `CHANGES`."""


def same_but(free: str, old: str, new: str) -> str:
    """Two maps are equal but for the keys `k` that are free."""
    return f"{new}.all(k, ({free}) || (k in {old} && {new}[k] == {old}[k])) && {old}.all(k, ({free}) || k in {new})"


def _maps(name: str, free: str) -> str:
    return same_but(free, f"variables.old{name}", f"variables.new{name}")


def _fewer(name: str, ours: str) -> str:
    """Of a list of named entries, ours may go, and nothing else changes."""
    old, new = f"variables.old{name}", f"variables.new{name}"
    return f"{new}.all(n, {old}.exists(o, o == n)) && {old}.all(o, o.name == '{ours}' || {new}.exists(n, n == o))"


def _key(part: Part, key: str, holds: str = "true") -> Change:
    return Change(part, f"k == '{key}'", holds, key)


GATED_BY = "kueue.x-k8s.io/admission-gated-by"
_OURS_GOES = (
    f"k == '{GATED_BY}' && k in variables.oldNotes"
    " && (!(k in variables.newNotes) || variables.newNotes[k].split(',').all(n,"
    " variables.oldNotes[k].split(',').exists(o, o.trim() == n.trim())))"
    f" && variables.oldNotes[k].split(',').all(o, o.trim() == '' || o.trim() == '{CONTROLLER}'"
    " || (k in variables.newNotes && variables.newNotes[k].split(',').exists(n, n.trim() == o.trim())))"
)
"""Our name is taken out of a list of names; those of others stay."""

_PLACE = f"k.startsWith('{PLACEMENT}')"


def _placed_template(free: str) -> str:
    """Only the place of a template changes, in the write that starts its Job.

    Selectors of others stay, so the pods may run on no other nodes than before.
    """
    return " && ".join(
        (
            "variables.oldSuspend && !variables.newSuspend",
            same_but("k == 'spec'", "dyn(oldObject.spec.template)", "dyn(object.spec.template)"),
            same_but("k == 'nodeSelector'", "dyn(oldObject.spec.template.spec)", "dyn(object.spec.template.spec)"),
            _maps("TemplatePlace", free),
        )
    )


_UNPLACED = f"{_PLACE} && !(k in variables.newTemplatePlace)"
_PLACED = f"{_PLACE} && (!(k in variables.newTemplatePlace) || variables.newTemplatePlace[k] == 'true')"

_STOPS = "((!variables.oldSuspend && variables.newSuspend) || (variables.oldActive && !variables.newActive))"
_STARTS = "((variables.oldSuspend && !variables.newSuspend) || (!variables.oldActive && variables.newActive))"
_UNMARKED = f"!(k in variables.newNotes) && {_STARTS}"
"""The mark of a stop comes and goes with the stop: else two writes could start what somebody else has stopped."""

_HANDED_OVER = (
    f"(variables.newSuspend && (variables.evict || variables.oldTemplatePlace.exists(k, {_PLACE})))"
    f" || (!variables.newSuspend && variables.admit && ('{STOPPED}' in variables.oldNotes"
    f" || ('{MANAGE}' in variables.oldLabels && variables.oldLabels['{MANAGE}'] == 'true')))"
)
"""Starts stop only work at a place of ours already."""


def _says(condition: str) -> str:
    return f"variables.oldConditions.exists(c, c.type == '{condition}' && c.status == 'True')"


_ACTIVITY = (
    f"(variables.newActive && '{STOPPED}' in variables.oldNotes)"
    f" || (!variables.newActive && (variables.evict || ({_says('QuotaReserved')} && !{_says('Admitted')})))"
)
"""Starts deactivate only work with quota that does not run."""

_BY_US = "contains('\"cordoned\": true')"
"""The record of a node closed by us, and by nobody before us."""
_RECORDS = f"['{CORDONED}', '{EFFECT}']"
_RECORD = (
    f"(!(k in variables.newNotes) || !variables.newNotes[k].{_BY_US} || !variables.oldClosed"
    f" || (k in variables.oldNotes && variables.oldNotes[k].{_BY_US}))"
)
_CLOSING = (
    f"(variables.newClosed && {_RECORDS}.exists(m, m in variables.newNotes))"
    f" || (!variables.newClosed && {_RECORDS}.exists(m, m in variables.oldNotes && variables.oldNotes[m].{_BY_US}))"
)
"""A node is closed with a record, and opened if it was open before by the record."""
_TAINTS = (
    f"variables.newTaints.all(n, (n.key == '{CONDEMNED}' && n.effect == 'NoSchedule')"
    " || variables.oldTaints.exists(o, o == n))"
    f" && variables.oldTaints.all(o, o.key == '{CONDEMNED}' || variables.newTaints.exists(n, n == o))"
)
_OUR_STATE = (
    "variables.newChecks.all(n, variables.oldChecks.exists(o, o == n || (o.name == n.name"
    f" && n.name == '{CHECK}' && (n.state == 'Pending' || (n.state == 'Ready' && (variables.admit || variables.resize))"
    " || (n.state == 'Retry' && (variables.admit || variables.evict)))"
    " && dyn(n).all(f, f in ['name', 'state', 'message', 'lastTransitionTime', 'podSetUpdates']"
    " || (f in dyn(o) && dyn(o)[f] == dyn(n)[f]))"
    " && (!has(n.podSetUpdates) || (has(o.podSetUpdates) && o.podSetUpdates == n.podSetUpdates)"
    " || (variables.admit && n.state == 'Ready' && n.podSetUpdates.all(u,"
    " dyn(u).all(f, f in ['name', 'nodeSelector'])"
    f" && (!has(u.nodeSelector) || u.nodeSelector.all(s, s == '{HOSTNAME}' || s.startsWith('{PLACEMENT}')))))))))"
    " && variables.oldChecks.all(o, variables.newChecks.exists(n, n.name == o.name))"
)


def _declared(name: str, holds: str) -> str:
    """A Job or its template declares a number that meets a condition."""
    given = f"m['{PREFIX}{name}']"
    return (
        "[variables.oldNotes, variables.oldLabels, variables.oldTemplateNotes, variables.oldTemplateLabels].exists(m,"
        f" '{PREFIX}{name}' in m && {given}.matches('^[0-9]{{1,6}}$') && {holds.format(f'int({given})')})"
    )


_WIDTH = (
    "variables.oldSuspend == variables.newSuspend && (variables.newSuspend ? variables.admit : variables.resize)"
    f" && {_declared('members', 'object.spec.parallelism <= {}')}"
    f" && {_declared('min-members', '{0} >= 1 && object.spec.parallelism >= {0}')}"
)
"""Starts set it before the Job runs, changes of width while it runs, both within its owner's declarations."""
_OPENED = (
    f"variables.oldGates.exists(o, o.name == '{CONTROLLER}') && !variables.newGates.exists(n, n.name == '{CONTROLLER}')"
)
_OWN_REPLICAS = f"variables.newReplicas >= 0 && variables.newReplicas <= {MOST_REPLICAS}"

GATE, SUSPENDED, RESUMED, WIDTH = "our admission gate", "suspend", "suspend of what we stopped", "parallelism"
ACTIVE, REACTIVATED, UNMARKED = "active", "active of what we stopped", "our mark of a stop"
TEMPLATE_PLACE, TEMPLATE_UNPLACED = "place of the template", "our place out of the template"
POD_GATES, POD_PLACE = "our scheduling gate", "place of the pod"
OUR_STATE, CONDITIONS, QUEUE_CHECK = "state of our check", "conditions of our check", "our check in a queue"
PLACEMENT_LABEL, MIG_CLIENTS = "placement label", "paused MIG clients"
UNSCHEDULABLE, TAINTS, MIG_FILE = "unschedulable", "our taint", "MIG file"
REPLICAS, MORE_REPLICAS, MIN_REPLICAS = "replicas", "replicas upwards", "minReplicas"
FLOOR_NOTE, CEILING_NOTE = PREFIX + FLOOR, PREFIX + CEILING
NOTES = (EPOCH, CHECKPOINT_REQUEST, MIG_GEOMETRY, SHARING_CONFIG, OFFERED, FLOOR_NOTE, CEILING_NOTE)
ANSWERS = "answers of people, taken off"

CHANGES: Mapping[str, Change] = {
    **{note: _key("annotations", note) for note in NOTES},
    STOPPED: Change("annotations", f"k == '{STOPPED}' && (k in variables.newNotes ? {_STOPS} : {_STARTS})"),
    CORDONED: Change("annotations", f"k == '{CORDONED}' && {_RECORD}"),
    EFFECT: Change("annotations", f"k == '{EFFECT}' && {_RECORD}"),
    ANSWERS: Change("annotations", f"k in ['{APPROVE}', '{REJECT}'] && !(k in variables.newNotes)"),
    CHECKPOINT_ACK: Change("annotations", f"k == '{CHECKPOINT_ACK}' && !(k in variables.newNotes)"),
    UNMARKED: Change("annotations", f"k == '{STOPPED}' && {_UNMARKED}"),
    GATE: Change("annotations", _OURS_GOES),
    PLACEMENT_LABEL: Change("labels", f"{_PLACE} && (!(k in variables.newLabels) || variables.newLabels[k] == 'true')"),
    CONFIG: _key("labels", CONFIG),
    PLUGIN_CONFIG: Change("labels", f"k == '{PLUGIN_CONFIG}' && variables.oldClosed"),
    STATE: Change("labels", f"k == '{STATE}' && !(k in variables.newLabels)"),
    MIG_CLIENTS: Change(
        "labels", f"k.startsWith('{DEPLOY}') && k in variables.newLabels && variables.newLabels[k] == 'true'"
    ),
    SUSPENDED: _key("spec", "suspend", _HANDED_OVER),
    RESUMED: _key("spec", "suspend", f"!variables.newSuspend && '{STOPPED}' in variables.oldNotes"),
    WIDTH: _key("spec", "parallelism", _WIDTH),
    TEMPLATE_PLACE: _key("spec", "template", _placed_template(_PLACED)),
    TEMPLATE_UNPLACED: _key("spec", "template", _placed_template(_UNPLACED)),
    ACTIVE: _key("spec", "active", _ACTIVITY),
    REACTIVATED: _key("spec", "active", f"object.spec.active && '{STOPPED}' in variables.oldNotes"),
    POD_GATES: _key("spec", "schedulingGates", _fewer("Gates", CONTROLLER)),
    POD_PLACE: _key(
        "spec", "nodeSelector", f"{_OPENED} && " + _maps("Place", f"k == '{HOSTNAME}' && !(k in variables.oldPlace)")
    ),
    UNSCHEDULABLE: _key("spec", "unschedulable", _CLOSING),
    TAINTS: _key("spec", "taints", _TAINTS),
    REPLICAS: _key("spec", "replicas", _OWN_REPLICAS),
    MORE_REPLICAS: _key("spec", "replicas", f"{_OWN_REPLICAS} && variables.newReplicas >= variables.oldReplicas"),
    MIN_REPLICAS: _key("spec", "minReplicas", "object.spec.minReplicas <= oldObject.spec.maxReplicas"),
    QUEUE_CHECK: _key(
        "spec",
        "admissionChecksStrategy",
        _maps("Strategy", "k == 'admissionChecks'") + " && " + _fewer("QueueChecks", CHECK),
    ),
    OUR_STATE: _key("status", "admissionChecks", _OUR_STATE),
    CONDITIONS: _key("status", "conditions"),
    MIG_FILE: _key("data", "config.yaml"),
}
"""By their name in rules."""
