"""The shipped policies as they run in a simulation, with fields changed."""

from __future__ import annotations

from typing import Any

from autopilot.core.model.policy import Policy
from autopilot.policies.changing import changed_policy
from autopilot.settings import load_policy
from simulator.scenarios import policy_values


def simulated(name: str = "autopilot", /, **changes: Any) -> Policy:
    """The policy with the values of simulated work; a field by its path, with `__` for the dot."""
    policy = load_policy(name, policy_values(None))
    return changed_policy(policy, {path.replace("__", "."): value for path, value in changes.items()}, "the test")


def elastic(*, within_s: float | None = None, half_life_s: float | None = None) -> Policy:
    """All guarantees are elastic."""
    changes = {"tenancy__elastic_within_s": within_s, "elastic__usage_half_life_s": half_life_s}
    given = {path: value for path, value in changes.items() if value is not None}
    return simulated(tenancy__guarantee="elastic", **given)


WAITING = simulated(
    modes__defragment="off",
    modes__reclaim_borrowed="off",
    modes__preempt="off",
    modes__make_room="off",
    modes__scale_ahead="off",
    order__width_exponent=0,
    order__aging_exponent=0,
    reservation__depth=3,
    reservation__share_hold_s=0,
)
"""Nothing stops for waiting work: reservations and backfill alone."""
