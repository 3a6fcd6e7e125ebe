"""Small quota worlds for the tests of rule sets: a queue tree as rows, gangs as claims, books from both.

rows = [row("a", 4, "co"), row("b", 2, "co")]
books, running = booked(rows, [gang("x", "b", 3)])
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from autopilot.core.model.records import Code
from autopilot.core.model.snapshot import Displace, QueueTable, make
from autopilot.core.quota.ledger import ALL, QuotaLedger
from autopilot.core.quota.rules import cohort, cohort_fair, elastic_quota
from autopilot.core.quota.rules.base import Claim, Refusal, Target

RULE_SETS: dict[str, ModuleType] = {each.NAME: each for each in (cohort, cohort_fair, elastic_quota)}
HOW = {
    "never": Displace.NEVER,
    "lower": Displace.LOWER,
    "any": Displace.ANY,
    "lower_or_newer_equal": Displace.LOWER_OR_NEWER_EQUAL,
}
ANY_PRIORITY = 2**31 - 1


@dataclass(frozen=True)
class Row:
    """One queue or cohort, with its settings."""

    name: str
    guarantee: float = 0.0
    parent: str = ""
    limit: float = math.inf
    weight: float = 1.0
    borrow_limit: int = -1
    lend_limit: int = -1
    within: str = "never"
    reclaim: str = "never"
    while_borrowing: str = "never"
    highest: int = ANY_PRIORITY
    by_model: tuple[float, ...] = ()  # guarantee of each GPU model; their sum is `guarantee`


@dataclass(frozen=True)
class Gang:
    """One gang by the name of its queue. `start_s` NaN: it waits."""

    name: str
    queue: str
    gpus: float
    priority: int = 0
    start_s: float = 0.0
    submit_s: float = 0.0
    preemptible: bool = True
    over_quota: bool = False
    kinds: tuple[int, ...] = (ALL,)


def row(name: str, guarantee: float = 0.0, parent: str = "", **settings: Any) -> Row:
    """A queue; `parent` "" stands directly below the root."""
    return Row(name, guarantee, parent, **settings)


def gang(name: str, queue: str, gpus: float, priority: int = 0, **more: Any) -> Gang:
    """A gang that runs since `start_s`, the start of time unless told."""
    return Gang(name, queue, gpus, priority, **more)


def waits(name: str, queue: str, gpus: float, priority: int = 0, **more: Any) -> Gang:
    """A gang that waits."""
    return Gang(name, queue, gpus, priority, start_s=math.nan, **more)


@dataclass
class World:
    """Books, the running gangs as claims, and the way back from rows to names."""

    ledger: QuotaLedger
    queues: dict[str, int]
    names: list[str]
    running: list[Claim]

    def claim(self, each: Gang) -> Claim:
        """A gang as a claim, under a row of its own."""
        if each.name not in self.names:
            self.names.append(each.name)
        return Claim(
            self.names.index(each.name),
            self.queues[each.queue],
            each.gpus,
            each.kinds,
            each.priority,
            each.submit_s,
            each.start_s,
            each.preemptible,
            each.gpus,
            each.gpus,
            each.over_quota,
        )

    def start(self, each: Gang) -> None:
        """Enter a gang as running."""
        claim = self.claim(each)
        self.running.append(claim)
        self.ledger.add(claim.queue, claim.gpus, claim.kinds, preemptible=claim.preemptible)

    def stop(self, targets: Iterable[Target]) -> list[str]:
        """Take gangs away; their names."""
        gone = {target.row for target in targets}
        for claim in self.running:
            if claim.row in gone:
                self.ledger.add(claim.queue, -claim.gpus, claim.kinds, preemptible=claim.preemptible)
        self.running = [claim for claim in self.running if claim.row not in gone]
        return [self.names[number] for number in sorted(gone)]

    def ask(
        self, engine: ModuleType, each: Gang, room: Callable[[Sequence[Target]], bool] = lambda _: True, **more: Any
    ) -> set[str] | Code:
        """Names of the victims that a rule set allows, or the reason why the gang may not preempt."""
        answer = engine.targets(self.ledger, self.claim(each), self.running, room, **more)
        return answer.code if isinstance(answer, Refusal) else {self.names[target.row] for target in answer}


def world(rows: Sequence[Row], gangs: Sequence[Gang] = (), models: int = 0) -> World:
    """The books of a queue tree with running gangs. Cohorts that only a `parent` names are added.

    With `models` GPU models the kinds are 0 (all), 1, 2, ...
    """
    told = {each.name for each in rows}
    implied = dict.fromkeys(each.parent for each in rows if each.parent and each.parent not in told)
    everyone = _parents_first([*(Row(name) for name in implied), *rows])
    at = {"": 0} | {each.name: number + 1 for number, each in enumerate(everyone)}
    parent = [-1] + [at[each.parent] for each in everyone]
    tree = [Row("root"), *everyone]
    table = make(
        QueueTable,
        id=[each.name for each in tree],
        parent=parent,
        guarantee=[[0]] * len(tree),
        weight=[each.weight for each in tree],
        borrow_limit=[each.borrow_limit for each in tree],
        lend_limit=[each.lend_limit for each in tree],
        within_queue=[HOW[each.within] for each in tree],
        reclaim=[HOW[each.reclaim] for each in tree],
        while_borrowing=[HOW[each.while_borrowing] for each in tree],
        while_borrowing_priority=[each.highest for each in tree],
    )
    paths: list[tuple[int, ...]] = [()]
    for number in range(1, len(tree)):
        paths.append((number, *paths[parent[number]]))
    guarantee = [[each.guarantee for each in tree]]
    guarantee += [[each.by_model[model] if each.by_model else 0.0 for each in tree] for model in range(models)]
    zeros = [[0.0] * len(tree) for _ in guarantee]
    ledger = QuotaLedger(
        table,
        parent,
        paths,
        [sum(kind) for kind in guarantee],
        guarantee,
        [[each.limit for each in tree], *([math.inf] * len(tree) for _ in range(models))],
        [list(kind) for kind in zeros],
        [list(kind) for kind in zeros],
        [list(kind) for kind in zeros],
        False,
        children=[[n for n in range(len(tree)) if parent[n] == number] for number in range(len(tree))],
    )
    made = World(ledger, at, [], [])
    for each in gangs:
        made.start(each)
    return made


def _parents_first(rows: Sequence[Row]) -> list[Row]:
    placed: list[Row] = []
    waiting = list(rows)
    while waiting:
        known = {"", *(each.name for each in placed)}
        ready = [each for each in waiting if each.parent in known]
        assert ready, f"no parent for {[each.name for each in waiting]}"
        placed += ready
        waiting = [each for each in waiting if each not in ready]
    return placed


# --- conformance cases ---------------------------------------------------------------------------


@dataclass
class Outcome:
    """What one cycle over a case did."""

    started: dict[str, float]  # gang -> GPUs
    evicted: set[str]
    pending: dict[str, Code]


def play(case: Mapping[str, Any]) -> Outcome:
    """One cycle over a case as an engine runs it: the first gang of every queue in the order of the rule set, then the
    next, until none is left. Where nodes matter they count as one pool of GPUs.
    """
    rules = RULE_SETS[case["policy"]]
    now = world([_case_row(queue) for queue in case["queues"]], _case_gangs(case, "running"))
    spare = sum(node["gpus"] for node in case["nodes"]) if case["kind"] == "schedule" else math.inf
    waiting = _case_gangs(case, "pending")
    done = Outcome({}, set(), {})
    while waiting:
        heads: dict[str, Gang] = {}
        for each in sorted(waiting, key=lambda one: (-one.priority, one.submit_s)):
            heads.setdefault(each.queue, each)
        head = min(heads.values(), key=lambda one: rules.head_key(now.ledger, now.claim(one)))
        waiting.remove(head)
        answers = [(gpus, _serve(now, rules, replace(head, gpus=gpus), spare, case)) for gpus in _widths(case, head)]
        gpus, answer = next((each for each in answers if isinstance(each[1], set)), answers[0])
        if isinstance(answer, set):
            done.evicted |= answer
            now.stop(Target(now.names.index(name), 0.0, whole=True) for name in answer)
            now.start(replace(head, gpus=gpus))
            done.started[head.name] = gpus
        else:
            done.pending[head.name] = answer
            claim = now.claim(head)
            now.ledger.add(claim.queue, rules.keeps(now.ledger, claim), claim.kinds, preemptible=True)
    return done


def _widths(case: Mapping[str, Any], head: Gang) -> list[float]:
    """The widths that a gang may start at, all of it first."""
    told = next(each for each in case["gangs"] if each["name"] == head.name)
    sizes = [task["gpus"] for task in told["tasks"]]
    return [sum(sizes[:members]) for members in range(len(sizes), told["min_member"] - 1, -1)]


def _serve(now: World, rules: ModuleType, head: Gang, spare: float, case: Mapping[str, Any]) -> set[str] | Code:
    """The victims of a gang's start, if it needs any; or why it waits."""
    used = sum(claim.gpus for claim in now.running)

    def room(targets: Sequence[Target]) -> bool:
        return used - sum(target.gpus for target in targets) + head.gpus <= spare

    if rules.may_start(now.ledger, now.claim(head)) is None and room(()):
        return set()
    asked = (case.get("settings") or {}).get("fair_preemption_rules")
    return now.ask(rules, head, room, **({"rules": asked} if asked else {}))


