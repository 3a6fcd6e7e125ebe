"""Where claims could have instances made: by the counters of each GPU, and nowhere on doubt."""

from __future__ import annotations

import pytest

from autopilot.core.hardware import mig
from autopilot.core.hardware.mig_profiles import gpu_model
from tests.kits.dra_objects import claim, claiming, dra_node, dynamic_slices, instance, request
from tests.kits.kube_objects import Json, node
from tests.unit.collectors.kubernetes.view import Seen

H100 = gpu_model("H100-80GB")
SMALL, BIG, SET = "gpu-0-mig-1g10gb-1-3", "gpu-0-mig-3g40gb-4-4", "gpu-0-counter-set"


def places(*objects: Json, gpu: int = 0, on: Json | None = None) -> dict[str, list[int]] | None:
    """First memory slices by profile, as the inventory has them of a GPU; None where its instances last."""
    bits = int(Seen(on or dra_node(), *objects).tables()[0].gpus.on_demand[gpu])
    if bits < 0:
        return None
    found: dict[str, list[int]] = {}
    for number, each in enumerate(mig.placement_masks(H100)):
        if bits >> number & 1:
            found.setdefault(H100.profiles[each.profile_index].name, []).append(each.start)
    return found


def test_an_idle_gpu_could_have_every_instance() -> None:
    """All places that its model has."""
    assert places(*dynamic_slices("n1", 1)) == {each.name: list(each.starts) for each in H100.profiles}


def test_the_counters_that_claims_leave_decide() -> None:
    """An instance at slice 3 and one at slices 4 to 7 leave the first three slices; the other GPU is as it was."""
    claims = [claim("a", SMALL, pods=("p",)), claim("b", BIG, pods=("q",))]
    users = [claiming("p", "a", node="n1"), claiming("q", "b", node="n1")]
    objects = (*dynamic_slices("n1", 2), *claims, *users)
    assert places(*objects) == {
        "1g.10gb": [0, 1, 2],
        "1g.10gb+me": [0, 1, 2],
        "1g.20gb": [0],
        "2g.20gb": [0],
    }
    assert places(*objects, gpu=1) == places(*dynamic_slices("n1", 1))


def test_a_whole_gpu_that_a_claim_has_leaves_nothing() -> None:
    """It draws on all counters."""
    assert places(*dynamic_slices("n1", 1), claim("a", "gpu-0", pods=("p",)), claiming("p", "a", node="n1")) == {}


def test_a_claim_without_a_pod_takes_its_slices() -> None:
    """Its instance is left out of the tables, and is not free."""
    found = places(*dynamic_slices("n1", 1), claim("b", BIG))
    assert found is not None
    assert found["1g.10gb"] == [0, 1, 2, 3]
    assert found["4g.40gb"] == [0]


def test_media_engines_are_there_once() -> None:
    """The counters of memory slices would allow a second instance with them."""
    had = claim("a", "gpu-0-mig-1g10gb-me-1-3", pods=("p",))
    found = places(*dynamic_slices("n1", 1), had, claiming("p", "a", node="n1"))
    assert found is not None
    assert "1g.10gb+me" not in found
    assert found["1g.10gb"] == [0, 1, 2, 4, 5, 6]


def test_what_the_driver_keeps_back_is_left_out() -> None:
    """A device with a taint, and one that no slice lists."""
    sets, listed = dynamic_slices("n1", 1)
    devices = listed["spec"]["devices"]
    listed["spec"]["devices"] = [each for each in devices if each["name"] != BIG]
    tainted = next(each for each in devices if each["name"] == SMALL)
    tainted["taints"] = [{"key": "broken", "effect": "NoSchedule"}]
    found = places(sets, listed)
    assert found is not None
    assert found["1g.10gb"] == [0, 1, 2, 4, 5, 6]
    assert found["3g.40gb"] == [0]


@pytest.mark.parametrize(
    "doubt",
    [
        [claim("a", "gpu-9", pods=("p",)), claiming("p", "a", node="n1")],
        [claim("a", "gpu-0"), claim("b", SMALL)],
        [claim("a", SMALL, pods=("p",)), claim("b", SMALL, pods=("q",))],
    ],
    ids=["a device that no slice lists", "claims beyond the counters", "a device that two claims have"],
)
def test_on_doubt_nothing_can_be_made(doubt: list[Json]) -> None:
    """What claims draw is not known, or cannot be."""
    assert places(*dynamic_slices("n1", 1), *doubt) == {}


def test_an_instance_whose_place_is_not_stated_leaves_nothing() -> None:
    """Its counters have other names, so which slices it takes is not known."""
    sets, listed = dynamic_slices("n1", 1)
    sets["spec"]["sharedCounters"][0]["counters"] |= {"share": {"value": "8"}}
    odd = instance("n1", 0, "1g.10gb", 0, 1) | {
        "name": "odd",
        "consumesCounters": [{"counterSet": SET, "counters": {"share": {"value": "1"}}}],
    }
    listed["spec"]["devices"].append(odd)
    user = claiming("p", "a", node="n1")
    assert places(sets, listed, claim("a", "odd", pods=("p",), asks=[request("1g.10gb")]), user) == {}


def test_instances_that_last_are_no_places() -> None:
    """A static instance exists without a claim, a GPU that is offered as a resource is not cut by claims."""
    sets, listed = dynamic_slices("n1", 1)
    static = instance("n1", 0, "1g.10gb", 0, 1)
    del static["consumesCounters"]
    listed["spec"]["devices"] = [static]
    assert places(sets, listed) is None
    assert places(on=node("n1")) is None
    assert places(*dynamic_slices("n1", 8), on=node("n1")) is None
    mixed = dynamic_slices("n1", 1)
    mixed[1]["spec"]["devices"].append(static | {"name": "static"})
    assert places(*mixed) == {}
