"""From the body of a request to an object of the kind that the path names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import yaml

from apiserver import protobuf
from apiserver.conform import Conformer, ConformError
from apiserver.errors import StatusError, bad_request, quoted
from apiserver.plain_json import clone
from apiserver.requests import JSON, PATCHES, Call, Request

if TYPE_CHECKING:
    from collections.abc import Callable

from apiserver.kinds.base import Kind

Obj = dict[str, Any]
BODY_LIMIT = 3 * 1024 * 1024
YAML = "application/yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"


def _protobuf(raw: bytes) -> Obj:
    try:
        return protobuf.decode(raw)
    except protobuf.ProtobufError as error:
        raise bad_request(f"unable to decode the protobuf body: {error}") from None


DECODERS: dict[str, Callable[[bytes], Obj]] = {PROTOBUF: _protobuf}  # of media types besides JSON and YAML


def body_value(request: Request) -> Any:
    """The body as a JSON value of its own, that may be changed. Raises StatusError 400, 413, 415."""
    body = request.body
    if not isinstance(body, (bytes, str)):
        return clone(body)
    raw = body if isinstance(body, bytes) else body.encode()
    check_size(raw)
    media = request.content_type
    if media in DECODERS:
        return DECODERS[media](raw)
    if media == YAML or PATCHES.get(media) == "apply":
        try:
            return yaml.load(raw, yaml.CSafeLoader)
        except yaml.YAMLError as error:
            raise bad_request(f"error decoding YAML: {error}") from None
    return json.loads(raw)


def check_size(raw: bytes) -> None:
    """Raises StatusError 413."""
    if len(raw) > BODY_LIMIT:
        raise StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {BODY_LIMIT}")


def decode_object(call: Call, kind: Kind) -> Obj:
    """The object of a create or an update. Raises StatusError."""
    request = call.request
    if request.content_type not in {JSON, YAML, *DECODERS}:
        raise StatusError(
            415,
            "UnsupportedMediaType",
            "the body of the request was in an unknown format - accepted media types include: "
            f"{JSON}, {YAML}, {PROTOBUF}",
        )
    try:
        obj = body_value(request)
    except json.JSONDecodeError as error:
        text = request.body if isinstance(request.body, str) else request.body.decode(errors="replace")
        why = "unexpected end of JSON input" if error.pos >= len(text) or "delimiter" not in error.msg else error.msg
        raise bad_request(
            f"the object provided is unrecognized (must be of type {kind.kind}): couldn't get version/kind; "
            f"json parse error: {why} ({text})"
        ) from None
    if not isinstance(obj, dict):
        raise bad_request(f"the object provided is unrecognized (must be of type {kind.kind})")
    check_kind(obj, kind)
    try:
        return conformed(kind, obj, call)
    except ConformError as error:
        raise bad_request(
            f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {error}'
        ) from None


def conformed(kind: Kind, obj: Obj, call: Call) -> Obj:
    """An object in the form of its type. Raises ConformError, and StatusError 400 for unknown fields if Strict."""
    if kind.custom:
        report_unknown(call, kind, kind.prune(obj) if kind.prune is not None else [])
        return obj
    conformer = Conformer(kind.kind)
    found: Obj = conformer.conform(kind.schema, obj)
    report_unknown(call, kind, conformer.unknown)
    return found


def report_unknown(call: Call, kind: Kind, unknown: list[str]) -> None:
    """By the parameter fieldValidation: Strict refuses, Warn (the default) warns. Raises StatusError 400."""
    how = call.option("fieldValidation") or "Warn"
    if unknown and how == "Strict":
        fields = ", ".join(f"unknown field {quoted(name)}" for name in unknown)
        prefix = f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}'
        raise bad_request(f"{prefix}: strict decoding error: {fields}")
    if how == "Warn":
        call.warnings += [f"unknown field {quoted(name)}" for name in unknown]


def check_kind(obj: Obj, kind: Kind) -> None:
    """An object states what the path says, or nothing. Raises StatusError 400."""
    stated_version, stated_kind = obj.get("apiVersion") or kind.api_version, obj.get("kind") or kind.kind
    group, _, version = stated_version.rpartition("/")
    if group == kind.group and stated_version != kind.api_version:
        raise bad_request(
            f'{stated_kind} in version "{version}" cannot be handled as a {kind.kind}: no kind '
            f'{quoted(stated_kind)} is registered for version "{stated_version}" in scheme '
            '"k8s/pkg/api/legacyscheme/scheme.go:30"'
        )
    if group != kind.group or stated_kind != kind.kind:
        internal = group or "core"
        raise bad_request(
            f'{stated_kind} in version "{version}" cannot be handled as a {kind.kind}: converting '
            f"({version}.{stated_kind}) to ({internal}.{kind.kind}): unknown conversion"
        )
    obj["apiVersion"], obj["kind"] = kind.api_version, kind.kind


def decode_options(call: Call) -> Obj:
    """DeleteOptions of a delete: from the body, or from the query. Raises StatusError."""
    body = call.request.body
    options: Obj = {}
    if body not in (None, b"", ""):
        value = body_value(call.request)
        options = value if isinstance(value, dict) else {}
    for name in ("gracePeriodSeconds", "propagationPolicy", "orphanDependents"):
        if name in call.request.query and name not in options:
            given = call.request.query[name]
            options[name] = int(given) if name == "gracePeriodSeconds" else given
    return options
