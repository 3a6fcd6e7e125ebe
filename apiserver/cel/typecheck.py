"""What a compiler finds in an expression before any value is there: names, fields, and messages without a bound.

cel-python checks no types. This finds the mistakes that people make in rules: a field that the schema lacks, a name or
function that does not exist, and text of unlimited length. Where a type is not known, nothing is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from celpy.evaluation import base_functions

from apiserver.cel.program import FUNCTIONS, CompileError, Program, message_at
from apiserver.cel.values import escaped

Schema = Mapping[str, Any]
Types = Mapping[str, Schema | None]
"""Type of each variable as a schema; None where it is not known."""

MACROS = frozenset({"all", "exists", "exists_one", "map", "filter", "existsOne"})
OTHER_FUNCTIONS = frozenset(
    {"has", "dyn", "optional", "orValue", "hasValue", "value", "or", "group", "resource", "check", "allowed", "reason"}
    | {"serviceAccount", "path", "namespace", "name", "subresource", "errored", "error", "fieldSelector", "cel"}
    | {"labelSelector", "url", "isURL", "getScheme", "getHost", "getEscapedPath", "getQuery", "ip", "isIP", "cidr"}
    | {"isCIDR", "containsIP", "format", "lastIndexOf", "add", "sub", "sign", "reverse", "first", "last", "flatten"}
)
TYPE_NAMES = frozenset(
    {"int", "uint", "double", "bool", "string", "bytes", "list", "map", "null_type", "type", "timestamp", "duration"}
    | {"dyn", "optional", "google"}
)


def known_functions() -> frozenset[str]:
    """Every function and macro that an expression may call."""
    return frozenset(base_functions) | frozenset(FUNCTIONS) | MACROS | OTHER_FUNCTIONS | TYPE_NAMES


def check_names(program: Program, types: Types) -> None:
    """Raises CompileError for the first field, name or function that does not exist."""
    _Checker(program.source).type_of(program.tree, dict(types))


class _Checker:
    def __init__(self, source: str) -> None:
        self.source = source
        self.functions = known_functions()

    def type_of(self, node: Any, types: dict[str, Schema | None]) -> Schema | None:
        """Type of a node's value, if it is known."""
        if not hasattr(node, "data"):
            return None
        if node.data == "ident":
            return self._ident(node, types)
        if node.data == "member_dot":
            return self._field(node, types)
        if node.data == "member_dot_arg":
            return self._method(node, types)
        if node.data == "ident_arg":
            self._function(node.children[0])
            self._each(node.children[1:], types)
            return None
        if node.data == "member_index":
            held = self.type_of(node.children[0], types)
            self._each(node.children[1:], types)
            return _element(held)
        if len(node.children) == 1:
            return self.type_of(node.children[0], types)
        self._each(node.children, types)
        return None

    def _each(self, nodes: Iterable[Any], types: dict[str, Schema | None]) -> None:
        for node in nodes:
            self.type_of(node, types)

    def _ident(self, node: Any, types: dict[str, Schema | None]) -> Schema | None:
        name = node.children[0]
        if str(name) in types:
            return types[str(name)]
        if str(name) not in TYPE_NAMES:
            self._fail(name, name.column, f"undeclared reference to '{name}' (in container '')")
        return None

    def _field(self, node: Any, types: dict[str, Schema | None]) -> Schema | None:
        base = self.type_of(node.children[0], types)
        name = node.children[1]
        if base is None or base.get("x-kubernetes-preserve-unknown-fields") or base.get("x-kubernetes-int-or-string"):
            return None
        others = base.get("additionalProperties")
        if isinstance(others, Mapping):
            return others
        properties = base.get("properties")
        if properties is None and base.get("type") == "object":
            properties = {}
        if properties is None:
            if base.get("type") in {"string", "integer", "number", "boolean"}:
                self._fail(name, name.column - 1, f"type '{_called(base)}' does not support field selection")
            return None
        for plain, schema in properties.items():
            if escaped(plain) == str(name):
                return schema if isinstance(schema, Mapping) else None
        self._fail(name, name.column - 1, f"undefined field '{name}'")
        return None

    def _method(self, node: Any, types: dict[str, Schema | None]) -> Schema | None:
        held = self.type_of(node.children[0], types)
        name = node.children[1]
        arguments = node.children[2:]
        if str(name) not in MACROS:
            self._function(name)
            self._each(arguments, types)
            return None
        parts = list(arguments[0].children) if arguments and hasattr(arguments[0], "data") else []
        variable = next(iter(parts[0].find_data("ident")), None) if parts and hasattr(parts[0], "find_data") else None
        if variable is not None:
            # over a map, the variable is a key
            inner = types | {str(variable.children[0]): _element(held) if (held or {}).get("type") == "array" else None}
            self._each(parts[1:], inner)
        return held if str(name) == "filter" else None

    def _function(self, name: Any) -> None:
        if str(name) not in self.functions:
            column = name.column + len(str(name))
            self._fail(name, column, f"undeclared reference to '{name}' (in container '')")

    def _fail(self, token: Any, column: int, text: str) -> None:
        lines = self.source.splitlines() or [""]
        raise CompileError(message_at(token.line, column, text, lines[min(token.line, len(lines)) - 1]))


def _element(held: Schema | None) -> Schema | None:
    if held is None:
        return None
    found = held.get("items") if held.get("type") == "array" else held.get("additionalProperties")
    return found if isinstance(found, Mapping) else None


def _called(schema: Schema) -> str:
    kind = str(schema["type"])
    return {"integer": "int", "number": "double", "boolean": "bool"}.get(kind, kind)


def unbounded_text(program: Program, types: Types) -> bool:
    """Whether it joins text of a length that nothing bounds: string() of a number that may have a fraction.

    The API server estimates such a concatenation as more than a hundred times its budget.
    """
    checker = _Checker(program.source)
    joined = [node for node in program.tree.find_data("addition") if len(node.children) > 1]
    return any(
        (checker.type_of(call.children[1], dict(types)) or {}).get("type") == "number"
        for node in joined
        for call in node.find_data("ident_arg")
        if str(call.children[0]) == "string" and len(call.children) > 1
    )


LITERALS = {
    "INT_LIT": "int", "UINT_LIT": "uint", "FLOAT_LIT": "double", "STRING_LIT": "string", "MLSTRING_LIT": "string",
    "BYTES_LIT": "bytes", "BOOL_LIT": "bool", "NULL_LIT": "null_type",
}  # fmt: skip


def literal_type(program: Program) -> str:
    """Type of an expression that is a literal; "" for others."""
    node = program.tree
    while hasattr(node, "data"):
        if len(node.children) != 1:
            return ""
        node = node.children[0]
    return LITERALS.get(getattr(node, "type", ""), "")
