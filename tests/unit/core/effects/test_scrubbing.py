"""The hint to scrub what one tenant leaves: who had a GPU last, where it counts, and what ends it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autopilot.core.effects.admit import AdmitOperation
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.holders import HoldersMemory, LastHolder
from autopilot.core.model.objects import Scrub, Trust
from autopilot.core.model.policy import Policy, Tenancy
from autopilot.core.model.records import Code, View
from autopilot.explain.proposals import proposal_words
from autopilot.records.memory import memory_text, read_memory_text
from tests.kits.core_world import (
    AUTO,
    Item,
    decide,
    evicted,
    holds,
    observe,
    proposals,
    snapshot,
    started,
    waits,
)
from tests.kits.instructions import asked
from tests.kits.ticking_world import EAGER, Ticking, tenants

ACROSS = {"trust": Trust.ACROSS}
STRICT = replace(AUTO, tenancy=Tenancy(require_scrub=True))


def after(
    first: list[Item], second: list[Item], policy: Policy = AUTO, assumed: bool = False, **nodes: Any
) -> tuple[Scrub | None, Any]:
    """The hint of the start of `b`: `first` ran until 10 s, `second` waits at 20 s on the same node of two GPUs."""
    seen = snapshot("1x2", first)
    seen = replace(seen, placements=replace(seen.placements, assumed=seen.placements.assumed | assumed))
    memory = decide(observe(seen, 10.0), policy).memory
    step = decide(observe(snapshot("1x2", second, nodes=nodes), 20.0, tick=1), policy, memory)
    found = proposals(step)["b"]
    sent = next((each.operation.scrub for each in step.instructions if each.subject.name == "b"), found.change.scrub)
    assert sent == found.change.scrub
    return sent, found


@pytest.mark.parametrize(
    ("was", "gets", "slots"),
    [
        ({}, {"tenant": 1}, 1),
        ({}, {}, 0),
        (ACROSS, {"tenant": 1}, 1),
        ({}, {"tenant": 1, **ACROSS}, 1),
        (ACROSS, {"tenant": 1, **ACROSS}, 0),
    ],
)
def test_a_start_after_another_tenant_has_one_hint(was: dict[str, Any], gets: dict[str, Any], slots: int) -> None:
    """Unless both trust each other, or it is the same tenant; of the GPU that the kubelet may choose."""
    scrub, proposal = after([holds("a", 1, on=(1,), **was)], [waits("b", 1, **gets)])
    assert scrub == (Scrub(slots, resettable=False) if slots else None)
    hint = "scrub or verify before: up to 1 of these had another tenant last, its engine cannot reset them"
    assert (hint in proposal_words(proposal)) == bool(slots)


@pytest.mark.parametrize(("at_s", "clean"), [(np.nan, False), (9.0, False), (10.0, True), (15.0, True), (1e9, False)])
def test_a_node_states_that_it_was_scrubbed(at_s: float, clean: bool) -> None:
    """It counts from the last time at which the holder may have been there, and not from the future."""
    work = [holds("a", 2)], [waits("b", 2, tenant=1)]
    assert (after(*work, scrubbed_s=[at_s])[0] is None) == clean
    proposal = after(*work, STRICT, scrubbed_s=[at_s])[1]
    assert proposal.accepted == clean
    refused = [each for each in proposal.verdicts if not each.allowed]
    assert [(each.guard, each.code, each.value) for each in refused] == (
        [] if clean else [("protected", Code.UNSCRUBBED, 2.0)]
    )


def test_what_is_guessed_or_unseen_stays_unknown() -> None:
    """Also on the other GPUs of the node: any of them may be the one that was used."""
    work = [holds("c", 1, tenant=2)], [waits("b", 2, tenant=1)]
    assert after(*work, STRICT, assumed=True)[0] is None
    gone = View("kube", "work", complete=False, listed_s=0.0, count=1)
    memory = ControllerMemory(holders=HoldersMemory({"GPU-0": LastHolder(("t0",), across=False)}))
    blind = decide(observe(snapshot("1x2", work[0]), 10.0, views=(gone,)), AUTO, memory).memory
    assert blind.holders is memory.holders


def test_instances_are_reset_by_their_engine() -> None:
    """An instance that was destroyed is forgotten, also if another gets its id later."""
    cuts = {0: [("1g.10gb", 0)]}
    profile = {"mig_profile": snapshot("1x2", cuts=cuts).instances.profile[0]}
    first = snapshot("1x2", [holds("a", 1, on=(0,), **profile)], cuts=cuts)
    memory = decide(observe(first, 10.0)).memory
    then = observe(snapshot("1x2", [waits("b", 1, tenant=1, **profile)], cuts=cuts), 20.0, tick=1)
    step = decide(then, AUTO, memory)
    assert proposals(step)["b"].change.scrub == Scrub(1, resettable=True)
    assert "resets them by making them anew" in proposal_words(proposals(step)["b"])
    memory = decide(observe(snapshot("1x2"), 15.0, tick=1), AUTO, memory).memory
    assert memory.holders.last == {}
    assert proposals(decide(replace(then, tick=2), AUTO, memory))["b"].change.scrub is None


def test_a_start_in_the_place_of_victims_waits_for_the_scrub_alone() -> None:
    """The victims leave at once; the start is held until their node states a scrub that came later."""
    work = [holds("v", 8, queue=2), waits("w", 8, queue=1, tenant=1, submit_s=1.0)]
    queues, scrub = tenants(("a", 0, 8), ("b", 0, 0)), Scrub(8, resettable=False)
    loose = Ticking("1x8", work, queues=queues)
    first = loose.tick(100.0)
    assert (evicted(first), proposals(first, "pipeline")["w"].change.scrub) == (["v"], scrub)
    loose.leave("v")
    assert [asked(each, AdmitOperation).scrub for each in loose.tick(110.0).instructions] == [scrub]

    strict = Ticking("1x8", work, replace(EAGER, tenancy=Tenancy(require_scrub=True)), queues=queues)
    assert evicted(strict.tick(100.0)) == ["v"]
    strict.leave("v")
    assert started(strict.tick(110.0)) == {}
    strict.more["nodes"] = {"scrubbed_s": [105.0]}
    assert list(started(strict.tick(120.0))) == ["w"]


def test_memory_is_bounded_by_the_gpus_of_a_day() -> None:
    """A node that is away is remembered for a day; a restart forgets nothing, and files of before begin empty."""
    memory = decide(observe(snapshot("2x2", [holds("a", 4)]), 10.0)).memory
    away = snapshot("1x2")
    memory = decide(observe(away, 20.0, tick=1), AUTO, memory).memory
    assert [each.left_s for each in memory.holders.last.values()] == [10.0] * 4
    assert read_memory_text(memory_text(memory), "m").holders == memory.holders
    memory = decide(observe(away, 20.0 + 2 * 86_400, tick=2), AUTO, memory).memory
    assert sorted(memory.holders.last) == sorted(away.gpus.uuid.tolist())
    with_file = memory_text(replace(memory, holders=HoldersMemory()))
    earlier = with_file.replace("memory/9", "memory/7")
    assert read_memory_text(earlier, "m").holders == HoldersMemory()
