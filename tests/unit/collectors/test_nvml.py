"""The NVML collector under the real bindings, on a stand-in for the driver's library built by gcc."""

from __future__ import annotations

import sys

import pytest

from collectors.nvml import NvmlCollector
from tests.kits.nvml_kit import Watch

A100 = "gpu GPU-a NVIDIA_A100-SXM4-80GB 37 20480 250500 0 0 0 0\n"
H100 = "gpu GPU-h NVIDIA_H100_80GB_HBM3 99 40960 600000 0 1 {sm} 0\n"
CUT = "gpu GPU-m NVIDIA_H100_80GB_HBM3 0 12288 300000 1 1 0 0\n"
PARTS = "inst 0 1 2 0 8192 {sm}\ninst 0 2 3 4 4096 0\n"


def test_inventory_and_plain_utilization(watch: Watch) -> None:
    """Without GPM the activity is NVML's utilization, tagged as such; the rest of the GPU is there."""
    (answer,) = watch(A100)
    assert answer["node"] == [["node-a"], [1]]
    assert answer["models"] == ["NVIDIA-A100-SXM4-80GB"]
    assert answer["gpus"] == [["GPU-a", True, False]]
    assert answer["mean"]["GPU-a"][:9] == [0.37, None, None, None, None, None, 20480.0, 250.5, 0.0]
    assert answer["quality"] == {"GPU-a": 1}
    missing = {signal for entity, signal, _ in answer["gaps"]}
    assert missing == {
        "sm_occupancy_ratio",
        "tensor_active_ratio",
        "dram_active_ratio",
        "nvlink_bytes_s",
        "pcie_bytes_s",
    }


def test_energy_is_by_the_counter_of_the_driver(watch: Watch) -> None:
    """300 W between two collects; a driver that was loaded again is unknown; a GPU without a counter is no gap."""
    states = [A100 + H100.format(sm=20) + f"energy 1 {mj}\n" for mj in (900_000_000_000, 900_004_500_000, 4_500_000)]
    first, second, third = watch(*states)
    assert (first["counted_w"], second["counted_w"], third["counted_w"]) == ({}, {"GPU-h": 300.0}, {})
    assert not [gap for gap in second["gaps"] if "energy" in gap[1]]


def test_errors_are_events_and_the_state_of_rows(watch: Watch) -> None:
    """Nothing is known of XIDs before one comes; the gravest stays. Without row remapping nothing is known of it."""
    both = A100 + H100.format(sm=20)
    states = [both, both + "remap 0 1 0\nremap 1 0 0\nxid 0 31\nxid 0 95\nxid 0 154\n"]
    states.append(both + "remap 0 1 1\nxid 0 31\nxid 0 95\nxid 0 154\nxid 0 45\n")
    assert [answer["errors"] for answer in watch(*states)] == [
        [["GPU-a", -1, -1], ["GPU-h", -1, -1]],
        [["GPU-a", 95, 1], ["GPU-h", -1, 0]],
        [["GPU-a", 95, 2], ["GPU-h", -1, -1]],
    ]


def test_counters_that_contradict_the_utilization_are_unknown(watch: Watch) -> None:
    """GPM stands at 0 while kernels run. At rest both say the same."""
    works, rests = H100.format(sm=0), H100.format(sm=0).replace(" 99 ", " 0 ")
    _, answer = watch(works, works)
    assert answer["mean"]["GPU-h"][:9] == [None] * 6 + [40960.0, 600.0, 0.0]
    assert [gap for gap in answer["gaps"] if "GPM stands at 0 while GPU_UTIL shows" in gap[2]]
    _, answer = watch(rests, rests)
    assert answer["mean"]["GPU-h"][0] == 0.0


def test_gpm_needs_two_samples_and_gives_the_mean_between_them(watch: Watch) -> None:
    """The first collect has a gap instead of a value; later ones the mean since the collect before."""
    first, second, third = watch(H100.format(sm=20), H100.format(sm=60), H100.format(sm=100))
    assert first["mean"]["GPU-h"][0] is None
    assert first["samples"]["GPU-h"] == 0
    assert ["GPU-h", "sm_active_ratio", "first GPM sample: a value needs two"] in first["gaps"]
    assert second["mean"]["GPU-h"][:9] == pytest.approx(
        [0.4, 0.2, 0.1, 0.08, 40000 * 1048576, 2000 * 1048576, 40960.0, 600.0, 0.0], rel=1e-6
    )
    assert second["quality"] == {"GPU-h": 3}
    assert third["mean"]["GPU-h"][0] == pytest.approx((0.4 + 0.8) / 2)
    assert third["gaps"] == []


