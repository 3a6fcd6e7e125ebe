"""What every collector keeps to, whatever its source does."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable

import numpy as np
import pytest

from autopilot.core.intake.assemble import assemble
from autopilot.core.model.errors import InputError
from autopilot.core.model.ports import Collector
from autopilot.core.model.records import Batch
from collectors import COLLECTORS, load
from collectors.exporter import ExporterCollector, Target
from collectors.kubernetes.collector import KubernetesCollector
from collectors.kubernetes.source import Cluster
from collectors.kubernetes.transport import ApiError
from collectors.nvml import NvmlCollector
from collectors.prometheus import PrometheusCollector
from collectors.slo.collector import SloCollector
from tests.kits.batch_kit import check_batch
from tests.kits.exporter_text import Device, render
from tests.kits.kube_api import Canned
from tests.kits.kube_objects import EPOCH_S, kueue, node, pod, workload


def unused_port() -> int:
    """A loopback port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def refuse(url: str) -> bytes:
    """A fetch that fails to connect."""
    raise ConnectionRefusedError(f"{url}: connection refused")


TEXTS = {
    "http://a/metrics": render([Device("GPU-a", pod="p"), Device("GPU-b", 1).reading({1002: "NaN"})]).encode(),
    "http://b/metrics": render(
        [Device("GPU-m", gi_id="1", profile="3g.40gb"), Device("GPU-m", gi_id="2", profile="4g.40gb")]
    ).encode(),
    "http://c/metrics": b"\xff\xfe<html>",
    "http://d/metrics": b"",
}


def of_cluster(api: Canned) -> KubernetesCollector:
    """A collector of a canned cluster that was listed once, where it answers."""
    cluster = Cluster(api, lambda: EPOCH_S, rng=random.Random(1))
    for _ in range(3):
        cluster.step_all()
    return KubernetesCollector(cluster)


WORKING: dict[str, Callable[[], Collector]] = {
    "exporter": lambda: ExporterCollector([Target(url) for url in TEXTS], TEXTS.__getitem__),
}
BROKEN: dict[str, Callable[[], Collector]] = {
    "exporter": lambda: ExporterCollector([Target("http://x:1/metrics", "node-x")], refuse),
    "exporter-http": lambda: ExporterCollector([Target(f"http://127.0.0.1:{unused_port()}/metrics")]),
    "prometheus": lambda: PrometheusCollector(f"http://127.0.0.1:{unused_port()}", timeout_s=2.0),
    "nvml": lambda: NvmlCollector("node-a"),
    "slo": lambda: SloCollector(f"http://127.0.0.1:{unused_port()}", timeout_s=2.0),
    "kubernetes": lambda: of_cluster(Canned(refuse={"*": ApiError(0, "the API server does not answer")})),
}


@pytest.mark.parametrize("name", WORKING)
def test_a_working_source_gives_whole_batches(name: str) -> None:
    """Shapes, types, ranges and the meaning of samples, age and quality hold at every collect."""
    collector = WORKING[name]()
    for now_s in (0.0, 15.0, 30.0, 400.0, 401.0, 4000.0):
        batch = collector.collect(now_s)
        check_batch(batch, collector.name, now_s)
    assert batch.telemetry is not None
    assert len(batch.telemetry.entity_ids)


def test_a_source_of_objects_gives_tables_that_the_core_accepts() -> None:
    """Inventory and work are consistent, true at a time that is not in the future, and not built again unchanged."""
    api = Canned()
    api.put(node("n1"), pod("a", 2, node="n1"), pod("b", 4), *kueue(workload("w", 8)))
    collector = of_cluster(api)
    first, second = collector.collect(EPOCH_S), collector.collect(EPOCH_S + 5)
    for batch, now_s in ((first, EPOCH_S), (second, EPOCH_S + 5)):
        assert batch.source == collector.name
        assert batch.collected_s <= now_s
        assert all(gap.source == collector.name and gap.reason for gap in batch.gaps)
        snapshot, gaps = assemble([batch], now_s)
        assert (len(snapshot.gpus.uuid), len(snapshot.workloads.id), gaps) == (8, 3, ())
    assert second.inventory is first.inventory
    assert second.work is first.work


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_source_is_a_gap(name: str) -> None:
    """A source that cannot be reached raises nothing and says why, each time."""
    collector = BROKEN[name]()
    for now_s in (1000.0, 2000.0):
        batch = collector.collect(now_s)
        check_batch(batch, collector.name, now_s)
        if name == "nvml" and batch.inventory is not None:
            pytest.skip("this machine has an NVIDIA driver")
        assert batch.gaps
        assert batch.telemetry is None or not len(batch.telemetry.entity_ids)


def test_the_table_names_every_collector() -> None:
    """Each row of the table loads a class with that name and a collect method."""
    assert [row.name for row in COLLECTORS] == ["prometheus", "exporter", "slo", "kubernetes", "nvml"]
    for row in COLLECTORS:
        collector = load(row.name)
        assert collector.name == row.name
        assert callable(collector.collect)


def test_an_unknown_collector_is_refused_with_the_list() -> None:
    """A name outside the table is an input error that lists the names."""
    with pytest.raises(InputError, match="prometheus, exporter, slo, kubernetes, nvml"):
        load("dcgm")


@pytest.mark.parametrize("url", ["", "localhost:9090", "ftp://host/x", "http://", "http://h:99999"])
@pytest.mark.parametrize("make", [PrometheusCollector, lambda url: ExporterCollector([Target(url)])])
def test_an_address_that_is_none_is_refused(url: str, make: Callable[[str], Collector]) -> None:
    """A mistyped address is an input error before anything starts."""
    with pytest.raises(InputError, match="is not an address"):
        make(url)


# --- direct scrape -----------------------------------------------------------------------------


