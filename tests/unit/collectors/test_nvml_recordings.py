"""Recordings of real GPUs (`python scripts/record_nvml.py`): the facts, the counters and the verdicts hold on them.

tests/data/nvml: an H100 (40 s of each load) and an H200 (20 s), driver 580.159.04, one GPU in a virtual machine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autopilot.core.hardware import mig_facts
from autopilot.core.hardware.dcgm import SIGNALS, Quality
from autopilot.core.hardware.idle_power import loaded_idle_w
from autopilot.core.intake.usage.activity import Activity, Window, judge
from autopilot.core.model.policy.idle import Idle
from autopilot.core.model.snapshot import F32

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "tests" / "data" / "nvml"
GPUS = ("h100", "h200")
DRAM_BYTES_S = {"h100": 3.35e12, "h200": 4.8e12}
"""Memory bandwidth by the vendor's data sheets."""
TENSOR_FLOP_S = 989e12
"""Dense bf16 products of both, at the boost clock, by the vendor's data sheets."""

NAMES = tuple(name for name in SIGNALS[:9] if name != "video_ratio")
"""The columns of the recordings."""
SM, TENSOR, DRAM, PCIE, POWER = map(
    NAMES.index, ("sm_active_ratio", "tensor_active_ratio", "dram_active_ratio", "pcie_bytes_s", "power_w")
)

BUSY = {"keep_alive_bf16", "one_block", "matmul", "copy", "decode", "loading", "bursts"}
IDLE = {"held", "keep_alive"}


def recording(gpu: str) -> dict[str, Any]:
    """A recording; `rows` of a load as an array [readings, signals], without the first, whose GPM values need two."""
    found: dict[str, Any] = json.loads((FOLDER / f"{gpu}.json").read_text("utf-8"))
    for load in found["loads"].values():
        rows = np.array(load["rows"], np.float32)
        assert np.isnan(rows[0, : PCIE + 1]).all()
        load["rows"] = rows[1:]
    assert tuple(found["signals"]) == NAMES
    return found


def mean_of(load: dict[str, Any], signal: int) -> float:
    """Mean of one signal over the readings of a load."""
    return float(load["rows"][:, signal].mean())


@pytest.mark.parametrize("gpu", GPUS)
def test_the_driver_lists_the_profiles_of_the_table(gpu: str) -> None:
    """Name, ids, slices, SMs and each legal placement; MIG mode may be off."""
    said = recording(gpu)
    label = said["name"].replace(" ", "-")
    (model,) = [each for each in mig_facts.MODELS if label in each.product_labels]
    assert said["pci_device_id"].lower() in [each.lower() for each in model.pci_device_ids]
    table = {
        profile.name: (
            profile.nvml_profile,
            profile.gpu_instance_profile_id,
            profile.compute_slices,
            profile.max_instances,
            profile.sm,
            [[start, profile.memory_slices] for start in profile.starts],
        )
        for profile in model.profiles
    }
    listed = {
        each["name"].removeprefix("MIG "): (
            each["number"],
            each["id"],
            each["sliceCount"],
            each["instanceCount"],
            each["multiprocessorCount"],
            each["placements"],
        )
        for each in said["profiles"]
        if "error" not in each
    }
    assert listed == table
    usable = {each["name"].removeprefix("MIG "): each["memorySizeMB"] for each in said["profiles"] if "id" in each}
    known = {profile.name: profile.usable_mib for profile in model.profiles if profile.usable_mib is not None}
    assert known == {name: usable[name] for name in known}


@pytest.mark.parametrize("gpu", GPUS)
def test_every_signal_is_measured(gpu: str) -> None:
    """SM activity by GPM, no gap, no ratio above 1, and a collect takes less than a scrape interval by far."""
    for name, load in recording(gpu)["loads"].items():
        rows: F32 = load["rows"]
        assert load["quality"] == Quality.SM_ACTIVE, name
        assert load["gaps"] == [], name
        assert np.isfinite(rows).all(), name
        assert (rows[:, : DRAM + 1] >= 0).all(), name
        assert (rows[:, : DRAM + 1] <= 1).all(), name
        assert load["collect_s"][0] < 0.1, name


