"""Admission and backfill: gangs whole, elastic ones at their minimum, gaps used and given back."""

from __future__ import annotations

from collections import Counter

import pytest

from autopilot.core.capabilities.guards import GUARDS
from autopilot.core.effects.admit import AdmitOperation
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.records import OutcomeKind
from autopilot.core.model.snapshot import State
from tests.kits.core_world import (
    AUTO,
    HOLDING,
    decide,
    done,
    evicted,
    holds,
    proposals,
    queue_tree,
    started,
    waits,
    why_waits,
    with_policy,
    world,
)
from tests.kits.instructions import asked

# --- admission ------------------------------------------------------------------------------------


def test_a_gang_starts_whole_or_not_at_all() -> None:
    """A gang of sixteen starts on sixteen GPUs, or waits with the numbers that say why."""
    step = decide(world("2x8", [waits("g", 16)]))
    assert Counter(started(step)["g"]) == {"node-0": 8, "node-1": 8}
    observation = world("2x8", [holds("x", 1), waits("g", 16)])
    step = decide(observation)
    assert not step.instructions
    assert why_waits(step, observation, "g") == ("capacity", 15.0, 16.0)


def test_an_elastic_gang_starts_at_its_minimum_when_its_full_width_has_no_room() -> None:
    """Full width where there is room, else the minimum, nothing in between, nothing below."""
    elastic = waits("g", 16, min_gpus=8)
    assert len(started(decide(world("2x8", [elastic])))["g"]) == 16
    assert len(started(decide(world("2x8", [holds("x", 1), elastic])))["g"]) == 8
    assert not decide(world("2x8", [holds("x", 1, on=[0]), holds("y", 1, on=[8]), elastic])).instructions


def test_an_admission_says_where_why_and_for_how_much() -> None:
    """A proposal names every GPU, its score's terms, its gain, and the answer of every guard."""
    step = decide(world("1x8", [waits("g", 4)], 50.0, total_s={"g": 100.0}))
    proposal = proposals(step)["g"]
    assert proposal.accepted
    assert [slot.gpu for slot in proposal.slots] == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]
    assert proposal.benefit_gpu_s == pytest.approx(4 * 100.0)
    assert proposal.cost_gpu_s == 0.0
    assert {term.name for term in proposal.change.score_terms} >= {"fill"}
    assert [verdict.guard for verdict in proposal.verdicts] == [name for name, _ in GUARDS]
    assert {e.name: e.value for e in proposal.evidence}["submitted"] == 0.0


def test_the_gain_is_weighed_by_the_price_of_the_model() -> None:
    """A dearer GPU model weighs more."""
    policy = with_policy(AUTO)
    dear = with_policy(policy)
    object.__setattr__(dear, "price_weight", {"A100-80GB": 2.0})
    plain = proposals(decide(world("1x8", [waits("g", 4)], total_s={"g": 60.0}), policy))["g"]
    twice = proposals(decide(world("1x8", [waits("g", 4)], total_s={"g": 60.0}), dear))["g"]
    assert twice.benefit_gpu_s == pytest.approx(2 * plain.benefit_gpu_s)


def test_mig_work_is_admitted_onto_instances() -> None:
    """A gang of MIG slices gets instances of its profile, counted at their share of the GPU."""
    step = decide(
        world(
            "1x8",
            [waits("m", 2, mig_profile=0)],
            total_s={"m": 60.0},
            cuts={0: [("1g.10gb", 0), ("1g.10gb", 1), ("2g.20gb", 2)]},
        )
    )
    slots = step.instructions[0].operation.slots
    assert [(slot.gpu, slot.instance, slot.milli) for slot in slots] == [
        ("GPU-0", "GPU-0/7", 0),
        ("GPU-0", "GPU-0/8", 0),
    ]
    assert 0 < proposals(step)["m"].benefit_gpu_s < 2 * 60.0


def test_shares_of_one_gpu_are_admitted_together() -> None:
    """Two shares that fit on one GPU are placed on one, a third opens another."""
    step = decide(world("1x8", [waits(name, 1, gpu_milli=500) for name in "abc"]))
    assert sorted(i.operation.slots[0].gpu for i in step.instructions) == ["GPU-0", "GPU-0", "GPU-1"]
    assert {i.operation.slots[0].milli for i in step.instructions} == {500}


def test_work_that_opted_out_waits_and_says_so() -> None:
    """Excluded work is neither admitted nor backfilled nor given a reservation."""
    observation = world(
        "1x8", [waits("x", 1, excluded=True), holds("a", 7), waits("w", 8)], total_s={"a": 500.0, "x": 1.0, "w": 5.0}
    )
    step = decide(observation, HOLDING)
    assert not step.instructions
    assert why_waits(step, observation, "x")[0] == "excluded"


