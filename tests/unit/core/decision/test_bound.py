"""The digest that an approval or a rejection is bound to covers what a person was shown, in no order."""

from __future__ import annotations

from dataclasses import replace

from autopilot.core.model.identity import OF_NODES, shape_digest
from tests.kits.core_world import AUTO, Disrupt, decide, holds, proposals, snapshot, waits, with_policy, world


def test_victims_have_no_order() -> None:
    """The search may meet equal victims in another order after a restart."""
    observation = world("2x8", [holds("a", 8), holds("b", 8), waits("c", 16)], 1e5)
    policy = with_policy(AUTO, hysteresis={"dwell_s": 0.0})
    one, two, fewer = (
        proposals(decide(observation, policy, actions=Disrupt("c", victims).table))["c"]
        for victims in (("a", "b"), ("b", "a"), ("a",))
    )
    assert one.state_digest == two.state_digest != fewer.state_digest
    assert one.id == two.id


def test_a_digest_is_the_same_in_every_version() -> None:
    """A rejection is kept over an upgrade only where both versions give the same digest. Change it only on purpose."""
    built = snapshot("1x8", [waits("w", 4, selector=0b111, gpu_models=0b10, cpu_milli=500)])
    named = replace(built, names=replace(built.names, labels=("b=2", f"{OF_NODES}without taint x", "a=1")))
    assert shape_digest(named, 0) == "43d6b622356a"
