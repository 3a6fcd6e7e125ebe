"""Ceilings of idle services: by the scale subresource, with the owner's consent, and back again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from actuators.kubernetes.actuator import KubernetesActuator
from actuators.kubernetes.upkeep import OldCeilings
from autopilot.contract.scaling import CEILING, FLOOR, read_ceiling
from autopilot.contract.tree import PREFIX
from autopilot.core.idle.ceiling import Ceiling
from autopilot.core.model.objects import Subject, SubjectKind
from autopilot.core.model.records import OutcomeKind
from tests.kits.acting_kit import Acting
from tests.kits.scaling_kit import APPS, Obj, Scaling

REST = {f"{PREFIX}scale": "true", f"{PREFIX}min-replicas": "0", f"{PREFIX}wake-signal": "gateway"}
QUEUE = {
    "type": "Pods",
    "pods": {"metric": {"name": "queue"}, "target": {"type": "AverageValue", "averageValue": "4"}},
}
NOTE = PREFIX + CEILING


@pytest.fixture(scope="module")
def scaling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scaling]:
    """One server for all tests; each has services of its own."""
    acting = Acting(tmp_path_factory.mktemp("ceilings"), nodes=1)
    yield Scaling(acting, "ceiling")
    acting.close()


def _notes(scaling: Scaling, name: str, plural: str = "deployments") -> Obj:
    found: Obj = scaling.read(name, plural)["metadata"].get("annotations") or {}
    return found


@pytest.mark.parametrize("plural", ["deployments", "statefulsets"])
def test_replicas_go_to_zero_and_come_back(scaling: Scaling, plural: str) -> None:
    """The record has the number of the owner, and goes with the ceiling; Events say what happened."""
    name = scaling.service(3, REST, plural)
    outcome = scaling.ceiling(name, 0, plural)
    assert outcome.kind == OutcomeKind.DONE
    assert f"default/{name} while it is idle; it had 3, and has them back when it is used" in outcome.reason
    assert scaling.replicas(name, plural) == 0
    record = read_ceiling(_notes(scaling, name, plural)[NOTE])
    assert record is not None
    assert (record.replicas, record.owner, record.ours) == (0, 3, 0)
    assert _notes(scaling, name, plural)[f"{PREFIX}epoch"] == "1"
    managers = {
        each["manager"] for each in scaling.read(name, plural)["metadata"]["managedFields"] if "subresource" in each
    }
    assert managers == {"gpu-autopilot"}
    back = scaling.ceiling(name, -1, plural)
    assert back.reason.endswith(f"default/{name} has the 3 replicas of its owner again")
    assert scaling.replicas(name, plural) == 3
    assert NOTE not in _notes(scaling, name, plural)
    assert {reason for reason, _ in scaling.acting.events(name)} == {"CeilingBegun", "CeilingDone"}


def test_a_renewal_keeps_what_the_owner_had(scaling: Scaling) -> None:
    """It moves the end, and nothing else."""
    name = scaling.service(3, REST | {f"{PREFIX}min-replicas": "1"})
    scaling.ceiling(name, 1)
    later_s = scaling.acting.now_s + 3000.0
    assert scaling.ceiling(name, 1, until_s=later_s).kind == OutcomeKind.DONE
    record = read_ceiling(_notes(scaling, name)[NOTE])
    assert record is not None
    assert (record.until_s, record.owner) == (later_s, 3)
    assert scaling.replicas(name) == 1


@pytest.mark.parametrize(
    ("annotations", "replicas", "hpa", "owner", "said"),
    [
        ({f"{PREFIX}min-replicas": "0"}, 0, False, "", "its owner does not allow to scale it"),
        (REST | {f"{PREFIX}scale": "perhaps"}, 0, False, "", "'perhaps' is not allowed"),
        ({f"{PREFIX}scale": "true"}, 1, False, "", f"its owner states no {PREFIX}min-replicas"),
        (REST | {f"{PREFIX}min-replicas": "2"}, 1, False, "", "its owner keeps 2 replicas, and the ceiling is 1"),
        ({**REST, f"{PREFIX}wake-signal": ""}, 0, False, "", "its owner names no signal that would wake it"),
        (REST, 1, True, "", "would undo any number but 0; lower its minReplicas"),
        (REST, 0, True, "ScaledObject", "is managed by KEDA, which would undo a change"),
    ],
)
def test_without_a_way_the_outcome_says_why(
    scaling: Scaling, annotations: Obj, replicas: int, hpa: bool, owner: str, said: str
) -> None:
    """Nothing is written."""
    name = scaling.service(3, annotations)
    if hpa:
        reference = {"apiVersion": "keda.sh/v1alpha1", "kind": owner, "name": name, "uid": "u-1"} if owner else None
        scaling.autoscaler(name, QUEUE, owner=reference)
    outcome = scaling.ceiling(name, replicas)
    assert (outcome.kind, outcome.retryable) == (OutcomeKind.FAILED, False)
    assert said in outcome.reason
    assert scaling.replicas(name) == 3
    assert NOTE not in _notes(scaling, name)


def test_beside_an_autoscaler_zero_alone_is_set(scaling: Scaling) -> None:
    """It stands aside there, and none of its own numbers changes."""
    name = scaling.service(3, REST)
    scaling.autoscaler(name, QUEUE)
    assert scaling.ceiling(name, 0).kind == OutcomeKind.DONE
    assert (scaling.replicas(name), scaling.minimum(name)) == (0, 2)
    scaling.ceiling(name, -1)
    assert (scaling.replicas(name), scaling.minimum(name)) == (3, 2)


def test_what_a_person_sets_under_a_ceiling_stands(scaling: Scaling) -> None:
    """It is not lowered again, and the end of the ceiling does not change it."""
    name = scaling.service(3, REST)
    scaling.ceiling(name, 0)
    scaling.set_by_hand(name, 1)
    outcome = scaling.ceiling(name, 0)
    assert outcome.kind == OutcomeKind.CONFLICT
    assert "somebody changed it while our ceiling of 0 stood" in outcome.reason
    assert "keeps its 1 replicas: that number is not ours" in scaling.ceiling(name, -1).reason
    assert scaling.replicas(name) == 1
    assert NOTE not in _notes(scaling, name)


def test_an_interrupted_ceiling_is_finished(scaling: Scaling) -> None:
    """The record was written and the process died: the same instruction goes on, with the owner's number of before."""
    name, until_s = scaling.service(3, REST), scaling.acting.now_s + 1800.0
    record = {"id": "7/p/s", "replicas": 0, "until": until_s, "owner": 3, "ours": 0, "generation": 1, "revision": ""}
    scaling.ask("PATCH", f"{APPS}/deployments/{name}", {"metadata": {"annotations": {NOTE: json.dumps(record)}}})
    fresh = KubernetesActuator(scaling.acting.api("ceiling"), scaling)
    meta, operation = (
        scaling.read(name)["metadata"],
        Ceiling(replicas=0, until_s=until_s, had=2, gpus=1.0, owner="t/ann"),
    )
    for number, known in (("8/p/s", False), ("7/p/s", True)):
        made = scaling.acting.instruction(meta["uid"], operation, number=number)
        sent = replace(made, subject=Subject(SubjectKind.SERVICE, f"default/{name}", meta["uid"], meta["generation"]))
        reasons = [each.reason for each in fresh.advance(scaling.acting.now_s, 1, [sent])]
        assert ("an earlier process did not begin it" not in reasons) is known
    fresh = KubernetesActuator(scaling.acting.api("ceiling"), scaling)
    assert scaling.ceiling(name, 0, number="7/p/s", until_s=until_s, actuator=fresh).kind == OutcomeKind.DONE
    assert scaling.replicas(name) == 0
    scaling.ceiling(name, -1)
    assert scaling.replicas(name) == 3


