"""Takings on paper: who is moved, who shrinks, who stays; members that differ; growing beside oneself."""

from __future__ import annotations

import numpy as np

from autopilot.core.capabilities.actions import ACTIONS
from autopilot.core.capabilities.guards import GUARDS
from autopilot.core.decision.build import build_context
from autopilot.core.decision.planner import plan_on
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.records import Code
from autopilot.core.model.snapshot import ClusterSnapshot, MemberTable, Topology, make
from autopilot.core.placement.search_cache import STATES, SearchCache
from autopilot.core.placement.shapes import Fit, Miss, shape_of
from autopilot.core.placement.whatif import WhatIf
from autopilot.core.planning.context import Context
from autopilot.core.planning.places import place
from autopilot.core.planning.start_plan import StartPlan
from autopilot.core.quota.ledger import QuotaLedger
from autopilot.core.quota.rules.base import Claim, Refusal, Room, Target
from autopilot.core.reserving.hold import hold
from autopilot.core.search.moves import moves_only
from autopilot.core.search.scenario import Scenario, alike_at, find_scenario, scheduling_signatures
from tests.kits.core_world import Item, holds, observe, snapshot, waits, with_policy
from tests.kits.ticking_world import EAGER, tenants

TREE = tenants(("a", 0, 0), ("b", 0, 0))


def context(snap: ClusterSnapshot) -> Context:
    """The working set of a tick, at 100 s."""
    return build_context(observe(snap, 100.0), EAGER, ControllerMemory(), WhatIf(snap), frozenset())


def planned(
    work: list[Item], targets: dict[str, float | None], shape: str = "2x8", **more: object
) -> tuple[Scenario, Context]:
    """What comes of taking `takes` (name -> GPUs, None: all) for the first gang that waits."""
    snap = snapshot(shape, work, queues=more.pop("queues", TREE), **more)  # type: ignore[arg-type]
    ctx = context(snap)
    ids = snap.workloads.id.tolist()

    def chosen(_books: QuotaLedger, _claim: Claim, running: list[Claim], _room: Room) -> tuple[Target, ...]:
        held = {claim.row: claim.gpus for claim in running}
        rows = {ids.index(name): gpus for name, gpus in targets.items()}
        return tuple(Target(row, held[row] if gpus is None else gpus, whole=gpus is None) for row, gpus in rows.items())

    found = find_scenario(ctx, 0, chosen)  # type: ignore[arg-type]
    assert isinstance(found, Scenario)
    return found, ctx


def how(found: Scenario, ctx: Context) -> dict[str, str]:
    """Victims by name."""
    return {str(ctx.observation.snapshot.workloads.id[give.row]): give.how for give in found.evictions}


def test_a_victim_that_fits_elsewhere_is_moved_and_the_books_are_left_as_they_were() -> None:
    """Four GPUs are idle on the other node: the victim goes there; nothing on the what-if has changed after."""
    found, ctx = planned(
        [
            holds("v", 4, on=range(4), queue=2),
            holds("x", 4, on=range(8, 12), queue=2),
            waits("w", 8, queue=1),
        ],
        {"v": None},
    )
    assert how(found, ctx) == {"v": "move"}
    keeps = found.evictions[0].keeps
    assert keeps is not None
    assert keeps.gpu.tolist() == [12, 13, 14, 15]
    assert found.evictions[0].gpus == 4
    assert ctx.whatif.layout_of(0).gpu.tolist() == [0, 1, 2, 3]
    assert (ctx.quota.ledger.use, ctx.whatif.node_free.tolist()) == (
        context(ctx.observation.snapshot).quota.ledger.use,
        [4, 4],
    )


def test_who_would_be_where_it_was_is_no_victim() -> None:
    """A taking that was not needed: the gang goes to the fuller node, and the victim finds its own GPUs again."""
    work = [
        holds("v", 4, on=range(4), queue=2),
        holds("x", 4, on=range(8, 12), queue=2),
        waits("w", 4, queue=1, gpus_per_member=4),
    ]
    found, ctx = planned(work, {"v": None})
    assert found.fit.layout.gpu.tolist() == [12, 13, 14, 15]
    assert how(found, ctx) == {}


