"""State of the controller between two decisions, beyond the view of the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autopilot.core.model.codes import ConditionKind
from autopilot.core.model.idle_memory import IdleMemory
from autopilot.core.model.promises import Promise, PromiseRecord
from autopilot.core.model.records import (
    Command,
    Decision,
    Geometry,
    Instruction,
    Proposal,
    RejectionScope,
    Reservation,
    Seen,
    Slot,
    Victim,
)
from autopilot.core.model.times import Day, Duration, Time


@dataclass(frozen=True, slots=True)
class InFlight:
    """An action between its instruction and its end (states: core/tracking/lifecycle.py)."""

    instruction: Instruction
    state: str
    since_s: Time
    action: str
    tenant: str
    cost_gpu_s: float
    contract: bool
    attempts: int = 1
    benefit_gpu_s: float = 0.0
    digest: str = ""  # of the proposal: its approval also holds for retries
    shape: str = ""  # digest of the request at the decision (core/model/identity.py)
    kind: str = ""  # of the proposal
    reason: str = ""  # of the proposal


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed effect: its object, and the tenant of it; "" for an object of the cluster, a node or a GPU."""

    at_s: Time
    uid: str
    tenant: str


CONTRACT_WINDOW_S = 3600.0
"""Window (s) of the bound on contracts for one beneficiary (core/guards/contract.py)."""


@dataclass(frozen=True, slots=True)
class Disruption:
    """One entry of the budget ledger."""

    at_s: Time
    workload: str
    tenant: str
    nodes: tuple[str, ...]
    contract: bool
    uid: str = ""
    proposal_id: str = ""
    gpus: float = 0.0  # taken; shares and instances count as their part
    beneficiary: str = ""  # uid of the waiting work in its favour; "" for none


@dataclass(frozen=True, slots=True)
class Stop:
    """An eviction or shrink with a loss still unknown (core/checkpoints/losses.py)."""

    instruction_id: str
    proposal_id: str
    workload: str
    incarnation: int
    tenant: str
    at_s: Time
    gpus: float  # held before the stop
    expected_gpu_s: float
    worst_gpu_s: float
    asked: bool  # a checkpoint was requested before the stop
    uid: str = ""
    weighed: bool = False  # for other work, by weight; a shrink is none


@dataclass(frozen=True, slots=True)
class Part:
    """One gang to start on `slots` once they are free."""

    workload: str
    incarnation: int
    slots: tuple[Slot, ...]
    uid: str = ""
    shape: str = ""  # digest of its request at the decision (core/model/identity.py)


@dataclass(frozen=True, slots=True)
class PipelinedStart:
    """A start that waits until its victims are gone (states: core/tracking/pipelined.py).

    `parts` are the gang itself and the moving victims. A part leaves the tuple at the instruction of its start.
    """

    proposal_id: str
    action: str
    tenant: str
    workload: str  # the newcomer
    victims: tuple[Victim, ...]
    parts: tuple[Part, ...]
    since_s: Time
    deadline_s: Time
    contract: bool
    uid: str = ""  # of `workload`
    benefit_gpu_s: float = 0.0
    cost_gpu_s: float = 0.0
    digest: str = ""  # of the proposal: its approval also holds for the starts


@dataclass(frozen=True, slots=True)
class ViewRecord:
    """The last trusted complete list of one source and kind, and the suspicion against later lists, if any."""

    count: int  # objects in the trusted list
    listed_s: Time  # time of the newest examined list
    lists: int = 0  # lists in agreement on the loss so far; 0: no suspicion
    counted_s: Time = float("-inf")  # time of the newest of these
    found: int = 0  # objects in the first of these
    lost: int = 0  # objects missing from it
    confirmed: bool = False  # a person confirmed the loss


@dataclass(frozen=True, slots=True)
class OpenProposal:
    """A recommendation that waits for a person, as decisions show it."""

    proposal: Proposal
    since_s: Time  # it has been shown without a break
    changed_s: Time  # its plan or figures have stood since


@dataclass(frozen=True, slots=True)
class Approval:
    """A person's approval of a recommendation, and the effects under it (core/model/approvals.py)."""

    seen: Seen
    exactly: bool
    given_s: Time
    who: str
    sent: tuple[str, ...] = ()  # digests of the plans carried out under it; it holds for their retries and starts
    taken_gpus: float = 0.0  # by these
    spent_gpu_s: float = 0.0
    side_gpus: float = 0.0  # taken by these from waiting work


