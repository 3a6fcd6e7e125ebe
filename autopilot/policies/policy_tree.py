"""The policy tree as data: its fields with meaning, limits and defaults, and their values as text.

Everything is read from the annotations of the dataclasses in `autopilot.core.model.policy`: error messages, the
reference page and the schema use this module, so that a field is documented once.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from typing_extensions import Doc

from autopilot.core.model.policy import Policy
from autopilot.core.model.units import SECONDS

MAX_EXACT_S = 2.0**53  # whole seconds above this are no longer exact in a float

EXPERT = "expert"
"""The field of a policy file that sets expert fields, by their path."""
CHOSEN: Mapping[str, tuple[str, ...]] = {
    "": ("name", "edition", "horizon_s", "rules", "price_weight"),
    "order": ("short_s", "width_exponent", "aging_s", "aging_exponent", "hazard_weight", "max_wait_s"),
    "reservation": ("depth", "firm_after_s", "share_hold_s"),
    "tenancy": ("usage_half_life_s", "guarantee"),
    "preemption": (
        "grace_s",
        "without_checkpoint",
        "checkpoint_writers",
        "saves_prior",
        "time_sharing",
        "index_ratio",
    ),
    "capacity": ("pools",),
    "storms": ("least",),
    "enforcement": ("spend_suspends",),
    "idle": ("window_s", "interactive_grace_s", "batch_grace_s", "working_hours"),
    "hysteresis": ("dwell_s", "cool_down_s"),
    "budget": ("per_cluster", "per_tenant", "per_node", "concurrent"),
    "protection": ("classes", "min_runtime_s", "most_stops"),
    "approval": ("valid_s",),
    "journal": ("max_mib", "max_age_s"),
}
"""The fields that a person chooses, by section; all modes are. The others have defaults for every cluster: expert."""


def is_expert(path: str) -> bool:
    """Whether a policy file sets this field under `expert`."""
    section, _, name = path.rpartition(".")
    return section != "modes" and name not in CHOSEN.get(section, ())


@dataclass(frozen=True, slots=True)
class PolicyField:
    """One field that a policy file may set, an expert one under `expert`; `path` as in `reservation.depth`."""

    path: str
    meaning: str
    allowed: str
    default: Any
    hint: Any


@functools.cache
def policy_fields() -> tuple[PolicyField, ...]:
    """Every leaf of the tree, in the order of the dataclasses."""
    return tuple(_leaves(Policy(), ""))


def _leaves(node: Any, path: str) -> Iterator[PolicyField]:
    cls: type = type(node)
    for name, hint in hints_of(cls).items():
        value, full = getattr(node, name), join(path, name)
        if is_dataclass(value):
            yield from _leaves(value, full)
        else:
            yield PolicyField(full, meaning_of(hint), allowed_text(hint, name), value, hint)


def join(path: str, name: str) -> str:
    """`reservation` and `depth` make `reservation.depth`; an empty path is the root."""
    return f"{path}.{name}" if path else name


# --- annotations ----------------------------------------------------------------------------------


@functools.cache
def hints_of(cls: type) -> Mapping[str, Any]:
    """Name -> annotation of the fields of a dataclass, in their order."""
    found = get_type_hints(cls, include_extras=True)
    return types.MappingProxyType({field.name: found[field.name] for field in fields(cls) if field.init})


def bare(hint: Any) -> Any:
    """The annotation without limits and documentation, and without `| None`."""
    if get_origin(hint) is Annotated:
        return bare(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not type(None)]
        return bare(kinds[0]) if len(kinds) == 1 else hint
    return hint


def item_of(hint: Any) -> Any:
    """The annotation of an item of a tuple or of a value of a dict; Any when unspecified."""
    arguments = [argument for argument in get_args(bare(hint)) if argument is not Ellipsis]
    return arguments[-1] if arguments else Any


def meaning_of(hint: Any) -> str:
    """The documentation (Doc) of an annotation."""
    return next((part.documentation for part in _metadata(hint) if isinstance(part, Doc)), "")


def plain(value: Any) -> Any:
    """A policy, or a part of one, as dicts, lists, numbers, texts and booleans; durations in seconds."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value) if field.init}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return value


def is_duration(name: str) -> bool:
    """Whether the name marks seconds (`dwell_s`); a rate (`requests_per_s`) is no duration."""
    return name.endswith("_s") and "_per_" not in name


def _metadata(hint: Any) -> tuple[Any, ...]:
    return tuple(hint.__metadata__) if get_origin(hint) is Annotated else ()


def _takes_none(hint: Any) -> bool:
    if get_origin(hint) is Annotated:
        return _takes_none(get_args(hint)[0])
    return get_origin(hint) in (Union, types.UnionType) and type(None) in get_args(hint)


# --- limits and values as text --------------------------------------------------------------------


def allowed_text(hint: Any, name: str = "") -> str:
    """The allowed values of a field: `a whole number from 0 to 64`, `a duration from 1m to 7d`, `one of off, auto`."""
    text = _kind_text(bare(hint), name) + _limits_text(hint, name)
    return f"{text}, or null" if _takes_none(hint) else text


def _kind_text(kind: Any, name: str) -> str:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of " + ", ".join(str(item.value) for item in kind)
    if isinstance(kind, type) and is_dataclass(kind):
        return "a mapping with the fields " + ", ".join(hints_of(kind))
    if get_origin(kind) is dict:
        return f"a mapping of names to {allowed_text(item_of(kind), name)}"
    if get_origin(kind) in (tuple, list):
        return f"a list, each item {allowed_text(item_of(kind), name)}"
    if kind is float and is_duration(name):
        return "a duration"
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    return words.get(kind, str(kind))


def _limits_text(hint: Any, name: str) -> str:
    bounds: dict[str, Any] = {}
    for part in _metadata(hint):
        for bound in ("ge", "gt", "le", "lt"):
            if (value := getattr(part, bound, None)) is not None:
                bounds[bound] = value_text(value, name)
    if "ge" in bounds and "le" in bounds:
        return f" from {bounds['ge']} to {bounds['le']}"
    words = {"ge": "of at least", "gt": "above", "le": "of at most", "lt": "below"}
    found = [f"{words[bound]} {text}" for bound, text in bounds.items()]
    return f" {' and '.join(found)}" if found else ""


def value_text(value: Any, name: str = "") -> str:
    """A value as one line of a policy file; equal text only for equal values of one field."""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return duration_text(value) if is_duration(name) else number_text(value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(value_text(item, name) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {value_text(item, name)}' for key, item in sorted(value.items()))}}}"
    return "null" if value is None else str(value)


def number_text(value: float) -> str:
    """The shortest text that parses to the same number, without `.0` after a whole one."""
    whole = isinstance(value, int) or (abs(value) < MAX_EXACT_S and value == int(value))
    return str(int(value)) if whole else repr(value)


def duration_text(value_s: float) -> str:
    """Seconds as `15m`, `1h30m` or `7d`, which parses to the same number; a plain number where not whole."""
    if not 0 <= value_s < MAX_EXACT_S or value_s != int(value_s):
        return number_text(value_s)
    rest, parts = int(value_s), []
    for unit in ("d", "h", "m", "s"):
        count, rest = divmod(rest, int(SECONDS[unit]))
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
