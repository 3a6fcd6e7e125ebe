"""What the controller remembers between two decisions: what cannot be seen by looking at the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autopilot.core.model.records import Command, Decision, Instruction, Reservation, Slot, Victim


@dataclass(frozen=True, slots=True)
class InFlight:
    """An action between its instruction and its end (states: core/tracking/lifecycle.py)."""

    instruction: Instruction
    state: str
    since_s: float
    action: str
    tenant: str
    cost_gpu_s: float
    contract: bool
    attempts: int = 1
    benefit_gpu_s: float = 0.0
    digest: str = ""  # of the proposal: an approval of it holds for the retries too
    shape: str = ""  # what the workload asked for when this was decided (core/model/identity.py)
    kind: str = ""  # of the proposal


@dataclass(frozen=True, slots=True)
class Disruption:
    """One entry of the budget ledger."""

    at_s: float
    workload: str
    tenant: str
    nodes: tuple[str, ...]
    contract: bool
    uid: str = ""
    proposal_id: str = ""


@dataclass(frozen=True, slots=True)
class Stop:
    """A workload that was told to leave, or to shrink, until it is seen what that lost (core/checkpoints/losses.py)."""

    instruction_id: str
    proposal_id: str
    workload: str
    incarnation: int
    tenant: str
    at_s: float
    gpus: float  # that it held
    expected_gpu_s: float
    worst_gpu_s: float
    asked: bool  # to write a checkpoint before it leaves


@dataclass(frozen=True, slots=True)
class Part:
    """One gang that is to start on `slots` once they are free."""

    workload: str
    incarnation: int
    slots: tuple[Slot, ...]
    uid: str = ""
    shape: str = ""  # what it asked for when this was decided (core/model/identity.py)


@dataclass(frozen=True, slots=True)
class PipelinedStart:
    """A start that waits until those in its way are gone (states: core/tracking/pipelined.py).

    `parts`: the gang itself, and victims that go on elsewhere; each leaves the tuple when its start is instructed.
    """

    proposal_id: str
    action: str
    tenant: str
    workload: str  # for whom all this is
    victims: tuple[Victim, ...]
    parts: tuple[Part, ...]
    since_s: float
    deadline_s: float
    contract: bool
    uid: str = ""  # of `workload`
    benefit_gpu_s: float = 0.0
    cost_gpu_s: float = 0.0
    digest: str = ""  # of the proposal: an approval of it holds for the starts too


@dataclass(frozen=True, slots=True)
class ViewRecord:
    """The last trusted complete list of one source and kind, and a suspicion against what came after it."""

    count: int  # objects in the trusted list
    listed_s: float  # of the newest list that was looked at
    lists: int = 0  # lists that agree on the loss so far; 0: nothing is suspected
    counted_s: float = float("-inf")  # of the newest of those
    found: int = 0  # objects in the first of those
    lost: int = 0  # objects missing from it
    confirmed: bool = False  # a person says that the loss is real


@dataclass(frozen=True, slots=True)
class RankedTarget:
    """What a decision showed of a proposal that waits for approval."""

    state_digest: str
    benefit_gpu_s: float
    cost_gpu_s: float


@dataclass(frozen=True, slots=True)
class Approval:
    """A person's consent to one proposal, with what was shown of it. `ended`: the code of what ended it, for good."""

    state_digest: str
    given_s: float
    benefit_gpu_s: float
    cost_gpu_s: float
    who: str
    ended: str = ""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A person's refusal of one proposal. `state_digest`: of the state that was shown; "" where none was named."""

    state_digest: str
    until_s: float
    who: str


