"""A playground whose people create and change objects that say anything: its time and the work of others go on."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from apiserver.errors import StatusError
from autopilot.core.model.snapshot import State
from tests.hostile.objects import change
from tests.kits.playground_kit import job, person, stage_of

OBJECTS = 60
CHANGED = ("jobs.batch", "pods", "workloads.kueue.x-k8s.io", "limitranges")
"""Resources of the namespace of the hostile person."""


def create(rng: random.Random, number: int) -> dict[str, Any]:
    """A Job that says something."""
    found = job(f"bad-{number}", gpus=rng.choice((0, 1, 2)), pods=rng.choice((1, 2)), annotations={}, labels={})
    change(rng, found)
    data = found["metadata"] if isinstance(found.get("metadata"), dict) else {}
    return found | {"metadata": data | {"name": f"bad-{number}", "namespace": "vision"}}


@pytest.mark.seeds(500)
@pytest.mark.parametrize("acts", [False, True])
def test_the_work_of_others_runs_as_long_as_without_hostile_objects(soak_seed: int, *, acts: bool) -> None:
    """Each of 60 objects is taken or refused, and the Job of another namespace ends, or waits, as it did before."""

    def fate(act: Callable[[Any, Any, random.Random, int], None]) -> str:
        stage, rng = stage_of(acts=acts), random.Random(7 + soak_seed)
        client = person(stage)
        stage.clock.run_to(5.0)
        client.create("jobs.batch", job("honest", namespace="language"))
        for number in range(OBJECTS):
            with suppress(StatusError):
                act(stage, client, rng, number)
            stage.clock.run_to(5.0 + number)
        stage.clock.run_to(900.0)
        row = stage.cluster.jobs.id.index("language/honest")
        return f"{State(stage.cluster.state[row]).name} {stage.cluster.end_s[row]}"

    def hostile(stage: Any, client: Any, rng: random.Random, number: int) -> None:
        resource = rng.choice(CHANGED)
        there = stage.server.store.objects(resource, "vision")
        if rng.random() < 0.4 or not there:
            client.create("jobs.batch", create(rng, number))
            return
        found = json.loads(json.dumps(rng.choice(there)))
        kept = {key: found["metadata"][key] for key in ("name", "namespace", "uid")}
        change(rng, found)
        data = found["metadata"] if isinstance(found.get("metadata"), dict) else {}
        client.update(resource, found | {"metadata": data | kept})

    alone = fate(lambda *_: None)
    assert alone.startswith("PENDING" if acts else "SUCCEEDED"), alone
    assert fate(hostile) == alone
