"""Jobs: refusals, and the legal changes by state."""

from __future__ import annotations

from typing import Any

from apiserver.errors import FieldError, invalid_value, required, unsupported
from apiserver.kinds.internal import compact, internal, internal_template
from apiserver.kinds.pods import template_errors
from apiserver.kinds.workload_defaults import JOB_NAME, JOB_UID
from apiserver.selectors import matches_labels

Obj = dict[str, Any]
IMMUTABLE = "field is immutable"
NOT_NEGATIVE = (
    "parallelism", "completions", "activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished",
    "backoffLimitPerIndex", "maxFailedIndexes",
)  # fmt: skip
MODES, RESTARTS = ("NonIndexed", "Indexed"), ("OnFailure", "Never")
WIDEST_INDEXED = 100_000
DIRECTIVES = ("nodeSelector", "affinity", "tolerations", "schedulingGates")  # of a suspended Job's template
WARNING = (
    "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set "
    "propagationPolicy=Orphan to suppress this warning"
)


def job_errors(job: Obj) -> list[FieldError]:
    """Errors of a Job as such: its selector, then its spec."""
    return _selector_errors(job) + _spec_errors(job["spec"])


def _selector_errors(job: Obj) -> list[FieldError]:
    """A generated selector selects the labels given to the template by the server: those of name and uid."""
    spec, metadata = job["spec"], job["metadata"]
    if spec.get("manualSelector") or not spec.get("selector"):
        return []
    labels = spec["template"].get("metadata", {}).get("labels") or {}
    wanted = dict.fromkeys(JOB_UID[::-1], metadata.get("uid")) | dict.fromkeys(JOB_NAME[::-1], metadata.get("name", ""))
    order = (JOB_UID[1], JOB_NAME[1], JOB_UID[0], JOB_NAME[0])
    errors = [
        invalid_value(f"spec.template.metadata.labels[{key}]", labels, f"must be '{wanted[key]}'")
        for key in order
        if labels.get(key) != wanted[key]
    ]
    if not matches_labels(spec["selector"], wanted):
        errors.append(invalid_value("spec.selector", spec["selector"], "`selector` not auto-generated"))
    return errors


def _spec_errors(spec: Obj) -> list[FieldError]:
    errors = [
        invalid_value(f"spec.{name}", spec[name], "must be greater than or equal to 0")
        for name in NOT_NEGATIVE
        if (spec.get(name) or 0) < 0
    ]
    errors += _mode_errors(spec)
    template = spec["template"]
    labels = template.get("metadata", {}).get("labels") or {}
    if spec.get("selector") and not matches_labels(spec["selector"], labels):
        why = "`selector` does not match template `labels`"
        errors.append(invalid_value("spec.template.metadata.labels", labels, why))
    replaces, by_failure = spec.get("podReplacementPolicy"), bool(spec.get("podFailurePolicy"))
    allowed = ("Failed",) if by_failure else ("Failed", "TerminatingOrFailed")
    if replaces is not None and replaces not in allowed:
        errors.append(unsupported("spec.podReplacementPolicy", replaces, allowed))
    return errors + template_errors(template) + _restart_errors(template["spec"].get("restartPolicy"), by_failure)


def _mode_errors(spec: Obj) -> list[FieldError]:
    """Errors of the completion mode: mandatory fields of an indexed Job, and fields for indexed Jobs only."""
    mode, failing = spec.get("completionMode") or MODES[0], spec.get("maxFailedIndexes")
    errors = []
    if failing is not None and spec.get("backoffLimitPerIndex") is None:
        errors.append(required("spec.backoffLimitPerIndex", "when maxFailedIndexes is specified"))
    if mode not in MODES:
        errors.append(unsupported("spec.completionMode", mode, MODES))
    if mode == "Indexed":
        completions, wide = spec.get("completions"), spec.get("parallelism") or 0
        if completions is None:
            errors.append(required("spec.completions", "when completion mode is Indexed"))
        if wide > WIDEST_INDEXED:
            why = f"must be less than or equal to {WIDEST_INDEXED} when completion mode is Indexed"
            errors.append(invalid_value("spec.parallelism", wide, why))
        if completions is not None and failing is not None and failing > completions:
            errors.append(invalid_value("spec.maxFailedIndexes", failing, "must be less than or equal to completions"))
    elif mode == "NonIndexed":
        errors += [
            invalid_value(f"spec.{name}", spec[name], "requires indexed completion mode")
            for name in ("backoffLimitPerIndex", "maxFailedIndexes")
            if spec.get(name) is not None
        ]
    return errors