def test_an_instance_that_is_needed_is_left_for_another_of_the_same_gpu() -> None:
    """The victim goes from one instance to the next on its GPU: that is a move, and not nothing."""
    cuts = {0: [("1g.10gb", 0), ("2g.20gb", 2), ("1g.10gb", 1)]}
    work = [holds("v", 1, on=[0], mig_profile=0, queue=2), waits("w", 1, mig_profile=0, queue=1)]
    found, ctx = planned(work, {"v": None}, "1x1", cuts=cuts)
    fit = set(found.fit.layout.instance.tolist())
    kept = {cut for give in found.evictions if give.keeps is not None for cut in give.keeps.instance.tolist()}
    assert not fit & kept
    assert how(found, ctx) in ({}, {"v": "move"})
    assert (fit == {0}) == (how(found, ctx) == {"v": "move"})


def test_a_part_of_a_gang_costs_its_part() -> None:
    """Two of four GPUs cost half of what stopping it would lose, and it keeps the other two."""
    work = [
        holds("e", 4, on=range(4), queue=2, min_gpus=2, gpus_per_member=2, start_s=50.0),
        waits("w", 6, queue=1, gpus_per_member=6),
    ]
    found, ctx = planned(work, {"e": 2.0}, "1x8")
    assert how(found, ctx) == {"e": "shrink"}
    whole = float(ctx.lost_gpu_s[0])
    assert found.cost_gpu_s == whole / 2
    assert found.evictions[0].keeps is not None
    assert len(found.evictions[0].keeps.gpu) == 2


def test_the_smallest_start_is_whole_members() -> None:
    """A minimum in the middle of a member is rounded up, and never above the width."""
    snap = snapshot("2x8", [waits("e", 8, min_gpus=3, gpus_per_member=2), waits("t", 5, min_gpus=5, gpus_per_member=2)])
    ctx = context(snap)
    rows = {str(snap.workloads.id[row]): at for at, row in enumerate(ctx.pending.tolist())}
    assert (ctx.pending_table.least_gpus[rows["e"]], ctx.pending_table.least_gpus[rows["t"]]) == (4, 5)


def test_gangs_are_alike_when_queue_priority_and_shape_are() -> None:
    """What is refused to one is refused to all of its like, and to no others."""
    work = [
        waits("a1", 4, queue=1),
        waits("a2", 4, queue=1),
        waits("b", 4, queue=2),
        waits("wide", 8, queue=1),
        waits("high", 4, queue=1, priority=1),
        waits("firm", 4, queue=1, preemptible=False),
    ]
    snap = snapshot("2x8", work, queues=TREE)
    ctx = context(snap)
    keys = {
        str(snap.workloads.id[row]): key
        for key, row in zip(scheduling_signatures(ctx), ctx.pending.tolist(), strict=True)
    }
    assert keys["a1"] == keys["a2"]
    assert len(set(keys.values())) == 5


def test_whom_the_guard_would_spare_a_search_does_not_offer() -> None:
    """A weighed preemption has no victim that alone is wider than blast_ratio allows, unless parts of it suffice."""
    work = [
        holds("wide", 8, on=range(8), queue=2),
        holds("near", 4, on=range(8, 12), queue=2),
        holds("elastic", 4, on=range(12, 16), queue=2, min_gpus=1, gpus_per_member=1),
        waits("w", 1, queue=1),
    ]
    snap = snapshot("2x8", work, queues=TREE)
    tight = with_policy(EAGER, preemption={"blast_ratio": 3.0, "priority_weight": 1e6})
    ctx = build_context(observe(snap, 100.0), tight, ControllerMemory(), WhatIf(snap), frozenset())
    seen: list[set[str]] = []

    def nobody(_books: QuotaLedger, _claim: Claim, running: list[Claim], _room: Room) -> Refusal:
        seen.append({str(snap.workloads.id[claim.row]) for claim in running})
        return Refusal(Code.CAPACITY, 0.0, 1.0)

    for contract in (False, True):
        assert isinstance(find_scenario(ctx, 0, nobody, contract=contract), Refusal)  # type: ignore[arg-type]
    assert seen == [{"elastic"}, {"wide", "near", "elastic"}]


def test_an_answer_for_a_state_of_the_books_is_kept_for_the_last_few() -> None:
    """What is added for a state is there when it comes back, and forgotten once many others were looked at."""
    found = SearchCache()
    found.at(1).counted[7,] = (8, 1, 8)
    assert found.at(1).counted == {(7,): (8, 1, 8)}
    for stamp in range(2, STATES + 1):
        found.at(stamp)
    assert found.at(1).counted == {(7,): (8, 1, 8)}
    for stamp in range(100, 100 + STATES):
        found.at(stamp)
    assert not found.at(1).counted


