"""The exporter's text: what Prometheus reads, the habits of exporters, and equality with the arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from autopilot.core.hardware import dcgm
from autopilot.core.model.records import Inventory
from collectors.exposition import Scanner
from simulator.signals.behaviours import Archetype, draw_jobs
from simulator.signals.dcgm_text import NodeExporter, PodLabels
from simulator.signals.telemetry import METRICS, TelemetryGenerator
from simulator.signals.telemetry_entities import TelemetryFaults, entities_of, idle_state
from tests.kits.telemetry_world import inventory, running

PODS = [[], [PodLabels("team-a", 'po"d\\1')], [PodLabels("b", "x"), PodLabels("b", "y")], []]


def exporter(faults: TelemetryFaults, world: Inventory) -> NodeExporter:
    """The exporter of the first node."""
    return NodeExporter(TelemetryGenerator(5, faults=faults), world, entities_of(world), 0)


def test_the_text_is_what_prometheus_reads() -> None:
    """The official parser reads every metric with DCGM's labels; values are printed as exporters do."""
    node = exporter(TelemetryFaults(), inventory(1, 4))
    text = node.render(40, running(4, Archetype.COMPUTE_TRAINING, 0.8), PODS)
    assert text is not None
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    assert set(families) == {dcgm.FIELDS[number].names[0] for number in METRICS}
    sample = families["DCGM_FI_PROF_SM_ACTIVE"].samples[1]
    assert sample.labels["pod"] == 'po"d\\1'
    assert sample.labels["hostname"] == "default-000"
    assert sample.labels["modelName"] == "NVIDIA H100 80GB HBM3"
    assert "pod" not in families["DCGM_FI_PROF_SM_ACTIVE"].samples[0].labels
    assert f"}} {sample.value:.6f}\n" in text.decode()
    assert all(isinstance(s.value, int) for s in families["DCGM_FI_DEV_FB_USED"].samples)


def test_pods_may_change_between_scrapes() -> None:
    """Labels follow the pods of the moment."""
    node = exporter(TelemetryFaults(), inventory(1, 4))
    state = idle_state(4)
    first = node.render(1, state, [[]] * 4) or b""
    second = node.render(2, state, PODS) or b""
    assert b"pod=" not in first
    assert second.count(b'pod="y"') == len(METRICS)


def test_labels_take_the_shapes_of_other_exporters() -> None:
    """`Hostname`, none at all, empty pod labels, names of DCGM 4.6, copies by vgpu."""
    world, state = inventory(1, 4), running(4, Archetype.DECODE)
    old = exporter(TelemetryFaults(hostname_label="Hostname", empty_pod_labels=True), world)
    text = (old.render(9, state, PODS) or b"").decode()
    assert ',Hostname="default-000"' in text
    assert ',hostname="' not in text
    assert ',container="",namespace="",pod=""} ' in text
    new = exporter(TelemetryFaults(hostname_label="", names="new", vgpu=True), world)
    text = (new.render(9, state, PODS) or b"").decode()
    assert "ostname=" not in text
    assert "DCGM_FI_PROF_SM_UTIL_RATIO{" in text
    lines = [line for line in text.splitlines() if line.startswith('DCGM_FI_PROF_SM_UTIL_RATIO{gpu="2"')]
    assert [('vgpu="0"' in line, 'vgpu="1"' in line) for line in lines] == [(0, 0), (1, 0), (0, 1)]


@pytest.mark.parametrize(("style", "stand_in"), [("sentinel", "140737488355329.000000"), ("nan", "NaN")])
def test_blank_values_are_printed_as_old_exporters_do(style: str, stand_in: str) -> None:
    """A profiling field without a value reads as DCGM's sentinel or NaN where the options say so."""
    node = exporter(TelemetryFaults(blank_ratio=1.0, blank_style=style), inventory(1, 4))
    text = (node.render(9, running(4, Archetype.DECODE), PODS) or b"").decode()
    lines = [line for line in text.splitlines() if line.startswith("DCGM_FI_PROF_SM_ACTIVE{")]
    assert [line.rpartition(" ")[2] for line in lines] == [stand_in] * 4


def test_a_failed_scrape_has_no_text() -> None:
    """A lost scrape is a failure of the target, not an empty page."""
    node = exporter(TelemetryFaults(lost_scrape_ratio=1.0), inventory(1, 4))
    assert node.render(9, idle_state(4), PODS) is None


CUT: dict[int, Sequence[tuple[str, int]]] = {1: [("3g.40gb", 0), ("1g.10gb", 4)], 2: [("7g.80gb", 0)]}
FAULTS = {
    "none": TelemetryFaults(),
    "default counters": TelemetryFaults(gr_engine_only_ratio=1.0),
    "no profiling": TelemetryFaults(gpu_util_only_ratio=1.0),
    "mixed": TelemetryFaults(gr_engine_only_ratio=0.4, gpu_util_only_ratio=0.3, names="new"),
    "blanks": TelemetryFaults(blank_ratio=0.4),
    "sentinels": TelemetryFaults(blank_ratio=0.4, blank_style="sentinel", hostname_label="Hostname"),
    "nan": TelemetryFaults(blank_ratio=0.4, blank_style="nan", stuck_ratio=0.5),
    "lost": TelemetryFaults(lost_scrape_ratio=0.4, outage_ratio=0.2),
    "vgpu": TelemetryFaults(vgpu=True, empty_pod_labels=True, hostname_label=""),
    "parents": TelemetryFaults(mig_parent=True, blank_ratio=0.2),
    "no board values": TelemetryFaults(mig_board_repeat=False),
}


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS.keys())
@pytest.mark.parametrize("cut", [{}, CUT], ids=["whole", "cut"])
def test_reading_the_text_gives_the_arrays(faults: TelemetryFaults, cut: dict[int, Any]) -> None:
    """`--telemetry full` and `--telemetry windowed` are equal: every value and its quality, bit for bit."""
    world = inventory(4, 4, cut)
    since_s = np.where(np.arange(16 + len(world.instances.id)) % 5 == 1, 60.0, -np.inf)
    entities, state = entities_of(world, since_s), idle_state(len(since_s))
    kinds, levels = draw_jobs(2, [str(k) for k in range(len(since_s))])
    state.archetype[:], state.level[:], state.gpus[:] = kinds, levels, 2
    state.job_code[:] = np.arange(len(since_s))
    generator = TelemetryGenerator(5, faults=faults)
    nodes = [NodeExporter(generator, world, entities, n) for n in range(4)]
    pods = [[[PodLabels("a", "p"), PodLabels("a", "q")]] * len(node.rows) for node in nodes]
    scanner = Scanner()
    for slot in (1, 2, 3, 40, 41):
        texts = [node.render(slot, state, own) for node, own in zip(nodes, pods, strict=True)]
        frame = scanner.scan([text.decode() for text in texts if text is not None])
        read = frame.values
        values, quality = generator.sample(slot, entities, state)
        place = {name: column for column, name in enumerate(frame.entity_ids)}
        assert set(place) <= set(entities.id)
        assert place or all(text is None for text in texts)
        for row, name in enumerate(entities.id):
            if name in place:
                np.testing.assert_array_equal(read[:, place[name]], values[:, row], err_msg=str(name))
                assert frame.quality[place[name]] == quality[row], name
            else:
                assert np.isnan(values[:, row]).all(), name
