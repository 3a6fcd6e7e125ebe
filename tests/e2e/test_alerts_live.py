"""A real Prometheus scrapes a simulated run; a fault fires an alert, and a real Alertmanager delivers it.

The run is simulated first, and its scrapes are kept; the server then plays them at the speed for which the rules are
generated.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from autopilot.alerts.rules import RuleSettings, prometheus_config, rule_groups, yaml_text
from autopilot.alerts.table import ALERTS
from autopilot.app.options import SimulateOptions
from autopilot.app.runs.metrics_history import recorded_run
from autopilot.metrics.exposition import Exposition
from autopilot.settings import shipped_policy
from tests.e2e.test_prometheus_collector import serving
from tests.kits.prometheus_kit import alertmanager, prometheus, query, reload, until, webhook

SPEED = 200.0
FRAME_S = 30.0
ALERT = "GPUAutopilotClusterFragmented"

JOBS = """job_id,submit_s,duration_s,gpus,tenant
left,0,7200,5,vision
right,1,3600,5,language
wide,900,1200,6,vision
"""
"""From 900 s on, six GPUs are free, three on each node, and `wide` wants six on one. At 3,600 s a node is free."""


def frames(tmp_path: Path) -> list[bytes]:
    """The scrapes of the run, one for each `FRAME_S`."""
    jobs = tmp_path / "jobs.csv"
    jobs.write_text(JOBS)
    found: list[bytes] = []
    options = SimulateOptions(jobs=jobs, cluster="2x8")
    run = recorded_run(options, shipped_policy("autopilot"), horizon_s=4800.0)
    run.at_each(FRAME_S, lambda now_s, exposition: found.append(text_of(exposition, now_s)))
    return found


def text_of(exposition: Exposition, now_s: float) -> bytes:
    """One scrape."""
    return exposition.render(now_s, ages=(0.0, {"simulated-cluster": 0.0}))


class Player:
    """Stands still before the fault, and plays on from it once it is injected."""

    def __init__(self, found: list[bytes], fault_s: float) -> None:
        self._frames, self._fault = found, int(fault_s / FRAME_S) - 2
        self._since_s: float | None = None

    def inject(self) -> None:
        """The fault happens now."""
        self._since_s = time.monotonic()

    def __call__(self, _path: str) -> tuple[int, bytes]:
        """The scrape of this moment."""
        passed_s = 0.0 if self._since_s is None else (time.monotonic() - self._since_s) * SPEED
        return 200, self._frames[min(self._fault + int(passed_s / FRAME_S), len(self._frames) - 1)]


def test_a_fault_fires_an_alert_that_is_delivered_and_resolves(
    tmp_path: Path, require_tool: Callable[[str], str]
) -> None:
    """Fragmentation is scraped, the alert fires with its numbers, the receiver has it, and its end as well."""
    binaries = {name: require_tool(name) for name in ("prometheus", "prometheus-alertmanager", "amtool")}
    settings = RuleSettings(speed=SPEED, runbook_base="https://w/r")
    player = Player(frames(tmp_path), fault_s=900.0)
    (tmp_path / "rules.yaml").write_text("groups: []\n")
    with (
        serving(player) as exporter,
        webhook() as (received, address),
        alertmanager(binaries["prometheus-alertmanager"], tmp_path, address) as delivers,
    ):
        checked = subprocess.run([binaries["amtool"], "check-config", tmp_path / "alertmanager.yaml"])
        assert checked.returncode == 0
        config = prometheus_config(settings, [urlsplit(exporter).netloc], "rules.yaml", [delivers], None)
        with prometheus(binaries["prometheus"], tmp_path, config) as url:
            # Rules are evaluated seconds before the first scrape: at this speed, "no data" fires until then.
            until(lambda: query(url, "gpu_autopilot_tick_age_seconds"), "the first scrape")
            (tmp_path / "rules.yaml").write_text(yaml_text(rule_groups(settings)))
            reload(url)
            until(lambda: query(url, "pool:gpu_autopilot_pending_stranded:ratio"), "the first recorded value")
            until(lambda: received.alerts("GPUAutopilotWatchdog", "firing"), "the watchdog")
            assert not query(url, f'ALERTS{{alertname="{ALERT}"}}'), "before the fault"
            player.inject()
            alert = until(lambda: received.alerts(ALERT, "firing"), "the alert")[0]
            assert alert["labels"]["severity"] == "warning"
            assert alert["labels"]["pool"]
            assert "% of the GPUs are free, wanted by pending work" in alert["annotations"]["description"]
            assert alert["annotations"]["runbook_url"].endswith(f"/{ALERT}.md")
            until(lambda: received.alerts(ALERT, "resolved"), "its end", within_s=30.0)
            missed = query(url, "min_over_time(up[1h]) == 0")  # a busy machine did not answer a scrape within 150 ms
    silent = {each.name for each in ALERTS if each.on_missing} if missed else set()
    kinds = {each["labels"]["alertname"] for post in received.posts for each in post["alerts"]}
    assert kinds - silent <= {ALERT, "GPUAutopilotWatchdog", "GPUAutopilotStrandedGPUs"}, "nothing else fires"
