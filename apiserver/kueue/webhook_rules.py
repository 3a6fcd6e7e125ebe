"""The refusals of Kueue's webhooks, as field errors; pure functions over the new and the stored object."""

from __future__ import annotations

import json
import re
from typing import Any

from apiserver.errors import (
    FieldError,
    duplicate,
    forbidden_field,
    invalid_value,
    not_found_value,
    required,
    too_long,
    unsupported,
)
from apiserver.kueue import workloads
from apiserver.kueue.amounts import amount
from apiserver.kueue.names import (
    COMPLETIONS_EQUAL,
    ELASTIC_JOB,
    GATED_BY,
    GROUP_NAME_LABEL,
    GROUP_TOTAL,
    MANAGED,
    MAX_EXEC_LABEL,
    MIN_PARALLELISM,
    PRIORITY_BOOST,
    PRIORITY_LABEL,
    QUEUE_LABEL,
    STOPPING,
    annotations_of,
    group_name,
    labels_of,
    pod_sets_of,
    queue_name,
    spec_of,
)
from apiserver.kueue.schemas import SUBDOMAIN
from apiserver.metadata import label_errors
from apiserver.quantity import parse

Obj = dict[str, Any]
Errors = list[FieldError]
IMMUTABLE = "field is immutable"
GATE_LENGTH = 63
# structures are shown in the order of their fields, not of their names
ADMISSION = ("clusterQueue", "podSetAssignments")
ASSIGNMENT = ("name", "flavors", "resourceUsage", "count", "topologyAssignment", "delayedTopologyRequest")
UPDATE = ("name", "labels", "annotations", "nodeSelector", "tolerations")
TOLERATION = ("key", "operator", "value", "effect", "tolerationSeconds")


def _label(name: str) -> str:
    return f"metadata.labels[{name}]"


def _annotation(name: str) -> str:
    return f"metadata.annotations[{name}]"


def _immutable(new: Any, old: Any, path: str) -> Errors:
    return [] if new == old else [invalid_value(path, new, IMMUTABLE)]


def gates(obj: Obj, old: Obj | None) -> Errors:
    """The annotation admission-gated-by: set at creation only, shortened afterwards."""
    path, new = _annotation(GATED_BY), annotations_of(obj).get(GATED_BY, "")
    errors: Errors = []
    names = [each.strip() for each in new.split(",")]
    if old is not None and new:
        before = annotations_of(old).get(GATED_BY, "")
        if not before:
            errors.append(forbidden_field(path, "cannot add admission gate after creation"))
        elif set(names) - {each.strip() for each in before.split(",")}:
            errors.append(forbidden_field(path, "can only remove gates, not add new ones"))
    seen = set()
    for name in names if new else []:
        if not name:
            errors.append(invalid_value(path, new, "cannot contain empty gate names"))
        elif name in seen:
            errors.append(invalid_value(path, new, f"duplicate gate name: {name}"))
        else:
            seen.add(name)
            errors += _domain_path(path, name)
            if len(name) > GATE_LENGTH:
                errors.append(too_long(path, GATE_LENGTH))
    return errors


def _domain_path(path: str, name: str) -> Errors:
    domain, slash, rest = name.partition("/")
    if not slash or not domain or not rest:
        return [invalid_value(path, name, 'must be a domain-prefixed path (such as "acme.io/foo")')]
    if not re.fullmatch(SUBDOMAIN, domain):
        return [
            invalid_value(
                path,
                domain,
                "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'",
            )
        ]
    return []


def queue_label(obj: Obj) -> Errors:
    """The label queue-name is a name."""
    name = labels_of(obj).get(QUEUE_LABEL)
    if name is None or re.fullmatch(SUBDOMAIN, name):
        return []
    why = (
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
        "start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
        "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
    )
    return [invalid_value(_label(QUEUE_LABEL), name, why)]


def _max_exec(obj: Obj) -> Errors:
    text = labels_of(obj).get(MAX_EXEC_LABEL)
    if text is None:
        return []
    try:
        seconds = int(text)
    except ValueError:
        return [invalid_value(_label(MAX_EXEC_LABEL), text, f'strconv.Atoi: parsing "{text}": invalid syntax')]
    return [] if seconds > 0 else [invalid_value(_label(MAX_EXEC_LABEL), seconds, "should be greater than 0")]


def priority_class(*, suspended: bool, obj: Obj, old: Obj) -> Errors:
    """The label priority-class may change, but not come (while it runs) or go."""
    path, new, before = (
        _label(PRIORITY_LABEL),
        labels_of(obj).get(PRIORITY_LABEL, ""),
        labels_of(old).get(PRIORITY_LABEL, ""),
    )
    if not suspended and not before and new:
        return [invalid_value(path, new, "WorkloadPriorityClass cannot be added to a non-suspended workload")]
    if before and not new:
        return [invalid_value(path, new, "WorkloadPriorityClass cannot be removed from a workload")]
    return []


