"""Digests and ids say what is meant: they do not change with the numbers that a source gives to names and rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from autopilot.core.intake.consistency import check_snapshot
from autopilot.core.model.identity import OF_NODES, shape_digest
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.modes import Mode, Modes
from autopilot.core.model.snapshot import ClusterSnapshot, MemberTable, make
from tests.kits.core_world import AUTO, Item, decide, holds, observe, queue_tree, snapshot, waits, with_policy
from tests.kits.renumbered import renumbered, shuffled

LABELS = ("disk=ssd", f"{OF_NODES}without taint team=a:NoSchedule", "zone In (a,b)", "site=x")
POLICY = with_policy(AUTO, hysteresis={"dwell_s": 0.0})
ASKING = replace(POLICY, modes=Modes(*[Mode.APPROVE] * len(Modes.__dataclass_fields__)))


@st.composite
def worlds(draw: st.DrawFn) -> ClusterSnapshot:
    """Nodes of two models with labels and one that is cut; running and waiting work of every form."""
    nodes, bits = draw(st.integers(2, 3)), st.integers(0, 2 ** len(LABELS) - 1)
    work: list[Item] = [
        holds(f"r{number}", 2, priority=number, start_s=number * 60.0, tenant=number % 3)
        for number in range(draw(st.integers(0, nodes * 2 - 1)))
    ]
    work += [
        waits(
            f"w{number}",
            draw(st.sampled_from([1, 2, 4])),
            priority=10 * number,
            submit_s=float(number),
            selector=draw(bits),
            gpu_models=draw(st.integers(0, 7)),
            queue=number % 3,
            tenant=number % 3,
        )
        for number in range(draw(st.integers(1, 4)))
    ]
    work.append(waits("part", 2, mig_profile=draw(st.integers(0, 2)), submit_s=50.0))
    work.append(waits("mixed", 3, gpus_per_member=2, submit_s=60.0))
    built = snapshot(
        f"{nodes}x4",
        work,
        nodes={"labels": [draw(bits) for _ in range(nodes)], "gpu_model": [number % 2 for number in range(nodes)]},
        cuts={nodes * 4 - 1: [("1g.10gb", 0), ("1g.10gb", 1), ("2g.20gb", 2)]},
        queues=queue_tree(("q", 0, -1), ("p", 0, 8)),
    )
    pods = make(
        MemberTable,
        id=np.array(["mixed/0", "mixed/1"], object),
        workload=[len(work) - 1] * 2,
        gpus=[2, 1],
        rank=[2, 1],
        selector=[draw(bits), 0],
        mig_profile=[-1, -1],
    )
    return replace(built, names=replace(built.names, labels=LABELS), members=pods)


def shapes(snap: ClusterSnapshot) -> dict[str, str]:
    """The digest of each request, by workload."""
    return {str(name): shape_digest(snap, row) for row, name in enumerate(snap.workloads.id)}


def identities(step: Step) -> dict[str, Any]:
    """Everything of a decision that is compared with a later one, or with the answer of a person."""
    memory = step.memory
    return {
        "proposals": sorted((each.id, each.state_digest) for each in step.decision.plan.proposals),
        "instructions": sorted((each.id, each.proposal_id) for each in step.instructions),
        "open": dict(memory.people.open_proposals),
        "dwell": sorted(memory.plan.proposed_since_s),
        "shapes": sorted((each.instruction.id, each.shape, each.digest) for each in memory.effects.in_flight.values()),
        "parts": sorted((part.uid, part.shape) for each in memory.starts.pipelined_starts for part in each.parts),
        "held": sorted((each.uid, each.nodes) for each in memory.plan.reservations),
    }


seeds = st.integers(0, 2**32 - 1).map(np.random.default_rng)


@given(worlds(), seeds)
@settings(max_examples=25)
def test_a_request_has_one_digest_under_all_numbers(snap: ClusterSnapshot, rng: np.random.Generator) -> None:
    """Other codes, other bits, unrelated names, and rows in another order."""
    other = shuffled(renumbered(snap, rng), rng)
    check_snapshot(other)
    assert shapes(other) == shapes(snap)


@given(worlds(), seeds, st.sampled_from([POLICY, ASKING]))
@settings(max_examples=25)
def test_a_decision_has_one_identity_under_all_codes(
    snap: ClusterSnapshot, rng: np.random.Generator, policy: Any
) -> None:
    """Ids of proposals and instructions, and what memory compares later."""
    first = decide(observe(snap, 1e4), policy, ControllerMemory())
    assert identities(decide(observe(renumbered(snap, rng), 1e4), policy, ControllerMemory())) == identities(first)
