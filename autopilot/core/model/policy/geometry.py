"""The section of the policy on MIG geometry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Interval
from typing_extensions import Doc

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Regeometry:
    """Changes of MIG geometry, in the scopes that the nodes state (NodeTable.mig_scopes)."""

    change_s: Annotated[
        float, Interval(ge=0.001, le=DAY_S), Doc("how long a change takes, from its instruction to the new instances")
    ] = 60.0
    drain_s: Annotated[
        float,
        Interval(ge=0, le=DAY_S),
        Doc(
            "where a request waits and no idle capacity serves it, a GPU or node (by its MIG scope) is drained: it "
            "takes no new work for at most this long; work that ends within this time is waited for, other work moves "
            "by the rules of `defragment`; 0: nothing is drained"
        ),
    ] = 900.0
    margin_ratio: Annotated[float, Interval(ge=0, le=10), Doc("how far the gain of a change must exceed its price")] = (
        0.1
    )
    dwell_s: Annotated[float, Interval(ge=0, le=DAY_S), Doc("a GPU keeps a new geometry for at least this long")] = (
        900.0
    )
    return_s: Annotated[
        float,
        Interval(ge=0, le=7 * DAY_S),
        Doc(
            "for this long a GPU does not return to the geometry that it left, nor turn MIG mode back on or off, so "
            "that two shapes are not swapped"
        ),
    ] = 3600.0
    per_pool_hour: Annotated[int, Interval(ge=0, le=100_000), Doc("changes of one pool that begin within any hour")] = (
        30
    )
    per_tick: Annotated[int, Interval(ge=0, le=1000), Doc("changes of one pool that a tick begins")] = 8
    steps: Annotated[
        int,
        Interval(ge=1000, le=1_000_000_000),
        Doc("steps of the search in a tick and pool; a note tells when it ends early"),
    ] = 1_000_000
    life_s: Annotated[
        float,
        Interval(ge=1, le=30 * DAY_S),
        Doc("run time that is assumed where neither forecast nor limit states one"),
    ] = 3600.0
    level: Annotated[
        float,
        Interval(ge=0.5, le=0.99),
        Doc("instances are cut ahead for the demand mix up to this quantile; 0.5 and less likely demand counts less"),
    ] = 0.9
    watched_h: Annotated[
        float, Interval(ge=0, le=10_000), Doc("hours of data behind the demand mix before anything is cut ahead for it")
    ] = 6.0
    ahead: Annotated[bool, Doc("cut for expected requests, not only for those that wait")] = True
    deadline_s: Annotated[
        float,
        Interval(ge=10, le=DAY_S),
        Doc("a change that has not ended after this long is reported, and its GPU is quarantined"),
    ] = 1500.0
    views: Annotated[
        int,
        Interval(ge=1, le=100),
        Doc("lists in a row that must show one legal geometry before a quarantined GPU is used again"),
    ] = 3
