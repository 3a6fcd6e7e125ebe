"""HorizontalPodAutoscalers: the bounds of a service and the replicas needed for its load."""

from __future__ import annotations

from math import ceil, isnan, nan
from typing import Any

from autopilot.contract.scaling import KEDA, follows_floor
from collectors.kubernetes.quantity import parse
from collectors.kubernetes.wire import Autoscaler

TOLERANCE = 0.1
"""An HPA does not act on a metric within a tenth of its target (horizontal-pod-autoscaler-tolerance)."""
SOURCES = ("resource", "containerResource", "pods", "object", "external")


def target_of(found: Autoscaler) -> tuple[str, str]:
    """Namespace and `Kind/name` of the target of an HPA."""
    target = found.spec.scale_target_ref
    return found.metadata.namespace, f"{target.kind}/{target.name}"


def needed_replicas(found: Autoscaler, owners_least: int, *, raised: bool) -> int:
    """Replicas wanted by the HPA without our floor; -1: not known.

    `owners_least` is the owner's minReplicas, `raised`: a floor of ours stands. While one stands: of each metric but
    ours, the present replicas x value / target, rounded up; the largest counts, within the owner's bounds.
    """
    if not raised:
        return found.status.desired_replicas if found.status.current_metrics is not None else -1
    wanted = [_wanted(ratio, found.status.current_replicas) for ratio in _own_ratios(found)]
    if not wanted or min(wanted) < 0:
        return -1
    return max(owners_least, min(max(wanted), found.spec.max_replicas))


def has_floor_metric(found: Autoscaler) -> bool:
    """True if the HPA follows our floor as a metric."""
    return any(follows_floor(_name(each)) for each in found.spec.metrics or ())


def lacks_floor_value(found: Autoscaler) -> bool:
    """True if it follows our floor as a metric, and its status has values of other metrics only: ours has no server."""
    now = found.status.current_metrics
    return bool(now) and has_floor_metric(found) and not any(follows_floor(_name(each)) for each in now or ())


def has_keda(found: Autoscaler) -> bool:
    """True for an HPA managed by a ScaledObject of KEDA."""
    return any(each.kind == KEDA for each in found.metadata.owner_references or ())


def load_ratio(found: Autoscaler) -> float:
    """Value / target of the deciding metric, ours left out; NaN without metrics, or if one is unknown."""
    ratios = _own_ratios(found)
    return max(ratios) if ratios and not any(map(isnan, ratios)) else nan


def least_replicas(found: Autoscaler) -> int:
    """minReplicas, by default 1."""
    return 1 if found.spec.min_replicas is None else found.spec.min_replicas


def _wanted(ratio: float, present: int) -> int:
    if isnan(ratio):
        return -1
    return present if abs(ratio - 1.0) <= TOLERANCE else ceil(present * ratio - 1e-9)


def _own_ratios(found: Autoscaler) -> list[float]:
    """Value / target of each metric of its owner."""
    current = {(each.get("type"), _name(each)): each for each in found.status.current_metrics or ()}
    wanted = [each for each in found.spec.metrics or () if not follows_floor(_name(each))]
    return [_ratio(each, current.get((each.get("type"), _name(each)), {})) for each in wanted]


def _source(metric: dict[str, Any]) -> dict[str, Any]:
    return next((metric[name] for name in SOURCES if isinstance(metric.get(name), dict)), {})


def _name(metric: dict[str, Any]) -> str:
    source = _source(metric)
    return str(source.get("name") or (source.get("metric") or {}).get("name") or "")


def _ratio(spec: dict[str, Any], now: dict[str, Any]) -> float:
    """Value / target of one metric; NaN: not known."""
    target, value = _source(spec).get("target") or {}, _source(now).get("current") or {}
    for name in ("averageUtilization", "averageValue", "value"):
        if name in target:
            has, wants = parse(value.get(name)), parse(target[name])
            return has / wants if has is not None and wants else nan
    return nan
