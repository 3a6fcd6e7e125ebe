"""GPUs and MIG instances by dynamic resource allocation: what exists, and which pod has it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from autopilot.core.model.records import Inventory, Work
from collectors.attribution import Attribution, Sighting, Sightings
from collectors.kubernetes.nodes import BY_MIG_MANAGER
from tests.kits.dra_objects import (
    claim,
    claiming,
    counters,
    device_class,
    dra_node,
    dynamic_slices,
    instance,
    request,
    resource_slice,
    text,
    whole_gpu,
)
from tests.kits.kube_objects import Json, node, pod
from tests.unit.collectors.kubernetes.view import Seen, held, reasons, row

SMALL, BIG, SET = "gpu-0-mig-1g10gb-1-3", "gpu-0-mig-3g40gb-4-4", "gpu-0-counter-set"


def gpus_of(node_name: str, count: int, generation: int = 1, name: str = "s") -> Json:
    """A slice of whole GPUs."""
    return resource_slice(name, node_name, [whole_gpu(node_name, k) for k in range(count)], generation)


def instances(seen: tuple[Inventory, Work]) -> list[tuple[str, str, int]]:
    """GPU, profile and first memory slice of each instance."""
    inventory, table = seen[0], seen[0].instances
    return [
        (str(inventory.gpus.uuid[table.gpu[k]]), inventory.names.profiles[table.profile[k]], int(table.start[k]))
        for k in range(len(table.id))
    ]


# --- whole GPUs -----------------------------------------------------------------------------------


def test_a_pod_holds_the_device_that_its_claim_got() -> None:
    """Slices name the GPUs, the allocated claim names that of the pod, which asks for no resource."""
    seen = Seen(dra_node(), gpus_of("n1", 2), claim("c", "gpu-1", pods=("p",)), claiming("p", "c", node="n1")).tables()
    assert seen[0].gpus.uuid.tolist() == ["GPU-n1-0", "GPU-n1-1"]
    assert seen[0].gpus.healthy.all()
    assert (row(seen[1], "team/p")["gpus"], held(seen, "team/p")) == (1, ["GPU-n1-1"])


def test_a_claim_that_nobody_has_any_more_frees_its_gpu() -> None:
    """A pod that has ended and its claim that is gone hold nothing."""
    had, user = claim("c", "gpu-0", pods=("p",)), claiming("p", "c", node="n1")
    view = Seen(dra_node(), gpus_of("n1", 2), had, user)
    assert len(view.tables()[1].workloads.id) == 1
    assert len(view.tables(gone=(had, user))[1].workloads.id) == 0


def test_only_the_newest_generation_of_a_pool_counts() -> None:
    """A driver replaces its slices; the old ones may be there for a while."""
    inventory, _ = Seen(dra_node(), gpus_of("n1", 4, name="old"), gpus_of("n1", 2, generation=2)).tables()
    assert inventory.gpus.uuid.tolist() == ["GPU-n1-0", "GPU-n1-1"]


def test_a_claim_for_an_extended_resource_is_not_counted_twice() -> None:
    """The scheduler makes it for a container that asks for `nvidia.com/gpu`; it says which GPU that is."""
    seen = Seen(dra_node(), gpus_of("n1", 2), claim("c", "gpu-1", pods=("p",)), pod("p", 1, node="n1")).tables()
    assert (row(seen[1], "team/p")["gpus"], held(seen, "team/p")) == (1, ["GPU-n1-1"])


def test_a_gpu_that_a_claim_has_without_a_pod_gets_no_work() -> None:
    """It is not free, and nobody is known to use it."""
    inventory, _ = Seen(dra_node(), gpus_of("n1", 2), claim("c", "gpu-1")).tables()
    assert inventory.gpus.healthy.tolist() == [True, False]


def test_a_gpu_with_a_taint_gets_no_work() -> None:
    """The driver taints a device that is broken."""
    devices = [whole_gpu("n1", 0) | {"taints": [{"key": "xid", "effect": "NoSchedule"}]}, whole_gpu("n1", 1)]
    inventory, _ = Seen(dra_node(), resource_slice("s", "n1", devices)).tables()
    assert inventory.gpus.healthy.tolist() == [False, True]


# --- MIG ------------------------------------------------------------------------------------------


def test_with_dynamic_mig_only_allocated_instances_exist() -> None:
    """The slices list every possible instance. What a claim has is cut out of its GPU; the other GPU stays whole."""
    seen = Seen(
        dra_node(),
        *dynamic_slices("n1", 2),
        claim("a", SMALL, pods=("p",), asks=[request("1g.10gb")]),
        claim("b", BIG, pods=("q",), asks=[request("3g.40gb")]),
        claiming("p", "a", node="n1"),
        claiming("q", "b", node="n1"),
    ).tables()
    assert seen[0].gpus.mig.tolist() == [True, False]
    assert instances(seen) == [("GPU-n1-0", "1g.10gb", 3), ("GPU-n1-0", "3g.40gb", 4)]
    assert held(seen, "team/p") == ["GPU-n1-0/103"]
    assert held(seen, "team/q") == ["GPU-n1-0/104"]
    assert row(seen[1], "team/p")["mig_profile"] == seen[0].names.profiles.index("1g.10gb")


def test_an_instance_is_gone_with_its_claim() -> None:
    """Then the GPU is whole again."""
    had, user = claim("a", SMALL, pods=("p",)), claiming("p", "a", node="n1")
    view = Seen(dra_node(), *dynamic_slices("n1", 1), had, user)
    assert view.tables()[0].gpus.mig.tolist() == [True]
    after = view.tables(gone=(had, user))
    assert (after[0].gpus.mig.tolist(), instances(after)) == ([False], [])


def test_a_change_of_one_node_is_read_and_the_others_stay() -> None:
    """A claim, and later a newer generation of slices, on one of two nodes."""
    both = [dra_node("n1"), dra_node("n2"), *dynamic_slices("n1", 1), *dynamic_slices("n2", 1)]
    had = [claim(f"c{k}", SMALL, pods=(f"p{k}",), pool=f"n{k}") for k in (1, 2)]
    users = [claiming(f"p{k}", f"c{k}", node=f"n{k}") for k in (1, 2)]
    view = Seen(*both, *had, *users)
    assert [gpu for gpu, *_ in instances(view.tables())] == ["GPU-n1-0", "GPU-n2-0"]
    after = view.tables(gone=(had[0], users[0]))
    assert [gpu for gpu, *_ in instances(after)] == ["GPU-n2-0"]
    newer = dynamic_slices("n1", 2, generation=2)
    for each in newer:
        each["metadata"]["resourceVersion"] = "2"
    seen = view.tables(*newer)
    assert seen[0].gpus.uuid.tolist() == ["GPU-n1-0", "GPU-n1-1", "GPU-n2-0"]
    assert [gpu for gpu, *_ in instances(seen)] == ["GPU-n2-0"]


def test_nothing_is_cut_where_gpus_are_offered_by_claims() -> None:
    """GPU feature discovery labels such a node as it labels every other one. Its geometry follows the claims."""
    by_claims, counted = dra_node("n1"), node("n2")
    for each in (by_claims, counted):
        each["metadata"]["labels"] |= {"nvidia.com/mig.capable": "true", "nvidia.com/mig.strategy": "mixed"}
    inventory, _ = Seen(by_claims, counted, *dynamic_slices("n1", 2)).tables()
    assert inventory.gpus.healthy.all()
    assert inventory.nodes.mig_scopes.tolist() == [0, BY_MIG_MANAGER]


def test_with_static_mig_every_listed_instance_exists() -> None:
    """It has no counters: the capacity names its memory slices. The GPU itself is not listed."""
    made = [instance("n1", 0, "1g.10gb", 0, 1), instance("n1", 0, "3g.40gb", 4, 4)]
    for each, slices in zip(made, ((0,), (4, 5, 6, 7)), strict=True):
        del each["consumesCounters"]
        each["capacity"] = {f"memorySlice{k}": {"value": "1"} for k in slices}
    seen = Seen(
        dra_node(),
        resource_slice("s", "n1", made),
        claim("c", made[0]["name"], pods=("p",)),
        claiming("p", "c", node="n1"),
    ).tables()
    assert (seen[0].gpus.uuid.tolist(), seen[0].gpus.mig.tolist()) == (["GPU-n1-0"], [True])
    assert instances(seen) == [("GPU-n1-0", "1g.10gb", 0), ("GPU-n1-0", "3g.40gb", 4)]
    assert held(seen, "team/p") == ["GPU-n1-0/100"]


def test_an_instance_that_a_claim_has_without_a_pod_is_not_free() -> None:
    """It is left out, and its GPU is no whole one."""
    seen = Seen(dra_node(), *dynamic_slices("n1", 1), claim("c", SMALL)).tables()
    assert (seen[0].gpus.mig.tolist(), instances(seen)) == ([True], [])


def test_an_exporter_gives_instances_their_numbers_and_the_driver_their_places() -> None:
    """By the pods where a GPU has two of a profile; else by the profile alone."""

    class Exporter:
        def sightings(self) -> Sightings:
            kinds = (("9", "1g.10gb"), ("8", "1g.10gb"), ("1", "3g.40gb"))
            on = (("9", "p"), ("8", "o"))
            return Sightings(
                tuple(Sighting("GPU-n1-0", gi_id, profile, "n1") for gi_id, profile in kinds),
                tuple(Attribution(f"GPU-n1-0/{gi_id}", "team", name, 1.0, False) for gi_id, name in on),
            )

    first = "gpu-0-mig-1g10gb-1-0"
    seen = Seen(
        dra_node(),
        *dynamic_slices("n1", 1),
        *(claim(f"c{k}", name, pods=(k,)) for k, name in (("o", SMALL), ("p", first), ("q", BIG))),
        *(claiming(k, f"c{k}", node="n1") for k in "opq"),
        hardware=Exporter(),
    ).tables()
    assert [held(seen, f"team/{k}") for k in "opq"] == [["GPU-n1-0/8"], ["GPU-n1-0/9"], ["GPU-n1-0/1"]]
    assert dict(zip(seen[0].instances.id.tolist(), seen[0].instances.start.tolist(), strict=True)) == {
        "GPU-n1-0/9": 0,
        "GPU-n1-0/8": 3,
        "GPU-n1-0/1": 4,
    }


# --- what cannot be -------------------------------------------------------------------------------


def _gaps(*objects: Json) -> list[str]:
    return reasons(Seen(dra_node(), *objects).batch(), "resourceclaims")


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        (instance("n1", 0, "5g.60gb", 0, 4), "5g.60gb is no profile of H100-80GB"),
        (instance("n1", 0, "big", 0, 4), "its profile 'big' is no MIG profile"),
        (instance("n1", 0, "3g.40gb", 2, 4), "memory slices 2 to 5 are no place of 3g.40gb on H100-80GB"),
        (
            instance("n1", 0, "2g.20gb", 0, 2)
            | {"name": "gap", "consumesCounters": [{"counterSet": SET, "counters": counters(range(0, 4, 2))}]},
            "its memory slices 0, 2 are not side by side",
        ),
        (
            instance("n1", 0, "1g.10gb", 0, 1)
            | {"name": "lost", "consumesCounters": [{"counterSet": "other", "counters": counters(range(1))}]},
            "it draws 1 of counter memory-slice-0 of other, which has none",
        ),
        (
            {"name": "mig-x", "attributes": {"type": text("mig"), "profile": text("1g.10gb")}},
            "it names no GPU: it has no attribute parentUUID, and no whole GPU draws on its counters",
        ),
    ],
    ids=["profile of no model", "no profile", "no place", "gap between slices", "no counter", "no GPU"],
)
def test_a_device_that_cannot_be_is_named_and_does_not_count(device: Json, reason: str) -> None:
    """The other devices of the node count."""
    sets, listed = dynamic_slices("n1", 1)
    listed["spec"]["devices"].append(device)
    had = claim("c", device["name"], pods=("p",), asks=[request("1g.10gb")])
    view = Seen(dra_node(), sets, listed, had, claiming("p", "c", node="n1"))
    found = reasons(view.batch(), "resourceclaims")
    assert found[0] == f"n1: one of its devices does not count; {device['name']}: {reason}"
    assert found[1:] == [f"team/p: its claim c has device {device['name']} of pool n1, and {reason}; it is left alone"]
    assert row(view.tables()[1], "team/p")["excluded"]


def test_a_device_that_is_listed_twice_does_not_count() -> None:
    """Which of the two a claim means is not known."""
    twice = resource_slice("more", "n1", [whole_gpu("n1", 0)])
    view = Seen(dra_node(), gpus_of("n1", 2), twice)
    assert "n1: one of its devices does not count; gpu-0: the pool lists it twice" in reasons(view.batch())
    assert view.tables()[0].gpus.uuid.tolist() == ["GPU-n1-1"]


def test_a_device_that_no_slice_lists_is_named_and_its_pod_left_alone() -> None:
    """Its request says what it is; which GPU it is stays unknown."""
    view = Seen(dra_node(), gpus_of("n1", 1), claim("c", "gpu-7", pods=("p",)), claiming("p", "c", node="n1"))
    (reason,) = reasons(view.batch(), "resourceclaims")
    assert reason == (
        "team/p: its claim c has device gpu-7 of pool n1, which no ResourceSlice lists; check the DRA driver; "
        "it is left alone"
    )
    found = row(view.tables()[1], "team/p")
    assert (found["gpus"], found["excluded"]) == (1, True)


def test_claims_that_exceed_the_counters_of_a_gpu_are_named() -> None:
    """A whole GPU and an instance of it at the same time: what is true is not known, so the GPU gets no work."""
    both = [claim("a", "gpu-0", pods=("p",)), claim("b", SMALL, pods=("q",))]
    users = [claiming("p", "a", node="n1"), claiming("q", "b", node="n1")]
    view = Seen(dra_node(), *dynamic_slices("n1", 2), *both, *users)
    found = reasons(view.batch(), "resourceclaims")
    assert found[0] == (
        f"n1: claims have gpu-0 and {SMALL}, which share counter memory-slice-3: together they exceed it; "
        "their GPU gets no work"
    )
    inventory, work = view.tables()
    assert inventory.gpus.healthy.tolist() == [False, True]
    assert row(work, "team/p")["excluded"]
    assert row(work, "team/q")["excluded"]


def test_a_device_that_two_claims_have_is_named() -> None:
    """Without counters, too."""
    both = [claim("a", "gpu-0", pods=("p",)), claim("b", "gpu-0", pods=("q",))]
    assert "n1: 2 claims have its device gpu-0; its GPU gets no work" in _gaps(gpus_of("n1", 1), *both)


def test_a_pool_of_which_slices_are_missing_is_named() -> None:
    """Its other devices count."""
    assert "n1: pool n1 has 1 of 2 slices; the devices of the others are missing" in _gaps(dynamic_slices("n1", 1)[0])


def test_pods_that_share_a_claim_are_left_alone() -> None:
    """Their number of GPUs is not the sum of their requests."""
    shared = claim("c", "gpu-0", pods=("p", "q"))
    view = Seen(dra_node(), gpus_of("n1", 2), shared, claiming("p", "c", node="n1"), claiming("q", "c", node="n1"))
    assert set(reasons(view.batch(), "resourceclaims")) == {
        f"team/{each}: 2 pods use its claim c, and may share its devices; it is left alone" for each in "pq"
    }
    seen = view.tables()
    assert (row(seen[1], "team/p")["excluded"], held(seen, "team/p")) == (True, ["GPU-n1-0"])


def test_devices_of_other_drivers_are_none_of_ours() -> None:
    """A claim for a network card is no gap."""
    card = request() | {"exactly": {"deviceClassName": "nic.example.com"}}
    kind = device_class("nic.example.com", "device.driver == 'nic.example.com' && device.attributes['x'].fast")
    assert _gaps(kind, claim("c", asks=[card]), claiming("p", "c")) == []


# --- a recording ----------------------------------------------------------------------------------


def test_the_slices_of_a_real_server_are_read(shared_data: Path | None) -> None:
    """Recorded with another driver's name: whole GPUs in one pool, partitions with counters in a second one."""
    if shared_data is None:
        pytest.skip("no recordings: set AUTOPILOT_SHARED_DATA")
    steps = json.loads((shared_data / "kube" / "recordings" / "16-dra.json").read_text())["steps"]
    names = {"slice with whole GPUs", "slice with counters", "slice of partitions", "claim"}
    bodies = json.dumps([each["response"]["body"] for each in steps if each["name"] in names])
    objects = json.loads(re.sub(r"(gpu|mig)\.example\.com", "gpu.nvidia.com", bodies))
    waiting = objects.pop()
    waiting["metadata"]["namespace"] = "team"
    had = claim("m", "gpu-0-mig-1g-2", pods=("p",), asks=[request("1g.10gb")], pool="dra-n1-mig")
    pods = (claiming("p", "m", node="dra-n1"), claiming("q", "c1"))
    view = Seen(dra_node("dra-n1"), *objects, had, waiting, *pods)
    seen = view.tables()
    assert (seen[0].gpus.uuid.tolist(), seen[0].gpus.mig.tolist()) == (["GPU-0", "GPU-1"], [True, False])
    assert instances(seen) == [("GPU-0", "1g.10gb", 2)]
    assert held(seen, "team/p") == ["GPU-0/102"]
    assert row(seen[1], "team/q")["gpus"] == 1
    assert reasons(view.batch(), "resourceclaims") == []