def scraping(texts: dict[str, bytes | OSError], **options: float) -> ExporterCollector:
    """A collector of virtual targets whose texts the test may change."""

    def fetch(url: str) -> bytes:
        given = texts[url]
        if isinstance(given, OSError):
            raise given
        return given

    return ExporterCollector([Target(url, f"node-{url}") for url in texts], fetch, **options)  # type: ignore[arg-type]


def gaps(batch: Batch) -> set[tuple[str, str, str]]:
    """Gaps as (object, signal, reason up to its colon)."""
    return {(gap.object_id, gap.signal, gap.reason.split(":")[0]) for gap in batch.gaps}


def test_every_gap_of_a_scrape_has_its_reason() -> None:
    """A failed target, an empty one, bad lines, blanks and fields that no target sends are distinguished."""
    texts: dict[str, bytes | OSError] = {
        "ok": render([Device("GPU-a"), Device("GPU-b", 1).reading({1005: "140737488355328"})]).encode(),
        "down": ConnectionRefusedError("connection refused"),
        "empty": b"# nothing\n",
        "bad": b"not an exporter\n",
    }
    whole = texts["ok"]
    assert isinstance(whole, bytes)
    texts["ok"] = b"\n".join(  # this site's counters file has no occupancy
        line for line in whole.split(b"\n") if b"OCCUPANCY" not in line
    )
    found = gaps(scraping(texts).collect(0.0))
    assert ("node-down", "", "scrape failed") in found
    assert ("node-empty", "", "the text contains no DCGM field of a GPU") in found
    assert ("node-bad", "", "1 lines are not Prometheus text, first 'not an exporter'") in found
    assert ("GPU-b", "dram_active_ratio", "DCGM_FI_PROF_DRAM_ACTIVE blank") in found
    assert ("", "sm_occupancy_ratio", "not exported") in found
    assert not any(entity == "GPU-a" for entity, _, _ in found)


def test_many_equal_gaps_are_one() -> None:
    """A blank on a thousand GPUs is one line with its count."""
    devices = [Device(f"GPU-{k}").reading({1005: "NaN"}) for k in range(1000)] + [Device("GPU-x")]
    batch = scraping({"n": render(devices).encode()}).collect(0.0)
    (gap,) = [gap for gap in batch.gaps if gap.signal == "dram_active_ratio" and "not a number" in gap.reason]
    assert "1000 entities" in gap.reason


def test_a_target_that_falls_silent_ages() -> None:
    """When scrapes fail the GPU stays known, older and with fewer samples, and is reported as silent."""
    texts: dict[str, bytes | OSError] = {"n": render([Device("GPU-a")]).encode()}
    collector = scraping(texts)
    collector.collect(0.0)
    texts["n"] = TimeoutError("timed out")
    batch = collector.collect(90.0)
    assert batch.telemetry is not None
    assert list(batch.telemetry.samples[:, 0]) == [0, 1, 1]
    assert np.isnan(batch.telemetry.mean[0, 0, 0])
    assert batch.telemetry.age_s[0] == 90.0
    assert ("GPU-a", "sm_active_ratio", "no sample of SM activity in 60 s") in gaps(batch)


def test_it_scrapes_no_more_often_than_its_interval() -> None:
    """Ticks every few seconds do not multiply scrapes."""
    asked: list[str] = []

    def fetch(url: str) -> bytes:
        asked.append(url)
        return render([Device("GPU-a")]).encode()

    collector = ExporterCollector([Target("n")], fetch, interval_s=15.0)
    for now_s in (0.0, 3.0, 14.0, 15.0, 16.0, 31.0):
        collector.collect(now_s)
    assert len(asked) == 3


def test_it_scrapes_again_after_its_clock_was_set_back() -> None:
    """A far date behind it does not keep it from asking."""
    asked: list[str] = []

    def fetch(url: str) -> bytes:
        asked.append(url)
        return render([Device("GPU-a")]).encode()

    collector = ExporterCollector([Target("n")], fetch, interval_s=15.0)
    for now_s in (1e9, 100.0, 110.0, 116.0, 132.0):
        batch = collector.collect(now_s)
    assert len(asked) == 4
    assert batch.telemetry is not None
    assert batch.telemetry.age_s.tolist() == [0.0]


def test_texts_scraped_between_two_ticks_can_be_fed() -> None:
    """Several scrape instants fed by the caller equal as many scrapes."""
    texts: dict[str, bytes | OSError] = {"n": b""}
    fed, scraped = ExporterCollector(), scraping(texts)
    for k in range(8):
        text = render([Device("GPU-a").reading({1002: k / 10})])
        fed.ingest(15.0 * k, text, Target("", "node-n"))
        texts["n"] = text.encode()
        batch = scraped.collect(15.0 * k)
    other = fed.collect(105.0)
    assert batch.telemetry is not None
    assert other.telemetry is not None
    np.testing.assert_array_equal(batch.telemetry.mean, other.telemetry.mean)
    np.testing.assert_array_equal(batch.telemetry.samples, other.telemetry.samples)


def test_a_reused_instance_id_starts_anew() -> None:
    """After a re-cut an id with another profile does not inherit the past of the old instance."""
    part = Device("GPU-m", gi_id="1", profile="3g.40gb").reading({1002: 1.0})
    texts: dict[str, bytes | OSError] = {"n": render([part]).encode()}
    collector = scraping(texts)
    collector.collect(0.0)
    texts["n"] = render([part.but(profile="1g.10gb").reading({1002: 0.0})]).encode()
    seen = collector.collect(15.0).telemetry
    assert seen is not None
    column = list(seen.entity_ids).index("GPU-m/1")
    assert (seen.mean[0, 0, column], seen.samples[0, column]) == (0.0, 1)
