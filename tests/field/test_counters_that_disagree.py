"""Counters that contradict each other stop no work, and a real hang is still found."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kits.field_kit import made, play, play_objects

Values = dict[str, Any]

H100 = "NVIDIA-H100-80GB-HBM3"
ZEROS = {"PROF_SM_ACTIVE": 0, "PROF_PIPE_TENSOR_ACTIVE": 0, "PROF_DRAM_ACTIVE": 0}
IDLE_POWER = {"DEV_POWER_USAGE": [116, 122]}
NVLINK = {"PROF_NVLINK_TX_BYTES": 4e9, "PROF_NVLINK_RX_BYTES": 4e9}
PCIE = {"PROF_PCIE_TX_BYTES": 5e8, "PROF_PCIE_RX_BYTES": 5e8}
SAVES = {"checkpoint-on-request": "true", "checkpoint-write-s": "20", "checkpoint-interval-s": "600"}


def test_a_family_of_counters_at_zero_stops_no_work() -> None:
    """SM, tensor and memory activity fall to 0 at 650 W (NVIDIA/dcgm-exporter#662, NVIDIA/DCGM#303)."""
    played = play("17-prof-zero", "objects.yaml", "contradiction.yaml", ticks=145, step_s=60.0)
    evicted = played.accepted("evict", "train-a")
    assert not evicted
    told = played.said("stands at 0 while GPU_UTIL shows running kernels on this GPU or on others of its node: the")
    assert told


def test_work_whose_counters_agree_is_still_found() -> None:
    """Activity, utilization and power all say that it does nothing."""
    played = play("17-prof-zero", "objects.yaml", "idle.yaml", ticks=145, step_s=60.0)
    evicted, told = played.accepted("evict", "train-a"), played.said("is unknown")
    assert evicted
    assert not told


def gang(name: str, product: str, values: Values, then: Values) -> tuple[list[Values], Values, Values]:
    """A gang on a node of its own, what its GPUs show, and what they show from 2000 s on."""
    at, pod = f"n-{name}", f"{name}/train"
    notes = {f"gpu-autopilot.io/{key}": value for key, value in SAVES.items()}
    objects: list[Values] = [{"node": at, "gpus": 2, "product": product}]
    objects.append({"pod": pod, "at": at, "gpus": 2, "annotations": notes})
    shown = {"node": at, "id": f"17{ord(name):02x}", "count": 2, "pod": pod, "model": product, "values": values}
    return objects, shown, {"at_s": 2000, "node": at, "values": then}


def test_any_witness_is_enough_and_one_family_of_counters_is_none() -> None:
    """The counters of gangs a to i fall to 0. Power, or GPU_UTIL, or both contradict them for a to d, and traffic does
    for f and g. Those of h do themselves: tensor cores are active without an SM (NVIDIA/DCGM#244). Of e nothing else is
    measured, and of i the power agrees.
    """
    busy: Values = {key: [0.6, 0.8] for key in ZEROS} | {"DEV_FB_USED": 30_000}
    util, power = {"DEV_GPU_UTIL": [98, 100]}, {"DEV_POWER_USAGE": [400, 450]}
    dark = [
        gang("a", "NVIDIA-A100-SXM4-80GB", busy | util | power, ZEROS),
        gang("b", H100, busy | {"DEV_POWER_USAGE": [230, 280]}, ZEROS),
        gang("c", H100, busy | util, ZEROS),
        gang("d", "NVIDIA-NEW-GPU", busy | power, ZEROS),
        gang("e", H100, busy, ZEROS),
        gang("f", H100, busy | power | NVLINK, ZEROS | IDLE_POWER),
        gang("g", H100, busy | power | PCIE, ZEROS | IDLE_POWER),
        gang("h", H100, busy, {"PROF_SM_ACTIVE": 0, "PROF_DRAM_ACTIVE": 0}),
        gang("i", H100, busy | power, ZEROS | IDLE_POWER),
        *(gang(name, H100, busy | util | power, {}) for name in "vwxyz"),
    ]
    objects = made(*(each for found, _, _ in dark for each in found))
    spec = {"gpus": [shown for _, shown, _ in dark], "changes": [change for _, _, change in dark]}
    played = play_objects(objects, spec, ticks=106, step_s=60.0)
    stopped = {proposal.subject.name for _, proposal in played.accepted("evict")}
    assert stopped == {"i/train"}
    said = {node for node in "abcdefghivwxyz" if played.said(f"GPUs of n-{node} show no activity")}
    assert said == {"b", "d", "h"}


def test_work_whose_memory_changes_is_neither_idle_nor_hung() -> None:
    """All counters of gangs l, p and i fall to 0 at idle power. The memory of l changes at every scrape, and that of
    one GPU of p every 25 minutes. That of i changes by less than a program takes.
    """
    busy: Values = {key: [0.6, 0.8] for key in ZEROS} | {"DEV_FB_USED": 30_000, "DEV_POWER_USAGE": [400, 450]}
    still: Values = ZEROS | IDLE_POWER
    kinds = [
        gang("l", H100, busy, still | {"DEV_FB_USED": [20_000, 30_000]}),
        gang("p", H100, busy, still),
        gang("i", H100, busy, still | {"DEV_FB_USED": [30_000, 30_004]}),
        *(gang(name, H100, busy, {}) for name in "uvwxyz"),
    ]
    steps: list[Values] = [
        {"at_s": 2000 + 1500 * step, "node": "n-p", "gpus": [1], "values": {"DEV_FB_USED": 30_000 + 1024 * step}}
        for step in range(1, 6)
    ]
    objects = made(*(each for found, _, _ in kinds for each in found))
    spec = {"gpus": [shown for _, shown, _ in kinds], "changes": [change for _, _, change in kinds] + steps}
    played = play_objects(objects, spec, ticks=160, step_s=60.0)
    assert {proposal.subject.name for _, proposal in played.accepted("evict")} == {"i/train"}
    advised = {each.subject.name for _, _, decision in played.ticks for each in decision.plan.proposals}
    assert advised == {"i/train"}


@pytest.mark.parametrize("stored_s", [0.0, 30.0])
def test_work_that_only_decodes_or_encodes_is_neither_idle_nor_hung(stored_s: float) -> None:
    """The video engines of gangs d and e work, by a direct scrape and through a Prometheus. Those of i do nothing."""
    busy: Values = {key: [0.6, 0.8] for key in ZEROS} | {"DEV_FB_USED": 30_000, "DEV_POWER_USAGE": [400, 450]}
    engines: Values = {"DEV_ENC_UTIL": 0, "DEV_DEC_UTIL": 0}
    kinds = [
        gang("d", H100, busy | engines, ZEROS | IDLE_POWER | {"DEV_DEC_UTIL": [2, 30]}),
        gang("e", H100, busy | engines, ZEROS | IDLE_POWER | {"DEV_ENC_UTIL": [40, 60]}),
        gang("i", H100, busy | engines, ZEROS | IDLE_POWER),
        *(gang(name, H100, busy, {}) for name in "uvwxyz"),
    ]
    objects = made(*(each for found, _, _ in kinds for each in found))
    spec = {"gpus": [shown for _, shown, _ in kinds], "changes": [change for _, _, change in kinds]}
    played = play_objects(objects, spec, ticks=106, step_s=60.0, stored_s=stored_s)
    assert {proposal.subject.name for _, proposal in played.accepted("evict")} == {"i/train"}
    assert {each.subject.name for _, _, decision in played.ticks for each in decision.plan.proposals} == {"i/train"}
    assert not played.said("show no activity while power")
