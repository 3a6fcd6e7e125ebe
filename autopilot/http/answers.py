"""Answers of the API, for its OpenAPI schema. Answers are not checked against it while they are sent; a test does.

Times `_s` are seconds of the cluster's clock, `_gpu_s` GPU-seconds; `at` is the date, if it has one. null: not
measured, or there is none. Fields are only ever added, so a client ignores unknown ones.
"""

from __future__ import annotations

from typing import Any, NotRequired

from typing_extensions import TypedDict

Number = float | None
"""A number; None if not measured."""


def stated(answer: Any) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route with this document at status 200."""
    return {200: {"model": answer}}


# --- the controller ---------------------------------------------------------------------------------


class StaleRow(TypedDict):
    """Data not known as of now. `age_s`: age of the last known; null: never known, or without age."""

    what: str
    age_s: Number
    why: str


class Summary(TypedDict):
    """The controller in a few fields. Before the first tick `tick` is null and most fields are absent.

    Ages are seconds of the service's monotonic clock: `age_s` since the last tick ended, `seen_age_s` of the last
    trusted view of the cluster, `telemetry_age_s` of the newest sample. A tick older than `late_s` is stale.
    """

    tick: int | None
    kill_switch: str | None
    silent_s: float
    now_s: NotRequired[float]
    at: NotRequired[str | None]
    start_s: NotRequired[Number]
    age_s: NotRequired[float]
    late_s: NotRequired[float]
    seen_age_s: NotRequired[Number]
    telemetry_age_s: NotRequired[Number]
    stale: NotRequired[list[StaleRow]]
    took_s: NotRequired[float]
    leads: NotRequired[bool]
    halted: NotRequired[str | None]
    killed: NotRequired[bool]
    paused: NotRequired[str | None]
    policy: NotRequired[str]
    policy_problem: NotRequired[str | None]
    policy_note: NotRequired[str | None]
    recommendations: NotRequired[int | None]
    approvable: NotRequired[int | None]
    alerts: NotRequired[int]
    collectors_failing: NotRequired[int]


class PolicyInForce(TypedDict):
    """The policy, and the reason for its file not being in force."""

    name: str
    problem: str | None


class Measures(TypedDict):
    """Measures of the fleet: capacity = allocated + free + out of use."""

    capacity_gpus: Number
    allocated_gpus: Number
    free_gpus: Number
    pending_gpus: Number
    allocation_ratio: Number
    hardware_ratio: Number
    real_utilization_ratio: Number
    gap_ratio: Number
    stranded_gpus: Number
    largest_gang_gpus: int | None
    stranded_by_cause: dict[str, Number] | None
    recut_gpus: Number
    out_of_use_gpus: Number
    measured_ratio: Number


class Fact(TypedDict):
    """A named number or text."""

    name: str
    value: float | int | str | None
    unit: str


class Remark(TypedDict):
    """A note of the tick."""

    code: str
    about: str
    subject: str
    value: Number
    unit: str
    facts: list[Fact]
    words: str


class WaitingFor(TypedDict):
    """Number of workloads waiting for one reason, with the words for one of them."""

    code: str
    workloads: int
    words: str


class HeldFor(TypedDict):
    """A reservation of GPUs for a workload."""

    workload: str
    incarnation: int
    gpus: int
    since_s: Number
    start_s: Number
    promised_s: Number
    nodes: list[str]
    firm: bool
    planned_s: Number
    uid: str


class SourceHealth(TypedDict):
    """The last read of one collector. `problem`: reason for missing data.

    `age_s`: of its newest data, in seconds of the service's monotonic clock.
    """

    name: str
    read_s: Number
    fresh_s: Number
    took_s: Number
    gaps: int
    problem: str
    age_s: Number


class ListHealth(TypedDict):
    """The list of one kind of object from one source. `age_s`: of the last complete one; `objects`: null without it."""

    kind: str
    source: str
    age_s: Number
    objects: int | None
    problem: str


class Missing(TypedDict):
    """Data missing from a collector; "" for all objects, or all signals."""

    source: str
    object_id: str
    signal: str
    reason: str


class WhoAsks(TypedDict):
    """The caller, as the service knows it."""

    name: str
    role: str


class FailedAttempt(TypedDict):
    """A failed attempt at an effect, also one declined or in conflict. `cause` as in docs/operations.md."""

    at_s: float
    at: str | None
    instruction: str
    proposal: str
    operation: str
    object: str
    outcome: str
    cause: str
    reason: str
    retried: bool


class DeniedRequest(TypedDict):
    """A request of a known caller with too low a role."""

    at_s: float
    at: str | None
    who: str
    role: str
    path: str
    reason: str


class ControllerState(TypedDict):
    """The controller's state: its view, its right to act, and the health of its sources."""

    tick: int
    now_s: float
    at: str | None
    leads: bool
    halted: str | None
    kill_switch: str | None
    killed: bool
    paused: str | None
    policy: PolicyInForce
    signals: Measures
    waiting: list[WaitingFor] | None
    reservations: list[HeldFor] | None
    notes: list[Remark]
    in_flight: int
    failed_effects: list[FailedAttempt]
    denied_requests: list[DeniedRequest]
    collectors: list[SourceHealth]
    lists: list[ListHealth]
    stale: list[StaleRow]
    gaps: list[Missing]
    gaps_in_total: int
    took_s: float
    stages_s: dict[str, float]
    caller: WhoAsks