@dataclass(frozen=True, slots=True)
class ClockDoubt:
    """A clock that jumped and is not believed yet: since which reading, and how often in a row it went on from
    there.
    """

    first_s: float
    last_s: float
    ticks: int
    passed_s: float  # since the last decision, by the clock that nobody sets
    restarted: bool = False  # the process restarted meanwhile: more time than `passed_s` may have passed


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """What was learned of one service (core/tracking/replicas.py).

    `loads` are (bin, requests, violations): what came by requests/s a ready replica, and what of it missed the
    objective. `at_target_rps` are recent estimates of the requests/s of a replica at the load that its owner wants.
    `wishes` are (when, replicas) of the forecasts that were trusted: later and fewer from one to the next.
    """

    ready: int = -1
    ready_since_s: float = float("nan")
    minute_s: float = float("-inf")  # end of the newest minute that was learned from
    clear: bool = False  # nobody waited at the end of that minute
    loads: tuple[tuple[int, float, float], ...] = ()
    at_target_rps: tuple[float, ...] = ()
    cold_starts_s: tuple[float, ...] = ()
    desired: tuple[tuple[float, int], ...] = ()
    floor: int = 0  # as it was last seen
    raised_s: float = float("-inf")  # when it was last seen to have risen


@dataclass(frozen=True, slots=True)
class ControllerMemory:
    """What is not derivable from the observation. Small, persisted, versioned."""

    schema: int = 2
    tick: int = -1
    now_s: float = float("-inf")
    fence: int = 0
    in_flight: Mapping[str, InFlight] = field(default_factory=dict)
    reservations: tuple[Reservation, ...] = ()
    # uid -> no reservation/disruption before
    cooled_until_s: Mapping[str, float] = field(default_factory=dict)
    # uid of work whose landing was given up
    no_pipelined_until_s: Mapping[str, float] = field(default_factory=dict)
    proposed_since_s: Mapping[str, float] = field(default_factory=dict)  # disruptive wish key -> first seen
    noted_since_s: Mapping[str, float] = field(default_factory=dict)  # condition of an object -> first seen
    advance: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # advance reservation -> its nodes
    # tenant -> (day, used)
    spent_gpu_s: Mapping[str, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    spending_gpus: Mapping[str, float] = field(default_factory=dict)  # tenant -> held since `spent_until_s`
    spent_until_s: float = float("-inf")
    disrupted: tuple[Disruption, ...] = ()
    ranked_targets: Mapping[str, RankedTarget] = field(
        default_factory=dict
    )  # proposal id -> what the last decision showed
    approvals: Mapping[str, Approval] = field(default_factory=dict)  # by proposal id
    rejections: Mapping[str, Rejection] = field(default_factory=dict)  # by proposal id
    last_sequence: int = -1  # the highest number of a command so far
    failures: tuple[float, ...] = ()  # times of failed effects inside the pause window
    pipelined_starts: tuple[PipelinedStart, ...] = ()
    usage_gpu_s: Mapping[str, float] = field(default_factory=dict)  # decayed past use, by queue
    standing_use_gpu_s: Mapping[str, float] = field(default_factory=dict)  # the same at the review's start
    held_gpus: Mapping[str, float] = field(default_factory=dict)  # by queue, since the last tick
    usage_at_s: float = float("-inf")
    services: Mapping[str, ServiceRecord] = field(default_factory=dict)
    starting_s: Mapping[str, float] = field(default_factory=dict)  # replicas that start up, and since when
    stops: tuple[Stop, ...] = ()  # whose loss is not known yet
    # requests to save a checkpoint: how many, and how many were answered by one
    tenant_saves: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    workload_saves: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    killed: bool = False
    kill_sequence: int = -1  # a RESUME with a higher number ends the kill
    last_kill: Command | None = None  # as it came, so that a repeat is known
    paused_reason: str = ""
    paused_since_s: float = float("nan")
    paused_by: str = ""  # the person; "" when the autopilot paused itself, which lapses
    clock_doubt: ClockDoubt | None = None
    clock_drift_s: float = 0.0  # of the wall clock against the one that nobody sets; less than half a second
    wake_at_s: float = float("-inf")
    views: Mapping[str, ViewRecord] = field(default_factory=dict)  # "<kind>/<source>" -> what was shown


@dataclass(frozen=True, slots=True)
class Step:
    """The answer of reconcile()."""

    memory: ControllerMemory
    decision: Decision
    instructions: tuple[Instruction, ...]
    wake_at_s: float
