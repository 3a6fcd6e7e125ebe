"""Statements over generated evidence: what stops work needs witnesses that agree; nothing lesser clears an error."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from autopilot.core.hardware.dcgm import SIGNALS, Quality
from autopilot.core.hardware.xid_facts import Remedy, remedy_of
from autopilot.core.intake.usage.activity import Activity, entity_activity
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.policy import Policy
from autopilot.core.model.signal_table import SignalTable
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.recovery.follow_errors import follow_errors, with_gravest
from autopilot.core.recovery.hangs import doing_nothing
from tests.kits.core_world import AUTO, MODELS, holds, observe, snapshot
from tests.kits.field_kit import Played, made, play_objects
from tests.kits.ticks import follow
from tests.kits.usage_world import facts_of

POLICY = Policy(name="shipped")
NAN = float("nan")

# --- no verdict that stops work without agreeing evidence ---------------------------------------------

SAYS_IT_WORKS = {
    "video_ratio": 0.02,
    "sm_active_ratio": 0.3,
    "tensor_active_ratio": 0.3,
    "dram_active_ratio": 0.3,
    "nvlink_bytes_s": 1e9,
    "pcie_bytes_s": 1e9,
    "power_w": 360.0,
}
"""Readings that each show an active GPU."""

AT_REST = {
    "sm_active_ratio": (0.0, 0.0005, NAN),
    "sm_occupancy_ratio": (0.0, NAN),
    "tensor_active_ratio": (0.0, NAN),
    "dram_active_ratio": (0.0, 6e-6, NAN),
    "nvlink_bytes_s": (0.0, NAN),
    "pcie_bytes_s": (0.0, 1.3e6, NAN),
    "fb_used_mib": (30_000.0, NAN),
    "power_w": (118.0, 125.0, NAN),
    "video_ratio": (0.0, NAN),
    "duty_ratio": (0.0, NAN),
    "sm_clock_mhz": (1980.0, NAN),
    "pcie_width": (16.0, NAN),
}
"""Readings of a loaded H100 without work; NaN: not measured."""

GPUS = 4


def fleet(readings: np.ndarray) -> ClusterSnapshot:
    """Two nodes of two H100s, a gang on each, with the same readings [signals, GPUs] in all windows."""
    work = [holds("a", 2, start_s=0.0), holds("b", 2, start_s=0.0)]
    plain = snapshot("2x2", work, nodes={"gpu_model": [MODELS.index("H100-80GB")] * 2})
    table = np.repeat(readings.astype(np.float32)[:, None, :], 3, axis=1)
    noise = table * np.float32(1.01)  # no counter repeats itself; the memory of work that does nothing does not change
    noise[SIGNALS.index("fb_used_mib")] = table[SIGNALS.index("fb_used_mib")]
    counts = np.repeat(np.array([[2], [10], [60]], np.int32), GPUS, axis=1)
    age_s, grade = np.full(GPUS, 10.0, np.float32), np.full(GPUS, Quality.SM_ACTIVE, np.int8)
    telemetry = SignalTable(SIGNALS, (60.0, 300.0, 1800.0), 0.0, table, noise, counts, age_s, grade)
    return replace(plain, telemetry=telemetry)


def at_rest(snap: ClusterSnapshot) -> tuple[np.ndarray, np.ndarray]:
    """GPUs that are judged idle and in no doubt, and gangs that are judged to do nothing."""
    idle = (entity_activity(snap, POLICY) == Activity.IDLE) & (facts_of(snap, POLICY).doubts == 0)
    return idle, doing_nothing(snap, POLICY)


resting = st.tuples(*(st.tuples(*[st.sampled_from(AT_REST[name])] * GPUS) for name in SIGNALS))


@given(resting, st.sampled_from(sorted(SAYS_IT_WORKS)), st.integers(0, GPUS - 1))
def test_one_witness_that_a_gpu_works_is_enough(
    readings: tuple[tuple[float, ...], ...], witness: str, gpu: int
) -> None:
    """Whatever the other signals say, or do not say."""
    found = np.array(readings)
    found[SIGNALS.index(witness), gpu] = SAYS_IT_WORKS[witness]
    idle, nothing = at_rest(fleet(found))
    assert not idle[gpu]
    assert not nothing[gpu // 2]


@given(resting, st.integers(0, GPUS - 1))
def test_a_gang_that_does_nothing_is_measured_on_every_gpu(readings: tuple[tuple[float, ...], ...], gpu: int) -> None:
    """Without SM activity, memory traffic or power of one GPU there is no such verdict, and without power none at all
    that is sure.
    """
    for unknown in ("sm_active_ratio", "dram_active_ratio", "power_w"):
        found = np.array(readings)
        found[SIGNALS.index(unknown), gpu] = NAN
        idle, nothing = at_rest(fleet(found))
        assert not idle[gpu]
        assert not nothing[gpu // 2]


@given(resting)
def test_zeros_of_counters_that_fail_say_nothing(readings: tuple[tuple[float, ...], ...]) -> None:
    """The first GPU of a node works by its power, and all profiling counters of the node stand at 0."""
    found = np.array(readings)
    found[: SIGNALS.index("fb_used_mib"), :2] = 0.0
    found[SIGNALS.index("power_w"), 0] = 500.0
    snap = fleet(found)
    assert not (entity_activity(snap, POLICY)[:2] >= Activity.ESTIMATED).any()
    assert not at_rest(snap)[1][0]


# --- a lesser error clears nothing --------------------------------------------------------------------

CODES = st.sampled_from((-1, 0, 13, 31, 43, 45, 63, 94, 154, 200, 48, 95, 119, 140, 79, 151))
NODES = 2


def shown(codes: tuple[int, ...], boots: list[int], renumbered: bool) -> ClusterSnapshot:
    """What the GPUs of two nodes show; `renumbered`: the first node lists its GPUs in another order."""
    plain = snapshot("2x2", xids=dict(enumerate(codes)), nodes={"boot": [str(boot) for boot in boots]})
    if not renumbered:
        return plain
    order = [1, 0, 2, 3]
    gpus = replace(plain.gpus, uuid=plain.gpus.uuid[order], xid=plain.gpus.xid[order])
    return replace(plain, gpus=gpus)


STEPS = st.lists(
    st.tuples(st.tuples(*[CODES] * GPUS), st.tuples(*[st.booleans()] * NODES), st.booleans(), st.booleans()),
    max_size=10,
)


@given(STEPS)
@example(
    [
        ((79, 79, 0, 0), (False, False), False, True),
        ((0, 79, 0, 0), (False, False), False, False),
        ((-1, 79, 0, 0), (False, False), False, True),
    ]
)
def test_the_errors_of_each_gpu_are_a_history_of_its_own(steps: list[Any]) -> None:
    """Codes of all GPUs in any order, nodes that boot, exporters that restart (0) or are silent (-1), GPUs that change
    their numbers, and views that are not trusted, which end nothing: each GPU has its gravest code since its node
    booted or it showed 0.
    """
    memory, boots = ControllerMemory(), [1, 1]
    gravest = [Remedy.NONE] * GPUS
    for codes, booted, renumbered, trusted in steps:
        boots = [boot + now for boot, now in zip(boots, booted, strict=True)]
        view = with_gravest(memory, shown(codes, boots, renumbered))
        memory = follow(follow_errors, memory, observe(view), AUTO, blind=not trusted)
        plain = shown(codes, boots, renumbered=False).gpus.uuid.tolist()
        found = dict(zip(view.gpus.uuid.tolist(), view.gpus.xid.tolist(), strict=True))
        for gpu, code in enumerate(codes):
            if booted[gpu // 2] or (code == 0 and trusted):
                gravest[gpu] = Remedy.NONE
            gravest[gpu] = max(gravest[gpu], remedy_of(code))
            assert remedy_of(found[plain[gpu]]) == (gravest[gpu] if code else Remedy.NONE)


# --- physical GPUs are the unit of capacity -----------------------------------------------------------

UUID = "GPU-0000000{}-0000-0000-0000-000000000000"


def hami(gpus: int, parts: int) -> dict[str, Any]:
    """A node whose GPUs HAMi splits."""
    text = "".join(f"{UUID.format(n)},{parts},46068,100,NVIDIA-NVIDIA A40,0,true:" for n in range(gpus))
    return {"capacity": {"nvidia.com/gpu": gpus * parts}, "annotations": {"hami.io/node-nvidia-register": text}}


def hami_as_json(gpus: int, parts: int) -> dict[str, Any]:
    """The same in the newer form, beside the labels of feature discovery."""
    each = {"count": parts, "devmem": 81920, "devcore": 100, "type": "NVIDIA A100-SXM4-80GB", "health": True}
    text = json.dumps([{"id": UUID.format(n), **each, "index": n} for n in range(gpus)])
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.count": gpus}
    return {
        "capacity": {"nvidia.com/gpu": gpus * parts},
        "annotations": {"hami.io/node-nvidia-register": text},
        "labels": labels,
    }


def volcano(gpus: int, parts: int) -> dict[str, Any]:
    """A node whose GPUs Volcano splits, under a name of its own."""
    text = "".join(f"{UUID.format(n)},{parts},46068,NVIDIA-A40,true,hami-core:" for n in range(gpus))
    return {
        "capacity": {"volcano.sh/vgpu-number": gpus * parts},
        "annotations": {"volcano.sh/node-vgpu-register": text},
    }


def gke(gpus: int, parts: int) -> dict[str, Any]:
    """A node of GKE with clients that share its GPUs."""
    labels = {
        "cloud.google.com/gke-accelerator": "nvidia-l4",
        "cloud.google.com/gke-accelerator-count": gpus,
        "cloud.google.com/gke-gpu-sharing-strategy": "time-sharing",
        "cloud.google.com/gke-max-shared-clients-per-gpu": parts,
    }
    return {"capacity": {"nvidia.com/gpu": gpus * parts}, "labels": labels}


def device_plugin(gpus: int, parts: int) -> dict[str, Any]:
    """A node whose device plugin offers replicas of its GPUs."""
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-A40-SHARED",
        "nvidia.com/gpu.count": gpus,
        "nvidia.com/gpu.replicas": parts,
    }
    return {"capacity": {"nvidia.com/gpu": gpus * parts}, "labels": labels}


def silent_plugin(gpus: int, parts: int) -> dict[str, Any]:
    """The same with a label of replicas that nobody updated."""
    found = device_plugin(gpus, parts)
    found["labels"] |= {"nvidia.com/gpu.product": "NVIDIA-A40", "nvidia.com/gpu.replicas": 1}
    return found


LAYERS = st.sampled_from((hami, hami_as_json, volcano, gke, device_plugin, silent_plugin))


@given(LAYERS, st.integers(1, 8), st.integers(2, 10), st.integers(0, 6))
def test_physical_gpus_are_the_unit_of_capacity(layer: Any, gpus: int, parts: int, pods: int) -> None:
    """A node of some layer, with pods that hold parts: its GPUs are counted once, and no figure exceeds them."""
    node = {"node": "n-1", **layer(gpus, parts)}
    resource = next(iter(node["capacity"]))
    held = [{"pod": f"team/a-{n}", "at": "n-1", "resources": {resource: 1}} for n in range(min(pods, gpus * parts))]
    played: Played = play_objects(made(node, *held))
    signals, snap = played.ticks[-1][1].signals, played.snapshot
    assert len(snap.gpus.uuid) == gpus
    assert signals.capacity_gpus <= gpus
    assert 0.0 <= signals.allocated_gpus <= gpus
    assert 0.0 <= signals.free_gpus <= gpus - signals.allocated_gpus + 1e-9
