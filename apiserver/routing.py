"""From a path to its meaning."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote


@dataclass(frozen=True, slots=True)
class Route:
    """A path of the resource API: /api/v1/namespaces/NS/PLURAL/NAME/SUBRESOURCE and its shorter forms."""

    group: str
    version: str
    namespace: str
    plural: str
    name: str = ""
    subresource: str = ""


def route(path: str) -> Route | None:
    """None if the path is none of the resource API (discovery, health, ...)."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in {"status", "finalize"}:
        namespace, rest = rest[1], rest[2:]
    if not all(rest):
        return None
    name = rest[1] if len(rest) > 1 else ""
    return Route(group, version, namespace, rest[0], name, "/".join(rest[2:]))


def verb(method: str, name: str, *, watch: bool) -> str | None:
    """The verb of authorization; None for an unserved method."""
    if method in {"GET", "HEAD"}:
        if watch:
            return "watch"
        return "get" if name else "list"
    return {
        "POST": "create",
        "PUT": "update",
        "PATCH": "patch",
        "DELETE": "delete" if name else "deletecollection",
    }.get(method)
