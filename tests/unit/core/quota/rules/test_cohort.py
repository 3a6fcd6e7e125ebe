"""Cohort rules, classic and fair: what a queue may use, which gangs it preempts, what it keeps, and the order."""

import copy
import math
from collections.abc import Sequence
from typing import Any

import pytest

from autopilot.core.model.errors import InputError
from autopilot.core.model.records import Code
from autopilot.core.quota.rules import cohort, cohort_fair
from autopilot.core.quota.rules.base import Refusal, Target
from autopilot.core.quota.rules.trial import Trial
from tests.conftest import ROOT, find_shared_data
from tests.kits.rules_world import Gang, Row, World, cases, check, gang, row, waits, world

SHARED = find_shared_data() or ROOT
EXAMPLES = SHARED.parent / "conformance" / "examples.json"

PAIR = [row("a", 6, "co"), row("b", 2, "co")]


def free(rows: Sequence[Row], gangs: Sequence[Gang], queue: str, **more: Any) -> float:
    """GPUs that `queue` may still take."""
    now = world(rows, gangs)
    refusal = cohort.may_start(now.ledger, now.claim(waits("ask", queue, 1000, **more)))
    assert refusal is not None
    assert refusal.threshold == 1000
    return refusal.value


@pytest.mark.parametrize(
    ("rows", "gangs", "queue", "gpus"),
    [
        pytest.param([row("a", 6), row("b", 2)], [], "b", 2, id="queues below the root share nothing"),
        pytest.param(PAIR, [], "b", 8, id="one parent: the sum of the guarantees is the pool"),
        pytest.param(PAIR, [gang("x", "a", 7)], "b", 1, id="what a sibling borrowed is gone"),
        pytest.param([row("a", 6, "co"), row("b", 2, "co", borrow_limit=3)], [], "b", 5, id="borrow limit"),
        pytest.param([row("a", 6, "co"), row("b", 2, "co", borrow_limit=0)], [gang("x", "b", 1)], "b", 1,
                     id="borrow limit of nothing"),
        pytest.param([row("a", 6, "co", lend_limit=1), row("b", 2, "co")], [], "b", 3, id="lend limit"),
        pytest.param([row("a", 6, "co", lend_limit=1), row("b", 2, "co")], [gang("x", "b", 3)], "a", 5,
                     id="what is not lent is always there for its owner"),
        pytest.param([row("a", 6, "co", lend_limit=1), row("b", 2, "co")], [gang("x", "a", 5)], "b", 3,
                     id="an owner uses first what it does not lend"),
        pytest.param([row("a", 6, "co", lend_limit=1), row("b", 2, "co")], [gang("x", "a", 6)], "b", 2,
                     id="and then what it does"),
        pytest.param([row("co", 4), row("a", 1, "co")], [], "a", 5, id="a cohort's own guarantee"),
        pytest.param([row("top"), row("l", 0, "top"), row("r", 0, "top"), row("a", 3, "l"), row("b", 5, "r")], [],
     "a", 8,
                     id="cohorts of one tree share"),
        pytest.param([row("top"), row("l", 0, "top", borrow_limit=1), row("a", 3, "l"), row("b", 5, "top")], [], "a", 4,
                     id="borrow limit of a cohort binds those below it"),
        pytest.param([row("top"), row("l", 0, "top", lend_limit=1), row("a", 3, "l"), row("b", 5, "top")], [], "b", 6,
                     id="lend limit of a cohort"),
        pytest.param([row("top"), row("l", 2, "top"), row("a", 3, "l", lend_limit=0), row("b", 0, "top")],
                     [gang("x", "a", 4)], "b", 1, id="use beyond what is kept weighs on the cohorts above"),
        pytest.param(PAIR, [gang("x", "b", 9)], "a", 0, id="less than nothing is nothing"),
    ],
)  # fmt: skip
def test_what_a_queue_may_still_take(rows: list[Row], gangs: list[Gang], queue: str, gpus: float) -> None:
    """Guarantees, what others lend, and the limits on lending and borrowing."""
    assert free(rows, gangs, queue) == pytest.approx(gpus)


