"""OpenCost's allocation model and metering on the same pods, nodes and hours; and labels from pods to bills."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from autopilot.app.commands.showback_commands import Words, run_showback
from autopilot.app.options import SimulateOptions
from autopilot.app.runs.world import build_world
from autopilot.playground.stage import Stage
from benchmarks.opencost import (
    Side,
    allocations,
    bound_hours,
    idle_of,
    node_cost,
    rows_of,
    run_hours,
    sampled_hours,
    side,
)
from tests.kits.playground_kit import job, person

SCENARIO = """
name: beside-opencost
seed: 3
horizon: 1h
cluster:
  pools:
    - {name: whole, nodes: 2, gpus_per_node: 8, gpu_model: H100-80GB}
    - {name: small, nodes: 1, gpus_per_node: 4, gpu_model: A100-80GB}
  queues:
    - {name: vision, guarantee: {H100-80GB: 12}}
    - {name: language, guarantee: {H100-80GB: 4, A100-80GB: 2}}
jobs:
  groups:
    - {kind: train, count: 6, tenants: [vision], gpus: [4, 8], duration: 3m, spread: 0.5, from: 0m, to: 6m}
    - {kind: train, count: 8, tenants: [language], gpus: [1, 2], duration: 2m, spread: 0.6, from: 0m, to: 6m}
physics: real
telemetry: windowed
"""
KEY = "example.com/cost-center"
CENTERS = {"first": "r-and-d", "second": "a_b.c-1", "none": None}


def people(stage: Stage) -> None:
    """Jobs whose pods have the label, one of them without."""
    for name, value in CENTERS.items():
        asked = job(name, "language", gpus=1, annotations={"playground.gpu-autopilot.io/duration": "3m"})
        if value is not None:
            asked["spec"]["template"]["metadata"] = {"labels": {KEY: value}}
        person(stage).create("jobs.batch", asked)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Side:
    """Ten minutes."""
    folder = tmp_path_factory.mktemp("opencost")
    (folder / "world.yaml").write_text(SCENARIO)
    return side(build_world(SimulateOptions(scenario=str(folder / "world.yaml"))), 600.0, folder, (KEY,), people)


def test_both_count_the_same_hours(found: Side) -> None:
    """Of each namespace, with the time in which containers are created, which OpenCost leaves out.

    To 0.1 %, or to the second to which Kubernetes rounds the times of each pod.
    """
    rows, good = rows_of(found)
    assert good
    assert [row[0] for row in rows] == ["language", "vision"]
    running, bound, sampled = (
        allocations(found, lambda pod: pod.namespace, hours(found)) for hours in (run_hours, bound_hours, sampled_hours)
    )
    for name in ("vision", "language"):
        assert 0.0 < sampled[name].gpu_h < running[name].gpu_h < bound[name].gpu_h


def test_both_price_the_nodes_alike_and_idle_is_the_sum_of_our_causes(found: Side) -> None:
    """OpenCost has one figure; shared in proportion to cost it is paid by those who use most."""
    assert found.bills().capacity_cost == pytest.approx(node_cost(found), rel=1e-6)
    idle, parts = idle_of(found)
    assert idle == pytest.approx(sum(parts.values()), rel=2e-3)
    assert {"containers created", "guarantee unused"} <= set(parts)
    shared = allocations(found, lambda pod: pod.namespace, run_hours(found)).values()
    assert sum(each.shared for each in shared) == pytest.approx(node_cost(found))


def test_labels_of_pods_reach_bills_csv_and_focus_tags(found: Side, tmp_path: Path) -> None:
    """Up to the second in which the work ends; work without the label is in a group of its own."""
    theirs = allocations(found, lambda pod: pod.labels.get(KEY, "(none)"), bound_hours(found))
    folder = found.store.folder
    run_showback(folder, Words(by=f"label:{KEY}", target=tmp_path / "by.csv"))
    rows = {row[f"label:{KEY}"]: row for row in csv.DictReader(io.StringIO((tmp_path / "by.csv").read_text()))}
    for name in ("r-and-d", "a_b.c-1", "(none)"):
        assert float(rows[name]["allocated_gpu_h"]) == pytest.approx(theirs[name].gpu_h, rel=2e-3, abs=4 / 3600)
    run_showback(folder, Words(form="focus", target=tmp_path / "focus.csv"))
    tags = [json.loads(row["Tags"]) for row in csv.DictReader(io.StringIO((tmp_path / "focus.csv").read_text()))]
    assert {each.get(KEY) for each in tags} == {"r-and-d", "a_b.c-1", None}
