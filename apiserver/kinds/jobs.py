"""Jobs: what is refused, and what may change when."""

from __future__ import annotations

from typing import Any

from apiserver.errors import FieldError, invalid_value, required, unsupported
from apiserver.kinds.internal import compact, internal, internal_template
from apiserver.kinds.pods import pod_spec_errors

Obj = dict[str, Any]
IMMUTABLE = "field is immutable"
DIRECTIVES = ("nodeSelector", "affinity", "tolerations", "schedulingGates")  # of a suspended Job's template
WARNING = (
    "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set "
    "propagationPolicy=Orphan to suppress this warning"
)


def job_errors(job: Obj) -> list[FieldError]:
    """What is wrong with a new Job."""
    spec = job["spec"]
    errors = [
        invalid_value(f"spec.{name}", spec[name], "must be greater than or equal to 0")
        for name in ("parallelism", "completions", "activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished")
        if (spec.get(name) or 0) < 0
    ]
    if spec.get("completionMode") == "Indexed" and spec.get("completions") is None:
        errors.append(required("spec.completions", "when completion mode is Indexed"))
    template = spec["template"]["spec"]
    errors += pod_spec_errors(template, "spec.template.spec")
    if template.get("restartPolicy") not in {"OnFailure", "Never"}:
        shown = template.get("restartPolicy")
        if shown == "Always":
            why = "spec.template.spec.restartPolicy"
            errors.append(unsupported(why, shown, ("OnFailure", "Never")))
        else:
            errors.append(required("spec.template.spec.restartPolicy", 'valid values: "OnFailure", "Never"'))
    return errors


def job_update_errors(job: Obj, old: Obj) -> list[FieldError]:
    """What is wrong with an update of a Job."""
    new, held = job["spec"], old["spec"]
    errors = pod_spec_errors(new["template"]["spec"], "spec.template.spec")
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
    """Whether a Job is suspended, and was never started or its controller says that it stopped."""
    if not job["spec"].get("suspend"):
        return False
    status = job.get("status") or {}
    conditions = status.get("conditions") or []
    said = [each["status"] for each in conditions if each["type"] == "Suspended"]
    return said == ["True"] if said else "startTime" not in status


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