def test_a_hard_limit_on_the_path_is_named_as_such() -> None:
    """It binds before quota is looked at."""
    now = world([row("co", 0, limit=5), row("a", 4, "co"), row("b", 4, "co")], [gang("x", "a", 3)])
    assert cohort.may_start(now.ledger, now.claim(waits("in", "b", 3))) == Refusal(Code.LIMIT, 2, 3)
    assert cohort.may_start(now.ledger, now.claim(waits("in", "b", 2))) is None


def test_quota_holds_in_every_kind() -> None:
    """A guarantee of one model is not paid in another."""
    rows = [row("a", 4, "co", by_model=(4, 0)), row("b", 4, "co", by_model=(1, 3), borrow_limit=3)]
    now = world(rows, [gang("x", "a", 3, kinds=(0, 1))], models=2)
    assert cohort.may_start(now.ledger, now.claim(waits("in", "b", 3, kinds=(0, 1)))) == Refusal(Code.QUOTA, 2, 3)
    assert cohort.may_start(now.ledger, now.claim(waits("in", "b", 3, kinds=(0, 2)))) is None
    # limits count all models together
    assert cohort.may_start(now.ledger, now.claim(waits("in", "b", 5))) is None


def test_work_in_the_root_is_under_no_quota() -> None:
    """Nor does it displace, unless the root's own settings say so."""
    now = world([row("a", 1)], [gang("x", "", 5)])
    assert cohort.may_start(now.ledger, now.claim(waits("in", "", 99))) is None
    assert now.ask(cohort, waits("in", "", 99, 1), room=bool) == Code.POLICY


LOWER = {"within": "lower", "reclaim": "lower"}
ANY = {"reclaim": "any"}
BORROWS = {"reclaim": "any", "while_borrowing": "lower"}
TREE = [row("top"), row("l", 0, "top"), row("r", 0, "top")]

