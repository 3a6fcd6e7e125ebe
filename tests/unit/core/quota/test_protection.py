"""Protection: what counts against a guarantee, in which order, what of it is lent, and who may take it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autopilot.core.model.codes import ConditionKind
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.memory.plan import Condition, Noted, PlanMemory
from autopilot.core.model.policy import RuleSetName
from autopilot.core.model.records import Code, NoteCode
from autopilot.core.model.snapshot import Displace, QueueTable, ServiceTable, make
from autopilot.core.placement.whatif import WhatIf
from autopilot.core.planning.quota_state import Quota, build_quota
from autopilot.core.quota.ledger import ALL
from autopilot.records.memory import memory_text, read_memory_text
from tests.kits.core_world import Item, decide, evicted, holds, observe, snapshot, waits, why_waits, world
from tests.kits.ticking_world import ALL_AUTO, tenants

FIRM: dict[str, dict[str, Any]] = {
    "not-preemptible": {"preemptible": False},
    "opted-out": {"excluded": True},
    "class": {"slo_class": 0},
}
OWNED = tenants(("owner", 0, 8), ("guest", 0, 0))
SHARED = tenants(("owner", 0, 8), ("guest", 0, 8))


SEEN = ControllerMemory(
    plan=PlanMemory(
        conditions=tuple(Noted(Condition(ConditionKind.UNPROTECTED, name, 0), 0.0) for name in ("g0", "g1", "r"))
    )
)
"""This work was seen unprotected before."""


def quota_of(work: list[Item], queues: QueueTable, shape: str = "2x8", **more: Any) -> Quota:
    """Books of a small world, in which all work was seen unprotected before."""
    snap = snapshot(shape, work, queues=queues, **more)
    seen = {Condition(ConditionKind.UNPROTECTED, item.id, 0): 0.0 for item in work}
    return build_quota(snap, ALL_AUTO, WhatIf(snap), np.zeros(len(snap.workloads.id)), noted=seen, now_s=9.0)


def lent(work: list[Item], queues: QueueTable, shape: str = "2x8", **more: Any) -> set[str]:
    """Names of the lent work."""
    return {work[row].id for row in quota_of(work, queues, shape, **more).lent}


def guests(width: int, first: dict[str, Any], second: dict[str, Any]) -> list[Item]:
    """Two gangs of the guest; both could save, and wait for nobody."""
    saves: dict[str, Any] = {"checkpoint_interval_s": 60.0, "checkpoint_write_s": 10.0, "queue": 2}
    return [holds("g0", width, **saves, **first), holds("g1", width, **saves, **second)]


def in_turn(first: list[Item], then: list[Item], queues: QueueTable, memory: ControllerMemory | None = None) -> Step:
    """A tick that sees `first`, and ten seconds later one that sees `then`."""
    before = decide(world("2x8", first, 5000.0, queues=queues), ALL_AUTO, memory)
    return decide(world("2x8", then, 5010.0, queues=queues, tick=1), ALL_AUTO, before.memory)


@pytest.mark.parametrize("columns", FIRM.values(), ids=FIRM)
def test_whatever_protects_work_counts_against_the_guarantee(columns: dict[str, Any]) -> None:
    """Inside it the work counts as sheltered; what does not fit is lent, and counts as no more than borrowed."""
    inside = quota_of([holds("p", 4, queue=2, **columns)], SHARED)
    assert (inside.lent, inside.ledger.sheltered[ALL]) == (frozenset(), [4.0, 0.0, 4.0])
    above = quota_of([holds("p", 4, queue=2, **columns)], OWNED)
    assert (above.lent, above.ledger.sheltered[ALL]) == (frozenset({0}), [0.0, 0.0, 0.0])
    assert [claim.row for claim in above.running(owed=True) if claim.preemptible] == [0]
    assert not [claim.row for claim in above.running() if claim.preemptible]


def test_what_started_first_has_the_guarantee() -> None:
    """Gangs of three under a guarantee of eight: two fit, by their start; a narrow one still fits after them."""
    work = [
        holds("new", 3, queue=2, preemptible=False, start_s=300.0),
        holds("old", 3, queue=2, excluded=True, start_s=100.0),
        holds("mid", 3, queue=2, slo_class=0, start_s=200.0),
        holds("narrow", 2, queue=2, preemptible=False, start_s=400.0),
    ]
    assert lent(work, SHARED) == {"new"}


def test_every_level_and_every_model_counts() -> None:
    """A team lends what exceeds its own guarantee. A cohort that states no quota of its own has that of its queues. A
    guarantee of one model covers no other.
    """
    nested = tenants(("org", 0, 8), ("team", 1, 4), ("other", 1, 8))
    both = [holds("p", 4, queue=2, preemptible=False), holds("q", 4, queue=3, slo_class=0)]
    assert lent(both, nested) == set()
    assert lent([*both, holds("r", 2, queue=2, excluded=True)], nested) == {"r"}
    cohort = tenants(("cohort", 0, 0), ("owner", 1, 8), ("guest", 1, 4))
    assert lent([holds("p", 4, queue=3, preemptible=False)], cohort) == set()
    work = [holds("p", 4, queue=2, preemptible=False)]
    assert lent(work, SHARED, nodes={"gpu_model": [0, 1]}) == set()
    assert lent([holds("p", 4, on=range(8, 12), queue=2, preemptible=False)], SHARED, nodes={"gpu_model": [0, 1]}) == {
        "p"
    }


def test_without_any_guarantee_all_protection_holds() -> None:
    """Nothing is owed to anybody; nor is work of no queue lent, or work without a uid, which no effect could name."""
    none = tenants(("owner", 0, 0), ("guest", 0, 0))
    assert lent([holds("p", 4, queue=2, preemptible=False)], none) == set()
    assert lent([holds("p", 4, queue=0, preemptible=False)], OWNED) == set()
    assert lent([holds("p", 4, queue=2, preemptible=False, uid="")], OWNED) == set()


@pytest.mark.parametrize("columns", FIRM.values(), ids=FIRM)
def test_the_owner_takes_back_what_is_lent(columns: dict[str, Any]) -> None:
    """By contract; other borrowed work of the queue goes first."""
    waiting = waits("w", 8, queue=1)
    both = [*guests(8, columns, columns), waiting]
    assert len(evicted(decide(world("2x8", both, 5000.0, queues=OWNED), ALL_AUTO, SEEN))) == 1
    one = [*guests(8, columns, {}), waiting]
    assert evicted(decide(world("2x8", one, 5000.0, queues=OWNED), ALL_AUTO, SEEN)) == ["g1"]


@pytest.mark.parametrize("columns", FIRM.values(), ids=FIRM)
@pytest.mark.parametrize("rules", [RuleSetName.COHORT_CLASSIC, RuleSetName.COHORT_FAIR])
def test_the_owner_takes_back_what_is_lent_beside_kueue(columns: dict[str, Any], rules: RuleSetName) -> None:
    """In a cohort, up to what the other queue has of its own."""
    tree = tenants(("cohort", 0, 0), ("owner", 1, 8), ("guest", 1, 8))
    tree = replace(tree, reclaim=np.full(len(tree.id), Displace.ANY, np.int8))
    policy, waiting = replace(ALL_AUTO, rules=rules), waits("w", 8, queue=2)
    both = [replace(each, columns={**each.columns, "queue": 3}) for each in guests(8, columns, columns)]
    (gone,) = evicted(decide(world("2x8", [*both, waiting], 5000.0, queues=tree), policy, SEEN))
    assert gone in {"g0", "g1"}
    assert evicted(decide(world("2x8", [both[0], waits("x", 16, queue=2)], 5000.0, queues=tree), policy, SEEN)) == []


@pytest.mark.parametrize("columns", FIRM.values(), ids=FIRM)
def test_a_weighed_preemption_never_takes_what_is_lent(columns: dict[str, Any]) -> None:
    """Its owner is the only one to take it: a gang beyond the guarantee of the owner waits."""
    observation = world("2x8", [*guests(8, columns, columns), waits("w", 16, queue=1)], 5000.0, queues=OWNED)
    assert evicted(decide(observation, ALL_AUTO, SEEN)) == []


def test_a_late_declaration_takes_no_protection_from_other_work() -> None:
    """`g1` was protected from its start, `g0` is declared so later: `g1` stays though it started later."""
    before = guests(8, {}, {"preemptible": False, "start_s": 50.0})
    after = [*guests(8, {"preemptible": False}, {"preemptible": False, "start_s": 50.0}), waits("w", 8, queue=1)]
    assert evicted(in_turn(before, after, SHARED)) == ["g0"]


def test_the_earliest_of_late_declarations_is_kept() -> None:
    """`g1` was declared protected a tick before `g0`."""
    first = in_turn(guests(8, {}, {}), guests(8, {}, FIRM["class"]), SHARED)
    owed = [*guests(8, FIRM["opted-out"], FIRM["class"]), waits("w", 8, queue=1)]
    assert evicted(decide(world("2x8", owed, 5020.0, queues=SHARED, tick=2), ALL_AUTO, first.memory)) == ["g0"]


def test_late_work_yields_where_only_its_place_helps() -> None:
    """The guest protects one gang of four on each node. What started so stays; what was declared so later makes room,
    but not while the guest holds no more than its guarantee.
    """
    firm = {"preemptible": False, "queue": 2}
    soft = [holds(f"g{each}", 4, on=range(4 * each, 4 * each + 4), queue=2) for each in range(4)]
    mixed = [replace(item, columns={**item.columns, **firm}) if item.id in {"g0", "g2"} else item for item in soft]
    waiting = waits("w", 8, queue=1)
    assert len(evicted(in_turn(soft, [*mixed, waiting], SHARED))) == 2
    assert evicted(in_turn(mixed, [*mixed, waiting], SHARED)) == []
    alone = [mixed[0], mixed[2]]
    assert evicted(in_turn([soft[0], soft[2]], [*alone, waiting], SHARED)) == []


def test_the_next_start_is_protected_from_the_start() -> None:
    """Late is an incarnation, not a job: what was seen before its stop does not count."""
    before = guests(8, {}, {})
    after = [*guests(8, FIRM["class"] | {"incarnation": 1, "start_s": 5005.0}, {}), waits("w", 8, queue=1)]
    step = in_turn(before, after, SHARED)
    assert evicted(step) == ["g1"]
    assert not [noted for noted in step.memory.plan.conditions if noted.condition.kind == "late"]


def lent_notes(step: Step) -> list[tuple[str, object]]:
    """Work whose protection holds until the owner returns, by the notes: name and incarnation."""
    found = [note for note in step.decision.notes if note.code == NoteCode.PROTECTION_LENT]
    return [(note.subject, fact.value) for note in found for fact in note.facts if fact.name == "incarnation"]


@pytest.mark.parametrize("columns", FIRM.values(), ids=FIRM)
def test_a_late_declaration_on_borrowed_gpus_is_said_once(columns: dict[str, Any]) -> None:
    """At the tick that sees it, also where it is taken back and made again; anew for the next incarnation."""
    bare, firm = guests(8, {}, {}), guests(8, columns, {})
    step = in_turn(bare, firm, OWNED)
    assert lent_notes(step) == [("g0", 0)]
    for number, work in enumerate((firm, bare, firm), 2):
        memory = read_memory_text(memory_text(step.memory), "memory")
        step = decide(world("2x8", work, 5000.0 + 10 * number, queues=OWNED, tick=number), ALL_AUTO, memory)
        assert lent_notes(step) == []
    again = guests(8, {**columns, "incarnation": 1, "excluded": True}, {})
    assert lent_notes(decide(world("2x8", again, 5100.0, queues=OWNED, tick=5), ALL_AUTO, step.memory)) == [("g0", 1)]
    gone = decide(world("2x8", firm[1:], 5110.0, queues=OWNED, tick=6), ALL_AUTO, step.memory)
    assert not [noted for noted in gone.memory.plan.conditions if noted.condition.kind == "lent"]


def test_a_late_declaration_inside_the_guarantee_counts_and_nothing_is_said() -> None:
    """Of two gangs the second one is above it."""
    assert lent_notes(in_turn(guests(8, {}, {}), guests(8, FIRM["class"], {}), SHARED)) == []
    both = guests(8, FIRM["class"], FIRM["class"] | {"start_s": 50.0})
    assert lent_notes(in_turn(guests(8, {}, {}), both, SHARED)) == [("g1", 0)]


@pytest.mark.parametrize("columns", [FIRM["class"], FIRM["not-preemptible"]], ids=["class", "not-preemptible"])
def test_what_started_protected_stays_though_its_guarantee_was_lowered(columns: dict[str, Any]) -> None:
    """Its protection was fixed at its start, whatever its queue is guaranteed now."""
    owed = [*guests(8, columns, columns), waits("w", 8, queue=1)]
    assert evicted(decide(world("2x8", owed, 5010.0, queues=OWNED), ALL_AUTO)) == []


@pytest.mark.parametrize("columns", FIRM.values(), ids=FIRM)
def test_what_others_start_above_the_guarantee_is_lent(columns: dict[str, Any]) -> None:
    """From the tick that first sees it run, also with memory that was read again, and until its next start."""
    first = in_turn([], guests(8, columns, columns), OWNED)
    assert lent_notes(first) == [("g0", 0), ("g1", 0)]
    memory = read_memory_text(memory_text(first.memory), "memory")
    owed = [*guests(8, columns, columns), waits("w", 8, queue=1)]
    assert len(evicted(decide(world("2x8", owed, 5020.0, queues=OWNED, tick=2), ALL_AUTO, memory))) == 1


def test_of_what_others_start_the_first_has_the_guarantee() -> None:
    """By its start, after work that was firm before, and it stays when the guarantee is lowered later."""
    old = holds("old", 2, queue=2, preemptible=False, start_s=900.0)
    work = [
        old,
        holds("second", 4, queue=2, slo_class=0, start_s=300.0),
        holds("first", 4, queue=2, preemptible=False, start_s=200.0),
    ]
    step = in_turn([old], work, SHARED)
    assert lent_notes(step) == [("second", 0)]
    kinds = {noted.condition.uid: noted.condition.kind for noted in step.memory.plan.conditions}
    assert [kinds["old"], kinds["first"], kinds["second"]] == ["firm", "firm", "lent"]
    lowered = decide(world("2x8", work, 5020.0, queues=OWNED, tick=2), ALL_AUTO, step.memory)
    assert lent_notes(lowered) == []


def test_what_ran_before_any_start_was_seen_keeps_its_gpus() -> None:
    """A new installation, or lost memory: a note names the queue, once."""
    owed = [*guests(8, FIRM["class"], FIRM["not-preemptible"]), waits("w", 8, queue=1)]
    first = decide(world("2x8", owed, 5000.0, queues=OWNED), ALL_AUTO)
    notes = [(note.code, note.subject, note.facts[0].value) for note in first.decision.notes]
    assert notes == [(NoteCode.PROTECTION_KEPT, "guest", 16.0)]
    again = decide(world("2x8", owed, 5010.0, queues=OWNED, tick=1), ALL_AUTO, first.memory)
    assert (evicted(first), evicted(again), again.decision.notes) == ([], [], ())


def test_what_we_let_start_inside_the_guarantee_is_firm() -> None:
    """Also where somebody else started protected work meanwhile, which is seen first."""
    waiting = [waits("ours", 8, queue=2, preemptible=False)]
    step = decide(world("2x8", waiting, 5000.0, queues=SHARED), ALL_AUTO)
    assert [each.subject.name for each in step.instructions] == ["ours"]
    beside = holds("theirs", 8, on=range(8, 16), queue=2, preemptible=False)
    step = decide(world("2x8", [*waiting, beside], 5005.0, queues=SHARED, tick=1), ALL_AUTO, step.memory)
    both = [holds("ours", 8, on=range(8), queue=2, preemptible=False), beside, waits("w", 8, queue=1)]
    assert evicted(decide(world("2x8", both, 5010.0, queues=SHARED, tick=2), ALL_AUTO, step.memory)) == []


def test_what_opted_out_before_its_start_is_lent_too() -> None:
    """Nobody here started it: above the guarantee it holds until the owner returns."""
    owed = [*guests(8, FIRM["opted-out"], FIRM["opted-out"]), waits("w", 8, queue=1)]
    assert len(evicted(decide(world("2x8", owed, 5010.0, queues=OWNED), ALL_AUTO))) == 1


def test_a_protected_class_does_not_start_on_borrowed_gpus() -> None:
    """Also where it says that it may be preempted: it waits for a guarantee, like work that may not be."""
    work = [waits("p", 4, queue=2, slo_class=0), waits("s", 4, queue=2)]
    observation = world("2x8", work, 5000.0, queues=OWNED)
    step = decide(observation, ALL_AUTO)
    assert why_waits(step, observation, "p") == (Code.GUARANTEE, 0.0, 4.0)
    assert [each.subject.name for each in step.instructions if each.kind == "admit"] == ["s"]


@pytest.mark.parametrize(("queues", "gone"), [(OWNED, 1), (SHARED, 0)], ids=["above", "inside"])
def test_an_objective_that_is_missed_keeps_replicas_inside_the_guarantee_only(queues: QueueTable, gone: int) -> None:
    """Its owner states the objective, so above the guarantee it protects nothing from the owner of the GPUs."""
    services = make(ServiceTable, id=["chat"], uid=["chat"], objective_s=[0.001], p99_s=[9.0], age_s=[5.0])
    work = [holds("r", 8, queue=2, slo_class=0, preemptible=False, service=0), waits("w", 8, queue=1)]
    snap = replace(snapshot("1x8", work, queues=queues), services=services)
    assert len(evicted(decide(observe(snap, 5000.0), ALL_AUTO, SEEN))) == gone
