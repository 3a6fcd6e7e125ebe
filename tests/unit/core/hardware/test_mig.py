"""MIG facts and legality: the counts, names and cases that are known from outside."""

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autopilot.core.hardware import mig
from autopilot.core.hardware.mig import MODELS, GpuModel, Placement
from autopilot.core.model.errors import InputError

ROOT = Path(__file__).resolve().parents[4]
DATA = Path(os.environ.get("AUTOPILOT_SHARED_DATA", ROOT.parent / "shared" / "data"))
PROFILES = DATA / "mig" / "profiles.json"
EXAMPLES = DATA.parent / "conformance" / "examples.json"
GENERATOR = ROOT / "scripts" / "generate_mig_facts.py"

# {compute slices of the GPU: counts of the core profiles}, as in the published pictures
COUNTS = {
    7: {
        "all_nonempty_placement_sets": 297,
        "maximal_placement_sets": 19,
        "distinct_profile_multisets": 37,
        "distinct_multisets_of_maximal_placements": 14,
    },
    4: {
        "all_nonempty_placement_sets": 25,
        "maximal_placement_sets": 5,
        "distinct_profile_multisets": 9,
        "distinct_multisets_of_maximal_placements": 4,
    },
}
COUNTS_WITH_LARGE_1G = {
    "all_nonempty_placement_sets": 722,
    "maximal_placement_sets": 78,
    "distinct_profile_multisets": 77,
}


def counts_of(model: GpuModel, profiles: tuple[str, ...] | None = None) -> dict[str, int]:
    """The figures of the data set's `counts`, from our enumerations."""
    every, maximal = mig.all_sets(model, profiles=profiles), mig.maximal_sets(model, profiles=profiles)
    return {
        "all_nonempty_placement_sets": len(every),
        "maximal_placement_sets": len(maximal),
        "distinct_profile_multisets": len({multiset(each) for each in every}),
        "distinct_multisets_of_maximal_placements": len({multiset(each) for each in maximal}),
    }


def multiset(placements: frozenset[Placement]) -> tuple[tuple[str, int], ...]:
    """How many of each profile, without their places."""
    return tuple(sorted(Counter(placement.profile for placement in placements).items()))


def large_1g(model: GpuModel) -> str | None:
    """The 1g with the memory of a 2g, where the model has one."""
    for profile in model.profiles:
        if profile.compute_slices == 1 and profile.memory_slices == 2:
            return profile.name
    return None


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_enumerations_give_the_published_counts(model: GpuModel) -> None:
    """A 7-slice GPU has 19 maximal of 297 placement sets (18 without 7g), a 4-slice GPU 5 of 25."""
    assert counts_of(model) == COUNTS[model.compute_slices]
    if (large := large_1g(model)) is not None:
        counts = counts_of(model, (*model.core_profiles, large))
        assert {key: counts[key] for key in COUNTS_WITH_LARGE_1G} == COUNTS_WITH_LARGE_1G
        without_full = [each for each in mig.maximal_sets(model) if len(each) > 1]
        assert len(without_full) == 18


@pytest.mark.skipif(not PROFILES.exists(), reason="the MIG profile data is not beside the checkout")
def test_enumerations_give_the_counts_of_the_data() -> None:
    """Every count and every maximal multiset that the data set states for a model is what we enumerate."""
    for gpu in json.loads(PROFILES.read_text())["gpus"]:
        model, geometries = mig.gpu_model(gpu["model"]), gpu["geometries"]
        assert counts_of(model) == geometries["counts"], model.name
        stated = {tuple(sorted(each.items())) for each in geometries["maximal_multisets"]}
        assert {multiset(each) for each in mig.maximal_sets(model)} == stated, model.name
        for key, expected in geometries.items():
            if key.startswith("counts_with_"):
                counts = counts_of(model, (*model.core_profiles, key.removeprefix("counts_with_")))
                assert {name: counts[name] for name in expected} == expected, model.name


