"""Editions of the shipped policies: what an installed policy keeps after an upgrade.

An edition begins where actions of shipped policies go further than before, or actions are new. An installation keeps
the edition that it started with (ControllerMemory.edition), until its policy names a later one (`edition`). Modes that
a policy file names itself always hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Protocol

from autopilot.core.model.modes import LATEST_EDITION, Mode, Modes
from autopilot.core.model.policy import Policy

BEFORE: Mapping[int, Mapping[str, Mode]] = {
    2: {
        **dict.fromkeys(
            ("regeometry", "defragment_ahead", "notify_idle", "mark_idle", "suspend_idle", "shrink_idle"), Mode.OFF
        ),
        "enforce_limit": Mode.RECOMMEND,
    },
    3: {"share": Mode.RECOMMEND, "unshare": Mode.RECOMMEND},
    4: {"isolate": Mode.RECOMMEND, "replace": Mode.RECOMMEND},
}
"""By edition, the furthest mode in the policy `autopilot` before it of each action that goes further since. An action
that did not exist has `recommend`."""
_ORDER = tuple(Mode)


def held_back(newest: Policy, now: Policy) -> str:
    """The modes that an installed policy keeps after an upgrade, and what to write to adopt the new ones; "" for none.

    `newest`: the same policy in a fresh installation.
    """
    names = [each.name for each in fields(Modes)]
    held = [f"{name} ({old})" for name in names if (old := getattr(now.modes, name)) != getattr(newest.modes, name)]
    if not held:
        return ""
    return (
        f"held back since an upgrade: {', '.join(held)}; write `edition: {LATEST_EDITION}` in the policy to adopt the "
        "modes of this version, or single modes"
    )


def as_of(policy: Policy, edition: int) -> Policy:
    """A shipped policy with the modes of an edition: itself for the latest one."""
    modes: dict[str, Mode] = {}
    for later in range(edition + 1, LATEST_EDITION + 1):
        for action, most in BEFORE[later].items():
            mode = modes.get(action, getattr(policy.modes, action))
            if mode in (Mode.APPROVE, Mode.AUTO):
                modes[action] = min(mode, most, key=_ORDER.index)
    return replace(policy, modes=replace(policy.modes, **modes)) if modes else policy


class Installed(Protocol):
    """A policy of an installation."""

    def current(self) -> Policy:
        """As it is in force, the same object while nothing changed."""

    def newest(self) -> Policy:
        """The same in a fresh installation."""


@dataclass(slots=True)
class HeldBack:
    """What an upgrade holds back of a policy, read anew after each change of it."""

    source: Installed
    _told: tuple[Policy, str] | None = None

    def words(self) -> str:
        """As `held_back`."""
        now = self.source.current()
        if self._told is None or self._told[0] is not now:
            self._told = (now, held_back(self.source.newest(), now))
        return self._told[1]
