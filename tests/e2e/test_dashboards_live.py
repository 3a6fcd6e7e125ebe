"""Every query of every dashboard and runbook on a real Prometheus that has the history of a simulated run.

The history ends now, so that instant queries and recording rules find it. The exporters of the GPUs are scraped live.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from math import inf, isnan
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit

import numpy as np

from autopilot.alerts.rules import RuleSettings, duration_text, rule_groups, yaml_text
from autopilot.app.options import SimulateOptions
from autopilot.app.runs.metrics_history import recorded_run
from autopilot.core.model.modes import Mode
from autopilot.core.model.policy import Policy
from autopilot.metrics.exposition import Counted, Exposition, history_text
from autopilot.metrics.samples import Samples
from autopilot.oncall.runbook import SUBJECTS, bound, load_runbooks
from scripts.dashboard_more_pages import PAGES
from scripts.dashboard_panels import queries_of
from scripts.generate_dashboards import documents
from simulator.signals.behaviours import draw_jobs
from simulator.signals.dcgm_text import NodeExporter, PodLabels
from simulator.signals.telemetry import TelemetryGenerator
from simulator.signals.telemetry_entities import entities_of, idle_state
from tests.e2e.test_prometheus_collector import serving
from tests.kits.dashboard_kit import filled_in
from tests.kits.policies import simulated
from tests.kits.prometheus_kit import prometheus, query, until
from tests.kits.telemetry_world import inventory

HOURS = 1.5
CLUSTER = "day"

PLANTED = {
    ("node_recut_gpus", ("mixed-a100-0", "changing")): 1.0,
    ("effects_in_flight", ("admit", "accepted")): 1.0,
    ("tenant_daily_spend_ratio", ("research",)): 1.5,
    ("promise_cases", ("preempt",)): 20.0,
    ("promised_use_gpu_seconds", ("preempt",)): 7_200.0,
    ("realised_use_gpu_seconds", ("preempt",)): 5_400.0,
    ("action_capped", ("preempt",)): 0.0,
    ("service_ttft_p99_seconds", ("assistant",)): 0.7,
    ("service_ttft_objective_seconds", ("assistant",)): 0.5,
    ("service_itl_p99_seconds", ("assistant",)): 0.03,
    ("service_itl_objective_seconds", ("assistant",)): 0.05,
    ("queue_limit_gpus", ("vision",)): 64.0,
    ("fleet_useful_utilization_ratio", ()): 0.4,
    ("pool_shared_gpus", ("h100",)): 4.0,
    ("pool_shared_rate_ratio", ("h100", "measured")): 0.95,
    ("pool_disturbed_workloads", ("h100", "suspected")): 1.0,
    ("pool_slow_members", ("h100", "member")): 1.0,
    ("pool_slow_members", ("h100", "suspect")): 1.0,
}
"""What this run does not show at its end, so that its panels are tried with data all the same."""

EMPTY = {
    "GPU job / Temperature": "the simulated exporter does not print it",
    "GPU job / SM clock": "the simulated exporter does not print it",
}
"""Panels without data here, with the reason."""

PLAUSIBLE = {
    "percentunit": (-0.01, 2.0),
    "suffix:GPU-h": (-100.0, 1_000.0),
    "s": (0.0, 86_400.0),
    "watt": (20.0, 1_200.0),
    "decmbytes": (0.0, 200_000.0),
    "Bps": (0.0, 1e12),
    "reqps": (0.0, 1e5),
}
"""Bounds of values by unit: another factor, or seconds as hours, are outside."""

LABELS: dict[str, set[str]] = {
    "GPU fleet / Gap by pool": {"pool"},
    "GPU fleet / Recommended actions": {"id"},
    "GPU tenants / Tenants": {"tenant"},
    "Inference objectives / p99 latency and objective": {"service"},
    "Inference objectives / Replicas": {"service", "state"},
    "Fragmentation and MIG / Stranded GPUs by cause": {"cause"},
    "Fragmentation and MIG / Free GPUs by node": {"node"},
    "Fragmentation and MIG / GPU and MIG map": {"hostname", "gpu"},
    "GPU fleet / Gap a day": {"currency"},
    "GPU queue / Queues": {"queue"},
    "GPU queue / Wait by queue": {"queue"},
    "GPU queue / Waiting GPUs by reason": {"reason"},
    "Autopilot / Proposals by answer": {"action", "answer"},
    "Autopilot / Duration of ticks": {"stage"},
    "GPU job / SM activity": {"hostname", "gpu"},
}
"""Labels that a legend or a join needs."""


def cautious() -> Policy:
    """Starts by itself; what takes from running work is recommended, or waiting for approval."""
    shipped = simulated()
    modes = replace(shipped.modes, resize=Mode.RECOMMEND, defragment=Mode.APPROVE, reclaim_borrowed=Mode.APPROVE)
    return replace(shipped, modes=modes)


def history(ends_at_s: float) -> bytes:
    """The metrics of the run each minute; the last scrape is at `ends_at_s`."""
    horizon_s = HOURS * 3600
    kept: list[tuple[float | None, Samples, Counted]] = []

    def scrape(now_s: float, exposition: Exposition) -> None:
        samples, counted = exposition.samples(now_s)
        for (name, labels), value in PLANTED.items():
            samples.put(name, value, *labels)
        kept.append((ends_at_s - horizon_s + now_s, samples, counted))

    recorded_run(SimulateOptions(scenario="mixed"), cautious(), horizon_s).at_each(60.0, scrape)
    text = history_text(kept).decode()
    text = re.sub(r"(?m)^(gpu_autopilot_\w+)\{", rf'\1{{cluster="{CLUSTER}",', text)
    return re.sub(r"(?m)^(gpu_autopilot_\w+) ", rf'\1{{cluster="{CLUSTER}"}} ', text).encode()


def exporters() -> Callable[[str], tuple[int, bytes]]:
    """One node of four GPUs, one of them cut, as its exporter would answer."""
    world = inventory(1, 4, {3: [("3g.40gb", 0), ("2g.20gb", 4)]})
    entities, generator = entities_of(world), TelemetryGenerator(seed=3)
    state = idle_state(len(entities.id))
    names = [f"train-{n}" for n in range(2)]
    archetypes, levels = draw_jobs(3, names)
    state.job_code[:2], state.archetype[:2], state.level[:2], state.since_s[:2] = range(2), archetypes, levels, 0.0
    exporter = NodeExporter(generator, world, entities, 0)
    pods = [(PodLabels("vision", names[row]),) if row < 2 else () for row in exporter.rows.tolist()]
    text = exporter.text(generator.metrics(np.array([100]), entities, state)[:, 0], pods)
    return lambda _path: (200, text)


def config(exporter: str) -> dict[str, object]:
    """Scrapes the exporter alone: the metrics of the controller are history. One alert always fires."""
    always = {"alert": "GPUAutopilotTest", "expr": f'vector(1) + 0 * max(gpu_autopilot_leader{{cluster="{CLUSTER}"}})'}
    always |= {"labels": {"severity": "warning", "cluster": CLUSTER}}  # type: ignore[dict-item]
    groups = rule_groups(RuleSettings())["groups"]
    for group in groups:
        group["interval"] = duration_text(1.0)
    return {
        "rules": {"groups": [*groups, {"name": "test", "interval": "1s", "rules": [always]}]},
        "prometheus": {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [
                {"job_name": "gpu", "static_configs": [{"targets": [urlsplit(exporter).netloc]}]},
            ],
        },
    }


def test_every_query_returns_data_with_its_labels(tmp_path: Path, require_tool: Callable[[str], str]) -> None:
    """Panels, variables and annotations have data; queries of runbooks are executed, with labels that need escapes."""
    binaries = {name: require_tool(name) for name in ("prometheus", "promtool")}
    text = history(time.time())
    (tmp_path / "history.om").write_bytes(text)
    command = [binaries["promtool"], "tsdb", "create-blocks-from", "openmetrics", "--max-block-duration=24h"]
    loaded = subprocess.run([*command, "history.om", "data"], cwd=tmp_path, capture_output=True, text=True)
    assert loaded.returncode == 0, loaded.stderr
    with serving(exporters()) as exporter:
        settings = config(exporter)
        (tmp_path / "rules.yaml").write_text(yaml_text(settings["rules"]))  # type: ignore[arg-type]
        with prometheus(binaries["prometheus"], tmp_path, settings["prometheus"]) as url:  # type: ignore[arg-type]
            until(lambda: query(url, 'ALERTS{alertname="GPUAutopilotTest", alertstate="firing"}'), "the first rules")
            until(lambda: query(url, "service:gpu_autopilot_late_requests:ratio_1h"), "recorded values")
            until(lambda: query(url, "DCGM_FI_PROF_SM_ACTIVE"), "the first scrape")
            assert not problems(url)
            assert not implausible(url)
            assert not invented(url)
            assert not refused(url)


def problems(url: str) -> list[str]:
    """Queries of dashboards that return nothing, or lack a label."""
    found = []
    for name, text in documents().items():
        if not name.startswith("dashboards/") or not name.endswith(".json"):
            continue
        for where, expr in queries_of(text):
            result = query(url, filled_in(expr))
            if where in EMPTY:
                found += [f"{where} has data: remove its row"] if result else []
            elif not result:
                found.append(f"{where}: no data: {filled_in(expr)}")
            elif not LABELS.get(where, set()) <= result[0]["metric"].keys():
                found.append(f"{where}: labels {sorted(result[0]['metric'])}")
    return found


def panels() -> list[tuple[str, str, str]]:
    """(where, unit, expression) of every query of a panel; of a table by the unit of its column."""
    found = []
    for page in PAGES:
        for panel in page.panels:
            units = dict(panel.units) if panel.kind == "table" else {}
            found += [
                (f"{page.title} / {panel.title}", units.get(each.legend, panel.unit), each.expr)
                for each in panel.targets
            ]
    return found


def implausible(url: str) -> list[str]:
    """Values outside of what their unit allows."""
    found = []
    for where, unit, expr in panels():
        low, high = PLAUSIBLE.get(unit, (-inf, inf))
        values = [float(each["value"][1]) for each in query(url, filled_in(expr))]
        found += [f"{where}: {value} {unit}" for value in values if not (low <= value <= high or isnan(value))]
    return found


def invented(url: str) -> list[str]:
    """Panels that show a number where there is nothing to show, so that their text for no data is not read."""
    return [where for where, _, expr in panels() if query(url, filled_in(expr, "nowhere"))]


def refused(url: str) -> list[str]:
    """Queries of runbooks that Prometheus refuses, bound to labels that need an escape."""
    labels = dict.fromkeys(SUBJECTS, 'a"}b\\')
    found = []
    for name, book in load_runbooks().items():
        for asked in (*(each.query for each in book.front.diagnosis), book.front.verification.query):
            expr = bound(asked, labels)
            try:
                query(url, expr or "vector(1)")
            except HTTPError as error:
                found.append(f"{name}: {expr}: {error}")
    return found
