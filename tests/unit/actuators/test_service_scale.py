"""Floors of services: by a metric, by minReplicas of an HPA, and by the scale subresource."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from actuators.kubernetes.actuator import KubernetesActuator
from autopilot.contract.scaling import FLOOR, read_floor
from autopilot.contract.tree import PREFIX
from autopilot.core.model.objects import Subject, SubjectKind
from autopilot.core.model.records import OutcomeKind
from autopilot.core.replicas.scale import Scale
from tests.kits.acting_kit import Acting
from tests.kits.scaling_kit import APPS, Obj, Scaling

ALLOWED = {f"{PREFIX}scale": "true", f"{PREFIX}max-replicas": "6"}
OURS = {
    "type": "External",
    "external": {"metric": {"name": "gpu_autopilot_floor"}, "target": {"type": "AverageValue", "averageValue": "1"}},
}
CPU = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}


@pytest.fixture(scope="module")
def scaling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scaling]:
    """One server for all tests; each has services of its own."""
    acting = Acting(tmp_path_factory.mktemp("scaling"), nodes=1)
    yield Scaling(acting)
    acting.close()


def test_an_autoscaler_that_follows_our_metric_is_left_alone(scaling: Scaling) -> None:
    """The floor is recorded, and nothing else of the service or its HPA changes."""
    name = scaling.service()
    scaling.autoscaler(name, CPU, OURS)
    outcome = scaling.floor(name, 5)
    assert (outcome.kind, outcome.reason) == (
        OutcomeKind.DONE,
        "a floor of 5 replicas is published; its autoscaler follows it",
    )
    record = read_floor(scaling.read(name)["metadata"]["annotations"][PREFIX + FLOOR])
    assert record is not None
    assert (record.replicas, record.owner) == (5, None)
    assert (scaling.replicas(name), scaling.minimum(name)) == (2, 2)
    assert scaling.read(name)["metadata"]["annotations"][f"{PREFIX}epoch"] == "1"
    assert scaling.floor(name, 0).kind == OutcomeKind.DONE
    assert PREFIX + FLOOR not in scaling.read(name)["metadata"]["annotations"]


def test_the_minimum_of_an_autoscaler_is_raised_and_given_back(scaling: Scaling) -> None:
    """With consent; the replicas themselves are left to the HPA."""
    name = scaling.service(annotations=ALLOWED)
    scaling.autoscaler(name, CPU)
    outcome = scaling.floor(name, 4)
    assert outcome.kind == OutcomeKind.DONE
    assert f"minReplicas of HorizontalPodAutoscaler default/{name} raised from 2 to 4" in outcome.reason
    assert (scaling.minimum(name), scaling.replicas(name)) == (4, 2)
    assert scaling.floor(name, 6).kind == OutcomeKind.DONE
    assert scaling.minimum(name) == 6
    assert scaling.floor(name, 3).kind == OutcomeKind.DONE
    assert scaling.minimum(name) == 3
    scaling.floor(name, 0)
    assert scaling.minimum(name) == 2
    assert {reason for reason, _ in scaling.acting.events(name)} == {"ScaleBegun", "ScaleDone"}


def test_a_forged_record_does_not_change_the_minimum_of_an_autoscaler(scaling: Scaling) -> None:
    """Who may annotate a service may not be allowed to write its HPA: the number there is its owner's."""
    name = scaling.service(annotations=ALLOWED)
    scaling.autoscaler(name, CPU)
    until_s = scaling.acting.now_s + 1800.0
    record = {"id": "7/p/s", "replicas": 2, "until": until_s, "way": "hpa", "owner": 1, "ours": 2}
    path = f"{APPS}/deployments/{name}"
    forged = {"metadata": {"annotations": {PREFIX + FLOOR: json.dumps(record)}}}
    scaling.ask("PATCH", path, forged)
    assert "keeps its 2 replicas: that number is not ours" in scaling.floor(name, 0).reason
    assert scaling.minimum(name) == 2
    scaling.ask("PATCH", path, forged)
    assert scaling.floor(name, 5).kind == OutcomeKind.DONE
    scaling.floor(name, 0)
    assert scaling.minimum(name) == 2


@pytest.mark.parametrize("plural", ["deployments", "statefulsets"])
def test_replicas_are_raised_and_given_back(scaling: Scaling, plural: str) -> None:
    """Where no autoscaler is, by the scale subresource, with consent."""
    name = scaling.service(annotations=ALLOWED, plural=plural)
    assert scaling.floor(name, 5, plural).kind == OutcomeKind.DONE
    assert scaling.replicas(name, plural) == 5
    managers = {
        each["manager"] for each in scaling.read(name, plural)["metadata"]["managedFields"] if "subresource" in each
    }
    assert managers == {"gpu-autopilot"}
    assert scaling.floor(name, 1, plural).kind == OutcomeKind.DONE
    assert scaling.replicas(name, plural) == 2, "never below what its owner set"
    scaling.floor(name, 4, plural)
    scaling.floor(name, 0, plural)
    assert scaling.replicas(name, plural) == 2


