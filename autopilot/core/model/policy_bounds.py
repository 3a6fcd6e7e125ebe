"""Policy fields of one concern each: what bounds and calms, what broke, what goes on for too long, where work goes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from annotated_types import Interval
from typing_extensions import Doc

DAY_S = 86_400.0


class SloClassName(StrEnum):
    """The SLO classes by name, in the order of `snapshot.SLO_CLASS_NAMES`."""

    LATENCY_CRITICAL = "latency-critical"
    INTERACTIVE = "interactive"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class Recovery:
    """What is done about gangs and hardware that broke."""

    stale_grace_s: Annotated[
        float,
        Interval(ge=0, le=DAY_S),
        Doc("a gang below its minimum of live members is stopped after this long"),
    ] = 60.0
    notice_margin_s: Annotated[
        float,
        Interval(ge=0, le=3600),
        Doc(
            "work on a node that the cloud called back goes on until its checkpoint must be asked for, this long "
            "before the last moment"
        ),
    ] = 60.0
    stuck_after_s: Annotated[
        float,
        Interval(ge=60, le=7 * DAY_S),
        Doc("work that was told to leave and is still there this long past its grace is taken off by force"),
    ] = 900.0
    hung_after_s: Annotated[
        float,
        Interval(ge=1800, le=7 * DAY_S),
        Doc("a gang of several GPUs that all did nothing for this long, by fresh telemetry, is stopped to start again"),
    ] = 3600.0
    hung_ratio: Annotated[
        float,
        Interval(ge=0, le=0.2),
        Doc("activity of a GPU (SM, tensor, memory) below which it does nothing"),
    ] = 0.01
    hung_share: Annotated[
        float,
        Interval(ge=0, le=1),
        Doc(
            "more than this share of the running gangs of one telemetry source, and more than one gang, that do "
            "nothing at "
            "once are a fault of the telemetry: none of them is stopped"
        ),
    ] = 0.25
    alive_share: Annotated[
        float,
        Interval(ge=0, le=1),
        Doc(
            "a gang that does nothing is stopped only where at least this share of the other work that the same "
            "telemetry "
            "source measures is active, and some of it"
        ),
    ] = 0.25
    hung_restarts: Annotated[
        int,
        Interval(ge=0, le=100),
        Doc(
            "how often a gang is started again for doing nothing; after that it is left to its owner, and that is said"
        ),
    ] = 1
    coordinator_wait_s: Annotated[
        float,
        Interval(ge=60, le=7 * DAY_S),
        Doc("a coordinator whose own workers have waited this long for GPUs is stopped, and starts again after them"),
    ] = 900.0


@dataclass(frozen=True, slots=True)
class Enforcement:
    """What is done about work beyond its limits."""

    grace_s: Annotated[
        float,
        Interval(ge=0, le=7 * DAY_S),
        Doc("work past its run-time limit is warned, and suspended with a checkpoint this long after its limit"),
    ] = 900.0
    spend_ratio: Annotated[
        float,
        Interval(ge=1, le=1000),
        Doc("a tenant whose use of the last day exceeds this many times the mean day of its last 30 has run away"),
    ] = 1.3
    spend_floor_gpu_s: Annotated[
        float,
        Interval(ge=0, le=1e12),
        Doc("use of a day below which nobody has run away"),
    ] = 24 * 3600.0
    spend_suspends: Annotated[
        bool,
        Doc(
            "work of a tenant that ran away, above what its queue is guaranteed, is suspended too; otherwise it "
            "is warned only"
        ),
    ] = False


@dataclass(frozen=True, slots=True)
class Hysteresis:
    """Calm: how long a wish must last, and how long an object is left alone."""

    dwell_s: Annotated[
        float, Interval(ge=0, le=DAY_S), Doc("a disruptive wish must hold this long before it may act")
    ] = 300.0
    cool_down_s: Annotated[
        float,
        Interval(ge=0, le=7 * DAY_S),
        Doc(
            "a workload disrupted once is not disrupted again for this long, nor does it make others of its queue pause"
        ),
    ] = 1800.0
    margin_ratio: Annotated[float, Interval(ge=0, le=10), Doc("benefit must exceed cost by this part")] = 0.2


@dataclass(frozen=True, slots=True)
class Budget:
    """Bounds on disruption in any window of `window_s`; contractual evictions are not counted."""

    window_s: Annotated[float, Interval(ge=60, le=7 * DAY_S), Doc("length of the sliding window")] = 3600.0
    per_cluster: Annotated[int, Interval(ge=0, le=1_000_000), Doc("disruptions per window over the whole cluster")] = 20
    per_tenant: Annotated[int, Interval(ge=0, le=1_000_000), Doc("disruptions per window of one tenant's work")] = 5
    per_node: Annotated[int, Interval(ge=0, le=1_000_000), Doc("disruptions per window touching one node")] = 2
    concurrent: Annotated[int, Interval(ge=0, le=1_000_000), Doc("disruptions under way at once")] = 4


@dataclass(frozen=True, slots=True)
class Freshness:
    """How old what we know may be before it stops an action."""

    inventory_s: Annotated[float, Interval(ge=1, le=DAY_S), Doc("nodes, GPUs and instances")] = 120.0
    work_s: Annotated[float, Interval(ge=1, le=DAY_S), Doc("workloads and their placements")] = 60.0
    telemetry_s: Annotated[float, Interval(ge=1, le=DAY_S), Doc("signals, for actions that rest on them")] = 180.0


@dataclass(frozen=True, slots=True)
class Views:
    """When a list of a source is believed though far fewer objects are in it than before."""

    objects: Annotated[
        int, Interval(ge=1, le=1_000_000), Doc("sources that show fewer objects than this are not judged")
    ] = 20
    loss_ratio: Annotated[
        float,
        Interval(ge=0, le=1),
        Doc(
            "a source that loses more than this part of its objects between two complete lists, other than by "
            "deletions "
            "that it reports and work that it shows ended, is suspected: nothing acts"
        ),
    ] = 0.5
    lists: Annotated[
        int,
        Interval(ge=1, le=100),
        Doc("complete lists that must agree before a suspected source counts again"),
    ] = 3
    apart_s: Annotated[float, Interval(ge=0, le=3600), Doc("those lists are at least this long apart")] = 30.0
    look_again_s: Annotated[
        float,
        Interval(ge=1, le=3600),
        Doc("while a view is missing, stale or suspected, look again after this long"),
    ] = 15.0


@dataclass(frozen=True, slots=True)
class Protection:
    """What is never a victim, whatever the gain."""

    classes: Annotated[tuple[SloClassName, ...], Doc("SLO classes whose work is never evicted")] = (
        SloClassName.LATENCY_CRITICAL,
    )
    min_runtime_s: Annotated[float, Interval(ge=0, le=7 * DAY_S), Doc("no victim younger than this")] = 900.0


@dataclass(frozen=True, slots=True)
class Pause:
    """When the autopilot stops itself."""

    failures: Annotated[
        int, Interval(ge=1, le=1000), Doc("failed effects within the window that pause every action")
    ] = 5
    window_s: Annotated[float, Interval(ge=60, le=DAY_S), Doc("length of that window")] = 900.0
    length_s: Annotated[float, Interval(ge=60, le=7 * DAY_S), Doc("the pause ends by itself after this long")] = 1800.0


@dataclass(frozen=True, slots=True)
class ApprovalRules:
    """How long a person's word on one proposal holds."""

    valid_s: Annotated[float, Interval(ge=1, le=7 * DAY_S), Doc("an approval ends this long after it was given")] = (
        900.0
    )
    cost_ratio: Annotated[
        float,
        Interval(ge=1, le=1000),
        Doc("and as soon as the cost exceeds this many times what was shown"),
    ] = 1.2
    gain_ratio: Annotated[
        float,
        Interval(ge=0, le=1),
        Doc("and as soon as the benefit falls below this part of what was shown"),
    ] = 0.8
    rejected_s: Annotated[
        float,
        Interval(ge=1, le=7 * DAY_S),
        Doc("a rejected proposal is not carried out in the same state for this long"),
    ] = 3600.0


