"""Time sharing across queues: who pauses for whom under strict, elastic and unkept guarantees, and for how long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autopilot.core.decision.build import build_context
from autopilot.core.model.codes import ConditionKind
from autopilot.core.model.errors import InputError
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.plan import Condition, Noted, PlanMemory
from autopilot.core.model.memory.trust import StormRecord, TrustMemory
from autopilot.core.model.memory.use import UseMemory
from autopilot.core.model.policy import GuaranteeRule, Policy, Preemption, RuleSetName, Tenancy, check_policy
from autopilot.core.model.policy.tenancy import GUARANTEES_KEPT
from autopilot.core.model.promises import PromiseRecord
from autopilot.core.model.records import Proposal
from autopilot.core.model.snapshot import QueueOrder, QueueTable
from autopilot.core.placement.whatif import WhatIf
from autopilot.core.preemption import reclaim_borrowed
from autopilot.core.search.scenario import Scenario, find_scenario
from tests.kits.core_world import Item, decide, holds, proposals, waits, with_policy, world
from tests.kits.ticking_world import EAGER, tenants

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
LONG, SHORT, MEDIUM = 10 * DAY_S, HOUR_S, 8 * HOUR_S
GUEST, OWNER = 1, 2
TREE = tenants(("guest", 0, 4), ("owner", 0, 4), order=QueueOrder.INDEX)


GUESTS = [holds("guest", 4, queue=GUEST), holds("more", 4, queue=GUEST)]


def sharing(guarantee: str = "strict", **tenancy: Any) -> Policy:
    """The policy with time sharing across queues; an exchange needs three times the index."""
    return with_policy(
        EAGER,
        preemption={"time_sharing": True, "index_ratio": 3.0, "without_checkpoint": True},
        order={"short_s": 0.0, "width_exponent": 0.0, "aging_exponent": 0.0},
        tenancy=(own := {"usage_half_life_s": 0.0, **tenancy})
        | {"time_sharing": True, "guarantee": GuaranteeRule(guarantee)},
        elastic={
            "index_ratio": 3.0,
            "width_exponent": 0.0,
            "aging_exponent": 0.0,
            "hazard_weight": 0.0,
            "usage_half_life_s": own["usage_half_life_s"],
        },
    )


def found(
    work: list[Item],
    policy: Policy,
    *,
    queues: QueueTable = TREE,
    now_s: float = 1000.0,
    memory: ControllerMemory | None = None,
    total_s: Mapping[str, float] | None = None,
) -> dict[str, tuple[str, set[str]]]:
    """(action, victims) by newcomer, where somebody is stopped. Work runs `total_s`, by default ten days."""
    every = {item.id: LONG for item in work} | dict(total_s or {})
    step = decide(world("1x12", work, now_s, total_s=every, queues=queues), policy, memory)
    made: dict[str, Proposal] = proposals(step)
    return {
        name: (one.action, {victim.workload for victim in one.victims})
        for name, one in made.items()
        if one.victims and one.accepted
    }


def lent() -> list[Item]:
    """The guest has twice its guarantee; the owner has its own."""
    return [holds("kept", 4, queue=GUEST), holds("lent", 4, queue=GUEST), holds("own", 4, queue=OWNER)]


@pytest.mark.parametrize("why", ["", "capped", "paused by a storm"])
def test_an_action_that_may_not_act_plans_one_exchange_in_a_tick(why: str) -> None:
    """Three short gangs could each pause a long one: all of them do, or one says what would be and the others wait."""
    work = [holds(f"long-{number}", 3, queue=GUEST) for number in range(4)]
    work += [waits(f"short-{gpus}", gpus, queue=OWNER) for gpus in (3, 2, 1)]
    total_s = {item.id: LONG if item.id.startswith("long") else SHORT for item in work}
    memory = {
        "": ControllerMemory(),
        "capped": ControllerMemory(
            trust=TrustMemory(kept_promises={"preempt": PromiseRecord(((100.0, 20.0),) * 20, 900.0)})
        ),
        "paused by a storm": ControllerMemory(
            trust=TrustMemory(storms={"preempt": StormRecord(last_s=900.0, since_s=900.0, events=61)})
        ),
    }[why]
    step = decide(world("1x12", work, 1000.0, total_s=total_s, queues=TREE), sharing("none"), memory)
    made = [one for one in step.decision.plan.proposals if one.action == "preempt"]
    assert [one.accepted for one in made] == ([False] if why else [True] * 3)


def test_short_work_pauses_long_work_of_another_queue_beyond_its_guarantee() -> None:
    """The owner holds its guarantee already: by share or contract it gets nothing, by index the lent GPUs."""
    work = [*lent(), waits("short", 4, queue=OWNER)]
    assert found(work, sharing(), total_s={"short": SHORT, "kept": 5 * DAY_S}) == {"short": ("preempt", {"lent"})}
    apart = with_policy(sharing(), tenancy={"time_sharing": False})
    assert found(work, apart, total_s={"short": SHORT, "own": 2 * HOUR_S}) == {}


def test_a_strict_guarantee_keeps_its_best_running_work() -> None:
    """Even where all of the guest's work is far worse than the newcomer, four GPUs of it stay."""
    work = [holds("kept", 4, queue=GUEST), holds("own", 8, queue=OWNER), waits("short", 4, queue=OWNER)]
    assert found(work, sharing(), total_s={"short": SHORT, "own": 2 * HOUR_S}) == {}
    assert found(work, sharing("elastic"), total_s={"short": SHORT, "own": 2 * HOUR_S}) == {
        "short": ("preempt", {"kept"})
    }