def _case_row(queue: Mapping[str, Any]) -> Row:
    how = queue.get("preempt") or {}
    borrowing = how.get("while_borrowing") or {}
    return Row(
        queue["name"],
        float(queue.get("guaranteed") or 0),
        queue.get("parent") or "",
        _stated(queue.get("limit"), math.inf),
        float(_stated(queue.get("over_quota_weight"), 1.0)),
        int(_stated(queue.get("borrow_limit"), -1)),
        int(_stated(queue.get("lend_limit"), -1)),
        how.get("within_queue", "never"),
        how.get("reclaim_in_cohort", "never"),
        borrowing.get("policy", "never"),
        int(_stated(borrowing.get("max_priority"), ANY_PRIORITY)),
    )


def _case_gangs(case: Mapping[str, Any], state: str) -> list[Gang]:
    gangs = []
    order = {each["name"]: float(each.get("submit_order", 0)) for each in case["gangs"]}
    for each in case["gangs"]:
        if {task["state"] for task in each["tasks"]} != {state}:
            continue
        submit = order[each["name"]]
        submit = min([submit, *(order[name] - 0.5 for name in each.get("submitted_before") or ())])
        submit = max([submit, *(order[name] + 0.5 for name in each.get("submitted_after") or ())])
        age = each.get("age_s")
        start = math.nan if state == "pending" else order[each["name"]] if age is None else -float(age)
        gangs.append(
            Gang(
                each["name"],
                each["queue"],
                sum(task["gpus"] for task in each["tasks"]),
                each.get("priority", 0),
                start,
                submit,
                each.get("preemptible", True),
                bool(each.get("over_quota")),
            )
        )
    return gangs


