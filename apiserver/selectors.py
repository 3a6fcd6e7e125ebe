"""Label and field selectors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from apiserver.errors import StatusError, bad_request
from apiserver.metadata import label_value_errors, qualified_name_errors

if TYPE_CHECKING:
    from apiserver.kinds.base import Kind

Obj = dict[str, Any]
Match = Callable[[Obj], bool]
Labels = dict[str, str]
WHOLE = re.compile(r"[+-]?[0-9]+")
TOKEN = re.compile(r"[ \t\r\n]*(==|!=|[=,()!<>]|[^ \t\r\n,()=!<>]+)")
SYMBOLS = {"==", "!=", "=", ",", "(", ")", "!", "<", ">", ""}


def everything(_obj: Obj) -> bool:
    """No selector."""
    return True


class _Parser:
    """Reads `a=b,c!=d,e in (f,g),h notin (i),j,!k,l>3`."""

    def __init__(self, text: str) -> None:
        self.tokens = TOKEN.findall(text)
        self.at = 0

    def next(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def requirements(self) -> list[Callable[[Labels], bool]]:
        found: list[Callable[[Labels], bool]] = []
        while self.peek() or found:
            if self.peek() in SYMBOLS - {"!"}:
                wanted = "identifier after ','" if found else "!, identifier, or 'end of string'"
                raise bad_request(f"found '{self.peek()}', expected: {wanted}")
            found.append(self.requirement())
            after = self.next()
            if not after:
                break
            if after != ",":
                raise bad_request(f"found '{after}', expected: ',' or 'end of string'")
        return found

    def requirement(self) -> Callable[[Labels], bool]:
        absent = self.peek() == "!"
        if absent:
            self.next()
        key = self.word()
        errors = "; ".join(qualified_name_errors(key))
        if errors:
            raise _unparsable(f'<nil>: Invalid value: "{key}": {errors}')
        if absent or self.peek() in {"", ","}:
            return lambda labels: (key in labels) is not absent
        operator = self.next()
        if operator in {"in", "notin"}:
            values = _checked(key, self.values())
            return lambda labels: (labels.get(key) in values) is (operator == "in")
        if operator not in {"=", "==", "!=", "<", ">"}:
            raise _unparsable(f"found '{operator}', expected: in, notin, =, ==, !=, gt, lt")
        value = "" if self.peek() in {"", ","} else self.word()
        _checked(key, {value})
        if operator in {"<", ">"}:
            return _beyond(key, value, 1 if operator == ">" else -1)
        return lambda labels: (labels.get(key) == value) is (operator != "!=")

    def word(self) -> str:
        token = self.next()
        if token in SYMBOLS:
            raise _unparsable(f"found '{token}', expected: identifier")
        return token

    def values(self) -> set[str]:
        if (opens := self.next()) != "(":
            raise _unparsable(f"found '{opens}' expected: '('")
        if self.peek() in SYMBOLS - {",", ")"}:
            raise _unparsable(f"found '{self.peek()}', expected: ',', ')' or identifier")
        found = set()
        while True:
            found.add("" if self.peek() in {",", ")"} else self.word())
            after = self.next()
            if after == ")":
                return found
            if after != ",":
                raise _unparsable(f"found '{after}', expected: ',' or ')'")


def _checked(key: str, values: set[str]) -> set[str]:
    for at, value in enumerate(sorted(values)):
        if value and (errors := label_value_errors(value)):
            raise _unparsable(f'values[{at}][{key}]: Invalid value: "{value}": {"; ".join(errors)}')
    return values


def _beyond(key: str, text: str, sign: int) -> Callable[[Labels], bool]:
    """True for a label with a number above (sign 1) or below (-1) a limit."""
    if WHOLE.fullmatch(text) is None:
        why = "for 'Gt', 'Lt' operators, the value must be an integer"
        raise _unparsable(f'values[0]: Invalid value: "{text}": {why}')
    limit = int(text)
    return lambda labels: bool(WHOLE.fullmatch(labels.get(key, ""))) and sign * (int(labels[key]) - limit) > 0


def _unparsable(why: str) -> StatusError:
    return bad_request(f"unable to parse requirement: {why}")


def label_selector(text: str) -> Match:
    """The selector of a query parameter. Raises StatusError 400."""
    requirements = _Parser(text).requirements()
    if not requirements:
        return everything
    return lambda obj: all(each(obj["metadata"].get("labels") or {}) for each in requirements)


def matches_labels(selector: Obj | None, labels: Labels | None) -> bool:
    """True if a LabelSelector (matchLabels, matchExpressions) selects labels. None selects nothing, {} everything."""
    if selector is None:
        return False
    labels = labels or {}
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    for each in selector.get("matchExpressions") or []:
        key, values = each["key"], each.get("values") or []
        found = {
            "In": labels.get(key) in values,
            "NotIn": labels.get(key) not in values,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }[each["operator"]]
        if not found:
            return False
    return True


def field_selector(kind: Kind, text: str) -> Match:
    """The selector of a query parameter for a kind. Raises StatusError 400."""
    requirements: list[tuple[str, bool, str]] = []
    for part in filter(None, text.split(",")):
        found = re.fullmatch(r"([^=!]+)(==|!=|=)(.*)", part)
        if found is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        path, operator, value = found.groups()
        if path not in {"metadata.name", "metadata.namespace", *kind.fields}:
            if kind.custom or not kind.group or kind.fields:
                raise bad_request(f"field label not supported: {path}")
            raise bad_request(f'"{path}" is not a known field selector: only "metadata.name", "metadata.namespace"')
        requirements.append((path, operator != "!=", value))
    if not requirements:
        return everything
    return lambda obj: all((field_value(kind, obj, path) == value) is wanted for path, wanted, value in requirements)


def field_value(kind: Kind, obj: Obj, path: str) -> str:
    """The value of a field for its selector."""
    if kind.field_value is not None and path not in {"metadata.name", "metadata.namespace"}:
        return kind.field_value(obj, path)
    value: Any = obj
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
