"""Invariants at every tick: quota ledgers balance, no gang starts on held GPUs, nothing is forgotten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from autopilot.core.model.memory import Step
from autopilot.core.model.policy import Policy, RuleSetName
from autopilot.core.model.snapshot import Gate, QueueTable, State, Topology
from tests.kits.core_world import Item, holds, waits, with_policy
from tests.kits.ticking_world import EAGER, Ticking, tenants

PER_NODE = 4
CRASHES = ("", "", "", "before it saved", "after it saved", "after it acted")
PATIENT = {"dwell_s": 60.0, "margin_ratio": 0.2, "cool_down_s": 300.0}


@dataclass(frozen=True)
class Happening:
    """After one tick: evicted work that leaves, work that ends and arrives, a node that fails, and the time."""

    pass_s: float
    leave: int  # bit set over those who leave
    finish: int  # bit set over those who run; most runs none
    arrives: Item | None
    cancel: int  # which of those who wait is taken away; -1: none
    fails: int  # node; -1: none
    crash: str


@dataclass(frozen=True)
class Story:
    """A cluster with its queues and work, and what happens to it."""

    nodes: int
    queues: QueueTable
    work: tuple[Item, ...]
    policy: Policy
    slow: bool
    happenings: tuple[Happening, ...]
    models: tuple[int, ...]

    def play(self) -> Ticking:
        """The cluster before the first tick."""
        return Ticking(
            f"{self.nodes}x{PER_NODE}",
            self.work,
            self.policy,
            queues=self.queues,
            slow=self.slow,
            nodes={"gpu_model": list(self.models)},
        )


@st.composite
def trees(draw: st.DrawFn, gpus: int) -> tuple[QueueTable, int]:
    """One or two organisations and up to four teams; the first row of a team."""
    organisations = draw(st.integers(1, 2))
    rows = [(f"o{n}", 0, draw(st.integers(0, gpus)) // organisations) for n in range(organisations)]
    teams = draw(st.lists(st.integers(0, organisations), min_size=2, max_size=4))
    rows += [(f"t{n}", parent, draw(st.integers(0, gpus // len(teams) + 1))) for n, parent in enumerate(teams)]
    limit = {name: draw(st.integers(2, gpus)) for name, _, _ in rows if draw(st.integers(0, 3)) == 0}
    weight = {name: draw(st.sampled_from([0.0, 0.5, 1.0, 2.0])) for name, _, _ in rows}
    priority = {name: draw(st.integers(0, 1)) for name, _, _ in rows}
    tree = tenants(*rows, limit=limit, weight=weight, priority=priority, order=draw(st.integers(0, 1)))
    strict = np.array([draw(st.integers(0, 5)) == 0 for _ in range(len(rows) + 1)])
    return replace(tree, strict=strict), organisations + 1


@st.composite
def gangs(draw: st.DrawFn, name: str, teams: range, *, runs: bool) -> Item:
    """One gang: whole GPUs or shares, elastic or not, now and then broken, shut, opted out or bound to a topology."""
    width = draw(st.sampled_from([1, 1, 2, 3, 4, 6, 8]))
    columns: dict[str, Any] = {
        "queue": draw(st.sampled_from(list(teams))),
        "priority": draw(st.integers(0, 2)),
        "preemptible": draw(st.integers(0, 4)) > 0,
        "submit_s": float(draw(st.integers(0, 50))),
        "gpus_per_member": min(draw(st.sampled_from([1, 1, 2, 4])), width),
        "preemption_delay_s": draw(st.sampled_from([0.0, 0.0, 0.0, 100.0, 400.0])),
        "gate": draw(st.sampled_from([Gate.OPEN] * 15 + [Gate.REJECTED])),
        "excluded": draw(st.integers(0, 15)) == 0,
        "topology": draw(st.sampled_from([Topology.NONE] * 8 + [Topology.ISLAND, Topology.SPREAD])),
        "last_checkpoint_s": draw(st.sampled_from([np.nan, 20.0])),
    }
    if width <= 2 and draw(st.booleans()):
        columns.update(gpu_milli=draw(st.sampled_from([300, 500, 600])), gpus_per_member=1)
    elif draw(st.booleans()):
        columns["min_gpus"] = max(width // 2, 1)
    if runs and draw(st.integers(0, 15)) == 0:
        columns["stale_since_s"] = float(draw(st.integers(0, 100)))
    return holds(name, width, **columns) if runs else waits(name, width, **columns)


@st.composite
def happenings(draw: st.DrawFn, number: int, nodes: int, teams: range) -> Happening:
    """Mostly time and leaving; now and then something worse."""
    arrives = draw(gangs(f"n{number}", teams, runs=False)) if draw(st.integers(0, 2)) == 0 else None
    return Happening(
        pass_s=draw(st.sampled_from([0.0, 1.0, 30.0, 60.0, 200.0])),
        leave=draw(st.integers(0, 255)),
        finish=draw(st.sampled_from([0, 0, 0, 1, 2, 4])),
        arrives=arrives,
        cancel=draw(st.sampled_from([-1] * 9 + [0, 1])),
        fails=draw(st.sampled_from([-1] * 15 + [nodes - 1])),
        crash=draw(st.sampled_from(CRASHES)),
    )


@st.composite
def stories(draw: st.DrawFn, rules: RuleSetName = RuleSetName.HIERARCHICAL_FAIR_SHARE) -> Story:
    """A crowded small cluster."""
    nodes = draw(st.integers(1, 3))
    queues, first = draw(trees(nodes * PER_NODE))
    teams = range(first, len(queues.id))
    free = draw(st.permutations(range(nodes * PER_NODE)))
    work: list[Item] = []
    for number in range(draw(st.integers(1, 6))):
        item = draw(gangs(f"r{number}", teams, runs=True))
        width = item.columns["gpus"]
        if width <= len(free):
            work.append(Item(item.id, item.columns, tuple(sorted(free[:width]))))
            free = free[width:]
    work += [draw(gangs(f"w{number}", teams, runs=False)) for number in range(draw(st.integers(1, 4)))]
    policy = with_policy(
        replace(EAGER, rules=rules),
        preemption={
            "move_victims": draw(st.integers(0, 3)) > 0,
            "pipelined_timeout_s": draw(st.sampled_from([120.0, 600.0])),
        },
    )
    if draw(st.booleans()):
        policy = with_policy(policy, hysteresis=PATIENT)
    if draw(st.integers(0, 2)) == 0:
        policy = with_policy(
            policy, reservation={"depth": 2, "whole_nodes_only": False, "firm_after_s": 0.0, "max_spread_ratio": 1e6}
        )
    events = [draw(happenings(number, nodes, teams)) for number in range(draw(st.integers(2, 8)))]
    models = [draw(st.integers(0, 1)) if draw(st.integers(0, 3)) == 0 else 0 for _ in range(nodes)]
    return Story(nodes, queues, tuple(work), policy, draw(st.integers(0, 3)) > 0, tuple(events), tuple(models))


def go_through(story: Story, look: Callable[[Ticking, Step], None] | None = None) -> tuple[Ticking, float]:
    """Play a story; `look(play, step)` after every tick. The cluster at its end, and the time."""
    play, now_s = story.play(), 60.0
    for each in story.happenings:
        before = play.memory
        step = play.tick(now_s, lost=each.crash in {"before it saved", "after it saved"})
        if look is not None:
            look(play, step)
        if each.crash == "before it saved":
            play.memory = before
            play.sent -= {order.id for order in step.instructions}
        if each.crash:
            play.outcomes = ()  # the new process knows of none
        happen(play, each, now_s)
        now_s += each.pass_s
    return play, now_s


def happen(play: Ticking, each: Happening, now_s: float) -> None:
    """What happens between two ticks."""
    play.leave(*[name for at, name in enumerate(play.leaving()) if each.leave >> at & 1])
    play.finish(*[name for at, name in enumerate(play.running()) if each.finish >> at & 1])
    waiting = sorted(name for name, gang in play.gangs.items() if gang.state == State.PENDING)
    if 0 <= each.cancel < len(waiting):
        play.cancel(waiting[each.cancel])
    if each.fails >= 0 and play.nodes > 1:
        play.lose_node(each.fails)
    if each.arrives is not None:
        play.submit(Item(each.arrives.id, {**each.arrives.columns, "submit_s": now_s}))


@settings(max_examples=12)
@given(story=stories())
def test_quota_books_balance_after_every_event(story: Story) -> None:
    """Use by queue, level and GPU model is the sum of placements once all that was decided is done; so is what is
    sheltered.
    """
    assert go_through(story, lambda play, _: play.check_books())


@settings(max_examples=12)
@given(story=stories(RuleSetName.ELASTIC_QUOTA))
def test_books_of_elastic_quotas_balance(story: Story) -> None:
    """The same under a rule set that displaces while it admits."""
    assert go_through(story, lambda play, _: play.check_books())


@settings(max_examples=12)
@given(story=stories(RuleSetName.COHORT_FAIR))
def test_nobody_is_put_on_held_gpus_under_cohort_rules(story: Story) -> None:
    """The cluster refuses nothing that it is told, with quota kept for waiting heads too."""
    play, _ = go_through(story)
    assert play.texts


@settings(max_examples=12)
@given(story=stories())
def test_limits_guarantees_and_gangs_hold_at_every_tick(story: Story) -> None:
    """No decision takes a queue above its limit, sheltered work above a guarantee, or a gang below its minimum; no
    victim is protected or opted out, unless its protection does not hold against an owner, and no gang is a victim
    twice in one tick.
    """
    played = story.play()
    last: dict[str, Any] = {"use": played.ledger, "seen": 0}

    def look(play: Ticking, step: Step) -> None:
        ledger, before = play.ledger, last["use"]
        assert ledger is not None
        for queue in range(1, len(ledger.parent)):
            had = (before.use[0][queue], before.sheltered[0][queue]) if before is not None else (np.inf, np.inf)
            assert ledger.use[0][queue] <= max(ledger.limit[0][queue], had[0]) + 1e-9
            if ledger.guarantee_binds:
                assert ledger.sheltered[0][queue] <= max(ledger.guarantee[0][queue], had[1]) + 1e-9
        victims = [
            victim for proposal in step.decision.plan.proposals if proposal.accepted for victim in proposal.victims
        ]
        assert len({victim.workload for victim in victims}) == len(victims)
        for proposal in step.decision.plan.proposals:
            for victim in proposal.victims if proposal.accepted else ():
                columns = play.gangs[victim.workload].columns
                if not (victim.contract and victim.workload in play.yielding):
                    assert proposal.action == "recover" or columns["preemptible"]
                    assert not columns["excluded"]
                if victim.how == "shrink":
                    assert len(victim.keeps) >= columns["min_gpus"]
        last["use"] = ledger

    assert go_through(story, look)


@settings(max_examples=12)
@given(story=stories())
def test_everything_under_way_comes_to_an_end_and_then_nothing_moves(story: Story) -> None:
    """When all victims leave at once and only time passes, no pipelined start is left over, and preemption ends: A does
    not take from B what B takes back from A, even with all dwell times at zero.
    """
    story = replace(story, policy=with_policy(story.policy, tenancy={"usage_half_life_s": 0.0}))
    play, now_s = go_through(story)
    for _ in range(16):
        play.leave_all()
        now_s += 900.0
        play.tick(now_s)
    settled = len(play.told)
    for _ in range(4):
        play.leave_all()
        now_s += 900.0
        play.tick(now_s)
    assert play.told[settled:] == []
    assert play.memory.starts.pipelined_starts == ()
    assert play.memory.effects.in_flight == {}
    assert play.leaving() == []
