"""What claims without an allocation ask for: the forms that are understood; others are named and not guessed."""

from __future__ import annotations

from typing import Any

import pytest

from collectors.kubernetes.collector import Options
from tests.kits.dra_objects import (
    PROFILE,
    by_template,
    claim,
    claiming,
    device_class,
    dra_node,
    dynamic_slices,
    request,
    template,
)
from tests.kits.kube_objects import Json, job, meta, pod, workload
from tests.unit.collectors.kubernetes.view import Seen, reasons, row

TYPE = "device.attributes['gpu.nvidia.com'].type == '{}'"
GPUS = "device.driver == 'gpu.nvidia.com' && " + TYPE.format("gpu")
MIG = "device.driver == 'gpu.nvidia.com' && " + TYPE.format("mig")


def selecting(*expressions: str, name: str = "gpu.nvidia.com") -> Json:
    """A request with selectors of its own."""
    selectors = [{"cel": {"expression": each}} for each in expressions]
    return request() | {"exactly": {"deviceClassName": name, "selectors": selectors}}


def asked(view: Seen, name: str = "team/p") -> tuple[int, str]:
    """GPUs (or instances) and profile of a workload that is not left alone."""
    seen = view.tables()
    found = row(seen[1], name)
    assert not found["excluded"], reasons(view.batch())
    return found["gpus"], seen[0].names.profiles[found["mig_profile"]] if found["mig_profile"] >= 0 else ""


@pytest.mark.parametrize(
    ("asks", "expected"),
    [
        ([request(count=4)], (4, "")),
        ([request("1g.10gb", 2)], (2, "1g.10gb")),
        ([request(), request(count=2)], (3, "")),
        ([selecting(GPUS)], (1, "")),
        ([selecting(PROFILE.format("3g.40gb"), MIG, name="mig.nvidia.com")], (1, "3g.40gb")),
        ([selecting('device.attributes["gpu.nvidia.com"].profile=="1g.10gb"', name="mig.nvidia.com")], (1, "1g.10gb")),
        ([request(), request(count=8, adminAccess=True)], (1, "")),
    ],
    ids=["GPUs", "instances", "two requests", "selector of GPUs", "selectors", "other quotes", "administrator"],
)
def test_a_claim_without_an_allocation_asks_by_class_and_selector(asks: list[Json], expected: tuple[int, str]) -> None:
    """The classes that NVIDIA's driver ships are known without being listed."""
    view = Seen(dra_node(), *dynamic_slices("n1", 1), claim("c", asks=asks), claiming("p", "c"))
    assert asked(view) == expected


def test_a_class_of_ones_own_is_read() -> None:
    """Its selectors count as those of the request do."""
    own = [device_class("small", f"{MIG} && {PROFILE.format('1g.10gb')}"), device_class("gpu.nvidia.com", GPUS)]
    small = [selecting(name="small")]
    view = Seen(dra_node(), *dynamic_slices("n1", 1), *own, claim("c", asks=small), claiming("p", "c"))
    assert asked(view) == (1, "1g.10gb")


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        (
            selecting("device.capacity['gpu.nvidia.com'].memory.isGreaterThan(quantity('20Gi'))"),
            "a selector says more than driver, type and profile: device.capacity['gpu.nvidia.com'].memory.",
        ),
        (selecting(PROFILE.format("1g.10gb") + " || true", name="mig.nvidia.com"), "a selector says more"),
        (selecting(name="mine"), "device class mine is not in the view"),
        (selecting(name="mig.nvidia.com"), "it names no MIG profile"),
        (selecting(PROFILE.format("huge"), name="mig.nvidia.com"), "'huge' is no MIG profile"),
        (
            selecting(PROFILE.format("1g.10gb")),
            "device class gpu.nvidia.com and its selectors name no single kind",
        ),
        (request(allocationMode="All"), "allocation mode All states no number"),
        (request(capacity={"requests": {"memory": "10Gi"}}), "it asks for a part of a device"),
    ],
    ids=["capacity", "alternative", "unknown class", "any profile", "no profile", "both kinds", "all", "part"],
)
def test_a_form_that_is_not_understood_is_named_and_not_guessed(ask: Json, reason: str) -> None:
    """The pod asks for nothing that is known, so it is no work of ours; the gap names it."""
    view = Seen(dra_node(), *dynamic_slices("n1", 1), claim("c", asks=[ask]), claiming("p", "c"))
    (found,) = reasons(view.batch(), "resourceclaims")
    assert found.startswith(f"team/p: its claim c is not understood: request 'gpu': {reason}")
    assert found.endswith("; it is left alone")
    assert len(view.tables()[1].workloads.id) == 0


@pytest.mark.parametrize(
    ("devices", "reason"),
    [
        ({"requests": [{"name": "any", "firstAvailable": [{"name": "big"}]}]}, "request 'any' leaves a choice"),
        (
            {"requests": [request(count=2)], "constraints": [{"matchAttribute": "gpu.nvidia.com/parentUUID"}]},
            "it has constraints on its devices",
        ),
    ],
    ids=["choice", "constraints"],
)
def test_a_choice_and_a_constraint_are_named(devices: dict[str, Any], reason: str) -> None:
    """Which devices will do is left to the scheduler, and is not modelled."""
    waiting = claim("c") | {"spec": {"devices": devices}}
    view = Seen(dra_node(), *dynamic_slices("n1", 1), waiting, claiming("p", "c"))
    (found,) = reasons(view.batch(), "resourceclaims")
    assert reason in found