def run_generator(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The generator as a command."""
    return subprocess.run([sys.executable, str(GENERATOR), *arguments], capture_output=True, text=True)


def test_committed_facts_equal_their_data() -> None:
    """The committed facts are what the generator makes of the data; without the data it says SKIPPED."""
    done = run_generator("--check", "--source", str(PROFILES))
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("equals its data" if PROFILES.exists() else "SKIPPED") in done.stdout


@pytest.mark.skipif(not PROFILES.exists(), reason="the MIG profile data is not beside the checkout")
def test_check_finds_a_changed_fact(tmp_path: Path) -> None:
    """`--check` shows the difference and exits with 1 when one start in the committed file is wrong."""
    target = tmp_path / "mig_facts.py"
    facts = (ROOT / "autopilot" / "core" / "hardware" / "mig_facts.py").read_text()
    target.write_text(facts.replace("(0, 2, 4), 10, 9856, 3", "(0, 2, 5), 10, 9856, 3", 1))
    done = run_generator("--check", "--source", str(PROFILES), "--target", str(target))
    assert done.returncode == 1
    assert '-            Profile("2g.10gb", 2, 2, (0, 2, 5)' in done.stdout


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "`schema` is not"),
        ('{"schema": "mig-profiles/1", "gpus": [{"model": "X"}]}', "lacks or misuses 'profiles'"),
    ],
)
def test_unusable_data_is_one_message(tmp_path: Path, text: str, reason: str) -> None:
    """Data that cannot be used gives one line and exit code 2, and the facts stay as they are."""
    source, target = tmp_path / "profiles.json", tmp_path / "mig_facts.py"
    source.write_text(text)
    done = run_generator("--source", str(source), "--target", str(target))
    assert done.returncode == 2
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
    assert not target.exists()


@pytest.mark.parametrize(
    ("text", "parts", "written"),
    [
        ("1g.10gb", (None, 1, 10, ""), "1g.10gb"),
        ("1g.10gb+me", (None, 1, 10, "+me"), "1g.10gb+me"),
        ("nvidia.com/mig-1g.10gb", (None, 1, 10, ""), "1g.10gb"),
        ("nvidia.com/mig-1g.10gb.me", (None, 1, 10, "+me"), "1g.10gb+me"),
        ("nvidia.com/mig-1g.24gb.me.all", (None, 1, 24, "+me.all"), "1g.24gb+me.all"),
        ("1g.24gb+gfx", (None, 1, 24, "+gfx"), "1g.24gb+gfx"),
        ("1g.24gb-me", (None, 1, 24, "-me"), "1g.24gb-me"),
        ("1c.3g.40gb", (1, 3, 40, ""), "1c.3g.40gb"),
        ("MIG 7G.141GB ", (None, 7, 141, ""), "7g.141gb"),
    ],
)
def test_profile_names_are_read_in_every_spelling(text: str, parts: tuple[Any, ...], written: str) -> None:
    """Profiles, resources and compute instances give their parts and the one name we write."""
    name = mig.parse_profile_name(text)
    assert tuple(name) == parts
    assert str(name) == written


@pytest.mark.parametrize("text", ["", "gpu", "nvidia.com/gpu", "0g.5gb", "3g", "1g.10gb+", "4c.3g.40gb", "1g.١0gb"])
def test_what_is_no_profile_is_refused(text: str) -> None:
    """Other resources, half names, and more compute slices than the instance has are not profiles."""
    assert mig.find_profile_name(text) is None
    with pytest.raises(InputError, match=r"queues.mig: .* is not a MIG profile; write for example"):
        mig.parse_profile_name(text, "queues.mig")


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("H100-80GB", "H100-80GB"),
        ("NVIDIA-H100-80GB-HBM3", "H100-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB"),
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "H100-80GB"),
        ("NVIDIA-H100-80GB-HBM3-SHARED", "H100-80GB"),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb.me-SHARED", "A100-40GB"),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", "A100-80GB"),
        ("NVIDIA A30", "A30-24GB"),
        ("NVIDIA H200", "H200-141GB"),
        ("0x233010DE", "H100-80GB"),
        ("0x20b710de", "A30-24GB"),
        ("10de:2901", "B200"),
        ("0x2335", "H200-141GB"),
    ],
)
def test_models_are_found_by_any_name(name: str, model: str) -> None:
    """Our name, product labels, exporters' model names and PCI ids lead to one model."""
    assert mig.gpu_model(name).name == model


@pytest.mark.parametrize("name", ["Tesla V100-SXM2-16GB", "NVIDIA L40S", "T4", "H100", "", "0x1234", "2330"])
def test_models_without_mig_are_not_found(name: str) -> None:
    """What has no MIG, is unknown or is ambiguous is None, and an error that lists the known where asked."""
    assert mig.find_gpu_model(name) is None
    with pytest.raises(InputError, match=r"not known to support MIG; known are A100-40GB, .*A30-24GB"):
        mig.gpu_model(name)


def test_labels_and_device_ids_are_not_ambiguous() -> None:
    """Every name and id in the facts leads back to its own model."""
    for model in MODELS:
        for name in (model.name, *model.product_labels, *model.pci_device_ids):
            assert mig.find_gpu_model(name) is model, name


def test_profiles_are_found_on_their_own_model_only() -> None:
    """`1g.10gb` is another profile on an A100-40GB than on an A100-80GB, and none on an A30."""
    assert mig.model_profile("A100-40GB", "1g.10gb").memory_slices == 2
    assert mig.model_profile("A100-80GB", "nvidia.com/mig-1g.10gb").memory_slices == 1
    assert mig.find_profile("A30-24GB", "1g.10gb") is None
    assert mig.find_profile("A100-80GB", "1g.10gb+gfx") is None
    assert mig.find_profile("A100-80GB", "nonsense") is None
    with pytest.raises(InputError, match=r"'4g.20gb' does not exist on A30-24GB; it has 1g.6gb, "):
        mig.model_profile("A30-24GB", "4g.20gb")


def test_the_whole_gpu_is_found_under_older_drivers_names() -> None:
    """7g.79gb is the 7g.80gb of an A100; no other profile's memory is forgiven."""
    assert mig.model_profile("A100-80GB", "7g.79gb").name == "7g.80gb"
    assert mig.model_profile("GB200", "7g.189gb").name == "7g.186gb"
    assert mig.find_profile("A100-80GB", "7g.40gb") is None
    assert mig.find_profile("A100-80GB", "3g.39gb") is None


def test_shares_and_memory() -> None:
    """Shares are exact, a compute instance has its own, and memory is what the driver lists as usable."""
    assert mig.compute_share("H100-80GB", "3g.40gb") == Fraction(3, 7)
    assert mig.compute_share("H100-80GB", "1c.3g.40gb") == Fraction(1, 7)
    assert 7 * mig.compute_share("H100-80GB", "1g.10gb") == 1
    assert mig.compute_share("A30-24GB", "2g.12gb") == Fraction(1, 2)
    assert mig.memory_mib("H100-80GB", "1g.10gb") == 9984
    assert mig.memory_mib("A30-24GB", "4g.24gb") == 23344
    assert mig.memory_mib("H100-94GB", "1g.12gb") == 94 * 1024 // 8  # not listed: the slices' part of 94 GB
    with pytest.raises(InputError, match=r"'9g.1gb' does not exist on H100-80GB"):
        mig.memory_mib("H100-80GB", "9g.1gb")


@pytest.mark.parametrize(
    ("model", "placements", "reason"),
    [
        ("A100-40GB", [("3g.20gb", 0), ("2g.10gb", 2)], "2g.10gb at 2: overlaps 3g.20gb at 0"),
        ("A100-40GB", [("1g.5gb", 3), ("1g.5gb", 3)], "1g.5gb at 3: overlaps 1g.5gb at 3"),
        ("A100-40GB", [("2g.10gb", 6)], "2g.10gb at 6: on A100-40GB a 2g.10gb starts at 0, 2, 4 only"),
        (
            "A100-40GB",
            [("1g.5gb", 7)],
            "1g.5gb at 7: on A100-40GB a 1g.5gb starts at 0, 1, 2, 3, 4, 5, 6 only",
        ),
        ("A30-24GB", [("4g.20gb", 0)], "4g.20gb at 0: A30-24GB has no such profile, only 1g.6gb, "),
        (
            "H100-80GB",
            [("1g.10gb+me", 0), ("1g.10gb+me", 1)],
            "1g.10gb+me at 1: 2 of 1g.10gb+me, but H100-80GB takes at most 1",
        ),
        (
            "A30-24GB",
            [("1g.6gb+me", 0), ("2g.12gb+me", 2)],
            "2g.12gb+me at 2: two media extensions (1g.6gb+me and 2g.12gb+me)",
        ),
    ],
)
def test_illegal_sets_are_refused_with_profile_and_start(
    model: str, placements: list[tuple[str, int]], reason: str
) -> None:
    """Overlap, wrong start, too many, two media extensions and foreign profiles each have their words."""
    assert not mig.is_legal(model, placements)
    assert (mig.why_illegal(model, placements) or "").startswith(reason)
    for refuse in (lambda: mig.fits(model, placements, []), lambda: mig.free_capacity(model, placements)):
        with pytest.raises(InputError, match=rf"illegal MIG placement on {model}"):
            refuse()


def test_known_legal_sets() -> None:
    """4g+3g, seven 1g, the large 1g in the last slices, and an empty GPU are legal."""
    assert mig.is_legal("H100-80GB", [("4g.40gb", 0), ("3g.40gb", 4)])
    assert mig.is_legal("H100-80GB", [("1g.10gb", start) for start in range(7)])
    assert mig.is_legal("A100-40GB", [("4g.20gb", 0), ("2g.10gb", 4), ("1g.10gb", 6)])
    assert mig.is_legal("RTX-PRO-6000-Blackwell", [("2g.48gb", 0), ("1g.24gb", 6), ("1g.24gb-me", 9)])
    assert mig.is_legal("B200", [])


def test_fit_leaves_the_most_valuable_remainder() -> None:
    """Small instances go where they leave the 4g, then pairs of slices, and never the driver's first gap."""
    h100 = "H100-80GB"
    assert mig.fits(h100, [], ["1g.10gb"]) == (("1g.10gb", 6),)
    assert mig.fits(h100, [("1g.10gb", 6)], ["1g.10gb"]) == (("1g.10gb", 5),)
    assert mig.fits(h100, [("1g.10gb", 0)], ["1g.10gb"]) == (("1g.10gb", 1),)
    assert mig.fits(h100, [], ["2g.20gb"]) == (("2g.20gb", 4),)
    assert mig.fits(h100, [], ["3g.40gb"]) == (("3g.40gb", 4),)
    assert mig.fits(h100, [], ["1g.20gb"]) == (("1g.20gb", 6),)
    # keeps one 3g at 4 rather than two 2g
    assert mig.fits(h100, [("2g.20gb", 0)], ["1g.10gb"]) == (("1g.10gb", 3),)
    assert mig.fits(h100, [], []) == ()


def test_fit_answers_in_the_order_asked_and_refuses_what_cannot_be() -> None:
    """Places are returned in the order of the wishes; foreign profiles and too many of one fit nowhere."""
    assert mig.fits("H100-80GB", [], ["1g.10gb", "4g.40gb", "1g.10gb"]) == (
        ("1g.10gb", 4),
        ("4g.40gb", 0),
        ("1g.10gb", 5),
    )
    assert mig.fits("A30-24GB", [], ["4g.20gb"]) is None
    assert mig.fits("H100-80GB", [], ["1g.10gb"] * 8) is None
    assert mig.fits("H100-80GB", [("1g.10gb+me", 0)], ["1g.10gb+me"]) is None
    assert mig.fits("A30-24GB", [("2g.12gb+me", 0)], ["1g.6gb+me"]) is None


def test_fit_spares_existing_free_instances() -> None:
    """A free instance that serves is used as it is, and one that is not needed is left alone."""
    free = [("1g.10gb", 0)]
    assert mig.fits("H100-80GB", [], ["1g.10gb"], existing=free) == (("1g.10gb", 0),)
    assert mig.fits("H100-80GB", [], ["3g.40gb"], existing=[("1g.10gb", 5)]) == (("3g.40gb", 0),)
    used, free = [("3g.40gb", 0)], [("1g.10gb", 4), ("1g.10gb", 5), ("1g.10gb", 6)]
    assert mig.fits("A100-80GB", used, ["3g.40gb"], existing=free) == (("3g.40gb", 4),)
    spared = mig.fits("A30-24GB", [], ["1g.6gb+me"], existing=[("1g.6gb+me", 0), ("1g.6gb", 3)])
    assert spared == (("1g.6gb+me", 0),)
    with pytest.raises(InputError, match=r"overlaps 3g.40gb at 0"):
        mig.fits("A100-80GB", used, [], existing=[("1g.10gb", 1)])


def test_free_capacity_counts_each_profile_alone() -> None:
    """Beside a 3g at 0: one 3g, one 2g, three 1g; a media extension is there once."""
    capacity = mig.free_capacity("H100-80GB", [("3g.40gb", 0)])
    assert capacity == {
        "1g.10gb": 3,
        "1g.10gb+me": 1,
        "1g.20gb": 2,
        "2g.20gb": 1,
        "3g.40gb": 1,
        "4g.40gb": 0,
        "7g.80gb": 0,
    }
    assert mig.free_capacity("A30-24GB", [("1g.6gb+me", 0)])["2g.12gb+me"] == 0


def test_tables_for_vectors_agree_with_the_words() -> None:
    """A column of occupied masks gives the same free counts as asking GPU by GPU, and cannot be written."""
    model = mig.gpu_model("H100-80GB")
    sets = mig.maximal_sets(model)
    masks = np.array([mig.mask_of(model, each) for each in sets])
    table = mig.capacity_table(model)[masks]
    for row, each in zip(table, sets, strict=True):
        names = [profile.name for profile in model.profiles]
        assert dict(zip(names, row.tolist(), strict=True)) == mig.free_capacity(model, each)
    assert mig.placement_masks(model)[:2] == ((0, 0, 0b1), (0, 1, 0b10))
    assert mig.placement_masks(model)[-1] == (6, 0, 0b11111111)
    with pytest.raises(ValueError, match=r"read-only"):
        mig.capacity_table(model)[0, 0] = 9


def test_facts_of_a_live_node_serve_like_known_ones() -> None:
    """Legality follows the facts given, not the name: a node that lists fewer profiles is believed."""
    known = mig.gpu_model("A30-24GB")
    full = known.profiles[-1]
    live = replace(known, core_profiles=(full.name,), profiles=(full,))
    assert mig.fits(live, [], ["4g.24gb"]) == (("4g.24gb", 0),)
    assert mig.fits(live, [], ["1g.6gb"]) is None
    assert mig.fits(known, [], ["1g.6gb"]) is not None
    media = replace(known.profiles[1], max_instances=2)
    assert mig.free_capacity(replace(known, core_profiles=(), profiles=(media,)), []) == {"1g.6gb+me": 1}


def test_transition_touches_only_what_changes() -> None:
    """What is in both cuts stays; free instances that go make it `instance`, those in use `gpu`."""
    now = [("3g.40gb", 0), ("1g.10gb", 4), ("1g.10gb", 5), ("1g.10gb", 6)]
    then = [("3g.40gb", 0), ("3g.40gb", 4)]
    change = mig.transition("H100-80GB", now, then, in_use=[("3g.40gb", 0)])
    assert change.destroy == (("1g.10gb", 4), ("1g.10gb", 5), ("1g.10gb", 6))
    assert change.create == (("3g.40gb", 4),)
    assert change.keep == (("3g.40gb", 0),)
    assert (change.drain, change.scope, change.resets_gpu) == ((), "instance", False)
    change = mig.transition("H100-80GB", now, then, in_use=[("1g.10gb", 5)])
    assert (change.drain, change.scope) == ((("1g.10gb", 5),), "gpu")
    assert mig.transition("H100-80GB", now, now).scope == "none"


def test_switching_mig_mode_concerns_the_whole_gpu() -> None:
    """Turning MIG mode on or off needs the GPU without clients, and on Ampere resets it."""
    on = mig.transition("A100-80GB", None, [("7g.80gb", 0)])
    assert (on.scope, on.switches_mode, on.resets_gpu) == ("gpu", True, True)
    off = mig.transition("H100-80GB", [("7g.80gb", 0)], None)
    assert (off.destroy, off.scope, off.resets_gpu) == ((("7g.80gb", 0),), "gpu", False)
    assert mig.transition("H100-80GB", None, None).scope == "none"


def test_transition_refuses_illegal_cuts_and_strangers() -> None:
    """Neither cut may be illegal, and an instance in use must be on the GPU."""
    with pytest.raises(InputError, match=r"3g.40gb at 2: on H100-80GB a 3g.40gb starts at 0, 4 only"):
        mig.transition("H100-80GB", [], [("3g.40gb", 2)])
    with pytest.raises(InputError, match=r"1g.10gb at 3 is said to be in use, but is not on the H100-80GB"):
        mig.transition("H100-80GB", [], [], in_use=[("1g.10gb", 3)])


def _fit_examples() -> list[dict[str, Any]]:
    if not EXAMPLES.exists():
        return []
    cases: list[dict[str, Any]] = json.loads(EXAMPLES.read_text())["cases"]
    return [case for case in cases if case["kind"] == "mig_fit"]


@pytest.mark.parametrize("case", _fit_examples(), ids=lambda case: f"{case['id']} {case['title']}")
def test_conformance_of_fit(case: dict[str, Any]) -> None:
    """The published cases of what fits beside what are answered as expected."""
    occupied = [(profile, start) for profile, start in case["occupied"]]
    assert (mig.fits(case["model"], occupied, case["want"]) is not None) is case["expect"]["fits"]