def _restart_errors(policy: str | None, by_failure: bool) -> list[FieldError]:
    path = "spec.template.spec.restartPolicy"
    if policy in {None, "", "Always"}:
        return [required(path, 'valid values: "OnFailure", "Never"')]
    if policy not in RESTARTS:
        return [unsupported(path, policy, RESTARTS)]
    if by_failure and policy != "Never":
        return [invalid_value(path, policy, 'only "Never" is supported when podFailurePolicy is specified')]
    return []


def job_update_errors(job: Obj, old: Obj) -> list[FieldError]:
    """Errors of an update of a Job, those of the new spec included."""
    new, held = job["spec"], old["spec"]
    errors = _spec_errors(new)
    if new.get("completions") != held.get("completions") and not _elastic(new, held):
        errors.append(invalid_value("spec.completions", new.get("completions"), IMMUTABLE))
    for name in (
        "selector",
        "completionMode",
        "podFailurePolicy",
        "backoffLimitPerIndex",
        "managedBy",
        "successPolicy",
    ):
        if new.get(name) != held.get(name):
            errors.append(invalid_value(f"spec.{name}", new.get(name), IMMUTABLE))
    return errors + _template_errors(new["template"], held["template"], old)


def _elastic(new: Obj, held: Obj) -> bool:
    """An indexed Job may change completions together with parallelism."""
    return (
        new.get("completionMode") == "Indexed"
        and held.get("completions") is not None
        and new.get("completions") == new.get("parallelism")
    )


def _template_errors(new: Obj, held: Obj, old: Obj) -> list[FieldError]:
    """Of a suspended Job the directives of placement, labels, annotations and resources may change; else nothing."""
    if new == held:
        return []
    if not is_movable(old):
        return [invalid_value("spec.template", None, IMMUTABLE, raw=compact(internal_template(new)))]
    munged = dict(new["spec"])
    for name in DIRECTIVES:
        _set_back(munged, held["spec"], name)
    for group in ("containers", "initContainers"):
        if group in munged:
            munged[group] = [
                _with_resources(given, before)
                for given, before in zip(munged[group], held["spec"].get(group) or munged[group], strict=False)
            ]
    if munged == held["spec"]:
        return []
    return [invalid_value("spec.template.spec", None, IMMUTABLE, raw=compact(internal("PodSpec", new["spec"])))]


def is_movable(job: Obj) -> bool:
    """True if a Job is suspended, and either was never started or is stopped by the status of its controller."""
    if not job["spec"].get("suspend"):
        return False
    status = job.get("status") or {}
    conditions = status.get("conditions") or []
    stopped = any(each["type"] == "Suspended" and each["status"] == "True" for each in conditions)
    return "startTime" not in status or (stopped and not status.get("active"))


def job_status_errors(job: Obj, old: Obj) -> list[FieldError]:
    """Errors of a status: an ended Job has started, has no active pods and, if complete, states its time."""
    status = job.get("status") or {}
    ended = _true(job) - _true(old)
    errors = []
    if ended and "startTime" not in status:
        errors.append(required("status.startTime", "startTime is required for finished job"))
    if ended and status.get("active"):
        errors.append(invalid_value("status.active", status["active"], "active>0 is invalid for finished job"))
    if "Complete" in ended and "completionTime" not in status:
        errors.append(required("status.completionTime", "completionTime is required for Complete jobs"))
    return errors


def _true(job: Obj) -> set[str]:
    conditions = (job.get("status") or {}).get("conditions") or []
    return {each["type"] for each in conditions if each.get("status") == "True"} & {"Complete", "Failed"}


def _set_back(munged: Obj, held: Obj, name: str) -> None:
    if name in held:
        munged[name] = held[name]
    else:
        munged.pop(name, None)


def _with_resources(given: Obj, before: Obj) -> Obj:
    return given | {"resources": before.get("resources") or {}}


def job_deletion(options: Obj) -> tuple[Obj, list[str]]:
    """Pods of a deleted Job stay unless somebody asks otherwise, with a warning."""
    if options.get("propagationPolicy") or options.get("orphanDependents") is not None:
        return options, []
    return options | {"propagationPolicy": "Orphan"}, [WARNING]