@dataclass(frozen=True, slots=True)
class Rejection:
    """A person's rejection. `plan`: digest of the shown plan, if only this plan is rejected."""

    scope: RejectionScope
    action: str
    about: str  # recommendation, or queue
    plan: str
    until_s: Time
    who: str


@dataclass(frozen=True, slots=True)
class ClockDoubt:
    """A clock after a jump, still without trust.

    `first_s` is its first reading after the jump, `last_s` the latest; `ticks` counts consistent readings in a row.
    """

    first_s: Duration
    last_s: Duration
    ticks: int
    passed_s: Duration  # since the last decision, by the monotonic clock
    restarted: bool = False  # the process restarted meanwhile: more time than `passed_s` may have passed


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """Measurements of one service (core/tracking/replicas.py).

    `loads` are (bin, requests, violations): requests by bin of requests/s per ready replica, and those over the
    objective. `at_target_rps` are recent estimates of the requests/s of one replica at the owner's target load.
    `desired` are (time, replicas) from trusted forecasts; from one entry to the next, times rise and replicas fall.
    """

    ready: int = -1
    ready_since_s: Time = float("nan")
    minute_s: Time = float("-inf")  # end of the newest counted minute
    clear: bool = False  # no request waited at the end of this minute
    loads: tuple[tuple[int, float, float], ...] = ()
    at_target_rps: tuple[float, ...] = ()
    cold_starts_s: tuple[Duration, ...] = ()
    desired: tuple[tuple[Time, int], ...] = ()
    floor: int = 0  # as last observed
    raised_s: Time = float("-inf")  # time of the last observed rise
    room_s: Time = float("-inf")  # time of the last stop of work for one of its replicas (action make_room)
    returned_s: Time = float("-inf")  # time of the first fall of its floor after that


@dataclass(frozen=True, slots=True)
class RecutRecord:
    """The latest change of the geometry of a GPU (states: core/tracking/recuts.py). None: not in MIG mode."""

    pool: str
    before: Geometry | None
    after: Geometry | None
    since_s: Time  # start of this state
    deadline_s: Time
    state: str = "changing"  # draining | changing | beside | other | settled | quarantined
    scope: str = "instance"  # instance | gpu | node: what changes together
    began: bool = False  # its node reported a change under way
    starts_s: tuple[Time, ...] = ()  # of all changes of this GPU within the last hour
    reason: str = ""  # of a quarantine
    seen: Geometry | None = None  # while quarantined: the geometry of the latest lists in agreement
    views: int = 0  # number of these lists
    viewed_s: Time = float("-inf")  # time of the latest of them
    turned_s: Time = float("-inf")  # time of an earlier change of MIG mode


@dataclass(frozen=True, slots=True)
class CordonRecord:
    """A node under a cordon of the controller, or under way to one (core/tracking/cordons.py)."""

    since_s: Time
    seen: bool = False  # a view showed it cordoned
    opened: bool = False  # a person opened it since


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """The gravest XID of a GPU in one boot of its node (core/tracking/gpu_errors.py)."""

    xid: int
    node: str
    boot: str


@dataclass(frozen=True, slots=True)
class StormRecord:
    """What one action had to repeat (core/tracking/storms.py). `minutes` and `hours` are (start, events).

    `minutes` has the minutes of the last hour with events, `hours` the hours of the last 7 days with effects.
    """

    minutes: tuple[tuple[Time, int], ...] = ()
    hours: tuple[tuple[Time, int], ...] = ()
    last_s: Time = float("-inf")  # time of the latest event
    since_s: Time = float("inf")  # start of the storm; inf: there is none
    events: int = 0  # of the worst hour of the storm


@dataclass(frozen=True, slots=True)
class Touched:
    """A workload stopped or moved by an action, or a service with its floor lowered, within the last hour."""

    action: str
    uid: str
    at_s: Time


@dataclass(frozen=True, slots=True)
class Condition:
    """A state of a workload, by uid, or of a queue, by name."""

    kind: ConditionKind
    uid: str
    incarnation: int = -1  # -1: it does not end with an incarnation


@dataclass(frozen=True, slots=True)
class Noted:
    """A condition, and the start of its present unbroken time, as far as observed."""

    condition: Condition
    since_s: Time


