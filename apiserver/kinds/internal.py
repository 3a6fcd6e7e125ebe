"""The internal form of pod specs: refusals show values as the server's own Go types write them.

A row names the fields of a type in order. `:T` is an optional T, `:[T]` a list of T, `=T` a mandatory T,
`:s`, `:b`, `:i` a string, bool or number, never null. The JSON name of a field is its name with a small first
letter, or the one given in JSON_NAMES. Source: the order of fields in the refusals of a real server, and the public Go
types of the API.
"""

from __future__ import annotations

import json
from difflib import unified_diff
from functools import cache
from typing import Any

Obj = dict[str, Any]
TYPES = {
    "PodTemplateSpec": "Spec=PodSpec",
    "PodSpec": (
        "Volumes:[Volume] InitContainers:[Container] Containers:[Container] EphemeralContainers:[Container] "
        "RestartPolicy:s TerminationGracePeriodSeconds ActiveDeadlineSeconds DNSPolicy:s NodeSelector "
        "ServiceAccountName:s AutomountServiceAccountToken NodeName:s SecurityContext=PodSecurityContext "
        "ImagePullSecrets:[Name] Hostname:s Subdomain:s SetHostnameAsFQDN Affinity:Affinity SchedulerName:s "
        "Tolerations:[Toleration] HostAliases:[HostAlias] PriorityClassName:s Priority PreemptionPolicy "
        "DNSConfig:DNSConfig ReadinessGates:[ReadinessGate] RuntimeClassName Overhead EnableServiceLinks "
        "TopologySpreadConstraints:[Spread] OS:Name SchedulingGates:[Name] ResourceClaims:[PodResourceClaim] "
        "Resources:Resources HostnameOverride SchedulingGroup:SchedulingGroup"
    ),
    "Volume": (
        "Name:s HostPath:HostPath EmptyDir:EmptyDir GCEPersistentDisk AWSElasticBlockStore GitRepo Secret:Secret NFS "
        "ISCSI Glusterfs PersistentVolumeClaim:VolumeClaim RBD Quobyte FlexVolume Cinder CephFS Flocker "
        "DownwardAPI:DownwardAPIVolume FC AzureFile ConfigMap:ConfigMapVolume VsphereVolume AzureDisk "
        "PhotonPersistentDisk Projected:Projected PortworxVolume ScaleIO StorageOS CSI Ephemeral Image"
    ),
    "HostPath": "Path:s Type",
    "EmptyDir": "Medium:s SizeLimit",
    "VolumeClaim": "ClaimName:s ReadOnly:b",
    "Secret": "SecretName:s Items:[KeyToPath] DefaultMode Optional",
    "ConfigMapVolume": "Name:s Items:[KeyToPath] DefaultMode Optional",
    "DownwardAPIVolume": "Items:[DownwardAPIFile] DefaultMode",
    "Projected": "Sources:[Projection] DefaultMode",
    "Projection": (
        "Secret:SecretProjection DownwardAPI:DownwardAPIProjection ConfigMap:ConfigMapProjection "
        "ServiceAccountToken:TokenProjection ClusterTrustBundle PodCertificate"
    ),
    "SecretProjection": "Name:s Items:[KeyToPath] Optional",
    "ConfigMapProjection": "Name:s Items:[KeyToPath] Optional",
    "DownwardAPIProjection": "Items:[DownwardAPIFile]",
    "DownwardAPIFile": "Path:s FieldRef:FieldRef ResourceFieldRef Mode",
    "FieldRef": "APIVersion:s FieldPath:s",
    "TokenProjection": "Audience:s ExpirationSeconds Path:s",
    "KeyToPath": "Key:s Path:s Mode",
    "Container": (
        "Name:s Image:s Command Args WorkingDir:s Ports:[Port] EnvFrom Env:[Env] Resources=Resources ResizePolicy "
        "RestartPolicy RestartPolicyRules VolumeMounts:[Mount] VolumeDevices LivenessProbe ReadinessProbe StartupProbe "
        "Lifecycle TerminationMessagePath:s TerminationMessagePolicy:s ImagePullPolicy:s SecurityContext Stdin:b "
        "StdinOnce:b TTY:b"
    ),
    "Port": "Name:s HostPort:i ContainerPort:i Protocol:s HostIP:s",
    "Env": "Name:s Value:s ValueFrom",
    "Mount": "Name:s ReadOnly:b RecursiveReadOnly MountPath:s SubPath:s MountPropagation SubPathExpr:s",
    "Resources": "Limits Requests Claims",
    "PodSecurityContext": (
        "HostNetwork:b HostPID:b HostIPC:b ShareProcessNamespace HostUsers SELinuxOptions WindowsOptions RunAsUser "
        "RunAsGroup RunAsNonRoot SupplementalGroups SupplementalGroupsPolicy FSGroup FSGroupChangePolicy Sysctls "
        "SeccompProfile AppArmorProfile SELinuxChangePolicy"
    ),
    "Name": "Name:s",
    "HostAlias": "IP:s Hostnames",
    "DNSConfig": "Nameservers Searches Options",
    "ReadinessGate": "ConditionType:s",
    "SchedulingGroup": "PodGroupName",
    "PodResourceClaim": "Name:s ResourceClaimName ResourceClaimTemplateName",
    "Toleration": "Key:s Operator:s Value:s Effect:s TolerationSeconds",
    "Affinity": "NodeAffinity:NodeAffinity PodAffinity:PodAffinity PodAntiAffinity:PodAffinity",
    "NodeAffinity": (
        "RequiredDuringSchedulingIgnoredDuringExecution:NodeSelector "
        "PreferredDuringSchedulingIgnoredDuringExecution:[PreferredTerm]"
    ),
    "NodeSelector": "NodeSelectorTerms:[NodeTerm]",
    "NodeTerm": "MatchExpressions:[NodeRequirement] MatchFields:[NodeRequirement]",
    "NodeRequirement": "Key:s Operator:s Values",
    "PreferredTerm": "Weight:i Preference=NodeTerm",
    "PodAffinity": (
        "RequiredDuringSchedulingIgnoredDuringExecution:[PodTerm] "
        "PreferredDuringSchedulingIgnoredDuringExecution:[WeightedPodTerm]"
    ),
    "PodTerm": "LabelSelector Namespaces TopologyKey:s NamespaceSelector MatchLabelKeys MismatchLabelKeys",
    "WeightedPodTerm": "Weight:i PodAffinityTerm=PodTerm",
    "Spread": (
        "MaxSkew:i TopologyKey:s WhenUnsatisfiable:s LabelSelector MinDomains NodeAffinityPolicy NodeTaintsPolicy "
        "MatchLabelKeys"
    ),
    "Taint": "Key:s Value:s Effect:s TimeAdded",
}
JSON_NAMES = {
    "DNSPolicy": "dnsPolicy", "DNSConfig": "dnsConfig", "OS": "os", "TTY": "tty", "IP": "ip", "HostIP": "hostIP",
    "APIVersion": "apiVersion", "GCEPersistentDisk": "gcePersistentDisk", "NFS": "nfs", "RBD": "rbd", "FC": "fc",
    "AWSElasticBlockStore": "awsElasticBlockStore", "ISCSI": "iscsi", "CephFS": "cephfs", "CSI": "csi",
    "SELinuxOptions": "seLinuxOptions", "SELinuxChangePolicy": "seLinuxChangePolicy", "FSGroup": "fsGroup",
    "FSGroupChangePolicy": "fsGroupChangePolicy", "ScaleIO": "scaleIO", "StorageOS": "storageos",
}  # fmt: skip
OF_THE_SPEC = ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "hostUsers")  # inside the security context
ZERO: dict[str, Any] = {"s": "", "b": False, "i": 0}


