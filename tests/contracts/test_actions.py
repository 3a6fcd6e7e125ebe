"""What holds for every action: it proposes through one door, within capacity, with evidence, the same each time."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from autopilot.core.capabilities.actions import ACTIONS
from autopilot.core.capabilities.verbs import CHANGES
from autopilot.core.effects.action import cases_of
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.replicas import ReplicasMemory
from autopilot.core.model.policy import ACTIONS_WITH, Effect, Modes
from autopilot.core.model.records import Observation
from autopilot.records.replay.unequal import first_unequal
from tests.kits.core_world import HOLDING, arrays, decide, holds, observe, snapshot, waits
from tests.kits.demand_world import LEARNED, forecast, serving

NAMES = [action.name for action in ACTIONS]
RNG_SEEDS = range(12)


def test_every_action_has_a_mode_of_its_own() -> None:
    """The table of actions and the modes of the policy name the same actions, in the same order."""
    assert [f.name for f in fields(Modes)] == NAMES


def scene(seed: int) -> Observation:
    """A crowded cluster: whole gangs, shares, slices, opted-out and latency-critical work, unknown run times."""
    rng = np.random.default_rng(seed)
    work = [holds(f"r{n}", 8, backfilled=bool(n % 2)) for n in range(2)]
    total_s = {f"r{n}": float(rng.integers(100, 4000)) for n in range(2)}
    for number in range(25):
        kind = rng.integers(0, 10)
        columns = {
            "submit_s": float(rng.integers(-5000, 0)),
            "slo_class": int(rng.choice([0, 1, 2, 2])),
            "preemptible": bool(rng.integers(0, 2)),
            "priority": int(rng.integers(0, 2)),
        }
        if kind == 0:
            item = waits(f"w{number}", 1, gpu_milli=int(rng.integers(1, 1000)), **columns)
        elif kind == 1:
            item = waits(f"w{number}", int(rng.integers(1, 3)), mig_profile=0, **columns)
        else:
            width = int(rng.choice([1, 2, 4, 8, 12, 16, 40]))
            item = waits(
                f"w{number}",
                width,
                min_gpus=max(width // 2, 1) if width % 2 == 0 else width,
                gpus_per_member=min(width, 8) if width < 16 else 8,
                excluded=kind == 2,
                **columns,
            )
        work.append(item)
        if rng.random() < 0.7:
            total_s[item.id] = float(rng.integers(10, 5000))
    snap = snapshot("4x8", work, cuts={31: [("1g.10gb", 0), ("1g.10gb", 1), ("2g.20gb", 2)]}, unhealthy=[30])
    return serving(observe(snap, 0.0, total_s=total_s), forecast({"chat": 9.0}))


@pytest.mark.parametrize("seed", RNG_SEEDS)
def test_what_is_instructed_fits_the_cluster(seed: int) -> None:
    """Over all starts of a tick no GPU is given beyond its whole, no instance twice, nothing that is held or broken."""
    observation = scene(seed)
    snap = observation.snapshot
    used: Counter[str] = Counter()
    for row, milli in zip(snap.placements.gpu.tolist(), snap.placements.milli.tolist(), strict=True):
        used[str(snap.gpus.uuid[row])] += milli
    for instruction in decide(observation, HOLDING).instructions:
        for slot in instruction.operation.slots:
            used[slot.instance or slot.gpu] += 1000 if slot.instance else slot.milli
            assert slot.gpu != "GPU-30"
            assert bool(slot.instance) == (slot.gpu == "GPU-31")
    assert max(used.values()) <= 1000


@pytest.mark.parametrize("seed", RNG_SEEDS)
def test_every_proposal_has_its_case(seed: int) -> None:
    """A proposal names its action, its gang as it is now, benefit, cost, evidence and a digest, and every id is its
    own.
    """
    observation = scene(seed)
    work, services = observation.snapshot.workloads, observation.snapshot.services
    step = decide(observation, HOLDING, ControllerMemory(replicas=ReplicasMemory(services=LEARNED)))
    ids = [proposal.id for proposal in step.decision.plan.proposals]
    assert len(ids) == len(set(ids))
    for proposal in step.decision.plan.proposals:
        assert proposal.action in NAMES
        if proposal.kind == "scale":
            row = services.id.tolist().index(proposal.subject.name)
            assert proposal.subject.revision == int(services.generation[row])
        elif proposal.kind == "recut":
            assert proposal.subject.uid in observation.snapshot.gpus.uuid.tolist()
        else:
            row = work.id.tolist().index(proposal.subject.name)
            assert proposal.subject.revision == int(work.incarnation[row])
            assert not work.excluded[row]
        assert np.isfinite(proposal.benefit_gpu_s)
        assert proposal.cost_gpu_s >= 0.0
        assert proposal.evidence
        assert proposal.state_digest
    assert [proposal.kind for proposal in step.decision.plan.proposals].count("scale") == 1


@pytest.mark.parametrize("seed", RNG_SEEDS)
def test_every_waiting_gang_is_answered_once(seed: int) -> None:
    """Each pending gang is either started or has one reason with its numbers."""
    observation = scene(seed)
    step = decide(observation, HOLDING)
    work = observation.snapshot.workloads
    started = {i.subject.name for i in step.instructions if i.kind == "admit"}
    refused = [str(name) for name in work.id[step.decision.plan.refusals.workload]]
    pending = {str(name) for name in work.id[work.state == 0]}
    assert len(refused) == len(set(refused))
    assert started | set(refused) == pending
    assert not started & set(refused)


@pytest.mark.parametrize("seed", RNG_SEEDS)
def test_the_same_scene_gives_the_same_plan(seed: int) -> None:
    """Equal observations give equal steps, and nothing of the observation is written."""
    observation = scene(seed)
    before = arrays(observation)
    assert first_unequal(decide(observation, HOLDING), decide(scene(seed), HOLDING), "step") is None
    assert arrays(observation) == before


def test_the_order_of_the_table_is_the_order_of_disruption() -> None:
    """The whole order. Actions that take no GPUs come first; actions that stop work for its own sake come last."""
    shipped = [
        "admit_gang",
        "backfill",
        "regeometry",
        "defragment",
        "reclaim_borrowed",
        "preempt",
        "make_room",
        "resize",
        "scale_ahead",
        "defragment_ahead",
        "recover",
        "enforce_limit",
    ]
    assert [name for name in NAMES if name in shipped] == shipped


def test_admission_takes_free_capacity_only() -> None:
    """The first action evicts nothing."""
    only = decide(scene(0), HOLDING, ControllerMemory(), actions=ACTIONS[:1])
    assert not [i for i in only.instructions if i.kind == "evict"]


def test_every_case_is_of_its_action_and_no_two_have_one_key() -> None:
    """Records name a case by action, kind and reason."""
    cases = [case for action in ACTIONS for case in action.cases]
    assert len(cases_of(ACTIONS)) == len(cases)
    assert all(case.action == action.name for action in ACTIONS for case in action.cases)
    assert all(case.words for case in cases)
    assert {case.kind for case in cases} == set(CHANGES)


def test_every_draft_becomes_a_proposal_of_its_kind() -> None:
    """A proposal has the kind of its case."""
    for seed in RNG_SEEDS:
        cases = cases_of(ACTIONS)
        for each in decide(
            scene(seed), HOLDING, ControllerMemory(replicas=ReplicasMemory(services=LEARNED))
        ).decision.plan.proposals:
            assert (each.action, each.kind, each.reason) in cases


def test_an_action_is_named_and_described() -> None:
    """The report shows both."""
    assert all(action.name and action.about for action in ACTIONS)


def test_the_effects_of_a_mode_are_those_of_the_cases() -> None:
    """A floor, a growth, a start in a gap and a stop are declared beside the mode; checkers rely on it."""
    for action in ACTIONS:
        kinds, takes = (
            {case.kind for case in action.cases},
            {case.takes for case in action.cases if case.kind == "evict"},
        )
        declared = {effect for effect, names in ACTIONS_WITH.items() if action.name in names}
        assert declared, action.name
        assert (Effect.FLOOR in declared) == ("scale" in kinds)
        assert (Effect.CEILING in declared) == ("ceiling" in kinds)
        assert (Effect.GROW in declared) == ("grow" in kinds)
        assert (Effect.FILL in declared) == any(case.fills_gap for case in action.cases)
        assert (Effect.STOP in declared) == bool(takes & {"recover", "restart"})
        assert (Effect.SUSPEND in declared) == ("suspend" in takes)
        assert (Effect.RECUT in declared) == ("recut" in kinds)
        assert bool({Effect.SHARE, Effect.UNSHARE} & declared) == ("set_sharing" in kinds)


def test_nothing_outside_of_an_action_names_it() -> None:
    """No module compares the name of an action, or reads its mode, but the file of the action itself."""
    root = Path(__file__).parents[2]
    names = "|".join(name for name in NAMES if name not in {"resize", "share"})  # an effect, or a column, is called so
    branch = re.compile(rf"modes\.({names})\b|action\w* [!=]= \"|\"({names})\" *(:|in )|NAME == \"")
    found = [
        f"{path.relative_to(root)}: {match.group()}"
        for folder in ("autopilot", "simulator", "collectors")
        for path in (root / folder).rglob("*.py")
        for match in branch.finditer(path.read_text(encoding="utf-8"))
        if path.stem not in match.groups()
    ]
    fields = (  # a section of the policy is called so, or the shipped modes are listed
        "autopilot/report/advice.py",
        "autopilot/policies/policy_tree.py",
        "autopilot/policies/editions.py",
    )
    assert not [each for each in found if not each.startswith(fields)]
