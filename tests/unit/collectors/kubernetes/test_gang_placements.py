"""The place that the autopilot wrote into the template of a Job is no constraint of its owner."""

from __future__ import annotations

import json

import pytest

from autopilot.contract.annotations import EFFECT
from tests.kits.kube_objects import job, node
from tests.unit.collectors.kubernetes.view import Seen, row

HOST = "kubernetes.io/hostname"


@pytest.mark.parametrize(
    ("record", "asked"),
    [
        (json.dumps({"id": "1/p/w", "selector": {HOST: "n1"}}), []),
        (json.dumps({"id": "1/p/w", "selector": {HOST: "n2"}}), [f"{HOST}=n1"]),  # a person changed it since
        (json.dumps({"id": "1/p/w"}), [f"{HOST}=n1"]),
        (json.dumps(["selector"]), [f"{HOST}=n1"]),
        ("no record", [f"{HOST}=n1"]),
        ("", [f"{HOST}=n1"]),
    ],
)
def test_only_what_the_owner_asks_for_binds(record: str, asked: list[str]) -> None:
    """The record names what was written; the rest of the selector stays."""
    made = job("a", 8, suspend=True, nodeSelector={HOST: "n1", "disk": "ssd"}, annotations={EFFECT: record})
    inventory, work = Seen(node("n1", labels={"disk": "ssd"}), node("n2"), made).tables()
    selector = inventory.names.selectors[row(work, "team/a")["selector"]]
    found = [inventory.names.labels[each] for each in selector]
    assert sorted(found) == sorted([*asked, "disk=ssd"])
