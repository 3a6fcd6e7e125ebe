"""Elastic Jobs of Kueue: a wider Workload replaces the one before, and lets the new pods go once it is admitted."""

from __future__ import annotations

from typing import Any

import pytest

from apiserver.kueue.names import ELASTIC_JOB, REPLACES, SLICE_NAME
from tests.kits.kueue_kit import GPU, JOBS, ROOT, SPACE, KueueCluster

Obj = dict[str, Any]
PODS = "/api/v1/namespaces/default/pods"
LACKS = f"couldn't assign flavors to pod set main: insufficient unused quota for {GPU} in flavor h100, 4 more needed"


class Elastic(KueueCluster):
    """Two nodes, a queue of 12 GPUs, and an elastic Job `one` of one pod with four of them."""

    def __init__(self) -> None:
        super().__init__()
        self.node("n1")
        self.node("n2")
        self.queue("a", 12)
        self.ask("POST", JOBS, self.elastic("one"))
        self.run(3)

    def elastic(self, name: str, **notes: str) -> Obj:
        """An elastic Job that is not created yet."""
        job = self.job_of(name, "a", 4)
        job["metadata"]["annotations"] |= {ELASTIC_JOB: "true", **notes}
        del job["spec"]["completions"]
        return job

    def resize(self, pods: int) -> None:
        """A person changes its width."""
        self.ask("PATCH", f"{JOBS}/one", {"spec": {"parallelism": pods}})
        self.run(4)

    def workloads(self) -> list[Obj]:
        """Those of the Job, the oldest first."""
        found = self.ask("GET", f"{SPACE}/workloads")["items"]
        mine = [each for each in found if each["metadata"]["ownerReferences"][0]["name"] == "one"]
        return sorted(mine, key=lambda each: str(each["metadata"]["creationTimestamp"]))

    def chain(self) -> list[tuple[int, str, str]]:
        """Pods, value of Admitted and reason of Finished of its Workloads."""
        found = []
        for each in self.workloads():
            kinds = {row["type"]: row for row in each["status"]["conditions"]}
            admitted, ended = kinds.get("Admitted", {}).get("status", ""), kinds.get("Finished", {}).get("reason", "")
            found.append((each["spec"]["podSets"][0]["count"], admitted, ended))
        return found

    def pods(self) -> tuple[int, int]:
        """How many of its pods run, and how many are held by the gate."""
        found = self.ask("GET", PODS, labelSelector="job-name=one")["items"]
        gated = [each for each in found if {"name": ELASTIC_JOB} in each["spec"].get("schedulingGates", [])]
        return sum(each["status"]["phase"] == "Running" for each in found), len(gated)


def test_a_job_grows_with_a_workload_that_replaces_the_one_before() -> None:
    """What it lacks is the difference. While it lacks that, its pods run on; fewer pods need no other Workload."""
    kueue = Elastic()
    assert (kueue.chain(), kueue.pods()) == ([(1, "True", "")], (1, 0))
    kueue.resize(2)
    assert kueue.chain() == [(1, "True", "WorkloadSliceReplaced"), (2, "True", "")]
    kueue.job("other", "a", 4)
    kueue.run(3)
    kueue.resize(3)
    assert kueue.chain()[1:] == [(2, "True", ""), (3, "", "")]
    assert kueue.pods() == (2, 1)
    first, second, third = kueue.workloads()
    assert first["metadata"]["annotations"] == {ELASTIC_JOB: "true", SLICE_NAME: first["metadata"]["name"]}
    for before, after in ((first, second), (second, third)):
        notes = {SLICE_NAME: first["metadata"]["name"], REPLACES: f"default/{before['metadata']['name']}"}
        assert after["metadata"]["annotations"] == {ELASTIC_JOB: "true", **notes}
    reserved = {row["type"]: row for row in third["status"]["conditions"]}["QuotaReserved"]
    assert (reserved["reason"], reserved["message"]) == ("Pending", LACKS)
    kueue.ask("DELETE", f"{JOBS}/other", {"propagationPolicy": "Background"})
    kueue.run(4)
    assert kueue.chain()[1:] == [(2, "True", "WorkloadSliceReplaced"), (3, "True", "")]
    assert kueue.pods() == (3, 0)
    kueue.resize(1)
    kueue.run(4)
    assert kueue.chain()[2:] == [(1, "True", "")]
    usage = kueue.ask("GET", f"{ROOT}/clusterqueues/a")["status"]["flavorsUsage"][0]["resources"]
    assert next(each["total"] for each in usage if each["name"] == GPU) == "4"


def test_a_wider_workload_keeps_the_flavor_of_the_one_before() -> None:
    """A second flavor with room is not taken: the pods of one Job have one place."""
    kueue = Elastic()
    kueue.create("ResourceFlavor", "resourceflavors", "spare", {"nodeLabels": {"gpu": "h100"}})
    path = f"{ROOT}/clusterqueues/a"
    groups = kueue.ask("GET", path)["spec"]["resourceGroups"]
    groups[0]["flavors"].append({**groups[0]["flavors"][0], "name": "spare"})
    kueue.ask("PATCH", path, {"spec": {"resourceGroups": groups}})
    kueue.job("other", "a", 8)
    kueue.run(3)
    kueue.resize(2)
    (reserved,) = [row for row in kueue.workloads()[-1]["status"]["conditions"] if row["type"] == "QuotaReserved"]
    assert "could not assign spare flavor since the original workload is assigned: h100" in reserved["message"]
    assert kueue.pods() == (1, 1)


def test_a_job_that_has_grown_is_stopped_and_comes_back_as_wide() -> None:
    """spec.active false of the Workload that counts stops the Job; true starts it with all pods."""
    kueue = Elastic()
    kueue.resize(2)
    path = f"{SPACE}/workloads/{kueue.workloads()[-1]['metadata']['name']}"
    kueue.ask("PATCH", path, {"spec": {"active": False}})
    kueue.run(5)
    assert kueue.ask("GET", f"{JOBS}/one")["spec"]["suspend"] is True
    assert kueue.pods() == (0, 0)
    kueue.ask("PATCH", path, {"spec": {"active": True}})
    kueue.run(5)
    assert kueue.pods() == (2, 0)


@pytest.mark.parametrize(
    ("notes", "patch", "message"),
    [
        (
            {"kueue.x-k8s.io/job-min-parallelism": "1"},
            None,
            'Invalid value: "1": partial admission and elastic job cannot be used together',
        ),
        ({}, {ELASTIC_JOB: None}, f"metadata.annotations[{ELASTIC_JOB}]: Invalid value: false: field is immutable"),
    ],
)
def test_what_an_elastic_job_may_not_be(notes: dict[str, str], patch: Obj | None, message: str) -> None:
    """Admitted in part, or made rigid later."""
    kueue = Elastic()
    if patch is None:
        job = kueue.elastic("two", **notes)
        job["spec"]["parallelism"] = 2
        assert message in kueue.ask.refused(403, "POST", JOBS, job)
    else:
        assert message in kueue.ask.refused(403, "PATCH", f"{JOBS}/one", {"metadata": {"annotations": patch}})
