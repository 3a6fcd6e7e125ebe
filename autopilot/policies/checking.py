"""Validation of a policy file: unknown fields, types and limits, each refused with one sentence.

This module walks the tree for what pydantic cannot know (which fields exist, what a duration is, where missing values
come from); pydantic validates type and limits of each value.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from difflib import get_close_matches
from enum import Enum
from typing import TYPE_CHECKING, Any, get_origin

from autopilot.core.model.errors import InputError
from autopilot.core.model.errors import nearest as nearest_name
from autopilot.core.model.policy import Policy
from autopilot.core.model.units import parse_duration_s
from autopilot.policies.policy_tree import (
    EXPERT,
    allowed_text,
    bare,
    hints_of,
    is_duration,
    is_expert,
    item_of,
    join,
    meaning_of,
    plain,
    policy_fields,
    value_text,
)

if TYPE_CHECKING:
    from pydantic import TypeAdapter

SHOWN_LETTERS = 60
_REFUSED: Any = object()  # replaces an invalid value


@functools.cache
def adapter() -> TypeAdapter[Policy]:
    """The pydantic validator of the tree, built on first use."""
    from pydantic import TypeAdapter

    return TypeAdapter(Policy)


def checked_policy(spec: Mapping[str, Any], base: Policy) -> tuple[Policy | None, list[str]]:
    """The policy that `spec` (as read from YAML) makes of `base`, or None and the errors, field by field.

    Contradictions between fields are checked elsewhere (`autopilot.core.model.policy.check_policy`).
    """
    from pydantic import ValidationError

    problems: list[str] = []
    data = _section(_with_expert(spec, problems), Policy, "", base, problems)
    policy = None
    try:
        # strict, and in JSON mode: a list may be a tuple and a text an enum, but `"5"` is no number
        policy = adapter().validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        for wrong in error.errors(include_url=False):
            path, name, hint = _place(wrong["loc"])
            problems.append(_refusal(wrong["input"], hint, path, name))
    return (None if problems else policy), problems


# --- expert fields --------------------------------------------------------------------------------


def _with_expert(spec: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """`spec` with the expert fields, which stand under `expert` by path, at their places in the tree."""
    paths = {field.path for field in policy_fields()}
    out_of_place = [path for path in _paths(spec) if path in paths and is_expert(path)]
    problems += [f"{path}: an expert field; write it as `{EXPERT}: {{{path}: ...}}`" for path in out_of_place]
    given = spec.get(EXPERT, {})
    if not isinstance(given, Mapping):
        problems.append(f"{EXPERT}: {show(given)} is not allowed; it takes a mapping of paths to values")
        given = {}
    tree: dict[str, Any] = {key: value for key, value in spec.items() if key != EXPERT}
    for path, value in given.items():
        if path in paths and is_expert(path):
            section, _, name = path.rpartition(".")
            if not isinstance(tree.setdefault(section, None) or {}, Mapping):
                continue  # refused in the walk
            tree[section] = {**(tree[section] or {}), name: value}
        elif path in paths:
            problems.append(f"{EXPERT}.{path}: no expert field; write {path} at its place in the policy")
        else:
            problems.append(f"{EXPERT}.{path}: {_no_field(path) or f'no such field{nearest(path, paths)}'}")
    return tree


def _paths(spec: Mapping[str, Any], above: str = "") -> list[str]:
    """The paths of all that a spec sets, sections included."""
    found = []
    for key, value in spec.items():
        path = join(above, str(key))
        found += [path, *(_paths(value, path) if isinstance(value, Mapping) and path != EXPERT else ())]
    return found


GONE_FIELDS = {
    **dict.fromkeys(
        ("regeometry.instance_s", "regeometry.gpu_s", "regeometry.node_s"),
        "nodes state their MIG scope: `mig_scopes` of a pool in a cluster file, on Kubernetes the labels of the MIG "
        "manager; regeometry.change_s has the time of a change",
    ),
    "tenancy.guarantee_by_queue": "queues state it: `guarantee_kept` in a cluster file, on Kueue the annotation "
    "gpu-autopilot.io/guarantee-kept of the ClusterQueue",
}
"""Former fields that are stated elsewhere now."""


def _no_field(path: str) -> str:
    """What became of a former field that is a constant now or is stated elsewhere; "" for any other path."""
    if gone := next((why for each, why in GONE_FIELDS.items() if f"{path}.".startswith(f"{each}.")), ""):
        return f"no field of a policy any more: {gone}"
    section, _, name = path.rpartition(".")
    kind = type(getattr(Policy(), section, None))
    if not is_dataclass(kind) or name in hints_of(kind) or not isinstance(getattr(kind, name, None), int | float):
        return ""
    return f"no field any more: it is always {value_text(getattr(kind, name), name)}; remove it"


# --- the walk -------------------------------------------------------------------------------------


def _section(value: Any, kind: type, path: str, base: Any, problems: list[str]) -> Any:
    """The fields of one dataclass as pydantic input, missing ones from `base` (None: left out)."""
    if value is None and base is not None:
        return plain(base)  # a section whose lines are all commented out
    if not isinstance(value, Mapping):
        problems.append(_refusal(value, kind, path, ""))
        return _REFUSED if base is None else plain(base)
    hints, data = hints_of(kind), {} if base is None else plain(base)
    for key, item in value.items():
        if key not in hints:
            where = join(path, key if key.isidentifier() and len(key) <= SHOWN_LETTERS else show(key))
            problems.append(f"{where}: {_no_field(where) or f'no such field{_nearest_field(key, path, hints)}'}")
            continue
        found = _value(item, hints[key], join(path, key), key, getattr(base, key, None), problems)
        if found is not _REFUSED:
            data[key] = found
    return data


def _value(value: Any, hint: Any, path: str, name: str, base: Any, problems: list[str]) -> Any:
    """One value as pydantic input, durations in seconds; `name` is its field."""
    kind = bare(hint)
    if is_dataclass(kind) and isinstance(kind, type):
        return _section(value, kind, path, base, problems)
    if isinstance(value, dict) and get_origin(kind) is dict:
        item = item_of(kind)
        pairs = {k: _value(v, item, join(path, k), name, None, problems) for k, v in value.items()}
        return {k: v for k, v in pairs.items() if v is not _REFUSED}
    if isinstance(value, list) and get_origin(kind) in (tuple, list):
        item = item_of(kind)
        items = [_value(v, item, f"{path}[{i}]", name, None, problems) for i, v in enumerate(value)]
        return [v for v in items if v is not _REFUSED]
    if isinstance(value, str) and kind in (int, float) and is_duration(name):
        return _seconds(value, hint, path, name, problems)
    if isinstance(value, float) and not math.isfinite(value):
        problems.append(_refusal(value, hint, path, name))
        return _REFUSED
    return value


def _seconds(text: str, hint: Any, path: str, name: str, problems: list[str]) -> Any:
    try:
        value_s = parse_duration_s(text)
    except InputError:
        problems.append(_refusal(text, hint, path, name, "; write for example 90s, 15m, 1h30m or 7d"))
        return _REFUSED
    return int(value_s) if bare(hint) is int and value_s == int(value_s) else value_s


def _place(location: tuple[str | int, ...]) -> tuple[str, str, Any]:
    """Path, field name and annotation of a pydantic error."""
    path, name, hint = "", "", Any
    kind: Any = Policy
    for step in location:
        if isinstance(step, str) and isinstance(kind, type) and is_dataclass(kind):
            path, name, hint = join(path, step), step, hints_of(kind).get(step, Any)
        else:
            path = f"{path}[{step}]" if isinstance(step, int) else join(path, step)
            hint = item_of(hint)
        kind = bare(hint)
    return path, name, hint


# --- messages -------------------------------------------------------------------------------------


def _refusal(value: Any, hint: Any, path: str, name: str, fix: str = "") -> str:
    kind = bare(hint)
    names = [str(item.value) for item in kind] if isinstance(kind, type) and issubclass(kind, Enum) else []
    meaning = f" ({meaning_of(hint)})" if meaning_of(hint) else ""
    allowed = allowed_text(hint, name)
    return f"{path}: {show(value)} is not allowed{nearest(value, names)}; it takes {allowed}{meaning}{fix}"


def show(value: Any) -> str:
    """A value as in the file, truncated where it is long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN_LETTERS else f"{text[: SHOWN_LETTERS - 3]}..."


def nearest(word: Any, known: Iterable[str]) -> str:
    """`, did you mean X?` for the closest known word, or an empty text."""
    near = nearest_name(word, known)
    return f", {near}" if near else ""


def _nearest_field(key: str, path: str, hints: Mapping[str, Any]) -> str:
    """Close names in the same section first, then anywhere in the tree, else the names of the section."""
    if near := nearest(key, hints if path else (*hints, "base")):
        return near
    by_name = {field.path.rpartition(".")[2]: field.path for field in reversed(policy_fields())}
    if near_names := get_close_matches(key, by_name, n=1):
        return f", did you mean {by_name[near_names[0]]}?"
    return f"; {path or 'a policy'} has {', '.join(hints)}"