@pytest.mark.parametrize(
    ("annotations", "metrics", "owner", "said"),
    [
        ({}, None, "", "has no autoscaler, and its owner does not allow to scale it"),
        ({}, [CPU], "", "its owner does not allow to raise its minimum"),
        (ALLOWED, [CPU], "ScaledObject", "is managed by KEDA, which would undo a change; add our external scaler"),
        ({f"{PREFIX}scale": "perhaps"}, None, "", "'perhaps' is not allowed"),
    ],
)
def test_without_a_way_the_outcome_says_why(
    scaling: Scaling, annotations: Obj, metrics: list[Obj] | None, owner: str, said: str
) -> None:
    """Nothing is written."""
    name = scaling.service(annotations=annotations)
    if metrics is not None:
        reference = {"apiVersion": "keda.sh/v1alpha1", "kind": owner, "name": name, "uid": "u-1"} if owner else None
        scaling.autoscaler(name, *metrics, owner=reference)
    outcome = scaling.floor(name, 4)
    assert (outcome.kind, outcome.retryable) == (OutcomeKind.FAILED, False)
    assert said in outcome.reason
    assert scaling.replicas(name) == 2
    assert PREFIX + FLOOR not in scaling.read(name)["metadata"].get("annotations", {})


def test_the_maximum_of_the_owner_binds(scaling: Scaling) -> None:
    """A floor above it is a conflict: it was decided on another view."""
    name = scaling.service(annotations=ALLOWED)
    assert "its owner allows at most 6 replicas, and the floor is 7" in scaling.floor(name, 7).reason
    assert scaling.replicas(name) == 2


def test_what_a_person_lowers_stays_low(scaling: Scaling) -> None:
    """A renewal does not raise it again, and the end of the floor does not change it."""
    name = scaling.service(annotations=ALLOWED)
    scaling.floor(name, 5)
    scaling.set_by_hand(name, 3)
    outcome = scaling.floor(name, 5)
    assert outcome.kind == OutcomeKind.CONFLICT
    assert "somebody set 3 replicas while our floor of 5 stood" in outcome.reason
    assert "keeps its 3 replicas: that number is not ours" in scaling.floor(name, 0).reason
    assert scaling.replicas(name) == 3


def test_what_a_person_raises_is_never_lowered(scaling: Scaling) -> None:
    """It is the number of the owner from then on."""
    name = scaling.service(annotations=ALLOWED)
    scaling.floor(name, 4)
    scaling.set_by_hand(name, 6)
    assert scaling.floor(name, 5).kind == OutcomeKind.DONE
    assert scaling.replicas(name) == 6
    scaling.floor(name, 0)
    assert scaling.replicas(name) == 6


def test_an_interrupted_raise_is_finished(scaling: Scaling) -> None:
    """The record was written and the process died: the same instruction goes on, with the owner's number of before."""
    name = scaling.service(annotations=ALLOWED)
    until_s = scaling.acting.now_s + 1800.0
    record = {"id": "7/p/s", "replicas": 5, "until": until_s, "way": "scale", "owner": 2, "ours": 5}
    path = f"{APPS}/deployments/{name}"
    scaling.ask("PATCH", path, {"metadata": {"annotations": {PREFIX + FLOOR: json.dumps(record)}}})
    fresh = KubernetesActuator(scaling.acting.api("scale"), scaling)
    assert scaling.floor(name, 5, number="7/p/s", until_s=until_s, actuator=fresh).kind == OutcomeKind.DONE
    assert scaling.replicas(name) == 5
    scaling.floor(name, 0)
    assert scaling.replicas(name) == 2


def test_an_instruction_that_comes_twice_acts_once(scaling: Scaling) -> None:
    """The second one returns the first outcome, whatever happened since."""
    name = scaling.service(annotations=ALLOWED)
    first = scaling.floor(name, 4, number="again")
    scaling.set_by_hand(name, 2)
    assert scaling.floor(name, 4, number="again") == first
    assert scaling.replicas(name) == 2


def test_a_service_that_its_owner_changed_is_a_conflict(scaling: Scaling) -> None:
    """The generation is the precondition."""
    name = scaling.service(annotations=ALLOWED)
    meta = scaling.read(name)["metadata"]
    scaling.set_by_hand(name, 3)
    operation = Scale(replicas=5, until_s=scaling.acting.now_s + 60)
    made = scaling.acting.instruction(meta["uid"], operation, number="old")
    subject = Subject(SubjectKind.SERVICE, f"default/{name}", meta["uid"], meta["generation"])
    outcome = scaling.actuator.apply(replace(made, subject=subject), scaling.acting.now_s)
    assert outcome.kind == OutcomeKind.CONFLICT
    assert scaling.replicas(name) == 3
