"""Names in a policy that depend on the cluster: its GPU models."""

from __future__ import annotations

from collections.abc import Collection

from autopilot.core.model.errors import InputError, unknown_name
from autopilot.core.model.policy import Policy


def unknown_models(policy: Policy, models: Collection[str]) -> tuple[tuple[str, str], ...]:
    """(field, problem) for each GPU model that the policy names and `models`, those of the cluster, lack."""
    return tuple(
        (f"price_weight.{name}", f"no node has this GPU model; {unknown_name(name, models)}")
        for name in policy.price_weight
        if name not in models
    )


def check_models(policy: Policy, models: Collection[str], source: str) -> None:
    """Raise `InputError` if the policy of `source` names a GPU model that the cluster does not have."""
    for path, wrong in unknown_models(policy, models):
        raise InputError(f"{source}: {path}: {wrong}")
