"""MIG geometry where the engine changes whole GPUs or nodes: only idle ones are cut, and others are drained first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopilot.core.effects.evict import EvictOperation
from autopilot.core.geometry.recut import RecutGpu
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.objects import SubjectKind
from autopilot.core.model.policy import Mode, Policy
from autopilot.core.model.records import Observation
from autopilot.core.model.snapshot import Recut, SloClass
from autopilot.core.model.stops import StopReason
from tests.kits.core_world import Item, holds, waits, with_policy, world
from tests.kits.geometry_world import decide_in_scope as decide
from tests.kits.ticking_world import EAGER

SMALL = tuple(("1g.10gb", start) for start in range(7))
ONE = (("1g.10gb", 0),)
WHOLE = (("7g.80gb", 0),)


def scoped(scope: str, **more: object) -> Policy:
    """A policy whose engine supports one scope, in one second."""
    return replace(with_policy(EAGER, regeometry={"change_s": 1.0, **more}), name=scope)


GPU, NODE = scoped("gpu"), scoped("node")


def seen(*work: Item, cuts: object = None, now_s: float = 0.0, **more: object) -> Observation:
    """Two nodes of two GPUs: GPU 0 and GPU 2 are cut into small instances (rows 0 to 6, and 7 to 13)."""
    return world("2x2", work, now_s, cuts=cuts or {0: SMALL, 2: SMALL}, **more)  # type: ignore[arg-type]


def recuts(step: Step) -> dict[str, RecutGpu]:
    """The changes that a decision starts, by GPU."""
    return {each.subject.uid: each.operation for each in step.instructions if isinstance(each.operation, RecutGpu)}


def states(step: Step) -> dict[str, str]:
    """The state of each GPU in memory."""
    return {uuid: record.state for uuid, record in sorted(step.memory.geometry.recuts.items())}


BIG = waits("w", 1, mig_profile=3)


def test_a_gpu_in_use_is_not_cut_around() -> None:
    """With the scope `instance` it is; with `gpu` the idle GPU is taken, and with `node` the idle node."""
    busy = holds("h", 1, [0], mig_profile=0)
    for policy in (GPU, NODE):
        (uuid,) = recuts(decide(seen(busy, waits("w", 1, mig_profile=2)), policy))
        assert uuid == "GPU-2"


def test_any_work_on_its_node_keeps_a_gpu_from_being_cut() -> None:
    """The engine would stop the whole GPU 1 beside it too."""
    policy = with_policy(NODE, regeometry={"drain_s": 0.0})
    both = [holds("a", 1, [1]), holds("b", 1, [3])]
    assert not recuts(decide(seen(*both, BIG), policy))
    assert recuts(decide(seen(*both, BIG), GPU))
    (change,) = recuts(decide(seen(both[0], BIG), policy)).values()
    assert (change.scope, change.node, change.index) == ("node", "node-1", 0)


def test_the_other_gpus_of_the_node_take_no_work_meanwhile() -> None:
    """They are not changed, wait for the end, and are free again after it."""
    first = decide(seen(BIG), NODE)
    (uuid,) = recuts(first)
    assert states(first) == {"GPU-0": "changing", "GPU-1": "beside"}
    asked = [waits("x", 1, gpus_per_member=1), waits("y", 1, gpus_per_member=1)]
    changing = {0: Recut.CHANGING, 1: Recut.CHANGING}
    mid = decide(seen(BIG, *asked, now_s=1.0, tick=1, recuts=changing), NODE, first.memory)
    assert {slot.gpu for each in mid.instructions for slot in each.operation.slots} == {"GPU-3"}
    done = decide(seen(BIG, now_s=5.0, tick=2, cuts={0: WHOLE, 2: SMALL}), NODE, mid.memory)
    assert states(done) == {"GPU-0": "settled", "GPU-1": "settled"}
    assert [each.kind for each in done.instructions] == ["admit"]
    assert uuid == "GPU-0"


def test_where_the_engine_chooses_places_only_profiles_count() -> None:
    """A geometry with the instances at other places is what was asked for."""
    ask = waits("w", 2, mig_profile=2)
    first = decide(seen(ask), NODE)
    other = (("2g.20gb", 0), ("2g.20gb", 2), ("3g.40gb", 4))
    (change,) = recuts(first).values()
    assert change.after is not None
    assert sorted(profile for profile, _ in change.after) == ["3g.40gb", "3g.40gb"]
    mid = decide(seen(ask, now_s=1.0, tick=1, recuts={0: Recut.CHANGING, 1: Recut.CHANGING}), NODE, first.memory)
    wrong = decide(seen(ask, now_s=5.0, tick=2, cuts={0: other, 2: SMALL}), NODE, mid.memory)
    assert states(wrong)["GPU-0"] == "quarantined"


def test_the_price_is_that_of_all_that_stops() -> None:
    """What a node costs for longer than the request runs is not worth it."""
    short = waits("w", 1, mig_profile=0, limit_s=100.0)
    dear = with_policy(NODE, regeometry={"change_s": 600.0})
    assert not recuts(decide(seen(short, cuts={0: WHOLE, 2: WHOLE}), dear))
    assert recuts(decide(seen(short, cuts={0: WHOLE, 2: WHOLE}), with_policy(NODE, regeometry={"life_s": 3600.0})))


def drain(policy: Policy, *work: Item, **more: object) -> Step:
    """One request for a whole GPU as an instance; both cut GPUs have a small instance in use."""
    return decide(seen(*work, BIG, **more), policy)  # type: ignore[arg-type]


IN_USE = (holds("a", 1, [0], mig_profile=0), holds("b", 1, [7], mig_profile=0))


@pytest.mark.parametrize(("policy", "kind"), [(GPU, SubjectKind.GPU), (NODE, SubjectKind.NODE)], ids=["gpu", "node"])
def test_work_moves_off_what_is_to_be_cut(policy: Policy, kind: SubjectKind) -> None:
    """It is told where it continues; nothing new starts there; once nothing runs there, it is cut."""
    first = drain(policy, *IN_USE)
    (effect,) = first.instructions
    assert isinstance(effect.operation, EvictOperation)
    assert (effect.subject.name, effect.operation.reason) == ("a", StopReason.DRAIN)
    (proposal,) = first.decision.plan.proposals
    assert (proposal.kind, proposal.subject.kind) == ("drain", kind)
    assert states(first)["GPU-0"] == "draining"
    held = drain(policy, *IN_USE, now_s=1.0, tick=1, recuts={})
    assert held.decision.plan.proposals
    gone = (waits("a", 1, mig_profile=0, incarnation=1), holds("b", 1, [7], mig_profile=0))
    second = drain(policy, *gone, now_s=2.0, tick=1)
    assert second.decision.plan.proposals
    after = decide(seen(*gone, BIG, now_s=2.0, tick=1), policy, first.memory)
    assert set(recuts(after)) == {"GPU-0"}
    assert states(after)["GPU-0"] == "changing"
    (start,) = [each for each in after.instructions if each.kind == "admit"]
    assert start.subject.name == "a"
    assert {slot.gpu for slot in start.operation.slots} == {"GPU-2"}


def test_work_that_ends_soon_is_waited_for() -> None:
    """Nobody is stopped, and nothing new starts on what it leaves."""
    ends = {"a": 300.0, "b": 9000.0}
    in_use = [holds(name, 1, [row], mig_profile=0, preemptible=False) for name, row in (("a", 0), ("b", 7))]
    first = drain(scoped("gpu", drain_s=600.0), *in_use, total_s=ends)
    assert not first.instructions
    assert states(first) == {"GPU-0": "draining"}
    small = [waits(f"s{number}", 1, mig_profile=0) for number in range(8)]
    mid = decide(seen(*IN_USE, BIG, *small, now_s=30.0, tick=1), GPU, first.memory)
    assert {slot.gpu for each in mid.instructions for slot in each.operation.slots} == {"GPU-2"}
    after = decide(seen(IN_USE[1], BIG, now_s=300.0, tick=2), GPU, first.memory)
    assert set(recuts(after)) == {"GPU-0"}


@pytest.mark.parametrize(
    "columns",
    [{"preemptible": False}, {"excluded": True}, {"slo_class": SloClass.LATENCY_CRITICAL}],
    ids=["not preemptible", "opted out", "latency-critical"],
)
def test_protected_work_is_not_moved(columns: dict[str, object]) -> None:
    """The victim rules are those of every move."""
    work = [holds(name, 1, [row], mig_profile=0, **columns) for name, row in (("a", 0), ("b", 7))]
    assert not drain(NODE, *work).instructions


def test_a_drain_ends_at_its_deadline() -> None:
    """What runs there stays, and the GPU takes new work again, with a note; it is not drained again at once."""
    first = drain(GPU, *IN_USE)
    record = first.memory.geometry.recuts["GPU-0"]
    late = decide(seen(*IN_USE, BIG, now_s=record.deadline_s, tick=1), GPU, first.memory)
    assert late.memory.geometry.recuts["GPU-0"].state == "settled"
    assert "drain_given_up" in [note.code for note in late.decision.notes]
    assert not recuts(late)
    assert first.wake_at_s <= record.deadline_s


def test_a_drain_that_nothing_needs_is_let_go() -> None:
    """The request was withdrawn meanwhile."""
    first = drain(GPU, *IN_USE)
    after = decide(seen(IN_USE[1], now_s=5.0, tick=1), GPU, first.memory)
    assert states(after)["GPU-0"] == "settled"
    assert not recuts(after)


def test_one_unit_of_a_pool_is_drained_at_a_time() -> None:
    """A second request waits for the end of the first drain."""
    first = drain(GPU, *IN_USE)
    more = [*IN_USE, BIG, waits("w2", 1, mig_profile=3)]
    second = decide(seen(*more, now_s=1.0, tick=1), GPU, first.memory)
    assert "drain" not in [each.kind for each in second.decision.plan.proposals]


def test_a_recommended_drain_stays_on_paper() -> None:
    """Nothing is sent, and memory has no drain."""
    policy = with_policy(NODE, modes={"regeometry": Mode.RECOMMEND})
    step = drain(policy, *IN_USE)
    assert [each.kind for each in step.decision.plan.proposals] == ["drain"]
    assert not step.instructions
    assert step.memory.geometry.recuts == ControllerMemory().geometry.recuts


def test_a_change_by_others_ends_a_drain() -> None:
    """The node reports a change that was not started here: it is followed as such."""
    first = drain(GPU, *IN_USE)
    other = decide(seen(*IN_USE, BIG, now_s=1.0, tick=1, recuts={0: Recut.CHANGING}), GPU, first.memory)
    assert other.memory.geometry.recuts["GPU-0"].state == "other"
