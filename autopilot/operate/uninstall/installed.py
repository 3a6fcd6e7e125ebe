"""The objects of an installation by the manifests or by the chart, in the order of their removal.

First the controller and the watchdog, so no write follows; then rights, limits, definitions, and the namespace. The
fence goes last: until then the API server refuses a controller's late writes.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import json
from collections.abc import Callable, Iterator

from autopilot.core.model.units import counted
from autopilot.operate.uninstall.deed import STAYS, Cluster, Deed, Obj, labels_of, meta_of, shown
from autopilot.readiness.fence import EPOCH_GROUP
from autopilot.readiness.fence import NAME as FENCE
from autopilot.readiness.manifest import NAME
from autopilot.readiness.watchdog import WATCHDOG
from autopilot.service.watchdog.removal import APPS, BATCH

RBAC, REGISTRATION = "/apis/rbac.authorization.k8s.io/v1", "/apis/admissionregistration.k8s.io/v1"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
POLICIES, BINDINGS = "validatingadmissionpolicies", "validatingadmissionpolicybindings"
MONITORING, NETWORKING = "/apis/monitoring.coreos.com/v1", "/apis/networking.k8s.io/v1"
CORE = "/api/v1"
WORKLOADS = {"Deployment": "deployments", "StatefulSet": "statefulsets"}
PARTS = (
    ("Service", CORE, "services"),
    ("Ingress", NETWORKING, "ingresses"),
    ("NetworkPolicy", NETWORKING, "networkpolicies"),
    ("PodDisruptionBudget", "/apis/policy/v1", "poddisruptionbudgets"),
    ("ServiceMonitor", MONITORING, "servicemonitors"),
    ("PrometheusRule", MONITORING, "prometheusrules"),
    ("ConfigMap", CORE, "configmaps"),
    ("Lease", "/apis/coordination.k8s.io/v1", "leases"),
)
"""Kinds in the namespace of the service, beside rights and workloads."""
OTHERS = (
    ("Deployment", APPS, "deployments"),
    ("StatefulSet", APPS, "statefulsets"),
    ("DaemonSet", APPS, "daemonsets"),
    ("Job", BATCH, "jobs"),
    ("CronJob", BATCH, "cronjobs"),
    ("Pod", CORE, "pods"),
    ("Service", CORE, "services"),
    ("Secret", CORE, "secrets"),
    ("ConfigMap", CORE, "configmaps"),
)
"""Kinds of objects that keep a namespace not created by the manifests."""
SYSTEM_MAPS = frozenset({"kube-root-ca.crt"})


def is_ours(found: Obj) -> bool:
    """By its name, or by the labels of the manifests and of the chart."""
    labels, name = labels_of(found), str(meta_of(found).get("name"))
    chart = labels.get("helm.sh/chart", "").startswith(f"{NAME}-")
    return chart or name == NAME or name.startswith(f"{NAME}-") or labels.get("app.kubernetes.io/name") == NAME


def _at(group: str, plural: str, found: Obj) -> str:
    meta = meta_of(found)
    place = f"/namespaces/{meta['namespace']}" if meta.get("namespace") else ""
    return f"{group}{place}/{plural}/{meta['name']}"


def _of_kind(
    cluster: Cluster, kind: str, group: str, plural: str, namespace: str = "", judge: Callable[[Obj], bool] = is_ours
) -> Iterator[Deed]:
    place = f"/namespaces/{namespace}" if namespace else ""
    for found in cluster.objects(f"{group}{place}/{plural}", kind):
        if judge(found):
            yield cluster.delete(kind, _at(group, plural, found), found)


def processes(cluster: Cluster, namespace: str) -> Iterator[Deed]:
    """Deployments and StatefulSets of our accounts, the watchdog first: it would take the end of the others for an
    absence.
    """
    for of_watchdog in (True, False):

        def judge(found: Obj, of_watchdog: bool = of_watchdog) -> bool:
            spec = ((found.get("spec") or {}).get("template") or {}).get("spec") or {}
            account = spec.get("serviceAccountName")
            return (is_ours(found) or account in {NAME, WATCHDOG}) and (account == WATCHDOG) == of_watchdog

        for kind, plural in WORKLOADS.items():
            yield from _of_kind(cluster, kind, APPS, plural, namespace, judge)


def rights(cluster: Cluster, namespace: str) -> Iterator[Deed]:
    """Bindings, then roles and accounts: from here on none of our tokens is worth anything."""

    def judge(found: Obj) -> bool:
        role = found.get("roleRef") or {}
        return is_ours(found) or is_ours({"metadata": {"name": role.get("name", "")}})  # as of approvers

    yield from _of_kind(cluster, "ClusterRoleBinding", RBAC, "clusterrolebindings", judge=judge)
    yield from _of_kind(cluster, "RoleBinding", RBAC, "rolebindings", judge=judge)
    yield from _of_kind(cluster, "ClusterRole", RBAC, "clusterroles")
    yield from _of_kind(cluster, "Role", RBAC, "roles", namespace)
    yield from _of_kind(cluster, "ServiceAccount", CORE, "serviceaccounts", namespace)


def limits(cluster: Cluster, _namespace: str) -> Iterator[Deed]:
    """The policies of the fields."""

    def judge(found: Obj) -> bool:
        return is_ours(found) and meta_of(found)["name"] != FENCE

    yield from _of_kind(cluster, "ValidatingAdmissionPolicyBinding", REGISTRATION, BINDINGS, judge=judge)
    yield from _of_kind(cluster, "ValidatingAdmissionPolicy", REGISTRATION, POLICIES, judge=judge)


def definitions(cluster: Cluster, _namespace: str) -> Iterator[Deed]:
    """Custom resources with all their objects."""
    for found in cluster.objects(CRDS, "CustomResourceDefinition"):
        spec = found.get("spec") or {}
        if spec.get("group") != EPOCH_GROUP:
            continue
        served = next((each["name"] for each in spec.get("versions") or () if each.get("served")), "")
        plural = (spec.get("names") or {}).get("plural", "")
        objects = sum(1 for _ in cluster.objects(f"/apis/{EPOCH_GROUP}/{served}/{plural}", str(plural)))
        path = f"{CRDS}/{meta_of(found)['name']}"
        yield cluster.delete("CustomResourceDefinition", path, found, f"with {counted(objects, 'object')}")


def parts(cluster: Cluster, namespace: str) -> Iterator[Deed]:
    """Our objects in the namespace of the service, and Helm's notes on the release there."""
    for kind, group, plural in PARTS:
        yield from _of_kind(cluster, kind, group, plural, namespace)
    yield from _of_kind(cluster, "Secret", CORE, "secrets", namespace, _release)


