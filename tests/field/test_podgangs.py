"""PodGangs of Grove: the pods of all cliques of one PodGang are one gang."""

from __future__ import annotations

import json

import pytest

from tests.kits.field_kit import FOLDER, objects_of, play, play_objects

OBJECTS = FOLDER / "12-grove-gang" / "objects.yaml"


def test_the_cliques_of_a_podgang_are_one_gang() -> None:
    """Prefill and decode have owners of their own, and the label of one PodGang (ai-dynamo/grove)."""
    played = play("12-grove-gang", "objects.yaml")
    work = played.snapshot.workloads
    assert dict(zip(work.id.tolist(), work.gpus.tolist(), strict=True)) == {"llm/dyn-0": 8}
    assert played.held() == {"llm/dyn-0": 8}
    services = played.snapshot.services
    assert services.id.tolist() == ["llm/dyn", "llm/dyn~decode", "llm/dyn~prefill"]
    assert services.part_of.tolist() == [-1, 0, 0]


@pytest.mark.parametrize(
    ("old", "new", "gangs"),
    [
        ('"grove.io/podgang"', '"grove.io/podgang-name"', {"llm/dyn-0": 8}),
        ('"grove.io/podgang"', '"example.com/podgang"', {"llm/dyn-0-prefill": 4, "llm/dyn-0-decode": 4}),
        ('"grove.io/podgang": "dyn-0"', '"grove.io/podgang": "dyn-1"', {"llm/dyn-1": 8}),
    ],
)
def test_the_label_decides(old: str, new: str, gangs: dict[str, int]) -> None:
    """Also the older label; pods without one belong to their clique."""
    played = play_objects(json.loads(json.dumps(objects_of(OBJECTS)).replace(old, new)))
    work = played.snapshot.workloads
    assert dict(zip(work.id.tolist(), work.gpus.tolist(), strict=True)) == gangs


def test_two_podgangs_are_two_gangs() -> None:
    """A replica of the set has a PodGang of its own."""
    objects = objects_of(OBJECTS)
    for each in objects[3:]:
        each["metadata"]["labels"]["grove.io/podgang"] = "dyn-1"
    assert play_objects(objects).held() == {"llm/dyn-0": 4, "llm/dyn-1": 4}