class Obeyed(TypedDict):
    """The outcome of a command. `result` is `stored` until a tick obeys it."""

    result: str
    message: str
    sequence: NotRequired[int]
    halted: NotRequired[str | None]
    until_s: NotRequired[Number]
    codes: NotRequired[list[str]]
    rejection: NotRequired[str]


class ObeyedOne(Obeyed):
    """The outcome of one of several commands."""

    id: str


class ObeyedRows(TypedDict):
    """The outcomes of several commands. `result` is `refused` for commands not taken."""

    results: list[ObeyedOne]


class SignInProvider(TypedDict):
    """An OpenID Connect provider: its name for people, and the first address for a browser."""

    name: str
    url: str


class SessionState(TypedDict):
    """The session of this browser: its role if signed in, and the value required in its changes."""

    signed_in: bool
    name: NotRequired[str]
    role: NotRequired[str]
    csrf: NotRequired[str]
    provider: NotRequired[SignInProvider]


class JudgedAction(TypedDict):
    """The finished cases behind the judgement of one action."""

    action: str
    mode: str
    cases: int
    promised_gpu_s: Number
    realised_gpu_s: Number
    least_gpu_s: Number
    promised_use: str
    realised_use: str
    least_use: str
    capped_since_s: Number
    under_way: int


class PromisesMade(TypedDict):
    """Promised and realised gains of actions."""

    tick: int
    now_s: float
    least_cases: int
    least_ratio: float
    actions: list[JudgedAction]


# --- decisions --------------------------------------------------------------------------------------


class VictimRow(TypedDict):
    """A workload that loses GPUs."""

    workload: str
    incarnation: int
    gpus: int
    lost_gpu_s: Number
    contract: bool
    how: str
    worst_gpu_s: Number
    overhead_gpu_s: Number
    uid: str
    queue: str
    slo_class: str


class SideEffectRow(TypedDict):
    """A waiting workload, and its loss. Of expected work `uid` is empty."""

    workload: str
    uid: str
    queue: str
    gpus: float
    wait_gpu_s: float
    what: str
    loses: str


class VerdictRow(TypedDict):
    """The verdict of one guard."""

    guard: str
    allowed: bool
    code: str
    value: Number
    unit: str
    threshold: Number
    at_least: bool
    words: str


class DecisionRow(TypedDict):
    """One decision. `gain`, `cost` and `loss` are its figures in words, as every face shows them."""

    id: str
    tick: int
    at_s: float
    at: str | None
    action: str
    kind: str
    workload: str
    tenant: str
    queue: str
    gpus: int
    answer: str
    codes: list[str]
    halted: str | None
    benefit_gpu_s: Number
    cost_gpu_s: Number
    worst_cost_gpu_s: Number
    lost_gpu_s: Number
    gain: str
    cost: str
    loss: str
    victims: list[VictimRow]
    side_effects: list[SideEffectRow]
    refused_by: list[VerdictRow]
    words: str


class SlotRow(TypedDict):
    """A GPU, or a part of it, in thousandths."""

    node: str
    gpu: str
    instance: str
    milli: int


class DecisionCase(DecisionRow):
    """One decision with placement, evidence, the verdict of every guard, and its explanation in lines."""

    restart: int
    slots: list[SlotRow]
    score: list[Fact]
    evidence: list[Fact]
    verdicts: list[VerdictRow]
    lines: list[str]


class DecisionRows(TypedDict):
    """The latest decisions, newest first."""

    decisions: list[DecisionRow]