def test_a_metric_that_gpm_lacks_is_unknown(watch: Watch) -> None:
    """Without SM activity the engine counter stands in, tagged; a NaN of the driver is no value."""
    _, answer = watch(H100.format(sm=-1), H100.format(sm=-1))
    assert answer["mean"]["GPU-h"][0] == pytest.approx(0.55)
    assert answer["quality"] == {"GPU-h": 2}
    assert answer["mean"]["GPU-h"][3] is None
    assert any(signal == "dram_active_ratio" for _, signal, _ in answer["gaps"])


def test_mig_instances_with_placement_and_their_board(watch: Watch) -> None:
    """Instances are listed with profile and start; the board is made of them by slices."""
    _, answer = watch(CUT + PARTS.format(sm=70), CUT + PARTS.format(sm=70))
    assert answer["gpus"] == [["GPU-m", True, True]]
    assert answer["instances"] == [["GPU-m/1", "3g.40gb", 0, 1], ["GPU-m/2", "4g.40gb", 4, 2]]
    parts = [["GPU-m", gi_id, profile, "node-a"] for gi_id, profile in (("1", "3g.40gb"), ("2", "4g.40gb"))]
    assert answer["seen"] == [["GPU-m", "", "", "node-a"], *parts]
    assert answer["same"], "the cluster joins them again only when they change"
    assert answer["mean"]["GPU-m/1"][:4] == pytest.approx([0.7, 0.35, 0.175, 0.14])
    assert answer["mean"]["GPU-m/1"][4:6] == [None, None], "traffic cannot be told apart by instance"
    assert answer["mean"]["GPU-m/1"][6] == 8192.0
    assert answer["mean"]["GPU-m/2"][0] == 0.0
    assert answer["mean"]["GPU-m"][0] == pytest.approx(0.7 * 3 / 7)
    assert answer["mean"]["GPU-m"][7] == 300.0
    assert answer["quality"]["GPU-m"] == 3


def test_a_re_cut_is_seen_at_the_next_collect(watch: Watch) -> None:
    """A destroyed instance leaves the inventory; an id that returns with another profile starts anew."""
    before = CUT + PARTS.format(sm=70)
    after = CUT + "inst 0 1 0 0 1024 10\n"
    answers = watch(before, before, after, after)
    assert answers[-1]["instances"] == [["GPU-m/1", "1g.10gb", 0, 1]]
    assert answers[2]["samples"]["GPU-m/1"] == 0
    assert answers[3]["mean"]["GPU-m/1"][0] == pytest.approx(0.1)
    assert answers[3]["samples"]["GPU-m/1"] == 1


def test_a_lost_gpu_stays_listed_and_unhealthy(watch: Watch) -> None:
    """A GPU that the driver lost is a gap with the driver's word, unhealthy, and the others go on."""
    lost = A100.replace(" 0 0 0 0\n", " 0 0 0 15\n")
    _, answer = watch(A100 + H100.format(sm=50), lost + H100.format(sm=50))
    assert answer["gpus"] == [["GPU-a", False, False], ["GPU-h", True, False]]
    assert ["GPU-a", "", "GPU is lost"] in answer["gaps"]
    assert answer["mean"]["GPU-h"][0] == pytest.approx(0.5)
    assert answer["samples"]["GPU-a"] == 1


def test_a_refused_call_is_a_gap_of_its_signal(watch: Watch) -> None:
    """Power that a GPU does not report is unknown with the driver's reason."""
    (answer,) = watch(A100.replace("250500", "-1"))
    assert answer["mean"]["GPU-a"][7] is None
    assert ["GPU-a", "power_w", "nvmlDeviceGetPowerUsage: Not Supported"] in answer["gaps"]


def test_a_driver_that_returns_is_used_again(watch: Watch) -> None:
    """A machine with no GPU listed is empty, and filled when the driver lists one."""
    empty, answer = watch("", A100)
    assert empty["gpus"] == []
    assert answer["gpus"] == [["GPU-a", True, False]]


def test_no_library_is_one_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the driver's library the batch says so once, each time it is asked."""

    class NVMLError(Exception):
        pass

    class Bindings:
        def nvmlInit(self) -> None:  # noqa: N802 - the driver's name
            raise NVMLError("NVML Shared Library Not Found")

    bindings = Bindings()
    bindings.NVMLError = NVMLError  # type: ignore[attr-defined]
    collector = NvmlCollector("node-a", bindings=bindings)
    for now_s in (0.0, 15.0):
        batch = collector.collect(now_s)
        assert (batch.inventory, batch.telemetry) == (None, None)
        assert [gap.reason for gap in batch.gaps] == ["NVML cannot be used: NVML Shared Library Not Found"]


def test_no_bindings_is_one_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the Python package the batch names it."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    (gap,) = NvmlCollector("node-a").collect(0.0).gaps
    assert "nvidia-ml-py" in gap.reason
