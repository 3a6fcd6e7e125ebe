"""Errors of Deployments, ReplicaSets, StatefulSets and budgets."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from apiserver.errors import FieldError, forbidden_field, invalid_value, required, unsupported
from apiserver.kinds.pods import template_errors
from apiserver.selectors import matches_labels

Obj = dict[str, Any]
NOT_NEGATIVE = "must be greater than or equal to 0"
IMMUTABLE = "field is immutable"
PERCENT = re.compile(r"[0-9]+%")
NO_PERCENT = (
    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for "
    "validation is '[0-9]+%')"
)
CHANGEABLE = (
    "replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy", "minReadySeconds",
)  # fmt: skip


def _not_negative(spec: Obj, names: Iterable[str]) -> list[FieldError]:
    return [invalid_value(f"spec.{name}", spec[name], NOT_NEGATIVE) for name in names if (spec.get(name) or 0) < 0]


def _selector_errors(spec: Obj, kind: str) -> list[FieldError]:
    """A selector is there, is not empty, and selects the pods of the template."""
    selector = spec.get("selector")
    errors = []
    if selector is None:
        errors.append(required("spec.selector"))
    elif not selector.get("matchLabels") and not selector.get("matchExpressions"):
        errors.append(invalid_value("spec.selector", selector, f"empty selector is invalid for {kind}"))
    labels = (spec["template"].get("metadata") or {}).get("labels")
    if not matches_labels(selector, labels):
        why = "`selector` does not match template `labels`"
        errors.append(invalid_value("spec.template.metadata.labels", labels, why))
    return errors


def _pods_errors(spec: Obj, kind: str) -> list[FieldError]:
    """Pods of a controller run for ever."""
    errors = template_errors(spec["template"])
    pod = spec["template"]["spec"]
    if pod.get("restartPolicy") != "Always":
        errors.append(unsupported("spec.template.spec.restartPolicy", pod.get("restartPolicy"), ("Always",)))
    if pod.get("activeDeadlineSeconds") is not None:
        text = f"activeDeadlineSeconds in {kind} is not Supported"
        errors.append(forbidden_field("spec.template.spec.activeDeadlineSeconds", text))
    return errors


def _share_errors(value: Any, path: str) -> list[FieldError]:
    """A number of pods, or a percentage."""
    if isinstance(value, int):
        return [invalid_value(path, value, NOT_NEGATIVE)] if value < 0 else []
    return [] if PERCENT.fullmatch(value) else [invalid_value(path, value, NO_PERCENT)]


def _percent(value: Any) -> int:
    return int(value[:-1]) if isinstance(value, str) and PERCENT.fullmatch(value) else 0


def deployment_errors(deployment: Obj) -> list[FieldError]:
    """Errors of a Deployment."""
    spec = deployment["spec"]
    errors = _not_negative(spec, ("replicas",)) + _selector_errors(spec, "deployment")
    errors += _pods_errors(spec, "ReplicaSet") + _strategy_errors(spec.get("strategy") or {})
    errors += _not_negative(spec, ("minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"))
    deadline_s = spec.get("progressDeadlineSeconds")
    if deadline_s is not None and deadline_s <= (spec.get("minReadySeconds") or 0):
        text = "must be greater than minReadySeconds"
        errors.append(invalid_value("spec.progressDeadlineSeconds", deadline_s, text))
    return errors


def _strategy_errors(strategy: Obj) -> list[FieldError]:
    path, kind = "spec.strategy", strategy.get("type", "")
    rolling = strategy.get("rollingUpdate")
    if kind == "Recreate":
        text = "may not be specified when strategy `type` is 'Recreate'"
        return [forbidden_field(f"{path}.rollingUpdate", text)] if rolling is not None else []
    if kind != "RollingUpdate":
        return [unsupported(f"{path}.type", kind, ("Recreate", "RollingUpdate"))]
    missing, surge = (rolling or {}).get("maxUnavailable", 0), (rolling or {}).get("maxSurge", 0)
    where = f"{path}.rollingUpdate.maxUnavailable"
    errors = _share_errors(missing, where) + _share_errors(surge, f"{path}.rollingUpdate.maxSurge")
    if missing in {0, "0%"} and surge in {0, "0%"}:
        errors.append(invalid_value(where, missing, "may not be 0 when `maxSurge` is 0"))
    if _percent(missing) > 100:
        errors.append(invalid_value(where, missing, "must not be greater than 100%"))
    return errors


def replica_set_errors(replica_set: Obj) -> list[FieldError]:
    """Errors of a ReplicaSet."""
    spec = replica_set["spec"]
    errors = _not_negative(spec, ("replicas", "minReadySeconds"))
    return errors + _selector_errors(spec, "deployment") + _pods_errors(spec, "ReplicaSet")


def deployment_changes(deployment: Obj, old: Obj) -> list[FieldError]:
    """Errors of an update of a Deployment."""
    return deployment_errors(deployment) + _selector_changes(deployment, old)


def replica_set_changes(replica_set: Obj, old: Obj) -> list[FieldError]:
    """Errors of an update of a ReplicaSet."""
    return replica_set_errors(replica_set) + _selector_changes(replica_set, old)


def _selector_changes(obj: Obj, old: Obj) -> list[FieldError]:
    new = obj["spec"].get("selector")
    return [invalid_value("spec.selector", new, IMMUTABLE)] if new != old["spec"].get("selector") else []


def stateful_set_errors(stateful_set: Obj) -> list[FieldError]:
    """Errors of a StatefulSet."""
    spec = stateful_set["spec"]
    errors = []
    policy, strategy = spec.get("podManagementPolicy", ""), spec.get("updateStrategy") or {}
    if policy not in {"OrderedReady", "Parallel"}:
        errors.append(invalid_value("spec.podManagementPolicy", policy, "must be 'OrderedReady' or 'Parallel'"))
    kind, rolling = strategy.get("type", ""), strategy.get("rollingUpdate") or {}
    path = "spec.updateStrategy"
    if kind == "OnDelete" and rolling:
        text = "only allowed for updateStrategy 'RollingUpdate'"
        errors.append(invalid_value(f"{path}.rollingUpdate", rolling, text))
    elif kind not in {"RollingUpdate", "OnDelete"}:
        errors.append(invalid_value(path, strategy, "must be 'RollingUpdate' or 'OnDelete'"))
    if (rolling.get("partition") or 0) < 0:
        errors.append(invalid_value(f"{path}.rollingUpdate.partition", rolling["partition"], NOT_NEGATIVE))
    errors += _not_negative(spec, ("replicas", "minReadySeconds", "revisionHistoryLimit"))
    return errors + _selector_errors(spec, "statefulset") + _pods_errors(spec, "StatefulSet")


def stateful_set_changes(stateful_set: Obj, old: Obj) -> list[FieldError]:
    """Errors of an update of a StatefulSet."""
    errors = stateful_set_errors(stateful_set)
    new, held = stateful_set["spec"], old["spec"]
    if any(new.get(name) != held.get(name) for name in (new.keys() | held.keys()) - set(CHANGEABLE)):
        names = ", ".join(f"'{name}'" for name in CHANGEABLE[:-1]) + f" and '{CHANGEABLE[-1]}'"
        text = f"updates to statefulset spec for fields other than {names} are forbidden"
        errors.append(forbidden_field("spec", text))
    return errors


def budget_errors(budget: Obj) -> list[FieldError]:
    """Errors of a PodDisruptionBudget."""
    spec = budget.get("spec") or {}
    errors = []
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        errors.append(invalid_value("spec", spec, "minAvailable and maxUnavailable are mutually exclusive"))
    for name in ("minAvailable", "maxUnavailable"):
        value = spec.get(name)
        if value is None:
            continue
        errors += _share_errors(value, f"spec.{name}")
        if _percent(value) > 100:
            errors.append(invalid_value(f"spec.{name}", value, "must not be greater than 100%"))
    policy = spec.get("unhealthyPodEvictionPolicy")
    if policy not in {"AlwaysAllow", "IfHealthyBudget", None}:
        path = "spec.unhealthyPodEvictionPolicy"
        errors.append(unsupported(path, policy, ("AlwaysAllow", "IfHealthyBudget")))
    return errors


def budget_changes(budget: Obj, _old: Obj) -> list[FieldError]:
    """An update is judged as a new budget."""
    return budget_errors(budget)
