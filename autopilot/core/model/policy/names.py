"""Names in a policy that depend on the cluster: its GPU models and pools."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from autopilot.core.model.errors import InputError, unknown_name
from autopilot.core.model.policy import Policy
from autopilot.core.model.snapshot import ClusterSnapshot


@dataclass(frozen=True, slots=True)
class ClusterNames:
    """What a policy may name of a cluster."""

    models: Collection[str]
    pools: Collection[str]

    @classmethod
    def of(cls, snapshot: ClusterSnapshot) -> ClusterNames:
        """The names of a cluster as observed."""
        return cls(snapshot.names.gpu_models, snapshot.names.pools)


def unknown_names(policy: Policy, there: ClusterNames) -> tuple[tuple[str, str], ...]:
    """(field, problem) for each name in the policy that the cluster lacks."""
    looked_up = (
        ("price_weight", policy.price_weight, there.models, "no node has this GPU model"),
        ("capacity.pools", policy.capacity.pools, there.pools, "no node is of this pool"),
    )
    return tuple(
        (f"{field}.{name}", f"{wrong}; {unknown_name(name, known)}")
        for field, named, known, wrong in looked_up
        for name in named
        if name not in known
    )


def check_names(policy: Policy, there: ClusterNames, source: str) -> None:
    """Raise `InputError` if the policy of `source` names something that the cluster does not have."""
    for path, wrong in unknown_names(policy, there):
        raise InputError(f"{source}: {path}: {wrong}")