def test_a_queue_stops_at_its_hard_limit() -> None:
    """No start exceeds the limit of any queue on the path, at whatever width; the code is `limit`."""
    queues = queue_tree(("q", 0, 8))
    work = [holds("a", 4, queue=1), waits("b", 4, queue=1), waits("c", 1, queue=1), waits("d", 1)]
    observation = world("2x8", work, queues=queues)
    step = decide(observation)
    assert sorted(started(step)) == ["b", "d"] or sorted(started(step)) == ["c", "d"]
    loser = "c" if "b" in started(step) else "b"
    assert why_waits(step, observation, loser)[0] == "limit"


def test_an_elastic_gang_is_cut_to_the_limit_of_its_queue() -> None:
    """Where the full width exceeds the hard limit, the gang starts at its minimum or waits."""
    queues = queue_tree(("q", 0, 8))
    step = decide(world("2x8", [waits("g", 16, min_gpus=8, queue=1)], queues=queues))
    assert len(started(step)["g"]) == 8


def test_a_reserved_gang_obeys_the_limit_when_it_lands() -> None:
    """A gang with a reservation waits while its queue has filled up meanwhile."""
    work = [holds("x", 8, on=range(8, 16)), holds("a", 8, on=range(8)), waits("big", 8, queue=1)]
    total_s = {"a": 1000.0, "x": 9000.0, "big": 10.0}
    first = decide(world("2x8", work, total_s=total_s, queues=queue_tree(("q", 0, 8))), HOLDING)
    assert first.memory.plan.reservations
    later = [holds("x", 8, on=range(8, 16), queue=1), work[2]]
    step = decide(
        world("2x8", later, 1000.0, total_s=total_s, queues=queue_tree(("q", 0, 8)), tick=1), HOLDING, first.memory
    )
    assert not step.instructions


def test_effects_under_way_count_against_the_limit() -> None:
    """An admission that is not visible yet has its GPUs: they are not given away, and its queue is as full as that."""
    queues = queue_tree(("q", 0, 8))
    work = [waits("a", 8, queue=1), waits("b", 8, queue=1)]
    first = decide(world("2x8", work, queues=queues))
    assert len(first.instructions) == 1
    accepted = done(first.instructions, 0.0, OutcomeKind.ACCEPTED)
    second = decide(world("2x8", work, 1.0, queues=queues, tick=1, outcomes=accepted), AUTO, first.memory)
    assert not second.instructions


def test_the_bound_on_proposals_is_kept_and_said() -> None:
    """No more proposals than the policy's bound; the rest waits with `bound` and is looked at again at once."""
    policy = with_policy(AUTO, limits={"proposals_per_tick": 2})
    observation = world("1x8", [waits(name) for name in "abcd"])
    step = decide(observation, policy)
    assert len(step.instructions) == 2
    assert {why_waits(step, observation, name)[0] for name in "cd"} == {"bound"}
    assert step.wake_at_s == 1.0


# --- backfill -------------------------------------------------------------------------------------


def gap() -> tuple[list, dict[str, float]]:  # type: ignore[type-arg]
    """`big` waits for `a` to end at 1000 s; eight GPUs are idle until then."""
    return [holds("a", 8), waits("big", 16, priority=9)], {"a": 1000.0, "big": 500.0}


@pytest.mark.parametrize(("run_s", "starts"), [(999.0, True), (1000.0, True), (1001.0, False)])
def test_work_that_ends_before_the_reservation_uses_the_gap(run_s: float, starts: bool) -> None:
    """A gang starts in the gap when its run time, at the policy's quantile, ends by the planned start; marked."""
    work, total_s = gap()
    step = decide(world("2x8", [*work, waits("s", 8)], total_s={**total_s, "s": run_s}), HOLDING)
    assert ("s" in started(step)) is starts
    if starts:
        assert asked(step.instructions[0], AdmitOperation).backfill
        assert proposals(step)["s"].action == "backfill"


def test_the_quantile_that_decides_is_the_policys() -> None:
    """A gang whose median fits the gap, but whose 0.9 quantile does not, is kept out."""
    work, total_s = gap()
    spread = [500.0, 600.0, 700.0, 800.0, 1200.0, 1500.0, 2000.0]
    observation = world("2x8", [*work, waits("s", 8)], total_s={**total_s, "s": spread})
    assert not decide(observation, HOLDING).instructions
    bold = with_policy(HOLDING, backfill={"level": 0.75})
    assert list(started(decide(observation, bold))) == ["s"]


