"""A file of cases, read and validated: every field has its type, and names lead somewhere.

Format `gpu-decision-conformance/1`: one JSON object with `schema`, `origin` and `cases`. GPU numbers are GPUs
(fractions allowed), times seconds. A field that is not listed here is an error that names it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from autopilot.core.model.errors import InputError

SCHEMA = "gpu-decision-conformance/1"

Gpus = Annotated[float, Ge(0)]
Count = Annotated[int, Ge(0)]
Profiles = dict[str, Count]  # profile -> instances
Placed = tuple[str, Count]  # profile, first memory slice

RuleName = Literal["hierarchical-fair-share", "cohort-classic", "cohort-fair", "elastic-quota", "mig"]
Action = Literal[
    "allocate", "preempt", "reclaim", "consolidate", "stale_gang", "admit", "elastic_quota", "mig_replan", "mig_fit"
]
TaskState = Literal["pending", "running", "releasing", "terminating_stuck", "failed", "succeeded"]
CheckState = Literal["pending", "ready", "retry", "rejected"]
StartMode = Literal["now", "reserved"]
Displacing = Literal["never", "lower", "any", "lower_or_newer_equal"]


class Strict(BaseModel):
    """No field but the declared ones; null is as good as not stated."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _stated(cls, given: Any) -> Any:
        return {k: v for k, v in given.items() if v is not None} if isinstance(given, dict) else given


class Node(Strict):
    name: str
    gpus: Count = 0  # whole ones, beside those that are cut
    labels: dict[str, str] = {}
    mig_instances: Profiles = {}


class WhileBorrowing(Strict):
    policy: Displacing = "never"
    max_priority: int | None = None


class Displacement(Strict):
    within_queue: Displacing = "never"
    reclaim_in_cohort: Displacing = "never"
    while_borrowing: WhileBorrowing | None = None


class Queue(Strict):
    name: str
    guaranteed: Gpus = 0.0
    limit: Gpus | None = None
    over_quota_weight: Gpus = 1.0
    parent: str | None = None
    priority: int = 0
    cohort: bool = False
    borrow_limit: Gpus | None = None
    lend_limit: Gpus | None = None
    preempt: Displacement = Displacement()
    queueing: Literal["strict", "best_effort"] = "best_effort"
    checks: list[str] = []


class Task(Strict):
    name: str
    gpus: Gpus = 0.0
    mig: Profiles = {}
    state: TaskState
    node: str | None = None
    rank: int = 0
    node_selector: dict[str, str] = {}


class TopologyWish(Strict):
    required: str | None = None
    preferred: str | None = None


class Gang(Strict):
    name: str
    queue: str
    priority: int = 0
    preemptible: bool = True
    min_member: Count | None = None  # None: all tasks
    submit_order: float = 0.0
    tasks: list[Task]
    topology: TopologyWish = TopologyWish()
    preemption_delay_s: Annotated[float, Ge(0)] = 0.0
    waiting_s: Annotated[float, Ge(0)] | None = None
    stale_s: Annotated[float, Ge(0)] | None = None
    stale_grace_s: float | None = None
    gates: list[str] = []
    check_state: dict[str, CheckState] = {}
    submitted_before: list[str] = []
    submitted_after: list[str] = []
    age_s: Annotated[float, Ge(0)] | None = None
    over_quota: bool = False

    @property
    def least(self) -> int:
        """Members that it needs at once, beside those that have finished."""
        asked = len(self.tasks) if self.min_member is None else self.min_member
        return max(asked - sum(task.state == "succeeded" for task in self.tasks), 1)


class MigGpu(Strict):
    node: str
    index: Count
    model: str
    used: Profiles = {}
    free: Profiles = {}


class MigPlaces(Strict):
    used: list[Placed] = []
    free: list[Placed] = []


class MigWish(Strict):
    name: str
    profiles: Profiles


class Settings(Strict):
    placement: Literal["pack", "spread"] = "pack"
    stale_grace_s: float | None = None
    fair_preemption_rules: list[Literal["final_share", "initial_share"]] | None = None


class Choice(Strict):
    evict: Count | None = None
    move: Count | None = None
    candidates: list[str] = Field(alias="from")

    @model_validator(mode="after")
    def _one_verb(self) -> Choice:
        if (self.evict is None) == (self.move is None):
            raise ValueError("give evict or move, one of them")
        return self


class Counts(Strict):
    running: Count | None = None
    started: Count | None = None
    pending: Count | None = None
    evicted: Count | None = None
    moved: Count | None = None
    survive: Count | None = None


