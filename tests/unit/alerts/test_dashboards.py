"""Dashboards: generated, complete, and valid by the rules of Grafana's dashboard-linter."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from autopilot.alerts.recording import RECORDINGS
from autopilot.alerts.rules import yaml_text
from autopilot.alerts.table import ALERTS
from autopilot.metrics.table import METRICS
from scripts.dashboard_more_pages import PAGES
from scripts.dashboard_panels import GPU_HOURS, queries_of
from scripts.generate_dashboards import documents, main
from tests.kits.dashboard_kit import filled_in

ROOT = Path(__file__).parents[3]

DOCUMENTS = documents()
BOARDS: dict[str, dict[str, Any]] = {
    name: json.loads(text) for name, text in DOCUMENTS.items() if name.endswith(".json")
}
UNITS = {"none", "percentunit", "s", "reqps", "decmbytes", "watt", "celsius", "hertz", "Bps", GPU_HOURS}
MOST_BYTES = 262_144
"""`kubectl apply` keeps the whole object in an annotation of this size."""


def test_the_committed_files_are_generated() -> None:
    """dashboards/*.json and deploy/grafana are up to date; if not: python scripts/generate_dashboards.py."""
    assert main(["--check"]) == 0


def test_drift_is_found(tmp_path: Path) -> None:
    """A changed file is reported."""
    assert main(["--out", str(tmp_path)]) == 0
    path = tmp_path / "dashboards" / "gpu-autopilot-fleet.json"
    path.write_text(path.read_text().replace("Allocated", "Given out", 1))
    assert main(["--check", "--out", str(tmp_path)]) == 1


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_is_fixed_and_finds_its_data_source(name: str) -> None:
    """Schema 41, an address of its own that never changes, not editable, one variable for the data source."""
    board = BOARDS[name]
    assert board["schemaVersion"] == 41
    assert board["uid"] == Path(name).stem
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,40}", board["uid"])
    assert board["editable"] is False
    assert board.get("id") is None
    sources = [each for each in board["templating"]["list"] if each["type"] == "datasource"]
    assert [(each["name"], each["label"], each["query"]) for each in sources] == [
        ("datasource", "Data source", "prometheus")
    ]
    asked = [each for each in board["templating"]["list"] if each["type"] == "query"]
    assert all(each["refresh"] == 2 for each in asked), "values follow the time range"
    assert all(each["datasource"]["uid"] == "${datasource}" for each in asked)


@pytest.mark.parametrize("name", BOARDS)
def test_every_panel_is_complete(name: str) -> None:
    """Title, description, a unit of Grafana, the data source, a query, and what it shows without data."""
    for panel in BOARDS[name]["panels"]:
        defaults = panel["fieldConfig"]["defaults"]
        assert panel["title"], panel
        assert len(panel["description"]) > 5, panel["title"]
        assert defaults["unit"] in UNITS, panel["title"]
        assert defaults["noValue"], panel["title"]
        assert panel["targets"], panel["title"]
        for owner in (panel, *panel["targets"]):
            assert owner["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]


@pytest.mark.parametrize("name", BOARDS)
def test_panels_do_not_overlap(name: str) -> None:
    """Each has its place on the grid of 24 columns, and an id of its own."""
    taken: set[tuple[int, int]] = set()
    panels = BOARDS[name]["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert all(x < 24 for x, _ in cells), panel["title"]
        assert not taken & cells, panel["title"]
        taken |= cells


def test_counters_are_asked_by_increase_or_rate() -> None:
    """A bare counter on a panel only shows when the process started; `rate` takes the interval of the panel."""
    for where, expr in all_queries():
        for counter in re.findall(r"\w+\((gpu_autopilot_\w+_(?:total|bucket))\b", expr.replace(" ", "")):
            assert re.search(rf"(?:increase|rate)\({counter}", expr), where
        assert "rate(" not in expr or "$__rate_interval" in expr, where


def all_queries() -> list[tuple[str, str]]:
    """(where, expression) of all dashboards."""
    return [query for name in BOARDS for query in queries_of(DOCUMENTS[name])]


def test_queries_name_metrics_that_exist() -> None:
    """Own metrics of the table, recorded series, alerts, and the fields of DCGM."""
    known = {metric.full_name for metric in METRICS} | {"ALERTS"}
    known |= {name + end for name in known for end in ("_bucket", "_sum", "_count")}
    records = {rule.record for group in RECORDINGS.values() for rule in group}
    for where, expr in all_queries():
        recorded = set(re.findall(r"\b[a-z]+:gpu_autopilot_[a-z0-9_]+:[a-z0-9_]+", expr))
        assert recorded <= records, where
        bare = re.sub(r"\b[a-z]+:gpu_autopilot_[a-z0-9_]+:[a-z0-9_]+", "", expr)
        assert set(re.findall(r"\bgpu_autopilot_\w+", bare)) <= known, where


def test_every_query_parses(tmp_path: Path, require_tool: Callable[[str], str]) -> None:
    """Promtool accepts each one, its variables replaced."""
    exprs = [filled_in(expr) for _, expr in all_queries()]
    rules = [{"record": f"q:{number}", "expr": expr} for number, expr in enumerate(exprs)]
    (tmp_path / "rules.yaml").write_text(yaml_text({"groups": [{"name": "queries", "rules": rules}]}))
    done = subprocess.run(
        [require_tool("promtool"), "check", "rules", tmp_path / "rules.yaml"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_leads_to_a_dashboard() -> None:
    """The address in its annotation is that of a page."""
    assert {alert.dashboard for alert in ALERTS} <= {page.uid for page in PAGES}


def test_the_recommended_actions_link_to_explanation_and_approval() -> None:
    """Gain, cost, reason and confidence are columns; the id has both links."""
    panel = next(
        panel for panel in BOARDS["dashboards/gpu-autopilot-fleet.json"]["panels"] if "Recommended" in panel["title"]
    )
    links = next(each for each in panel["fieldConfig"]["overrides"] if each["matcher"]["options"] == "id")
    titles = [link["title"] for property_of in links["properties"] for link in property_of["value"]]
    assert titles == ["Explain", "Approve"]
    urls = [link["url"] for each in links["properties"] for link in each["value"]]
    assert all(url.endswith("/${__data.fields.id:percentencode}") for url in urls), "ids have slashes"
    asked = " ".join(target["expr"] for target in panel["targets"])
    assert all(name in asked for name in ("reason", "confidence", "gain_gpu_seconds", "cost_gpu_seconds"))


def test_kubectl_can_apply_every_file_of_the_folder() -> None:
    """Each file of deploy/grafana is an object of Kubernetes; the provider for files lies beside the dashboards."""
    there = {path.name: path.read_text("utf-8") for path in (ROOT / "deploy" / "grafana").iterdir()}
    assert {yaml.safe_load(text).get("kind") for text in there.values()} == {"ConfigMap"}
    assert there.keys() == {f"{page.uid}-configmap.yaml" for page in PAGES}


def test_config_maps_hold_the_dashboards_and_stay_small() -> None:
    """The label for the sidecar, the JSON unchanged, and below the limit of `kubectl apply`."""
    for page in PAGES:
        text = DOCUMENTS[f"deploy/grafana/{page.uid}-configmap.yaml"]
        found = yaml.safe_load(text)
        assert found["metadata"]["labels"] == {"grafana_dashboard": "1"}
        assert found["data"] == {f"{page.uid}.json": DOCUMENTS[f"dashboards/{page.uid}.json"]}
        assert len(text.encode()) < MOST_BYTES