def test_an_unknown_run_time_fills_a_gap_only_when_it_may_be_evicted() -> None:
    """Preemptible work without forecast or limit may use the gap; other work says `runtime_unknown`."""
    work, total_s = gap()
    observation = world("2x8", [*work, waits("s", 8)], total_s=total_s)
    assert list(started(decide(observation, HOLDING))) == ["s"]
    observation = world("2x8", [*work, waits("s", 8, preemptible=False)], total_s=total_s)
    step = decide(observation, HOLDING)
    assert not step.instructions
    assert why_waits(step, observation, "s")[0] == "runtime_unknown"
    limited = world("2x8", [*work, waits("s", 8, preemptible=False, limit_s=800.0)], total_s=total_s)
    assert list(started(decide(limited, HOLDING))) == ["s"]


def reserved(policy_memory: ControllerMemory | None = None) -> ControllerMemory:
    """Memory after `big` got its reservation."""
    work, total_s = gap()
    return policy_memory or decide(world("2x8", work, total_s=total_s), HOLDING).memory


def test_backfilled_work_is_evicted_when_the_reserved_gang_can_land() -> None:
    """The smallest sufficient set of marked work leaves, cheapest kept out of it; then the gang starts."""
    late = [
        holds("f1", 4, on=range(8, 12), backfilled=True, start_s=100.0),
        holds("f2", 4, on=range(12, 16), backfilled=True, start_s=900.0),
        waits("big", 12, priority=9),
    ]
    total_s = {"f1": 5000.0, "f2": 5000.0, "big": 500.0}
    memory = reserved()
    step = decide(world("2x8", late, 1000.0, total_s=total_s, tick=1), HOLDING, memory)
    assert evicted(step) == ["f2"]  # either would do: the one that loses less
    proposal = proposals(step, "evict")["big"]
    assert proposal.cost_gpu_s == pytest.approx(4 * 100.0)
    assert {v.code for v in proposal.verdicts if v.guard in {"budget", "min_runtime", "hysteresis"}} == {
        "waived_contract"
    }
    gone = [late[0], waits("f2", 4, incarnation=1, submit_s=0.0), late[2]]
    step = decide(world("2x8", gone, 1001.0, total_s=total_s, tick=2), HOLDING, step.memory)
    assert "big" in started(step)


def test_nothing_is_evicted_when_that_would_not_let_the_gang_land() -> None:
    """Marked work stays as long as unmarked work is in the way too."""
    late = [holds("a", 8), holds("f", 8, backfilled=True), waits("big", 16, priority=9)]
    step = decide(
        world("2x8", late, 900.0, total_s={"a": 1000.0, "f": 2000.0, "big": 5.0}, tick=1), HOLDING, reserved()
    )
    assert evicted(step) == []


def test_eviction_can_be_switched_off() -> None:
    """With `evict_when_due` off, backfilled work runs to its end."""
    late = [holds("f", 8, backfilled=True), waits("big", 16, priority=9)]
    policy = with_policy(HOLDING, backfill={"evict_when_due": False})
    step = decide(world("2x8", late, 1000.0, total_s={"f": 2000.0, "big": 5.0}, tick=1), policy, reserved())
    assert not step.instructions


@pytest.mark.parametrize("told", ["checkpointing", "in flight"])
def test_nothing_more_is_evicted_while_victims_leave(told: str) -> None:
    """Work that writes its checkpoint, or was evicted, counts as gone: one eviction, not one per tick."""
    late = [
        holds("f1", 4, on=range(8, 12), backfilled=True),
        holds("f2", 4, on=range(12, 16), backfilled=True, start_s=50.0),
        waits("big", 12, priority=9),
    ]
    total_s = {"f1": 9000.0, "f2": 9000.0, "big": 5.0}
    first = decide(world("2x8", late, 1000.0, total_s=total_s, tick=1), HOLDING, reserved())
    assert evicted(first) == ["f2"]
    if told == "checkpointing":
        late[1] = holds("f2", 4, on=range(12, 16), backfilled=True, start_s=50.0, state=State.CHECKPOINTING)
        outcomes = done(first.instructions, 1000.0)
    else:
        outcomes = done(first.instructions, 1000.0, OutcomeKind.ACCEPTED)
    second = decide(world("2x8", late, 1005.0, total_s=total_s, tick=2, outcomes=outcomes), HOLDING, first.memory)
    assert evicted(second) == []
    assert "big" not in started(second)
