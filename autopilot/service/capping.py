"""A policy whose modes go no further than `recommend`."""

from __future__ import annotations

from dataclasses import replace

from autopilot.core.model.modes import Mode, Modes
from autopilot.core.model.policy import Policy

_ORDER = tuple(Mode)


class Capped:
    """Capped policies. The last one is kept: consumers compare policies by identity."""

    def __init__(self) -> None:
        self._last: tuple[Policy, Policy] | None = None

    def of(self, policy: Policy) -> Policy:
        """`policy` with every mode at most `recommend`; `policy` itself where none goes further."""
        if self._last is None or self._last[0] is not policy:
            self._last = (policy, _capped(policy))
        return self._last[1]


def _capped(policy: Policy) -> Policy:
    further = {
        name: Mode.RECOMMEND
        for name in Modes.__dataclass_fields__
        if _ORDER.index(getattr(policy.modes, name)) > _ORDER.index(Mode.RECOMMEND)
    }
    return replace(policy, modes=replace(policy.modes, **further)) if further else policy
