"""Nodes are asked for once for each gang that does not fit, where a pool can grow to hold it."""

from __future__ import annotations

from typing import Any

import pytest

from autopilot.core.model.errors import InputError
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.policy import Mode, Policy, check_policy
from autopilot.core.model.policy.capacity import CLASS
from autopilot.core.model.records import Outcome, OutcomeKind
from autopilot.core.model.snapshot import Topology
from autopilot.core.nodes.provision import Provision
from tests.kits.core_world import decide, holds, waits, with_policy, world
from tests.kits.ticking_world import EAGER

POOL = "pool"


def grows(to: int = 8, **more: Any) -> Policy:
    """The pool of the world may have so many nodes."""
    return with_policy(EAGER, capacity={"pools": {POOL: to}, **more})


def look(
    now_s: float, work: Any, memory: ControllerMemory | None = None, policy: Policy | None = None, **more: Any
) -> Step:
    """Two nodes of eight GPUs."""
    return decide(world("2x8", work, now_s, tick=round(now_s), **more), policy or grows(), memory)


def asked(step: Step) -> list[tuple[str, str, int]]:
    """Gang, pool and nodes of each instruction."""
    found = [(each.subject.name, each.operation) for each in step.instructions]
    return [(name, each.pool, each.nodes) for name, each in found if isinstance(each, Provision)]


def test_a_gang_that_does_not_fit_asks_for_what_is_missing_once() -> None:
    """After it has waited for long enough; its request stays open until it starts."""
    gang = [waits("g", 32)]
    assert not asked(look(299.0, gang))
    first = look(300.0, gang)
    assert asked(first) == [("g", POOL, 2)]
    (effect,) = first.instructions
    assert isinstance(effect.operation, Provision)
    assert (effect.operation.provisioning_class, effect.deadline_s) == (CLASS, 3900.0)
    again = look(900.0, gang, first.memory)
    assert not asked(again)
    assert again.memory.effects.in_flight
    started = look(1000.0, [holds("g", 16)], again.memory)
    assert not started.memory.effects.in_flight
    assert not started.memory.nodes.requested_s


def test_a_request_that_failed_is_repeated_later() -> None:
    """Not at each tick, and a refusal of the autoscaler is no failed effect."""
    first = look(300.0, [waits("g", 32)])
    (effect,) = first.instructions
    ended = (Outcome(effect.id, OutcomeKind.CONFLICT, 310.0, "Failed"),)
    second = look(310.0, [waits("g", 32)], first.memory, outcomes=ended)
    assert not asked(second)
    assert not second.memory.halt.failed
    assert second.wake_at_s <= 7500.0
    assert asked(look(7500.0, [waits("g", 32)], second.memory)) == [("g", POOL, 2)]


def test_a_pool_grows_to_its_bound_and_no_further() -> None:
    """Nodes that are asked for already count, also those of earlier ticks."""
    gangs = [waits("a", 32), waits("b", 24), waits("c", 24)]
    step = look(300.0, gangs, policy=grows(8))
    assert asked(step) == [("a", POOL, 2), ("b", POOL, 3)]
    assert not asked(look(310.0, gangs, step.memory, policy=grows(8)))
    assert not asked(look(300.0, gangs, policy=grows(3)))


@pytest.mark.parametrize(
    ("gang", "nodes"),
    [
        (waits("g", 24, gpus_per_member=3), 2),
        (waits("g", 24, gpus_per_member=4, topology=Topology.SPREAD), 4),
        (waits("g", 24, topology=Topology.LEAF), 0),
        (waits("g", 24, excluded=True), 0),
        (waits("g", 24, gpu_models=2), 0),
        (waits("g", 12, gpus_per_member=12), 0),
        (waits("g", 16), 0),
    ],
    ids=["three-a-pod", "spread", "one-leaf", "opted-out", "other-model", "too-large-a-pod", "fits"],
)
def test_only_what_a_new_node_takes_is_asked_for(gang: Any, nodes: int) -> None:
    """The nodes of the pool are the pattern; one domain cannot be promised for several new nodes."""
    found = asked(look(300.0, [gang]))
    assert found == ([("g", POOL, nodes)] if nodes else [])


def test_work_that_ends_soon_serves_the_gang_without_new_nodes() -> None:
    """Room is held for a start before nodes would arrive."""
    work = [holds("h", 16), waits("g", 16)]
    policy = with_policy(grows(), reservation={"depth": 1})
    soon = decide(world("2x8", work, 300.0, tick=1, total_s={"h": 600.0, "g": 60.0}), policy)
    late = decide(world("2x8", work, 300.0, tick=1, total_s={"h": 60_000.0, "g": 60.0}), policy)
    assert not asked(soon)
    assert asked(late) == [("g", POOL, 2)]


def test_without_pools_nothing_is_asked_for() -> None:
    """So it is as shipped. A recommendation stays one."""
    assert not look(300.0, [waits("g", 32)], policy=EAGER).decision.plan.proposals
    step = look(300.0, [waits("g", 32)], policy=with_policy(grows(), modes={"request_capacity": Mode.RECOMMEND}))
    assert [each.kind for each in step.decision.plan.proposals] == ["provision"]
    assert not step.instructions
    assert not step.memory.nodes.requested_s


def test_a_bound_that_is_no_number_of_nodes_is_refused() -> None:
    """With the field and the fix."""
    with pytest.raises(InputError, match=r"capacity\.pools\.pool: 2\.5 is no number of nodes; write a whole number"):
        check_policy(grows(2.5))  # type: ignore[arg-type]
