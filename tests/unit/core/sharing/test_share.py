"""Work starts on shared GPUs beside work that it trusts, where memory and rates are known to do; nodes turn for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.sharing import SharingMemory
from autopilot.core.model.modes import Mode
from autopilot.core.model.objects import Share, Trust
from autopilot.core.model.snapshot import ClusterSnapshot, SloClass, Topology
from tests.kits.core_world import decide, holds, started, waits, with_policy
from tests.kits.sharing_world import BATCH, MPS, SHARING, SLICED, book, known, seen, shared, sits

NOW_S = 7200.0
FULL = holds("full", 2, range(2))
"""It holds the other node whole."""


def places(snap: ClusterSnapshot, memory: ControllerMemory | None = None, **more: Any) -> dict[str, list[str]]:
    """What starts where, with all known."""
    memory = known(snap, NOW_S) if memory is None else memory
    return started(decide(seen(snap, NOW_S), SHARING, memory, **more))


def test_work_starts_beside_work_that_it_trusts() -> None:
    """A share of the GPU with the most work on it; its slots have the part of a GPU."""
    snap = shared("2x2", [FULL, sits("ann", [2]), book("ben")], {1: SLICED})
    step = decide(seen(snap, NOW_S), SHARING, known(snap, NOW_S))
    (start,) = step.instructions
    assert start.subject.name == "ben"
    assert [(slot.gpu, slot.milli) for slot in start.operation.slots] == [("GPU-2", 250)]
    (proposal,) = [each for each in step.decision.plan.proposals if each.kind == "admit"]
    assert (proposal.action, proposal.accepted) == ("share", True)


@pytest.mark.parametrize(
    ("ann", "ben", "starts"),
    [
        ({}, {}, True),
        ({"trust": int(Trust.UNTRUSTED)}, {}, False),
        ({}, {"trust": int(Trust.UNTRUSTED)}, False),
        ({"share": int(Share.NEVER)}, {}, False),
        ({}, {"share": int(Share.NEVER)}, False),
        ({}, {"tenant": 2}, False),
        ({"trust": int(Trust.ACROSS)}, {"tenant": 2}, False),
        ({}, {"tenant": 2, "trust": int(Trust.ACROSS)}, False),
        ({"trust": int(Trust.ACROSS)}, {"tenant": 2, "trust": int(Trust.ACROSS)}, True),
        ({}, {"slo_class": int(SloClass.LATENCY_CRITICAL)}, False),
        ({}, {"topology": int(Topology.ISLAND)}, False),
        ({}, {"gpu_milli": 500}, False),
    ],
)
def test_both_sides_have_to_allow_it(ann: dict[str, Any], ben: dict[str, Any], starts: bool) -> None:
    """Trust, class, tenant and form of the work; in doubt it waits. No other work could share with it."""
    snap = shared("1x1", [sits("ann", [0], **ann), book("ben", **ben)], {0: SLICED})
    assert bool(places(snap)) == starts


@pytest.mark.parametrize(
    ("there", "comes", "starts"),
    [
        (["dev"] * 3, "dev", True),
        (["dev"] * 4, "dev", False),
        (["pair"], "pair", True),
        (["pair"] * 2, "pair", False),
        (["pair"], "dev", True),
    ],
)
def test_few_share_a_gpu(there: list[str], comes: str, starts: bool) -> None:
    """Four of development, two of batch."""
    kinds = {"dev": {}, "pair": BATCH}
    work = [sits(f"w{chr(97 + at)}", [0], **kinds[each]) for at, each in enumerate(there)]
    snap = shared("1x1", [*work, book("new", **kinds[comes])], {0: SLICED})
    assert bool(places(snap)) == starts


def test_nothing_is_shared_on_doubt() -> None:
    """A missing or old profile, an unknown memory, memory that does not fit, or rates too low bar it."""
    snap = shared("1x1", [sits("ann", [0]), book("ben")], {0: SLICED})
    good = known(snap, NOW_S)
    assert places(snap, good)
    for memory in (
        ControllerMemory(),
        known(snap, NOW_S, unknown=["ann"]),
        known(snap, NOW_S, unknown=["ben"]),
        known(snap, NOW_S - 15 * 86_400.0),
        known(snap, NOW_S, peak_mib=float("nan")),
        known(snap, NOW_S, peak_mib=40_000.0),
        known(snap, NOW_S, duty_ratio=float("nan")),
        known(snap, NOW_S, heavy=["ann", "ben"]),
    ):
        assert not places(snap, memory)
    assert not places(
        replace(snap, nodes=replace(snap.nodes, sharing=np.zeros(1, np.int8))), good
    )  # no label proves it


def test_a_client_that_is_ended_by_a_signal_never_shares_under_mps() -> None:
    """The server may take all of its clients along."""
    saves, ends = {"checkpoint_on_request": True}, {"checkpoint_on_request": False}
    for one, other, starts in ((ends, saves, False), (saves, ends, False), (saves, saves, True)):
        snap = shared("1x1", [sits("ann", [0], **one), book("ben", **other)], {0: MPS})
        light = known(snap, NOW_S, power_ratio=0.05, dram_ratio=0.001)  # half of the threads do for it
        assert bool(places(snap, light)) == starts


def test_shares_of_several_gpus_are_of_different_ones() -> None:
    """All in one node, or it waits."""
    snap = shared("1x2", [sits("ann", [0]), sits("zoe", [1]), book("ben", 2)], {0: SLICED})
    step = decide(seen(snap, NOW_S), SHARING, known(snap, NOW_S))
    assert [slot.gpu for slot in step.instructions[0].operation.slots] == ["GPU-0", "GPU-1"]
    other = shared("2x1", [sits("ann", [0]), sits("zoe", [1]), book("ben", 2)], {0: SLICED, 1: SLICED})
    assert not places(other)


def test_where_the_device_plugin_chooses_every_choice_has_to_be_right() -> None:
    """It takes a GPU with the fewest shares: one of those has work of another tenant, so nothing starts."""
    work = [sits("ann", [0]), sits("eve", [1], tenant=2), book("ben")]
    assert places(shared("1x2", work, {0: SLICED}))
    assert not places(shared("1x2", work, {0: SLICED}, named=False))
    assert not places(shared("1x2", [sits("ann", [0]), book("ben", 2)], {0: SLICED}, named=False))  # two of one GPU
    assert places(shared("1x2", [sits("ann", [0]), sits("zoe", [1]), book("ben", 2)], {0: SLICED}, named=False))
    snap = shared("1x1", [sits("ann", [0]), book("ben")], {0: SLICED}, named=False)
    unsure = replace(snap, placements=replace(snap.placements, assumed=np.ones(1, np.bool_)))
    assert places(snap)
    assert not places(unsure)


def test_ordinary_work_never_starts_on_shares() -> None:
    """However long it waits. Work that may share takes what no other work can use, at last and alone."""
    big, ben, zoe = waits("big", 2), book("ben"), book("zoe", tenant=2)
    assert places(shared("1x2", [big, ben], {0: SLICED})) == {"ben": ["node-0"]}
    full = [sits("ann", [0]), sits("eve", [1])]
    assert places(shared("1x2", [*full, book("yan", tenant=2)], {0: SLICED})) == {}
    assert places(shared("1x1", [zoe, ben, book("bob")], {0: SLICED})) == {"ben": ["node-0"], "bob": ["node-0"]}


def test_a_seat_goes_before_whole_gpus_that_others_need() -> None:
    """With room for all it starts on whole GPUs, alone."""
    work = [sits("ann", [2]), book("ben"), waits("big", 2)]
    assert places(shared("2x2", work, {1: SLICED})) == {"ben": ["node-1"], "big": ["node-0", "node-0"]}
    assert places(shared("2x2", work[:2], {1: SLICED})) == {"ben": ["node-0"]}


# --- nodes -------------------------------------------------------------------------------------------


def kinds(step: Any) -> list[tuple[str, str, str]]:
    """Proposals about nodes."""
    return [
        (each.action, each.kind, each.reason) for each in step.decision.plan.proposals if each.subject.kind == "node"
    ]


def test_an_empty_node_is_turned_for_work_that_can_share() -> None:
    """Where other work waits for more whole GPUs than there are; a cordoned node is left alone."""
    here = [sits("deva", [0]), sits("devb", [1])]
    wide = waits("own", 4, gpus_per_member=4)
    for work, cordoned, found in (
        ([*here, wide], False, [("share", "set_sharing", "")]),
        (here, False, [("share", "set_sharing", "ahead")]),
        ([*here, holds("g", 2, [2, 3])], False, []),
        ([*here, wide], True, []),
    ):
        snap = shared("2x2", work, {}, nodes={"cordoned": [False, cordoned]})
        step = decide(seen(snap, NOW_S), SHARING, known(snap, NOW_S))
        assert kinds(step) == found


def test_nodes_are_time_sliced_ahead_for_as_much_work_as_came() -> None:
    """Whatever is known of it. What came in two hours comes twice in the four that count."""
    for count, submit_s, own, turns in (
        (1, 0.0, 0, 1),
        (2, 0.0, 0, 2),
        (1, NOW_S - 60.0, 0, 4),  # as if it had come in half an hour: eight in four hours
        (2, -14_400.0, 0, 0),  # too long ago
        (2, 0.0, 3, 1),  # as many whole GPUs are left as work asked for that does not share
    ):
        here = [sits(f"dev{chr(97 + at)}", [at], submit_s=submit_s) for at in range(count)]
        held = [holds("own", own, range(2, 2 + own), submit_s=submit_s)] if own else []
        snap = shared("5x2", [*here, *held], {})
        assert kinds(decide(seen(snap, NOW_S), SHARING)) == [("share", "set_sharing", "ahead")] * turns, (count, own)


def test_no_node_is_turned_ahead_while_work_waits() -> None:
    """It starts on the whole GPUs of the node."""
    snap = shared("2x2", [sits("deva", [0]), sits("devb", [1]), waits("own", 1, gpus_per_member=1)], {})
    assert not kinds(decide(seen(snap, NOW_S), SHARING))


def test_nothing_starts_on_a_node_that_is_turned() -> None:
    """From the decision on, and until it is done."""
    here = [sits("deva", [0]), sits("devb", [1])]
    snap = shared("2x2", [*here, waits("own", 1, gpus_per_member=1), waits("wide", 4, gpus_per_member=4)], {})
    step = decide(seen(snap, NOW_S), SHARING, known(snap, NOW_S))
    assert [each.kind for each in step.instructions] == ["set_sharing"]
    assert step.memory.sharing.turned_s == {"node-1": NOW_S}
    later = decide(seen(snap, NOW_S + 10.0, tick=1), SHARING, step.memory)
    assert not later.instructions


def modes(mode: Mode) -> Any:
    """The policy with this mode."""
    return with_policy(SHARING, modes={"share": mode})


def test_an_unused_shared_node_is_turned_back() -> None:
    """After the time without use and the dwell, while whole GPUs are needed; never with work on it."""
    snap = shared("1x2", [waits("own", 2, gpus_per_member=2)], {0: SLICED})
    rules = SHARING.sharing
    for unused_s, turned_s, turns in (
        (NOW_S - rules.unused_s, NOW_S - rules.dwell_s, True),
        (NOW_S - rules.unused_s + 1.0, NOW_S - rules.dwell_s, False),
        (NOW_S - rules.unused_s, NOW_S - rules.dwell_s + 1.0, False),
    ):
        held = SharingMemory(turned_s={"node-0": turned_s}, unused_s={"node-0": unused_s})
        step = decide(seen(snap, NOW_S), SHARING, ControllerMemory(sharing=held))
        assert kinds(step) == ([("unshare", "set_sharing", "")] if turns else [])
    idle = shared("1x2", [], {0: SLICED})
    held = SharingMemory(unused_s={"node-0": 0.0})
    assert not kinds(decide(seen(idle, NOW_S), SHARING, ControllerMemory(sharing=held)))
    starts = shared("1x2", [book("ann"), waits("own", 2, gpus_per_member=2)], {0: SLICED})
    step = decide(seen(starts, NOW_S), SHARING, ControllerMemory(sharing=held))
    assert started(step) == {"ann": ["node-0"]}
    assert not kinds(step)
    used = shared("1x2", [sits("ann", [0]), waits("own", 2, gpus_per_member=2)], {0: SLICED})
    assert not kinds(decide(seen(used, NOW_S), SHARING, ControllerMemory(sharing=held)))


def test_no_more_nodes_are_turned_back_than_are_needed_whole() -> None:
    """One for two GPUs, two for three; one that is on its way back counts, one that is turned to sharing does not."""
    held = SharingMemory(unused_s={f"node-{at}": 0.0 for at in range(3)})
    for asked, turns in ((2, 1), (3, 2), (8, 3)):
        snap = shared("3x2", [waits("own", asked, gpus_per_member=2)], dict.fromkeys(range(3), SLICED))
        step = decide(seen(snap, NOW_S), SHARING, ControllerMemory(sharing=held))
        assert kinds(step) == [("unshare", "set_sharing", "")] * turns
        again = decide(seen(snap, NOW_S + 1.0, tick=1), SHARING, step.memory)
        assert not kinds(again)


def test_a_recommendation_holds_nothing() -> None:
    """Below approve the node is filled, and off proposes nothing."""
    here = [sits("deva", [0]), sits("devb", [1])]
    snap = shared("2x2", [*here, waits("own", 1, gpus_per_member=1), waits("wide", 4, gpus_per_member=4)], {})
    for mode, found in ((Mode.RECOMMEND, [("share", "set_sharing", "")]), (Mode.OFF, [])):
        step = decide(seen(snap, NOW_S), modes(mode), known(snap, NOW_S))
        assert kinds(step) == found
        assert started(step) == {"own": ["node-1"]}


def test_running_work_moves_to_seats_for_a_gang_that_waits() -> None:
    """The gang starts on the whole GPUs; what may not be stopped, and what has no seat, stays."""
    wide = waits("wide", 2, gpus_per_member=2)
    for columns, on, moves in (
        ({}, {1: SLICED}, ["deva", "devb"]),
        ({"preemptible": False}, {1: SLICED}, []),
        ({"trust": int(Trust.UNTRUSTED)}, {1: SLICED}, []),
        ({}, {}, []),
    ):
        here = [sits("deva", [0], **columns), sits("devb", [1], **columns), sits("ann", [2]), sits("zoe", [3])]
        snap = shared("2x2", [*here, wide], on)
        found = decide(seen(snap, NOW_S), SHARING, known(snap, NOW_S)).decision.plan.proposals
        moved = {(each.action, each.subject.name, v.workload, v.how) for each in found for v in each.victims}
        assert moved == {("share", "wide", name, "move") for name in moves}
