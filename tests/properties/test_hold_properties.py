"""Holds and guarantees: room for expected replicas keeps nobody from a guarantee."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.replicas import ReplicasMemory
from autopilot.core.model.policy import Mode, Modes
from autopilot.core.model.records import NoteCode
from tests.kits.core_world import AUTO, decide, holds, observe, snapshot, started, waits, with_policy
from tests.kits.demand_world import LEARNED, forecast, serving
from tests.kits.ticking_world import tenants

NOW_S = 5000.0
POLICY = with_policy(AUTO, modes={f.name: Mode.AUTO for f in fields(Modes)}, reservation={"depth": 0})
GPUS, SERVING = 16, 2
WAITING = st.lists(st.tuples(st.sampled_from([2, 3]), st.integers(1, 4), st.integers(0, 2)), min_size=1, max_size=8)
"""Queue, least width and members above it."""


@given(
    guaranteed=st.tuples(st.integers(2, 8), st.integers(0, 6), st.integers(0, 6)),
    waiting=WAITING,
    replicas=st.integers(2, 16),
    preemptible=st.booleans(),
    first=st.sampled_from([1, 2, 3]),
)
@settings(max_examples=30)
def test_what_is_owed_waits_for_no_hold_above_a_guarantee(
    guaranteed: tuple[int, int, int], waiting: list[tuple[int, int, int]], replicas: int, preemptible: bool, first: int
) -> None:
    """After a tick no gang inside its guarantee waits beside GPUs that are free and not held inside a guarantee."""
    replica: dict[str, Any] = {"queue": 1, "service": 0, "preemptible": preemptible}
    work = [holds(f"chat/{number}", 1, [number], **replica) for number in range(SERVING)]
    work += [
        waits(f"w{at}", least + more, min_gpus=least, queue=queue, gpus_per_member=1)
        for at, (queue, least, more) in enumerate(waiting)
    ]
    names = ("web", "batch", "lab")
    tree = tenants(
        *((name, 0, gpus) for name, gpus in zip(names, guaranteed, strict=True)), priority={names[first - 1]: 1}
    )
    seen = observe(snapshot("2x8", work, queues=tree), NOW_S)
    made = forecast({"chat": 2.0 * replicas}, NOW_S)  # two requests/s a replica
    step = decide(serving(seen, made, queue=[1]), POLICY, ControllerMemory(replicas=ReplicasMemory(services=LEARNED)))
    starts = started(step)
    used = Counter({1: SERVING})
    for at, (queue, _, _) in enumerate(waiting):
        used[queue] += len(starts.get(f"w{at}", ()))
    held = sum(float(note.facts[0].value) for note in step.decision.notes if note.code == NoteCode.REPLICAS_HELD)
    assert preemptible or held <= guaranteed[0] - SERVING
    free = GPUS - used.total() - min(held, guaranteed[0] - SERVING)
    for at, (queue, least, _) in enumerate(waiting):
        inside = used[queue] + least <= guaranteed[queue - 1]
        assert f"w{at}" in starts or not inside or least > free
