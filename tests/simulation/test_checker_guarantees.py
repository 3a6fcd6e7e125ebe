"""When the checker of guarantees counts time, and when it does not: computed from facts, independent of the policy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from autopilot.core.model.policy import Mode, Modes, Policy, RuleSetName
from autopilot.core.model.snapshot import SloClass
from autopilot.settings import shipped_policy
from simulator.checkers import CHECKERS, Rules, World
from simulator.specs.clusterqueues import QueueSpec
from simulator.world.facts import HOOKS, Evicting, Fact, GpuChanged, NodeChanged, Resumed, Submitted, Why
from simulator.world.work import Jobs
from tests.kits.cluster_kit import gang, inventory
from tests.kits.policies import elastic
from tests.simulation.fact_builders import evicting, resized, started, stopped

OWNER, GUEST, RICH, CALM = "owner", "guest", "rich", "calm"
MODEL = "A100-80GB"
WIDE, NARROW, GUEST_WIDE, GUEST_PARTS, SHELTERED, RICH_WIDE, RICH_NEXT = 0, 1, 2, 4, 8, 9, 10


def queue(name: str, gpus: int = 0, parent: str = "root", limit: int | None = None) -> QueueSpec:
    """One queue."""
    return QueueSpec(name, parent, {MODEL: gpus} if gpus else {}, limit, 1.0, 0, None)


def found(
    facts: list[Fact],
    queues: tuple[QueueSpec, ...] = (queue(OWNER, 8), queue(RICH, 8), queue(CALM, 4)),
    end_s: float = 500.0,
    within_s: float | None = 130.0,
    later_s: Mapping[str, float] | None = None,
) -> list[str]:
    """What the checker says of these facts on two nodes of eight, with a bound of 130 s."""
    jobs = Jobs()
    for width in (8, 4):
        jobs.add(f"{OWNER}-{width}", OWNER, gang(width), 0.0)
    for width in (8, 8, 4, 4, 4, 4):
        jobs.add(f"{GUEST}-{len(jobs)}", GUEST, gang(width), 0.0)
    jobs.add("sheltered", CALM, gang(4), 0.0, slo_class=SloClass.LATENCY_CRITICAL)
    for name in (RICH, "rich-next"):
        jobs.add(name, RICH, gang(8), 0.0)
    rules = Rules(guarantee_within_s=within_s, guarantee_later_s=later_s or {}, grace_s=120.0, queues=queues)
    checker = CHECKERS["guarantees"](World(inventory(2, 8), jobs, rules))
    for fact in facts:
        hook = getattr(checker, HOOKS[type(fact)], None)
        if hook is not None:
            hook(fact)
    checker.at_end(end_s)
    return [f"{violation.at_s:g} {violation.object}: {violation.message}" for violation in checker.violations]


def test_parked_work_is_owed_again_once_its_owner_resumes_it() -> None:
    """Until then it does not wait, whoever holds the GPUs of its guarantee."""
    parked = [*runs(NARROW, range(4)), *runs(GUEST_WIDE, range(8, 16)), stopped(NARROW, Why.PARK, 50.0)]
    guest = started(GUEST_PARTS, range(4), 60.0)
    assert found([*parked, Submitted(55.0, GUEST_PARTS), guest]) == []
    late = found([*parked, Submitted(55.0, GUEST_PARTS), guest, Resumed(70.0, NARROW)])
    assert [words.split(":")[0] for words in late] == ["200 tenant owner"]


def come(job: int, at_s: float = 20.0) -> Fact:
    """A job is submitted."""
    return Submitted(at_s, job)


def runs(job: int, gpus: range, at_s: float = 10.0, effect: str = "e") -> tuple[Fact, Fact]:
    """A job is submitted and starts at once. Without an effect somebody else starts it."""
    return Submitted(at_s, job), started(job, gpus, at_s, effect=effect)


FULL: list[Fact] = [*runs(GUEST_WIDE, range(8)), *runs(GUEST_WIDE + 1, range(8, 16))]
"""Two gangs of a tenant without a guarantee hold all."""
LATE = ["150 tenant owner: waits for 8 GPUs of its guarantee of 8 for more than 130 s"]


def test_an_owner_that_waits_beside_borrowers_is_owed() -> None:
    """From its submit at 20 s on; with everything it needs idle all the more."""
    assert found([*FULL, come(WIDE)]) == LATE
    assert found([come(WIDE)]) == LATE


def test_room_lost_to_later_starts_is_no_excuse() -> None:
    """Nothing is taken back, and the idle node is filled with work that may not be preempted."""
    assert found([*FULL[:2], come(WIDE), come(SHELTERED), started(SHELTERED, range(8, 12), 20.5)]) == LATE


@pytest.mark.parametrize(
    "facts",
    [
        [
            *FULL,
            come(WIDE),
            evicting(GUEST_WIDE, 20.0),
            stopped(GUEST_WIDE, at_s=140.0),
            started(WIDE, range(8), 145.0),
        ],
        [*FULL[:2], *runs(RICH_WIDE, range(8, 16)), *runs(SHELTERED, range(4)), come(WIDE)],
        [*runs(SHELTERED, range(4)), *runs(GUEST_PARTS, range(8, 12)), *runs(RICH_WIDE, range(8, 16)), come(WIDE)],
        [come(WIDE), come(NARROW), started(NARROW, range(4), 30.0)],
        [
            *runs(SHELTERED, range(4)),
            *runs(RICH_WIDE, range(8, 16)),
            come(WIDE),
            come(RICH_NEXT),
            evicting(RICH_WIDE, 22.0),
            stopped(RICH_WIDE, at_s=24.0),
            started(RICH_NEXT, range(8, 16), 24.0),
        ],
    ],
    ids=["in-time", "others-within-their-own", "no-whole-node", "its-own-choice", "others-take-turns"],
)
def test_what_is_not_owed_is_not_claimed(facts: list[Fact]) -> None:
    """Given in time; held by owners and sheltered work; not to be had on one node; its own other job came first; two of
    an owner take turns on what is theirs.
    """
    assert found(facts) == []


def test_work_that_started_protected_makes_no_room() -> None:
    """Its queue has no guarantee; the same work without protection would yield, or if somebody else had started it."""
    queues = (queue(OWNER, 8), queue(RICH, 8))
    beside = [*runs(RICH_WIDE, range(8, 16)), come(WIDE)]
    assert found([*runs(SHELTERED, range(4)), *beside], queues) == []
    assert found([*runs(GUEST_PARTS, range(4)), *beside], queues) == LATE
    assert found([*runs(SHELTERED, range(4), effect=""), *beside], queues) == LATE


ONE_PLACE: list[Fact] = [
    *runs(SHELTERED, range(4)),
    *runs(GUEST_WIDE, range(8, 16)),
    come(WIDE),
    come(RICH_WIDE),
    evicting(GUEST_WIDE, 30.0),
    stopped(GUEST_WIDE, at_s=60.0),
]
"""Two owners wait, each for a node, and one node alone can be had."""


def test_which_of_two_owners_goes_first_is_not_judged() -> None:
    """One of them has the node; that is no debt to the other, who had none to itself."""
    assert found([*ONE_PLACE, started(RICH_WIDE, range(8, 16), 60.0)]) == []
    assert found([*ONE_PLACE, started(WIDE, range(8, 16), 60.0)]) == []
    assert found([*ONE_PLACE, *runs(GUEST_WIDE + 1, range(8, 16), 60.0)]) == LATE


def test_an_owner_for_whom_there_is_another_place_is_owed_still() -> None:
    """Both nodes can be had: that one owner has its own excuses nothing."""
    evictions: list[Fact] = [evicting(GUEST_WIDE + 1, 30.0), stopped(GUEST_WIDE + 1, at_s=60.0)]
    assert found([*FULL, come(WIDE), come(RICH_WIDE), *evictions, started(RICH_WIDE, range(8, 16), 60.0)]) == LATE


def test_two_narrow_claims_are_two() -> None:
    """One of two jobs that both fit the guarantee got its part: the rest is owed still."""
    facts = [*FULL, come(NARROW), come(WIDE)]
    half = (queue(OWNER, 12),)
    assert found([*facts, stopped(GUEST_WIDE, at_s=30.0), started(WIDE, range(8), 30.0)], half) == [
        "150 tenant owner: waits for 4 GPUs of its guarantee of 12 for more than 130 s"
    ]


def test_hardware_that_changes_begins_the_time_anew() -> None:
    """A node that went and came back, a GPU that broke: the bound counts from there."""
    node = [
        NodeChanged(100.0, 0, ready=False, cordoned=False),
        NodeChanged(110.0, 0, ready=True, cordoned=False),
    ]
    assert found([come(WIDE), *node]) == [
        "240 tenant owner: waits for 8 GPUs of its guarantee of 8 for more than 130 s"
    ]
    assert found([come(WIDE), *node], end_s=240.0) == []
    assert found([come(WIDE), GpuChanged(100.0, 9, healthy=False)], end_s=229.0) == []
    broken = [GpuChanged(100.0, gpu, healthy=False) for gpu in (0, 8)]
    assert found([come(WIDE), *broken]) == []


def test_work_that_does_not_go_stops_the_clock() -> None:
    """Past its grace of 120 s it is not the scheduler that keeps the owner waiting."""
    told = [*FULL, come(WIDE), *(evicting(job, 20.0, contract=True) for job in (GUEST_WIDE, GUEST_WIDE + 1))]
    slow = [*told, come(NARROW, 141.0), stopped(GUEST_WIDE, at_s=300.0), stopped(GUEST_WIDE + 1, at_s=300.0)]
    assert found(slow, end_s=420.0) == []
    assert found(slow, end_s=450.0) == ["430 tenant owner: waits for 8 GPUs of its guarantee of 8 for more than 130 s"]


def test_siblings_give_back_what_they_borrowed_inside_their_parent() -> None:
    """The parent's guarantee is all used, by the wrong child."""
    tree = (queue("org", 16), queue(OWNER, 8, "org"), queue(GUEST, 8, "org"))
    assert found([*FULL, come(WIDE)], tree) == LATE
    assert found([*FULL, come(WIDE)], (queue("org", 16), queue(OWNER, 8, "org"), queue(GUEST, 8))) == LATE
    limited = (queue("org", 16, limit=16), queue(OWNER, 8, "org", limit=8), queue(GUEST, 8, "org"))
    assert found([*FULL, come(WIDE)], limited) == []  # under a hard limit nothing is claimed beforehand


