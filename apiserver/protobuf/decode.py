"""From Kubernetes' protobuf envelope to the JSON of the object in it.

The envelope is the bytes of "k8s", a zero byte, and a message `runtime.Unknown`: apiVersion and kind, and the
message of the object. `fields.json` has the fields of each message.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib import resources
from typing import Any

Obj = dict[str, Any]
MAGIC = b"k8s\0"
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZERO_TIME_S = -62135596800  # Go's zero time, 0001-01-01


class ProtobufError(ValueError):
    """Bytes that are no object this module can read; the text says why."""


@lru_cache(maxsize=1)
def _fields() -> Obj:
    text = resources.files("apiserver.protobuf").joinpath("fields.json").read_text(encoding="utf-8")
    found: Obj = json.loads(text)
    return found


def decode(content: bytes) -> Obj:
    """The object in an envelope, as JSON. Raises ProtobufError for other bytes and for kinds without a table."""
    if not content.startswith(MAGIC):
        raise ProtobufError("the body does not begin with the prefix of Kubernetes' protobuf format")
    version = kind = ""
    raw = b""
    for number, _, value in _parts(content[len(MAGIC) :]):
        if number == 1:
            for inner, _, text in _parts(value):
                version, kind = (text.decode(), kind) if inner == 1 else (version, text.decode())
        elif number == 2:
            raw = value
    message = _fields()["kinds"].get(f"{version}/{kind}")
    if kind == "DeleteOptions":  # every group has its own version of it
        message = "meta/v1.DeleteOptions"
    if message is None:
        raise ProtobufError(f"protobuf bodies of {kind} in version {version!r} are not supported; send JSON")
    return {"apiVersion": version, "kind": kind, **_message(message, raw)}


def _parts(content: bytes) -> Iterator[tuple[int, int, Any]]:
    """Number, wire type and raw value of each field."""
    at = 0
    value: Any
    while at < len(content):
        key, at = _varint(content, at)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, at = _varint(content, at)
        elif wire == LENGTH:
            size, at = _varint(content, at)
            value, at = content[at : at + size], at + size
        elif wire in {FIXED64, FIXED32}:
            size = 8 if wire == FIXED64 else 4
            value, at = content[at : at + size], at + size
        else:
            raise ProtobufError(f"wire type {wire} at byte {at}")
        if at > len(content):
            raise ProtobufError("the body ends inside a field")
        yield number, wire, value


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(content) or shift > 63:
            raise ProtobufError("the body ends inside a number")
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at


def _message(name: str, content: bytes) -> Obj:
    fields = _fields()["messages"].get(name, {})
    made: Obj = {}
    for number, wire, raw in _parts(content):
        known = fields.get(str(number))
        if known is None:
            continue  # of a later version, or of no use here
        field, kind, flags = known
        if "m" in flags:
            key, value = _entry(kind, raw)
            made.setdefault(field, {})[key] = value
        elif "l" in flags:
            made.setdefault(field, []).append(_value(kind, wire, raw))
        elif "i" in flags:
            made |= _value(kind, wire, raw)
        else:
            value = _value(kind, wire, raw)
            if value is not None and not ("z" in flags and value in ("", 0, False, {}, [])):
                made[field] = value
    return made


def _entry(kind: str, raw: bytes) -> tuple[str, Any]:
    """One entry of a map: field 1 is the key, field 2 the value."""
    key, value = "", None
    for number, wire, part in _parts(raw):
        if number == 1:
            key = part.decode()
        else:
            value = _value(kind, wire, part)
    if value is None:
        value = {"string": "", "bytes": "", "quantity": "0", "int": 0, "int64": 0}.get(kind, {})
    return key, value


def _value(kind: str, wire: int, raw: Any) -> Any:
    match kind:
        case "string":
            return raw.decode()
        case "int" | "int64":
            return raw - (1 << 64) if raw >= 1 << 63 else raw
        case "bool":
            return bool(raw)
        case "double" | "float":
            return struct.unpack("<d" if wire == FIXED64 else "<f", raw)[0]
        case "bytes":
            return base64.b64encode(raw).decode()
        case "time" | "microtime":
            return _time(raw, micro=kind == "microtime")
        case "quantity":
            return next((value.decode() for number, _, value in _parts(raw) if number == 1), "0")
        case "intstr":
            given = {number: value for number, _, value in _parts(raw)}
            return given.get(3, b"").decode() if given.get(1) else _value("int", VARINT, given.get(2, 0))
        case "raw":
            held = next((value for number, _, value in _parts(raw) if number == 1), b"")
            return json.loads(held) if held else None
    if kind.startswith("items:"):
        return [_value(kind.removeprefix("items:"), wire, each) for _, wire, each in _parts(raw)]
    return _message(kind, raw)


def _time(raw: bytes, *, micro: bool) -> str | None:
    given = {number: value for number, _, value in _parts(raw)}
    seconds, nanos = _value("int", VARINT, given.get(1, 0)), given.get(2, 0)
    if not raw or seconds == ZERO_TIME_S:
        return None
    moment = EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1000)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")
