"""The structural schema of an AutopilotPolicy's `spec`, from the same tree as docs/policy.md.

It states no defaults: the API server would write them into the object, where they would override the base. Unknown
fields are kept and not dropped: a misspelt mode would otherwise disappear silently. The service refuses them, with the
nearest name, in the condition InForce.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from enum import Enum
from typing import Annotated, Any, get_args, get_origin

from autopilot.core.model.policy import Policy
from autopilot.core.model.units import SECONDS
from autopilot.policies.policy_tree import EXPERT, bare, hints_of, is_duration, is_expert, item_of, join, meaning_of
from autopilot.settings import DEFAULT_BASE, policy_names

Schema = dict[str, Any]

DURATION = rf"^\s*(([0-9]*\.?[0-9]+\s*({'|'.join(SECONDS)})\s*)+|[0-9]*\.?[0-9]+)\s*$"
AS_TEXT = "a number of seconds, or a text such as 15m or 1h 30m"
"""What `kubectl explain` says of durations: it knows no type for what is a number or a text."""
LONGEST_TEXT, MOST_ITEMS, MOST_NAMES = 200, 16, 200
"""Limits that the budget for rules asks for; no policy comes near them."""

RULES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "": (
        (
            "!has(self.hysteresis) || !has(self.hysteresis.dwell_s) || !has(self.horizon_s) || "
            "type(self.hysteresis.dwell_s) != int || type(self.horizon_s) != int || "
            "int(self.hysteresis.dwell_s) <= int(self.horizon_s)",
            "hysteresis.dwell_s is longer than horizon_s, so no disruptive action could ever pay off; shorten it",
        ),
    ),
    "budget": (
        (
            "!has(self.concurrent) || !has(self.per_cluster) || self.concurrent <= self.per_cluster",
            "concurrent exceeds per_cluster; lower it or raise the other",
        ),
    ),
}
"""Rules on several fields, by the path of their section. They are those of `check_policy` that one object shows
without its base; the service checks all of them.
"""

EXTRA: Mapping[str, Schema] = {
    "price_weight": {
        "additionalProperties": {
            "type": "number",
            "minimum": 0,
            "exclusiveMinimum": True,
            "maximum": 1000,
            "exclusiveMaximum": True,
        }
    },
}
"""Limits that `check_policy` states and no annotation does."""


def policy_spec_schema() -> Schema:
    """The schema of `spec`, with the field `base`."""
    spec = _section(Policy, "", "the policy; what it does not name is as in its base (docs/policy.md)")
    base = {
        "type": "string",
        "enum": list(policy_names()),
        "description": f"the shipped policy that supplies the fields that are not set; without it: {DEFAULT_BASE}",
    }
    expert = {
        "type": "object",
        "description": "expert fields by path, such as regeometry.dwell_s: 5m (docs/policy.md)",
        "maxProperties": MOST_NAMES,
        "x-kubernetes-preserve-unknown-fields": True,
    }
    spec["properties"] = {"base": base, **spec["properties"], EXPERT: expert}
    return spec


def _section(kind: type, path: str, meaning: str) -> Schema:
    fields = {join(path, name): _field(hint, name, join(path, name)) for name, hint in hints_of(kind).items()}
    found: Schema = {
        "type": "object",
        "description": meaning,
        "x-kubernetes-preserve-unknown-fields": True,
        "properties": {
            full.rpartition(".")[2]: field
            for full, field in fields.items()
            if (field["properties"] if "properties" in field else not is_expert(full))
        },
    }
    if path in RULES:
        found["x-kubernetes-validations"] = [{"rule": rule, "message": text} for rule, text in RULES[path]]
    return found


def _field(hint: Any, name: str, path: str) -> Schema:
    kind, meaning = bare(hint), meaning_of(hint)
    if isinstance(kind, type) and is_dataclass(kind):
        return _section(kind, path, meaning)
    value = _value(hint, name)
    if value.get("pattern") == DURATION:
        meaning += f"; {AS_TEXT}"
    return {"description": meaning, **value, **EXTRA.get(path, {})}


def _value(hint: Any, name: str) -> Schema:
    """Type and limits of one value."""
    kind = bare(hint)
    if get_origin(kind) is dict:
        return {"type": "object", "maxProperties": MOST_NAMES, "additionalProperties": _value(item_of(kind), name)}
    if get_origin(kind) in (tuple, list):
        return {"type": "array", "maxItems": MOST_ITEMS, "items": _value(item_of(kind), name)}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"type": "string", "enum": [str(item.value) for item in kind]}
    limits = _limits(hint)
    if kind is float and is_duration(name):
        return {"x-kubernetes-int-or-string": True, "pattern": DURATION, **limits}
    types: dict[Any, Schema] = {
        bool: {"type": "boolean"},
        int: {"type": "integer", "format": "int64"},
        float: {"type": "number"},
        str: {"type": "string", "maxLength": LONGEST_TEXT},
    }
    return types[kind] | limits


def _limits(hint: Any) -> Schema:
    found: Schema = {}
    for part in get_args(hint)[1:] if get_origin(hint) is Annotated else ():
        for bound, key, exclusive in (
            ("ge", "minimum", ""),
            ("gt", "minimum", "exclusiveMinimum"),
            ("le", "maximum", ""),
            ("lt", "maximum", "exclusiveMaximum"),
        ):
            value = getattr(part, bound, None)
            if value is not None:
                found[key] = int(value) if float(value).is_integer() else value
                if exclusive:
                    found[exclusive] = True
    return found