CLASSIC: list[tuple[str, list[Row], list[Gang], Gang, set[str] | Code]] = [
    ("nobody is needed", [row("q", 4, **LOWER)], [gang("x", "q", 2)], waits("in", "q", 2, 9), set()),
    ("the lowest priority, then the youngest", [row("q", 6, **LOWER)],
     [gang("x", "q", 2, 1, start_s=9), gang("old", "q", 2, start_s=1), gang("young", "q", 2, start_s=2)],
     waits("in", "q", 2, 5), {"young"}),
    ("what still starts is the youngest", [row("q", 4, **LOWER)],
     [gang("x", "q", 2, start_s=9), gang("y", "q", 2, start_s=math.nan)], waits("in", "q", 1, 5), {"y"}),
    ("unnecessary victims are put back", [row("q", 4, **LOWER)],
     [gang("small", "q", 1), gang("wide", "q", 3, 1)], waits("in", "q", 3, 5), {"wide"}),
    ("from the last but one on", [row("q", 7, **LOWER)],
     [gang("a", "q", 1), gang("b", "q", 2, 1), gang("c", "q", 4, 2)], waits("in", "q", 5, 5), {"a", "c"}),
    ("equal priority stays", [row("q", 2, **LOWER)], [gang("x", "q", 2, 5)], waits("in", "q", 1, 5), Code.PRIORITY),
    ("a newer one of equal priority may go where the queue says so", [row("q", 4, within="lower_or_newer_equal")],
     [gang("older", "q", 2, submit_s=1), gang("newer", "q", 2, submit_s=3)],
     waits("in", "q", 2, submit_s=2), {"newer"}),
    ("never means never", [row("q", 2)], [gang("x", "q", 2)], waits("in", "q", 1, 5), Code.POLICY),
    ("nobody to displace under any setting", [row("q", 2)], [gang("x", "q", 2, 5)], waits("in", "q", 1, 5), Code.QUOTA),
    ("larger than all quota there is", [row("q", 2, **LOWER)], [gang("x", "q", 2)], waits("in", "q", 3, 5), Code.QUOTA),
    ("the borrower pays before the own low priority", [row("a", 3, "co", **LOWER), row("b", 3, "co")],
     [gang("own", "a", 2), gang("lent", "b", 1, 3), gang("due", "b", 3, 3)], waits("in", "a", 1, 5), {"lent"}),
    ("a queue within its guarantee is safe", [row("a", 3, "co", reclaim="any"), row("b", 3, "co")],
     [gang("own", "a", 2, 9), gang("x", "b", 3)], waits("in", "a", 2, 5), Code.QUOTA),
    ("nothing more is taken once the donor no longer borrows",
     [row("a", 4, "co", **ANY), row("b", 3, "co"), row("c", 1, "co")],
     [gang("b1", "b", 2, start_s=2), gang("b2", "b", 2, start_s=1), gang("c1", "c", 2, 7), gang("c2", "c", 2, 7)],
     waits("in", "a", 4), {"b1", "c1"}),
    ("another tree is never touched", [row("a", 2, "one", **ANY), row("b", 2, "two")],
     [gang("x", "b", 4), gang("y", "a", 2, 9)], waits("in", "a", 2, 9), Code.QUOTA),
    ("reclaim from lower only", [row("a", 3, "co", **LOWER), row("b", 3, "co")],
     [gang("x", "b", 6, 5)], waits("in", "a", 3, 5), Code.PRIORITY),
    ("reclaim from any priority", [row("a", 3, "co", **ANY), row("b", 3, "co")],
     [gang("x", "b", 6, 5)], waits("in", "a", 3), {"x"}),
    ("a queue that ends above its guarantee takes nothing from others", [row("a", 3, "co", **ANY), row("b", 3, "co")],
     [gang("own", "a", 2), gang("x", "b", 4)], waits("in", "a", 2, 9), Code.POLICY),
    ("unless its own lower work goes too", [row("a", 3, "co", within="lower", **ANY), row("b", 3, "co")],
     [gang("own", "a", 2), gang("x", "b", 4)], waits("in", "a", 3, 9), {"own", "x"}),
    ("with while_borrowing it may", [row("a", 3, "co", **BORROWS), row("b", 3, "co")],
     [gang("own", "a", 2), gang("x", "b", 4)], waits("in", "a", 2, 9), {"x"}),
    ("though not from its equals", [row("a", 3, "co", **BORROWS), row("b", 3, "co")],
     [gang("own", "a", 2, 9), gang("x", "b", 4, 9)], waits("in", "a", 2, 9), Code.PRIORITY),
    ("nor above the stated priority", [row("a", 3, "co", highest=3, **BORROWS), row("b", 3, "co")],
     [gang("own", "a", 2, 9), gang("x", "b", 4, 4)], waits("in", "a", 2, 9), Code.PRIORITY),
    ("larger than its guarantee: nobody, not even its own", [row("a", 3, "co", **LOWER), row("b", 3, "co")],
     [gang("own", "a", 3), gang("x", "b", 3)], waits("in", "a", 4, 9), Code.POLICY),
    ("larger than its guarantee, while borrowing", [row("a", 3, "co", **BORROWS), row("b", 3, "co")],
     [gang("x", "b", 6)], waits("in", "a", 4, 9), {"x"}),
    ("its own lower work, though it goes on borrowing", [row("a", 3, "co", **LOWER), row("b", 3, "co")],
     [gang("x", "a", 3), gang("y", "a", 3, 9)], waits("in", "a", 2, 9), {"x"}),
    ("no more of its own work than is needed when it may borrow after all",
     [row("a", 2, "co", within="lower", reclaim="any"), row("b", 0, "co"), row("c", 2, "co")],
     [gang(f"a{n}", "a", 0.5, start_s=n) for n in range(3)] + [gang("b1", "b", 1)], waits("in", "a", 2, 9), {"a2"}),
    ("only protected work stands in its way", [row("q", 2, **LOWER)],
     [gang("x", "q", 2, preemptible=False)], waits("in", "q", 1, 5), Code.PROTECTED),
    ("its own work makes room under a hard limit", [row("q", 9, limit=4, **LOWER)],
     [gang("x", "q", 3), gang("y", "q", 1, 9)], waits("in", "q", 2, 5), {"x"}),
    ("a hard limit that nobody can make room under", [row("q", 9, limit=4, **LOWER)],
     [gang("x", "q", 3, 9)], waits("in", "q", 2, 5), Code.LIMIT),
    ("across the tree, where the newcomer's side holds it", [*TREE, row("a", 5, "l", **ANY), row("b", 0, "r")],
     [gang("x", "b", 3, 9)], waits("in", "a", 5), {"x"}),
    ("a cohort that does not borrow shields its queues",
     [*TREE, row("a", 5, "l", **ANY), row("b", 0, "r"), row("c", 4, "r")],
     [gang("mine", "a", 4), gang("x", "b", 4)], waits("in", "a", 2), Code.QUOTA),
    ("whom its cohort has a claim on goes before whom only priority decides",
     [row("top"), row("l", 3, "top"), row("r", 0, "top"), row("a", 2, "l", **BORROWS), row("b", 1, "l"),
     row("c", 0, "r")],
     [gang("own", "a", 2, 9), gang("near", "b", 2, 1), gang("far", "c", 2, 7)], waits("in", "a", 2, 5), {"far"}),
    ("a borrower and some of its own rather than more of its own",
     [row("a", 3, "co", within="lower", reclaim="any"), row("b", 3, "co")],
     [gang("a1", "a", 1), gang("a2", "a", 1, start_s=1), gang("b1", "b", 1), gang("b3", "b", 3, 5)],
     waits("in", "a", 2, 9), {"a2", "b1"}),
    ("what a donor did not lend does not come free for others",
     [row("a", 3, "co", reclaim="any"), row("b", 4, "co", lend_limit=1), row("c", 0, "co")],
     [gang("b3", "b", 3), gang("b2", "b", 2, 5), gang("c2", "c", 2, 1)], waits("in", "a", 3), {"b3", "c2"}),
    ("a cohort's own quota carries a gang larger than its queue's",
     [row("top"), row("l", 4, "top"), row("a", 0, "l", **ANY), row("b", 0, "top")],
     [gang("x", "b", 4, 9)], waits("in", "a", 3), {"x"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "gangs", "newcomer", "expected"), [pytest.param(*case[1:], id=case[0]) for case in CLASSIC]
)
def test_whom_the_classic_rules_displace(
    rows: list[Row], gangs: list[Gang], newcomer: Gang, expected: set[str] | Code
) -> None:
    """Names, or the reason; the books stay as they were."""
    now = world(rows, gangs)
    before = copy.deepcopy((now.ledger.use, now.ledger.sheltered))
    assert now.ask(cohort, newcomer) == expected
    assert (now.ledger.use, now.ledger.sheltered) == before


def test_only_holders_of_the_model_that_lacks_are_taken() -> None:
    """Gangs on another model do not help."""
    rows = [row("a", 4, "co", by_model=(2, 2), **ANY), row("b", 2, "co", by_model=(1, 1))]
    gangs = [gang("x", "b", 2, kinds=(0, 1)), gang("y", "b", 2, 5, kinds=(0, 2))]
    now = world(rows, gangs, models=2)
    assert now.ask(cohort, waits("in", "a", 2, kinds=(0, 2))) == {"y"}
    assert now.ask(cohort, waits("in", "a", 2, kinds=(0, 1))) == {"x"}


def test_who_borrows_is_asked_in_the_model_that_lacks() -> None:
    """B borrows one model, and holds no more than its own of the other."""
    rows = [row("a", 4, "co", by_model=(2, 2), **BORROWS), row("b", 2, "co", by_model=(1, 1))]
    lent = [gang("x", "b", 2, -1, kinds=(0, 1)), gang("y", "b", 1, -2, kinds=(0, 2))]
    now = world(rows, [*lent, gang("own", "a", 2, 9, kinds=(0, 2))], models=2)
    assert now.ask(cohort, waits("in", "a", 1, 9, kinds=(0, 2))) == Code.QUOTA
    now = world(rows, [*lent, gang("own", "a", 1, 9, kinds=(0, 2)), gang("z", "b", 1, 5, kinds=(0, 2))], models=2)
    assert now.ask(cohort, waits("in", "a", 1, 9, kinds=(0, 2))) == {"y"}


class Machine:
    """Room where `gpus` in all exist, for a newcomer of `wish`; counts how often it is asked."""

    def __init__(self, now: World, gpus: float, wanted: float) -> None:
        self.left = gpus - wanted - sum(claim.gpus for claim in now.running)
        self.asked = 0

    def __call__(self, targets: Sequence[Target]) -> bool:
        """Does the newcomer fit once these were taken?"""
        self.asked += 1
        return self.left + sum(target.gpus for target in targets) >= 0


def test_room_is_made_where_quota_would_do() -> None:
    """As many as the room needs, the youngest first."""
    now = world([row("q", 64, **LOWER)], [gang(f"x{n:02}", "q", 1, start_s=n) for n in range(32)])
    assert now.ask(cohort, waits("in", "q", 3, 5), Machine(now, 32, 3)) == {"x31", "x30", "x29"}


def test_many_victims_are_found_with_few_questions() -> None:
    """Asking for room is dear: the search doubles and halves."""
    now = world([row("q", 999, **LOWER)], [gang(f"x{n:03}", "q", 1, start_s=n) for n in range(400)])
    enough, nothing = Machine(now, 100, 9), Machine(now, 0, 9)
    assert now.ask(cohort, waits("in", "q", 9, 5), enough) == {f"x{n:03}" for n in range(91, 400)}
    assert enough.asked < 2 * 309 + 20  # where nobody can go back, each half and each one is asked about
    assert now.ask(cohort, waits("in", "q", 9, 5), nothing) == Code.CAPACITY
    assert nothing.asked <= 3 + math.log2(400)


def test_many_go_back_with_few_questions() -> None:
    """Only the oldest of 400 stands where the newcomer has to go."""
    now = world([row("q", 999, **LOWER)], [gang(f"x{n:03}", "q", 1, start_s=n) for n in range(400)])
    asked: list[int] = []

    def room(targets: Sequence[Target]) -> bool:
        asked.append(len(targets))
        return any(now.names[target.row] == "x000" for target in targets)

    assert now.ask(cohort, waits("in", "q", 1, 5), room) == {"x000"}
    assert len(asked) <= 4 + 2 * math.log2(400)


def test_nobody_is_asked_for_room_before_quota_does() -> None:
    """Quotas are cheap, and are tried first."""
    now = world([row("q", 4, **LOWER)], [gang("x", "q", 2), gang("y", "q", 2)])
    machine = Machine(now, 4, 4)
    assert now.ask(cohort, waits("in", "q", 4, 5), machine) == {"x", "y"}
    assert machine.asked == 1


def test_whoever_is_taken_is_given_back_to_the_ledger_when_it_does_not_help() -> None:
    """A search that fails leaves no trace."""
    now = world([row("q", 4, **LOWER)], [gang("x", "q", 2), gang("y", "q", 2)])
    quotas = cohort.Quotas(now.ledger, now.claim(waits("in", "q", 4, 5)))
    before = dict(quotas.trees[0].used)
    trial = Trial(quotas, lambda targets: len(targets) > 2)
    assert not trial.fewest(now.running)
    assert trial.lacked_room
    assert quotas.trees[0].used == before
    assert trial.answer() == ()


@pytest.mark.parametrize(
    ("rows", "gangs", "head", "classic", "fair"),
    [
        pytest.param([row("a", 2, "co"), row("b", 0, "co")], [gang("x", "a", 1)], waits("in", "a", 2), 1, 1,
                     id="what idles of its own"),
        pytest.param([row("a", 2, "co", **ANY), row("b", 0, "co")], [gang("x", "a", 1)], waits("in", "a", 2), 0, 0,
                     id="whoever can surely reclaim keeps nothing"),
        pytest.param([row("a", 2, "co", **LOWER), row("b", 4, "co")], [gang("x", "b", 5)], waits("in", "a", 2), 1, 1,
                     id="no more than idles"),
        pytest.param([row("a", 2, "co", **LOWER), row("b", 4, "co")], [gang("x", "b", 5)], waits("in", "a", 3), 0, 1,
                     id="larger than its own: only where shares let it displace"),
        pytest.param([row("a", 2, "co", while_borrowing="lower"), row("b", 4, "co")], [gang("x", "b", 4)],
                     waits("in", "a", 3), 2, 0, id="or where it displaces while it borrows"),
        pytest.param([row("a", 2, "co", borrow_limit=1, **LOWER), row("b", 9, "co")], [gang("x", "a", 2)],
                     waits("in", "a", 2), 1, 1, id="as far as it may borrow"),
        pytest.param([row("a", 2, "co", **LOWER), row("b", 4, "co")], [], waits("in", "a", 7), 0, 0,
                     id="what can never start keeps nothing"),
        pytest.param([row("a", 4, "co", limit=3, **LOWER)], [gang("x", "a", 2)], waits("in", "a", 2), 1, 1,
                     id="no more than its hard limit leaves"),
        pytest.param([row("a", 2)], [], waits("in", "", 7), 0, 0, id="work in the root keeps nothing"),
    ],
)  # fmt: skip
def test_what_a_waiting_head_keeps(rows: list[Row], gangs: list[Gang], head: Gang, classic: float, fair: float) -> None:
    """Idle quota is lent where it can surely be taken back, else kept."""
    now = world(rows, gangs)
    assert cohort.keeps(now.ledger, now.claim(head)) == pytest.approx(classic)
    assert cohort_fair.keeps(now.ledger, now.claim(head)) == pytest.approx(fair)


def first(rules: Any, now: World, heads: Sequence[Gang]) -> list[str]:
    """Names of heads in the order of a rule set."""
    return [each.name for each in sorted(heads, key=lambda one: rules.head_key(now.ledger, now.claim(one)))]


def test_heads_that_do_not_borrow_come_first_then_priority_then_age() -> None:
    """The nearer the quota that holds it, the earlier."""
    now = world([*TREE, row("a", 2, "l"), row("b", 2, "l"), row("c", 2, "r"), row("d", 2, "r")])
    heads = [
        waits("far", "a", 5, 9, submit_s=0),
        waits("near", "b", 3, 9, submit_s=1),
        waits("low", "c", 1, 1, submit_s=2),
        waits("late", "d", 1, 5, submit_s=4),
    ]
    assert first(cohort, now, heads) == ["late", "low", "near", "far"]
    heads[3] = waits("late", "d", 1, 1, submit_s=4)
    assert first(cohort, now, heads) == ["low", "late", "near", "far"]


def test_fair_heads_are_ordered_by_the_share_after_their_start() -> None:
    """Keys have one length, whatever the depth of the queue."""
    rows = [row("a", 2, "co", weight=2), row("b", 2, "co"), row("c", 1, "co", weight=0), row("d", 0, "co")]
    now = world(rows, [gang("x", "a", 2)])
    heads = [waits("a1", "a", 3), waits("b1", "b", 4, 9), waits("c1", "c", 2), waits("d1", "d", 1, -1)]
    assert first(cohort_fair, now, heads) == ["d1", "a1", "b1", "c1"]  # 1, 3 / 2, 2, without weight
    assert first(cohort_fair, now, [waits("b1", "b", 1, 1), waits("c1", "c", 1, 2)]) == ["c1", "b1"]
    deep = world([*TREE, row("a", 1, "l"), row("b", 1, "top"), row("c", 1)])
    keys = [cohort_fair.head_key(deep.ledger, deep.claim(waits(f"{queue}1", queue, 2))) for queue in "abc"]
    assert {len(key) for key in keys} == {len(keys[0])}


FAIR = {"within": "lower", "reclaim": "any"}
THREE = [row("a", 3, "co", **FAIR), row("b", 3, "co", **FAIR), row("c", 3, "co", **FAIR)]


def ones(queue: str, count: int, **more: Any) -> list[Gang]:
    """Gangs of one GPU, the last the youngest."""
    return [gang(f"{queue}{n}", queue, 1, start_s=n, **more) for n in range(1, count + 1)]


FAIRLY: list[tuple[str, list[Row], list[Gang], Gang, set[str] | Code]] = [
    ("within its guarantee from whoever borrows most", THREE, [*ones("a", 1), *ones("b", 5), *ones("c", 3)],
     waits("in", "a", 2), {"b5", "b4"}),
    ("the largest share first, and again after each taking", THREE, [*ones("b", 5), *ones("c", 4)],
     waits("in", "a", 2), {"b5", "b4"}),
    ("until it is no longer the largest", THREE, [*ones("b", 5), *ones("c", 4)], waits("in", "a", 3),
     {"b5", "b4", "c4"}),
    ("all at their guarantee: stable", THREE, [*ones("a", 3), *ones("b", 3), *ones("c", 3)], waits("in", "a", 1),
     Code.FAIRNESS),
    ("borrowing by final_share", THREE, [*ones("a", 3), *ones("b", 6)], waits("in", "a", 1), {"b6"}),
    ("not when that turned it over", THREE, [*ones("a", 3), *ones("b", 4), *ones("c", 2)], waits("in", "a", 1),
     Code.FAIRNESS),
    ("a big donor by initial_share", THREE, [gang("x", "b", 9)], waits("in", "a", 5), {"x"}),
    ("but not against a bigger newcomer", THREE, [gang("x", "b", 7), gang("y", "c", 2)], waits("in", "a", 7),
     Code.FAIRNESS),
    ("weight scales the share", [row("a", 3, "co", weight=2, **FAIR), *THREE[1:]], [*ones("a", 3), *ones("b", 6)],
     waits("in", "a", 2), {"b5", "b6"}),
    ("no weight: any borrowing is infinite", [row("a", 3, "co", weight=0, **FAIR), *THREE[1:]],
     [*ones("a", 3), *ones("b", 6)], waits("in", "a", 1),
     Code.FAIRNESS),
    ("no weight: the first to give", [*THREE[:2], row("c", 3, "co", weight=0, **FAIR)],
     [*ones("b", 5), *ones("c", 4)], waits("in", "a", 1), {"c4"}),
    ("among those without weight the larger borrower gives",
     [row("a", 0, "co", weight=0, **FAIR), row("b", 0, "co", weight=0), row("c", 6, "co", weight=0)],
     [*ones("a", 1), *ones("b", 5)], waits("in", "a", 1), {"b5"}),
    ("a small gang leaves the donor nearest to its share", THREE,
     [gang("old", "b", 4, start_s=1), gang("young", "b", 5, start_s=2)],
     waits("in", "a", 4), {"old"}),
    ("its own lower priority when its share is the largest", THREE,
     [gang("own", "a", 3), *ones("a", 3, priority=1), *ones("b", 3)],
     waits("in", "a", 2, 1), {"own"}),
    ("within_queue never", [row("a", 3, "co", reclaim="any"), *THREE[1:]], [*ones("a", 3), *ones("b", 6)],
     waits("in", "a", 2, 5), Code.FAIRNESS),
    ("a gang larger than its guarantee may displace its own", [row("q", 2, "co", within="lower"), row("b", 2, "co")],
     [gang("x", "q", 4)], waits("in", "q", 3, 5), {"x"}),
    ("no reclaim", [row("a", 3, "co"), row("b", 3, "co")], ones("b", 6), waits("in", "a", 1, 5), Code.POLICY),
    ("reclaim from lower only", [row("a", 3, "co", reclaim="lower"), row("b", 3, "co")], ones("b", 6),
     waits("in", "a", 1), Code.PRIORITY),
    ("protected donors", [row("a", 3, "co", reclaim="any"), row("b", 3, "co")], ones("b", 6, preemptible=False),
     waits("in", "a", 1), Code.PROTECTED),
    ("shares are compared where the paths part", [*TREE, row("a", 1, "l", **FAIR), row("b", 1, "r"), row("c", 4, "r")],
     [*ones("a", 1), *ones("b", 5)], waits("in", "a", 1), Code.FAIRNESS),
    ("and not queue by queue", [*TREE, row("a", 1, "l", **FAIR), row("b", 1, "r"), row("c", 3, "r"),
     row("e", 2, "top")],
     [gang("a1", "a", 1, 9), *ones("b", 6)], waits("in", "a", 2), Code.FAIRNESS),
    ("the largest share is looked for from the top",
     [*TREE, row("a", 2, "l", **FAIR), row("b", 1, "l"), row("c", 2, "r"), row("d", 0, "r"), row("e", 1, "top")],
     [gang("b1", "b", 2), gang("d1", "d", 3), gang("c1", "c", 1)], waits("in", "a", 2), {"d1"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "gangs", "newcomer", "expected"), [pytest.param(*case[1:], id=case[0]) for case in FAIRLY]
)
def test_whom_the_fair_rules_displace(
    rows: list[Row], gangs: list[Gang], newcomer: Gang, expected: set[str] | Code
) -> None:
    """Names, or the reason; the books stay as they were."""
    now = world(rows, gangs)
    before = copy.deepcopy((now.ledger.use, now.ledger.sheltered))
    assert now.ask(cohort_fair, newcomer) == expected
    assert (now.ledger.use, now.ledger.sheltered) == before


def test_one_rule_of_shares_may_be_asked_for_alone() -> None:
    """What the second rule allows is left undone without it."""
    now = world(THREE, [gang("x", "b", 9)])
    assert now.ask(cohort_fair, waits("in", "a", 5), rules=("final_share",)) == Code.FAIRNESS
    assert now.ask(cohort_fair, waits("in", "a", 5), rules=("initial_share",)) == {"x"}
    for rules in (("least_share",), ()):
        with pytest.raises(InputError, match="write final_share or initial_share"):
            now.ask(cohort_fair, waits("in", "a", 5), rules=rules)


def test_an_own_victim_is_not_put_back_where_that_would_break_the_rule_of_shares() -> None:
    """With `own` back the newcomer's queue would borrow 3, and take from one that borrowed 2.5."""
    rows = [row("a", 1, "co", **FAIR), row("b", 1, "co"), row("c", 8, "co")]
    now = world(rows, [gang("own", "a", 1), gang("x", "b", 3.5), gang("y", "c", 5.5)])
    assert now.ask(cohort_fair, waits("in", "a", 3, 5)) == {"own", "x"}


def test_room_alone_may_lack_in_a_cohort() -> None:
    """Then more is preempted than quota needs, or nothing."""
    now = world(THREE, ones("b", 5))
    assert now.ask(cohort_fair, waits("in", "a", 1), room=lambda targets: len(targets) > 2) == Code.CAPACITY
    assert now.ask(cohort_fair, waits("in", "a", 1), room=lambda targets: len(targets) > 1) == {"b5", "b4"}


@pytest.mark.parametrize(
    "case", cases(EXAMPLES, cohort.NAME, cohort_fair.NAME), ids=lambda case: f"{case['id']} {case['title']}"
)
def test_conformance_of_cohorts(case: dict[str, Any]) -> None:
    """The published cases of both rule sets are decided as expected."""
    check(case)
