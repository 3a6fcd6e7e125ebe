"""An engine that changes whole nodes: GPUs of idle nodes turn MIG mode on for requests, and off for gangs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopilot.core.geometry.recut import RecutGpu
from autopilot.core.model.memory import Step
from autopilot.core.model.memory.geometry import GeometryMemory, RecutRecord
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Code, Observation
from autopilot.core.model.snapshot import Recut
from tests.kits.core_world import Item, holds, waits, with_policy, world
from tests.kits.demand_world import expecting
from tests.kits.geometry_world import decide_in_scope as decide
from tests.kits.geometry_world import stating
from tests.kits.story_kit import story
from tests.kits.ticking_world import EAGER
from tests.unit.core.geometry.test_regeometry_whole import code_of, expecting_whole, left, whole

SMALL = tuple(("1g.10gb", start) for start in range(7))
WHOLE = (("7g.80gb", 0),)
NODE_S = 60.0


def scoped(**more: object) -> Policy:
    """A policy whose engine changes whole nodes, in a minute, and drains nothing."""
    return replace(with_policy(EAGER, regeometry={"change_s": NODE_S, "drain_s": 0.0, **more}), name="node")


NODE = scoped()


def seen(*work: Item, cuts: object = None, now_s: float = 0.0, **more: object) -> Observation:
    """Two nodes of two GPUs: those of node-1 are cut into small instances (rows 0 to 6, and 7 to 13)."""
    return world("2x2", work, now_s, cuts={2: SMALL, 3: SMALL} if cuts is None else cuts, **more)  # type: ignore[arg-type]


def at(*work: Item, **more: object) -> Observation:
    """The same, where the nodes state the scope themselves."""
    return stating(seen(*work, **more), "node")  # type: ignore[arg-type]


def changes(step: Step) -> dict[str, RecutGpu]:
    """The changes that a decision starts, by GPU."""
    return {each.subject.uid: each.operation for each in step.instructions if isinstance(each.operation, RecutGpu)}


BUSY = holds("busy", 2, [0, 1], gpus_per_member=2, preemptible=False)


def test_a_gpu_of_an_idle_node_leaves_mig_mode_for_a_gang() -> None:
    """Its price is that of the node, and the explanation says what is missing meanwhile."""
    now = seen(BUSY, whole("w", 1))
    step = decide(now, NODE)
    (change,) = changes(step).values()
    assert (change.before, change.after, change.scope, change.node) == (SMALL, None, "node", "node-1")
    assert code_of(step, now, "w") == Code.RECUT
    (proposal,) = step.decision.plan.proposals
    assert (proposal.reason, proposal.cost_gpu_s) == ("leave_waiting", 2 * NODE_S)
    assert {each.name: each.value for each in proposal.evidence}["missing"] == "node node-1 with 2 GPUs"


def test_a_node_that_costs_more_than_the_gang_gains_stays() -> None:
    """All its GPUs are missing for the time of the change, whatever part of them changes."""
    short = whole("w", 1, limit_s=2 * NODE_S)
    assert not changes(decide(seen(BUSY, short), NODE))
    assert left(decide(seen(BUSY, short), scoped(change_s=NODE_S / 2))) == {"GPU-2"}


def test_work_anywhere_on_the_node_keeps_mig_mode_on() -> None:
    """The engine would stop it."""
    one = holds("h", 1, [0], mig_profile=0, preemptible=False)
    assert not changes(decide(seen(BUSY, one, whole("w", 1)), NODE))


def test_all_gpus_of_a_gang_change_or_none() -> None:
    """On one node where its members need that, and over two nodes where one alone would not do."""
    assert left(decide(seen(BUSY, whole("w", 2, 2)), NODE)) == {"GPU-2", "GPU-3"}
    assert not left(decide(seen(BUSY, whole("w", 2, 2)), scoped(per_tick=1)))
    all_cut = dict.fromkeys(range(4), SMALL)
    assert left(decide(seen(whole("w", 4, 2), cuts=all_cut), NODE)) == {f"GPU-{row}" for row in range(4)}
    in_use = holds("h", 1, [0], mig_profile=0, preemptible=False)
    assert not left(decide(seen(in_use, whole("w", 4, 2), cuts=all_cut), NODE))


def test_a_node_that_serves_too_little_of_a_gang_keeps_the_others_as_they_are() -> None:
    """The second node would pay for the one GPU that is lacking there only with the other ones."""
    cuts = {0: SMALL, 1: SMALL, 2: SMALL}
    run_s = 1.5 * NODE_S  # two GPUs of a node pay, one does not
    assert not left(decide(seen(whole("w", 4, 2, limit_s=run_s), cuts=cuts), NODE))
    assert left(decide(seen(whole("w", 4, 2, limit_s=3 * NODE_S), cuts=cuts), NODE)) == {"GPU-0", "GPU-1", "GPU-2"}


def test_fewest_gpus_change() -> None:
    """A node with a free whole GPU needs one change less. That GPU stays whole while its node changes."""
    cuts = {0: SMALL, 2: SMALL, 3: SMALL}
    step = decide(seen(whole("w", 2, 2), waits("i", 1, mig_profile=3), cuts=cuts), NODE)
    assert left(step) == {"GPU-0"}
    assert "GPU-1" not in changes(step)
    assert step.memory.geometry.recuts["GPU-1"].state == "beside"


def test_nothing_else_changes_for_a_gang_while_its_node_does() -> None:
    """The free GPU beside counts with those that leave MIG mode: another idle node stays as it is."""
    cuts = {0: SMALL, 2: SMALL, 3: SMALL}
    first = decide(seen(whole("w", 2, 2), cuts=cuts), NODE)
    assert left(first) == {"GPU-0"}
    stopped = {0: Recut.CHANGING, 1: Recut.CHANGING}
    mid = seen(whole("w", 2, 2), cuts=cuts | {0: ()}, now_s=30.0, tick=1, recuts=stopped)
    second = decide(mid, NODE, first.memory)
    assert not second.instructions
    assert code_of(second, mid, "w") == Code.RECUT
    done = decide(seen(whole("w", 2, 2), cuts={2: SMALL, 3: SMALL}, now_s=60.0, tick=2), NODE, second.memory)
    (start,) = done.instructions
    assert {slot.gpu for slot in start.operation.slots} == {"GPU-0", "GPU-1"}


def test_the_story_of_the_gang_names_the_gpus_and_the_time() -> None:
    """When it is decided, while the node changes, and where only the GPU beside is waited for."""
    cuts = {0: SMALL, 2: SMALL, 3: SMALL}
    gang = whole("w", 2, 2)
    told, _ = story(at(gang, cuts=cuts), "w", NODE)
    assert "GPU-0 of node node-0 leaves MIG mode for it: expected in 60 s" in told
    first = decide(seen(gang, cuts=cuts), NODE)
    stopped = {0: Recut.CHANGING, 1: Recut.CHANGING}
    told, _ = story(at(gang, cuts=cuts | {0: ()}, now_s=20.0, tick=1, recuts=stopped), "w", NODE, first.memory)
    assert "GPU-0 of node node-0 leaves MIG mode for it: expected in 40 s, late in 25 min" in told
    told, _ = story(at(BUSY, whole("v", 2, 2)), "v", NODE)
    assert "GPU-2, GPU-3 of node node-1 leave MIG mode for it: expected in 60 s" in told
    other = decide(seen(waits("i", 1, mig_profile=3), cuts=cuts), NODE)
    assert set(changes(other)) == {"GPU-0"}
    one, full = whole("x", 1), holds("h", 1, [7], mig_profile=0, preemptible=False)
    told, _ = story(at(one, full, cuts=cuts | {0: ()}, now_s=20.0, tick=1, recuts=stopped), "x", NODE, other.memory)
    assert "the MIG geometry of node node-0 changes, and 1 whole GPU of it will be free: expected in 40 s" in told


def test_whole_gpus_of_an_idle_node_turn_mig_mode_on_for_requests() -> None:
    """Without any GPU in MIG mode too; no more of them than the requests need."""
    asks = [waits(f"i{number}", 1, mig_profile=2) for number in range(2)]
    now = seen(BUSY, *asks, cuts={})
    step = decide(now, NODE)
    (change,) = changes(step).values()
    assert (change.before, change.after, change.scope) == (None, (("3g.40gb", 0), ("3g.40gb", 4)), "node")
    assert [code_of(step, now, each.id) for each in asks] == [Code.RECUT] * 2
    assert len(changes(decide(seen(BUSY, *asks, waits("i2", 1, mig_profile=2), cuts={}), NODE))) == 2


def test_a_gpu_in_mig_mode_changes_rather_than_a_whole_one() -> None:
    """Where both would serve the request, whichever comes first."""
    ask = waits("i", 1, mig_profile=3)
    assert set(changes(decide(seen(BUSY, ask, cuts={3: SMALL}), NODE))) == {"GPU-3"}


def test_a_node_with_work_takes_no_part() -> None:
    """One GPU of it in use is enough, and other pools' scopes do not matter."""
    half = holds("h", 1, [2], gpus_per_member=1, preemptible=False)
    assert not changes(decide(seen(BUSY, half, waits("i", 1, mig_profile=3), cuts={}), NODE))


