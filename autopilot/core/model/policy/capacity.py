"""The section `capacity` of the policy: nodes that an autoscaler of the cluster adds and removes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from annotated_types import Interval
from typing_extensions import Doc

from autopilot.core.model.policy.bounds import DAY_S

CLASS = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
"""Provisioning class of cluster-autoscaler that adds all nodes of a request or none."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Pools that can grow, and when nodes are asked for. A pool that is not named is never asked for nodes."""

    pools: Annotated[
        dict[str, float], Doc("pools that an autoscaler can grow, with the most nodes that each may have; empty: none")
    ] = field(default_factory=dict)
    provisioning_class: Annotated[
        str,
        Doc(
            "class of the ProvisioningRequests; `check-capacity.autoscaling.x-k8s.io` adds no nodes, it books what "
            "the autoscaler finds free"
        ),
    ] = CLASS
    after_s: Annotated[
        float, Interval(ge=0, le=7 * DAY_S), Doc("a gang must have waited this long before nodes are asked for")
    ] = 300.0
    # time until new nodes take work; a gang that is planned to start sooner asks for none
    arrives_s: ClassVar[float] = 600.0
    elsewhere_s: Annotated[
        float,
        Interval(ge=0, le=30 * DAY_S),
        Doc(
            "a gang that has waited this long, and for which no nodes are asked for, is named as one for another "
            "cluster of MultiKueue; 0: none is"
        ),
    ] = 0.0
    deadline_s: Annotated[
        float,
        Interval(ge=60, le=30 * DAY_S),
        Doc("a request whose gang has not started after this time is removed"),
    ] = 3600.0
    # time from one request for a gang to the next one
    retry_s: ClassVar[float] = 2 * 3600.0
    # a node of these pools that nothing has needed for this long is offered back
    unneeded_s: ClassVar[float] = 3600.0
    spare_nodes: Annotated[
        int, Interval(ge=0, le=100_000), Doc("nodes of each of these pools that are never offered")
    ] = 1
    # requests that are open at once
    most_requests: ClassVar[int] = 4
