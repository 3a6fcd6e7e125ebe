"""Patches: their options, and the refusals before their application."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from apiserver.conform import WORDS
from apiserver.errors import (
    FieldError,
    StatusError,
    bad_request,
    conflict,
    forbidden_field,
    invalid_value,
    joined,
    required,
    too_long,
    unexpected,
    unsupported,
)
from apiserver.kinds.base import Call, Kind
from apiserver.schemas import Schema

Obj = dict[str, Any]
MANAGER_LIMIT = 128
VALIDATIONS = ("", "Ignore", "Strict", "Warn")
OPERATIONS = "[]handlers.jsonPatchOp"
MOST_OPERATIONS = 10_000


def options_error(kind: str, errors: list[FieldError]) -> StatusError:
    """422 for options of meta.k8s.io."""
    details = {"group": "meta.k8s.io", "kind": kind, "causes": [error.cause() for error in errors]}
    return StatusError(422, "Invalid", f'{kind}.meta.k8s.io "" is invalid: {joined(errors)}', details)


def check_write_options(kind: str, query: Mapping[str, str]) -> None:
    """Check the common options of creates, updates and patches. Raises StatusError 422."""
    errors = []
    dry_run, validation = query.get("dryRun", ""), query.get("fieldValidation", "")
    if dry_run not in {"", "All"}:
        errors.append(unsupported("dryRun", [dry_run], ("All",)))
    if validation not in VALIDATIONS:
        errors.append(unsupported("fieldValidation", validation, VALIDATIONS))
    if len(query.get("fieldManager", "")) > MANAGER_LIMIT:
        errors.append(too_long("fieldManager", MANAGER_LIMIT))
    if errors:
        raise options_error(kind, errors)


def check_patch_options(call: Call, how: str) -> None:
    """Raises StatusError 422."""
    errors = []
    if how == "apply":
        if not call.option("fieldManager"):
            errors.append(required("fieldManager", "is required for apply patch"))
    elif "force" in call.request.query:
        errors.append(forbidden_field("force", "may not be specified for non-apply patch"))
    if errors:
        raise options_error("PatchOptions", errors)


def checked_patch(how: str, patch: Any) -> Any:
    """A patch in the shape of its type. Raises StatusError 400, 413."""
    word = WORDS.get(type(patch), "number")
    if how == "json":
        if patch is not None and not isinstance(patch, list):
            raise bad_request(f"error decoding patch: json: cannot unmarshal {word} into Go value of type {OPERATIONS}")
        operations = patch or []
        if len(operations) > MOST_OPERATIONS:
            most = f"The allowed maximum operations in a JSON patch is {MOST_OPERATIONS}, got {len(operations)}"
            raise StatusError(413, "RequestEntityTooLarge", f"Request entity too large: {most}")
        return operations
    if patch is None and how == "merge":
        raise bad_request("Invalid JSON Patch")
    if patch is not None and not isinstance(patch, dict):
        wanted = "map[string]interface {}"
        raise bad_request(f"error decoding patch: json: cannot unmarshal {word} into Go value of type {wanted}")
    return patch or {}


def check_apply(call: Call, kind: Kind, config: Any) -> None:
    """Refuse a body inapplicable as an object of a kind. Raises StatusError."""
    if not isinstance(config, dict) or not config.get("kind") or not config.get("apiVersion"):
        raise bad_request("error unmarshaling apply patch: apiVersion and kind are required")
    metadata = config.setdefault("metadata", {})
    if metadata.get("managedFields") is not None:
        raise bad_request("metadata.managedFields must be nil")
    for name, value in (("name", call.name), ("namespace", call.namespace)):
        if value and metadata.setdefault(name, value) != value:
            text = f"the {name} of the object ({metadata[name]}) does not match the {name} on the URL ({value})"
            raise bad_request(text)
    unknown = next(undeclared(kind.schema, config), None)
    if unknown is not None and not kind.custom:
        gvk = f"{kind.group}/{kind.version}, Kind={kind.kind}"
        where = f"/{call.name}"
        raise unexpected(
            f"failed to create typed patch object ({where}; {gvk}): {unknown}: field not declared in schema"
        )


def undeclared(schema: Schema, value: Any, path: str = "") -> Iterator[str]:
    """Paths of fields undeclared in the schema."""
    if isinstance(value, dict):
        for name, each in value.items():
            inside = f"{path}.{name}"
            if not schema.declares(name):
                yield inside
            elif not schema.open:
                yield from undeclared(schema.child(name), each, inside)
    elif isinstance(value, list) and schema.items is not None:
        for each in value:
            yield from undeclared(schema.items, each, path)


def uid_of_nothing(call: Call, uid: str) -> StatusError:
    """409: an apply with the uid of a missing object."""
    why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
    return conflict(call.kind.named(call.name), why)


def bad_patch(text: str, why: str) -> StatusError:
    """422 for a patch with an undecodable result. `text` is the patch or the result, as the server shows it."""
    error = invalid_value("patch", text, why)
    message = f' "" is invalid: {error}'
    return StatusError(422, "Invalid", message, {"causes": [error.cause()]})


def sorted_text(obj: Obj) -> str:
    """A patched object as JSON: the touched parts are sorted by name."""
    return json.dumps(
        {name: _sorted(value) if name != "metadata" else value for name, value in sorted(obj.items())},
        separators=(",", ":"),
        ensure_ascii=False,
    )


def _sorted(value: Any) -> Any:
    return {name: _sorted(value[name]) for name in sorted(value)} if isinstance(value, dict) else value


def same_but_times(obj: Obj, old: Obj) -> bool:
    """True if nothing changed but the times of managedFields."""
    if obj == old:
        return True
    fields = [name for name in obj.keys() | old.keys() if name != "metadata" and obj.get(name) != old.get(name)]
    if fields:
        return False
    left, right = dict(obj["metadata"]), dict(old["metadata"])
    owners = [
        [{name: value for name, value in each.items() if name != "time"} for each in metadata.pop("managedFields", [])]
        for metadata in (left, right)
    ]
    return left == right and owners[0] == owners[1]