def test_an_elastic_guarantee_counts_its_work_four_times() -> None:
    """Inside the guarantee the guest's work has four times its index: the advantage must be twelve times, not three."""
    own = [holds("own", 4, queue=OWNER), holds("more", 4, queue=OWNER)]
    work = [holds("kept", 4, queue=GUEST), *own, waits("new", 4, queue=OWNER)]
    for hours, victims in ((10.0, {}), (14.0, {"new": ("preempt", {"kept"})})):
        inside = {"kept": hours * HOUR_S + 1000.0, "own": 2 * HOUR_S, "more": 2 * HOUR_S, "new": SHORT}
        assert found(work, sharing("elastic"), total_s=inside) == victims
    outside = {"kept": 4 * HOUR_S + 1000.0, "own": 2 * HOUR_S, "more": 2 * HOUR_S, "new": SHORT}
    assert found(work, sharing("none"), total_s=outside) == {"new": ("preempt", {"kept"})}


def test_inside_one_queue_guarantees_do_not_count() -> None:
    """The gang of eight does not fit the guarantee of its queue, and the newcomer does. For the others this counts four
    times; between the two it does not: twice the index is not enough, ten times is.
    """
    work = [holds("guest", 4, queue=GUEST), holds("wide", 8, queue=OWNER), waits("new", 4, queue=OWNER)]
    total_s = {"guest": 0.5 * HOUR_S, "wide": 5 * HOUR_S + 1000.0}
    assert found(work, sharing("elastic"), total_s=total_s | {"new": 2.5 * HOUR_S}) == {}
    assert found(work, sharing("elastic"), total_s=total_s | {"new": 0.5 * HOUR_S}) == {"new": ("preempt", {"wide"})}


MINE = {"mine": 4 * LONG}


def owed() -> list[Item]:
    """The guest holds everything; the owner waits inside its guarantee with work that is longer than the guest's."""
    return [holds(f"guest-{number}", 4, queue=GUEST) for number in range(3)] + [waits("mine", 4, queue=OWNER)]


def test_a_strict_owner_takes_back_at_once_and_others_wait() -> None:
    """Its index does not matter. An elastic owner waits, and one whose guarantee is not kept does so for ever."""
    assert {action for action, _ in found(owed(), sharing(), total_s=MINE).values()} == {"reclaim_borrowed"}
    for rule in ("elastic", "none"):
        assert found(owed(), sharing(rule), total_s=MINE) == {}


