"""Sets of fields: which fields a value has, how two values differ, and the form of managedFields (FieldsV1)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from apiserver.schemas import Schema

Obj = dict[str, Any]
Path = tuple[str, ...]  # elements as FieldsV1 writes them: f:name, k:{"name":"a"}, v:"x"
Fields = frozenset[Path]
NONE: Fields = frozenset()


def item_element(schema: Schema, item: Any) -> str:
    """How an entry of a list with keys, or of a set, is named."""
    if schema.keys and isinstance(item, dict):
        keys = {key: item[key] for key in sorted(schema.keys) if key in item}
        return "k:" + json.dumps(keys, separators=(",", ":"), ensure_ascii=False)
    return "v:" + json.dumps(item, separators=(",", ":"), ensure_ascii=False)


def children(schema: Schema, value: Any) -> Iterator[tuple[str, Schema, Any]]:
    """The fields or entries of a value that is not owned whole."""
    if isinstance(value, dict) and schema.shape in {"object", "map"}:
        for name, each in value.items():
            yield f"f:{name}", schema.child(name), each
    elif isinstance(value, list) and schema.items is not None:
        for each in value:
            yield item_element(schema, each), schema.items, each


def is_whole(schema: Schema, value: Any) -> bool:
    """Whether a value has one owner."""
    return schema.whole() or not isinstance(value, (dict, list)) or (isinstance(value, list) and schema.items is None)


def leaves(schema: Schema, value: Any, path: Path = ()) -> Iterator[Path]:
    """The fields that an apply of the value owns: its leaves, its empty maps, and the entries of its keyed lists."""
    if is_whole(schema, value):
        yield path
        return
    if path and (path[-1][0] in "kv" or not value):
        yield path
    for element, inner, each in children(schema, value):
        yield from leaves(inner, each, (*path, element))


def everything(schema: Schema, value: Any, path: Path = ()) -> Iterator[Path]:
    """Every field of the value, with those that hold others."""
    if path:
        yield path
    if not is_whole(schema, value):
        for element, inner, each in children(schema, value):
            yield from everything(inner, each, (*path, element))


@dataclass(frozen=True, slots=True)
class Difference:
    """How two values differ."""

    changed: Fields  # added or modified
    removed: Fields


def compare(schema: Schema, old: Any, new: Any) -> Difference:
    """The fields in which `new` differs from `old`."""
    changed: set[Path] = set()
    removed: set[Path] = set()
    _compare(schema, old, new, (), changed, removed)
    return Difference(frozenset(changed), frozenset(removed))


def _compare(schema: Schema, old: Any, new: Any, path: Path, changed: set[Path], removed: set[Path]) -> None:
    if old is new or old == new:
        return
    if is_whole(schema, new) or is_whole(schema, old):
        changed.add(path)
        if not is_whole(schema, old):
            removed.update(set(everything(schema, old, path)) - {path})
        return
    before = {element: (inner, each) for element, inner, each in children(schema, old)}
    after = {element: (inner, each) for element, inner, each in children(schema, new)}
    for element, (inner, each) in after.items():
        if element not in before:
            changed.update(everything(inner, each, (*path, element)))
        else:
            _compare(inner, before[element][1], each, (*path, element), changed, removed)
    for element, (inner, each) in before.items():
        if element not in after:
            removed.update(everything(inner, each, (*path, element)))


def to_fields_v1(fields: Iterable[Path]) -> Obj:
    """As managedFields write a set: nested objects, "." for a field that is owned beside fields inside it."""
    tree: Obj = {}
    members = set(fields)
    for path in sorted(members):
        node = tree
        for element in path:
            node = node.setdefault(element, {})
    for path in members:
        node = tree
        for element in path:
            node = node[element]
        if node:
            node["."] = {}
    return tree


def from_fields_v1(tree: Obj) -> Fields:
    """The set that `to_fields_v1` wrote."""
    found: set[Path] = set()

    def walk(node: Obj, path: Path) -> None:
        if path and (not node or "." in node):
            found.add(path)
        for element, inner in node.items():
            if element != ".":
                walk(inner, (*path, element))

    walk(tree, ())
    return frozenset(found)


def path_text(path: Path) -> str:
    """A path as messages show it: .data.k1, .spec.containers[name="a"].image."""
    text = ""
    for element in path:
        kind, value = element[:1], element[2:]
        if kind == "f":
            text += f".{value}"
        elif kind == "k":
            keys = json.loads(value)
            text += "[" + ",".join(f"{key}={json.dumps(keys[key])}" for key in sorted(keys)) + "]"
        else:
            text += f"[={value}]"
    return text


def without(schema: Schema, value: Any, gone: Fields, path: Path = ()) -> Any:
    """The value without some fields; an entry of a keyed list goes when its own path is among them."""
    if is_whole(schema, value):
        return value
    if isinstance(value, dict):
        return {
            name: without(schema.child(name), each, gone, (*path, f"f:{name}"))
            for name, each in value.items()
            if (*path, f"f:{name}") not in gone
        }
    items = schema.items or schema
    return [
        without(items, each, gone, (*path, item_element(schema, each)))
        for each in value
        if (*path, item_element(schema, each)) not in gone
    ]


def merged(schema: Schema, value: Any, change: Any) -> Any:
    """The value with what `change` states laid over it, as an apply does."""
    if is_whole(schema, change) or not isinstance(value, type(change)):
        return change
    if isinstance(change, dict):
        result = dict(value)
        for name, each in change.items():
            result[name] = merged(schema.child(name), value[name], each) if name in value else each
        return result
    items = schema.items or schema
    rest = {item_element(schema, each): each for each in value}
    found = list(value)
    for each in change:
        element = item_element(schema, each)
        if element in rest:
            place = found.index(rest[element])
            found[place] = merged(items, rest[element], each)
        else:
            found.append(each)
    return found