def suspended(job: Obj) -> bool:
    """Suspended, and not on the way to it."""
    return bool(job["spec"].get("suspend")) and annotations_of(job).get(STOPPING) != "true"


def job(obj: Obj, old: Obj | None) -> Errors:
    """A Job."""
    errors = queue_label(obj) + _max_exec(obj) + gates(obj, None)
    least = annotations_of(obj).get(MIN_PARALLELISM)
    if least is not None and (old is None or annotations_of(old).get(MIN_PARALLELISM) != least):
        errors += _min_parallelism(obj, least)
    errors += _completions_equal(obj)
    if old is None:
        return errors
    if not suspended(obj):
        errors += _immutable(queue_name(obj), queue_name(old), _label(QUEUE_LABEL))
    if not suspended(obj) or not suspended(old):
        errors += _immutable(
            labels_of(obj).get(MAX_EXEC_LABEL, ""), labels_of(old).get(MAX_EXEC_LABEL, ""), _label(MAX_EXEC_LABEL)
        )
    errors += priority_class(suspended=suspended(obj), obj=obj, old=old)
    known = {str(error) for error in errors}
    errors += [error for error in gates(obj, old) if str(error) not in known]
    partial = MIN_PARALLELISM in annotations_of(old) and not spec_of(old).get("suspend")
    if partial and spec_of(old).get("parallelism", 1) != spec_of(obj).get("parallelism", 1):
        why = "cannot change when partial admission is enabled and the job is not suspended"
        errors.append(forbidden_field("spec.parallelism", why))
    return errors


def pods_count(obj: Obj) -> int:
    """Pods of a Job running at once."""
    parallelism = int(spec_of(obj).get("parallelism", 1))
    completions = spec_of(obj).get("completions")
    return parallelism if completions is None else min(parallelism, int(completions))


def _min_parallelism(obj: Obj, text: str) -> Errors:
    path = _annotation(MIN_PARALLELISM)
    try:
        least = int(text)
    except ValueError:
        return [invalid_value(path, text, f'strconv.Atoi: parsing "{text}": invalid syntax')]
    if 0 < least < pods_count(obj):
        return []
    return [invalid_value(path, least, f"should be between 0 and {pods_count(obj) - 1}")]


def _completions_equal(obj: Obj) -> Errors:
    text = annotations_of(obj).get(COMPLETIONS_EQUAL)
    if text is None or text.lower() not in {"true", "1", "t"}:
        return []
    if spec_of(obj).get("completionMode", "NonIndexed") == "NonIndexed":
        return [invalid_value(_annotation(COMPLETIONS_EQUAL), text, "should not be enabled for NonIndexed jobs")]
    completions = spec_of(obj).get("completions", 1)
    if spec_of(obj).get("parallelism", 1) == completions:
        return []
    why = f"should be equal to parallelism when {COMPLETIONS_EQUAL} annotation is true"
    return [invalid_value("spec.completions", completions, why)]


def serving(obj: Obj, old: Obj | None) -> Errors:
    """A Deployment or StatefulSet."""
    errors = queue_label(obj) + gates(obj, old)
    if old is None:
        return errors
    idle = not (old.get("status") or {}).get("readyReplicas")
    if not idle or not queue_name(obj):
        errors += _immutable(queue_name(obj), queue_name(old), _label(QUEUE_LABEL))
    return errors + priority_class(suspended=idle, obj=obj, old=old)


def stateful_set(obj: Obj, old: Obj | None) -> Errors:
    """A StatefulSet: its size is fixed, but for zero."""
    errors = serving(obj, old)
    if old is None or not queue_name(obj):
        return errors
    before, after = (spec_of(each).get("replicas", 1) for each in (old, obj))
    if before and after:
        errors += _immutable(after, before, "spec.replicas")
    if not before and after and (obj.get("status") or {}).get("replicas"):
        errors.append(forbidden_field("spec.replicas", "scaling down is still in progress"))
    return errors


def pod(obj: Obj, old: Obj | None) -> Errors:
    """A Pod, of a group or alone."""
    errors = queue_label(obj) + _max_exec(obj) + gates(obj, old)
    managed = labels_of(obj).get(MANAGED)
    if managed is not None and managed != "true":
        errors.append(forbidden_field(_label(MANAGED), "managed label value can only be 'true'"))
    name, total = group_name(obj), annotations_of(obj).get(GROUP_TOTAL)
    both = f"both the '{GROUP_TOTAL}' annotation and the '{GROUP_NAME_LABEL}' label should be set"
    if total is not None and not name:
        errors.append(required(_label(GROUP_NAME_LABEL), both))
    elif name and total is None:
        errors.append(required(_annotation(GROUP_TOTAL), both))
    elif total is not None:
        errors += _total(total)
    if old is not None and group_name(old):
        errors += _immutable(name, group_name(old), _label(GROUP_NAME_LABEL))
    return errors


