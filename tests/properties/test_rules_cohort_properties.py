"""What holds of cohorts and elastic quotas for every tree, every use of it and every newcomer."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType

from hypothesis import event, given
from hypothesis import strategies as st

from autopilot.core.quota.ledger import ALL
from autopilot.core.quota.rules import cohort, cohort_fair, elastic_quota
from autopilot.core.quota.rules.base import Claim, Refusal, Target
from tests.kits.rules_world import HOW, Gang, Row, World, waits, world

EPSILON = 1e-6
counts = st.integers(0, 6)
settings = st.sampled_from(["any", "lower", "lower_or_newer_equal", "any", "lower", "never"])
bounds = st.sampled_from([-1, -1, -1, 3, 1, 0])
weights = st.sampled_from([1.0, 1.0, 2.0, 0.5, 0.0])


@dataclass(frozen=True)
class Scene:
    """A world, a newcomer, and a machine of this many GPUs."""

    now: World
    newcomer: Gang
    gpus: float

    @property
    def claim(self) -> Claim:
        """The newcomer as a claim."""
        return self.now.claim(self.newcomer)

    def room(self, targets: Sequence[Target]) -> bool:
        """Does the newcomer fit on the machine once these were taken?"""
        used = sum(claim.gpus for claim in self.now.running) - sum(target.gpus for target in targets)
        return used + self.newcomer.gpus <= self.gpus + EPSILON

    def without(self, rows: set[int]) -> "Scene":
        """The scene once the gangs of these rows are gone."""
        now = replace(self.now, ledger=copy.deepcopy(self.now.ledger))
        now.stop(Target(row, 0.0, whole=True) for row in rows)
        return replace(self, now=now)


@st.composite
def trees(draw: st.DrawFn, *, flat: bool = False) -> list[Row]:
    """One or two trees of cohorts, up to three levels, with their queues."""
    rows: list[Row] = []
    parents: list[str] = []
    for top in range(draw(st.sampled_from([1, 1, 2]))):
        rows.append(Row(f"top{top}", draw(counts) // 3))
        parents.append(f"top{top}")
        for inner in range(0 if flat else draw(st.integers(0, 2))):
            rows.append(
                Row(
                    f"in{top}{inner}",
                    draw(st.integers(0, 2)),
                    f"top{top}",
                    weight=draw(weights),
                    borrow_limit=draw(bounds),
                    lend_limit=draw(bounds),
                )
            )
            parents.append(f"in{top}{inner}")
    for number in range(draw(st.integers(2, 5))):
        guarantee = draw(counts)
        limit = float("inf") if draw(st.integers(0, 9)) else float(guarantee + draw(counts))
        rows.append(
            Row(
                f"q{number}",
                guarantee,
                draw(st.sampled_from([*parents, *parents, ""])),
                limit,
                draw(weights),
                draw(bounds),
                draw(bounds),
                draw(settings),
                draw(settings),
                draw(st.sampled_from(["lower", "never"])),
                draw(st.integers(0, 3)),
            )
        )
    return rows


@st.composite
def gangs(draw: st.DrawFn, rows: Sequence[Row], name: str) -> Gang:
    """A gang of some queue."""
    queue = draw(st.sampled_from([each.name for each in rows if each.name.startswith("q")]))
    gpus = draw(st.sampled_from([0.5, 1.0, 1.0, 2.0, 3.0, 5.0]))
    return Gang(
        name,
        queue,
        gpus,
        draw(st.integers(0, 3)),
        float(draw(counts)),
        float(draw(counts)),
        bool(draw(st.integers(0, 7))),
        draw(st.booleans()),
    )


@st.composite
def scenes(draw: st.DrawFn, engine: ModuleType, *, flat: bool = False) -> Scene:
    """A tree in use: some of it as the rules let it start, some beyond; and a gang that waits."""
    rows = draw(trees(flat=flat))
    now = world(rows)
    legal = draw(st.sampled_from([True, True, False]))
    for number in range(draw(st.sampled_from([16, 12, 8, 4]))):
        each = draw(gangs(rows, f"g{number}"))
        if not legal or engine.may_start(now.ledger, now.claim(each)) is None:
            now.start(each)
    newcomer = replace(draw(gangs(rows, "in")), start_s=float("nan"), priority=draw(st.sampled_from([4, 2, 0])))
    used = sum(claim.gpus for claim in now.running)
    gpus = draw(st.sampled_from([float("inf"), float("inf"), used + 4, used]))
    return Scene(now, newcomer, gpus)


def own_quota(scene: Scene, queue: int) -> float:
    """GPUs that a queue has without borrowing."""
    return cohort.cohort_tree(scene.now.ledger, ALL, scene.now.ledger.paths[queue][-1]).quota[queue]


def answer_of(engine: ModuleType, scene: Scene) -> tuple[Target, ...] | Refusal:
    """What the rules say; the books must be as they were."""
    ledger = scene.now.ledger
    before = copy.deepcopy((ledger.use, ledger.sheltered, ledger.guarantee, ledger.limit))
    answer: tuple[Target, ...] | Refusal = engine.targets(ledger, scene.claim, scene.now.running, scene.room)
    assert (ledger.use, ledger.sheltered, ledger.guarantee, ledger.limit) == before
    event("refused" if isinstance(answer, Refusal) else f"{min(len(answer), 3)} victims")
    return answer


def starts(engine: ModuleType, scene: Scene) -> bool:
    """May the newcomer start now, as far as quota and room go?"""
    return engine.may_start(scene.now.ledger, scene.claim) is None and scene.room(())


def check_answer(engine: ModuleType, scene: Scene) -> list[Claim]:
    """What holds of every answer; the victims in order."""
    answer = answer_of(engine, scene)
    if isinstance(answer, Refusal):
        assert not starts(engine, scene)
        return []
    assert (answer == ()) == starts(engine, scene)
    by_row = {claim.row: claim for claim in scene.now.running}
    victims = [by_row[target.row] for target in answer]
    assert len({claim.row for claim in victims}) == len(victims)
    assert all(claim.preemptible for claim in victims)
    assert [target.gpus for target in answer] == [claim.gpus for claim in victims]
    assert starts(engine, scene.without({claim.row for claim in victims}))
    return victims


def check_donors(scene: Scene, victims: Sequence[Claim]) -> None:
    """Each donor still borrowed before its last gang was taken, and shares a tree with the newcomer."""
    ledger = scene.now.ledger
    own = scene.claim.queue
    for queue in {claim.queue for claim in victims} - {own}:
        given = [claim.gpus for claim in victims if claim.queue == queue]
        assert ledger.paths[queue][-1] == ledger.paths[own][-1]
        left = cohort.cohort_tree(ledger, ALL, ledger.paths[queue][-1]).used[queue] - sum(given)
        assert left + given[-1] > own_quota(scene, queue)


def goes_back(engine: ModuleType, scene: Scene, victims: Sequence[Claim], other: Claim) -> bool:
    """Would the newcomer fit with `other` back?"""
    return starts(engine, scene.without({claim.row for claim in victims if claim is not other}))


@given(st.data())
def test_classic_cohorts(data: st.DataObject) -> None:
    """Settings are kept, lenders borrow, the newcomer fits, and no victim is unnecessary."""
    scene = data.draw(scenes(cohort))
    victims = check_answer(cohort, scene)
    check_donors(scene, victims)
    ledger, claim = scene.now.ledger, scene.claim
    for other in victims:
        how = ledger.queues.within_queue if other.queue == claim.queue else ledger.queues.reclaim
        assert cohort.permits(int(how[claim.queue]), claim, other)
        gone = sum(each.gpus for each in victims if each.queue == claim.queue and each is not other)
        borrows = ledger.use[ALL][claim.queue] - gone + claim.gpus > own_quota(scene, claim.queue) + EPSILON
        alone = all(each.queue == claim.queue for each in victims)
        if alone or not borrows:  # else it may be gone so that others may be taken
            assert not goes_back(cohort, scene, victims, other)


@given(st.data())
def test_a_classic_borrower_takes_only_what_its_settings_allow(data: st.DataObject) -> None:
    """In a flat cohort a queue that ends above its guarantee took from others only lower priorities, if at all."""
    scene = data.draw(scenes(cohort, flat=True))
    victims = check_answer(cohort, scene)
    ledger, claim = scene.now.ledger, scene.claim
    others = [other for other in victims if other.queue != claim.queue]
    gone = sum(other.gpus for other in victims if other.queue == claim.queue)
    if ledger.use[ALL][claim.queue] - gone + claim.gpus > own_quota(scene, claim.queue) + EPSILON:
        lower = int(ledger.queues.while_borrowing[claim.queue]) == HOW["lower"]
        highest = int(ledger.queues.while_borrowing_priority[claim.queue])
        assert all(lower and other.priority < claim.priority and other.priority <= highest for other in others)


@given(st.data())
def test_fair_cohorts(data: st.DataObject) -> None:
    """Lenders borrow, the newcomer fits, and no victim is unnecessary."""
    scene = data.draw(scenes(cohort_fair))
    victims = check_answer(cohort_fair, scene)
    check_donors(scene, victims)
    ledger, claim = scene.now.ledger, scene.claim
    flat = len(ledger.paths[claim.queue]) <= 2
    for other in victims:
        strangers = [each for each in victims if each.queue != claim.queue]
        if not strangers or (flat and other in strangers):  # else the rules of shares may need it
            assert not goes_back(cohort_fair, scene, victims, other)


@given(st.data())
def test_fair_cohorts_do_not_flap(data: st.DataObject) -> None:
    """By final_share no victim gets its place back from the newcomer that took it."""
    scene = data.draw(scenes(cohort_fair, flat=True))
    running = scene.now.running
    rules = ("final_share",)
    answer = cohort_fair.targets(scene.now.ledger, scene.claim, running, lambda _: True, rules)
    gone = set() if isinstance(answer, Refusal) else {target.row for target in answer}
    after = scene.without(gone)
    after.now.start(scene.newcomer)
    for other in running:
        if other.row in gone and other.queue != scene.claim.queue:
            event("a victim asks for its place")
            back = cohort_fair.targets(after.now.ledger, other, after.now.running, lambda _: True, rules)
            assert isinstance(back, Refusal) or scene.claim.row not in {target.row for target in back}


@given(st.data())
def test_started_work_stays_within_what_is_there(data: st.DataObject) -> None:
    """From an empty tree: no tree gives out more than its guarantees, and no queue exceeds its bounds."""
    rows = data.draw(trees())
    now = world(rows)
    for number in range(20):
        each = data.draw(gangs(rows, f"g{number}"))
        if cohort.may_start(now.ledger, now.claim(each)) is None:
            now.start(each)
    ledger = now.ledger
    for queue in range(1, len(ledger.parent)):
        tree = cohort.cohort_tree(ledger, ALL, ledger.paths[queue][-1])
        assert tree.used[queue] <= tree.quota[queue] + tree.borrow[queue] + EPSILON
        assert ledger.use[ALL][queue] <= ledger.limit[ALL][queue] + EPSILON
        if ledger.parent[queue] == 0:
            below = [each for each in range(1, len(ledger.parent)) if ledger.paths[each][-1] == queue]
            assert ledger.use[ALL][queue] <= sum(ledger.guarantee[ALL][each] for each in below) + EPSILON
        elif not ledger.children[queue]:  # what it does not lend is there for it, whatever others use
            kept = min(tree.kept[queue] - tree.used[queue], ledger.limit_room(queue))
            asks = cohort.may_start(ledger, now.claim(waits("late", now_name(now, queue), max(kept, 0.0))))
            assert kept <= 0 or asks is None


def now_name(now: World, queue: int) -> str:
    """Name of a queue."""
    return next(name for name, number in now.queues.items() if number == queue)


@given(st.data())
def test_what_a_head_keeps_is_idle_and_shuts_others_out(data: st.DataObject) -> None:
    """No more than is free and asked for; once booked, its queue has nothing more to lend of what it kept."""
    scene = data.draw(scenes(cohort))
    claim, ledger = scene.claim, scene.now.ledger
    for engine in (cohort, cohort_fair):
        kept = engine.keeps(ledger, claim)
        assert 0.0 <= kept <= claim.gpus
        event(f"{engine.NAME} keeps {'some' if kept else 'nothing'}")
        if kept:
            assert cohort.may_start(ledger, claim._replace(gpus=kept)) is None


@given(st.data())
def test_elastic_quota(data: st.DataObject) -> None:
    """Other teams lose only marked work above their minimum, its own team only lower priorities, and no victim is
    unnecessary.
    """
    scene = data.draw(scenes(elastic_quota))
    victims = check_answer(elastic_quota, scene)
    ledger, claim = scene.now.ledger, scene.claim
    team_of = [path[-1] if path else 0 for path in ledger.paths]
    for other in victims:
        assert not goes_back(elastic_quota, scene, victims, other)
        if team_of[other.queue] == team_of[claim.queue]:
            assert other.priority < claim.priority
        else:
            assert other.over_quota
    for team in {team_of[other.queue] for other in victims} - {team_of[claim.queue]}:
        given_up = [other.gpus for other in victims if team_of[other.queue] == team]
        assert ledger.use[ALL][team] - sum(given_up) + given_up[-1] > ledger.guarantee[ALL][team]