def test_a_gang_that_was_resized_goes_on_holding() -> None:
    """It neither waits nor gives room that it has not."""
    jobs: list[Fact] = [
        *runs(GUEST_WIDE, range(8)),
        *resized(GUEST_WIDE, range(4), 15.0),
        *runs(RICH_WIDE, range(8, 16), 16.0),
    ]
    assert found([*jobs, come(NARROW)]) == [
        "150 tenant owner: waits for 4 GPUs of its guarantee of 8 for more than 130 s"
    ]


def test_contracts_serve_owners_or_end_what_filled_a_gap() -> None:
    """Taken in an owner's name while one waits: fine. Without one, or for the victim's own queue: not."""
    wrong = "was evicted by contract, while no other queue waits inside its guarantee"
    taken = Evicting(20.0, GUEST_WIDE, 0, Why.PREEMPT, True, "")
    assert found([*FULL, come(WIDE), taken], end_s=100.0) == []
    assert found([*FULL, taken]) == [f"20 job guest-2: {wrong}"]
    assert found([*FULL, come(GUEST_PARTS), taken]) == [f"20 job guest-2: {wrong}"]
    filler = started(GUEST_WIDE, range(8), backfill=True)
    assert found([come(GUEST_WIDE, 10.0), filler, taken]) == []


