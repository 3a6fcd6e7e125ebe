"""The initial roles and bindings of every cluster."""

from __future__ import annotations

from typing import Any

Obj = dict[str, Any]
RBAC = "rbac.authorization.k8s.io"
READ = ["get", "list", "watch"]
WRITE = ["create", "delete", "deletecollection", "patch", "update"]
OPEN_PATHS = ["/healthz", "/livez", "/readyz", "/version", "/version/"]
DISCOVERY_PATHS = [
    "/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*", "/readyz", "/version",
    "/version/",
]  # fmt: skip
ISSUER_PATHS = [
    "/.well-known/openid-configuration", "/.well-known/openid-configuration/", "/openid/v1/jwks", "/openid/v1/jwks/",
]  # fmt: skip
VIEWED = {
    "": ["configmaps", "endpoints", "events", "limitranges", "namespaces", "persistentvolumeclaims", "pods", "pods/log",
         "pods/status", "replicationcontrollers", "resourcequotas", "serviceaccounts", "services"],
    "apps": ["daemonsets", "deployments", "deployments/scale", "replicasets", "statefulsets", "statefulsets/scale"],
    "batch": ["cronjobs", "jobs", "jobs/status"],
    "autoscaling": ["horizontalpodautoscalers"],
    "networking.k8s.io": ["ingresses", "networkpolicies"],
    "policy": ["poddisruptionbudgets"],
}  # fmt: skip


def _paths(*paths: str) -> Obj:
    return {"verbs": ["get"], "nonResourceURLs": list(paths)}


def _viewing() -> list[Obj]:
    return [{"verbs": READ, "apiGroups": [group], "resources": names} for group, names in VIEWED.items()]


def _editing() -> list[Obj]:
    more = [
        {"verbs": WRITE, "apiGroups": [group], "resources": [n for n in names if not n.endswith(("/log", "/status"))]}
        for group, names in VIEWED.items()
    ]
    extra = {"verbs": [*READ, *WRITE], "apiGroups": [""], "resources": ["secrets", "pods/exec", "pods/portforward"]}
    evict = {"verbs": ["create"], "apiGroups": [""], "resources": ["pods/eviction"]}
    return [*_viewing(), *more, extra, evict]


def _administering() -> list[Obj]:
    own = {"verbs": [*READ, *WRITE], "apiGroups": [RBAC], "resources": ["roles", "rolebindings"]}
    return [*_editing(), own]


RULES: dict[str, list[Obj]] = {
    "cluster-admin": [
        {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
        {"verbs": ["*"], "nonResourceURLs": ["*"]},
    ],
    "admin": _administering(),
    "edit": _editing(),
    "view": _viewing(),
    "system:basic-user": [
        {
            "verbs": ["create"],
            "apiGroups": ["authorization.k8s.io"],
            "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
        },
        {"verbs": ["create"], "apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"]},
    ],
    "system:public-info-viewer": [_paths(*OPEN_PATHS), _paths("/.well-known", "/.well-known/*")],
    "system:discovery": [_paths(*DISCOVERY_PATHS)],
    "system:service-account-issuer-discovery": [_paths(*ISSUER_PATHS)],
}
EVERYBODY = ("system:authenticated",)
BOUND: dict[str, tuple[str, ...]] = {
    "cluster-admin": ("system:masters",),
    "system:basic-user": EVERYBODY,
    "system:public-info-viewer": (*EVERYBODY, "system:unauthenticated"),
    "system:discovery": EVERYBODY,
    "system:service-account-issuer-discovery": ("system:serviceaccounts",),
}


def bootstrap_objects() -> list[tuple[str, Obj]]:
    """Cluster roles and their bindings, each with its resource."""
    marks = {"annotations": {f"{RBAC}/autoupdate": "true"}, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}}
    made: list[tuple[str, Obj]] = []
    for name, rules in RULES.items():
        role = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": name, **marks}, "rules": rules}
        made.append((f"clusterroles.{RBAC}", role))
    for name, groups in BOUND.items():
        binding = {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name, **marks},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": RBAC, "kind": "Group", "name": group} for group in groups],
        }
        made.append((f"clusterrolebindings.{RBAC}", binding))
    return made
