"""Re-planning MIG geometry: each rule by itself, bad input, and what holds when a search is cut short."""

import json
import os
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autopilot.core.geometry import mig_recut_cover, mig_recut_shares
from autopilot.core.geometry.mig_recut import CutGpu, MigRequest, Replan, check_gpu, replan
from autopilot.core.hardware import mig
from autopilot.core.hardware.mig import Placement
from autopilot.core.model.errors import InputError

ROOT = Path(__file__).resolve().parents[4]
DATA = Path(os.environ.get("AUTOPILOT_SHARED_DATA", ROOT.parent / "shared" / "data"))
EXAMPLES = DATA.parent / "conformance" / "examples.json"

A100, A30 = "A100-80GB", "A30-24GB"


def wants(*profiles: Mapping[str, int]) -> list[MigRequest]:
    """Requests a, b, c, ... for these profiles."""
    return [MigRequest(name, each) for name, each in zip("abcdefgh", profiles, strict=False)]


def empty(node: str, index: int, model: str = A100) -> CutGpu:
    """A GPU with nothing on it."""
    return CutGpu(node, index, model)


def changed(plan: Replan) -> list[tuple[str, int]]:
    """Which GPUs the plan changes."""
    return [(cut.node, cut.index) for cut in plan.changed]


def profiles(placements: tuple[Placement, ...]) -> Counter[str]:
    """How many of each profile."""
    return Counter(name for name, _start in placements)


# --- what is placed -----------------------------------------------------------------------------


def test_instances_of_a_request_may_sit_on_several_gpus_of_one_node() -> None:
    """Three 4g take three GPUs, since a GPU holds one; a node of two GPUs cannot have them."""
    plan = replan([*(empty("a", i) for i in range(2)), *(empty("b", i) for i in range(3))], wants({"4g.40gb": 3}))
    assert plan.nodes == {"a": "b"}
    assert changed(plan) == [("b", 0), ("b", 1), ("b", 2)]


def test_a_request_is_never_split_over_nodes() -> None:
    """One 7g on each of two nodes does not place a request for two; another that fits goes ahead."""
    gpus = [CutGpu(node, 0, A100, free=(("7g.80gb", 0),)) for node in ("n1", "n2")]
    plan = replan(gpus, wants({"7g.80gb": 2}, {"7g.80gb": 1}))
    assert (plan.placed, plan.unplaced, plan.changed) == (("b",), ("a",), ())


def test_earlier_requests_come_first() -> None:
    """Of two that exclude each other the earlier is placed, though the later would need no change."""
    gpus = [CutGpu("n1", 0, A100, free=(("1g.10gb", 0), ("1g.10gb", 1)))]
    plan = replan(gpus, wants({"7g.80gb": 1}, {"1g.10gb": 2}))
    assert (plan.placed, plan.unplaced) == (("a",), ("b",))
    assert plan.changed[0].destroyed == ("1g.10gb", "1g.10gb")
    assert replan(gpus, wants({"1g.10gb": 2}, {"7g.80gb": 1})).placed == ("a",)


def test_an_earlier_request_makes_way_where_it_has_another_place() -> None:
    """`a` could take either node, `b` the first only: both are placed, in whatever order they ask."""
    gpus = [CutGpu("n1", 0, A100, free=(("7g.80gb", 0),)), CutGpu("n2", 0, A100, used=(("1g.10gb", 6),))]
    small, large = {"4g.40gb": 1}, {"7g.80gb": 1}
    assert replan(gpus, wants(small, large)).nodes == {"a": "n2", "b": "n1"}
    assert replan(gpus, wants(large, small)).nodes == {"a": "n1", "b": "n2"}


def test_a_chain_of_requests_makes_way() -> None:
    """`c` fits on n1 only, `a` on n1 or n2, `b` on n2 or n3: all find a place by `a` and `b` each moving on."""
    gpus = [
        empty("n1", 0),
        CutGpu("n2", 0, A100, used=(("1g.10gb", 6),)),
        CutGpu("n3", 0, A100, used=(("3g.40gb", 4),)),
    ]
    plan = replan(gpus, wants({"4g.40gb": 1, "2g.20gb": 1}, {"4g.40gb": 1}, {"7g.80gb": 1}))
    assert plan.nodes == {"a": "n2", "b": "n3", "c": "n1"}