def test_a_node_that_nothing_can_change_is_left_alone() -> None:
    """Neither way; a node that is set up beside it changes."""
    fixed = {"mig_scopes": [1, 0]}
    assert not changes(decide(seen(BUSY, whole("w", 1), nodes=fixed), NODE))
    assert not changes(decide(seen(BUSY, waits("i", 1, mig_profile=3), cuts={}, nodes=fixed), NODE))
    assert set(changes(decide(seen(waits("i", 1, mig_profile=3), cuts={}, nodes=fixed), NODE))) == {"GPU-0"}


def test_gpus_that_are_reserved_for_a_gang_stay_whole() -> None:
    """It waits for the other node; until then this node is kept for it."""
    held = holds("h", 1, [0], gpus_per_member=1, preemptible=False)
    gang, ask = whole("w", 4, 2, submit_s=-50.0), waits("i", 1, mig_profile=3)
    holding = with_policy(NODE, reservation={"depth": 1})
    step = decide(seen(held, gang, ask, cuts={}, total_s={"h": 400.0, "w": 4000.0, "i": 4000.0}), holding)
    assert step.decision.plan.reservations
    assert not changes(step)
    assert changes(decide(seen(held, ask, cuts={}, total_s={"h": 400.0, "i": 4000.0}), holding))


