"""The policies of other people by name: those registered in this process, and those of installed packages.

A package names its policies in its entry points, and they are imported at the first use of their name:

    [project.entry-points."gpu_autopilot.policies"]
    shortest = "my_package.policies:Shortest"
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from autopilot.core.model.errors import InputError
from simulator.baselines import BASELINES
from simulator.plugins.plugged import Plugged
from simulator.plugins.policy import Policy

GROUP = "gpu_autopilot.policies"
"""The group of entry points."""

Make = Callable[[], Policy]
"""A class without required arguments, or a function that makes the policy of one run."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,39}")
_registered: dict[str, Make] = {}


def register(name: str, make: Make) -> None:
    """Register a policy in this process; a name registered before is replaced. Raises `InputError`."""
    if not _NAME.fullmatch(str(name)) or name.endswith((".yaml", ".yml")):
        raise InputError(
            f"register: {name!r} is no name for a policy; write 1 to 40 of A-Z a-z 0-9 _ . -, a letter first"
        )
    if name in BASELINES:
        raise InputError(f"register: {name!r} is a baseline; choose another name")
    if not callable(make):
        raise InputError(
            f"register: {name!r}: each run needs a new policy; give the class or a function that makes one, not one "
            f"that is made ({type(make).__name__})"
        )
    _checked(name, make)
    _registered[name] = make


def registered_names() -> tuple[str, ...]:
    """The names registered here and those of installed packages, without importing these."""
    return tuple(dict.fromkeys((*_registered, *(name for name in _installed() if name not in BASELINES))))


def maker(name: str) -> Make | None:
    """The maker of the policy of this name; None if there is none. Raises `InputError` if it cannot be imported."""
    if name in _registered:
        return _registered[name]
    point = None if name in BASELINES else _installed().get(name)
    if point is None:
        return None
    try:
        found: Any = point.load()
    except Exception as error:
        raise InputError(
            f"policy {name}: {point.value} of the entry points {GROUP} cannot be imported: {type(error).__name__}: "
            f"{error}; repair or remove the package {point.dist.name if point.dist is not None else ''}"
        ) from error
    make: Make = found
    return make


def made(name: str) -> Plugged:
    """A new policy of this name, for one run. Raises `InputError` if it cannot be made."""
    make = maker(name)
    if make is None:
        raise InputError(f"policy {name}: no policy of this name is registered")
    return Plugged(name, _checked(name, make))


def _checked(name: str, make: Make) -> Policy:
    try:
        policy: Any = make()
    except Exception as error:
        raise InputError(
            f"policy {name}: making it raised {type(error).__name__}: {error}; it is called without arguments"
        ) from error
    if not callable(getattr(policy, "decide", None)):
        raise InputError(f"policy {name}: {type(policy).__name__} has no method decide(view)")
    found: Policy = policy
    return found


@cache
def _installed() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}
