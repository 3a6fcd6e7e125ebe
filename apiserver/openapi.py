"""OpenAPI as far as kubectl needs it: the served kinds, and the check of fields at writes.

The documents of v3 name the operations and their parameters, and have the schemas of custom resources, for `kubectl
explain`. For other kinds they hold none: kubectl then lets the server validate, and computes strategic patches from its
built-in types. The document of v2 is empty. kubectl reads it for a `kind: List` and leaves its items to
the server as well.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from apiserver.crd.serve import CustomKind
from apiserver.errors import page_not_found
from apiserver.kinds.base import Kind
from apiserver.requests import Request, Response, dumped

if TYPE_CHECKING:
    from apiserver.server import Server
    from apiserver.users import User

Obj = dict[str, Any]
ROOT = "/openapi/v3"
INFO = {"title": "Kubernetes", "version": "v1.36.2"}
V2_PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
PARAMETERS = ("dryRun", "fieldManager", "fieldValidation", "force")
METHODS = {"get": "get", "update": "put", "patch": "patch", "delete": "delete"}
ON_COLLECTIONS = {"list": "get", "create": "post", "deletecollection": "delete"}


def index(server: Server, _request: Request, _user: User) -> Response:
    """/openapi/v3: one document for each group and version, with a hash of its content."""
    paths = {}
    for name in dict.fromkeys(_name(kind) for kind in server.kinds.all()):
        digest = hashlib.sha512(dumped(document(server, name))).hexdigest().upper()
        paths[name] = {"serverRelativeURL": f"{ROOT}/{name}?hash={digest}"}
    return Response(200, {"paths": paths}, {"content-type": "text/plain; charset=utf-8"})


def v2(_server: Server, request: Request, _user: User) -> Response:
    """/openapi/v2, in protobuf for kubectl: swagger, info and paths are the fields 1, 2 and 8."""
    if "protobuf" not in request.accept:
        return Response(200, {"swagger": "2.0", "info": INFO, "paths": {}}, {"content-type": "application/json"})
    info = "".join(_message(number, text) for number, text in enumerate(INFO.values(), 1))
    return Response(200, _message(1, "2.0") + _message(2, info) + _message(8, ""), {"content-type": V2_PROTOBUF})


def _message(number: int, content: str) -> str:
    """A field of protobuf, of fewer than 128 characters of ASCII."""
    return chr(number << 3 | 2) + chr(len(content)) + content


def of_group(server: Server, request: Request, _user: User) -> Response:
    """/openapi/v3/api/v1, /openapi/v3/apis/GROUP/VERSION."""
    name = request.path.removeprefix(f"{ROOT}/").strip("/")
    if name not in {_name(kind) for kind in server.kinds.all()}:
        raise page_not_found()
    return Response(200, document(server, name), {"content-type": "application/json"})


def document(server: Server, name: str) -> Obj:
    """The document of one group and version (`apis/batch/v1`)."""
    paths: dict[str, Obj] = {}
    schemas: dict[str, Obj] = {}
    for kind in server.kinds.all():
        if _name(kind) == name:
            if isinstance(kind.extra, CustomKind):
                title = ".".join([*reversed(kind.group.split(".")), kind.version, kind.kind])
                schemas[title] = {**kind.extra.schema, "x-kubernetes-group-version-kind": [_about(kind)]}
            middle = "/namespaces/{namespace}" if kind.namespaced else ""
            collection = f"/{name}{middle}/{kind.plural}"
            paths[collection] = _operations(kind, ON_COLLECTIONS)
            if "get" in kind.verbs:
                paths[f"{collection}/{{name}}"] = _operations(kind, METHODS)
    return {"openapi": "3.0.0", "info": INFO, "paths": paths, "components": {"schemas": schemas}}


def _name(kind: Kind) -> str:
    return f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}"


def _about(kind: Kind) -> Obj:
    return {"group": kind.group, "version": kind.version, "kind": kind.kind}


def _operations(kind: Kind, methods: dict[str, str]) -> Obj:
    about = _about(kind)
    return {
        method: {
            "parameters": [{"name": name, "in": "query", "schema": {"type": "string"}} for name in PARAMETERS],
            "responses": {"200": {"description": "OK"}},
            "x-kubernetes-action": verb,
            "x-kubernetes-group-version-kind": about,
        }
        for verb, method in methods.items()
        if verb in kind.verbs
    }
