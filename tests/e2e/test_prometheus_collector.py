"""The Prometheus collector against a real Prometheus, beside a direct scrape of the same exporters."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from autopilot.core.hardware.dcgm import SIGNALS, Quality
from autopilot.core.model.records import Batch
from collectors.exporter import ExporterCollector, Target
from collectors.prometheus import PrometheusCollector
from tests.kits.batch_kit import check_batch
from tests.kits.exporter_text import Device, render

WAIT_S = 20.0

NO_SM = {1002: None, 1003: None}
MIG = [
    Device(
        "GPU-mig",
        gi_id="1",
        profile="3g.40gb",
        pod="infer-0",
        values={1002: 0.9, 1003: 0.4, 1004: 0.2, 1005: 0.5, 252: 9000.0, 155: 480.0, 203: 100.0, 1009: 1e9, 1010: 2e9},
    ),
    Device(
        "GPU-mig",
        gi_id="2",
        profile="4g.40gb",
        values={1002: 0.1, 1003: 0.1, 1004: 0.0, 1005: 0.1, 252: 500.0, 155: 480.0, 203: 100.0, 1009: 1e9, 1010: 2e9},
    ),
]
SHARED = Device("GPU-shared").reading({252: 60000.0})
NODES: dict[str, list[str]] = {
    # by phase: what the node's exporter sends, then what it sends later
    "node-a": [
        render([Device("GPU-a0", pod="first").reading({1002: 0.2}), Device("GPU-a1", 1)], node="node-a"),
        render([Device("GPU-a0", pod="second").reading({1002: 0.8}), Device("GPU-a1", 1)], node="node-a"),
    ],
    "node-new": [
        render(
            [Device("GPU-new", pod="train-1").reading({230: 79.0, 395: 1.0})],
            node="node-new",
            new_names=True,
            host_label="Hostname",
        )
    ],
    "node-mig": [render(MIG, node="node-mig")],
    "node-old": [
        render(
            [
                Device("GPU-blank").reading({1005: "140737488355328", 252: "9223372036854775794"}),
                Device("GPU-nan", 1).reading({1004: "NaN"}),
            ],
            empty_pod_labels=True,
        )
    ],
    "node-poor": [
        render(
            [Device("GPU-engine").reading(NO_SM), Device("GPU-util", 1).reading({**NO_SM, 1001: None})], host_label=""
        )
    ],
    "node-shared": [
        render([SHARED, *(SHARED.but(pod=f"p{k}", vgpu=str(k)).reading({252: 20000.0, 203: 30.0}) for k in range(2))])
    ],
}


def free_port() -> int:
    """A loopback port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(answer: Callable[[str], tuple[int, bytes]]) -> Iterator[str]:
    """An HTTP server on loopback; `answer(path)` gives status and body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *args: object) -> None:
            """A client that hangs up is part of some tests."""

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def zone_of(node: str) -> str:
    """Sharing is a setting of a whole site: nodes with it are asked for apart."""
    return "shared" if node == "node-shared" else "plain"


@contextmanager
def prometheus(binary: str, exporters: str, down_port: int, folder: Path) -> Iterator[str]:
    """A Prometheus that scrapes each node each second, as a ServiceMonitor without honorLabels would; one with it."""
    host = urlsplit(exporters).netloc
    jobs = [
        {
            "job_name": "gpu",
            "metrics_path": f"/{node}",
            "honor_labels": node == "node-mig",
            "static_configs": [
                {
                    "targets": [host],
                    "labels": {"zone": zone_of(node), "pod": f"exporter-{node}", "namespace": "gpu-operator"},
                }
            ],
        }
        for node in NODES
    ]
    for place, job in enumerate(jobs):
        job["job_name"] = f"gpu-{place}"
    jobs[0]["static_configs"].append({"targets": [f"127.0.0.1:{down_port}"], "labels": {"zone": "plain"}})  # type: ignore[attr-defined]
    config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    address = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        [
            binary,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
            "--web.enable-lifecycle",
            "--log.level=error",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(10)


def until(collector: PrometheusCollector, holds: Callable[[Batch], bool]) -> Batch:
    """Collect until `holds`, for at most WAIT_S."""
    end_s = time.monotonic() + WAIT_S
    while True:
        now_s = time.time()
        batch = collector.collect(now_s)
        if holds(batch):
            check_batch(batch, "prometheus", now_s)
            return batch
        assert time.monotonic() < end_s, batch
        collector._probed_s = collector._counted_s = float("-inf")  # the site has just started: look again
        time.sleep(0.1)


def table(batch: Batch, what: str) -> dict[str, np.ndarray]:
    """One array of the telemetry by entity."""
    assert batch.telemetry is not None
    values = getattr(batch.telemetry, what)
    return {entity: values[..., k] for k, entity in enumerate(batch.telemetry.entity_ids)}


def samples_of(batch: Batch, entity: str) -> int:
    """Samples of the longest window; 0 for an unknown entity."""
    return int(table(batch, "samples")[entity][-1]) if batch.telemetry and entity in table(batch, "samples") else 0


def errors(batch: Batch) -> set[tuple[str, int, int]]:
    """(GPU, XID, row remapping) of the GPUs that show one of them, whatever the rows of the batch."""
    shown, found = batch.errors, dict[str, tuple[int, int]]()
    assert shown is not None
    for entity, xid, remap in zip(shown.entity_ids, shown.xid.tolist(), shown.remap.tolist(), strict=True):
        before = found.get(entity, (-1, -1))
        found[entity] = (max(before[0], xid), max(before[1], remap))
    return {(entity, xid, remap) for entity, (xid, remap) in found.items() if xid > 0 or remap > 0}


def reasons(batch: Batch, entity: str) -> str:
    """Reasons of the gaps that name this object."""
    return "; ".join(gap.reason for gap in batch.gaps if gap.object_id == entity)


def test_prometheus_and_direct_scrape_agree(require_tool: Callable[[str], str], tmp_path: Path) -> None:
    """Names old and new, MIG, blanks, fallbacks, sharing, pod churn: both sources tell the same."""
    binary = require_tool("prometheus")
    phase = [0]

    def answer(path: str) -> tuple[int, bytes]:
        texts = NODES.get(path.strip("/"))
        return (200, texts[min(phase[0], len(texts) - 1)].encode()) if texts else (404, b"no such node")

    with serving(answer) as exporters, prometheus(binary, exporters, free_port(), tmp_path) as url:
        nodes = [node for node in NODES if zone_of(node) == "plain"]
        direct = ExporterCollector(
            [Target(f"{exporters}/{node}", node) for node in (*nodes, "node-none")],
            interval_s=0.0,
            slot_s=0.001,
        )
        plain = PrometheusCollector(url, matchers={"zone": "plain"}, refresh=0.0, workers=2)
        sharing = PrometheusCollector(url, matchers={"zone": "shared"}, refresh=0.0, workers=2)
        until(plain, lambda batch: all(samples_of(batch, entity) >= 2 for entity in ENTITIES))
        first = direct.collect(time.time())
        phase[0] = 1
        batch = until(plain, lambda b: table(b, "maximum")["GPU-a0"][0, 0] > 0.7)
        now_s = time.time()
        second = direct.collect(now_s)
        owners = [(a.entity_id, a.pod, a.estimated) for a in plain.attributions(now_s)]
        shared = until(sharing, lambda b: samples_of(b, "GPU-shared") >= 2)
        split = {(a.pod, a.share_ratio, a.estimated) for a in sharing.attributions(now_s)}
    check_batch(second, "exporter", now_s)
    assert table(first, "mean")["GPU-a0"][0, 0] == pytest.approx(0.2)
    check_agreement(batch, second)
    check_values(batch)
    assert errors(batch) == errors(second) == {("GPU-new", 79, 2)}
    for found in (batch, second):
        assert "DCGM_FI_PROF_DRAM_ACTIVE" in reasons(found, "GPU-blank")
        assert "blank" in reasons(found, "GPU-blank")
        assert reasons(found, "GPU-nan")
    assert any("up == 0" in gap.reason for gap in batch.gaps)
    assert "HTTP 404" in reasons(second, "node-none")
    assert ("GPU-a0", "second", False) in owners or (
        "GPU-a0",
        "second",
        True,
    ) in owners  # `first` is not yet gone
    assert ("GPU-mig/1", "infer-0", False) in owners
    assert not any(pod.startswith("exporter-") for _, pod, _ in owners)

    # three series of one GPU: the device's own stands, the copies are for the split alone
    assert set(table(shared, "mean")) == {"GPU-shared"}
    assert table(shared, "mean")["GPU-shared"][SIGNALS.index("fb_used_mib"), 0] == pytest.approx(60000.0)
    assert table(shared, "mean")["GPU-shared"][0, 0] == pytest.approx(0.62)
    assert split == {("p0", 0.5, True), ("p1", 0.5, True)}


ENTITIES = {
    "GPU-a0",
    "GPU-a1",
    "GPU-new",
    "GPU-mig/1",
    "GPU-mig/2",
    "GPU-blank",
    "GPU-nan",
    "GPU-engine",
    "GPU-util",
}


def check_agreement(batch: Batch, direct: Batch) -> None:
    """The same entities, values, quality and unknowns from both sources."""
    assert set(table(batch, "mean")) == set(table(direct, "mean")) == ENTITIES | {"GPU-mig"}
    for entity in sorted(ENTITIES | {"GPU-mig"}):
        if entity != "GPU-a0":  # its value changed at another instant for each source
            ours, theirs = table(batch, "mean")[entity], table(direct, "mean")[entity]
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, err_msg=entity)
            ours, theirs = table(batch, "maximum")[entity], table(direct, "maximum")[entity]
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, err_msg=entity)
        assert table(batch, "quality")[entity] == table(direct, "quality")[entity], entity
        assert table(batch, "age_s")[entity] < 10.0, entity


def check_values(batch: Batch) -> None:
    """What the agreed values are, where it is easy to be wrong in the same way twice."""
    mig = table(batch, "mean")["GPU-mig"][:, 0]
    assert mig[SIGNALS.index("sm_active_ratio")] == pytest.approx((3 * 0.9 + 4 * 0.1) / 7)
    assert mig[SIGNALS.index("power_w")] == pytest.approx(480.0)
    assert mig[SIGNALS.index("pcie_bytes_s")] == pytest.approx(3e9)
    assert np.isnan(table(batch, "mean")["GPU-mig/1"][SIGNALS.index("power_w")]).all()
    assert table(batch, "quality")["GPU-engine"] == Quality.GR_ENGINE
    assert table(batch, "quality")["GPU-util"] == Quality.GPU_UTIL
    # the pod changed: one GPU, two series; the mean is that of all samples, none counted twice
    changed, total = table(batch, "mean")["GPU-a0"][0, -1], samples_of(batch, "GPU-a0")
    assert 0.2 < changed < 0.8
    assert (changed - 0.2) / 0.6 * total == pytest.approx(round((changed - 0.2) / 0.6 * total), abs=1e-3)
    assert abs(total - samples_of(batch, "GPU-a1")) <= 1


# --- a Prometheus that misbehaves --------------------------------------------------------------


def vector(*rows: tuple[dict[str, str], str], **more: object) -> bytes:
    """The body of an instant query."""
    result = [{"metric": labels, "value": [1.0, value]} for labels, value in rows]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}, **more}).encode()


def site(query: Callable[[str], tuple[int, bytes]]) -> Callable[[str], tuple[int, bytes]]:
    """A server that knows activity, power and memory of one GPU and answers queries by `query`."""

    def answer(path: str) -> tuple[int, bytes]:
        parts = urlsplit(path)
        if parts.path.endswith("/label/__name__/values"):
            names = ["DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_FB_USED"]
            return 200, json.dumps({"data": names}).encode()
        if "/label/" in parts.path:
            return 200, b'{"data": []}'
        return query(parse_qs(parts.query)["query"][0])

    return answer


def good(text: str, **more: object) -> bytes:
    """Half busy by 20 samples."""
    counted = "count_over_time" in text and "sum_over_time" not in text
    return vector(({"UUID": "GPU-x"}, "20" if counted else "0.5"), **more)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((422, b'{"status":"error","errorType":"execution","error":"query timed out"}'), "query timed out"),
        ((200, b'{"status":"error","error":"too many samples"}'), "too many samples"),
        ((200, b"<html>login</html>"), "not a Prometheus response"),
        (
            (200, b'{"status":"success","data":{"result":[{"metric":{},"value":[1]}]}}'),
            "series cannot be read, and do not count",
        ),
        ((503, b""), "HTTP 503"),
    ],
)
def test_a_failed_query_costs_its_signal_only(answer: tuple[int, bytes], reason: str) -> None:
    """An error for one metric is a gap with its reason; the other signals are there."""

    def query(text: str) -> tuple[int, bytes]:
        return answer if "POWER" in text else (200, good(text))

    with serving(site(query)) as url:
        batch = PrometheusCollector(url).collect(1000.0)
    check_batch(batch, "prometheus", 1000.0)
    assert table(batch, "mean")["GPU-x"][0, 0] == 0.5
    assert np.isnan(table(batch, "mean")["GPU-x"][SIGNALS.index("power_w")]).all()
    assert any(gap.signal == "power_w" and reason in gap.reason for gap in batch.gaps)


def test_one_blank_in_a_window_spoils_its_mean() -> None:
    """A blank among good samples makes a mean that looks like a value: the maximum gives it away."""

    def query(text: str) -> tuple[int, bytes]:
        if "FB_USED" not in text:
            return 200, good(text)
        return 200, vector(({"UUID": "GPU-x"}, "2147483634" if "max_over_time" in text else "35791394.5"))

    with serving(site(query)) as url:
        batch = PrometheusCollector(url).collect(1000.0)
    assert np.isnan(table(batch, "mean")["GPU-x"][SIGNALS.index("fb_used_mib")]).all()
    assert "blank or out of range" in reasons(batch, "GPU-x")


def test_a_partial_answer_is_said_to_be_one() -> None:
    """Warnings (a store of the federation did not answer) become gaps; the values are used."""
    warned = ["store 10.0.0.7 unavailable"]
    with serving(site(lambda text: (200, good(text, warnings=warned)))) as url:
        batch = PrometheusCollector(url).collect(1000.0)
    assert table(batch, "mean")["GPU-x"][0, 0] == 0.5
    assert any("store 10.0.0.7 unavailable" in gap.reason for gap in batch.gaps)


def test_a_slow_prometheus_is_left_in_time() -> None:
    """A query that does not end is a gap after the time-out, not a hanging controller."""
    release = threading.Event()

    def query(text: str) -> tuple[int, bytes]:
        if "POWER" in text:
            release.wait(60)
        return 200, good(text)

    with serving(site(query)) as url:
        batch = PrometheusCollector(url, timeout_s=0.3, workers=8).collect(1000.0)
        release.set()
    assert any(gap.signal == "power_w" and "no whole answer within 0.3 s" in gap.reason for gap in batch.gaps)


def test_environment_does_not_redirect_the_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxies and CA bundles of the environment are not ours."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nonexistent")
    with serving(site(lambda text: (200, good(text)))) as url:
        batch = PrometheusCollector(url).collect(1000.0)
    assert table(batch, "mean")["GPU-x"][0, 0] == 0.5


def test_windows_are_asked_for_when_they_are_due() -> None:
    """A long window is not asked for at every tick; its answer is kept for a tenth of its width."""
    asked: list[str] = []

    def query(text: str) -> tuple[int, bytes]:
        asked.append(text)
        return 200, good(text)

    with serving(site(query)) as url:
        collector = PrometheusCollector(url)
        for now_s in (1000.0, 1003.0, 1007.0):
            asked.clear()
            collector.collect(now_s)
            widths = {width for width in ("[60s]", "[300s]", "[1800s]") if any(width in text for text in asked)}
            assert widths == {1000.0: {"[60s]", "[300s]", "[1800s]"}, 1003.0: set(), 1007.0: {"[60s]"}}[now_s]


def test_operator_matchers_are_in_every_query() -> None:
    """A Prometheus of several clusters is asked for one of them, with its name escaped."""
    asked: list[str] = []

    def query(text: str) -> tuple[int, bytes]:
        asked.append(text)
        return 200, good(text)

    with serving(site(query)) as url:
        PrometheusCollector(url, matchers={"cluster": 'a"b'}).collect(1000.0)
    assert asked
    assert all('cluster="a\\"b"' in text for text in asked)


def test_a_target_is_read_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A redirect is not followed, an endless text is cut off, a trickle ends with the time-out."""
    release = threading.Event()

    def answer(path: str) -> tuple[int, bytes]:
        if path == "/slow":
            release.wait(60)
        return (302, b"") if path == "/moved" else (200, b"# " + b"x" * 3_000_000)

    monkeypatch.setattr("collectors.exporter.TEXT_LIMIT_BYTES", 1_048_576)
    with serving(answer) as url:
        targets = [Target(f"{url}/{name}", name) for name in ("moved", "long", "slow")]
        batch = ExporterCollector(targets, timeout_s=0.3).collect(0.0)
        release.set()
    assert "HTTP 302" in reasons(batch, "moved")
    assert "longer than 1 MiB" in reasons(batch, "long")
    assert "no whole answer within 0.3 s" in reasons(batch, "slow")
