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
CHECKS = (
    "ping",
    "log",
    "informer-sync",
    "poststarthook/start-apiextensions-controllers",
    "poststarthook/crd-informer-synced",
    "poststarthook/rbac/bootstrap-roles",
    "poststarthook/scheduling/bootstrap-system-priority-classes",
)


def version(_server: Server, _request: Request, _user: User) -> Response:
    """/version."""
    return Response(200, dict(VERSION), {"content-type": "application/json"})


def health(_server: Server, request: Request, _user: User) -> Response:
    """/healthz, /livez, /readyz: `ok`, or with `verbose` each check on a line of its own."""
    if "verbose" not in request.query:
        return Response(200, "ok", dict(TEXT))
    lines = [f"[+]{check} ok" for check in CHECKS]
    return Response(200, "\n".join([*lines, f"{request.path.strip('/')} check passed", ""]), dict(TEXT))


PATHS = {"/version": version, "/healthz": health, "/livez": health, "/readyz": health}