def test_work_that_is_understood_in_part_is_left_alone() -> None:
    """What it asks for in all is not known."""
    both = claim("c", asks=[request(count=2), selecting(name="mine")])
    found = row(Seen(dra_node(), *dynamic_slices("n1", 1), both, claiming("p", "c")).tables()[1], "team/p")
    assert (found["gpus"], found["excluded"]) == (2, True)


# --- pods that do not exist yet -------------------------------------------------------------------


def test_a_job_asks_by_the_template_of_its_claims() -> None:
    """Each pod gets a claim of its own, so the gang asks for as many as it has pods."""
    view = Seen(dra_node(), template("t", request(count=4)), job("j", 0, width=3, suspend=True, **by_template("t")))
    assert asked(view, "team/j") == (12, "")
    assert row(view.tables()[1], "team/j")["gpus_per_member"] == 4


def test_a_workload_of_kueue_asks_by_the_template_of_its_claims() -> None:
    """The pod set refers to it."""
    own = {"podSets": [{"name": "main", "count": 2, "template": {"spec": {"containers": [], **by_template("t")}}}]}
    waiting = workload("w", count=2)
    waiting["spec"] |= own
    view = Seen(dra_node(), template("t", request()), waiting)
    seen = view.tables()
    assert row(seen[1], "team/w")["gpus"] == 2


def test_a_template_that_comes_later_is_read_then() -> None:
    """Until then the Job is named."""
    view = Seen(dra_node(), job("j", 0, width=2, suspend=True, **by_template("t")))
    assert "team/j: its claim template t is not in the view; it is left alone" in reasons(view.batch())
    work = view.tables(template("t", request()))[1]
    assert row(work, "team/j")["gpus"] == 2
    assert reasons(view.batch(), "resourceclaims") == []


def test_pods_that_would_share_a_claim_are_named() -> None:
    """A Job whose template names a claim and not a template of claims."""
    shared: dict[str, Any] = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]}
    view = Seen(dra_node(), claim("c"), job("j", 0, width=2, suspend=True, **shared))
    assert reasons(view.batch(), "resourceclaims") == ["team/j: its pods share the claim c; it is left alone"]


def test_a_pod_has_the_claim_that_was_made_for_it() -> None:
    """Its status names the claim; before that, its template says what it will ask for."""
    waiting = pod("p", 0, **by_template("t"))
    view = Seen(dra_node(), *dynamic_slices("n1", 2), template("t", request()), waiting)
    assert asked(view) == (1, "")
    made = pod("p", 0, node="n1", **by_template("t"))
    made["metadata"]["resourceVersion"] = "2"
    made["status"]["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": "p-gpu-x"}]
    inventory, work = view.tables(claim("p-gpu-x", "gpu-1", pods=("p",)), made)
    assert str(inventory.gpus.uuid[work.placements.gpu[0]]) == "GPU-n1-1"


def test_work_that_waits_for_dynamic_mig_is_named_where_the_controller_does_not_start_it() -> None:
    """Where the driver does not state which slices an instance would take: a gate of ours would stay closed."""
    slices, user = dynamic_slices("n1", 1), claiming("p", "c")
    objects = (dra_node(), *slices, claim("c", asks=[request("1g.10gb")]), user)
    assert reasons(Seen(*objects, options=Options(acts=True)).batch(), "resourceclaims") == []
    slices[0]["spec"]["sharedCounters"][0]["counters"] |= {"share": {"value": "8"}}
    for each in slices[1]["spec"]["devices"]:
        each["consumesCounters"][0]["counters"] = {"share": {"value": "1"}}
    acting = Seen(*objects, options=Options(acts=True))
    (found,) = reasons(acting.batch(), "resourceclaims")
    assert found.startswith("team/p: it waits for an instance 1g.10gb of dynamic MIG")
    assert "no driver states where it could be made" in found
    assert not row(acting.tables()[1], "team/p")["excluded"]
    assert reasons(Seen(*objects).batch(), "resourceclaims") == []


def test_a_gang_of_several_profiles_of_dynamic_mig_is_named() -> None:
    """Members that differ start on instances that exist, and none does."""
    asks = [request("1g.10gb"), request("3g.40gb") | {"name": "more"}]
    view = Seen(
        dra_node(), *dynamic_slices("n1", 1), claim("c", asks=asks), claiming("p", "c"), options=Options(acts=True)
    )
    found = reasons(view.batch(), "resourceclaims")
    assert len(found) == 2
    assert all("its members differ" in each for each in found)


def test_a_deployment_with_claims_is_a_service() -> None:
    """Its pods ask for GPUs, though their containers do not."""
    spec = {"replicas": 1, "template": {"metadata": {"labels": {}}, "spec": {"containers": [], **by_template("t")}}}
    service = {"kind": "Deployment", "metadata": meta("chat", "team"), "spec": spec, "status": {}}
    view = Seen(dra_node(), service)
    assert len(view.tables()[1].services.id) == 0
    assert view.tables(template("t", request("1g.10gb")))[1].services.id.tolist() == ["team/chat"]
