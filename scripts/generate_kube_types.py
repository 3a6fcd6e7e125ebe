"""Write apiserver/kinds/types.json: the fields of the built-in kinds and their types, from the Kubernetes client.

`--check` compares instead of writing. The client's models state the types of fields. The tables below state the rest,
by the `x-kubernetes-*` extensions of the published OpenAPI documents of Kubernetes 1.36: lists in the form of maps and
their keys, strings in the form of quantities, and times with microseconds.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

from kubernetes.client import models

OUT = Path(__file__).parent.parent / "apiserver" / "kinds" / "types.json"
ROOTS = (
    "V1Pod", "V1Node", "V1ConfigMap", "V1Namespace", "V1Secret", "V1Service", "V1Endpoints", "V1ServiceAccount",
    "V1PersistentVolumeClaim", "V1ResourceQuota", "V1LimitRange", "V1Binding", "V1Deployment", "V1ReplicaSet",
    "V1StatefulSet", "V1DaemonSet", "V1ControllerRevision", "V1Job", "V1CronJob", "V1PodDisruptionBudget", "V1Eviction",
    "V1Lease", "V1PriorityClass", "V1Role", "V1RoleBinding", "V1ClusterRole", "V1ClusterRoleBinding",
    "V1ValidatingAdmissionPolicy", "V1ValidatingAdmissionPolicyBinding", "V1ValidatingWebhookConfiguration",
    "V1MutatingWebhookConfiguration", "V1PriorityLevelConfiguration", "V1FlowSchema", "V1ResourceSlice",
    "V1DeviceClass", "ResourceV1ResourceClaim", "V1ResourceClaimTemplate", "CoreV1Event", "EventsV1Event", "V1Scale",
    "V1CustomResourceDefinition", "V1ReplicationController", "V1PodTemplate", "V1PersistentVolume", "V1StorageClass",
    "V1RuntimeClass", "V1NetworkPolicy", "V1Ingress",
)  # fmt: skip
NAMED = {  # keys of lists that are maps, by the type of their items
    "Container": "name", "EphemeralContainer": "name", "EnvVar": "name", "ContainerPort": "containerPort,protocol",
    "VolumeMount": "mountPath", "VolumeDevice": "devicePath", "Volume": "name", "PodCondition": "type",
    "NodeCondition": "type", "NodeAddress": "type", "OwnerReference": "uid", "HostAlias": "ip",
    "LocalObjectReference": "name", "PodSchedulingGate": "name", "PodResourceClaim": "name", "PodIP": "ip",
    "TopologySpreadConstraint": "topologyKey,whenUnsatisfiable", "CoreV1ResourceClaim": "name",
    "ServicePort": "port,protocol", "DeploymentCondition": "type", "StatefulSetCondition": "type",
    "DaemonSetCondition": "type", "ReplicaSetCondition": "type", "NamespaceCondition": "type", "Condition": "type",
    "ValidatingWebhook": "name", "MutatingWebhook": "name", "MatchCondition": "name", "Variable": "name",
    "PodResourceClaimStatus": "name", "ResourceClaimConsumerReference": "uid", "PersistentVolumeClaimCondition": "type",
    "PriorityLevelConfigurationCondition": "type", "FlowSchemaCondition": "type",
    "CustomResourceDefinitionCondition": "type", "AllocatedDeviceStatus": "driver,device,pool,shareID",
    "ReplicationControllerCondition": "type",
}  # fmt: skip
NAMED_FIELDS = {"ServiceAccount.secrets": "name"}
MERGED_ONLY = {
    "JobStatus.conditions": "type",
    "PodStatus.hostIPs": "ip",
}  # atomic to apply, merged by strategic patches
SETS = {"ObjectMeta.finalizers", "NodeSpec.podCIDRs", "ValidatingAdmissionPolicyBindingSpec.validationActions"}
ATOMIC_TYPES = {
    "OwnerReference", "LabelSelector", "ParamRef", "MatchResources", "NamedRuleWithOperations", "Variable", "ParamKind",
    "TypedLocalObjectReference", "SecretKeySelector", "ObjectFieldSelector", "ResourceFieldSelector", "RoleRef",
    "ConfigMapKeySelector", "NodeSelector", "NodeSelectorTerm", "LocalObjectReference", "ObjectReference", "Subject",
    "FileKeySelector",
}  # fmt: skip
ATOMIC_FIELDS = {"PodSpec.nodeSelector", "ServiceSpec.selector"}
QUANTITIES = {
    "ResourceRequirements.limits", "ResourceRequirements.requests", "NodeStatus.capacity", "NodeStatus.allocatable",
    "VolumeResourceRequirements.limits", "VolumeResourceRequirements.requests", "ResourceQuotaSpec.hard",
    "ResourceQuotaStatus.hard", "ResourceQuotaStatus.used", "LimitRangeItem.default", "LimitRangeItem.defaultRequest",
    "LimitRangeItem.max", "LimitRangeItem.min", "LimitRangeItem.maxLimitRequestRatio", "PodSpec.overhead",
    "EmptyDirVolumeSource.sizeLimit", "ContainerStatus.allocatedResources", "PersistentVolumeClaimStatus.capacity",
    "PersistentVolumeSpec.capacity", "DeviceCapacity.value", "Counter.value", "ResourceFieldSelector.divisor",
}  # fmt: skip
MICRO_TIMES = {
    "LeaseSpec.acquireTime", "LeaseSpec.renewTime", "CoreV1Event.eventTime", "EventsV1Event.eventTime",
    "CoreV1EventSeries.lastObservedTime", "EventsV1EventSeries.lastObservedTime",
}  # fmt: skip
BYTES = {"Secret.data", "ConfigMap.binaryData"}
PLAIN = {
    "str": "string", "int": "int", "bool": "bool", "float": "number", "datetime": "time", "object": "any",
    "bytes": "string",
}  # fmt: skip


def short(model: str) -> str:
    """The name of a type: without the version if the client puts it first."""
    return re.sub(r"^V1(?=[A-Z])", "", model)


def type_of(text: str, where: str, todo: list[str]) -> object:
    """A type as types.json writes it: a name, or {"map": T}, or {"list": T, "keys": [...]}."""
    inside = re.fullmatch(r"(?:List\[|list\[)(.*)\]", text)
    if inside:
        found: dict[str, object] = {"list": type_of(inside[1], where, todo)}
        item = short(inside[1])
        keys = NAMED_FIELDS.get(where) or ("" if where in MERGED_ONLY else NAMED.get(item, ""))
        if keys:
            found["keys"] = keys.split(",")
        if where in MERGED_ONLY:
            found["merge"] = MERGED_ONLY[where]
        if where in SETS:
            found["set"] = True
        return found
    inside = re.fullmatch(r"[Dd]ict[\[(]str, (.*)[\])]", text)
    if inside:
        found = {"map": "quantity" if where in QUANTITIES else type_of(inside[1], where, todo)}
        return found | ({"atomic": True} if where in ATOMIC_FIELDS else {})
    if where in QUANTITIES:
        return "quantity"
    if where in MICRO_TIMES:
        return "microtime"
    if text in PLAIN:
        return PLAIN[text]
    todo.append(text)
    return short(text)


def types() -> dict[str, object]:
    """Every type in reach of the roots."""
    todo, found = list(ROOTS), {}
    while todo:
        model = todo.pop()
        name = short(model)
        if name in found:
            continue
        if name in {"FieldsV1", "JSONSchemaProps"}:
            found[name] = {"fields": {}, "open": True}
            continue
        cls = getattr(models, model)
        fields = {
            cls.attribute_map[attribute]: type_of(text, f"{name}.{cls.attribute_map[attribute]}", todo)
            for attribute, text in cls.openapi_types.items()
        }
        found[name] = {"fields": fields} | ({"atomic": True} if name in ATOMIC_TYPES else {})
    return dict(sorted(found.items()))


def main() -> int:
    """Write the file, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    given = parser.parse_args()
    text = json.dumps(types(), separators=(",", ":"), sort_keys=True).replace('},"', '},\n"') + "\n"
    if given.check:
        same = OUT.exists() and OUT.read_text() == text
        print("as generated" if same else f"{OUT} differs: run {Path(__file__).name}")
        return 0 if same else 1
    OUT.write_text(text)
    print(f"wrote {OUT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
