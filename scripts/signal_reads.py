"""Which names the product reads on objects of a cluster and in metrics, found in its source.

A read is a name in a place that looks one up: a label, an annotation, a taint, a condition, its reason, a resource of
a node, a metric, or a label of a series. The name may be a text, a constant, a member of a table that is looped over,
or an argument that callers give. A place whose names cannot be followed is a read as well, `Read.name` is "" then.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
READERS = (
    "collectors",
    "actuators",
    "autopilot/checkpoint.py",
    "autopilot/contract",
    "autopilot/crds",
    "autopilot/operate/uninstall",
    "autopilot/playground",
    "autopilot/readiness",
    "autopilot/service/leading",
    "autopilot/service/watchdog",
)
"""What reads a cluster or a Prometheus; folders and files from the root."""

APART = tuple(f"autopilot/contract/{name}.py" for name in ("__init__", "inference", "reading", "rules", "tree"))
"""Files there that work on declarations by their keys, after they were read."""

SERIES = (
    "collectors/slo/",
    "collectors/attribution.py",
    "collectors/checkpoint_reports.py",
    "collectors/entities.py",
    "collectors/exporter.py",
    "collectors/exposition.py",
    "collectors/prometheus.py",
    "collectors/promql.py",
    "collectors/training.py",
    "autopilot/readiness/telemetry.py",
)
"""Files whose labels are those of series."""

NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9-]+)+/[A-Za-z0-9._-]*")
"""A qualified name, or the beginning of one: `domain/name`."""
WRITERS = ("autopilot/playground/",)
"""Files that write most of the names in them: only what they look up is a read."""
EVALUATED = ("collectors/slo/sources.py",)
"""Files whose metrics are taken from their tables (scripts/signal_table.py)."""
STATUSES = {"True", "False", "Unknown"}
"""What is compared beside the type of a condition."""
CONDITION = re.compile(r"([A-Z][A-Za-z0-9]*)=(?:True|False|Unknown)")
"""A condition with its status, as settings name it."""
VERSION = re.compile(r"/v[0-9]+(?:(?:alpha|beta)[0-9]+)?$")
METRIC = re.compile(
    r"(?:^|(?<=[\s(+*,]))([A-Za-z_\x00][A-Za-z0-9_:\x00]*)\{"
    r"|^([a-z][a-z0-9]*(?:[_:][a-z0-9]+)+_(?:total|seconds|bytes|count|sum|bucket|info|step|watts))$"
    r"|^(DCGM_(?:FI|EXP)_[A-Z0-9_]+)$"
)
"""Texts that are, or begin, a metric: by their form, or by the matchers after them."""
DEPTH = 6


class Read(NamedTuple):
    """One read: what kind of name, the name ("": not followed), where (`file:line`), and the text of the expression."""

    kind: str
    name: str
    where: str
    text: str


@dataclass
class _File:
    """One file of the readers."""

    path: str
    tree: ast.Module
    nodes: list[ast.AST] = field(default_factory=list)
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """All nodes, and what each is in."""
        self.nodes.append(self.tree)
        for node in self.nodes:
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
                self.nodes.append(child)

    @cached_property
    def module(self) -> Any:
        """The module itself, for the values of its names."""
        name = self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        return importlib.import_module(name)

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """What a node is inside of, innermost first."""
        while node in self.parents:
            node = self.parents[node]
            yield node


Found = set[str] | None
"""Texts that an expression may be; None where that is not known."""


@dataclass
class Reads:
    """All files of the readers. `sources`: path -> text."""

    sources: Mapping[str, str]

    @cached_property
    def files(self) -> list[_File]:
        """The files, parsed."""
        return [_File(path, ast.parse(text)) for path, text in self.sources.items()]

    @cached_property
    def calls(self) -> dict[str, list[tuple[_File, ast.Call]]]:
        """All calls by the last part of the name of what is called."""
        found = defaultdict(list)
        for file in self.files:
            for node in file.nodes:
                if isinstance(node, ast.Call):
                    found[_last(node.func)].append((file, node))
        return found

    def all(self) -> list[Read]:
        """Every read, in the order of files and lines."""
        reads = {read for file in self.files for read in self._of(file)}
        return sorted(reads, key=lambda read: (*_place(read.where), read.kind, read.name))

    def _of(self, file: _File) -> Iterator[Read]:
        series = file.path.startswith(SERIES)
        metrics = file.path.startswith("collectors") and not file.path.startswith(EVALUATED)
        for node in file.nodes:
            for kind, expression in _looked_up(node, series=series):
                where, text = f"{file.path}:{expression.lineno}", ast.unparse(expression)
                names = self._texts(file, expression, DEPTH)
                if names is not None:
                    yield from (Read(kind, name, where, text) for name in sorted(names - STATUSES))
                elif kind != "taint":  # other things have a key too
                    yield Read(kind, "", where, text)
            if isinstance(node, ast.Constant | ast.JoinedStr) and not _is_told(file, node):
                text, where = _joined(node), f"{file.path}:{node.lineno}"
                if NAME.fullmatch(text) and not VERSION.search(text) and not file.path.startswith(WRITERS):
                    yield Read("name", text, where, text)
                if (stated := CONDITION.fullmatch(text)) is not None:
                    yield Read("condition", stated[1], where, text)
                for match in METRIC.finditer(text) if metrics else ():
                    name = match[1] or match[2] or match[3]
                    if "\x00" not in name:
                        yield Read("metric", name, where, text)

    def _texts(self, file: _File, given: ast.expr, depth: int) -> Found:
        """The texts that an expression may be, or hold."""
        if not depth:
            return None
        match given:
            case ast.Constant(value=str(text)):
                return {text}
            case ast.JoinedStr():
                return self._concatenated(file, [_part(each) for each in given.values], depth)
            case ast.BinOp(op=ast.Add()):
                left, right = (self._texts(file, each, depth - 1) for each in (given.left, given.right))
                return None if left is None or right is None else {one + other for one in left for other in right}
            case ast.Tuple() | ast.List() | ast.Set():
                return self._union(file, given.elts, depth)
            case ast.Starred() | ast.NamedExpr():
                return self._texts(file, given.value, depth)
            case ast.IfExp():
                return self._union(file, [given.body, given.orelse], depth)
            case ast.BoolOp():
                return self._union(file, given.values, depth)
            case ast.Dict():
                return self._union(file, [each for each in given.keys if each is not None], depth)
            case ast.Call(func=ast.Attribute(attr="items" | "keys" | "values" | "strip" | "lower", value=value)):
                return self._texts(file, value, depth)
            case ast.Call(func=ast.Name(id="next"), args=[ast.GeneratorExp(elt=first), *others]):
                return self._union(file, [first, *others], depth)
            case ast.Call(func=ast.Name(id="map"), args=[_, *others]):
                return self._union(file, others, depth)
            case ast.Call(func=ast.Name(id="zip" | "enumerate" | "sorted" | "tuple" | "frozenset")):
                return self._union(file, given.args, depth)
            case ast.Attribute() | ast.Subscript():
                return _value(file, given)
            case ast.Name():
                return self._of_name(file, given, depth)
        return None

    def _union(self, file: _File, parts: Iterable[ast.expr], depth: int) -> Found:
        found: set[str] = set()
        for each in parts:
            texts = self._texts(file, each, depth - 1)
            if texts is None:
                return None
            found |= texts
        return found

    def _concatenated(self, file: _File, parts: list[ast.expr], depth: int) -> Found:
        found = {""}
        for each in parts:
            texts = self._texts(file, each, depth - 1)
            if texts is None:
                return None
            found = {one + other for one in found for other in texts}
        return found

    def _of_name(self, file: _File, given: ast.Name, depth: int) -> Found:
        """A loop variable, an argument, a local name, or a constant."""
        for outer in file.around(given):
            for target, values in _loops(outer):
                if _binds(target, given.id):
                    return self._of_loop(file, _index(target, given.id), values, depth)
            if isinstance(outer, ast.FunctionDef):
                arguments = [each.arg for each in outer.args.args]
                if given.id in arguments:
                    return self._from_callers(file, outer, arguments.index(given.id), given.id, depth)
                assigned = [
                    each.value
                    for each in ast.walk(outer)
                    if isinstance(each, ast.Assign) and any(_binds(target, given.id) for target in each.targets)
                ]
                if assigned:
                    return self._union(file, assigned, depth)
        found = _value(file, given)
        return self._of_module(file, given.id, depth) if found is None else found

    def _of_module(self, file: _File, name: str, depth: int) -> Found:
        """A constant of a module that cannot be imported, by what is assigned to it."""
        for each in file.tree.body:
            if isinstance(each, ast.Assign) and any(_binds(target, name) for target in each.targets):
                return self._texts(file, each.value, depth - 1)
        return None

    def _of_loop(self, file: _File, index: int, values: ast.expr, depth: int) -> Found:
        """What a loop variable may be. `index`: of it in the target; -1 where the target is no tuple."""
        match values:
            case ast.Tuple() | ast.List() if index >= 0:
                rows = [each.elts for each in values.elts if isinstance(each, ast.Tuple)]
                return self._union(file, [row[index] for row in rows if len(row) > index], depth)
            case ast.Call(func=ast.Attribute(attr="items", value=mapping)) if index == 1:
                found = _evaluated(file, mapping)
                return set(_flat(list(found.values()))) if isinstance(found, Mapping) else None
        return self._texts(file, values, depth - 1)

    def _from_callers(self, file: _File, function: ast.FunctionDef, index: int, name: str, depth: int) -> Found:
        """What the callers of a function give for one of its arguments."""
        method = any(isinstance(each, ast.ClassDef) for each in file.around(function))
        given = []
        for other, call in self.calls[function.name]:
            at = index - (method and isinstance(call.func, ast.Attribute))
            named = [each.value for each in call.keywords if each.arg == name]
            given += [(other, each) for each in named or call.args[at : at + 1]]
        defaults = function.args.defaults[max(index - len(function.args.args), -len(function.args.defaults)) :][:1]
        given += [(file, each) for each in defaults if len(function.args.args) - index <= len(function.args.defaults)]
        if not given:
            return None
        found: set[str] = set()
        for other, each in given:
            texts = self._texts(other, each, depth - 1)
            if texts is None:
                return None
            found |= texts
        return found


def read_sources(root: Path = ROOT) -> dict[str, str]:
    """The text of every file of the readers by its path from the root."""
    found = {}
    for each in READERS:
        place = root / each
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            found[path.relative_to(root).as_posix()] = path.read_text(encoding="utf-8")
    return {path: text for path, text in found.items() if path not in APART}


_LABELS = re.compile(r"(?:labels|annotations|notes|LABELS)\b[^.(]*$|labels_of\(\w+\)$")
_OF_SERIES = re.compile(r"(?:labels|metric|LABELS)\b[^.(]*$")
_SINKS = {
    "annotation": "annotation",
    "label": "label",
    "condition": "condition",
    "is_true": "condition",
    "holds": "condition",
    "conditions": "condition",
}
_FIELDS = {"type": "condition", "key": "taint", "reason": "reason"}


def _looked_up(node: ast.AST, *, series: bool) -> Iterator[tuple[str, ast.expr]]:
    """The kinds and the expressions of the names that a node looks up. `series`: labels here are those of series."""
    if series:
        yield from (("series label", each) for mapping, each in _gets(node) if _OF_SERIES.search(ast.unparse(mapping)))
        return
    yield from ((kind, each) for mapping, each in _gets(node) for kind in _kind_of(mapping))
    match node:
        case ast.Call(func=ast.Attribute(attr="note"), args=[first]):
            yield "annotation", first
        case ast.Call(func=ast.Attribute(attr="label"), args=[first]):
            yield "label", first
        case ast.Call(func=ast.Name(id=name), args=[_, second]) if name in _SINKS:
            yield _SINKS[name], second
        case ast.Call(
            func=ast.Attribute(attr="get", value=ast.Name() as table), args=[ast.Attribute(attr="reason"), *_]
        ):
            yield "reason", table
        case ast.Call(func=ast.Attribute(attr="startswith" | "endswith", value=ast.Name(id="key")), args=[first]):
            yield "label", first
        case ast.Call(func=ast.Attribute(attr="startswith" | "endswith", value=value), args=[first]):
            yield from ((kind, first) for kind in _kind_of_text(value))
        case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq() | ast.In() | ast.NotIn()], comparators=[right]):
            yield from ((kind, right) for kind in _kind_of_text(left))


def _gets(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The mapping and the key, where a node looks one up in the other."""
    match node:
        case ast.Call(func=ast.Attribute(attr="get", value=value), args=[first, *_]):
            yield value, first
        case ast.Subscript(value=value, slice=first, ctx=ast.Load()):
            yield value, first
        case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=[right]):
            yield right, left


