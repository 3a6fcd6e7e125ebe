"""Ceilings of services as the view shows them: the owner's numbers count on, and what we wrote is no change by him."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autopilot.contract.scaling import Ceiling
from autopilot.core.model.objects import CeilingWay
from tests.kits.kube_api import Json
from tests.kits.kube_objects import meta, node
from tests.unit.collectors.kubernetes.test_service_rows import CPU, autoscaler, deployment
from tests.unit.collectors.kubernetes.view import Seen

REST = {"scale": "true", "min_replicas": "0", "max_replicas": "6", "wake_signal": "gateway"}
CEILING = Ceiling("i", 0, 1e12, owner=3, ours=0, generation=7, revision="")


def _service(*objects: Json) -> dict[str, Any]:
    table = Seen(node("n1"), *objects).tables()[1].services
    return {name: getattr(table, name)[0] for name in table.__slots__}


def test_a_service_under_a_ceiling_has_the_bounds_of_its_owner() -> None:
    """Its replicas are ours; its need, its bounds and its generation are those of before."""
    found = _service(deployment(0, **REST, ceiling=CEILING.text()))
    names = ("replicas", "ceiling", "ceiling_until_s", "min_replicas", "max_replicas", "needed_replicas", "generation")
    assert [found[name] for name in names] == [0, 0, 1e12, 0, 6, 3, 7]


def test_the_minimum_of_an_owner_who_opts_out_is_what_he_had() -> None:
    """So the ceiling ends, although no replica is there that says so."""
    found = _service(deployment(0, **REST, exclude="true", ceiling=CEILING.text()))
    assert [found[name] for name in ("min_replicas", "max_replicas", "ceiling")] == [3, 3, 0]


@pytest.mark.parametrize(
    ("replicas", "record"), [(1, CEILING), (0, replace(CEILING, revision="5")), (0, replace(CEILING, ours=1))]
)
def test_what_somebody_else_writes_under_a_ceiling_changes_the_generation(replicas: int, record: Ceiling) -> None:
    """Another number, or another revision of the pods: the core sees a change by the owner."""
    found = _service(deployment(replicas, **REST, ceiling=record.text()))
    assert [found[name] for name in ("generation", "ceiling", "needed_replicas")] == [1, 0, replicas]


@pytest.mark.parametrize("text", ["", "no record", '{"id": "i"}', CEILING.text().replace('"owner": 3', '"owner": -3')])
def test_what_is_no_record_is_no_ceiling(text: str) -> None:
    """A text of somebody else changes nothing."""
    found = _service(deployment(2, **REST, ceiling=text))
    assert [found[name] for name in ("ceiling", "generation", "replicas")] == [-1, 1, 2]


def _keda() -> Json:
    owner = {"kind": "ScaledObject", "name": "chat", "uid": "u", "controller": True}
    found = autoscaler(CPU)
    found["metadata"] = meta("chat", "team") | {"ownerReferences": [owner]}
    return found


@pytest.mark.parametrize(
    ("declared", "others", "way"),
    [
        (REST, [], CeilingWay.REPLICAS),
        ({"scale": "true"}, [], CeilingWay.UNDECLARED),
        ({"min_replicas": "0"}, [], CeilingWay.NO_CONSENT),
        (REST, [autoscaler(CPU)], CeilingWay.TO_ZERO),
        (REST, [_keda()], CeilingWay.KEDA),
    ],
)
def test_how_a_ceiling_reaches_it(declared: dict[str, str], others: list[Json], way: CeilingWay) -> None:
    """By consent and by what else sets its replicas."""
    assert _service(deployment(3, **declared), *others)["ceiling_way"] == way