@pytest.mark.parametrize(("owed_s", "takes"), [(DAY_S - 1.0, False), (DAY_S, True), (DAY_S + 5.0, True)])
def test_an_elastic_owner_takes_back_once_it_was_owed_for_the_stated_time(owed_s: float, takes: bool) -> None:
    """A day without a break; the tick before, it asks to be woken for that."""
    memory = ControllerMemory(plan=PlanMemory(conditions=(Noted(Condition(ConditionKind.OWED, "owner"), 1000.0),)))
    made = found(owed(), sharing("elastic"), now_s=1000.0 + owed_s, memory=memory, total_s=MINE)
    assert {action for action, _ in made.values()} == ({"reclaim_borrowed"} if takes else set())


def test_the_time_owed_is_remembered_and_ends_when_nothing_is_owed() -> None:
    """Since the first tick that saw it, and anew after a break."""
    policy = sharing("elastic")
    total_s = {item.id: LONG for item in owed()} | MINE
    first = decide(world("1x12", owed(), 1000.0, total_s=total_s, queues=TREE), policy)
    assert Noted(Condition(ConditionKind.OWED, "owner"), 1000.0) in first.memory.plan.conditions
    assert first.wake_at_s <= 1000.0 + DAY_S
    later = decide(world("1x12", owed(), 5000.0, total_s=total_s, queues=TREE, tick=1), policy, first.memory)
    assert Noted(Condition(ConditionKind.OWED, "owner"), 1000.0) in later.memory.plan.conditions
    calm = decide(world("1x12", owed()[:3], 6000.0, total_s=total_s, queues=TREE, tick=2), policy, later.memory)
    assert {noted.condition.kind for noted in calm.memory.plan.conditions} <= {
        ConditionKind.UNPROTECTED,
        ConditionKind.FOLLOWED,
    }


def test_while_it_takes_back_its_work_does_not_pause_for_others() -> None:
    """The hold lasts four hours: within it the guarantee is a strict one, after it an elastic one again."""
    work = [holds("mine", 4, queue=OWNER), *GUESTS, waits("new", 4, queue=GUEST)]
    taking = ControllerMemory(
        plan=PlanMemory(conditions=(Noted(Condition(ConditionKind.TAKES_BACK, "owner"), 1000.0),))
    )
    held_s, over_s = 1000.0 + 4 * HOUR_S - 1.0, 1000.0 + 4 * HOUR_S
    total_s = {"guest": 2 * HOUR_S, "more": 2 * HOUR_S, "new": SHORT}
    assert found(work, sharing("elastic"), now_s=held_s, memory=taking, total_s=total_s) == {}
    assert found(work, sharing("elastic"), now_s=over_s, memory=taking, total_s=total_s) == {
        "new": ("preempt", {"mine"})
    }


def test_rules_of_single_queues_hold_for_those_below_too() -> None:
    """`team` is not named: it is kept like `owner` above it."""
    work = [holds("mine", 4, queue=3), *GUESTS, waits("new", 4, queue=GUEST)]
    total_s = {"guest": 2 * HOUR_S, "more": 2 * HOUR_S, "new": SHORT}
    for rule, victims in (("strict", {}), ("elastic", {"new": ("preempt", {"mine"})})):
        kept = [0, 0, GUARANTEES_KEPT.index(rule), 0]
        queues = tenants(("guest", 0, 4), ("owner", 0, 4), ("team", 2, 4), order=QueueOrder.INDEX, guarantee_kept=kept)
        assert found(work, sharing("elastic"), queues=queues, total_s=total_s) == victims


@pytest.mark.parametrize("more", [{"priority": 1}, {"slo_class": 1}, {"preemptible": False}])
def test_priorities_classes_and_protection_hold_across_queues(more: dict[str, Any]) -> None:
    """Work of higher priority or a more urgent class, and work that may not be preempted, does not pause."""
    work = [holds("kept", 4, queue=GUEST), holds("lent", 4, queue=GUEST, **more), holds("own", 4, queue=OWNER)]
    newcomer = waits("short", 4, queue=OWNER)
    assert "lent" not in {
        name for _, names in found([*work, newcomer], sharing(), total_s={"short": SHORT}).values() for name in names
    }