# --- claims that cannot be read -------------------------------------------------------------------


def odd(found: Json, *way: str | int, value: object = 7) -> Json:
    """A claim with a value of a wrong type at a place."""
    made: Json = json.loads(json.dumps(found))
    place: Any = made
    for step in way[:-1]:
        place = place[step]
    place[way[-1]] = value
    return made


def nodes_with_claims(*claims: Json) -> Seen:
    """Nodes of two GPUs each, and claims."""
    slices = [gpus_of(name, 2, name=f"s-{name}") for name in ("n1", "n2")]
    return Seen(dra_node("n1"), dra_node("n2"), *slices, *claims)


RESULTS = ("status", "allocation", "devices", "results")


@pytest.mark.parametrize(
    ("bad", "cordoned"),
    [
        (odd(claim("c", "gpu-1", pods=("p",)), "spec", "devices"), [True, False]),
        (odd(claim("c", "gpu-1", pods=("p",), pool="n2"), *RESULTS, 0, "device"), [False, True]),
        (odd(claim("c", "gpu-1", pods=("p",)), *RESULTS, 0, "pool"), [True, True]),
        (odd(claim("c", "gpu-1", pods=("p",)), *RESULTS), [True, True]),
        (odd(claim("c", "gpu-1", pods=("p",)), "status"), [True, True]),
        (odd(odd(claim("c", "gpu-1"), *RESULTS, 0, "driver", value="nic.example.com"), "spec"), [False, False]),
        (odd(claim("c"), "spec", "devices"), [False, False]),
    ],
)
def test_a_claim_that_was_never_read_keeps_new_work_from_the_nodes_of_its_pools(
    bad: Json, cordoned: list[bool]
) -> None:
    """Nobody knows the devices that it has. A claim without GPUs keeps nothing, and other claims hold theirs."""
    honest = (claim("good", "gpu-0", pods=("q",)), claiming("q", "good", node="n1"))
    view = nodes_with_claims(*honest, bad)
    seen = view.tables()
    assert seen[0].nodes.cordoned.tolist() == cordoned
    assert held(seen, "team/q") == ["GPU-n1-0"]
    assert sum("team/c" in each and "it gets no new work" in each for each in reasons(view.batch())) == sum(cordoned)
    assert view.tables(gone=(bad,))[0].nodes.cordoned.tolist() == [False, False]


def test_a_claim_that_can_no_longer_be_read_holds_what_it_held() -> None:
    """Its device stays with its pod, and the other devices of the node take work."""
    good = claim("c", "gpu-1", pods=("p",))
    view = nodes_with_claims(good, claiming("p", "c", node="n1"))
    view.tables()
    seen = view.tables(odd(good, "spec", "devices"))
    assert held(seen, "team/p") == ["GPU-n1-1"]
    assert seen[0].nodes.cordoned.tolist() == [False, False]


def test_a_claim_that_gets_its_devices_when_it_cannot_be_read_keeps_new_work_away() -> None:
    """It had nothing when it was last read."""
    view = nodes_with_claims(claim("c"))
    assert not view.tables()[0].nodes.cordoned.any()
    seen = view.tables(odd(claim("c", "gpu-1", pods=("p",)), "spec", "devices"))
    assert seen[0].nodes.cordoned.tolist() == [True, False]
    seen = view.tables(claim("c", "gpu-1", pods=("p",)))
    assert seen[0].nodes.cordoned.tolist() == [False, False]
