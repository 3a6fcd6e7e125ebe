"""MIG mode is turned off again for gangs of whole GPUs, where the policy states the scopes `instance` and `gpu`.

The scope `node` is in test_regeometry_node_mode.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopilot.core.effects.action import Action
from autopilot.core.effects.draft import Case, Submit
from autopilot.core.geometry.recut import RecutDraft, RecutGpu
from autopilot.core.model.forecast import MixKind
from autopilot.core.model.memory import Step
from autopilot.core.model.memory.geometry import GeometryMemory, RecutRecord
from autopilot.core.model.policy import Mode, Policy
from autopilot.core.model.records import Code, Observation
from autopilot.core.model.snapshot import Recut
from autopilot.core.planning.context import Context
from tests.kits.core_world import Item, holds, waits, with_policy, world
from tests.kits.demand_world import expecting
from tests.kits.geometry_world import decide_in_scope as decide
from tests.kits.ticking_world import EAGER

SMALL = tuple(("1g.10gb", start) for start in range(7))
BOTH = replace(with_policy(EAGER, regeometry={"drain_s": 0.0}), name="instance+gpu")
"""Idle instances change, and whole GPUs."""


def seen(*work: Item, cuts: object = None, now_s: float = 0.0, **more: object) -> Observation:
    """Two nodes of two GPUs: GPU 2 and GPU 3 are cut into small instances (rows 0 to 6, and 7 to 13)."""
    return world("2x2", work, now_s, cuts=cuts or {2: SMALL, 3: SMALL}, **more)  # type: ignore[arg-type]


def whole(name: str, gpus: int, per_member: int = 1, **columns: object) -> Item:
    """A gang that waits for whole GPUs."""
    return waits(name, gpus, gpus_per_member=per_member, **columns)


BUSY = holds("busy", 2, [0, 1], gpus_per_member=2, preemptible=False)


def left(step: Step) -> set[str]:
    """The GPUs that leave MIG mode."""
    return {
        each.subject.uid
        for each in step.instructions
        if isinstance(each.operation, RecutGpu) and each.operation.after is None
    }


def code_of(step: Step, observation: Observation, name: str) -> Code:
    """Why a workload waits."""
    refusals, row = step.decision.plan.refusals, observation.snapshot.workloads.id.tolist().index(name)
    return Code(refusals.codes[int(refusals.code[refusals.workload.tolist().index(row)])])


def expecting_whole(observation: Observation, per_h: float, per_member: int = 1) -> Observation:
    """With a demand mix of whole GPUs."""
    found = expecting(observation, "", per_h=per_h)
    mix = found.forecasts.mix
    assert mix is not None
    kinds = (MixKind((), per_member, per_member),)
    return replace(found, forecasts=replace(found.forecasts, mix=replace(mix, kinds=kinds)))


def test_an_idle_gpu_leaves_mig_mode_for_a_gang_that_waits() -> None:
    """The precondition is the present geometry, and the gang waits with the code `recut`."""
    now = seen(BUSY, whole("w", 1))
    step = decide(now, BOTH)
    (change,) = [each.operation for each in step.instructions if isinstance(each.operation, RecutGpu)]
    assert (change.before, change.after) == (SMALL, None)
    assert code_of(step, now, "w") == Code.RECUT
    (proposal,) = step.decision.plan.proposals
    assert proposal.reason == "leave_waiting"
    assert proposal.cost_gpu_s == pytest.approx(60.0)


def test_the_gang_starts_once_the_gpu_is_whole() -> None:
    """Nothing more changes meanwhile."""
    work = (BUSY, whole("w", 1))
    first = decide(seen(*work), BOTH)
    (uuid,) = left(first)
    row = int(uuid.removeprefix("GPU-"))
    changing = seen(*work, now_s=30.0, tick=1, cuts={2: SMALL, 3: SMALL} | {row: ()}, recuts={row: Recut.CHANGING})
    mid = decide(changing, BOTH, first.memory)
    assert not mid.instructions
    assert code_of(mid, changing, "w") == Code.RECUT
    other = {2, 3} - {row}
    done = decide(seen(*work, now_s=60.0, tick=2, cuts={other.pop(): SMALL}), BOTH, mid.memory)
    (start,) = done.instructions
    assert {slot.gpu for slot in start.operation.slots} == {uuid}
    assert done.memory.geometry.recuts[uuid].state == "settled"


@pytest.mark.parametrize("scope", ["instance", "gpu"])
def test_only_where_the_nodes_state_both_scopes(scope: str) -> None:
    """The engine of a pool must be able to turn MIG mode on and off for one GPU."""
    assert not left(decide(seen(BUSY, whole("w", 1)), replace(EAGER, name=scope)))


def test_all_gpus_of_a_gang_change_or_none() -> None:
    """On one node where its members need that; a GPU in use is never taken."""
    assert left(decide(seen(BUSY, whole("w", 2, 2)), BOTH)) == {"GPU-2", "GPU-3"}
    in_use = holds("h", 1, [0], mig_profile=0, preemptible=False)
    assert not left(decide(seen(BUSY, in_use, whole("w", 2)), BOTH))
    assert left(decide(seen(BUSY, in_use, whole("w", 1)), BOTH)) == {"GPU-3"}
    one = with_policy(BOTH, regeometry={"per_tick": 1})
    assert not left(decide(seen(BUSY, whole("w", 2, 2)), one))


def test_a_request_that_is_worth_more_leaves_a_gang_out() -> None:
    """It takes one of the two idle GPUs; the other one stays as it is, because the gang could not start on it."""
    long = waits("i", 1, mig_profile=3, limit_s=80_000.0)
    step = decide(seen(BUSY, long, whole("w", 2, limit_s=3000.0)), BOTH)
    (change,) = [each.operation for each in step.instructions if isinstance(each.operation, RecutGpu)]
    assert change.after == (("7g.80gb", 0),)


def test_fewest_gpus_change() -> None:
    """The node with a free GPU needs one change less; that GPU does not turn MIG mode on meanwhile."""
    cuts = {0: SMALL, 2: SMALL, 3: SMALL}
    asked = [whole("w", 2, 2), *(waits(f"i{number}", 1, mig_profile=3) for number in range(2))]
    step = decide(seen(*asked, cuts=cuts), BOTH)
    assert left(step) == {"GPU-0"}
    assert "GPU-1" not in {each.subject.uid for each in step.instructions}


def test_a_gpu_of_a_model_that_the_gang_may_not_use_stays() -> None:
    """Nothing changes for work that could not start there."""
    assert not left(decide(seen(BUSY, whole("w", 1, gpu_models=2)), BOTH))
    assert left(decide(seen(BUSY, whole("w", 1, gpu_models=1)), BOTH))


def test_a_gang_that_runs_for_too_short_a_time_is_not_worth_it() -> None:
    """The GPU is missing for a minute."""
    assert not left(decide(seen(BUSY, whole("w", 1, limit_s=30.0)), BOTH))
    assert left(decide(seen(BUSY, whole("w", 1, limit_s=3000.0)), BOTH))


def test_a_request_that_waits_for_instances_keeps_them() -> None:
    """Both want the only idle GPU: the worth decides, and nothing is taken from the request."""
    cuts = {2: (("7g.80gb", 0),), 3: SMALL}
    small = [holds("h", 1, [1], mig_profile=0, preemptible=False)]
    long = waits("i", 1, mig_profile=3, limit_s=90_000.0)
    step = decide(seen(BUSY, *small, long, whole("w", 1, limit_s=300.0), cuts=cuts), BOTH)
    assert not left(step)


def record(before: object, after: object) -> RecutRecord:
    """A change that has settled at 0."""
    return RecutRecord("pool", before, after, 0.0, 100.0, state="settled", starts_s=(0.0,))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("now_s", "leaves"),
    [(BOTH.regeometry.dwell_s - 1, False), (BOTH.regeometry.return_s - 1, False), (BOTH.regeometry.return_s, True)],
)
def test_a_gpu_that_turned_mig_mode_on_keeps_it(now_s: float, *, leaves: bool) -> None:
    """For `dwell_s`, and for `return_s` it does not swap back; another GPU that did not change may leave."""
    memory = replace(
        decide(seen(), BOTH).memory, geometry=GeometryMemory({f"GPU-{row}": record(None, SMALL) for row in (2, 3)})
    )
    step = decide(seen(BUSY, whole("w", 1), now_s=now_s, tick=1), BOTH, memory)
    assert bool(left(step)) == leaves
    assert not [each for each in step.decision.plan.proposals if not leaves]


def test_a_gpu_that_left_mig_mode_does_not_turn_it_on_again_at_once() -> None:
    """Not even with another geometry than the one that it left."""
    held = [holds(f"h{gpu}", 1, [7 * number], mig_profile=0) for number, gpu in enumerate((2, 3))]
    asked = waits("i", 1, mig_profile=3)
    memory = replace(
        decide(seen(), BOTH).memory, geometry=GeometryMemory({f"GPU-{row}": record(SMALL, None) for row in (0, 1)})
    )
    return_s = BOTH.regeometry.return_s
    assert not decide(seen(*held, asked, now_s=return_s - 1, tick=1), BOTH, memory).instructions
    assert decide(seen(*held, asked, now_s=return_s, tick=1), BOTH, memory).instructions


def test_the_guard_refuses_to_swap_mig_mode_back() -> None:
    """Whatever proposes it, and whatever the new geometry is."""
    halves = (("3g.40gb", 0), ("3g.40gb", 4))

    def swap(_ctx: Context, submit: Submit) -> None:
        case = Case("regeometry", "recut")
        verb = RecutGpu(pool="pool", before=None, after=halves, scope="instance", node="node-0", index=0)
        submit(RecutDraft(case=case, verb=verb, row=0, benefit_gpu_s=1e9, cost_gpu_s=1.0, evidence=()))

    actions, return_s = (Action("regeometry", "", swap),), BOTH.regeometry.return_s
    memory = replace(decide(seen(), BOTH).memory, geometry=GeometryMemory({"GPU-0": record(SMALL, None)}))
    early = decide(seen(now_s=return_s - 1, tick=1), BOTH, memory, actions=actions)
    assert [verdict.code for verdict in early.decision.plan.proposals[0].verdicts if not verdict.allowed] == [
        Code.RECUT_RETURN
    ]
    assert not early.instructions
    assert decide(seen(now_s=return_s, tick=1), BOTH, memory, actions=actions).instructions


def test_expected_whole_gpus_are_weighed_both_ways() -> None:
    """They keep free GPUs whole, and idle GPUs leave MIG mode ahead of them, beyond those that are free."""
    busy = [holds("busy", 1, [0], preemptible=False)]
    assert left(decide(expecting_whole(seen(*busy), 40.0), BOTH)), "more than the free one are expected"
    assert not left(decide(expecting_whole(seen(*busy), 1.0), BOTH)), "one is free"
    assert not left(decide(expecting_whole(seen(*busy), 40.0, per_member=2), BOTH)), "it may not fit on one node"
    assert not left(decide(expecting_whole(seen(*busy), 40.0), with_policy(BOTH, regeometry={"ahead": False})))
    full = [holds(f"h{gpu}", 1, [7 * number], mig_profile=0) for number, gpu in enumerate((2, 3))]
    ask = waits("i", 1, mig_profile=3, limit_s=200.0)
    assert decide(seen(*busy, *full, ask), BOTH).instructions
    assert not decide(expecting_whole(seen(*busy, *full, ask), 40.0), BOTH).instructions


def test_a_recommendation_stays_on_paper() -> None:
    """Nothing is instructed, and memory has no change."""
    policy: Policy = with_policy(BOTH, modes={"regeometry": Mode.RECOMMEND})
    step = decide(seen(BUSY, whole("w", 1)), policy)
    assert not step.instructions
    assert not step.memory.geometry.recuts
    assert [each.reason for each in step.decision.plan.proposals] == ["leave_waiting"]