def test_profiles_that_the_model_lacks_fit_nowhere() -> None:
    """Another model's profile, an unknown one, and another spelling of a known one; none changes anything."""
    gpus = [empty("n1", 0, A30), CutGpu("n1", 1, A30, free=(("1g.6gb", 0),))]
    plan = replan(gpus, wants({"4g.20gb": 1}, {"9g.1gb": 1}, {"mig-1g.6gb": 1}, {"1g.6gb": 1, "3g.20gb": 1}))
    assert (plan.placed, plan.unplaced, plan.changed) == ((), ("a", "b", "c", "d"), ())


def test_one_media_extension_a_gpu() -> None:
    """Two instances with media engines need two GPUs; one that is in use excludes another beside it."""
    ask = wants({"1g.6gb+me": 2})
    assert replan([empty("n1", 0, A30)], ask).unplaced == ("a",)
    assert changed(replan([empty("n1", 0, A30), empty("n1", 1, A30)], ask)) == [("n1", 0), ("n1", 1)]
    with_media = CutGpu("n1", 0, A30, used=(("2g.12gb+me", 0),))
    assert replan([with_media], wants({"1g.6gb+me": 1})).unplaced == ("a",)
    assert replan([with_media], wants({"1g.6gb": 2})).placed == ("a",)


def test_one_profile_name_of_two_models_on_a_node() -> None:
    """1g.10gb takes two slices of an A100-40GB and one of an A100-80GB: 4 and 7 of them make 11."""
    gpus = [empty("n1", 0, "A100-40GB"), empty("n1", 1, "NVIDIA-A100-SXM4-80GB")]
    plan = replan(gpus, wants({"1g.10gb": 11}))
    assert [len(cut.free) for cut in plan.changed] == [4, 7]
    assert replan(gpus, wants({"1g.10gb": 12})).unplaced == ("a",)


def test_a_request_for_nothing_is_placed_nowhere() -> None:
    """It needs no GPU, so that none of it is missing."""
    plan = replan([], wants({}, {"1g.10gb": 0}, {"1g.10gb": 1}))
    assert (plan.placed, plan.unplaced, plan.nodes) == (("a", "b"), ("c",), {})


# --- what changes -------------------------------------------------------------------------------


def test_no_request_no_change() -> None:
    """Free instances that no request needs are left as they are."""
    assert replan([CutGpu("n1", 0, A100, free=(("1g.10gb", 1),))], []) == Replan((), (), {}, (), (), exact=True)


def test_fewest_gpus_change_whoever_came_first() -> None:
    """`a` leaves the node of the free 3g to `b`, who needs it, and takes the free 1g of the other node."""
    gpus = [
        CutGpu("n1", 0, A100, free=(("3g.40gb", 0), ("1g.10gb", 4))),
        CutGpu("n2", 0, A100, free=(("1g.10gb", 6),)),
    ]
    plan = replan(gpus, wants({"1g.10gb": 1}, {"3g.40gb": 1, "1g.10gb": 1}))
    assert plan.changed == ()
    assert plan.nodes == {"a": "n2", "b": "n1"}


def test_requests_share_a_gpu_that_changes_anyway() -> None:
    """Three requests of three sizes are cut out of one empty GPU, not of three."""
    gpus = [empty(f"n{node}", index) for node in range(2) for index in range(2)]
    plan = replan(gpus, wants({"4g.40gb": 1}, {"2g.20gb": 1}, {"1g.10gb": 1}))
    assert changed(plan) == [("n0", 0)]
    assert plan.changed[0].free == (("4g.40gb", 0), ("2g.20gb", 4), ("1g.10gb", 6))


def test_a_gpu_that_changes_anyway_is_cut_further_though_more_is_destroyed() -> None:
    """`a` fits on n1 only; `b` would destroy nothing on n2, but there a second GPU would change."""
    gpus = [
        CutGpu("n1", 0, A100, free=(("1g.10gb", 2), ("1g.10gb", 5))),
        CutGpu("n2", 0, A100, used=(("1g.10gb", 0),)),
    ]
    plan = replan(gpus, wants({"4g.40gb": 1}, {"3g.40gb": 1}))
    assert changed(plan) == [("n1", 0)]
    assert plan.changed[0].destroyed == ("1g.10gb", "1g.10gb")
    assert plan.exact


def test_a_request_is_joined_from_free_instances_and_a_new_cut() -> None:
    """Two of three 2g exist; the third is cut out of the empty GPU, the full one is left alone."""
    gpus = [
        CutGpu("n1", 0, A100, used=(("7g.80gb", 0),)),
        CutGpu("n1", 1, A100, used=(("3g.40gb", 4),), free=(("2g.20gb", 0), ("2g.20gb", 2))),
        empty("n1", 2),
    ]
    plan = replan(gpus, wants({"2g.20gb": 3}))
    assert changed(plan) == [("n1", 2)]
    assert profiles(plan.changed[0].free) == {"2g.20gb": 1}