# --- moves alone ----------------------------------------------------------------------------------


def moved_for(free: list[int], widths: list[list[int]], gpus: int) -> tuple[dict[str, str] | None, int]:
    """The gangs that move for a gang of a given width, on nodes of eight GPUs with gangs of these widths; and the
    steps.
    """
    work, named = [], 0
    for node, some in enumerate(widths):
        at = 8 * node
        assert sum(some) + free[node] == 8
        for width in some:
            work.append(holds(f"r{named}", width, on=range(at, at + width), queue=2))
            at, named = at + width, named + 1
    snap = snapshot(f"{len(free)}x8", [*work, waits("w", gpus, queue=1)], queues=TREE)
    ctx = context(snap)
    found = moves_only(ctx, 0, scheduling_signatures(ctx)[0])
    return (None if found is None else how(found, ctx)), ctx.plan.steps


def test_a_gang_that_has_no_other_place_is_not_asked_to_move() -> None:
    """Eight GPUs are wanted and nine are free, six on one node: of the others' gangs only a narrow one can go there."""
    answer, _ = moved_for([6, 2, 1], [[2], [6], [7]], 8)
    assert answer == {"r0": "move"}


def test_where_nobody_can_go_nothing_is_searched() -> None:
    """Two free GPUs on each of four nodes and gangs of six: no gang has another place, and a second look costs
    nothing.
    """
    answer, steps = moved_for([2, 2, 2, 2], [[6], [6], [6], [6]], 8)
    assert answer is None
    assert steps < 100


def test_the_only_node_with_room_is_no_other_place_for_who_is_on_it() -> None:
    """Six GPUs are free on the node of the gang of two, one on each other: it cannot go, and nothing is searched."""
    answer, steps = moved_for([6, 1, 1], [[2], [7], [7]], 8)
    assert answer is None
    assert steps < 100


def alike(free: list[int], gangs: int = 2) -> Context:
    """Gangs of eight that wait for the same, and on each node of eight GPUs one of what is not free there."""
    held = [
        holds(f"r{n}", 8 - spare, on=range(8 * n, 8 * n + 8 - spare), queue=2)
        for n, spare in enumerate(free)
        if spare < 8
    ]
    waiting = [waits(f"w{n}", 8, queue=1) for n in range(gangs)]
    snap = snapshot(f"{len(free)}x8", [*held, *waiting], queues=TREE)
    return context(snap)


def test_gangs_that_are_alike_share_one_search_for_moves() -> None:
    """Two actions ask for two gangs: one search, and each answer is that of a tick in which nobody asked before."""
    ctx = alike([6, 2, 5, 1])
    key = scheduling_signatures(ctx)[0]
    first = moves_only(ctx, 0, key)
    spent = ctx.plan.steps
    assert first is not None
    assert how(first, ctx) == {"r0": "move"}
    assert moves_only(ctx, 0, key) is first
    assert ctx.plan.steps == spent
    second = moves_only(ctx, 1, key)
    fresh = alike([6, 2, 5, 1])
    alone = moves_only(fresh, 1, key)
    assert second is not None
    assert alone is not None
    assert second.fit.layout.is_at(alone.fit.layout)
    assert how(second, ctx) == how(alone, fresh)
    assert ctx.plan.steps - spent < fresh.plan.steps


def test_moves_that_a_budget_refused_are_not_placed_again_but_for_a_contract() -> None:
    """Both gangs ask for the moves of one gang, and no move is left in the budget: one search, one look at places."""
    ctx = alike([6, 2, 5, 1])
    poor = with_policy(EAGER, budget={"per_cluster": 0})
    ctx = build_context(ctx.observation, poor, ControllerMemory(), WhatIf(ctx.observation.snapshot), frozenset())
    plan, planner = plan_on(ctx, ACTIONS, GUARDS)
    refused = {verdict.code for proposal in plan.proposals for verdict in proposal.verdicts if not verdict.allowed}
    assert refused == {Code.BUDGET_CLUSTER}
    assert {proposal.subject.name for proposal in plan.proposals} == {"w0", "w1"}
    assert not planner.disruptions
    key = scheduling_signatures(ctx)[0]
    assert ctx.plan.exhausted()
    assert moves_only(ctx, 0, key) is None
    ctx.plan.turned_away.clear()
    first, spent = moves_only(ctx, 0, key), ctx.plan.steps
    assert first is not None
    assert moves_only(ctx, 1, key) is first
    assert ctx.plan.steps == spent
    owed = moves_only(ctx, 1, key, contract=True)
    assert owed is not None
    assert owed is not first
    assert how(owed, ctx) == how(first, ctx)


