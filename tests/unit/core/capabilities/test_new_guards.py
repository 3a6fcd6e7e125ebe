"""Guards of takings: slo, blast_radius, checkpoint writes in budget, shrinks in gang. One planted bug each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from autopilot.core.capabilities.actions import ACTIONS
from autopilot.core.capabilities.guards import GUARDS
from autopilot.core.effects.action import Action, cases_of
from autopilot.core.effects.admit import AdmitDraft, AdmitOperation
from autopilot.core.effects.disruption import takes_gpus
from autopilot.core.effects.draft import Case, Draft, Eviction, Submit
from autopilot.core.effects.evict import EvictDraft, EvictOperation
from autopilot.core.effects.pipeline import PipelineDraft
from autopilot.core.guards.base import allow
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.memory.effects import EffectsMemory, InFlight
from autopilot.core.model.policy import Mode, Policy
from autopilot.core.model.records import Code, Evidence, Observation, Verdict
from autopilot.core.model.snapshot import ServiceTable, State, make
from autopilot.core.model.stops import StopReason
from autopilot.core.model.verb import Operation
from autopilot.core.placement.shapes import Fit
from autopilot.core.placement.whatif import Layout
from autopilot.core.planning.context import Context
from autopilot.core.sharing_time.grow import GrowDraft
from autopilot.core.sharing_time.resize_members import ResizeOperation
from tests.kits.core_world import decide, holds, observe, snapshot, waits, with_policy
from tests.kits.instructions import STOP, instruct
from tests.kits.ticking_world import EAGER
from tests.kits.usage_world import measured

NOW = 9000.0
CASES = cases_of(ACTIONS)


def layout(*gpus: int, milli: int = 1000) -> Layout:
    """Whole GPUs, or shares."""
    return Layout(np.array(gpus, np.int32), np.full(len(gpus), -1, np.int32), np.full(len(gpus), milli, np.int32))


@dataclass(frozen=True)
class Planted:
    """An action that only tests have: `gives` by name -> (how, what it keeps), for `winner`, which lands on `spot`."""

    winner: str
    evictions: dict[str, tuple[str, Layout | None]]
    fit: Layout | None = None
    kind: str = "pipeline"
    action: str = "preempt"
    reason: str = ""
    contract: bool = False
    answers: list[bool] = field(default_factory=list)

    def __call__(self, ctx: Context, submit: Submit) -> None:
        """Submit it."""
        snap = ctx.observation.snapshot
        ids = snap.workloads.id.tolist()
        row = ids.index(self.winner)
        evictions = []
        for name, (how, keeps) in self.evictions.items():
            victim = ids.index(name)
            held = len(ctx.whatif.layout_of(victim))
            lost = held - len(keeps) if how != "move" and keeps is not None else held
            evictions.append(Eviction(victim, how, keeps, lost, 1.0))
        fit = None
        if self.fit is not None:
            nodes = np.unique(snap.gpus.node[self.fit.gpu]).astype(np.int32)
            fit = Fit(self.fit, nodes, 0.0, ())
        plain = Case(self.action, self.kind, contract="planted" if self.contract else "")
        common: dict[str, Any] = {
            "case": CASES.get((self.action, self.kind, self.reason), plain),
            "row": row,
            "benefit_gpu_s": 1e9,
            "cost_gpu_s": 1.0,
            "evidence": (Evidence("planted", 1),),
        }
        self.answers.append(submit(_DRAFTS[self.kind](common, fit, tuple(evictions))))

    @property
    def table(self) -> tuple[Action, ...]:
        """An action table of this action alone."""
        return (Action(self.action, "", self),)


_DRAFTS: dict[str, Callable[[dict[str, Any], Any, tuple[Eviction, ...]], Draft]] = {
    "admit": lambda common, fit, _: AdmitDraft(**common, fit=fit),
    "grow": lambda common, fit, _: GrowDraft(**common, fit=fit),
    "pipeline": lambda common, fit, given: PipelineDraft(**common, fit=fit, evictions=given),
    "evict": lambda common, _, given: EvictDraft(**common, evictions=given),
}


def answer(
    planted: Planted,
    observation: Observation,
    guard: str,
    policy: Policy = EAGER,
    memory: ControllerMemory | None = None,
) -> Verdict:
    """The verdict of one guard, after checking that without it nothing else would refuse what it refuses."""
    step = decide(observation, policy, memory, actions=planted.table)
    (proposal,) = step.decision.plan.proposals
    found = {verdict.guard: verdict for verdict in proposal.verdicts}
    if not found[guard].allowed:
        assert [name for name, verdict in found.items() if not verdict.allowed] == [guard]
        assert not step.instructions
        without = tuple((name, check) for name, check in GUARDS if name != guard)
        assert carried_out(decide(observation, policy, memory, actions=planted.table, guards=without))
    return found[guard]


def carried_out(step: Step) -> bool:
    """True when the planted wish got through."""
    return any(proposal.accepted for proposal in step.decision.plan.proposals)


def scene(*work: Any, shape: str = "1x8", services: ServiceTable | None = None, **more: Any) -> Observation:
    """At 9,000 s."""
    snap = snapshot(
        shape,
        work or [holds("v", 8, gpus_per_member=1, min_gpus=2), waits("w", 4, gpus_per_member=4)],
        **more,
    )
    return observe(replace(snap, services=services) if services is not None else snap, NOW)


# --- slo --------------------------------------------------------------------------------------------


def service(p99_s: float, objective_s: float = 0.2, age_s: float = 5.0) -> ServiceTable:
    """One service."""
    table: ServiceTable = make(
        ServiceTable, id=["chat"], uid=["chat"], objective_s=[objective_s], p99_s=[p99_s], age_s=[age_s]
    )
    return table


@pytest.mark.parametrize(
    ("table", "code", "value"),
    [
        (service(0.3), Code.SLO_BURNING, 1.5),
        (service(0.2), Code.OK, 1.0),
        (service(float("nan")), Code.SLO_BURNING, np.inf),
        (service(0.1, age_s=181.0), Code.SLO_BURNING, np.inf),
        (service(0.1, age_s=float("nan")), Code.SLO_BURNING, np.inf),
        (service(0.3, objective_s=0.0), Code.OK, 0.0),
        (service(0.3, objective_s=float("nan")), Code.OK, 0.0),
    ],
)
def test_no_replica_of_a_service_that_misses_its_objective(table: ServiceTable, code: Code, value: float) -> None:
    """Judged by p99 over objective; a p99 that is not known or old is not good; binds contracts too."""
    observation = scene(holds("v", 8, service=0), waits("w", 8), services=table)
    for contract in (False, True):
        verdict = answer(Planted("w", {"v": ("evict", None)}, layout(*range(8)), contract=contract), observation, "slo")
        assert verdict.code == code
        assert verdict.value == pytest.approx(value)


def test_the_worst_service_touched_decides_and_others_do_not_matter() -> None:
    """Of two victims the worse counts; work of no service has no say."""
    table: ServiceTable = make(
        ServiceTable, id=["good", "bad"], uid=["good", "bad"], objective_s=[1.0, 1.0], p99_s=[0.5, 2.0]
    )
    both = scene(holds("g", 4, service=0), holds("b", 4, service=1), waits("w", 8), services=table)
    wanted = {"g": ("evict", None), "b": ("evict", None)}
    assert answer(Planted("w", wanted, layout(*range(8))), both, "slo").value == 2.0  # type: ignore[arg-type]
    other = scene(holds("g", 4), holds("b", 4, service=1), waits("w", 4, gpus_per_member=4), services=table)
    assert answer(Planted("w", {"g": ("evict", None)}, layout(*range(4))), other, "slo").code == Code.OK


def test_a_broken_replica_is_stopped_whatever_its_service_does() -> None:
    """Recovery is no disruption: what is left of the replica serves no requests."""
    observation = scene(holds("v", 8, service=0), services=service(9.9))
    planted = Planted("v", {"v": ("evict", None)}, kind="evict", action="recover", reason="broken")
    assert answer(planted, observation, "slo").code == Code.OK


# --- blast radius -----------------------------------------------------------------------------------

TIGHT = with_policy(EAGER, preemption={"blast_ratio": 4.0})


@pytest.mark.parametrize(
    ("wide", "contract", "code", "ratio"),
    [(1, False, Code.BLAST_RADIUS, 8.0), (2, False, Code.OK, 4.0), (1, True, Code.WAIVED_CONTRACT, 8.0)],
)
def test_no_large_gang_for_a_small_need(wide: int, contract: bool, code: Code, ratio: float) -> None:
    """Eight GPUs taken for one that is needed are too many at a bound of four; a contract waives it."""
    observation = scene(holds("v", 8), waits("w", wide, gpus_per_member=wide))
    verdict = answer(
        Planted("w", {"v": ("evict", None)}, layout(*range(wide)), contract=contract),
        observation,
        "blast_radius",
        TIGHT,
    )
    assert (verdict.code, verdict.value, verdict.threshold) == (code, ratio, 4.0)


def test_parts_of_gpus_count_as_parts() -> None:
    """One whole GPU for a tenth of one is ten for one; three of eight members for two GPUs one and a half."""
    observation = scene(holds("v", 1, gpus_per_member=1), waits("w", 1, gpu_milli=100))
    verdict = answer(Planted("w", {"v": ("evict", None)}, layout(0, milli=100)), observation, "blast_radius", TIGHT)
    assert (verdict.code, verdict.value) == (Code.BLAST_RADIUS, 10.0)
    shrunk = scene(holds("v", 8, gpus_per_member=1, min_gpus=2), waits("w", 2, gpus_per_member=2))
    verdict = answer(Planted("w", {"v": ("shrink", layout(*range(5)))}, layout(5, 6)), shrunk, "blast_radius", TIGHT)
    assert (verdict.code, verdict.value) == (Code.OK, 1.5)


def test_a_moved_gang_counts_in_full() -> None:
    """Moving eight for the sake of one is eight for one."""
    observation = scene(holds("v", 8, on=range(8)), waits("w", 1, gpus_per_member=1), shape="2x8")
    planted = Planted("w", {"v": ("move", layout(*range(8, 16)))}, layout(0))
    assert answer(planted, observation, "blast_radius", TIGHT).value == 8.0


def test_a_share_that_has_no_place_yet_is_needed_as_its_part() -> None:
    """One GPU for half of one is two for one, even if no gang starts on it in this plan."""
    observation = scene(holds("v", 1, gpus_per_member=1), waits("w", 1, gpu_milli=500))
    planted = Planted("w", {"v": ("evict", None)}, kind="evict")
    assert answer(planted, observation, "blast_radius", TIGHT).value == 2.0


# --- freshness and protected ------------------------------------------------------------------------


def test_nothing_starts_on_a_broken_gpu() -> None:
    """A GPU that is not healthy is not fit, though its node is ready."""
    observation = scene(waits("w", 2, gpus_per_member=2), unhealthy=[1])
    verdict = answer(Planted("w", {}, layout(0, 1), kind="admit", action="admit_gang"), observation, "freshness")
    assert (verdict.code, verdict.value) == (Code.NODE_UNFIT, 1.0)


@pytest.mark.parametrize("age_s", [181.0, -6.0], ids=["stale", "of the future"])
def test_one_signal_that_is_not_fresh_makes_the_telemetry_of_a_gang_stale(age_s: float) -> None:
    """Judged by the signals of all GPUs that are touched, as the verdict on a hang judges them."""
    observation = scene(holds("v", 8))
    ages_s = np.array([5.0] * 7 + [age_s], np.float32)
    snap = replace(observation.snapshot, telemetry=replace(observation.snapshot.telemetry, age_s=ages_s))
    planted = Planted("v", {"v": ("evict", None)}, kind="evict", action="recover", reason="hung")
    verdict = answer(planted, replace(observation, snapshot=snap), "freshness")
    assert (verdict.code, verdict.value, verdict.threshold) == (Code.STALE_TELEMETRY, age_s, 180.0)


def in_doubt(observation: Observation) -> Observation:
    """The same, with one GPU of the gang that has repeated one number for half an hour."""
    snap = measured(observation.snapshot, {"sm_active_ratio": [0.5] * 8}, samples=20)
    highest = snap.telemetry.mean * np.float32(1.1)
    highest[:, :, 7] = snap.telemetry.mean[:, :, 7]
    return replace(observation, snapshot=replace(snap, telemetry=replace(snap.telemetry, maximum=highest)))


def test_what_relies_on_telemetry_in_doubt_is_held_with_its_reason() -> None:
    """One GPU of eight whose exporter repeats itself holds the stop of a gang that seems to hang, and nothing else."""
    observation = in_doubt(scene(holds("v", 8)))
    hung = Planted("v", {"v": ("evict", None)}, kind="evict", action="recover", reason="hung")
    verdict = answer(hung, observation, "telemetry")
    assert (verdict.code, verdict.value, verdict.threshold) == (Code.TELEMETRY_STUCK, 1.0, 8.0)
    broken = Planted("v", {"v": ("evict", None)}, kind="evict", action="recover", reason="broken")
    assert answer(broken, observation, "telemetry").allowed


def test_without_the_guard_doubtful_telemetry_stops_work() -> None:
    """The planted bug: a guard that allows everything lets the stop through."""
    hung = Planted("v", {"v": ("evict", None)}, kind="evict", action="recover", reason="hung")
    blind = tuple(
        (name, (lambda *_: allow("telemetry", 0.0, "planted", 0.0)) if name == "telemetry" else check)
        for name, check in GUARDS
    )
    step = decide(in_doubt(scene(holds("v", 8))), EAGER, None, actions=hung.table, guards=blind)
    assert [effect.subject.name for effect in step.instructions] == ["v"]


@pytest.mark.parametrize(("how", "keeps"), [("evict", None), ("move", layout(*range(8, 16)))])
def test_work_that_cannot_save_is_not_moved_either(how: str, keeps: Layout | None) -> None:
    """A move stops the work as an eviction does."""
    observation = scene(
        holds("v", 8, on=range(8), checkpoint_interval_s=np.inf),
        waits("w", 4, gpus_per_member=4),
        shape="2x8",
    )
    policy = with_policy(EAGER, preemption={"without_checkpoint": False})
    verdict = answer(Planted("w", {"v": (how, keeps)}, layout(0, 1, 2, 3)), observation, "protected", policy)
    assert verdict.code == Code.WITHOUT_CHECKPOINT


# --- gang -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "keeps", "code"),
    [
        ("shrink", layout(0, 1, 2, 3), Code.OK),
        ("shrink", layout(0, 1), Code.OK),
        ("shrink", layout(0), Code.PARTIAL_EVICTION),  # below its minimum
        ("shrink", layout(), Code.PARTIAL_EVICTION),  # that is an eviction
        ("shrink", layout(0, 1, 2, 8), Code.PARTIAL_EVICTION),  # a shrink goes nowhere else
        ("move", layout(8, 9, 10), Code.OK),  # it goes on elsewhere with fewer members
        ("move", layout(8), Code.PARTIAL_EVICTION),  # below its minimum
        ("move", layout(*range(8, 16)), Code.OK),
        ("evict", None, Code.OK),
        ("evict", layout(0, 1, 2, 3), Code.PARTIAL_EVICTION),  # half of it stays behind
    ],
)
def test_a_gang_is_never_half_evicted(how: str, keeps: Layout | None, code: Code) -> None:
    """It shrinks in place or moves, to no less than its minimum, or goes whole."""
    observation = scene(
        holds("v", 8, on=range(8), gpus_per_member=1, min_gpus=2),
        waits("w", 4, gpus_per_member=4),
        shape="2x8",
    )
    assert answer(Planted("w", {"v": (how, keeps)}, layout(4, 5, 6, 7)), observation, "gang").code == code


def test_a_gang_that_is_not_elastic_does_not_shrink() -> None:
    """Its minimum is its width."""
    observation = scene(holds("v", 8, gpus_per_member=1), waits("w", 4, gpus_per_member=4))
    assert (
        answer(Planted("w", {"v": ("shrink", layout(0, 1, 2, 3))}, layout(4, 5, 6, 7)), observation, "gang").code
        == Code.PARTIAL_EVICTION
    )


@pytest.mark.parametrize(("gpus", "code"), [(3, Code.PARTIAL_GANG), (4, Code.OK)])
def test_a_gang_does_not_start_below_its_minimum(gpus: int, code: Code) -> None:
    """An elastic gang of eight with a minimum of four starts on four, and not on three."""
    observation = scene(waits("w", 8, gpus_per_member=1, min_gpus=4))
    planted = Planted("w", {}, layout(*range(gpus)), kind="admit", action="admit_gang")
    assert answer(planted, observation, "gang").code == code


def test_growth_beyond_the_width_is_refused() -> None:
    """Nine GPUs for a gang of eight."""
    observation = scene(holds("v", 8, on=range(6), gpus_per_member=1, min_gpus=2), shape="2x8")
    assert (
        answer(Planted("v", {}, layout(6, 7, 8), kind="grow", action="resize"), observation, "gang").code
        == Code.PARTIAL_GANG
    )
    assert answer(Planted("v", {}, layout(6, 7), kind="grow", action="resize"), observation, "gang").code == Code.OK


# --- checkpoint writes and shrinks in the budget ----------------------------------------------------

WRITERS = with_policy(EAGER, preemption={"checkpoint_writers": 2, "grace_s": 100.0, "without_checkpoint": True})


@pytest.mark.parametrize(
    ("write_s", "code"), [(150.0, Code.BUDGET_CHECKPOINT), (100.0, Code.OK), (float("nan"), Code.OK)]
)
def test_checkpoint_writes_share_a_bandwidth(write_s: float, code: Code) -> None:
    """Two writers for a grace of 100 s: 200 s of writes at once. Two victims, or one beside one that leaves already."""
    work = [
        holds("v1", 4, checkpoint_write_s=write_s),
        holds("v2", 4, checkpoint_write_s=write_s),
        waits("w", 8),
    ]
    both = Planted("w", {"v1": ("evict", None), "v2": ("evict", None)}, layout(*range(8)))
    assert answer(both, scene(*work), "budget", WRITERS).code == code
    beside = [
        holds("l", 4, state=State.CHECKPOINTING, checkpoint_write_s=write_s),
        *work[1:2],
        waits("w", 4, gpus_per_member=4),
    ]
    one = Planted("w", {"v2": ("evict", None)}, layout(4, 5, 6, 7))
    assert answer(one, scene(*beside), "budget", WRITERS).code == code


def test_a_gang_that_shrinks_writes_no_checkpoint_for_it() -> None:
    """It goes on."""
    work = [
        holds("e", 8, gpus_per_member=1, min_gpus=2, checkpoint_write_s=900.0),
        waits("w", 4, gpus_per_member=4),
    ]
    assert (
        answer(
            Planted("w", {"e": ("shrink", layout(0, 1, 2, 3))}, layout(4, 5, 6, 7)),
            scene(*work),
            "budget",
            WRITERS,
        ).code
        == Code.OK
    )


def effect(operation: Operation, name: str = "x", *, contract: bool = False) -> InFlight:
    """An effect under way."""
    return InFlight(
        instruct(name, operation, deadline_s=NOW + 100.0, fence=0),
        "issued",
        NOW,
        "preempt",
        "t0",
        0.0,
        contract,
    )


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        (effect(STOP), Code.BUDGET_CONCURRENT),
        (effect(ResizeOperation(slots=(), reason=StopReason.PREEMPT)), Code.BUDGET_CONCURRENT),
        (effect(ResizeOperation(slots=())), Code.OK),  # it grows
        (effect(AdmitOperation(slots=(), moved=True)), Code.OK),
        (effect(EvictOperation(reason=StopReason.RECLAIM, grace_s=0.0), contract=True), Code.OK),
    ],
)
def test_what_is_under_way_counts(entry: InFlight, code: Code) -> None:
    """Evictions and shrinks that are not over yet; growth, starts and contracts do not."""
    memory = ControllerMemory(effects=EffectsMemory(in_flight={entry.instruction.id: entry}))
    policy = with_policy(EAGER, budget={"concurrent": 1})
    observation = scene(holds("x", 1), holds("v", 4), waits("w", 4, gpus_per_member=4))
    planted = Planted("w", {"v": ("evict", None)}, layout(1, 2, 3, 4))
    assert answer(planted, observation, "budget", policy, memory).code == code
    assert takes_gpus(entry.instruction) is not entry.instruction.operation.needs_room


# --- mode -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "code"), [(Mode.RECOMMEND, Code.ON_PAPER), (Mode.AUTO, Code.OK)])
def test_nothing_starts_on_gpus_that_only_a_recommendation_frees(mode: Mode, code: Code) -> None:
    """`v` leaves on paper for half of its GPUs; a start on the other half acts only when `v` really leaves."""
    observation = scene(holds("v", 8), waits("w", 4, gpus_per_member=4), waits("x", 4, gpus_per_member=4))
    policy = replace(EAGER, modes=replace(EAGER.modes, reclaim_borrowed=mode))
    taking = Planted("w", {"v": ("evict", None)}, layout(0, 1, 2, 3), action="reclaim_borrowed")
    start = Planted("x", {}, layout(4, 5, 6, 7), action="preempt")
    step = decide(observation, policy, actions=(*taking.table, *start.table))
    verdicts = {each.guard: each for each in step.decision.plan.proposals[1].verdicts}
    assert verdicts["mode"].code == code
