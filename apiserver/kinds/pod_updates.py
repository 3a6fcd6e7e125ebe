"""The legal changes of an update of a pod."""

from __future__ import annotations

from typing import Any

from apiserver.errors import FieldError, forbidden_field, invalid_value
from apiserver.kinds.base import keep_status, only_status
from apiserver.kinds.internal import compact, difference, internal
from apiserver.kinds.pods import pod_spec_errors
from apiserver.plain_json import clone

Obj = dict[str, Any]
REFUSED = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\n"
)
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def prepare_pod_update(pod: Obj, old: Obj) -> None:
    """The main resource writes no status."""
    keep_status(pod, old)


def prepare_pod_status(pod: Obj, old: Obj) -> None:
    """The status writes nothing else; its quality of service is not changed."""
    only_status(pod, old)
    if "qosClass" in old.get("status", {}):
        pod.setdefault("status", {})["qosClass"] = old["status"]["qosClass"]


def pod_update_errors(pod: Obj, old: Obj) -> list[FieldError]:
    """Errors of an update of a pod."""
    new_spec, old_spec = pod["spec"], old["spec"]
    errors = pod_spec_errors({name: value for name, value in new_spec.items() if name != "nodeName"}, "spec")
    if len(new_spec.get("containers") or []) != len(old_spec.get("containers") or []):
        errors.append(forbidden_field("spec.containers", "pod updates may not add or remove containers"))
        return errors
    deadline = _deadline_error(new_spec, old_spec)
    if deadline is not None:
        return [*errors, deadline]
    errors += _new_gates(new_spec, old_spec)
    errors += _changed_tolerations(new_spec, old_spec)
    munged = _munged(new_spec, old_spec)
    if munged != old_spec and old_spec.get("schedulingGates"):
        errors += _munge_gated(munged, new_spec, old_spec)
    if munged != old_spec:
        text = REFUSED + difference(internal("PodSpec", old_spec), internal("PodSpec", munged))
        errors.append(forbidden_field("spec", text))
    return errors


def _deadline_error(new: Obj, old: Obj) -> FieldError | None:
    given, held = new.get("activeDeadlineSeconds"), old.get("activeDeadlineSeconds")
    path = "spec.activeDeadlineSeconds"
    if given is not None and held is not None and held < given:
        return invalid_value(path, given, "must be less than or equal to previous value")
    if given is None and held is not None:
        return invalid_value(path, None, "must not update from a positive integer to nil value")
    return None


def _new_gates(new: Obj, old: Obj) -> list[FieldError]:
    held = {gate["name"] for gate in old.get("schedulingGates") or []}
    return [
        forbidden_field(
            f"spec.schedulingGates[{at}].name",
            f"only deletion is allowed, but found new scheduling gate '{gate['name']}'",
        )
        for at, gate in enumerate(new.get("schedulingGates") or [])
        if gate["name"] not in held
    ]


def _changed_tolerations(new: Obj, old: Obj) -> list[FieldError]:
    def plain(toleration: Obj) -> Obj:
        return {name: value for name, value in toleration.items() if name != "tolerationSeconds"}

    given = [plain(each) for each in new.get("tolerations") or []]
    if all(plain(each) in given for each in old.get("tolerations") or []):
        return []
    why = "existing toleration can not be modified except its tolerationSeconds"
    return [forbidden_field("spec.tolerations", why)]


def _munged(new: Obj, old: Obj) -> Obj:
    """The new spec with its freely changeable fields set back."""
    munged: Obj = clone(new)
    for group in ("containers", "initContainers"):
        for container, held in zip(munged.get(group) or [], old.get(group) or [], strict=False):
            container["image"] = held.get("image", "")
    for name in ("activeDeadlineSeconds", "tolerations", "schedulingGates"):
        _set_back(munged, old, name)
    if old.get("terminationGracePeriodSeconds", 0) < 0 and new.get("terminationGracePeriodSeconds") == 1:
        _set_back(munged, old, "terminationGracePeriodSeconds")
    return munged


def _set_back(munged: Obj, old: Obj, name: str) -> None:
    if name in old:
        munged[name] = old[name]
    else:
        munged.pop(name, None)


def _munge_gated(munged: Obj, new: Obj, old: Obj) -> list[FieldError]:
    """Placement of a gated pod may be narrowed: selector keys added, affinity terms narrowed."""
    errors = []
    selector, held = new.get("nodeSelector") or {}, old.get("nodeSelector") or {}
    if selector != held:
        if any(selector.get(key) != value for key, value in held.items()):
            why = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
            errors.append(invalid_value("spec.nodeSelector", selector, why))
        _set_back(munged, old, "nodeSelector")
    given = (new.get("affinity") or {}).get("nodeAffinity")
    before = (old.get("affinity") or {}).get("nodeAffinity")
    if given != before:
        errors += _affinity_errors(given or {}, before or {})
        affinity = dict(munged.get("affinity") or {})
        if before is None:
            affinity.pop("nodeAffinity", None)
        else:
            affinity["nodeAffinity"] = before
        if affinity or "affinity" in old:
            munged["affinity"] = affinity
        else:
            munged.pop("affinity", None)
    return errors


def _affinity_errors(given: Obj, before: Obj) -> list[FieldError]:
    path = f"spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms"
    terms = (given.get(REQUIRED) or {}).get("nodeSelectorTerms") or []
    held = (before.get(REQUIRED) or {}).get("nodeSelectorTerms") or []
    if not held:
        return []
    if len(terms) != len(held):
        why = "no additions/deletions to non-empty NodeSelectorTerms list are allowed"
        return [invalid_value(path, terms, why, raw=compact([internal("NodeTerm", each) for each in terms]))]
    return [
        invalid_value(
            f"{path}[{at}]",
            term,
            "only additions are allowed (no mutations or deletions)",
            raw=compact(internal("NodeTerm", term)),
        )
        for at, (term, old) in enumerate(zip(terms, held, strict=True))
        if not all(
            _starts_with(term.get(name) or [], old.get(name) or []) for name in ("matchExpressions", "matchFields")
        )
    ]


def _starts_with(terms: list[Any], held: list[Any]) -> bool:
    return terms[: len(held)] == held