def test_a_queue_in_submission_order_shares_no_time() -> None:
    """It has no index: its work pauses for nobody by it, and it pauses nobody."""
    queues = tenants(("guest", 0, 4), ("owner", 0, 4), order=QueueOrder.SUBMISSION)
    assert (
        found(
            [*lent(), waits("short", 4, queue=OWNER)],
            sharing(),
            queues=queues,
            total_s={"short": SHORT, "own": 2 * HOUR_S},
        )
        == {}
    )


def test_what_comes_free_goes_to_the_higher_index() -> None:
    """Not to the queue that is least served; without sharing it does."""
    work = [holds("own", 4, queue=OWNER), waits("long", 8, queue=GUEST), waits("short", 8, queue=OWNER)]
    total_s = {"own": LONG, "long": LONG, "short": SHORT}
    for policy, first in (
        (sharing("none"), "short"),
        (with_policy(sharing(), tenancy={"time_sharing": False}), "long"),
    ):
        step = decide(world("1x12", work, 1000.0, total_s=total_s, queues=TREE), policy)
        assert [name for name, one in proposals(step, "admit").items() if one.accepted] == [first]


ALONE = Preemption(time_sharing=False)


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (Policy(tenancy=Tenancy(guarantee=GuaranteeRule.ELASTIC), preemption=ALONE), "tenancy.guarantee: elastic"),
        (Policy(tenancy=Tenancy(time_sharing=True), preemption=ALONE), "preemption.time_sharing"),
        (
            Policy(
                tenancy=Tenancy(time_sharing=True),
                rules=RuleSetName.COHORT_FAIR,
                preemption=Preemption(time_sharing=True),
            ),
            "rules to hierarchical-fair-share",
        ),
    ],
)
def test_a_policy_that_could_not_work_is_refused(policy: Policy, says: str) -> None:
    """One message, with the field and what to set."""
    with pytest.raises(InputError, match=says):
        check_policy(policy)


@pytest.mark.parametrize("order", [QueueOrder.INDEX, QueueOrder.SUBMISSION])
def test_no_search_is_left_out_that_could_find_something(order: QueueOrder) -> None:
    """Where all running work shares time, the answer of the search and its steps are known; where some does not, they
    are not.
    """
    tree = tenants(("guest", 0, 4), ("owner", 0, 4), order=QueueOrder.INDEX)
    tree = replace(tree, order=np.where(np.arange(len(tree.id)) == GUEST, order, tree.order).astype(tree.order.dtype))
    work = [*GUESTS, holds("last", 4, queue=GUEST), waits("short", 4, queue=OWNER)]
    observed = world("1x12", work, 1000.0, queues=tree)
    ctx = build_context(observed, sharing("none"), ControllerMemory(), WhatIf(observed.snapshot), frozenset())
    at = int(np.flatnonzero(ctx.pending == observed.snapshot.workloads.id.tolist().index("short"))[0])
    across = ctx.quota.rules.across
    assert across is not None
    searched = find_scenario(ctx, at, reclaim_borrowed._not_sharing(ctx, across))
    spent = ctx.plan.steps
    known = reclaim_borrowed._none_apart(ctx, at)
    assert ((searched, spent) == (known, ctx.plan.steps - spent)) is (order is QueueOrder.INDEX)
    assert isinstance(searched, Scenario) is (order is QueueOrder.SUBMISSION)


@pytest.mark.parametrize(("part_gpu_s", "starts"), [(0.0, False), (3.9e6, False), (4.1e6, True)])
def test_a_queue_that_left_much_of_its_part_unused_is_not_overused(part_gpu_s: float, starts: bool) -> None:
    """The owner has all past use. Its short gang may pause the guest's long one if that is below three quarters of its
    part of the cluster, because the rest of the cluster was idle.
    """
    work = [*GUESTS, holds("own", 4, queue=OWNER), waits("short", 4, queue=OWNER)]
    memory = ControllerMemory(
        use=UseMemory(
            usage_gpu_s={"owner": 3e6},
            held_gpus={"guest": 8.0, "owner": 4.0},
            part_gpu_s={"owner": part_gpu_s},
            usage_at_s=900.0,
        ),
    )
    policy = sharing("none", usage_half_life_s=7 * DAY_S)
    made = found(work, policy, memory=memory, total_s={"short": SHORT, "own": SHORT})
    assert (set(made) == {"short"}) is starts