def test_who_has_room_of_its_own_answers_for_nobody_else() -> None:
    """A free node is promised to the first gang, which needs no moves; the second may not use it, and needs them."""
    ctx = alike([8, 6, 2])
    row = int(ctx.pending[0])
    start = StartPlan(50.0, *(np.array([value], np.int32) for value in (0, 8, 0)))
    ctx.plan.hold(hold(ctx, row, ctx.shape(row, 8), start, None, firm=True))
    key = alike_at(ctx, 0)
    assert moves_only(ctx, 0, key) is None
    found = moves_only(ctx, 1, key)
    assert found is not None
    assert how(found, ctx) == {"r1": "move"}


# --- members that differ ----------------------------------------------------------------------------


def with_members(
    gpus: list[int], ranks: list[int], free: list[int], least: int, **columns: object
) -> tuple[Fit | Miss, ClusterSnapshot]:
    """Where a gang of given members starts, on nodes of eight GPUs with given free GPUs."""
    work = [holds(f"r{n}", 8 - spare, on=range(8 * n, 8 * n + 8 - spare)) for n, spare in enumerate(free) if spare < 8]
    work.append(waits("w", sum(gpus), min_gpus=least, gpus_per_member=max(gpus), **columns))
    snap = snapshot(f"{len(free)}x8", work)
    row = len(work) - 1
    members = make(
        MemberTable,
        id=np.array([f"m{n}" for n in range(len(gpus))], object),
        workload=[row] * len(gpus),
        gpus=gpus,
        rank=ranks,
    )
    snap = ClusterSnapshot(
        **{name: getattr(snap, name) for name in snap.__slots__ if name != "members"}, members=members
    )
    return place(context(snap), 0, shape_of(snap, 0)), snap


def counts(found: Fit | Miss, snap: ClusterSnapshot) -> list[int]:
    """GPUs taken on each node."""
    assert isinstance(found, Fit), found
    return [int(count) for count in np.bincount(snap.gpus.node[found.layout.gpu], minlength=len(snap.nodes.id))]


def test_each_member_finds_a_node_of_its_own_size() -> None:
    """A wide coordinator and two narrow workers on what is free."""
    found, snap = with_members([4, 1, 1], [2, 1, 0], [4, 2], 6)
    assert counts(found, snap) == [4, 2]


def test_small_members_do_not_make_up_for_a_wide_one_that_found_no_place() -> None:
    """Minimum of eight: a four, and two ones, are not enough though three members sat down."""
    found, _ = with_members([4, 4, 1, 1], [3, 2, 1, 0], [5, 2], 8)
    assert isinstance(found, Miss)
    assert found.threshold == 8.0


def test_members_that_must_be_apart_are() -> None:
    """Spread: one member a node, however much room the first has."""
    found, snap = with_members([2, 1, 1], [2, 1, 0], [8, 8, 8], 4, topology=Topology.SPREAD)
    assert sorted(counts(found, snap)) == [1, 1, 2]
    assert isinstance(with_members([2, 1, 1], [2, 1, 0], [8, 8], 4, topology=Topology.SPREAD)[0], Miss)


def test_members_share_a_domain_where_they_must() -> None:
    """One island is a node here: all of it in one, or nowhere."""
    found, snap = with_members([3, 1], [1, 0], [3, 4], 4, topology=Topology.ISLAND)
    assert counts(found, snap) == [0, 4]
    assert isinstance(with_members([3, 2], [1, 0], [3, 4], 5, topology=Topology.ISLAND)[0], Miss)


def test_the_policy_may_forbid_moves() -> None:
    """Without moves the victim stops, though there is room elsewhere."""
    snap = snapshot(
        "2x8",
        [
            holds("v", 4, on=range(4), queue=2),
            holds("x", 4, on=range(8, 12), queue=2),
            waits("w", 8, queue=1),
        ],
        queues=TREE,
    )
    policy = with_policy(EAGER, preemption={"move_victims": False})
    ctx = build_context(observe(snap, 100.0), policy, ControllerMemory(), WhatIf(snap), frozenset())
    found = find_scenario(ctx, 0, lambda *_: (Target(0, 4.0, whole=True),))
    assert isinstance(found, Scenario)
    assert [give.how for give in found.evictions] == ["evict"]
