"""Compile and evaluate one expression: cel-python, with the errors and the functions of the API server."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

import celpy
from celpy import celtypes
from celpy.celparser import CELParseError
from celpy.evaluation import CELEvalError, Evaluator, celstr

from apiserver.cel import authorizer
from apiserver.cel.values import to_cel
from apiserver.quantity import parse


class EvaluationError(Exception):
    """An expression that gave no value; the text is that of the API server (`no such key: name`)."""


class CompileError(Exception):
    """An expression that cannot be compiled; the text has its position."""


NO_KEY = re.compile(r"no such member in mapping: '(.*)'")
NO_INDEX = re.compile(r"index out of range|list index", re.IGNORECASE)

text_of = lru_cache(maxsize=4096)(celstr)
"""The value of a text in an expression: the library goes through its escapes each time."""


class Program:
    """A compiled expression. `names` are the identifiers it mentions, also those bound by its own macros."""

    def __init__(self, source: str) -> None:
        self.source = source
        try:
            self.tree = _environment().compile(source)
        except CELParseError as error:
            raise CompileError(_syntax_error(source, error)) from error
        runner = _environment().program(self.tree, functions=FUNCTIONS)
        self._short, self._scope = shortened(self.tree), runner.new_activation()
        self.names = frozenset(str(node.children[0]) for node in self.tree.find_data("ident"))

    def value(self, bindings: Mapping[str, Any]) -> Any:
        """The result for values that `apiserver.cel.values.to_cel` made. Raises EvaluationError."""
        try:
            return ShortEvaluator(self._short, self._scope).evaluate(dict(bindings))
        except CELEvalError as error:
            raise EvaluationError(_told(error)) from error
        except (ValueError, TypeError, KeyError, IndexError, OverflowError, ArithmeticError) as error:
            raise EvaluationError(str(error)) from error


class ShortEvaluator(Evaluator):
    """Calls the method of a node at once: that of the library looks for a wrapper first, which it has nowhere.

    The right side of `&&` and `||` is left out where the left one decides.
    """

    def conditionalor(self, tree: Any) -> Any:
        """`left || right`."""
        return self._joined(tree, "_||_", decisive=True)

    def conditionaland(self, tree: Any) -> Any:
        """`left && right`."""
        return self._joined(tree, "_&&_", decisive=False)

    def _joined(self, tree: Any, function: str, *, decisive: bool) -> Any:
        left = self.visit(tree.children[0])
        if len(tree.children) == 1 or (isinstance(left, celtypes.BoolType) and bool(left) is decisive):
            return left
        right = self.visit(tree.children[1])
        try:
            return self.activation.resolve_function(function)(left, right)
        except TypeError as error:
            return CELEvalError("found no matching overload", TypeError, error.args, tree=tree)

    def literal(self, tree: Any) -> Any:
        """A constant."""
        token = tree.children[0]
        return text_of(token) if token.type in {"STRING_LIT", "MLSTRING_LIT"} else super().literal(tree)

    def visit(self, tree: Any) -> Any:
        """The value of a node."""
        return getattr(self, tree.data)(tree)

    def visit_children(self, tree: Any) -> list[Any]:
        """The values of the parts of a node; a token is its own."""
        return [each if isinstance(each, str) else getattr(self, each.data)(each) for each in tree.children]

    def sub_evaluator(self, ast: Any) -> Evaluator:
        """Evaluates a part of a macro, once for each item."""
        return ShortEvaluator(ast, self.activation)


PASSING = frozenset(
    {"expr", "conditionalor", "conditionaland", "relation", "addition", "multiplication", "unary", "member"}
)
"""Rules of the grammar that, with one part, have its value."""


def shortened(tree: Any) -> Any:
    """The same expression without the nodes that pass on the value of their one part: most nodes do."""
    if next(tree.find_data("member_object"), None) is not None:
        return tree  # its value depends on the rules that it is reached by
    return _without_passing(tree)


def _without_passing(tree: Any) -> Any:
    while len(tree.children) == 1 and not isinstance(tree.children[0], str):
        inner = tree.children[0]
        if tree.data not in PASSING and (tree.data, inner.data) != ("primary", "literal"):
            break
        tree = inner
    parts = [each if isinstance(each, str) else _without_passing(each) for each in tree.children]
    return type(tree)(str(tree.data), parts, tree.meta)


@lru_cache(maxsize=1024)
def compiled(source: str) -> Program:
    """The program of an expression; kept, because compiling takes milliseconds. Raises CompileError."""
    return Program(source)


@lru_cache(maxsize=1)
def _environment() -> Any:
    return celpy.Environment()


def _told(error: CELEvalError) -> str:
    text = str(error.args[0]) if error.args else str(error)
    missing = NO_KEY.search(text)
    if missing:
        return f"no such key: {missing[1]}"
    if NO_INDEX.search(text):
        return "index out of bounds"
    if "divide by zero" in text or "modulus or divide" in text:
        return "division by zero"
    if text.startswith("undeclared reference"):
        return text.partition(" (in activation")[0]
    return "no such overload" if text.startswith("found no matching overload") else text.partition("\n")[0]


def _syntax_error(source: str, error: CELParseError) -> str:
    line, column = error.line or 1, error.column or len(source) + 1
    cut = source.rstrip()
    if cut.endswith(".") and column >= len(cut):
        return message_at(1, len(cut) + 1, "Syntax error: no viable alternative at input '.'", cut)
    shown = (source.splitlines() or [""])[min(line, len(source.splitlines()) or 1) - 1]
    return message_at(line, column, f"Syntax error: mismatched input near column {column}", shown)


def message_at(line: int, column: int, text: str, source_line: str) -> str:
    """An error of the compiler with a pointer into the line; `column` counts from 1."""
    return f"ERROR: <input>:{line}:{column}: {text}\n | {source_line}\n | {'.' * (column - 1)}^"


# --- functions that the API server adds to CEL ----------------------------------------------------


def _text(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda text, *rest: to_cel(
        function(str(text), *[each if isinstance(each, int) else str(each) for each in rest])
    )


def _over_list(function: Callable[[list[Any]], Any]) -> Callable[..., Any]:
    return lambda items: function(list(items))


def _slice(text: str, start: int, end: int | None = None) -> str:
    return text[int(start) : None if end is None else int(end)]


def _is_quantity(text: Any) -> Any:
    try:
        parse(str(text))
    except ValueError:
        return celtypes.BoolType(False)
    return celtypes.BoolType(True)


def _quantity(text: Any) -> Any:
    return celtypes.DoubleType(float(parse(str(text))))


def _compare(one: Any, other: Any) -> Any:
    return celtypes.IntType((one > other) - (one < other))


def _is_sorted(items: list[Any]) -> Any:
    return celtypes.BoolType(all(one <= other for one, other in itertools.pairwise(items)))


def _index_of(where: Any, what: Any) -> Any:
    if isinstance(where, list):
        return celtypes.IntType(next((n for n, each in enumerate(where) if each == what), -1))
    return celtypes.IntType(str(where).find(str(what)))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "lowerAscii": _text(str.lower),
    "upperAscii": _text(str.upper),
    "trim": _text(str.strip),
    "replace": _text(str.replace),
    "split": _text(str.split),
    "substring": _text(_slice),
    "charAt": _text(lambda text, index: text[int(index) : int(index) + 1]),
    "find": _text(lambda text, pattern: (re.search(pattern, text) or [""])[0]),
    "findAll": _text(lambda text, pattern: [found[0] for found in re.finditer(pattern, text)]),
    "join": lambda items, by="": celtypes.StringType(str(by).join(str(each) for each in items)),
    "indexOf": _index_of,
    "isSorted": _over_list(_is_sorted),
    "sum": _over_list(lambda items: sum(items[1:], items[0]) if items else celtypes.IntType(0)),
    "min": _over_list(min),
    "max": _over_list(max),
    "isQuantity": _is_quantity,
    "quantity": _quantity,
    "isGreaterThan": lambda one, other: celtypes.BoolType(one > other),
    "isLessThan": lambda one, other: celtypes.BoolType(one < other),
    "compareTo": _compare,
    "isInteger": lambda one: celtypes.BoolType(Decimal(float(one)) % 1 == 0),
    "asInteger": lambda one: celtypes.IntType(int(one)),
    "asApproximateFloat": lambda one: celtypes.DoubleType(float(one)),
    **authorizer.FUNCTIONS,
}