@cache
def _rows(name: str) -> tuple[tuple[str, str, str, str], ...]:
    """Go name, JSON name, mark and type of each field."""
    rows = []
    for word in TYPES[name].split():
        mark = "=" if "=" in word else ":" if ":" in word else ""
        go, _, inner = word.partition(mark) if mark else (word, "", "")
        rows.append((go, JSON_NAMES.get(go, go[0].lower() + go[1:]), mark, inner))
    return tuple(rows)


def internal(name: str, value: Obj | None) -> Obj:
    """A value of a type in its internal form."""
    value = value or {}
    found: Obj = {}
    for go, key, mark, inner in _rows(name):
        given = value.get(key)
        if name == "PodSpec" and go == "SecurityContext":
            given = (given or {}) | {each: value[each] for each in OF_THE_SPEC if each in value}
        if inner in ZERO:
            found[go] = ZERO[inner] if given is None else given
        elif mark == "=":
            found[go] = internal(inner, given)
        elif inner.startswith("["):
            found[go] = [internal(inner[1:-1], each) for each in given] if given else None
        elif inner:
            found[go] = internal(inner, given) if given is not None else None
        else:
            found[go] = given if given not in ({}, []) else None
    return found


def internal_template(template: Obj) -> Obj:
    """A pod template: its metadata keeps the names of JSON."""
    metadata = template.get("metadata") or {}
    shown = {name: metadata[name] for name in ("labels", "annotations") if metadata.get(name)}
    return shown | internal("PodTemplateSpec", template)


def compact(value: Any) -> str:
    """As field errors show an internal value."""
    return json.dumps(sorted_maps(value), separators=(",", ":"), ensure_ascii=False)


def difference(old: Obj, new: Obj) -> str:
    """The differing lines of two internal values, each with three lines around it."""
    left, right = (
        json.dumps(sorted_maps(each), indent=1, ensure_ascii=False).splitlines(keepends=True) for each in (old, new)
    )
    lines = list(unified_diff(left, right, n=3))[2:]
    return "".join(lines)


def sorted_maps(value: Any) -> Any:
    """Maps (their keys are no Go names) sorted by key; the fields of types keep their order."""
    if isinstance(value, list):
        return [sorted_maps(each) for each in value]
    if not isinstance(value, dict):
        return value
    typed = all(name[:1].isupper() for name in value) or "Spec" in value
    return {name: sorted_maps(value[name]) for name in (value if typed else sorted(value))}
