"""Health and version of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from apiserver.requests import Request, Response

if TYPE_CHECKING:
    from apiserver.server import Server
    from apiserver.users import User

TEXT = {"content-type": "text/plain; charset=utf-8"}
VERSION = {
    "major": "1",
    "minor": "36",
    "emulationMajor": "1",
    "emulationMinor": "36",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "35",
    "gitVersion": "v1.36.2",
    "gitCommit": "$Format:%H$",
    "gitTreeState": "",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "go1.27.3",
    "compiler": "gc",
    "platform": "linux/amd64",
}
"""Of the Kubernetes release whose behaviour this server imitates."""
HOOKS = (
    "start-apiserver-admission-initializer", "generic-apiserver-start-informers",
    "priority-and-fairness-config-consumer", "priority-and-fairness-filter", "storage-object-count-tracker-hook",
    "start-apiextensions-informers", "start-apiextensions-controllers", "crd-informer-synced",
    "start-system-namespaces-controller", "peer-endpoint-reconciler-controller",
    "start-cluster-authentication-info-controller", "start-kube-apiserver-identity-lease-controller",
    "start-kube-apiserver-identity-lease-garbage-collector", "storage-readiness",
    "start-legacy-token-tracking-controller", "start-service-ip-repair-controllers", "rbac/bootstrap-roles",
    "scheduling/bootstrap-system-priority-classes", "priority-and-fairness-config-producer", "bootstrap-controller",
    "start-kubernetes-service-cidr-controller", "aggregator-reload-proxy-client-cert",
    "start-kube-aggregator-informers", "apiservice-status-local-available-controller",
    "apiservice-status-remote-available-controller", "apiservice-registration-controller",
    "apiservice-wait-for-first-sync", "apiservice-discovery-controller", "kube-apiserver-autoregistration",
)  # fmt: skip
LAST = (
    "autoregister-completion",
    "poststarthook/apiservice-openapi-controller",
    "poststarthook/apiservice-openapiv3-controller",
)
SHARED = (*(f"poststarthook/{each}" for each in HOOKS), *LAST)
CHECKS = {
    "livez": ("ping", "log", "loopback-serving-certificate", "etcd", *SHARED),
    "healthz": ("ping", "log", "loopback-serving-certificate", "etcd", *SHARED),
    "readyz": ("ping", "log", "informer-sync", *SHARED, "shutdown"),
}


def version(_server: Server, _request: Request, _user: User) -> Response:
    """/version."""
    return Response(200, dict(VERSION), {"content-type": "application/json"})


def health(server: Server, request: Request, _user: User) -> Response:
    """/healthz, /livez, /readyz: `ok`, or each check on a line of its own if one fails or `verbose` asks for it."""
    name = request.path.strip("/").partition("/")[0]
    checks = CHECKS[name]
    failing = set(server.uptime.failing()) & set(checks)
    if not failing and "verbose" not in request.query:
        return Response(200, "ok", dict(TEXT))
    lines = [f"[-]{each} failed: reason withheld" if each in failing else f"[+]{each} ok" for each in checks]
    told = f"{name} check {'failed' if failing else 'passed'}"
    return Response(500 if failing else 200, "\n".join([*lines, told, ""]), dict(TEXT))


PATHS = {"/version": version, "/healthz": health, "/livez": health, "/readyz": health}
