"""The place that the autopilot wrote into the template of a Job is no constraint of its owner."""

from __future__ import annotations

import json

import pytest

from autopilot.contract.annotations import EFFECT, PLACEMENT
from tests.kits.kube_objects import job, node
from tests.unit.collectors.kubernetes.view import Seen, row

HOST = "kubernetes.io/hostname"
OURS = f"{PLACEMENT}0123456789"


@pytest.mark.parametrize(
    "record",
    [
        "",
        "no record",
        json.dumps(["selector"]),
        json.dumps({"id": "1/p/w", "selector": {HOST: "n1"}}),  # forged: a person or a webhook has set these
        json.dumps({"id": "1/p/w", "selector": {"disk": "ssd", HOST: "n1"}}),
    ],
)
def test_only_labels_of_our_own_do_not_bind(record: str) -> None:
    """Whatever a record on the Job says: with one that is believed a tenant would leave the nodes it is kept on."""
    held = {HOST: "n1", "disk": "ssd", OURS: "true"}
    made = job("a", 8, suspend=True, nodeSelector=held, annotations={EFFECT: record})
    inventory, work = Seen(node("n1", labels={"disk": "ssd"}), node("n2"), made).tables()
    selector = inventory.names.selectors[row(work, "team/a")["selector"]]
    found = [inventory.names.labels[each] for each in selector]
    assert sorted(found) == ["disk=ssd", f"{HOST}=n1"]
