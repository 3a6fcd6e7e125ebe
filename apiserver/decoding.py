"""From the body of a request to an object of the kind named by the path."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import yaml

from apiserver import protobuf
from apiserver.conform import WORDS, Conformer, ConformError
from apiserver.errors import StatusError, bad_request, quoted
from apiserver.go_json import duplicates, load_yaml, why_no_json
from apiserver.plain_json import clone
from apiserver.requests import JSON, PATCHES, Request
from apiserver.schemas import schema

if TYPE_CHECKING:
    from collections.abc import Callable

from apiserver.kinds.base import REGISTERED, Call, Kind

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
    """The body as a JSON value of its own, open to changes. Raises StatusError 400, 413, 415."""
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
            return load_yaml(raw)
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
    obj = recognized(request, kind.kind)
    if obj is None:
        obj = {}
    if not isinstance(obj, dict):
        raise no_object(request, obj, kind.kind)
    check_duplicates(call, kind)
    check_kind(obj, kind)
    try:
        return conformed(kind, obj, call)
    except ConformError as error:
        raise bad_request(
            f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {error}'
        ) from None


def recognized(request: Request, kind: str) -> Any:
    """The body as a JSON value. Raises StatusError 400 for any other body."""
    try:
        return json.loads("") if request.body in (None, b"", "") else body_value(request)
    except json.JSONDecodeError as error:
        body = request.body or ""
        text = body if isinstance(body, str) else body.decode(errors="replace")
        raise unrecognized(kind, why_no_json(text, error), text) from None


def no_object(request: Request, value: Any, kind: str) -> StatusError:
    """400 for a body of JSON without an object."""
    fields = 'APIVersion string "json:\\"apiVersion,omitempty\\""; Kind string "json:\\"kind,omitempty\\""'
    why = f"json: cannot unmarshal {WORDS.get(type(value), 'number')} into Go value of type struct {{ {fields} }}"
    raw = request.body if isinstance(request.body, bytes) else str(request.body).encode()
    return unrecognized(kind, why, raw.hex())


def check_duplicates(call: Call, kind: Kind) -> None:
    """A field given twice in a JSON body: refused or reported, by fieldValidation. Raises StatusError 400."""
    body = call.request.body
    if not isinstance(body, (bytes, str)) or call.request.content_type != JSON:
        return
    found = duplicates(body if isinstance(body, str) else body.decode())
    report(call, kind, [f"duplicate field {quoted(name)}" for name in found])


def unrecognized(kind: str, why: str, text: str) -> StatusError:
    """400 for a body without its kind."""
    return bad_request(
        f"the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; "
        f"json parse error: {why} ({text or '<empty>'})"
    )


def conformed(kind: Kind, obj: Obj, call: Call) -> Obj:
    """An object in the form of its type. Raises ConformError, and StatusError 400 for unknown fields if Strict."""
    conformer = Conformer(kind.kind)
    if kind.custom:
        if obj.get("metadata") is not None:
            obj["metadata"] = conformer.conform(schema("ObjectMeta"), obj["metadata"], "metadata")
        with_floats(obj)
        report_unknown(call, kind, conformer.unknown + (kind.prune(obj) if kind.prune is not None else []))
        return obj
    found: Obj = conformer.conform(kind.schema, obj)
    report_unknown(call, kind, conformer.unknown)
    return found


def with_floats(obj: Obj) -> None:
    """Make whole numbers beyond 64 bits floats, as Go decodes untyped ones."""
    todo: list[Any] = [obj]
    while todo:
        holder = todo.pop()
        for key, each in holder.items() if isinstance(holder, dict) else enumerate(holder):
            if isinstance(each, (dict, list)):
                todo.append(each)
            elif type(each) is int and not -(2**63) <= each < 2**63:
                holder[key] = float(each)


def report_unknown(call: Call, kind: Kind, unknown: list[str]) -> None:
    """Fields unknown to the type, treated as in `report`. Raises StatusError 400."""
    report(call, kind, [f"unknown field {quoted(name)}" for name in unknown])


def report(call: Call, kind: Kind, faults: list[str]) -> None:
    """By the parameter fieldValidation: Strict refuses, Warn (the default) warns. Raises StatusError 400."""
    how = call.option("fieldValidation") or "Warn"
    if faults and how == "Strict":
        why = f"strict decoding error: {', '.join(faults)}"
        if call.verb == "patch":
            raise ConformError(why)
        raise bad_request(f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {why}')
    if how == "Warn":
        call.warnings += faults


def check_kind(obj: Obj, kind: Kind) -> None:
    """An object states the kind of the path, or none. Raises StatusError 400."""
    for name in ("apiVersion", "kind"):
        if not isinstance(stated := obj.get(name), str | None):
            why = f"json: cannot unmarshal {WORDS.get(type(stated), 'number')} into Go struct field .{name}"
            raise bad_request(f"couldn't get version/kind; json parse error: {why} of type string")
    stated_version, stated_kind = obj.get("apiVersion") or kind.api_version, obj.get("kind") or kind.kind
    if (stated_version, stated_kind) == (kind.api_version, kind.kind):
        obj["apiVersion"], obj["kind"] = stated_version, stated_kind
        return
    version = str(stated_version).rpartition("/")[2]
    refused = f'{stated_kind} in version "{version}" cannot be handled as a {kind.kind}: '
    if (stated_version, stated_kind) in REGISTERED:
        internal = kind.group.partition(".")[0] or "core"
        raise bad_request(
            f"{refused}converting ({version}.{stated_kind}) to ({internal}.{kind.kind}): unknown conversion"
        )
    raise bad_request(
        f'{refused}no kind {quoted(stated_kind)} is registered for version "{stated_version}" in scheme '
        '"k8s/pkg/api/legacyscheme/scheme.go:30"'
    )