def test_a_floor_that_is_recorded_goes_first(scaling: Scaling) -> None:
    """Two records of one number would each give back what the other has set."""
    name = scaling.service(3, REST)
    floor = {"id": "1/p/s", "replicas": 3, "until": 1e12, "way": "scale", "owner": 1, "ours": 3}
    notes = {PREFIX + FLOOR: json.dumps(floor)}
    scaling.ask("PATCH", f"{APPS}/deployments/{name}", {"metadata": {"annotations": notes}})
    assert "a floor of 3 replicas is still recorded" in scaling.ceiling(name, 0).reason
    assert scaling.replicas(name) == 3


def test_a_floor_lifts_the_ceiling(scaling: Scaling) -> None:
    """What the load is foreseen to need counts more, and the owner has the number that it had before both."""
    name = scaling.service(3, REST | {f"{PREFIX}max-replicas": "6"})
    scaling.ceiling(name, 0)
    floors = KubernetesActuator(scaling.acting.api("scale"), scaling)
    assert scaling.floor(name, 5, actuator=floors).kind == OutcomeKind.DONE
    assert scaling.replicas(name) == 5
    assert NOTE not in _notes(scaling, name)
    scaling.floor(name, 0, actuator=floors)
    assert scaling.replicas(name) == 3


@pytest.mark.parametrize(
    ("acts", "later_s", "kept"), [(True, 1700.0, True), (True, 1900.0, False), (False, 10.0, False)]
)
def test_nobody_has_to_decide_that_a_ceiling_ends(scaling: Scaling, acts: bool, later_s: float, kept: bool) -> None:
    """One that was not renewed is given back, and so are all once the action does not act any more."""
    name = scaling.service(3, REST)
    scaling.ceiling(name, 0)
    tools = replace(scaling.actuator._tools, acts=lambda _: acts)
    OldCeilings().run(tools, 1, scaling.acting.now_s + later_s)
    assert scaling.replicas(name) == (0 if kept else 3)
    assert (NOTE in _notes(scaling, name)) is kept
    assert ("CeilingWithdrawn" in {reason for reason, _ in scaling.acting.events(name)}) is not kept
    scaling.ceiling(name, -1)
