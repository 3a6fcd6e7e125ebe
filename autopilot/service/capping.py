"""A policy with modes capped by the levers: an action without all of its levers only recommends."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from autopilot.core.model.modes import ACTIONS_WITH, Effect, Mode, Modes
from autopilot.core.model.policy import Policy

_ORDER = tuple(Mode)
_BOTH = frozenset({"admit", "evict"})

NEEDS: Mapping[Effect, frozenset[str]] = {
    Effect.ADMIT: frozenset({"admit"}),
    Effect.FILL: _BOTH,
    Effect.CONSOLIDATE: _BOTH,
    Effect.MOVE: _BOTH,
    Effect.RECLAIM: _BOTH,
    Effect.PREEMPT: _BOTH,
    Effect.GROW: frozenset({"resize"}),
    Effect.ROOM: frozenset({"evict"}),
    Effect.CLEAR: _BOTH,
    Effect.FLOOR: frozenset({"scale"}),
    Effect.STOP: frozenset({"evict"}),
    Effect.CORDON: frozenset({"cordon"}),
    Effect.PROVISION: frozenset({"provision"}),
    Effect.OFFER: frozenset({"offer"}),
    Effect.SUSPEND: frozenset({"evict"}),
    Effect.RECUT: frozenset({"recut"}),
    Effect.DRAIN: _BOTH,
    Effect.SHARE: frozenset({"admit", "set_sharing"}),
    Effect.UNSHARE: frozenset({"set_sharing"}),
    Effect.NOTIFY: frozenset({"notify"}),
    Effect.MARK: frozenset(),
    Effect.PARK: frozenset({"evict"}),
    Effect.ISOLATE: _BOTH | {"pause", "resume"},
    Effect.CEILING: frozenset({"ceiling"}),
}
"""Kinds of instructions of each effect. Gangs are rigid without a lever for `resize`."""


def kinds_of(action: str) -> frozenset[str]:
    """Kinds of instructions of an action."""
    return frozenset().union(*(NEEDS[effect] for effect, actions in ACTIONS_WITH.items() if action in actions))


class Capped:
    """Capped policies. The last one is kept: consumers compare policies by identity."""

    def __init__(self, kinds: Collection[str] = ()) -> None:
        """`kinds`: instructions with a lever; without any, nothing may act."""
        self._kinds = frozenset(kinds)
        self._last: tuple[Policy, Policy] | None = None

    def of(self, policy: Policy) -> Policy:
        """`policy` with the modes of actions without a lever at most `recommend`; itself if nothing changes."""
        if self._last is None or self._last[0] is not policy:
            self._last = (policy, self._cap(policy))
        return self._last[1]

    def _cap(self, policy: Policy) -> Policy:
        further = {name: Mode.RECOMMEND for name in further_modes(policy) if not self.allows(name)}
        return replace(policy, modes=replace(policy.modes, **further)) if further else policy

    def allows(self, action: str) -> bool:
        """True if there is a lever for every effect of an action."""
        return bool(self._kinds) and kinds_of(action) <= self._kinds


def acts(policy: Policy, action: str) -> bool:
    """True if the mode of an action goes further than `recommend`."""
    return _ORDER.index(getattr(policy.modes, action)) > _ORDER.index(Mode.RECOMMEND)


def further_modes(policy: Policy) -> list[str]:
    """Actions of a policy that go further than `recommend`."""
    return [name for name in Modes.__dataclass_fields__ if acts(policy, name)]
