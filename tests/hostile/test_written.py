"""Objects that say anything beside honest work, as the levers, their upkeep and the watchdog meet them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

import pytest

from actuators.kubernetes.actuator import KubernetesActuator
from actuators.kubernetes.api import Listed, Refusal, answer_of
from actuators.kubernetes.levers.mig_record import Record
from actuators.kubernetes.wire import TYPES
from autopilot.contract.annotations import EFFECT
from autopilot.core.effects.admit import AdmitOperation
from autopilot.core.geometry.recut import RecutGpu
from autopilot.core.model.objects import Subject, SubjectKind
from autopilot.core.model.records import Cause, Instruction, OutcomeKind
from autopilot.kube.cluster_api import Answer
from autopilot.service.watchdog.removal import PAGE, Removal
from tests.hostile.objects import keys_read, names_in, sample
from tests.hostile.written import NOW_S, SLOTS, DogApi, Found, Identity, Shelf, ShelfApi, View, differing, opened, told
from tests.kits.kube_objects import job, node, pod
from tests.kits.tries import tries

BATCH, OBJECTS = tries(50, soak=100), tries(300, soak=1_000)
CODE = ("actuators/kubernetes", "autopilot/service/watchdog", "autopilot/contract/written.py")
RECORDS = {"before", "cordoned", "deadline", "gpus", "id", "lever", "removed", "returns", "since"}
"""Fields of our own records in annotations and of the mark."""
PLUGIN_FILE = {"failRequestsGreaterThanOne", "renameByDefault", "sharing"}
MIG_FILE = {"config.yaml", "device-filter", "devices", "mig-configs", "mig-devices", "mig-enabled", "version"}
ANSWERS = {"causes", "continue", "details", "dryRun", "gracePeriodSeconds", "items", "retry-after"}
"""Of answers and requests, not of objects."""
NO_FIELDS = {"Active", "Pod", "QuotaReserved"}
"""Types of conditions, and kinds."""


@pytest.mark.seeds(100)
def test_honest_work_is_treated_as_without_hostile_objects(soak_seed: int) -> None:
    """Levers and watchdog write the same beside 300 objects, whose own effects fail alone with a clear message."""
    first = soak_seed * OBJECTS
    assert len(told(())[0]["writes"]) > 20
    assert len(opened(())[0]) == 7
    assert [each for at in range(first, first + OBJECTS, BATCH) for each in differing(range(at, at + BATCH))] == []


def test_every_field_that_is_read_has_a_type() -> None:
    """A name that the code reads and no type has would be met by no hostile object."""
    known = set().union(*(names_in(sample(each)) for each in TYPES.values()))
    read = {name: file for name, file in keys_read(*CODE).items() if not ({"/", " "} & set(name))}
    unknown = read.keys() - known - RECORDS - MIG_FILE - PLUGIN_FILE - ANSWERS - NO_FIELDS
    assert {name: read[name] for name in unknown} == {}, "add it to actuators/kubernetes/wire.py"


def test_a_message_names_the_object_the_field_and_the_value() -> None:
    """And the effect does not count towards a pause: its cause is the object."""
    shelf, broken = Shelf(), job("broken", 1)
    broken["spec"]["parallelism"] = "many"
    shelf.put("Job", broken)
    found = Found(0, (Identity("Job", "team", "broken", "uid-team-broken"),))
    actuator = KubernetesActuator(ShelfApi(shelf), View({"uid-team-broken": found}))
    about = Subject(SubjectKind.WORKLOAD, "team/broken", "uid-team-broken", 0)
    outcome = actuator.apply(Instruction("1/p/0", about, AdmitOperation(slots=SLOTS), NOW_S + 9.0, 1, "p"), NOW_S)
    assert (outcome.kind, outcome.cause) == (OutcomeKind.FAILED, Cause.LEVER)
    words = "Job team/broken cannot be read: spec.parallelism is 'many': Expected int, got str"
    assert outcome.reason == f"reading team/broken: {words}"


def test_an_object_that_cannot_be_read_is_not_taken_for_absent() -> None:
    """A list names it, and an answer that is no JSON is no empty list."""
    shelf, bad = Shelf(), pod("holds", 8, node="n1")
    bad["metadata"]["labels"] = 7
    shelf.put("Pod", bad)
    shelf.put("Pod", pod("fits", 8, node="n1"))
    listed = ShelfApi(shelf).list("Pod")
    assert isinstance(listed, Listed)
    assert [each["metadata"]["name"] for each in listed.items] == ["fits"]
    assert listed.unread == ("Pod team/holds cannot be read: metadata.labels is 7: Expected object | null, got int",)
    assert answer_of(200, b'{"items": [').refusal == Refusal.SERVER


def test_a_pod_that_cannot_be_read_holds_the_gpus_of_its_node() -> None:
    """Its node is not cut anew."""
    shelf, bad, cut = Shelf(), pod("holds", 0, node="n1"), node("n1")
    bad["metadata"]["labels"] = 7
    record = Record(
        "1/p/0", "recut", "mig-config", "cordoned", NOW_S, 1, 0.0, "new", "old", cordoned=True, gpus={"0": "1/p/0"}
    )
    cut["metadata"]["annotations"] = {EFFECT: json.dumps(asdict(record))}
    shelf.put("Node", cut)
    shelf.put("Pod", bad)
    actuator = KubernetesActuator(ShelfApi(shelf), View({"gpu": Found(0, (Identity("Node", "", "n1", "uid-n1"),))}))
    operation = RecutGpu(pool="p", before=None, after=(("1g.10gb", 0),), scope="node", node="n1", index=0)
    about = Subject(SubjectKind.GPU, "n1/0", "gpu", 0)
    outcome = actuator.apply(Instruction("1/p/0", about, operation, NOW_S + 9.0, 1, "p"), NOW_S)
    assert outcome.kind == OutcomeKind.ACCEPTED
    assert "Pod team/holds cannot be read: metadata.labels is 7" in outcome.reason
    assert "it may hold GPUs of its node" in outcome.reason


def test_the_watchdog_reads_smaller_pages_where_objects_are_large() -> None:
    """A page that is too long is asked for again with fewer objects, and a cut answer is no empty list."""
    shelf, asked = Shelf(), []
    stopped = opened(())[0]

    class Long(DogApi):
        def get(self, path: str, query: Mapping[str, str] | None = None) -> Answer:
            asked.append(int((query or {})["limit"]))
            return Answer(413, "too long") if asked[-1] > 10 else super().get(path, query)

    assert Removal(Long(shelf), lambda: "").run() == ""
    assert asked[:4] == [PAGE, PAGE // 8, PAGE // 64, PAGE]
    cut = DogApi(shelf)
    cut.get = lambda *_: Answer(200, json.dumps({"items": []})[:-1])  # type: ignore[method-assign]
    assert "clusterqueues" in Removal(cut, lambda: "").run()
    assert stopped == opened(())[0]
