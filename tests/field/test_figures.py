"""Figures of the fleet where telemetry, nodes or places vanish."""

from __future__ import annotations

import copy

import pytest
import yaml

from tests.kits.core_world import decide, holds, observe, snapshot, waits
from tests.kits.field_kit import FOLDER, made, objects_of, play_objects
from tests.kits.ticking_world import EAGER


def test_utilization_does_not_rise_where_a_whole_exporter_vanishes() -> None:
    """The idler half of the cluster is not measured any more: the other half is not the whole."""
    whole = yaml.safe_load((FOLDER / "38-lost-gpu" / "whole.yaml").read_text("utf-8"))
    dark = copy.deepcopy(whole) | {"changes": [{"at_s": 60, "node": "node-a", "drop": True}]}
    played = play_objects(objects_of(FOLDER / "38-lost-gpu" / "objects.yaml"), dark, ticks=16, step_s=30.0)
    shown = [each.signals for _, each, _ in played.ticks][1:]
    assert shown[0].real_utilization_ratio == pytest.approx(0.7, abs=0.01)
    assert max(each.real_utilization_ratio for each in shown) <= 0.71
    assert max(each.gap_ratio for each in shown) <= 0.31
    assert (shown[-1].measured_ratio, shown[-1].allocation_ratio) == (0.5, 1.0)
    assert shown[-1].real_utilization_ratio == pytest.approx(0.45, abs=0.01)
    assert not [each for each in played.sent if each[1].kind == "evict"]


def test_busy_nodes_that_are_cordoned_are_allocated_and_not_free() -> None:
    """Capacity and what is held are of the same nodes."""
    nodes = [{"node": f"n{at}", "gpus": 8, "product": "NVIDIA-H100-80GB-HBM3"} for at in range(3)]
    pods = [{"pod": f"team/p{at}", "at": f"n{at}", "gpus": 8} for at in range(2)]
    closed = [each | {"unschedulable": True} for each in nodes]
    for written, expected in ((nodes, (24, 16, 8, 0)), (closed, (24, 16, 0, 8))):
        found = play_objects(made(*map(dict, written), *map(dict, pods)), ticks=1).ticks[-1][1].signals
        figures = found.capacity_gpus, found.allocated_gpus, found.free_gpus, found.out_of_use_gpus
        assert figures == expected


def test_two_gangs_on_one_gpu_end_no_tick() -> None:
    """Planning takes both off and puts both back, whatever comes of it."""
    work = [holds("a", 1, [0]), holds("b", 1, [0]), holds("c", 3, [1, 2, 3]), waits("p", 4, priority=9)]
    step = decide(observe(snapshot("1x4", work), 9000.0), EAGER)
    assert not step.decision.halted