def test_least_destruction_comes_before_the_lowest_index() -> None:
    """The 4g goes to the second GPU, where no free instance is in its way; if both are free, to the first."""
    in_the_way = CutGpu("n1", 0, A100, free=(("2g.20gb", 0),))
    assert changed(replan([in_the_way, empty("n1", 1)], wants({"4g.40gb": 1}))) == [("n1", 1)]
    aside = replace(in_the_way, free=(("2g.20gb", 4),))
    plan = replan([empty("n1", 1), aside], wants({"4g.40gb": 1}))
    assert changed(plan) == [("n1", 0)]
    assert plan.changed[0].free == (("4g.40gb", 0), ("2g.20gb", 4))
    assert plan.changed[0].destroyed == ()


def test_a_wanted_free_instance_stays_where_it_is() -> None:
    """Of a 1g and a 3g the 1g exists already: the 3g goes to the half in which it is not."""
    gpus = [CutGpu("n1", 0, A100, free=(("1g.10gb", 2), ("2g.20gb", 4)))]
    plan = replan(gpus, wants({"1g.10gb": 1, "3g.40gb": 1}))
    assert plan.changed[0].free == (("1g.10gb", 2), ("3g.40gb", 4))
    assert plan.changed[0].destroyed == ("2g.20gb",)


def test_used_instances_bar_the_way() -> None:
    """Used 1g at 1 and 5 leave no half for a 3g, however few they are; nothing is cut for what cannot be."""
    gpu = CutGpu("n1", 0, A100, used=(("1g.10gb", 1), ("1g.10gb", 5)))
    plan = replan([gpu], wants({"3g.40gb": 1}, {"2g.20gb": 1}))
    assert (plan.placed, plan.unplaced) == (("b",), ("a",))
    assert plan.changed[0].used == gpu.used
    assert plan.changed[0].free == (("2g.20gb", 2),)


def test_unknown_places_are_assumed_as_suits_the_requests() -> None:
    """The same two 1g, somewhere, may be taken to sit in one half; what is known is not assumed away."""
    gpu = CutGpu.from_counts("n1", 0, A100, {"1g.10gb": 2}, {})
    plan = replan([gpu], wants({"3g.40gb": 1}))
    assert plan.placed == ("a",)
    assert profiles(plan.changed[0].used) == {"1g.10gb": 2}
    assert mig.is_legal(A100, [*plan.changed[0].used, *plan.changed[0].free])
    half_known = CutGpu("n1", 0, A100, used=(("1g.10gb", 1), ("1g.10gb", None)))
    assert ("1g.10gb", 1) in replan([half_known], wants({"3g.40gb": 1})).changed[0].used
    assert replan([replace(half_known, used=(("1g.10gb", 1), ("3g.40gb", None)))], wants({"3g.40gb": 1})).placed == ()


def test_any_arrangement_of_used_instances_may_be_assumed() -> None:
    """Beside three 2g a 1g can sit at 6 only; for a 3g and three more 1g it is taken to sit before slice 4."""
    gpu = CutGpu.from_counts("n1", 0, A100, {"1g.10gb": 1}, {"2g.20gb": 3})
    plan = replan([gpu], wants({"3g.40gb": 1, "1g.10gb": 3}))
    assert plan.placed == ("a",)
    assert plan.changed[0].used[0].start < 4


