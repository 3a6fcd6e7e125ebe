"""Each filled cell of the table of signals and ways in: that way reads that signal under that name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from math import isfinite

import numpy as np
import pynvml
import pytest

from autopilot.core.hardware import dcgm
from autopilot.core.intake.ways_in import SIGNALS, Way
from autopilot.core.model.records import Batch
from collectors.attribution import Sightings
from collectors.exporter import ExporterCollector, Target
from collectors.promql import Series
from collectors.slo.collector import SloCollector
from collectors.slo.sources import Source
from tests.kits.dra_objects import claim, claiming, dra_node, instance, resource_slice, whole_gpu
from tests.kits.exporter_text import Device, render
from tests.kits.kube_objects import kueue, node, pod, workload
from tests.kits.nvml_kit import Watch
from tests.kits.stored import Scraped, StoredCollector
from tests.unit.collectors.kubernetes.test_service_rows import deployment
from tests.unit.collectors.kubernetes.view import NOW_S, Seen, held, row

START_S = 1_700_000_000.0
CELLS = [(each.name, way) for each in SIGNALS for way in each.cells]
FELL: dict[int, float | str | None] = {1002: 0.0, 1004: 0.0, 1005: 0.0}


def shown(at_s: float) -> str:
    """A GPU with a pod and an error, a MIG instance, and a GPU whose counters contradict GPU_UTIL."""
    t_s = at_s - START_S
    return render(
        [
            Device("GPU-a", pod="p").reading(
                {156: 1e12 + 5e5 * t_s, 230: 79.0, 395: 1.0, 396: 1.0, 206: 0.0, 207: 35.0, 100: 1980.0, 238: 16.0}
            ),
            Device("GPU-m", 1, gi_id="3", profile="3g.40gb"),
            Device("GPU-d", 2).reading(FELL),
        ]
    ) + "".join(
        f'gpu_autopilot_{name}_timestamp_seconds{{namespace="team-a",pod="p"}} {at_s - 60}\n'
        for name in ("checkpoint", "heartbeat")
    )


def measured(batch: Batch, found: Sightings, counted_w: dict[str, float]) -> set[str]:
    """Signals that a source of telemetry reads."""
    seen, errors = batch.telemetry, batch.errors
    assert seen is not None
    assert errors is not None
    column = seen.entity_ids.tolist().index("GPU-a")
    told = {signal for place, signal in enumerate(dcgm.SIGNALS) if isfinite(seen.mean[place, -1, column])}
    facts = {
        "gpu_util_ratio": any("while GPU_UTIL shows" in gap.reason for gap in batch.gaps if gap.object_id == "GPU-d"),
        "energy_mj": counted_w == {"GPU-a": pytest.approx(500.0)},
        "xid_code": 79 in errors.xid,
        "row_remap": 2 in errors.remap,
        "gpu_uuid": ("GPU-a", "node-a") in {(each.uuid, each.host) for each in found.seen},
        "mig": ("3", "3g.40gb") in {(each.gi_id, each.profile) for each in found.seen},
        "pods": [(each.entity_id, each.pod, each.container) for each in found.attributions] == [("GPU-a", "p", "main")],
    }
    return told | {name for name, holds in facts.items() if holds}


@lru_cache(maxsize=1)
def scraped() -> set[str]:
    """Signals that a direct scrape reads."""
    now = [START_S]
    collector = ExporterCollector([Target("http://a", "")], lambda _: shown(now[0]).encode())
    for now[0] in (START_S, START_S + 60, START_S + 120):
        batch = collector.collect(now[0])
    return measured(batch, collector.sightings(), collector.counted_w(now[0]))


@lru_cache(maxsize=1)
def queried() -> set[str]:
    """Signals that the telemetry of a Prometheus reads."""
    collector = StoredCollector([Scraped(shown, {"job": "gpu"})], START_S, joins=True, workers=1)
    for at_s in (60, 120):
        batch = collector.collect(START_S + at_s)
    told = collector.training(START_S + 120)[("team-a", "p")]
    more = {"checkpoint"} if told.saved_s == START_S + 60 else set()
    more |= {"heartbeat"} if told.beat_s == START_S + 60 else set()
    return more | measured(batch, collector.sightings(), collector.counted_w(START_S + 120))


class Named(SloCollector):
    """A Prometheus that has one metric of one service; the requests are enough for a p99."""

    metric = ""

    def _names_there(self) -> tuple[str, ...]:
        return ()

    def _query(self, source: Source, measure: str, window_s: float) -> list[Series] | str:
        there = self.metric in source.queries[measure] or measure == "requests"
        return [Series({"model_name": "chat"}, (0.0, "500"))] if there and not measure.endswith("within") else []


def served(name: str) -> bool:
    """Whether the value of a service comes from the metric that its cell names."""
    collector, empty = (Named("http://prometheus", sources=["vllm"]) for _ in range(2))
    (signal,) = (each for each in SIGNALS if each.name == name)
    collector.metric, empty.metric = signal.cells[Way.PROMETHEUS][-1], "no_such_metric"
    found, none = collector.collect(0.0).services, empty.collect(0.0).services
    assert found is not None
    assert none is not None
    return bool(np.isfinite(getattr(found, name)).any()) and not np.isfinite(getattr(none, name)).any()


def static_instance() -> dict[str, object]:
    """An instance that lasts."""
    made = instance("n1", 0, "1g.10gb", 0, 1)
    del made["consumesCounters"]
    return made | {"capacity": {"memorySlice0": {"value": "1"}}}


def noted(**notes: str) -> dict[str, object]:
    """The row of a pod with annotations."""
    annotations = {f"gpu-autopilot.io/{key.replace('_', '-')}": text for key, text in notes.items()}
    seen = Seen(node("n1"), pod("p", 1, node="n1", annotations=annotations)).tables()
    return row(seen[1], "team/p")


OBJECTS: dict[str, Callable[[], object]] = {
    "gpu_uuid": lambda: (
        Seen(dra_node(), resource_slice("s", "n1", [whole_gpu("n1", 0)])).tables()[0].gpus.uuid.tolist() == ["GPU-n1-0"]
    ),
    "mig": lambda: (
        Seen(dra_node(), resource_slice("s", "n1", [static_instance()])).tables()[0].instances.id.tolist()
        == ["GPU-n1-0/100"]
    ),
    "pods": lambda: (
        held(
            Seen(
                dra_node(),
                resource_slice("s", "n1", [whole_gpu("n1", 0), whole_gpu("n1", 1)]),
                claim("c", "gpu-1", pods=("p",)),
                claiming("p", "c", node="n1"),
            ).tables(),
            "team/p",
        )
        == ["GPU-n1-1"]
    ),
    "nodes": lambda: Seen(node("n1", unschedulable=True)).tables()[0].nodes.cordoned.tolist() == [True],
    "notice": lambda: np.isfinite(
        Seen(node("n1", taints=[{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]))
        .tables()[0]
        .nodes.reclaim_at_s
    ).all(),
    "checkpoint": lambda: noted(last_checkpoint=f"{NOW_S - 60:.0f}")["last_checkpoint_s"] == NOW_S - 60,
    "heartbeat": lambda: (
        not noted(heartbeat=f"{NOW_S - 4000:.0f}", checkpoint_on_request="true")["checkpoint_on_request"]
    ),
    "quota": lambda: len(Seen(node("n1"), *kueue(workload("w", 8))).tables()[1].queues.id),
    "replicas": lambda: Seen(node("n1"), deployment(3)).tables()[1].services.replicas.tolist() == [3],
}


@pytest.mark.parametrize("name", [name for name, way in CELLS if way is Way.SCRAPE])
def test_a_direct_scrape_reads(name: str) -> None:
    """The text of an exporter gives the signal."""
    assert name in scraped()


@pytest.mark.parametrize("name", [name for name, way in CELLS if way is Way.PROMETHEUS])
def test_a_prometheus_reads(name: str) -> None:
    """Queries by the names of the cell give the signal."""
    assert name in queried() or served(name)


@pytest.mark.parametrize("name", [name for name, way in CELLS if way is Way.KUBERNETES])
def test_the_objects_of_a_cluster_say(name: str) -> None:
    """The field of the cell gives the signal."""
    assert OBJECTS[name]()


def test_the_driver_reads(watch: Watch) -> None:
    """The calls of the cells are there, and each gives its signal."""
    whole = "gpu GPU-a NVIDIA_H100_80GB_HBM3 99 40960 500000 0 1 40 0\n"
    dead = "gpu GPU-d NVIDIA_H100_80GB_HBM3 99 40960 500000 0 1 0 0\n"
    cut = "gpu GPU-m NVIDIA_H100_80GB_HBM3 0 12288 300000 1 1 0 0\ninst 2 3 2 0 8192 40\n"
    state = whole + dead + cut + "remap 0 0 1\n" + "xid 0 79\n"
    _, answer = watch(*(f"{state}energy 0 {mj}\n" for mj in (900_000_000_000, 900_007_500_000)))
    found = {name for name, value in zip(dcgm.SIGNALS, answer["mean"]["GPU-a"], strict=True) if value is not None}
    facts = {
        "gpu_util_ratio": any(gap[0] == "GPU-d" and "while GPU_UTIL shows" in gap[2] for gap in answer["gaps"]),
        "energy_mj": answer["counted_w"] == {"GPU-a": 500.0},
        "xid_code": ["GPU-a", 79, 2] in answer["errors"],
        "row_remap": ["GPU-a", 79, 2] in answer["errors"],
        "gpu_uuid": ["GPU-a", "", "", "node-a"] in answer["seen"],
        "mig": ["GPU-m", "3", "3g.40gb", "node-a"] in answer["seen"],
    }
    assert found | {name for name, holds in facts.items() if holds} == {name for name, way in CELLS if way is Way.NVML}
    assert all(hasattr(pynvml, call) for each in SIGNALS for call in each.cells.get(Way.NVML, ()))


def names(signals: Iterable[str]) -> set[str]:
    """Of the signals, those that the ways of telemetry may have."""
    return set(signals) & {each.name for each in SIGNALS}


def test_no_way_reads_more_than_the_table_says() -> None:
    """An empty cell is really empty."""
    assert names(scraped()) == {name for name, way in CELLS if way is Way.SCRAPE}
    assert names(queried()) <= {name for name, way in CELLS if way is Way.PROMETHEUS}
    assert set(OBJECTS) == {name for name, way in CELLS if way is Way.KUBERNETES}
