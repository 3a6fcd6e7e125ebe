"""Measured use in words: units, marks for what is estimated, and nothing that was not measured."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from autopilot.core.model.snapshot import ServiceTable, make
from autopilot.explain.use import aligned, format_signal, group_lines, groups_document, workload_use
from tests.kits.core_world import holds, observe, queue_tree, snapshot, waits
from tests.kits.usage_world import measured

NAN = float("nan")
SIGNALS: dict[str, list[float]] = {
    "sm_active_ratio": [0.2, 0.6, 0.9, 0.0],
    "dram_active_ratio": [0.1, 0.1, 0.0, 0.0],
    "power_w": [300.0, 500.0, 650.0, 70.0],
    "nvlink_bytes_s": [2e9, 4e9, 0, 0],
    "fb_used_mib": [10_240, 30_720, 0, 0],
}


@pytest.mark.parametrize(
    ("signal", "value", "words"),
    [
        ("sm_active_ratio", 0.612, "61.2 %"),
        ("nvlink_bytes_s", 2.2e11, "220.0 GB/s"),
        ("pcie_bytes_s", 1.65e6, "1.6 MB/s"),
        ("pcie_bytes_s", 0.0, "0.0 B/s"),
        ("fb_used_mib", 12_800.0, "12.5 GiB"),
        ("power_w", 5230.4, "5,230 W"),
        ("energy_j", 63_500.0, "63.5 kJ"),
        ("energy_j", 9e6, "2.50 kWh"),
        ("energy_j", NAN, "-"),
    ],
)
def test_every_signal_has_its_unit(signal: str, value: float, words: str) -> None:
    """Figures are read with the unit of their signal; unknown is a dash."""
    assert format_signal(signal, value) == words


def test_the_use_of_a_workload_over_the_windows() -> None:
    """One line for each window, with age, samples and measured part; signals that were not measured have no column."""
    observation = observe(measured(snapshot("1x4", [holds("a", 2), waits("w", 4)]), SIGNALS, age_s=20.0), 9000.0)
    lines, document = workload_use("a", observation)
    assert lines == [
        "measured use of its 2 GPUs, SM activity by SM_ACTIVE, oldest part 20 s old:",
        "  window  samples  measured      SM    DRAM    NVLink    memory  power    energy",
        "  60 s          4   100.0 %  40.0 %  10.0 %  6.0 GB/s  40.0 GiB  800 W   48.0 kJ",
        "  5 min         4   100.0 %  40.0 %  10.0 %  6.0 GB/s  40.0 GiB  800 W  240.0 kJ",
        "  30 min        4   100.0 %  40.0 %  10.0 %  6.0 GB/s  40.0 GiB  800 W  0.40 kWh",
        "utilization over 5 min:",
        "              GPUs  held  allocation  hardware    real  gap GPUs  measured",
        "  workload a           2      50.0 %    40.0 %  20.0 %       1.2   100.0 %",
        "  tenant t0            2      50.0 %    40.0 %  20.0 %       1.2   100.0 %",
        "  pool pool      4     2      50.0 %    40.0 %  20.0 %       1.2   100.0 %",
        "  fleet          4     2      50.0 %    40.0 %  20.0 %       1.2   100.0 %",
    ]
    assert document is not None
    assert json.loads(json.dumps(document, allow_nan=False))["windows"][1]["power_w"] == 800.0
    assert document["windows"][1]["tensor_active_ratio"] is None
    assert workload_use("w", observation) == ([], None)
    assert workload_use("nobody", observation) == ([], None)


def test_what_is_estimated_is_marked() -> None:
    """A share of a GPU is divided in proportion: every value has a mark, and a line says what it means."""
    snap = measured(snapshot("1x4", [holds("a", 1, on=[0], gpu_milli=500)]), SIGNALS)
    lines, document = workload_use("a", observe(snap, 9000.0))
    assert "~20.0 %" in lines[2]
    assert "~150 W" in lines[2]
    assert any("~ estimated" in line for line in lines)
    assert document is not None
    assert set(document["windows"][0]["estimated"]) == {*SIGNALS, "energy_j"}


def test_what_is_not_measured_is_said_and_not_zero() -> None:
    """Without telemetry there is one line and no figure; telemetry in doubt is named with its reason."""
    dark = observe(measured(snapshot("1x4", [holds("a", 2)]), {}, age_s=float("inf")), 9000.0)
    assert workload_use("a", dark)[0] == ["measured use of its 2 GPUs: not measured"]
    snap = measured(snapshot("1x4", [holds("a", 2)]), SIGNALS | {"power_w": [300.0, -5.0, 0, 0]})
    lines, document = workload_use("a", observe(snap, 9000.0))
    assert lines[-1] == "its telemetry is in doubt: telemetry_impossible"
    assert document is not None
    assert document["in_doubt"] == ["telemetry_impossible"]


def test_groups_show_the_gap_and_busy_gpus_without_a_workload() -> None:
    """Fleet, pools and tenants with held GPUs, the three ratios and the gap; what no workload holds comes last."""
    observation = observe(measured(snapshot("1x4", [holds("a", 2, tenant=1)]), SIGNALS), 9000.0)
    lines = group_lines(observation)
    assert lines[0] == "use over 5 min:"
    assert [line.split() for line in lines[2:7]] == [
        ["fleet", "4", "2", "50.0", "%", "40.0", "%", "20.0", "%", "1.2", "100.0", "%"],
        ["pool", "pool", "4", "2", "50.0", "%", "40.0", "%", "20.0", "%", "1.2", "100.0", "%"],
        ["tenant", "t1", "2", "50.0", "%", "40.0", "%", "20.0", "%", "1.2", "100.0", "%"],
        ["workload", "a", "2", "50.0", "%", "40.0", "%", "20.0", "%", "1.2", "100.0", "%"],
        ["free", "2"],
    ]
    assert lines[7].startswith("busy without a workload: GPU-2 on node-0 (90.0 % SM activity over 60 s)")
    document = groups_document(observation)
    json.dumps(document, allow_nan=False)
    fleet = next(row for row in document["levels"]["fleet"] if row["window_s"] == 300.0)
    assert (fleet["held_gpus"], round(fleet["gap_gpus"], 3)) == (2.0, 1.2)
    assert [each["entity_id"] for each in document["busy_without_workload"]] == ["GPU-2"]


def test_groups_without_telemetry_have_an_allocation_only() -> None:
    """What is not measured is a dash."""
    lines = group_lines(observe(snapshot("1x4", [holds("a", 2)]), 9000.0))
    assert lines[2].split() == ["fleet", "4", "2", "50.0", "%", "-", "-", "-", "0.0", "%"]


def test_many_groups_are_cut_and_counted() -> None:
    """Fourteen tenants: the twelve with the largest gap, and how many more there are."""
    names = tuple(f"t{number}" for number in range(14))
    work = [holds(f"w{number}", 1, tenant=number) for number in range(14)]
    lines = group_lines(observe(snapshot("2x8", work, tenants=names), 9000.0))
    assert "  and 2 tenants more" in lines
    assert "  and 9 workloads more" in lines


def test_a_workload_is_shown_beside_all_that_it_belongs_to() -> None:
    """Itself, its service, tenant, queue and those above, pool and fleet; also in the table of all groups."""
    tree = queue_tree(("org", 0, -1), ("team", 1, -1))
    work = [holds("a", 2, service=0, queue=2), holds("b", 1, queue=2)]
    chat = make(ServiceTable, id=np.array(["chat"], object), uid=np.array(["chat"], object))
    snap = replace(snapshot("1x4", work, queues=tree), services=chat)
    observation = observe(measured(snap, SIGNALS), 9000.0)
    lines, document = workload_use("a", observation)
    shown = [" ".join(line.split()[:2]) for line in lines[lines.index("utilization over 5 min:") + 2 :]]
    assert shown == ["workload a", "service chat", "tenant t0", "queue team", "queue org", "pool pool", "fleet 4"]
    assert document is not None
    held = {(row["level"], row["name"]): row["held_gpus"] for row in document["levels"] if row["window_s"] == 300.0}
    assert held[("service", "chat")] == 2.0
    assert held[("queue", "team")] == held[("queue", "org")] == held[("fleet", "fleet")] == 3.0
    table = [line.split()[:2] for line in group_lines(observation)]
    assert ["queue", "team"] in table
    assert ["service", "chat"] in table
    assert ["queue", "root"] not in table
    found = groups_document(observation)["levels"]["workload"]
    assert {row["name"]: row["held_gpus"] for row in found if row["window_s"] == 300.0} == {"a": 2.0, "b": 1.0}


def test_lines_of_a_table_are_aligned() -> None:
    """The first column to the left, all others to the right; a note alone does not widen a column."""
    assert aligned([["", "a"], ["row", "10"], ["a long note"]]) == ["      a", "row  10", "a long note"]


def test_one_doubtful_gpu_among_many_is_enough() -> None:
    """The doubt about any of its GPUs is shown; that of another workload is not."""
    snap = measured(snapshot("1x4", [holds("a", 2), holds("b", 2)]), SIGNALS)
    mean = snap.telemetry.mean.copy()
    mean[0, :, 3] = np.float32(45.0)
    seen = replace(snap, telemetry=replace(snap.telemetry, mean=mean, maximum=mean))
    assert "telemetry_scale" in workload_use("b", observe(seen, 9000.0))[0][-1]
    assert "doubt" not in workload_use("a", observe(seen, 9000.0))[0][-1]