def test_expected_demand_is_weighed_both_ways() -> None:
    """On a forecast with data behind it nodes change ahead; what is expected as whole GPUs stays or becomes whole."""
    full = [holds(f"h{gpu}", 1, [7 * number], mig_profile=0) for number, gpu in enumerate((2, 3))]
    entered = changes(decide(expecting(seen(*full), "3g.40gb", per_h=100.0), NODE))
    assert entered
    assert {each.before for each in entered.values()} == {None}
    assert not changes(decide(expecting(seen(*full), "3g.40gb", per_h=100.0, watched_h=1.0), NODE))
    assert left(decide(expecting_whole(seen(BUSY), 40.0), NODE)) == {"GPU-2", "GPU-3"}
    assert not left(decide(expecting_whole(seen(BUSY), 40.0), scoped(ahead=False)))
    assert not left(decide(expecting_whole(seen(), 1.0), NODE)), "two are free"


def test_no_more_nodes_leave_mig_mode_than_are_expected() -> None:
    """Two whole GPUs within the time of a change: one node has them."""
    cuts = dict.fromkeys(range(4), SMALL)
    assert len(left(decide(expecting_whole(seen(cuts=cuts), 20.0), NODE))) == 2
    assert len(left(decide(expecting_whole(seen(cuts=cuts), 40.0), NODE))) == 4


def record(before: object, after: object, state: str = "settled") -> RecutRecord:
    """A change at 0."""
    return RecutRecord("pool", before, after, 0.0, 100.0, state=state, scope="node", starts_s=(0.0,))  # type: ignore[arg-type]


RETURN_S = NODE.regeometry.return_s


@pytest.mark.parametrize(("now_s", "turns"), [(NODE.regeometry.dwell_s, False), (RETURN_S, True)])
def test_mig_mode_is_not_swapped(now_s: float, *, turns: bool) -> None:
    """Neither back off for a gang nor back on with another geometry, for `return_s`."""
    memory = replace(
        decide(seen(), NODE).memory, geometry=GeometryMemory({f"GPU-{row}": record(None, SMALL) for row in (2, 3)})
    )
    assert bool(left(decide(seen(BUSY, whole("w", 1), now_s=now_s, tick=1), NODE, memory))) == turns
    memory = replace(
        memory, geometry=replace(memory.geometry, recuts={f"GPU-{row}": record(SMALL, None) for row in (2, 3)})
    )
    asked = seen(BUSY, waits("i", 1, mig_profile=3), cuts={}, now_s=now_s, tick=1)
    assert bool(changes(decide(asked, NODE, memory))) == turns


def test_a_change_beside_does_not_hide_that_mig_mode_was_turned() -> None:
    """GPU 3 left MIG mode; then GPU 2 of its node is cut; GPU 3 still may not turn the mode on again."""
    memory = replace(decide(seen(), NODE).memory, geometry=GeometryMemory({"GPU-3": record(SMALL, None)}))
    dwell_s = NODE.regeometry.dwell_s
    ask = waits("i", 1, mig_profile=3)
    first = decide(seen(BUSY, ask, cuts={2: SMALL}, now_s=dwell_s, tick=1), NODE, memory)
    assert set(changes(first)) == {"GPU-2"}
    assert first.memory.geometry.recuts["GPU-3"].state == "beside"
    done_s = dwell_s + 60.0
    done = decide(seen(BUSY, ask, cuts={2: WHOLE}, now_s=done_s, tick=2), NODE, first.memory)
    assert done.memory.geometry.recuts["GPU-3"].state == "settled"
    more = (BUSY, waits("j", 4, mig_profile=2))  # needs both GPUs
    assert not changes(decide(seen(*more, cuts={2: WHOLE}, now_s=done_s + dwell_s, tick=3), NODE, done.memory))
    at_last = seen(*more, cuts={2: WHOLE}, now_s=done_s + RETURN_S, tick=4)
    assert set(changes(decide(at_last, NODE, done.memory))) == {"GPU-2", "GPU-3"}