def _kind_of(mapping: ast.expr) -> Iterator[str]:
    """The kind of the names in a mapping, where it is one of labels, annotations or conditions."""
    text = ast.unparse(mapping)
    if isinstance(mapping, ast.Call) and _last(mapping.func) == "conditions":
        yield "condition"
    elif _LABELS.search(text):
        yield "annotation" if re.search(r"(?:annotations|notes)\b[^.(]*$", text) else "label"


def _kind_of_text(value: ast.expr) -> Iterator[str]:
    """The kind of a text that is compared: a field of a taint or a condition, or a key of labels."""
    match value:
        case ast.Attribute(attr=name) if name in _FIELDS and _last(value.value) not in {"self", "change", "error"}:
            yield _FIELDS[name]
        case ast.Tuple(elts=parts):
            yield from (kind for each in parts for kind in _kind_of_text(each))
        case ast.Subscript(slice=ast.Constant(value=str(name))) if name in _FIELDS:
            yield _FIELDS[name]
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(name)), *_]) if name in _FIELDS:
            yield _FIELDS[name]


def _loops(outer: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Targets and values of the loops that a node is."""
    if isinstance(outer, ast.For):
        yield outer.target, outer.iter
    for each in getattr(outer, "generators", ()):
        yield each.target, each.iter


def _binds(target: ast.expr, name: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(target))


def _index(target: ast.expr, name: str) -> int:
    """Where a name is in the tuple of a target; -1 where it is all of it."""
    parts = target.elts if isinstance(target, ast.Tuple) else []
    return next((index for index, each in enumerate(parts) if _binds(each, name)), -1)


def _last(called: ast.expr) -> str:
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


def _part(value: ast.expr) -> ast.expr:
    return value.value if isinstance(value, ast.FormattedValue) else value


def _value(file: _File, given: ast.expr) -> Found:
    """The texts in a constant, by the value that it has in its module."""
    try:
        return set(_flat(_evaluated(file, given)))
    except TypeError:
        return None


def _evaluated(file: _File, given: ast.expr) -> Any:
    """The value of a constant; an object that is no text where it is none."""
    try:
        return eval(ast.unparse(given), vars(file.module))
    except (NameError, AttributeError, TypeError, KeyError, IndexError, ModuleNotFoundError):
        return object()


def _flat(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield str(value)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _flat(key)
            if not isinstance(each, str):
                yield from _flat(each)
    elif isinstance(value, tuple | list | set | frozenset):
        for each in value:
            yield from _flat(each)
    elif not isinstance(value, int | float | bool | type(None)):
        raise TypeError(f"no table of texts: {type(value)}")


def _joined(node: ast.Constant | ast.JoinedStr) -> str:
    """A text, with a NUL for each part that is filled in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(each.value) if isinstance(each, ast.Constant) else "\x00" for each in node.values)
    return node.value if isinstance(node.value, str) else ""


def _is_told(file: _File, node: ast.AST) -> bool:
    """Whether a text is documentation, or a part of a text that is looked at as a whole."""
    return isinstance(file.parents.get(node), ast.Expr | ast.JoinedStr)


def _place(where: str) -> tuple[str, int]:
    path, _, line = where.rpartition(":")
    return path, int(line)
