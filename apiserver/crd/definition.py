"""CustomResourceDefinitions: defaults, refusals, and conditions."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from apiserver.cel.program import CompileError, compiled
from apiserver.cel.typecheck import Types, check_names, unbounded_text
from apiserver.crd.rules import with_root_metadata
from apiserver.errors import FieldError, forbidden, forbidden_field, invalid_value, required, unsupported
from apiserver.kinds.base import Kind, State
from apiserver.timeline import parse_stamp

Obj = dict[str, Any]
Schema = Mapping[str, Any]

CRDS = "customresourcedefinitions.apiextensions.k8s.io"
FRESH_S = 2.0  # a create waits so long where the definition was established less long ago, as on Kubernetes 1.36
FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
TYPES = ("array", "boolean", "integer", "number", "object", "string")
TOO_COSTLY = (
    "exceeds budget by factor of more than 100x (try simplifying the rule, or adding maxItems, maxProperties, and "
    "maxLength where arrays, maps, and strings are declared)"
)


def fill(crd: Obj) -> None:
    """Defaults of a new definition, in place, and its first status."""
    spec = crd["spec"]
    names = spec.setdefault("names", {})
    kind = names.get("kind", "")
    names.setdefault("singular", kind.lower())
    names.setdefault("listKind", f"{kind}List")
    spec.setdefault("conversion", {"strategy": "None"})
    stored = [each["name"] for each in spec.get("versions") or [] if each.get("storage")]
    crd["status"] = {"conditions": None, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": stored[:1]}


def problems(crd: Obj) -> list[FieldError]:
    """Errors of a definition: its names, its versions, non-structural schemas, rules."""
    spec = crd["spec"]
    names, versions = spec.get("names") or {}, spec.get("versions") or []
    errors: list[FieldError] = []
    if not spec.get("group"):
        errors.append(required("spec.group"))
    wanted = f"{names.get('plural', '')}.{spec.get('group', '')}"
    name = crd["metadata"].get("name", "")
    if name != wanted:
        errors.append(invalid_value("metadata.name", name, 'must be spec.names.plural+"."+spec.group'))
    errors += [required(f"spec.names.{field}") for field in ("plural", "kind") if not names.get(field)]
    if spec.get("scope") not in {"Cluster", "Namespaced"}:
        errors.append(unsupported("spec.scope", spec.get("scope", ""), ["Cluster", "Namespaced"]))
    stored = [each["name"] for each in versions if each.get("storage")]
    if len(stored) != 1:
        why = "must have exactly one version marked as storage version"
        errors.append(invalid_value("spec.versions", None, why, raw=_versions_as_go(versions)))
    for path, schema in _schemas(versions):
        if schema is None:
            errors.append(required(path))
            continue
        found = list(_structure(schema, path, "root"))
        errors += found or _rule_errors(schema, path)
    held = (crd.get("status") or {}).get("storedVersions") or []
    if stored and stored[-1] not in held:
        why = f"must have the storage version {stored[-1]}"
        errors.append(invalid_value("status.storedVersions", held, why))
    return errors


def _versions_as_go(versions: list[Obj]) -> str:
    """Versions as Go's JSON encoder writes their structs. A schema common to all is no longer theirs."""
    given = [(each.get("schema") or {}).get("openAPIV3Schema") for each in versions]
    shown = [
        {
            "Name": each.get("name", ""),
            "Served": bool(each.get("served")),
            "Storage": bool(each.get("storage")),
            "Deprecated": bool(each.get("deprecated")),
            "DeprecationWarning": each.get("deprecationWarning"),
            "Schema": None if all(schema == given[0] for schema in given) else each.get("schema"),
            "Subresources": each.get("subresources"),
            "AdditionalPrinterColumns": each.get("additionalPrinterColumns"),
            "SelectableFields": each.get("selectableFields"),
        }
        for each in versions
    ]
    return json.dumps(shown, separators=(",", ":"), ensure_ascii=False)


def _schemas(versions: list[Obj]) -> Iterator[tuple[str, Schema | None]]:
    """Each schema with its path; versions with one common schema show it at the top."""
    given = [(each.get("schema") or {}).get("openAPIV3Schema") for each in versions]
    if given and given[0] is not None and all(each == given[0] for each in given):
        yield "spec.validation.openAPIV3Schema", given[0]
        return
    for number, schema in enumerate(given):
        yield f"spec.versions[{number}].schema.openAPIV3Schema", schema


EMPTY = {
    "root": "must not be empty at the root",
    "items": "must not be empty for specified array items",
    "field": "must not be empty for specified object fields",
}


def _structure(schema: Schema, path: str, level: str) -> Iterator[FieldError]:
    kind = schema.get("type", "")
    free = schema.get("x-kubernetes-int-or-string") or (
        schema.get("x-kubernetes-preserve-unknown-fields") and level != "root"
    )
    if not kind and not free:
        yield required(f"{path}.type", EMPTY[level])
    elif kind and kind not in TYPES:
        yield unsupported(f"{path}.type", kind, TYPES)
    elif level == "root" and kind != "object":
        yield invalid_value(f"{path}.type", kind, "must be object at the root")
    if kind == "array" and not schema.get("items"):
        yield required(f"{path}.items", "must be specified")
    if schema.get("x-kubernetes-list-type") == "map" and not schema.get("x-kubernetes-list-map-keys"):
        yield required(f"{path}.x-kubernetes-list-map-keys", "must not be empty if x-kubernetes-list-type is map")
    for name, each in sorted((schema.get("properties") or {}).items()):
        yield from _structure(each, f"{path}.properties[{name}]", "field")
    if isinstance(schema.get("items"), Mapping):
        yield from _structure(schema["items"], f"{path}.items", "items")
    if isinstance(schema.get("additionalProperties"), Mapping):
        yield from _structure(schema["additionalProperties"], f"{path}.additionalProperties", "field")


