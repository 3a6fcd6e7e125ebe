"""The first field in which two records differ, as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from autopilot.records.variants import unknown_fields

ABSENT = "absent"
"""Represents an entry that one side lacks."""


def first_unequal(recorded: Any, now: Any, path: str) -> tuple[str, str, str] | None:
    """The first field in which two records differ: its path and both values as text; NaN equals NaN.

    What a record of an earlier version does not say is not compared.
    """
    if isinstance(recorded, np.ndarray) or isinstance(now, np.ndarray):
        return _unequal_columns(np.asarray(recorded), np.asarray(now), path)
    if is_dataclass(recorded) and type(recorded) is type(now):
        unsaid = unknown_fields(recorded)
        names = [each.name for each in fields(recorded) if each.name not in unsaid]
        pairs = [(f"{path}.{name}", getattr(recorded, name), getattr(now, name)) for name in names]
    elif isinstance(recorded, Mapping) and isinstance(now, Mapping):
        keys = [*recorded, *(key for key in now if key not in recorded)]
        pairs = [(f"{path}[{key}]", recorded.get(key, ABSENT), now.get(key, ABSENT)) for key in keys]
    elif isinstance(recorded, tuple | list) and isinstance(now, tuple | list):
        length = max(len(recorded), len(now))
        padded = [[*side, *[ABSENT] * (length - len(side))] for side in (recorded, now)]
        pairs = [(f"{path}[{at}]", *both) for at, both in enumerate(zip(*padded, strict=True))]
    else:
        same = recorded == now or (recorded != recorded and now != now)  # noqa: PLR0124 - NaN equals NaN here
        return None if same else (path, _shown(recorded), _shown(now))
    for name, one, two in pairs:
        found = first_unequal(one, two, name)
        if found is not None:
            return found
    return None


def _unequal_columns(
    recorded: np.ndarray[Any, Any], now: np.ndarray[Any, Any], path: str
) -> tuple[str, str, str] | None:
    if recorded.shape != now.shape:
        return f"{path} (length)", str(recorded.shape), str(now.shape)
    unequal = (recorded != now) & ~((recorded != recorded) & (now != now))  # noqa: PLR0124 - NaN equals NaN here
    if not unequal.any():
        return None
    at = tuple(int(part[0]) for part in np.nonzero(unequal))
    return f"{path}[{', '.join(map(str, at))}]", str(recorded[at]), str(now[at])


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
