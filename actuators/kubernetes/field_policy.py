"""ValidatingAdmissionPolicies with the fields that our two accounts may change: RBAC knows objects only.

One policy for the account of the controller and one for that of the watchdog. An unlisted write is refused. A change
counts if its kind of instructions is enabled, that is if the account may `use` the action of that name
(`levers.ACTIONS`). They have no parameters, so nothing of them can be stale, and they refuse any write that they cannot
judge (`failurePolicy: Fail`); the first condition keeps them away from everybody else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from actuators.kubernetes.changes import (
    ANSWERS,
    CHANGES,
    GATE,
    MORE_REPLICAS,
    PLACEMENT_LABEL,
    POD_GATES,
    QUEUE_CHECK,
    REACTIVATED,
    RESUMED,
    TEMPLATE_UNPLACED,
    UNMARKED,
    VARIABLES,
    same_but,
)
from actuators.kubernetes.events import REPORTER
from actuators.kubernetes.levers import ACTIONS, GROUP, LEVERS
from actuators.kubernetes.levers.base import PROBE_NAME, Rule
from autopilot.contract.annotations import APPROVE, EPOCH, MANAGER, OFFERED, REJECT, REQUEST
from autopilot.contract.own import INBOX_MAP, MEMORY_MAP, PROBE, WATCHDOG

Obj = dict[str, Any]
NAME, WATCHDOG_NAME = "gpu-autopilot-fields", "gpu-autopilot-fields-watchdog"
LABELS = {"app.kubernetes.io/name": "gpu-autopilot"}
PROTECTED = "kube-system"
"""Namespaces without writes, with commas between them."""
LEFT_ALONE = (
    ("coordination.k8s.io", "leases"),
    ("authentication.k8s.io", "*/*"),
    ("authorization.k8s.io", "*/*"),
)
"""The Lease, in the only namespace open to our write by RBAC, and questions."""
MAIN = {"configmaps": "data", "workloads/status": "status", "admissionchecks/status": "status"}
"""The part of an object with its fields; `spec` of every other resource."""

GIVEN_BACK = (OFFERED, PLACEMENT_LABEL)
"""Changes taken back with every right to write the object, even if their own kind is enabled no more."""

Granted = Mapping[str, Mapping[str, frozenset[str]]]
"""By `GROUP/RESOURCE`: the names of changes with the kinds of instructions in need of them; none: always."""

_EVICTION = (
    "has(object.deleteOptions) && has(object.deleteOptions.preconditions)"
    " && has(object.deleteOptions.preconditions.uid)"
    " && (!has(object.deleteOptions.gracePeriodSeconds) || object.deleteOptions.gracePeriodSeconds >= 1)"
    " && dyn(object.deleteOptions).all(k,"
    " k in ['kind', 'apiVersion', 'preconditions', 'gracePeriodSeconds', 'dryRun'])"
)
_BARE = "!has(object.metadata.finalizers)"
_OURS_NAMED = (
    f"object.metadata.name.startsWith('gpu-autopilot-') && {_BARE} && size(object.metadata.ownerReferences) == 1"
    " && object.metadata.ownerReferences.all(o, o.kind in ['Job', 'Workload', 'ProvisioningRequest'])"
)
_OWN_EVENT = f"has(object.reportingController) && object.reportingController == '{REPORTER}' && {_BARE}"
_PLAIN = f"{_BARE} && !has(object.metadata.ownerReferences) && !has(object.immutable)"
"""Nothing about an object outlives a stolen token."""
_PROBE = " && ".join(
    (
        f"object.metadata.name.startsWith('{PROBE_NAME}') && {_BARE} && !has(object.metadata.ownerReferences)",
        "has(object.spec.automountServiceAccountToken) && !object.spec.automountServiceAccountToken",
        *(f"!has(object.spec.{each})" for each in ("volumes", "hostNetwork", "hostPID", "hostIPC")),
        "object.spec.containers.all(c, !has(c.env) && !has(c.envFrom))",
    )
)
"""Nothing of the namespace is open to a probe pod."""
_REQUEST = f"'{REQUEST}' in variables.{{age}}Labels && variables.{{age}}Labels['{REQUEST}'] == 'true'"


def granted() -> Granted:
    """The levers' rights to patch, by resource."""
    found: dict[str, dict[str, frozenset[str]]] = {}
    for lever in LEVERS:
        for rule in lever.rules:
            if "patch" in rule.verbs:
                held = found.setdefault(_what(rule), {})
                for change in (EPOCH, *rule.changes):
                    held[change] = held.get(change, frozenset()) | lever.kinds
    return found


WATCHED: Granted = {
    key: dict.fromkeys(changes, frozenset[str]())
    for key, changes in {
        "kueue.x-k8s.io/clusterqueues": (QUEUE_CHECK,),
        "kueue.x-k8s.io/workloads": (GATE, UNMARKED, REACTIVATED),
        "batch/jobs": (GATE, UNMARKED, RESUMED, TEMPLATE_UNPLACED),
        "/pods": (POD_GATES,),
        "apps/deployments/scale": (MORE_REPLICAS,),
        "apps/statefulsets/scale": (MORE_REPLICAS,),
    }.items()
}
"""The removals of the watchdog (`autopilot.service.watchdog.removal`)."""