def _total(text: str) -> Errors:
    path = _annotation(GROUP_TOTAL)
    try:
        number = int(text)
    except ValueError:
        return [invalid_value(path, text, f'strconv.Atoi: parsing "{text}": invalid syntax')]
    if number > 0:
        return []
    why = f"incorrect annotation value '{GROUP_TOTAL}={text}': group total count should be greater than zero"
    return [invalid_value(path, text, why)]


def workload(obj: Obj, old: Obj | None, *, boosts: bool) -> Errors:
    """A Workload, its status included."""
    errors: Errors = []
    flexible = sum(1 for each in pod_sets_of(obj) if each.get("minCount") is not None)
    if flexible > 1:
        errors.append(invalid_value("spec.podSets", flexible, "at most one podSet can use minCount"))
    status = workloads.status_of(obj)
    if workloads.has_reservation(obj):
        errors += _admission(obj, status.get("admission"))
    errors += _reclaimable(obj, status, old)
    for number, check in enumerate(status.get("admissionChecks") or []):
        errors += _updates(check, obj, f"status.admissionChecks[{number}].podSetUpdates")
    errors += gates(obj, old)
    if boosts and PRIORITY_BOOST in annotations_of(obj):
        errors += _boost(annotations_of(obj)[PRIORITY_BOOST])
    if old is not None:
        errors += _workload_update(obj, old)
    return errors


def _admission(obj: Obj, admission: Obj | None) -> Errors:
    if admission is None:
        return [required("status.admission", "must be set while the QuotaReserved condition is true")]
    names = {each["name"] for each in pod_sets_of(obj)}
    errors: Errors = []
    for number, each in enumerate(admission.get("podSetAssignments") or []):
        path = f"status.admission.podSetAssignments[{number}]"
        if each["name"] not in names:
            errors.append(not_found_value(f"{path}.name", each["name"]))
        count = each.get("count", 0)
        for resource, text in (each.get("resourceUsage") or {}).items():
            if count and amount(resource, text) % count:
                errors.append(invalid_value(f"{path}.resourceUsage[{resource}]", text, f"is not a multiple of {count}"))
    return errors


def _reclaimable(obj: Obj, status: Obj, old: Obj | None) -> Errors:
    stale = workloads.status_of(old).get("reclaimablePods") or [] if old and ELASTIC_JOB in annotations_of(obj) else []
    counts = {each["name"]: each.get("count", 1) for each in pod_sets_of(obj)}
    errors: Errors = []
    for each in status.get("reclaimablePods") or []:
        path = f"status.reclaimablePods[{each['name']}]"
        if each["name"] not in counts:
            errors.append(unsupported(f"{path}.name", each["name"], counts))
        elif each["count"] > counts[each["name"]] and each not in stale:
            why = f"should be less or equal to {counts[each['name']]}"
            errors.append(invalid_value(f"{path}.count", each["count"], why))
    return errors


def _updates(check: Obj, obj: Obj, path: str) -> Errors:
    names = sorted(each["name"] for each in pod_sets_of(obj))
    return [
        unsupported(f"{path}[{number}].name", each["name"], names)
        for number, each in enumerate(check.get("podSetUpdates") or [])
        if each["name"] not in names
    ]


def _boost(text: str) -> Errors:
    path, why = _annotation(PRIORITY_BOOST), "must be a valid signed integer"
    if not text:
        return [invalid_value(path, text, f'{why}; use "0" explicitly, empty string is not allowed')]
    return [] if re.fullmatch(r"[+-]?\d+", text) else [invalid_value(path, text, why)]


def _workload_update(obj: Obj, old: Obj) -> Errors:
    errors: Errors = []
    if workloads.has_reservation(old):
        errors += _pod_sets(pod_sets_of(obj), pod_sets_of(old))
    new, before = (workloads.status_of(each).get("admission") for each in (obj, old))
    if new is not None and before is not None and _placeless(new) != _placeless(before):
        shown = _ordered(new, ADMISSION)
        if "podSetAssignments" in shown:
            shown["podSetAssignments"] = [_ordered(each, ASSIGNMENT) for each in shown["podSetAssignments"]]
        errors.append(invalid_value("status.admission", new, IMMUTABLE, raw=_json(shown)))
    now = {each["name"]: each for each in workloads.status_of(obj).get("admissionChecks") or []}
    for number, each in enumerate(workloads.status_of(old).get("admissionChecks") or []):
        check = now.get(each["name"])
        if check is None or each["state"] != "Ready" or check["state"] != "Ready":
            continue
        if check.get("podSetUpdates") != each.get("podSetUpdates"):
            shown_updates = [_update(update) for update in check.get("podSetUpdates") or []]
            path = f"status.admissionChecks[{number}].podSetUpdates"
            errors.append(invalid_value(path, None, IMMUTABLE, raw=_json(shown_updates)))
    return errors