def _stated(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else value


def check(case: Mapping[str, Any]) -> None:
    """Play a case and hold what came of it against what it expects of quotas."""
    done, expect = play(case), case["expect"]
    choose = [(choice["evict"], set(choice["from"])) for choice in expect.get("choose") or () if "evict" in choice]
    free = done.evicted - set(expect.get("evict") or ())
    for count, names in choose:
        assert len(free & names) == count, done
        free -= names
    assert not free, done
    assert set(expect.get("evict") or ()) <= done.evicted, done
    assert not set(expect.get("keep") or ()) & done.evicted, done
    tasks = {name for name, counts in (expect.get("tasks") or {}).items() if counts.get("started")}
    started = {*(expect.get("start") or ()), *(expect.get("reserved") or ()), *tasks}
    assert set(done.started) == started, done
    for name, reason in (expect.get("pending") or {}).items():
        assert done.pending[name] == reason, done
    for name, counts in (expect.get("tasks") or {}).items():
        sizes = [task["gpus"] for task in next(g["tasks"] for g in case["gangs"] if g["name"] == name)]
        assert math.isclose(done.started[name], sum(sizes[: counts["started"]])), done


def cases(path: Path, *policies: str) -> list[dict[str, Any]]:
    """Cases of these policies that quotas alone decide; none where the file is absent."""
    if not path.exists():
        return []
    told: list[dict[str, Any]] = json.loads(path.read_text())["cases"]
    rejected = {"rejected"}
    return [
        case
        for case in told
        if case["policy"] in policies
        and not any(rejected & set((gang.get("check_state") or {}).values()) for gang in case["gangs"])
    ]