@dataclass(frozen=True, slots=True)
class ControllerMemory:
    """The whole of it: small, persisted and versioned."""

    schema: int = 2
    tick: int = -1
    now_s: Time = float("-inf")
    fence: int = 0
    in_flight: Mapping[str, InFlight] = field(default_factory=dict)
    reservations: tuple[Reservation, ...] = ()
    # uid -> no new reservation or disruption before this time
    cooled_until_s: Mapping[str, Time] = field(default_factory=dict)
    # uid of a gang after a given-up pipelined start -> no new one before this time
    no_pipelined_until_s: Mapping[str, Time] = field(default_factory=dict)
    # uid of an object for whose own sake the cluster refused an effect -> no new one before this time
    refused_until_s: Mapping[str, Time] = field(default_factory=dict)
    proposed_since_s: Mapping[str, Time] = field(default_factory=dict)  # key of a disruptive proposal -> first seen
    conditions: tuple[Noted, ...] = ()  # those in force at the last tick
    advance: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # advance reservation -> its nodes
    # tenant -> (day, GPU-seconds used)
    spent_gpu_s: Mapping[str, tuple[tuple[Day, float], ...]] = field(default_factory=dict)
    spending_gpus: Mapping[str, float] = field(default_factory=dict)  # tenant -> held since `spent_until_s`
    spent_until_s: Time = float("-inf")
    disrupted: tuple[Disruption, ...] = ()
    open_proposals: Mapping[str, OpenProposal] = field(default_factory=dict)  # by recommendation
    approvals: Mapping[str, Approval] = field(default_factory=dict)  # by recommendation
    rejections: Mapping[str, Rejection] = field(default_factory=dict)  # by scope and object
    last_sequence: int = -1  # the highest sequence number of a command so far
    failed: tuple[Failure, ...] = ()  # failed effects inside the pause window
    storms: Mapping[str, StormRecord] = field(default_factory=dict)  # by action
    touched: tuple[Touched, ...] = ()
    promises: tuple[Promise, ...] = ()  # of executed actions within their horizon
    kept_promises: Mapping[str, PromiseRecord] = field(default_factory=dict)  # by action, with its cap
    pipelined_starts: tuple[PipelinedStart, ...] = ()
    usage_gpu_s: Mapping[str, float] = field(default_factory=dict)  # decayed past use, by queue
    standing_use_gpu_s: Mapping[str, float] = field(default_factory=dict)  # the same at the review's start
    held_gpus: Mapping[str, float] = field(default_factory=dict)  # by queue, since the last tick
    # of queues that share time: their decayed part of the cluster, the same at the review's start, and the part now
    part_gpu_s: Mapping[str, float] = field(default_factory=dict)
    standing_part_gpu_s: Mapping[str, float] = field(default_factory=dict)
    part_gpus: Mapping[str, float] = field(default_factory=dict)
    usage_at_s: Time = float("-inf")
    services: Mapping[str, ServiceRecord] = field(default_factory=dict)
    starting_s: Mapping[str, Duration] = field(default_factory=dict)  # replica in start-up -> its start
    stops: tuple[Stop, ...] = ()
    weighed_stops: Mapping[str, int] = field(default_factory=dict)  # uid -> number of its stops for other work
    # checkpoint requests: (made, answered by a checkpoint)
    tenant_saves: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    workload_saves: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    recuts: Mapping[str, RecutRecord] = field(default_factory=dict)  # by UUID of the GPU
    cordons: Mapping[str, CordonRecord] = field(default_factory=dict)  # by name of the node
    gpu_errors: Mapping[str, ErrorRecord] = field(default_factory=dict)  # by UUID of the GPU
    idle_nodes_s: Mapping[str, Time] = field(default_factory=dict)  # node fit for an offer -> start of its idleness
    offered_s: Mapping[str, Time] = field(default_factory=dict)  # node -> time of its offer
    requested_s: Mapping[str, Time] = field(default_factory=dict)  # uid -> time of the last request for nodes
    killed: bool = False
    kill_sequence: int = -1  # a RESUME with a higher number ends the kill
    last_kill: Command | None = None  # as received, to recognize a repeat
    paused_reason: str = ""
    paused_since_s: Time = float("nan")
    paused_by: str = ""  # the person; "" when the autopilot paused itself: such a pause lapses
    clock_doubt: ClockDoubt | None = None
    clock_drift_s: Duration = 0.0  # wall clock minus monotonic clock, not applied yet; under 0.5 s
    wake_at_s: Time = float("-inf")
    idle: IdleMemory = field(default_factory=IdleMemory)
    views: Mapping[str, ViewRecord] = field(default_factory=dict)  # "<kind>/<source>" -> its record


@dataclass(frozen=True, slots=True)
class Step:
    """The result of reconcile()."""

    memory: ControllerMemory
    decision: Decision
    instructions: tuple[Instruction, ...]
    wake_at_s: float