def _release(secret: Obj) -> bool:
    """True if Helm keeps a release of our chart in it."""
    if secret.get("type") != "helm.sh/release.v1":
        return False
    try:
        packed = base64.b64decode(base64.b64decode((secret.get("data") or {})["release"]))
        chart = json.loads(gzip.decompress(packed))["chart"]["metadata"]["name"]
    except (KeyError, TypeError, ValueError, OSError, EOFError, binascii.Error):
        return False
    return bool(chart == NAME)


def space(cluster: Cluster, namespace: str) -> Iterator[Deed]:
    """The namespace. It stays if a volume would go with it, and if it is not ours and something else is there."""
    path = f"{CORE}/namespaces/{namespace}"
    answer = cluster.api.get(path)
    if answer.status != 200:
        return
    found, cure = answer.document, f"kubectl delete namespace {namespace}"
    volumes = list(cluster.objects(f"{path}/persistentvolumeclaims", "PersistentVolumeClaim"))
    for each in volumes:
        yield Deed(STAYS, shown("PersistentVolumeClaim", each), "journal, metering and audit log may be on it")
    ours = labels_of(found).get("app.kubernetes.io/name") == NAME
    left = (
        []
        if ours
        else [
            each
            for kind, group, plural in OTHERS
            for each in _foreign(cluster, f"{group}/namespaces/{namespace}/{plural}", kind)
        ]
    )
    if volumes or left:
        yield Deed(STAYS, shown("Namespace", found), f"{(left or ['its volumes'])[0]} is there; {cure}")
    else:
        yield cluster.delete("Namespace", path, found)


def _foreign(cluster: Cluster, path: str, kind: str) -> Iterator[str]:
    for found in cluster.objects(path, kind):
        gone = meta_of(found).get("deletionTimestamp") or is_ours(found) or _release(found)
        if not gone and meta_of(found)["name"] not in SYSTEM_MAPS:
            yield shown(kind, found)


def fence(cluster: Cluster, _namespace: str) -> Iterator[Deed]:
    """The policy, and its binding as the very last object.

    After the removal of the last binding of a built-in kind of parameter, the API server keeps comparing with the old
    parameter until it restarts (docs/decisions/0011). Such a fence, of an earlier version, stays: it judges our account
    alone.
    """
    for found in cluster.objects(f"{REGISTRATION}/{POLICIES}", "ValidatingAdmissionPolicy"):
        if meta_of(found)["name"] != FENCE:
            continue
        kind = (found.get("spec") or {}).get("paramKind") or {}
        if kind and str(kind.get("apiVersion")).rpartition("/")[0] != EPOCH_GROUP:
            why = (
                f"its parameter is the built-in kind {kind.get('kind')}; without its last binding the API server would "
                "compare with old contents until it restarts, also after another installation"
            )
            yield Deed(STAYS, f"ValidatingAdmissionPolicy {FENCE} and its binding", why)
            return
    for kind_, plural in (("ValidatingAdmissionPolicy", POLICIES), ("ValidatingAdmissionPolicyBinding", BINDINGS)):
        yield from _of_kind(cluster, kind_, REGISTRATION, plural, judge=lambda each: meta_of(each)["name"] == FENCE)
