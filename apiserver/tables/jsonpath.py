"""The JSONPath dialect of printer columns: fields, indexes, wildcards and filters with one comparison."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

STEP = re.compile(
    r"""\.\.(?P<deep>[\w-]+)
      | \.(?P<field>(?:\\.|[^.\[\]\\])+)
      | \[\?\(\s*@\.(?P<filter>[^=!<>\s]+)\s*(?:(?P<op>==|!=)\s*(?P<value>"[^"]*"|'[^']*'|[^)\s]+))?\s*\)\]
      | \[(?P<index>-?\d+|\*)\]
      | \['(?P<quoted>[^']+)'\]""",
    re.VERBOSE,
)
Step = tuple[str, str, str, str]


@lru_cache(maxsize=1024)
def steps(path: str) -> tuple[Step, ...]:
    """The steps of a path (`.spec.targets[*].name`, braces allowed). Raises ValueError for what is no path."""
    text = path.strip().removeprefix("{").removesuffix("}")
    if text and text[0] not in ".[":
        text = f".{text}"
    found, at = [], 0
    while at < len(text):
        match = STEP.match(text, at)
        if match is None:
            raise ValueError(f"{path!r} is not a JSON path that printer columns support, from {text[at:]!r} on")
        found.append(_step(match))
        at = match.end()
    return tuple(found)


def _step(match: re.Match[str]) -> Step:
    if match["field"] or match["quoted"]:
        return ("field", re.sub(r"\\(.)", r"\1", match["field"] or match["quoted"]), "", "")
    if match["deep"]:
        return ("deep", match["deep"], "", "")
    if match["filter"]:
        return ("filter", match["filter"], match["op"] or "", (match["value"] or "").strip("\"'"))
    return ("index", match["index"], "", "")


def found(value: Any, path: str) -> list[Any]:
    """Every value at a path, in order; empty where the path leads nowhere."""
    values = [value]
    for step in steps(path):
        values = [each for one in values for each in _below(one, step)]
    return values


def _below(value: Any, step: Step) -> Iterator[Any]:
    kind, name, op, wanted = step
    if kind == "field":
        if isinstance(value, dict) and name in value:
            yield value[name]
    elif kind == "deep":
        if isinstance(value, (dict, list)):
            inner = value.values() if isinstance(value, dict) else value
            if isinstance(value, dict) and name in value:
                yield value[name]
            for each in inner:
                yield from _below(each, step)
    elif kind == "filter":
        for each in value if isinstance(value, list) else ():
            held = found(each, f".{name}")
            if (not op and held) or (op and any((str(one) == wanted) is (op == "==") for one in held)):
                yield each
    elif isinstance(value, (list, dict)):
        yield from _indexed(value, name)


def _indexed(value: list[Any] | dict[str, Any], index: str) -> Iterator[Any]:
    if index == "*":
        yield from value.values() if isinstance(value, dict) else value
    elif isinstance(value, list) and -len(value) <= int(index) < len(value):
        yield value[int(index)]