def _rule_errors(schema: Schema, path: str) -> list[FieldError]:
    errors = list(_rules_below(with_root_metadata(schema), path))
    if any("contributed to estimated rule cost" in error.message for error in errors):
        text = f"x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema {TOO_COSTLY}"
        errors.append(forbidden_field(path, text))
    return errors


def _rules_below(schema: Schema, path: str) -> Iterator[FieldError]:
    types: Types = {"self": schema, "oldSelf": schema}
    for number, rule in enumerate(schema.get("x-kubernetes-validations") or []):
        at = f"{path}.x-kubernetes-validations[{number}]"
        for field, shown in (("rule", _as_go(rule)), ("messageExpression", json.dumps(rule.get("messageExpression")))):
            if rule.get(field):
                yield from _expression(rule[field], types, f"{at}.{field}", shown, field)
    for name, each in sorted((schema.get("properties") or {}).items()):
        yield from _rules_below(each, f"{path}.properties[{name}]")
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), Mapping):
            yield from _rules_below(schema[name], f"{path}.{name}")


def _expression(source: str, types: Types, path: str, shown: str, field: str) -> Iterator[FieldError]:
    called = "rule" if field == "rule" else "messageExpression"
    try:
        program = compiled(source)
        check_names(program, types)
    except CompileError as error:
        failed = "compilation failed" if field == "rule" else "messageExpression compilation failed"
        yield FieldError(path, "FieldValueInvalid", f"Invalid value: {shown}: {failed}: {error}")
        return
    if unbounded_text(program, types):
        yield forbidden_field(path, f"estimated {called} cost {TOO_COSTLY}")
        yield forbidden_field(
            path, "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema"
        )


def _as_go(rule: Mapping[str, Any]) -> str:
    """A rule as Go's JSON encoder writes its struct, with <, > and & escaped."""
    fields = {
        "Rule": rule.get("rule", ""),
        "Message": rule.get("message", ""),
        "MessageExpression": rule.get("messageExpression", ""),
        "Reason": rule.get("reason"),
        "FieldPath": rule.get("fieldPath", ""),
        "OptionalOldSelf": rule.get("optionalOldSelf"),
    }
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def changed_problems(crd: Obj, old: Obj) -> list[FieldError]:
    """Errors of an update: those of a definition, and changes of names once they are accepted."""
    errors = problems(crd)
    if _is_true(old, "Established"):
        for path in (("group",), ("scope",), ("names", "plural"), ("names", "kind")):
            new_value, old_value = _at(crd["spec"], path), _at(old["spec"], path)
            if new_value != old_value:
                errors.append(invalid_value(".".join(("spec", *path)), new_value, "field is immutable"))
    return errors


def _at(spec: Obj, path: tuple[str, ...]) -> Any:
    value: Any = spec
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _is_true(crd: Obj, kind: str) -> bool:
    conditions = (crd.get("status") or {}).get("conditions") or []
    return any(each["type"] == kind and each["status"] == "True" for each in conditions)


def is_served(crd: Obj) -> bool:
    """True if requests for its resources are answered."""
    return _is_true(crd, "NamesAccepted") or _is_true(crd, "Established")


def established_at(crd: Obj) -> str:
    """The time of its condition Established; "" before."""
    for each in (crd.get("status") or {}).get("conditions") or []:
        if each["type"] == "Established" and each["status"] == "True":
            return str(each["lastTransitionTime"])
    return ""


def condition(kind: str, status: str, reason: str, message: str, time: str) -> Obj:
    """A condition of a definition."""
    return {"type": kind, "status": status, "lastTransitionTime": time, "reason": reason, "message": message}


NAMES = ("plural", "singular", "kind", "listKind")


def accepted_names(crd: Obj, others: list[Obj]) -> tuple[Obj, str, str]:
    """The free names, and the reason and the text of the last conflict ("" if all are free)."""
    spec, free, reason, text = crd["spec"], copy.deepcopy(crd["spec"]["names"]), "", ""
    taken = {
        (field, other["status"]["acceptedNames"].get(field))
        for other in others
        if other["spec"]["group"] == spec["group"] and other["metadata"]["name"] != crd["metadata"]["name"]
        for field in NAMES
        if other.get("status", {}).get("acceptedNames")
    }
    for field in NAMES:
        name = spec["names"].get(field)
        if name and (field, name) in taken:
            reason, text = f"{field[0].upper()}{field[1:]}Conflict", f'"{name}" is already in use'
            free.pop(field)
    return {"plural": "", "kind": ""} | free, reason, text


def is_terminating(crd: Obj) -> bool:
    """True if its objects are being deleted."""
    return _is_true(crd, "Terminating")


def admit_create(server: State, kind: Kind, name: str) -> float:
    """Wait of the create of a custom resource (s). Raises StatusError 403 if its definition is terminating."""
    crd = server.store.get(CRDS, "", f"{kind.plural}.{kind.group}")
    if crd is None:
        return 0.0
    if is_terminating(crd):
        raise forbidden(kind.named(name), "create not allowed while custom resource definition is terminating")
    since = established_at(crd)
    fresh = bool(since) and server.timeline.now < parse_stamp(since) + timedelta(seconds=FRESH_S)
    return FRESH_S if fresh else 0.0
