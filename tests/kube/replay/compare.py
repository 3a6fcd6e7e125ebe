"""Compares what the server answers with what was recorded.

Left out of every comparison, each for a reason:
- metadata.uid, resourceVersion: drawn by the server; metadata.creationTimestamp and every other time: the replay
  runs on a virtual clock whose start is only estimated. A time must be a time, of the same precision.
- metadata.managedFields where the recording left it out.
- names that the server generates (`aliases`): the same generated name must stand wherever the recording has it.
- what the step lists as volatile.
- the order of the roles that a refusal misses: that of a hash map of the server.
- one second of a duration between two times: where within a second the topic began is only estimated.
- items beyond those of a cut list: a list is cut when its step says so, or when its items lack their uid.
- the order of conditions: they are a map by type, and the order is that of the writers' race on that day.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
UNORDERED = {"resourceRules", "nonResourceRules"}  # in the order of a hash map of the server
SERVER_SET = {"uid", "resourceVersion", "creationTimestamp", "selfLink"}
DURATIONS = {"accumulatedPastExecutionTimeSeconds"}
NUMBERED = re.compile(r"(?<=current: )\d+|(?<=in record \()\d+(?=\))|(?<=version: )\d+ \(\d+\)|\b\d+(\.\d+)?m?s\b")
ROLES = re.compile(r"RBAC: \[([^\]]*)\]")
UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class Comparison:
    """One comparison; `difference` is the first one found, "" if there is none."""

    def __init__(
        self, volatile: Iterable[str], aliases: dict[str, str], *, trimmed: bool, keeps_managed_fields: bool
    ) -> None:
        self.volatile = [pointer.split("/")[1:] for pointer in volatile]
        self.aliases = aliases
        self.trimmed = trimmed
        self.keeps_managed_fields = keeps_managed_fields
        self.difference = ""
        self._cut = self

    def same(self, expected: Any, got: Any, path: tuple[str, ...] = ()) -> bool:
        """Whether they are alike."""
        if self._ignored(path):
            return True
        if isinstance(expected, dict) and isinstance(got, dict):
            return self._same_objects(expected, got, path)
        if self.trimmed and path == ("items",) and isinstance(expected, int) and isinstance(got, list):
            return len(got) == expected or self._differs(path, expected, len(got))
        if path and path[-1] in UNORDERED and isinstance(expected, list) and isinstance(got, list):
            expected, got = sorted(expected, key=json.dumps), sorted(got, key=json.dumps)
        if isinstance(expected, list) and isinstance(got, list):
            if self.trimmed and len(expected) < len(got):
                got = _same_types(expected, got)
            if path == ("items",) and (len(expected) < len(got) or not all(_has_metadata(each) for each in expected)):
                cut = self.trimmed or (bool(expected) and all(map(_is_cut, expected, got)))
                got = self._aligned(expected, got) if cut else got
            if len(expected) != len(got):
                return self._differs(path, expected, got)
            if path and path[-1] == "conditions":
                expected, got = by_type(expected), by_type(got)
            return all(self.same(a, b, (*path, str(i))) for i, (a, b) in enumerate(zip(expected, got, strict=True)))
        if path and path[-1] in DURATIONS and isinstance(expected, int) and isinstance(got, int):
            return abs(expected - got) <= 1 or self._differs(path, expected, got)
        if isinstance(expected, str) and isinstance(got, str):
            return self._same_text(expected, got) or self._differs(path, expected, got)
        return (expected == got and type(expected) is type(got)) or self._differs(path, expected, got)

    def _aligned(self, expected: list[Any], got: list[Any]) -> list[Any]:
        """Items in the form of a cut list: those of interest, some with their fields lifted, some by name alone."""
        named = {(each.get("metadata") or {}).get("name"): each for each in got if isinstance(each, dict)}
        found: list[Any] = []
        for each in expected:
            name = each if isinstance(each, str) else (each.get("metadata") or each).get("name", "")
            ours = named.get(self.aliases.get(name, name))
            if ours is None:
                return got
            if isinstance(each, str):
                found.append(ours["metadata"]["name"])
            elif "metadata" in each:
                found.append(ours)
            else:
                parts = [ours["metadata"], ours.get("spec") or {}, ours.get("status") or {}]
                found.append({key: next((part[key] for part in parts if key in part), None) for key in each})
        return found

    def _same_objects(self, expected: dict[str, Any], got: dict[str, Any], path: tuple[str, ...]) -> bool:
        skip = set()
        if path and path[-1] == "metadata":
            skip = SERVER_SET if self.keeps_managed_fields else SERVER_SET | {"managedFields"}
        cut = self.trimmed or _is_cut(expected, got)
        names = expected.keys() if cut else expected.keys() | got.keys()
        for name in sorted(names - skip):
            inside = (*path, name)
            if name not in got or name not in expected:
                if not (self._ignored(inside) or (cut and name not in expected)):
                    return self._differs(inside, expected.get(name, "(absent)"), got.get(name, "(absent)"))
            elif not self._inside(cut).same(expected[name], got[name], inside):
                self.difference = self.difference or self._cut.difference
                return False
        return True

    def _inside(self, cut: bool) -> Comparison:
        """What compares the parts of an object: those of a cut one are cut as well."""
        if not cut or self.trimmed:
            return self
        self._cut = Comparison([], self.aliases, trimmed=True, keeps_managed_fields=self.keeps_managed_fields)
        self._cut.volatile = self.volatile
        return self._cut

    def _same_text(self, expected: str, got: str) -> bool:
        if expected == got or self.aliases.get(expected) == got:
            return True
        if TIME.fullmatch(expected) and TIME.fullmatch(got):
            return len(expected) == len(got)
        return self._plain(expected, alias=True) == self._plain(got, alias=False)

    def _plain(self, text: str, *, alias: bool) -> str:
        """Text without what only the day of the recording knows."""
        if alias:
            for name, other in self.aliases.items():
                text = text.replace(name, other)
        text = ROLES.sub(lambda found: f"RBAC: {sorted(found[1].split(', '))}", text)
        return NUMBERED.sub("#", TIME.sub("TIME", UID.sub("UID", text)))

    def _ignored(self, path: tuple[str, ...]) -> bool:
        return any(
            len(pointer) == len(path) and all(a in ("*", b) for a, b in zip(pointer, path, strict=True))
            for pointer in self.volatile
        )

    def _differs(self, path: tuple[str, ...], expected: Any, got: Any) -> bool:
        self.difference = f"/{'/'.join(path)}: expected {shorten(expected)}, got {shorten(got)}"
        return False


def _same_types(expected: list[Any], got: list[Any]) -> list[Any]:
    """Of conditions a cut recording may keep some: ours of the same types."""
    if not all(isinstance(each, dict) and "type" in each for each in expected + got):
        return got
    types = {each["type"] for each in expected}
    return [each for each in got if each["type"] in types]


def _has_metadata(item: Any) -> bool:
    return isinstance(item, dict) and "metadata" in item


def _is_cut(expected: dict[str, Any], got: dict[str, Any]) -> bool:
    """Whether the recording holds only some fields of an object: a whole one has a uid, and a Status its version."""
    metadata, ours = expected.get("metadata"), got.get("metadata")
    if expected.get("kind") == "Status" == got.get("kind"):
        return "apiVersion" not in expected
    if not isinstance(metadata, dict) or not isinstance(ours, dict):
        return False
    return "name" in metadata and "uid" in ours and "uid" not in metadata


def by_type(conditions: list[Any]) -> list[Any]:
    """Conditions in order of their types."""
    if not all(isinstance(each, dict) and "type" in each for each in conditions):
        return conditions
    return sorted(conditions, key=lambda each: str(each["type"]))


def shorten(value: Any, limit: int = 600) -> str:
    """A value for a difference."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else text[:limit] + "..."