def field_policies(
    namespace: str = "gpu-autopilot",
    accounts: Sequence[str] = ("gpu-autopilot",),
    watchdogs: Sequence[str] = (WATCHDOG,),
    protected: str = PROTECTED,
) -> list[Obj]:
    """Both policies with their bindings, for service accounts of one namespace."""
    return [
        *_policy(NAME, _users(namespace, accounts), protected, _controller(namespace)),
        *_policy(WATCHDOG_NAME, _users(namespace, watchdogs), protected, _watchdog(namespace)),
    ]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{each}'" for each in names)


def _what(rule: Rule) -> str:
    return f"{rule.group}/{rule.resource}"


def _users(namespace: str, accounts: Sequence[str]) -> list[str]:
    return [f"system:serviceaccount:{namespace}:{account}" for account in accounts]


def _controller(namespace: str) -> dict[str, list[tuple[str, str]]]:
    """By `GROUP/RESOURCE OPERATION`: required expressions, each with its message."""
    found = {f"{what} UPDATE": _fields(what, changes) for what, changes in granted().items()}
    found["/pods/eviction CREATE"] = [
        (_EVICTION, "an eviction names the uid of its pod, and gives at least 1 s of grace"),
        (_enabled(_kinds_with("pods/eviction", "create")), "no action that evicts is enabled"),
    ]
    owned = f"{_OURS_NAMED} && {_REQUEST.format(age='new')} && variables.provision"
    for what in ("/podtemplates", "autoscaling.x-k8s.io/provisioningrequests"):
        found[f"{what} CREATE"] = [(owned, "only requests for nodes of ours are created, with one owner")]
    ours = f"{_REQUEST.format(age='old')} && variables.provision"
    found["autoscaling.x-k8s.io/provisioningrequests DELETE"] = [(ours, "only requests for nodes of ours are deleted")]
    here = f"request.namespace == '{namespace}'"
    found["/pods CREATE"] = [(f"{here} && {_PROBE} && variables.set_sharing", "only probe pods of ours are created")]
    ours = f"{here} && request.name.startsWith('{PROBE_NAME}') && variables.set_sharing"
    found["/pods DELETE"] = [(ours, "only probe pods of ours are deleted")]
    memory = f"request.name.matches('^{MEMORY_MAP}(-[ab]-[0-9]+)?$')"
    kept = f"({here} && (request.name in ['{INBOX_MAP}', '{PROBE}'] || {memory}) && {_PLAIN})"
    said = "of our namespace only the memory and the inbox are written"
    fields = found.pop("/configmaps UPDATE")
    found["/configmaps CREATE"] = [(kept, said)]
    found["/configmaps UPDATE"] = [(f"{kept} || ({condition})", text) for condition, text in fields]
    found["/configmaps DELETE"] = [
        (f"{here} && request.name == '{WATCHDOG}'", "only the mark of the watchdog is deleted")
    ]
    return found | _control_resources(here)


def _control_resources(here: str) -> dict[str, list[tuple[str, str]]]:
    """Objects of our own kinds, and Events. Answers of people are only taken off by us."""
    answers = f"!('{APPROVE}' in variables.newNotes) && !('{REJECT}' in variables.newNotes) && {_BARE}"
    epoch = (f"{here} && request.name == '{MANAGER}'", "only the Epoch of our leader is written")
    advice = dict.fromkeys((EPOCH, ANSWERS), frozenset[str]())
    return {
        f"{GROUP}/recommendations CREATE": [(answers, "a recommendation is created without an answer")],
        f"{GROUP}/recommendations UPDATE": _fields(f"{GROUP}/recommendations", advice),
        f"{GROUP}/recommendations DELETE": [],
        f"{GROUP}/recommendations/status UPDATE": [],
        f"{GROUP}/autopilotpolicies/status UPDATE": [],
        f"{GROUP}/epochs CREATE": [epoch],
        f"{GROUP}/epochs UPDATE": [epoch],
        "events.k8s.io/events CREATE": [(_OWN_EVENT, f"Events are those of {REPORTER}")],
    }


def _watchdog(namespace: str) -> dict[str, list[tuple[str, str]]]:
    found = {f"{what} UPDATE": _fields(what, changes) for what, changes in WATCHED.items()}
    here = f"request.namespace == '{namespace}' && request.name == '{WATCHDOG}'"
    for operation in ("CREATE", "UPDATE"):
        found[f"/configmaps {operation}"] = [(here, "only the mark of the watchdog is written")]
    return found


def _kinds_with(resource: str, verb: str) -> frozenset[str]:
    return frozenset(
        kind
        for lever in LEVERS
        if any(rule.resource == resource and verb in rule.verbs for rule in lever.rules)
        for kind in lever.kinds
    )


def _enabled(kinds: Iterable[str]) -> str:
    """True if one of these kinds of instructions is enabled; always, for none."""
    return " || ".join(f"variables.{kind}" for kind in sorted(kinds)) or "true"


