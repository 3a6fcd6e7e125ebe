"""Editions of the shipped policies: what an installed policy keeps after an upgrade.

An edition begins where actions of shipped policies go further than before, or actions are new. An installation keeps
the edition that it started with (ControllerMemory.edition), until its policy names a later one (`edition`). Modes that
a policy file names itself always hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autopilot.core.model.modes import LATEST_EDITION, Mode
from autopilot.core.model.policy import Policy

BEFORE: Mapping[int, Mapping[str, Mode]] = {
    2: {
        **dict.fromkeys(
            ("regeometry", "defragment_ahead", "notify_idle", "mark_idle", "suspend_idle", "shrink_idle"), Mode.OFF
        ),
        "enforce_limit": Mode.RECOMMEND,
    }
}
"""By edition, the furthest mode in the policy `autopilot` before it of each action that goes further since. An action
that did not exist has `recommend`."""
_ORDER = tuple(Mode)


def as_of(policy: Policy, edition: int) -> Policy:
    """A shipped policy with the modes of an edition: itself for the latest one."""
    modes: dict[str, Mode] = {}
    for later in range(edition + 1, LATEST_EDITION + 1):
        for action, most in BEFORE[later].items():
            mode = modes.get(action, getattr(policy.modes, action))
            if mode in (Mode.APPROVE, Mode.AUTO):
                modes[action] = min(mode, most, key=_ORDER.index)
    return replace(policy, modes=replace(policy.modes, **modes)) if modes else policy