@pytest.mark.parametrize("gpu", GPUS)
def test_dram_activity_is_the_traffic_that_the_load_counted(gpu: str) -> None:
    """Bytes read and written per second over the bandwidth of the memory, to 3 %."""
    loads = recording(gpu)["loads"]
    for name in {"copy", "decode"} & loads.keys():
        counted = loads[name]["counted"]["bytes_s"] / DRAM_BYTES_S[gpu]
        assert mean_of(loads[name], DRAM) == pytest.approx(counted, rel=0.03), name


@pytest.mark.parametrize("gpu", GPUS)
def test_tensor_activity_exceeds_the_share_of_the_peak(gpu: str) -> None:
    """It counts cycles; at the power limit the clock falls, so that .93 of the cycles are .67 of the peak."""
    load = recording(gpu)["loads"]["matmul"]
    share = load["counted"]["flop_s"] / TENSOR_FLOP_S
    assert 0.6 < share < mean_of(load, TENSOR) < mean_of(load, SM) <= 1


def test_pcie_traffic_is_the_copy_from_the_host_with_its_headers() -> None:
    """Packets of 128 to 256 bytes carry about a tenth more than their content."""
    load = recording("h100")["loads"]["loading"]
    assert 1.02 < mean_of(load, PCIE) / load["counted"]["bytes_s"] < 1.20
    assert mean_of(load, SM) == 0


@pytest.mark.parametrize("gpu", GPUS)
def test_the_energy_counter_agrees_with_power(gpu: str) -> None:
    """Mean watts by the counter and by the readings of power, to 2 %."""
    for name, load in recording(gpu)["loads"].items():
        assert load["counted_w"] == pytest.approx([mean_of(load, POWER)], rel=0.02), name


@pytest.mark.parametrize("gpu", GPUS)
def test_the_power_of_a_held_gpu_is_that_of_the_table(gpu: str) -> None:
    """To a tenth; a GPU that no process holds takes far less, so it says nothing of a held one."""
    said = recording(gpu)
    assert mean_of(said["loads"]["held"], POWER) == pytest.approx(loaded_idle_w(said["name"]), rel=0.1)
    assert mean_of(said["loads"]["none"], POWER) < 0.7 * loaded_idle_w(said["name"])


@pytest.mark.parametrize("gpu", GPUS)
def test_verdicts_on_known_loads(gpu: str) -> None:
    """Held memory and a small keep-alive are idle; decoding, loading, bursts and tensor work are not."""
    said = recording(gpu)
    found = {}
    for name, load in said["loads"].items():
        rows: F32 = load["rows"]
        window = Window(
            dict(zip(NAMES, rows.mean(0)[:, None], strict=True)),
            dict(zip(NAMES, rows.max(0)[:, None], strict=True)),
            np.array([len(rows)], np.int32),
            np.array([float(len(rows))]),
            np.zeros(1, np.float32),
            np.array([load["quality"]], np.int8),
            np.array([loaded_idle_w(said["name"])]),
        )
        found[name] = Activity(int(judge(window, Idle(), 180.0)[0]))
    assert {name for name, code in found.items() if code == Activity.BUSY} == BUSY & found.keys()
    assert {name for name, code in found.items() if code == Activity.IDLE} == (IDLE | {"none"}) & found.keys()


def test_the_stand_in_lists_what_the_driver_lists() -> None:
    """The profiles of the stand-in for the driver's library are those of the recorded H100."""
    text = (ROOT / "tests" / "kits" / "nvml_stub.c").read_text("utf-8")
    for each in recording("h100")["profiles"][:4]:
        row = [each[name] for name in ("id", "sliceCount", "multiprocessorCount", "instanceCount", "memorySizeMB")]
        assert f'{{{", ".join(map(str, row))}, "{each["name"]}"}}' in text
