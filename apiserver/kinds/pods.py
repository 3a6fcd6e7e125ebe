"""Pods: defaults, the first state of a new pod, and refusals at creation."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from apiserver.errors import (
    FieldError,
    duplicate,
    forbidden_field,
    invalid_value,
    required,
    unsupported,
)
from apiserver.kinds.pod_parts import DNS_POLICIES, affinity_errors, container_errors, range_text, volume_errors
from apiserver.metadata import annotation_errors, dns_label_errors, label_errors, qualified_name_errors
from apiserver.quantity import parse

Obj = dict[str, Any]
INT32 = 2**31 - 1
GATED = {
    "type": "PodScheduled",
    "status": "False",
    "lastProbeTime": None,
    "lastTransitionTime": None,
    "reason": "SchedulingGated",
    "message": "Scheduling is blocked due to non-empty scheduling gates",
}


def is_extended(resource: str) -> bool:
    """True if a resource counts whole devices, never overcommitted (nvidia.com/gpu, nvidia.com/mig-*)."""
    return "/" in resource and not resource.partition("/")[0].endswith("kubernetes.io")


def default_pod_spec(spec: Obj) -> None:
    """Defaults of a pod or a template."""
    for container in [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]:
        _default_container(container)
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    if spec["terminationGracePeriodSeconds"] < 0:
        spec["terminationGracePeriodSeconds"] = 1
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    if "serviceAccountName" in spec:
        spec.setdefault("serviceAccount", spec["serviceAccountName"])
    elif "serviceAccount" in spec:
        spec["serviceAccountName"] = spec["serviceAccount"]
    for volume in spec.get("volumes") or []:
        for source in ("secret", "configMap", "downwardAPI", "projected"):
            if source in volume:
                volume[source].setdefault("defaultMode", 420)
    for name in ("schedulingGates", "tolerations", "nodeSelector", "initContainers", "volumes"):
        if name in spec and not spec[name]:
            del spec[name]
    for constraint in spec.get("topologySpreadConstraints") or []:
        constraint.setdefault("maxSkew", 1)


def _default_container(container: Obj) -> None:
    image = container.get("image", "")
    latest = image.endswith(":latest") or ":" not in image.rpartition("/")[2]
    container.setdefault("imagePullPolicy", "Always" if latest and "@" not in image else "IfNotPresent")
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    container.setdefault("resources", {})
    for port in container.get("ports") or []:
        port.setdefault("protocol", "TCP")
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if probe in container:
            for name, value in (("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1)):
                container[probe].setdefault(name, value)
            container[probe].setdefault("failureThreshold", 3)


def default_pod(pod: Obj) -> None:
    """Defaults of a pod."""
    spec = pod.setdefault("spec", {})
    default_pod_spec(spec)
    spec.setdefault("enableServiceLinks", True)
    for container in [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]:
        for name, amount in (container["resources"].get("limits") or {}).items():
            container["resources"].setdefault("requests", {}).setdefault(name, amount)
    status = pod.setdefault("status", {})
    status.setdefault("phase", "Pending")
    for condition in status.get("conditions") or []:
        condition.setdefault("lastProbeTime", None)
        condition.setdefault("lastTransitionTime", None)


def prepare_pod(pod: Obj) -> None:
    """The status of a new pod: Pending, its quality of service, and the condition of a gated one."""
    pod["status"] = {"phase": "Pending"}
    if pod["spec"].get("schedulingGates"):
        pod["status"]["conditions"] = [dict(GATED)]
    pod["status"]["qosClass"] = qos_class(pod["spec"])


def qos_class(spec: Obj) -> str:
    """Guaranteed, Burstable or BestEffort, by cpu and memory."""
    requests: dict[str, Fraction] = {}
    limits: dict[str, Fraction] = {}
    guaranteed = True
    for container in [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]:
        resources = container.get("resources") or {}
        limited = set()
        for kind, sums in (("requests", requests), ("limits", limits)):
            for name, amount in (resources.get(kind) or {}).items():
                value = parse(amount)
                if name in {"cpu", "memory"} and value:
                    sums[name] = sums.get(name, Fraction(0)) + value
                    if kind == "limits":
                        limited.add(name)
        guaranteed &= limited == {"cpu", "memory"}
    if not requests and not limits:
        return "BestEffort"
    return "Guaranteed" if guaranteed and requests == limits else "Burstable"


def pod_errors(pod: Obj) -> list[FieldError]:
    """Errors of a new pod."""
    return pod_spec_errors(pod.get("spec") or {}, "spec")


def template_errors(template: Obj) -> list[FieldError]:
    """Errors of the template of pods of a controller."""
    metadata = template.get("metadata") or {}
    errors = label_errors(metadata.get("labels") or {}, "spec.template.labels")
    errors += annotation_errors(metadata.get("annotations") or {}, "spec.template.annotations")
    return errors + pod_spec_errors(template["spec"], "spec.template.spec")


def pod_metadata_again(pod: Obj) -> list[FieldError]:
    """An update looks twice more at labels and annotations: as at those of a new pod, and of a changed one."""
    metadata = pod["metadata"]
    errors = label_errors(metadata.get("labels") or {}, "metadata.labels")
    return 2 * (errors + annotation_errors(metadata.get("annotations") or {}, "metadata.annotations"))


def pod_spec_errors(spec: Obj, path: str) -> list[FieldError]:
    """Errors of the spec of a pod or a template."""
    errors = volume_errors(spec, path)
    volumes = {each.get("name", "") for each in spec.get("volumes") or []}
    containers = spec.get("containers") or []
    if not containers:
        errors.append(required(f"{path}.containers"))
    names = set()
    for group in ("containers", "initContainers"):
        for at, container in enumerate(spec.get(group) or []):
            where = f"{path}.{group}[{at}]"
            name = container.get("name", "")
            if not name:
                errors.append(required(f"{where}.name"))
            elif name in names:
                errors.append(duplicate(f"{where}.name", name))
            else:
                errors += [invalid_value(f"{where}.name", name, why) for why in dns_label_errors(name)]
            names.add(name)
            if not container.get("image"):
                errors.append(required(f"{where}.image"))
            errors += container_errors(container, volumes, where)
            errors += resource_errors(container.get("resources") or {}, f"{where}.resources")
    if spec.get("restartPolicy") not in {"Always", "OnFailure", "Never", None}:
        errors.append(unsupported(f"{path}.restartPolicy", spec["restartPolicy"], ("Always", "OnFailure", "Never")))
    if spec.get("dnsPolicy") not in {*DNS_POLICIES, None}:
        errors.append(unsupported(f"{path}.dnsPolicy", spec["dnsPolicy"], DNS_POLICIES))
    errors += label_errors(spec.get("nodeSelector") or {}, f"{path}.nodeSelector")
    errors += affinity_errors(spec, path)
    errors += _gate_errors(spec, path)
    deadline_s = spec.get("activeDeadlineSeconds")
    if deadline_s is not None and not 0 < deadline_s <= INT32:
        errors.append(invalid_value(f"{path}.activeDeadlineSeconds", deadline_s, range_text(1, INT32)))
    for at, toleration in enumerate(spec.get("tolerations") or []):
        errors += _toleration_errors(toleration, f"{path}.tolerations[{at}]")
    return errors


def _gate_errors(spec: Obj, path: str) -> list[FieldError]:
    errors, seen = [], set()
    gates = spec.get("schedulingGates") or []
    for at, gate in enumerate(gates):
        name = gate.get("name", "")
        errors += [invalid_value(f"{path}.schedulingGates[{at}]", name, why) for why in qualified_name_errors(name)]
        if name in seen:
            errors.append(duplicate(f"{path}.schedulingGates[{at}]", name))
        seen.add(name)
    if gates and spec.get("nodeName"):
        errors.append(forbidden_field(f"{path}.nodeName", "cannot be set until all schedulingGates have been cleared"))
    return errors


def _toleration_errors(toleration: Obj, path: str) -> list[FieldError]:
    errors = []
    effect, operator = toleration.get("effect", ""), toleration.get("operator", "")
    if not toleration.get("key") and operator != "Exists":
        text = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        errors.append(invalid_value(path + ".operator", operator, text))
    if operator not in {"", "Equal", "Exists"}:
        errors.append(unsupported(path + ".operator", operator, ("Equal", "Exists")))
    if operator == "Exists" and toleration.get("value"):
        errors.append(
            invalid_value(path + ".operator", toleration["value"], "value must be empty when `operator` is 'Exists'")
        )
    if effect and effect not in {"NoSchedule", "PreferNoSchedule", "NoExecute"}:
        errors.append(unsupported(path + ".effect", effect, ("NoSchedule", "PreferNoSchedule", "NoExecute")))
    if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
        why = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        errors.append(invalid_value(path + ".effect", effect, why))
    return errors


def resource_errors(resources: Obj, path: str) -> list[FieldError]:
    """Errors of requests and limits of a container."""
    errors = []
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for kind, amounts in (("limits", limits), ("requests", requests)):
        for name in sorted(amounts):
            where = f"{path}.{kind}[{name}]" if is_extended(name) else f"{path}.{kind}.{name}"
            value = parse(amounts[name])
            if value < 0:
                errors.append(invalid_value(where, amounts[name], "must be greater than or equal to 0"))
            if is_extended(name) and value.denominator != 1:
                errors.append(invalid_value(where, amounts[name], "must be an integer"))
    for name in sorted(requests):
        asked = parse(requests[name])
        if name not in limits:
            if is_extended(name):
                why = "Limit must be set for non overcommitable resources"
                errors.append(required(f"{path}.limits", why))
            continue
        limit = parse(limits[name])
        if is_extended(name) and asked != limit:
            why = f"must be equal to {name} limit of {limits[name]}"
            errors.append(invalid_value(f"{path}.requests", requests[name], why))
        elif asked > limit:
            why = f"must be less than or equal to {name} limit of {limits[name]}"
            errors.append(invalid_value(f"{path}.requests", requests[name], why))
    return errors
