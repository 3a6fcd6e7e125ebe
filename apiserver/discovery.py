"""Discovery: the served groups, versions and resources, in the old form and the aggregated one."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from apiserver.errors import page_not_found
from apiserver.kinds.base import Kind, Subresource
from apiserver.requests import Request, Response, dumped

if TYPE_CHECKING:
    from apiserver.server import Server
    from apiserver.users import User

Obj = dict[str, Any]
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
CUSTOM_ORDER = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")
"""The order in which custom resources list their verbs; built-in ones sort them."""


def storage_version_hash(kind: Kind) -> str:
    """A hash of the group, version and kind of the stored objects."""
    digest = hashlib.sha256(f"{kind.group}/{kind.version}/{kind.kind}".encode()).digest()
    return base64.b64encode(digest[:8]).decode()


def _verbs(kind: Kind) -> list[str]:
    if kind.custom:
        return [verb for verb in CUSTOM_ORDER if verb in kind.verbs]
    return sorted(kind.verbs)


def _singular(kind: Kind) -> str:
    return kind.singular or kind.kind.lower()


def _below(kind: Kind) -> dict[str, tuple[str, str, str, list[str]]]:
    """Subresources: group, version and kind of the body, and verbs."""
    found = {name: _of(kind, each) for name, each in kind.subresources.items()}
    return dict(sorted(found.items()))


def _of(kind: Kind, each: Subresource) -> tuple[str, str, str, list[str]]:
    verbs = sorted(each.verbs)
    group, version, body = each.kind or ("", "", kind.kind)
    return ("", "", body, verbs) if (group, version) == (kind.group, kind.version) else (group, version, body, verbs)


def resource_list(kinds: Iterable[Kind], group: str, version: str) -> Obj:
    """The resources of one group and version."""
    served = [kind for kind in kinds if (kind.group, kind.version) == (group, version)]
    if not any(kind.custom for kind in served):
        served.sort(key=lambda kind: kind.plural)
    entries: list[Obj] = []
    for kind in served:
        entries.append(_resource(kind))
        for name, (body_group, body_version, body, verbs) in _below(kind).items():
            entry: Obj = {"name": f"{kind.plural}/{name}", "singularName": "", "namespaced": kind.namespaced}
            if body_group or body_version:
                entry |= {"group": body_group, "version": body_version}
            entries.append(entry | {"kind": body, "verbs": verbs})
    head: Obj = {"kind": "APIResourceList", "groupVersion": f"{group}/{version}" if group else version}
    if group:
        head["apiVersion"] = "v1"
    return head | {"resources": entries}


def _resource(kind: Kind) -> Obj:
    entry: Obj = {
        "name": kind.plural,
        "singularName": _singular(kind),
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": _verbs(kind),
    }
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    if "list" in kind.verbs:
        entry["storageVersionHash"] = storage_version_hash(kind)
    return entry


def versions(kinds: Iterable[Kind], group: str) -> list[str]:
    """The versions of a group, the preferred one first."""
    served = dict.fromkeys(kind.version for kind in kinds if kind.group == group)
    return sorted(served, key=_rank)


def _rank(version: str) -> tuple[int, int, int]:
    """Stable before beta before alpha, newer before older: v2, v1, v1beta2, v1beta1, v1alpha1."""
    digits = version.removeprefix("v")
    for stage, word in ((1, "beta"), (2, "alpha")):
        if word in digits:
            major, _, minor = digits.partition(word)
            return stage, -int(major or 0), -int(minor or 0)
    return 0, -int(digits) if digits.isdigit() else 0, 0


def group_of(kinds: list[Kind], group: str) -> Obj:
    """An APIGroup without its kind."""
    entries = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions(kinds, group)]
    return {"name": group, "versions": entries, "preferredVersion": entries[0]}


def groups(kinds: Iterable[Kind]) -> list[str]:
    """Named groups, in order of their addition."""
    return list(dict.fromkeys(kind.group for kind in kinds if kind.group))


def aggregated(kinds: list[Kind], wanted: Iterable[str]) -> Obj:
    """Groups with everything in them: the first read of kubectl."""
    items = []
    for group in wanted:
        listed = []
        for version in versions(kinds, group):
            resources = [_discovered(kind) for kind in kinds if (kind.group, kind.version) == (group, version)]
            listed.append({"version": version, "resources": resources, "freshness": "Current"})
        items.append({"metadata": {"name": group} if group else {}, "versions": listed})
    return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}


def _discovered(kind: Kind) -> Obj:
    entry: Obj = {
        "resource": kind.plural,
        # built-in kinds leave it to the group and version around them
        "responseKind": {
            "group": kind.group if kind.custom else "",
            "version": kind.version if kind.custom else "",
            "kind": kind.kind,
        },
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": _singular(kind),
        "verbs": _verbs(kind),
    }
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    below = [
        {
            "subresource": name,
            "responseKind": {"group": group, "version": version, "kind": body},
            "verbs": verbs,
        }
        for name, (group, version, body, verbs) in _below(kind).items()
    ]
    return entry | {"subresources": below} if below else entry


# --- as paths of the server -----------------------------------------------------------------------


def _wants_aggregated(request: Request) -> bool:
    return "apidiscovery.k8s.io" in request.accept and "v=v2;" in request.accept.replace(" ", "")


def _document(request: Request, whole: Obj, short: Obj) -> Response:
    if not _wants_aggregated(request):
        return Response(200, short, {"content-type": "application/json"})
    tag = f'"{hashlib.sha512(dumped(whole)).hexdigest().upper()}"'
    headers = {"content-type": AGGREGATED, "etag": tag, "vary": "Accept"}
    if request.headers.get("if-none-match") == tag:
        return Response(304, None, headers)
    return Response(200, whole, headers)


def core_versions(server: Server, request: Request, _user: User) -> Response:
    """/api."""
    address = request.headers.get("host", "localhost")
    short: Obj = {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    }
    return _document(request, aggregated(server.kinds.listed(), [""]), short)


def group_list(server: Server, request: Request, _user: User) -> Response:
    """/apis."""
    kinds = server.kinds.listed()
    named = groups(kinds)
    short = {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group_of(kinds, each) for each in named]}
    return _document(request, aggregated(kinds, named), short)


def of_group(server: Server, request: Request, _user: User) -> Response:
    """/api/VERSION, /apis/GROUP and /apis/GROUP/VERSION."""
    parts = request.path.strip("/").split("/")
    kinds = server.kinds.listed()
    if parts[0] == "api":
        group, version = "", parts[1]
    else:
        group, version = parts[1], parts[2] if len(parts) > 2 else ""
    if not any(kind.group == group and version in {"", kind.version} for kind in kinds):
        raise page_not_found()
    if version:
        return Response(200, resource_list(kinds, group, version), {"content-type": "application/json"})
    head: Obj = {"kind": "APIGroup", "apiVersion": "v1"}
    return Response(200, head | group_of(kinds, group), {"content-type": "application/json"})