class Expectation(Strict):
    start: list[str] = []
    start_mode: StartMode | dict[str, StartMode] = {}
    reserved: list[str] | None = None
    pending: dict[str, str] = {}
    keep: list[str] = []
    evict: list[str] = []
    move: list[str] = []
    choose: list[Choice] = []
    tasks: dict[str, Counts] = {}
    start_tasks: list[str] = []
    pending_tasks: list[str] = []
    evict_tasks: list[str] = []
    keep_tasks: list[str] = []
    place: dict[str, list[str]] = {}
    same_domain: dict[str, str] = {}
    deactivated: list[str] = []
    placed: list[str] | None = None
    unplaced: list[str] | None = None
    placed_count: Count | None = None
    unplaced_count: Count | None = None
    changed_gpus: list[int] | None = None
    changed_gpus_count: Count | None = None
    used_kept: bool | None = None
    fits: bool | None = None


class Case(Strict):
    id: str
    title: str = ""
    why: str = ""
    category: str = ""
    kind: Literal["schedule", "quota", "mig_replan", "mig_fit"]
    policy: RuleName
    action: Action
    settings: Settings = Settings()
    nodes: list[Node] = []
    queues: list[Queue] = []
    gangs: list[Gang] = []
    gpus: list[MigGpu] = []
    placements: dict[str, MigPlaces] = {}
    requests: list[MigWish] = []
    model: str | None = None
    occupied: list[Placed] = []
    want: list[str] = []
    expect: Expectation


@dataclass(frozen=True)
class Entry:
    """One case of a file, or why it cannot be read."""

    id: str
    case: Case | None
    error: str = ""


def read_file(path: Path) -> list[Entry]:
    """The cases of a file. Raises `InputError` when the file as a whole is not of the format."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise InputError(f'{path}: is no file of decision cases; it must be an object with "schema": "{SCHEMA}"')
    cases = content.get("cases")
    if not isinstance(cases, list):
        raise InputError(f'{path}: has no list "cases"')
    return [_entry(raw, number) for number, raw in enumerate(cases)]


def parse_case(raw: Any) -> Case:
    """One case. Raises `InputError` naming every field that is unknown, missing or wrong."""
    try:
        case = Case.model_validate(raw)
    except ValidationError as error:
        raise InputError("; ".join(map(_in_words, error.errors()))) from error
    problems = [*_twice(case), *_astray(case)]
    if problems:
        raise InputError("; ".join(problems))
    return case


def _entry(raw: Any, number: int) -> Entry:
    given = raw.get("id") if isinstance(raw, dict) else None
    name = given if isinstance(given, str) else f"case {number}"
    try:
        return Entry(name, parse_case(raw))
    except InputError as error:
        return Entry(name, None, str(error))


def _in_words(error: Any) -> str:
    path = ".".join(map(str, error["loc"]))
    return f"unknown field {path}" if error["type"] == "extra_forbidden" else f"{path}: {error['msg']}"


def _twice(case: Case) -> list[str]:
    """Names that stand for two things."""
    lists = {
        "nodes": [node.name for node in case.nodes],
        "queues": [queue.name for queue in case.queues],
        "gangs": [gang.name for gang in case.gangs],
        "tasks": [task.name for gang in case.gangs for task in gang.tasks],
        "gpus": [f"{gpu.node}/{gpu.index}" for gpu in case.gpus],
    }
    return [
        f"{what}: {name!r} is there twice"
        for what, names in lists.items()
        for name, count in Counter(names).items()
        if count > 1
    ]


def _astray(case: Case) -> list[str]:
    """References to what the case does not have."""
    nodes, queues = {n.name for n in case.nodes}, {q.name for q in case.queues}
    gangs = {gang.name for gang in case.gangs}
    tasks = {task.name for gang in case.gangs for task in gang.tasks}
    expect = case.expect
    modes = expect.start_mode if isinstance(expect.start_mode, dict) else {}
    references: list[tuple[str, Iterable[str], set[str]]] = [
        ("gangs.queue", (gang.queue for gang in case.gangs), queues),
        ("tasks.node", (t.node for g in case.gangs for t in g.tasks if t.node and case.kind != "quota"), nodes),
        ("submitted_before", (name for gang in case.gangs for name in gang.submitted_before), gangs),
        ("submitted_after", (name for gang in case.gangs for name in gang.submitted_after), gangs),
        ("expect.choose.from", (name for c in expect.choose for name in c.candidates), gangs | tasks),
        ("expect.place", expect.place, gangs),
        ("expect.place", (node for names in expect.place.values() for node in names), nodes),
        ("expect.start_mode", modes, gangs),
        ("expect.reserved", expect.reserved or (), gangs),
        *(
            (f"expect.{f}", getattr(expect, f), gangs)
            for f in ("start", "pending", "keep", "evict", "move", "tasks", "same_domain", "deactivated")
        ),
        *(
            (f"expect.{f}", getattr(expect, f), tasks)
            for f in ("start_tasks", "pending_tasks", "evict_tasks", "keep_tasks")
        ),
    ]
    return [
        f"{field}: the case has no {name!r}"
        for field, names, known in references
        for name in names
        if name not in known
    ]