def _fields(what: str, changes: Mapping[str, frozenset[str]]) -> list[tuple[str, str]]:
    """The expressions for an update of a resource."""
    group, _, resource = what.partition("/")
    main = MAIN.get(resource, "spec")
    shown = resource if not group else f"{resource} ({group})"
    free: dict[str, list[str]] = {"annotations": [], "labels": [], main: []}
    parts = {
        "annotations": ("variables.oldNotes", "variables.newNotes"),
        "labels": ("variables.oldLabels", "variables.newLabels"),
        main: (f"variables.old{main.title()}", f"variables.new{main.title()}"),
    }
    for name, kinds in changes.items():
        change, enabled = CHANGES[name], _enabled(kinds)
        if change.part in free:
            enabled += f" || !(k in {parts[change.part][1]})" if name in GIVEN_BACK else ""
            free[change.part].append(f"({change.free})" if enabled == "true" else f"({change.free}) && ({enabled})")
    found = [
        (same_but(f"k in ['metadata', '{main}']", "dyn(oldObject)", "dyn(object)"), f"of {shown} only {main} changes")
    ]
    found.append((_KEPT, f"finalizers and owners of {shown} stay"))
    for part, (old, new) in parts.items():
        listed = ", ".join(sorted(name for name in changes if CHANGES[name].part == part)) or "nothing"
        conditions = " || ".join(f"({each})" for each in free[part]) or "false"
        found.append((same_but(conditions, old, new), f"of the {part} of {shown} only these may change: {listed}"))
    for name in changes:
        change = CHANGES[name]
        if change.key and change.holds != "true":
            found.append((f"{_same(main, change.key)} || ({change.holds})", f"{change.key} of {shown}: only {name}"))
    return found


def _same(main: str, key: str) -> str:
    """A field is as before."""
    old, new = f"variables.old{main.title()}", f"variables.new{main.title()}"
    return f"(('{key}' in {old}) == ('{key}' in {new}) && (!('{key}' in {new}) || {new}['{key}'] == {old}['{key}']))"


_KEPT = " && ".join(
    f"(has(object.metadata.{each}) == has(oldObject.metadata.{each})"
    f" && (!has(object.metadata.{each}) || object.metadata.{each} == oldObject.metadata.{each}))"
    for each in ("finalizers", "ownerReferences")
)


def _policy(name: str, users: Sequence[str], protected: str, rules: Mapping[str, list[tuple[str, str]]]) -> list[Obj]:
    validations = [
        (
            f"!has(request.namespace) || !'{protected}'.split(',').exists(n, n.trim() == request.namespace)",
            "this namespace is protected",
        ),
        (f"variables.what in [{_listed(sorted(rules))}]", "no action writes that"),
        *(
            (f"variables.what != '{what}' || ({condition})", text)
            for what, conditions in sorted(rules.items())
            for condition, text in conditions
        ),
    ]
    every = {"apiVersions": ["*"], "operations": ["*"], "scope": "*"}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [{**every, "apiGroups": ["*"], "resources": ["*/*"]}],
            "excludeResourceRules": [
                {**every, "apiGroups": [group], "resources": [resource]} for group, resource in LEFT_ALONE
            ],
        },
        "matchConditions": [
            {
                "name": "our-account",
                "expression": f"request.userInfo.username in [{_listed(users)}]",
            }
        ],
        "variables": _variables([condition for condition, _ in validations]),
        "validations": [
            {"expression": condition, "message": f"{text}", "reason": "Forbidden"} for condition, text in validations
        ],
    }
    meta, version = {"name": name, "labels": LABELS}, "admissionregistration.k8s.io/v1"
    binding = {"policyName": name, "validationActions": ["Deny"]}
    return [
        {"apiVersion": version, "kind": "ValidatingAdmissionPolicy", "metadata": meta, "spec": spec},
        {"apiVersion": version, "kind": "ValidatingAdmissionPolicyBinding", "metadata": meta, "spec": binding},
    ]


WHAT = (
    "request.resource.group + '/' + request.resource.resource"
    " + (has(request.subResource) && request.subResource != '' ? '/' + request.subResource : '')"
    " + ' ' + request.operation"
)


def _variables(expressions: Iterable[str]) -> list[Obj]:
    """The variables of the expressions, in a fixed order."""
    used = set(re.findall(r"variables\.(\w+)", " ".join(expressions)))
    kinds = sorted({kind for lever in LEVERS for kind in lever.kinds})
    known = {"what": WHAT, **VARIABLES}
    for part in ("Spec", "Status", "Data"):
        for age, whose in (("old", "oldObject"), ("new", "object")):
            path = part.lower()
            known[f"{age}{part}"] = f"has({whose}.{path}) ? dyn({whose}.{path}) : {{}}"
    for kind in kinds:
        known[kind] = f"authorizer.group('{GROUP}').resource('{ACTIONS}').name('{kind}').check('use').allowed()"
    return [{"name": name, "expression": text} for name, text in known.items() if name in used]