def _pod_sets(new: list[Obj], old: list[Obj]) -> Errors:
    if len(new) != len(old):
        return [invalid_value("spec.podSets", new, IMMUTABLE)]
    errors: Errors = []
    for number, (after, before) in enumerate(zip(new, old, strict=True)):
        count = max(after.get("count", 1), before.get("count", 1))  # fewer pods are allowed
        if after | {"count": count} != before | {"count": before.get("count", 1)}:
            errors.append(invalid_value(f"spec.podSets.{number}", after, IMMUTABLE))
    return errors


def _placeless(admission: Obj) -> Obj:
    """An admission without its placement: the placement may change."""
    rows = [
        {key: value for key, value in each.items() if key not in {"topologyAssignment", "delayedTopologyRequest"}}
        for each in admission.get("podSetAssignments") or []
    ]
    return admission | {"podSetAssignments": rows}


def _ordered(obj: Obj, order: tuple[str, ...]) -> Obj:
    return {key: obj[key] for key in order if key in obj}


def _update(update: Obj) -> Obj:
    found = _ordered(update, UPDATE)
    if "tolerations" in found:
        found["tolerations"] = [_ordered(each, TOLERATION) for each in found["tolerations"]]
    return found


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def resource_groups(groups: list[Obj] | None, *, has_parent: bool, parent: str) -> Errors:
    """Quotas of a ClusterQueue (`parent` is its cohort) or a Cohort."""
    errors: Errors = []
    resources: set[str] = set()
    flavors: set[str] = set()
    for number, group in enumerate(groups or []):
        path = f"spec.resourceGroups[{number}]"
        for at, name in enumerate(group["coveredResources"]):
            if name in resources:
                errors.append(duplicate(f"{path}.coveredResources[{at}]", name))
            resources.add(name)
        for at, flavor in enumerate(group["flavors"]):
            here = f"{path}.flavors[{at}]"
            errors += _quotas(flavor, group["coveredResources"], here, has_parent=has_parent, parent=parent)
            if flavor["name"] in flavors:
                errors.append(duplicate(f"{here}.name", flavor["name"]))
            flavors.add(flavor["name"])
    return errors


def _quotas(flavor: Obj, covered: list[str], path: str, *, has_parent: bool, parent: str) -> Errors:
    errors: Errors = []
    for at, (each, name) in enumerate(zip(flavor["resources"], covered, strict=False)):
        here = f"{path}.resources[{at}]"
        if each["name"] != name:
            errors.append(invalid_value(f"{here}.name", each["name"], "must match the name in coveredResources"))
        for limit in ("nominalQuota", "borrowingLimit", "lendingLimit"):
            if limit not in each:
                continue
            text = str(each[limit])
            if parse(text) < 0:
                errors.append(invalid_value(f"{here}.{limit}", text, "must be greater than or equal to 0"))
            if limit != "nominalQuota" and not has_parent:
                errors.append(invalid_value(f"{here}.{limit}", text, f"must be nil when {parent} is empty"))
        if "lendingLimit" in each and parse(str(each["lendingLimit"])) > parse(str(each["nominalQuota"])):
            why = "must be less than or equal to the nominalQuota"
            errors.append(invalid_value(f"{here}.lendingLimit", str(each["lendingLimit"]), why))
    return errors


def cluster_queue(obj: Obj) -> Errors:
    """A ClusterQueue."""
    spec = spec_of(obj)
    errors = resource_groups(spec.get("resourceGroups"), has_parent=bool(spec.get("cohortName")), parent="cohort")
    flavors = {flavor["name"] for group in spec.get("resourceGroups") or [] for flavor in group["flavors"]}
    checks = (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or []
    for number, check in enumerate(checks):
        for at, name in enumerate(check.get("onFlavors") or []):
            if name not in flavors:
                path = f"spec.admissionChecksStrategy.admissionChecks[{number}].onFlavors[{at}]"
                errors.append(unsupported(path, name, sorted(flavors)))
    return errors


def cohort(obj: Obj) -> Errors:
    """A Cohort."""
    spec = spec_of(obj)
    return resource_groups(spec.get("resourceGroups"), has_parent=bool(spec.get("parentName")), parent="parent")


def flavor(obj: Obj) -> Errors:
    """A ResourceFlavor: its labels are those of nodes."""
    return label_errors(spec_of(obj).get("nodeLabels") or {}, "spec.nodeLabels")
