"""The rules of a schema (`x-kubernetes-validations`): compiled once, checked on every write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from apiserver.cel.program import EvaluationError, Program, compiled
from apiserver.cel.values import plain_text, to_cel
from apiserver.errors import FieldError, shown

Obj = dict[str, Any]
Schema = Mapping[str, Any]
ROOT_METADATA = {"type": "object", "properties": {"name": {"type": "string"}, "generateName": {"type": "string"}}}


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule at one place of the schema."""

    program: Program
    message: str
    message_program: Program | None
    reason: str
    field: str  # below the value that the rule is about, with its leading dot
    transition: bool  # it compares with the old value
    optional_old: bool  # it is checked without an old value, too

    @property
    def label(self) -> str:
        """Its name in errors."""
        return self.message.strip() or self.program.source.strip()


class Rules:
    """All rules of a schema. False without any."""

    def __init__(self, schema: Schema) -> None:
        self.schema = with_root_metadata(schema)
        self._rules: dict[int, tuple[Rule, ...]] = {}
        for node in _nodes(self.schema):
            if node.get("x-kubernetes-validations"):
                self._rules[id(node)] = tuple(_rule(each) for each in node["x-kubernetes-validations"])

    def __bool__(self) -> bool:
        return bool(self._rules)

    def errors(self, obj: Obj, old: Obj | None) -> list[FieldError]:
        """Errors of an object by the rules. Rules on an old value wait for an update."""
        return list(self._check(obj, old, self.schema, ""))

    def _check(self, value: Any, old: Any, schema: Schema, path: str) -> Iterator[FieldError]:
        for rule in self._rules.get(id(schema), ()):
            yield from _outcome(rule, value, old, schema, path)
        if isinstance(value, dict):
            properties = schema.get("properties") or {}
            others = schema.get("additionalProperties")
            for name in sorted(value):
                inner = properties.get(name)
                at = f"{path}.{name}" if path else name
                if inner is None and isinstance(others, Mapping):
                    inner, at = others, f"{path}[{name}]"
                if inner is not None:
                    before = old.get(name) if isinstance(old, dict) else None
                    yield from self._check(value[name], before, inner, at)
        elif isinstance(value, list) and schema.get("items"):
            for number, each in enumerate(value):
                yield from self._check(each, _entry(old, each, schema), schema["items"], f"{path}[{number}]")


def with_root_metadata(schema: Schema) -> Schema:
    """The schema of a whole object as its rules see it: metadata has a name and nothing else."""
    known = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": ROOT_METADATA}
    properties = known | {k: v for k, v in (schema.get("properties") or {}).items() if k not in known}
    return {**schema, "properties": properties}


def _nodes(schema: Schema) -> Iterator[Schema]:
    yield schema
    for each in (schema.get("properties") or {}).values():
        yield from _nodes(each)
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), Mapping):
            yield from _nodes(schema[name])


def _rule(given: Mapping[str, Any]) -> Rule:
    program = compiled(given["rule"])
    message = given.get("messageExpression")
    return Rule(
        program,
        given.get("message", ""),
        compiled(message) if message else None,
        given.get("reason") or "FieldValueInvalid",
        given.get("fieldPath", ""),
        "oldSelf" in program.names,
        bool(given.get("optionalOldSelf")),
    )


def _entry(old: Any, new: Any, schema: Schema) -> Any:
    """The old entry of a list for a new one: by key. Entries of other lists have no old value."""
    keys = schema.get("x-kubernetes-list-map-keys")
    if not keys or not isinstance(old, list) or not isinstance(new, dict):
        return None
    wanted = [new.get(key) for key in keys]
    return next((each for each in old if [each.get(key) for key in keys] == wanted), None)


def _outcome(rule: Rule, value: Any, old: Any, schema: Schema, path: str) -> Iterator[FieldError]:
    if old is None and rule.transition and not rule.optional_old:
        return
    if old is not None and not rule.transition and old == value:
        return  # what was accepted once may stay
    bindings = {"self": to_cel(value, schema)}
    if rule.transition:
        bindings["oldSelf"] = to_cel(old, schema)
    try:
        if rule.program.value(bindings):
            return
    except EvaluationError as error:
        yield FieldError(path or "<nil>", "FieldValueInvalid", f"Invalid value: {error} evaluating rule: {rule.label}")
        return
    yield _refusal(rule, bindings, path, value)


PREFIXES = {
    "FieldValueForbidden": "Forbidden",
    "FieldValueRequired": "Required value",
    "FieldValueDuplicate": "Duplicate value",
}


def _refusal(rule: Rule, bindings: Mapping[str, Any], path: str, value: Any) -> FieldError:
    text = rule.message.strip() or f"failed rule: {rule.program.source.strip()}"
    if rule.message_program is not None:
        try:
            said = plain_text(rule.message_program.value(bindings))
        except EvaluationError:
            said = None
        if said and said.strip() and "\n" not in said:
            text = said
    field = f"{path}{rule.field}".removeprefix(".") or "<nil>"
    if rule.reason not in PREFIXES and not isinstance(value, (dict, list)):
        return FieldError(field, rule.reason, f"Invalid value: {shown(value)}: {text}")
    return FieldError(field, rule.reason, f"{PREFIXES.get(rule.reason, 'Invalid value')}: {text}")