def test_work_moves_by_contract_for_an_owner_its_own_queue_included() -> None:
    """It goes on in another place. Where nobody waits inside a guarantee it is left alone, and it never just stops."""
    wrong = "30 job owner-4: was moved by contract, while no queue waits inside its guarantee"
    moved = Evicting(30.0, NARROW, 0, Why.MOVE, True, "")
    half = [*runs(NARROW, range(4)), *runs(GUEST_WIDE, range(8, 16))]
    wide = (queue(OWNER, 12), queue(RICH, 4))
    assert found([*half, moved], wide, end_s=100.0) == [wrong]
    assert found([*half, come(WIDE), moved], wide, end_s=100.0) == []
    assert found([*half, come(WIDE), moved], end_s=100.0) == [wrong]  # its guarantee of 8 has room for 4
    assert found([*half, come(WIDE), moved._replace(why=Why.PREEMPT)], wide, end_s=100.0) == [
        "30 job owner-4: was evicted by contract, while no other queue waits inside its guarantee"
    ]


def test_an_elastic_owner_is_owed_later_and_one_that_takes_nothing_back_never() -> None:
    """The bound of the queue counts from the same moment; that of others stays."""
    assert found([*FULL, come(WIDE)], later_s={OWNER: 300.0}, end_s=320.0) == []
    assert found([*FULL, come(WIDE)], later_s={OWNER: 300.0}) == [
        "320 tenant owner: waits for 8 GPUs of its guarantee of 8 for more than 300 s"
    ]
    assert found([*FULL, come(WIDE)], later_s={OWNER: math.inf}) == []
    assert found([*FULL, come(WIDE)], later_s={RICH: 300.0}) == LATE


def test_the_bound_of_each_queue_follows_from_policy_and_queue() -> None:
    """Elastic queues after the stated time, those below like the queue above; a queue without an index is strict."""
    auto = elastic()
    tree = (queue("org", 16), queue(OWNER, 8, "org"), queue(GUEST), replace(queue(RICH, 8), order="submission"))
    within_s = auto.preemption.grace_s + 10.0
    bounds = Rules.of_policy(auto, queues=tree).guarantee_later_s
    assert bounds == dict.fromkeys(("org", OWNER, GUEST), auto.tenancy.elastic_within_s + within_s)
    told = (replace(tree[0], guarantee_kept="none"), replace(tree[1], guarantee_kept="strict"))
    bounds = Rules.of_policy(auto, queues=told).guarantee_later_s
    assert bounds == {"org": math.inf}
    assert Rules.of_policy(shipped_policy("autopilot"), queues=tree).guarantee_later_s == {}


def test_without_a_promise_nothing_is_looked_at() -> None:
    """The bound comes from policies that take back by themselves, under our own rules, while effects can be trusted."""
    assert found([*FULL, come(WIDE)], within_s=None) == []
    auto = Policy(modes=Modes(admit_gang=Mode.AUTO, reclaim_borrowed=Mode.AUTO))
    assert Rules.of_policy(auto).guarantee_within_s == auto.preemption.grace_s + 10.0
    assert Rules.of_policy(auto, effects_fail=True).guarantee_within_s is None
    assert Rules.of_policy(auto, effects_fail=True).blast_ratio == auto.preemption.blast_ratio
    assert Rules.of_policy(Policy()).guarantee_within_s is None
    classic = Policy(modes=auto.modes, rules=RuleSetName.COHORT_CLASSIC)
    assert Rules.of_policy(classic).guarantee_within_s is None