@dataclass(frozen=True, slots=True)
class ClockRules:
    """When the clock is believed."""

    max_jump_s: Annotated[
        float,
        Interval(ge=1, le=DAY_S),
        Doc(
            "a clock that moved by this much more or less than time has passed has jumped, and nothing acts; smaller "
            "differences move every timer with the clock"
        ),
    ] = 60.0
    confirm_ticks: Annotated[
        int,
        Interval(ge=2, le=100),
        Doc("a clock that jumped is believed after this many ticks in a row that go on from there"),
    ] = 3
    max_skew_s: Annotated[
        float,
        Interval(ge=0, le=3600),
        Doc("what a source dates further in the future than this is treated as not known"),
    ] = 5.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one tick."""

    proposals_per_tick: Annotated[int, Interval(ge=1, le=100_000), Doc("full proposals built in one tick")] = 2000
    search_steps: Annotated[
        int,
        Interval(ge=1000, le=100_000_000),
        Doc(
            "steps of work, about 1 us each, after which an action begins no further search for whom to take or move "
            "in this tick, forty times as many for what is owed by contract; a search under way may end later"
        ),
    ] = 50_000
    deadline_s: Annotated[float, Interval(ge=1, le=3600), Doc("an effect not seen after this long is taken back")] = (
        120.0
    )
    attempts: Annotated[int, Interval(ge=1, le=100), Doc("tries of one effect before it counts as failed")] = 3


@dataclass(frozen=True, slots=True)
class JournalRules:
    """How much the record may hold."""

    keyframe_s: Annotated[float, Interval(ge=1, le=DAY_S), Doc("time between two whole observations")] = 600.0
    keyframe_ticks: Annotated[
        int, Interval(ge=1, le=100_000), Doc("at least this many ticks lie between two of them")
    ] = 64
    max_mib: Annotated[int, Interval(ge=1, le=1_000_000), Doc("oldest whole segments are dropped above this size")] = (
        2048
    )
    max_age_s: Annotated[float, Interval(ge=3600, le=3660 * DAY_S), Doc("and beyond this age")] = 30 * DAY_S


@dataclass(frozen=True, slots=True)
class Forecasting:
    """How forecasting models are fitted; work is counted in rows x trees."""

    fit_delay_s: Annotated[
        float,
        Interval(ge=0, le=DAY_S),
        Doc("in a simulation: virtual time after which what a fit gave is used, as if a worker had run it"),
    ] = 300.0
    fit_cpu_s: Annotated[float, Interval(ge=1, le=DAY_S), Doc("live: CPU time after which a fit is stopped")] = 180.0
    fit_timeout_s: Annotated[
        float,
        Interval(ge=1, le=DAY_S),
        Doc("live: time after which a fit is stopped, however busy the machine"),
    ] = 1800.0
    retrain_s: Annotated[
        float, Interval(ge=3600, le=366 * DAY_S), Doc("models of run times older than this are fitted again")
    ] = 7 * DAY_S
    growth_ratio: Annotated[
        float, Interval(ge=0.05, le=10), Doc("and earlier, once the history has grown by this part")
    ] = 0.5
    most_rows: Annotated[int, Interval(ge=1000, le=1_000_000), Doc("ended jobs that a fit looks at, the newest")] = 8000
    trees: Annotated[int, Interval(ge=10, le=1000), Doc("trees of each model of run times")] = 60


@dataclass(frozen=True, slots=True)
class PlacementWeights:
    """Weights of the placement score; each term is shown with every admission (higher is better)."""

    fill: Annotated[
        float,
        Interval(ge=-100, le=100),
        Doc("prefer the fullest node that fits; negative: the emptiest, which spreads the load"),
    ] = 10.0
    stranded: Annotated[
        float, Interval(ge=0, le=100), Doc("penalty for capacity that no typical gang could use afterwards")
    ] = 1.0
    island: Annotated[float, Interval(ge=0, le=100), Doc("prefer one NVLink island for a gang of several nodes")] = 2.0
    leaf: Annotated[float, Interval(ge=0, le=100), Doc("prefer one leaf switch for a gang of several nodes")] = 1.0
    interference: Annotated[
        float, Interval(ge=0, le=100), Doc("avoid nodes whose shared GPUs serve latency-critical work")
    ] = 1.0
    drain: Annotated[
        float, Interval(ge=0, le=100), Doc("prefer the node whose running work ends at about the same time")
    ] = 0.0
