"""One object blinds nobody: objects that say anything, beside honest work (`tests/hostile/objects.py`)."""

from __future__ import annotations

import json

import pytest

from collectors.kubernetes.kinds import KINDS
from tests.hostile.objects import Case, World, base, differing, hostile, names
from tests.kits.tries import tries

BATCH = tries(50, soak=100)
OBJECTS = tries(500, soak=1_000)


@pytest.mark.seeds(100)
def test_honest_work_is_decided_on_as_without_hostile_objects(soak_seed: int) -> None:
    """Rows, nodes and decisions of honest work are equal beside 500 objects; a batch that differs is halved."""
    first = soak_seed * OBJECTS
    alone = World().show(())
    assert len(alone["decided"]) > 2, alone
    found = [each for at in range(first, first + OBJECTS, BATCH) for each in differing(range(at, at + BATCH))]
    assert found == []


def test_the_generator_knows_the_fields_and_names_that_are_read() -> None:
    """They come from the types and from the text of the code."""
    assert {"nvidia.com/gpu.product", "gpu-autopilot.io/effect", "kueue.x-k8s.io/pod-group-name"} <= set(names())
    assert len(names()) > 80
    assert all("metadata" in base(kind) for kind in KINDS)
    assert {hostile(number).kind for number in range(len(KINDS))} == {kind.title for kind in KINDS}
    assert hostile(7) == hostile(7)


def test_a_phase_that_is_a_list_ends_no_watch() -> None:
    """The pod cannot be decoded, and whether it has ended is read from the rest of it."""
    kind = next(each for each in KINDS if each.name == "pods")
    found = json.loads(base(kind))
    found["status"]["phase"] = []
    case = Case("phase", json.dumps(found).encode(), kind.title, found["metadata"]["uid"])
    assert World().show([case]) == World().show(())
