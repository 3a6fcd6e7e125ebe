"""Figures of the fleet on arbitrary clusters: parts make up their wholes wherever they are shown, and no figure rises
because something vanished.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopilot.core.hardware.dcgm import SIGNALS
from autopilot.core.intake.usage.rollup import ratios, rollups
from autopilot.core.model.records import Observation
from autopilot.core.model.snapshot import ClusterSnapshot, Recut
from autopilot.core.placement.whatif import WhatIf
from autopilot.explain.use import groups_document
from autopilot.http.routers.fleet import _fleet
from autopilot.http.routers.nodes import _nodes
from autopilot.http.routers.tenants import _tenants
from autopilot.metering.amounts import GPU_TIME, GRAINS_PER_GPU_S, KEYS, TICKS_PER_S
from autopilot.metering.holdings import seen
from autopilot.metering.observed import between
from tests.kits.core_world import Item, holds, observe, queue_tree, snapshot, waits
from tests.kits.field_kit import made, play_objects
from tests.kits.http_kit import published
from tests.kits.scraping import shown
from tests.kits.tries import tries
from tests.kits.usage_world import measured

NOW_S, GPUS, CUTS = 10_000.0, 12, {gpu: [("1g.10gb", 0), ("2g.20gb", 2), ("3g.40gb", 4)] for gpu in (3, 11)}
FIGURES = ("active_gpus", "gap_gpus", "measured_ratio", "allocation_ratio", "hardware_ratio", "real_utilization_ratio")
FLAGS = st.lists(st.booleans(), min_size=3, max_size=3)
ACTIVITY = st.one_of(st.floats(0.0, 1.0, width=32), st.sampled_from([math.nan, 0.0, -1.0, 50.0]))


@st.composite
def clusters(draw: st.DrawFn) -> ClusterSnapshot:
    """Three nodes in two pools: cordoned, lost or called back, broken and changing GPUs, and work of any shape, also
    more of it on one GPU than the GPU has.
    """
    items: list[Item] = [waits("pending", draw(st.integers(1, 8)), tenant=2, queue=1)]
    for number in range(draw(st.integers(0, 14))):
        gpu, of = draw(st.integers(0, GPUS - 1)), {"tenant": number % 3, "queue": 1 + number % 3}
        kind = draw(st.sampled_from(["whole", "node", "share", "instance"]))
        if kind == "instance":
            of["mig_profile"] = (gpu := gpu % 6) % 3
        elif kind == "share":
            of["gpu_milli"] = draw(st.sampled_from([1, 250, 333, 900]))
        wide = range(4 * (gpu // 4), 4 * (gpu // 4) + 3) if kind == "node" else [gpu]
        items.append(holds(f"w{number}", len(wide), on=wide, **of))
    reclaims = [7.0 if each else math.nan for each in draw(FLAGS)]
    nodes: dict[str, Any] = {"pool": [0, 0, 1], "cordoned": draw(FLAGS), "ready": [not each for each in draw(FLAGS)]}
    row = st.integers(0, GPUS - 1)
    snap = snapshot(
        "3x4",
        items,
        nodes=nodes | {"reclaim_at_s": reclaims},
        cuts=CUTS,
        queues=queue_tree(("a", 0, -1), ("b", 0, -1), ("a/1", 1, -1)),
        unhealthy=draw(st.lists(row, max_size=3)),
        xids=dict.fromkeys(draw(st.lists(row, max_size=2)), draw(st.sampled_from([45, 79, 95]))),
        recuts=dict.fromkeys(draw(st.lists(row, max_size=2)), draw(st.sampled_from([Recut.CHANGING, Recut.FAILED]))),
    )
    snap = replace(snap, names=replace(snap.names, pools=("a", "b")))
    return measured(snap, {"sm_active_ratio": [draw(ACTIVITY) for _ in range(GPUS + 6)]})


def check(found: Mapping[str, Any], where: str) -> None:
    """The parts of one group make up its wholes. Figures that are None, NaN or absent are unknown."""
    known = {name: value for name, value in found.items() if isinstance(value, int | float) and not math.isnan(value)}
    negative = {name: value for name, value in known.items() if value < 0}
    assert not negative, where
    held = known["held_gpus"]
    assert known["capacity_gpus"] == pytest.approx(held + known["free_gpus"] + known["out_of_use_gpus"]), where
    assert all(known.get(name, 0.0) <= 1 for name in FIGURES if name.endswith("_ratio")), where
    if "active_gpus" in known and held:
        measured_gpus = known["measured_ratio"] * held
        assert known["active_gpus"] + known["gap_gpus"] == pytest.approx(measured_gpus, abs=1e-6), where
        assert measured_gpus <= held


def metered(observation: Observation) -> dict[str, float]:
    """GPUs by kind as metering counts the next minute."""
    before = seen(observation)
    now = seen(replace(observation, now_s=observation.now_s + 60.0), (), before)
    found: dict[str, float] = {}
    for key, amounts in between(before, now, [before.at, now.at])[0].items():
        kind = key[KEYS.index("kind")]
        found[kind] = found.get(kind, 0.0) + amounts[GPU_TIME] / GRAINS_PER_GPU_S / 60.0
    assert now.at - before.at == 60 * TICKS_PER_S
    return found


@given(clusters())
@settings(max_examples=tries(40, 1500))
def test_parts_make_up_their_wholes_wherever_they_are_shown(snap: ClusterSnapshot) -> None:
    """Snapshot, /metrics, page, explain and metering: one definition of capacity, held, free and out of use."""
    observation = observe(snap, NOW_S)
    signals = observation.signals
    fleet = {name: getattr(signals, name) for name in (*FIGURES[2:], "capacity_gpus", "free_gpus", "out_of_use_gpus")}
    fleet["held_gpus"] = held = signals.allocated_gpus
    check(fleet, "signals")
    assert signals.capacity_gpus == GPUS
    assert 0 <= signals.stranded_gpus <= signals.free_gpus + 1e-6
    assert 0 <= signals.recut_gpus <= signals.out_of_use_gpus
    books = WhatIf(snap)
    assert signals.free_gpus <= (books.gpu_ok & books.node_ok[snap.gpus.node]).sum()
    latest = published(observation)
    page, scraped = _fleet(latest), shown(observation)
    groups = {"fleet": page["fleet"], **{row["name"]: row for row in page["pools"]}}
    groups |= {"scraped": {name.removeprefix("fleet_"): scraped[name] for name in scraped if name[:6] == "fleet_"}}
    for pool in "ab":
        ending = f"{{pool={pool}}}"
        mine = {name: value for name, value in scraped.items() if name[:5] == "pool_" and name.endswith(ending)}
        groups[f"scraped {pool}"] = {name[5 : -len(ending)]: value for name, value in mine.items()}
    for name, row in groups.items():
        check(row, name)
    for name in ("fleet", "scraped"):
        assert {key: groups[name][key] for key in fleet if key in groups[name] and key[-4:] == "gpus"} == pytest.approx(
            {key: value for key, value in fleet.items() if key[-4:] == "gpus"}
        )
        both = [groups[each] for each in (("a", "b") if name == "fleet" else ("scraped a", "scraped b"))]
        for key in ("capacity_gpus", "held_gpus", "free_gpus", "out_of_use_gpus"):
            assert both[0][key] + both[1][key] == pytest.approx(groups[name][key])
    assert sum(_nodes(latest)["gpus"]["held_milli"]) / 1000 == pytest.approx(held, abs=0.01)
    assert sum(row["held_gpus"] for row in _tenants(latest)["tenants"]) == pytest.approx(held)
    assert groups_document(observation)["levels"]["fleet"][0]["held_gpus"] == held
    assert sum(value for name, value in scraped.items() if name.startswith("node_free")) <= signals.free_gpus + 1e-6
    amounts = metered(observation)
    unheld = amounts.get("idle", 0.0) + amounts.get("fragmented", 0.0)
    assert (amounts["capacity"], amounts.get("held", 0.0)) == pytest.approx((GPUS, held), abs=1e-3)
    assert (unheld, amounts.get("out_of_use", 0.0)) == pytest.approx((signals.free_gpus, signals.out_of_use_gpus))


def figures_of(snap: ClusterSnapshot) -> dict[str, float]:
    """Every figure of every group, and what alerts read of the owners of work."""
    found = {
        f"{level} {name} {figure}": float(getattr(values, figure)[row])
        for level, each in rollups(snap).items()
        for values in [ratios(each, 300.0)]
        for row, name in enumerate(each.names[:-1])
        for figure in FIGURES
    }
    scraped = shown(observe(snap, NOW_S))
    return found | {name: value for name, value in scraped.items() if "hoarding" in name or "borrowed_idle" in name}


@given(clusters(), st.lists(st.integers(0, GPUS + 5), min_size=1, max_size=GPUS), st.sets(st.integers(0, 2)))
@settings(max_examples=tries(25, 1000))
def test_no_figure_rises_where_something_vanished(snap: ClusterSnapshot, lost: list[int], dark: set[int]) -> None:
    """Telemetry of GPUs, and nodes that are not ready any more: every figure stays, falls, or becomes unknown."""
    windows_s = np.array(snap.telemetry.windows_s)
    samples = np.zeros((len(windows_s), GPUS + 6))
    still = np.zeros((len(SIGNALS), *samples.shape), np.float32)
    still[SIGNALS.index("sm_active_ratio"), :, ::2] = snap.telemetry.mean[SIGNALS.index("sm_active_ratio")][:, ::2]
    samples[:] = windows_s[:, None] / 15.0
    table = replace(snap.telemetry, mean=still, maximum=still, samples=samples.astype(np.int32))
    mean, ready = still.copy(), snap.nodes.ready.copy()
    mean[:, :, lost], ready[list(dark)] = np.nan, False
    gone = replace(snap, telemetry=replace(table, mean=mean, maximum=mean), nodes=replace(snap.nodes, ready=ready))
    before, after = figures_of(replace(snap, telemetry=table)), figures_of(gone)
    risen = {
        name: (before.get(name), value)
        for name, value in after.items()
        if not math.isnan(value) and not value <= before.get(name, math.nan) + 1e-9
    }
    assert not risen


A40 = "GPU-0000000{}-0000-0000-0000-000000000000,10,46068,100,NVIDIA-NVIDIA A40,0,true:"
NODES = st.sampled_from(
    [
        {"gpus": 4, "product": "NVIDIA-H100-80GB-HBM3"},
        {"gpus": 4, "product": "NVIDIA-H100-80GB-HBM3", "unschedulable": True},
        {"gpus": 4, "product": "NVIDIA-H100-80GB-HBM3", "allocatable": {"nvidia.com/gpu": 2}},
        {"gpus": 16, "product": "Tesla-T4-SHARED", "labels": {"nvidia.com/gpu.count": 4, "nvidia.com/gpu.replicas": 4}},
        {"product": "NVIDIA-H100-80GB-HBM3", "labels": {"nvidia.com/gpu.count": 1},
         "capacity": {"nvidia.com/mig-1g.10gb": 7}},
        {"gpus": 20, "annotations": {"hami.io/node-nvidia-register": A40.format(0) + A40.format(1)}},
    ]
)  # fmt: skip
ASKS = st.sampled_from([{"gpus": 1}, {"gpus": 4}, {"resources": {"nvidia.com/mig-1g.10gb": 2}}])


@given(st.lists(NODES, min_size=1, max_size=3), st.lists(st.tuples(ASKS, st.integers(0, 3)), max_size=8))
@settings(max_examples=tries(12, 400))
def test_no_objects_make_more_of_a_cluster_than_it_has(
    nodes: list[dict[str, Any]], pods: list[tuple[dict[str, Any], int]]
) -> None:
    """Objects as API servers show them, also more pods than a node has room for, and pods on nodes that are gone."""
    written = [{"node": f"n{place}", **each} for place, each in enumerate(nodes)]
    written += [{"pod": f"team/p{place}", "at": f"n{node}", **asks} for place, (asks, node) in enumerate(pods)]
    signals = play_objects(made(*written), ticks=1).ticks[-1][1].signals
    found = {name: getattr(signals, name) for name in (*FIGURES[2:], "capacity_gpus", "free_gpus", "out_of_use_gpus")}
    check(found | {"held_gpus": signals.allocated_gpus}, str(written))