def test_assumed_places_leave_the_present_free_instances_theirs() -> None:
    """Two used 1g beside a free 2g sit in the other half of an A30; the 2g makes way for the wanted 1g."""
    plan = replan([CutGpu.from_counts("n1", 0, A30, {"1g.6gb": 2}, {"2g.12gb": 1})], wants({"1g.6gb": 1}))
    (cut,) = plan.changed
    assert len({start // 2 for _name, start in cut.used}) == 1
    assert {start // 2 for _name, start in cut.used}.isdisjoint(start // 2 for _name, start in cut.free)
    assert cut.destroyed == ("2g.12gb",)


# --- input that cannot be used ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "reason"),
    [
        (empty("n1", 3, "T4"), "GPU model 'T4' is not known to support MIG"),
        (CutGpu("n1", 3, A30, used=(("1g.6gb", 0),), free=(("2g.12gb", 0),)), "overlaps 1g.6gb at 0"),
        (CutGpu("n1", 3, A30, free=(("2g.12gb", 1),)), "starts at 0, 2 only"),
        (CutGpu("n1", 3, A30, used=(("1g.10gb", 0),)), "A30-24GB has no such profile"),
        (CutGpu.from_counts("n1", 3, A30, {"1g.10gb": 1}, {}), "A30-24GB has no such profile"),
        (CutGpu.from_counts("n1", 3, A30, {"1g.6gb": 3}, {"2g.12gb": 1}), "there is no room"),
        (CutGpu("n1", 3, A30, (("1g.6gb", 1),), (("1g.6gb", 2), ("2g.12gb", None))), "beside 1g.6gb at 1"),
        (CutGpu.from_counts("n1", 3, A30, {"1g.6gb+me": 1}, {"2g.12gb+me": 1}), "there is no room"),
    ],
)
def test_a_gpu_that_cannot_be_is_skipped_with_the_reason(gpu: CutGpu, reason: str) -> None:
    """The message names the GPU; the other GPUs are planned with as if it were not there."""
    with pytest.raises(InputError, match="GPU 3 of node n1") as error:
        check_gpu(gpu)
    assert reason in str(error.value)
    others = [empty("n1", 2, A30), empty("n2", 0, A30)]
    plan = replan([gpu, *others], wants({"4g.24gb": 2}, {"4g.24gb": 1}))
    assert [(each.node, each.index, each.reason) for each in plan.skipped] == [("n1", 3, str(error.value))]
    assert replace(plan, skipped=()) == replan(others, wants({"4g.24gb": 2}, {"4g.24gb": 1}))


def test_a_gpu_listed_twice_is_skipped() -> None:
    """It is unknown which of two contradicting reports is true; only that GPU is left alone."""
    plan = replan([empty("n1", 0), empty("n1", 1), empty("n1", 0)], wants({"7g.80gb": 1}))
    assert [(each.index, each.reason) for each in plan.skipped] == [
        (0, "GPU 0 of node n1: listed 2 times; list it once")
    ]
    assert changed(plan) == [("n1", 1)]


def test_sound_gpus_pass_the_check() -> None:
    """Legal instances, placed or counted."""
    check_gpu(CutGpu("n1", 0, A100, used=(("3g.40gb", 4),), free=(("1g.10gb", 3),)))
    check_gpu(CutGpu.from_counts("n1", 0, A100, {"3g.40gb": 1}, {"4g.40gb": 1}))
    assert CutGpu.from_counts("n1", 0, A100, {"3g.40gb": 0, "1g.10gb": 2}, {}).used == (("1g.10gb", None),) * 2


@pytest.mark.parametrize("count", [-1, 1.5, float("nan")])
def test_counts_are_whole_numbers(count: float) -> None:
    """In GPUs and in requests; the message names which, and the profile."""
    counts: Any = {"1g.10gb": count}
    with pytest.raises(InputError, match=r"GPU 0 of node n1: .* of 1g.10gb; give a whole number"):
        CutGpu.from_counts("n1", 0, A100, counts, {})
    with pytest.raises(InputError, match=r"request a: .* of 1g.10gb; give a whole number"):
        replan([], wants(counts))


def test_requests_have_names_of_their_own() -> None:
    """Who is placed could not be told otherwise."""
    with pytest.raises(InputError, match="request a: 2 requests have this name"):
        replan([], [MigRequest("a", {"1g.10gb": 1}), MigRequest("a", {"1g.10gb": 1})])


# --- bounds on work -----------------------------------------------------------------------------


def crowd(nodes: int, requests: int) -> tuple[list[CutGpu], list[MigRequest]]:
    """Nodes of eight half-used A100, and more requests than they have room for; always the same."""
    draw = random.Random(20)
    gpus = []
    for node in range(nodes):
        for index in range(8):
            cut = sorted(draw.choice(mig.maximal_sets(A100)))
            busy = {place for place in cut if draw.random() < 0.5}
            free = tuple(place for place in cut if place not in busy)
            gpus.append(CutGpu(f"n{node:02}", index, A100, tuple(sorted(busy)), free))
    names = mig.gpu_model(A100).core_profiles
    wanted = [{draw.choice(names): draw.randint(1, 4) for _ in range(draw.randint(1, 3))} for _ in range(requests)]
    return gpus, [MigRequest(f"r{row}", each) for row, each in enumerate(wanted)]


def rank(plan: Replan, requests: list[MigRequest]) -> list[bool]:
    """Who is placed, in order of priority: of two plans the greater one is better."""
    return [request.name in plan.placed for request in requests]


def assert_covered(gpus: list[CutGpu], requests: list[MigRequest], plan: Replan) -> None:
    """Every new geometry is legal and keeps what is in use, and each node has what it was asked for."""
    cuts = {(cut.node, cut.index): cut for cut in plan.changed}
    left: dict[str, Counter[str]] = {gpu.node: Counter() for gpu in gpus}
    for gpu in gpus:
        cut = cuts.get((gpu.node, gpu.index))
        left[gpu.node].update(name for name, _start in (gpu.free if cut is None else cut.free))
        if cut is not None:
            assert set(cut.used) == set(gpu.used)
            assert mig.is_legal(gpu.model, [*cut.used, *cut.free])
    for request in requests:
        if request.name in plan.placed:
            left[plan.nodes[request.name]].subtract(request.profiles)
    assert min(count for counts in left.values() for count in counts.values()) >= 0


def test_without_searches_the_plan_is_sound_and_says_that_it_may_not_be_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With no step left to search, requests are placed one after the other; searching only makes it better."""
    gpus, requests = crowd(8, 24)
    searched = replan(gpus, requests)
    for bound in ("REPAIR_STEPS", "IMPROVE_STEPS"):
        monkeypatch.setattr(mig_recut_shares, bound, 0)
    greedy = replan(gpus, requests)
    assert_covered(gpus, requests, searched)
    assert_covered(gpus, requests, greedy)
    assert not greedy.exact
    assert rank(searched, requests) > rank(greedy, requests)


def test_more_requests_than_are_searched_are_still_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound on depth earlier requests still make way, but the plan is not called exact."""
    monkeypatch.setattr(mig_recut_shares, "SEARCHED_REQUESTS", 0)
    gpus, requests = crowd(8, 24)
    plan = replan(gpus, requests)
    assert_covered(gpus, requests, plan)
    assert not plan.exact
    monkeypatch.setattr(mig_recut_shares, "REPAIR_STEPS", 0)
    assert rank(plan, requests) > rank(replan(gpus, requests), requests)


def test_without_tables_gpus_are_cut_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no cell for a table the plan is sound, not called exact, and places most of the same requests."""
    gpus, requests = crowd(8, 24)
    with_tables = replan(gpus, requests)
    monkeypatch.setattr(mig_recut_cover, "TABLE_CELLS", 0)
    plan = replan(gpus, requests)
    assert_covered(gpus, requests, plan)
    assert not plan.exact
    assert len(plan.placed) >= 0.8 * len(with_tables.placed)


def test_the_same_input_gives_the_same_plan() -> None:
    """Also where bounds on work end a search."""
    gpus, requests = crowd(20, 40)
    assert replan(gpus, requests) == replan(gpus[::-1], requests)


# --- published cases ----------------------------------------------------------------------------


def _replan_examples() -> list[dict[str, Any]]:
    if not EXAMPLES.exists():
        return []
    cases: list[dict[str, Any]] = json.loads(EXAMPLES.read_text())["cases"]
    return [case for case in cases if case["kind"] == "mig_replan"]


def _example_gpu(gpu: dict[str, Any], placements: dict[str, Any]) -> CutGpu:
    places = placements.get(str(gpu["index"]))
    if places is None:
        return CutGpu.from_counts(gpu["node"], gpu["index"], gpu["model"], gpu["used"], gpu["free"])
    used, free = (tuple((name, start) for name, start in places[part]) for part in ("used", "free"))
    return CutGpu(gpu["node"], gpu["index"], gpu["model"], used, free)


@pytest.mark.parametrize("case", _replan_examples(), ids=lambda case: f"{case['id']} {case['title']}")
def test_conformance_of_replan(case: dict[str, Any]) -> None:
    """The published cases of re-planning are answered as expected."""
    gpus = [_example_gpu(gpu, case.get("placements", {})) for gpu in case["gpus"]]
    plan = replan(gpus, [MigRequest(each["name"], each["profiles"]) for each in case["requests"]])
    used = {(gpu["node"], gpu["index"]): Counter(gpu["used"]) for gpu in case["gpus"]}
    answer = {
        "placed": list(plan.placed),
        "unplaced": list(plan.unplaced),
        "placed_count": len(plan.placed),
        "unplaced_count": len(plan.unplaced),
        "changed_gpus": [cut.index for cut in plan.changed],
        "changed_gpus_count": len(plan.changed),
        "used_kept": all(profiles(cut.used) == used[cut.node, cut.index] for cut in plan.changed),
    }
    assert {key: answer[key] for key in case["expect"]} == case["expect"]