def test_an_overused_queue_runs_on_within_its_fair_share() -> None:
    """The owner has all past use and eight of twelve GPUs; its fair share is six. One of its two gangs pauses for the
    guest, whose work is as long; the other runs on.
    """
    work = [holds("guest", 4, queue=GUEST), holds("one", 4, queue=OWNER), holds("two", 4, queue=OWNER)]
    work += [waits("first", 4, queue=GUEST), waits("second", 4, queue=GUEST)]
    memory = ControllerMemory(
        use=UseMemory(usage_gpu_s={"owner": 3e6}, held_gpus={"guest": 4.0, "owner": 8.0}, usage_at_s=900.0)
    )
    policy = sharing("none", usage_half_life_s=7 * DAY_S)
    made = found(work, policy, memory=memory)
    assert [len(victims) for _, victims in made.values()] == [1]
    wide = [work[0], holds("one", 6, queue=OWNER), holds("two", 2, queue=OWNER), waits("first", 2, queue=GUEST)]
    assert found(wide, policy, memory=memory) == {"first": ("preempt", {"two"})}  # not of the guarantee of four


OVERUSED = ControllerMemory(
    use=UseMemory(usage_gpu_s={"owner": 3e6}, held_gpus={"guest": 8.0, "owner": 4.0}, usage_at_s=900.0)
)
"""The owner has all past use. Its part is six of twelve GPUs, like that of the guest."""


def test_an_overused_queue_shares_time_while_nobody_waits_for_its_part() -> None:
    """The guest holds eight GPUs. What it has beyond its part pauses for short work of the owner, the rest does not."""
    policy = sharing("none", usage_half_life_s=7 * DAY_S)
    total_s = {"short": SHORT, "brief": SHORT, "own": SHORT, "more": 5 * DAY_S}
    work = [*GUESTS, holds("own", 4, queue=OWNER), waits("short", 4, queue=OWNER)]
    assert found(work, policy, memory=OVERUSED, total_s=total_s) == {}  # the second gang reaches beyond the part
    work = [holds("guest", 6, queue=GUEST), holds("more", 2, queue=GUEST), work[2], waits("short", 2, queue=OWNER)]
    more = {**total_s, "more": LONG, "guest": 5 * DAY_S}
    assert found(work, policy, memory=OVERUSED, total_s=more) == {"short": ("preempt", {"more"})}
    assert found([*work, waits("brief", 4, queue=OWNER)], policy, memory=OVERUSED, total_s=more) == {
        "short": ("preempt", {"more"})
    }


def test_what_waits_for_its_part_comes_before_the_work_of_an_overused_queue() -> None:
    """Four GPUs are idle. A long gang of the guest, which holds four of its six, starts before a short one."""
    policy = sharing("none", usage_half_life_s=7 * DAY_S)
    work = [holds("guest", 4, queue=GUEST), holds("own", 4, queue=OWNER)]
    work += [waits("long", 4, queue=GUEST), waits("short", 4, queue=OWNER)]
    for memory, first in ((OVERUSED, "long"), (ControllerMemory(), "short")):
        step = decide(world("1x12", work, 1000.0, total_s={"short": SHORT}, queues=TREE), policy, memory)
        started = [one.subject.name for one in step.decision.plan.proposals if one.action == "admit_gang"]
        assert started == [first]


def test_the_part_of_a_queue_is_its_guarantee_and_its_weight_in_the_rest() -> None:
    """Twelve GPUs, four guaranteed to each of two queues: six each, though only one asks. Nothing without sharing."""
    now = world("1x12", [holds("guest", 4, queue=GUEST)], 1000.0, total_s={"guest": LONG}, queues=TREE)
    policy = sharing("none", usage_half_life_s=7 * DAY_S)
    assert decide(now, policy).memory.use.part_gpus == {"guest": 6.0, "owner": 6.0}
    apart = with_policy(sharing(), tenancy={"time_sharing": False})
    assert decide(now, apart).memory.use.part_gpus == {}
