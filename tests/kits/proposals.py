"""Proposals for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from autopilot.core.capabilities.verbs import CHANGES
from autopilot.core.model.objects import Slot, Victim
from autopilot.core.model.records import Proposal
from autopilot.core.model.verb import Change
from tests.kits.instructions import workload

DEFAULTS: dict[str, Any] = {
    "seconds": 300.0,
    "again": False,
    "victim": "v",
    "victim_uid": "v",
    "start_s": 0.0,
    "replicas": 1,
    "until_s": 0.0,
    "pool": "p",
    "before": (("3g.40gb", 0),),
    "after": None,
    "scope": "instance",
    "node": "n",
    "index": 0,
    "cuts": (),
    "on": True,
    "nodes": 1,
    "gpus": 1.0,
    "idle_s": 3600.0,
    "grace_s": 900.0,
    "had": 2,
    "owner": "t/ann",
    "reason": "a reason",
    "provisioning_class": "c",
    "config": "mps-2",
    "sharing": 2,
    "single": False,
    "was_sharing": 0,
    "was_replicas": 1,
}


def change_of(kind: str, slots: Sequence[Slot] = (), victims: Sequence[Victim] = ()) -> Change:
    """A change of this kind."""
    given = DEFAULTS | {"slots": tuple(slots), "victims": tuple(victims)}
    if kind == "drain":
        given["gpus"] = ("GPU-0",)
    variant: Any = CHANGES[kind]
    made: Change = variant(**{each.name: given[each.name] for each in fields(variant) if each.name in given})
    return made


def propose(
    kind: str,
    action: str = "preempt",
    name: str = "w",
    *,
    slots: Sequence[Slot] = (),
    victims: Sequence[Victim] = (),
    **more: object,
) -> Proposal:
    """A proposal for a workload."""
    made = Proposal(f"{kind}-{name}-1", action, workload(name), "q", "t", change_of(kind, slots, victims))
    return replace(made, **more)  # type: ignore[arg-type]
