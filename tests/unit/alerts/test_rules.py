"""Every alert fires, stays quiet just under its threshold and on gaps, and resolves; the files are generated."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from autopilot.alerts import rules
from autopilot.alerts.recording import RECORDINGS
from autopilot.alerts.rules import RuleSettings, at_speed, duration_text, prometheus_config, rule_groups, yaml_text
from autopilot.alerts.table import ALERTS, Alert
from autopilot.alerts.thresholds import MEANING_OF_THRESHOLDS, THRESHOLDS
from autopilot.metrics.table import METRICS
from scripts.generate_rules import documents, main
from tests.kits.alert_cases import CASES, promtool_tests

ONCE = RuleSettings(runbook_base="https://w/r", dashboard_base="https://g/d")
FAST = replace(ONCE, speed=60.0)
METRIC = re.compile(r"\bgpu_autopilot_[a-z0-9_]+")


def rules_of(name: str, settings: RuleSettings) -> dict[str, Any]:
    """The recording rules and one alert: enough to evaluate it."""
    groups = rule_groups(settings)["groups"]
    kept = [
        {**group, "rules": [rule for rule in group["rules"] if rule.get("alert", name) == name]} for group in groups
    ]
    return {"groups": [group for group in kept if group["rules"]]}


def promtool(binary: str, folder: Path, name: str, settings: RuleSettings, found: dict[str, Any]) -> str:
    """What promtool says about the tests of one alert under these rules; "" where all pass."""
    (folder / "rules.yaml").write_text(yaml_text(found))
    tests = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": f"{60.0 * CASES[name].step_m / settings.speed:g}s",
        "tests": promtool_tests(name, settings),
    }
    (folder / "tests.yaml").write_text(yaml_text(tests))
    done = subprocess.run(
        [binary, "test", "rules", "tests.yaml"], cwd=folder, capture_output=True, text=True, timeout=60
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_every_alert_has_a_case() -> None:
    """One to one, by name."""
    assert CASES.keys() == {alert.name for alert in ALERTS}


@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_stays_quiet_and_resolves(name: str, tmp_path: Path, require_tool: Callable[[str], str]) -> None:
    """Under promtool, at the speed of the clock: with its labels and the numbers in its description."""
    assert not promtool(require_tool("promtool"), tmp_path, name, ONCE, rules_of(name, ONCE))


QUICK = [name for name, case in CASES.items() if case.fires_m + case.resolves_m < 150]


@pytest.mark.parametrize("name", [*QUICK[:3], *(pytest.param(name, marks=pytest.mark.soak) for name in QUICK[3:])])
def test_an_alert_behaves_the_same_at_another_speed(
    name: str, tmp_path: Path, require_tool: Callable[[str], str]
) -> None:
    """At 60 times the clock, the same series, 60 times as dense, have the same result."""
    assert not promtool(require_tool("promtool"), tmp_path, name, FAST, rules_of(name, FAST))


@pytest.mark.parametrize(
    ("old", "new"),
    [("> 0.1", "> 0.05"), ("> 0.1", "> 0.12"), (" and ", " or "), ("for: 5m", "for: 20m"), ("for: 5m", "for: 1m")],
)
def test_a_planted_defect_in_a_rule_is_found(
    old: str, new: str, tmp_path: Path, require_tool: Callable[[str], str]
) -> None:
    """Another threshold, a lost condition or a longer `for` fails the tests of the alert."""
    name = "GPUAutopilotClusterFragmented"
    found = rules_of(name, ONCE)
    planted = yaml.safe_load(yaml_text({"groups": [found["groups"][-1]]}).replace(old, new))
    broken = {"groups": [*found["groups"][:-1], *planted["groups"]]}
    assert promtool(require_tool("promtool"), tmp_path, name, ONCE, broken)


def test_the_committed_files_are_those_of_the_tables() -> None:
    """dashboards/rules.yaml and deploy/prometheus are up to date; if not: python scripts/generate_rules.py."""
    assert main(["--check"]) == 0


def test_drift_is_found(tmp_path: Path) -> None:
    """A changed and a missing file are both reported."""
    assert main(["--out", str(tmp_path)]) == 0
    assert main(["--check", "--out", str(tmp_path)]) == 0
    path = tmp_path / "dashboards" / "rules.yaml"
    path.write_text(path.read_text().replace("> 0.1", "> 0.2", 1))
    assert main(["--check", "--out", str(tmp_path)]) == 1
    path.unlink()
    assert main(["--check", "--out", str(tmp_path)]) == 1


def test_every_document_holds_the_same_rules() -> None:
    """The PrometheusRule and the ConfigMap carry what the rule file has."""
    texts = documents(ONCE)
    found = yaml.safe_load(texts["dashboards/rules.yaml"])
    assert yaml.safe_load(texts["deploy/prometheus/prometheusrule.yaml"])["spec"] == found
    config_map = yaml.safe_load(texts["deploy/prometheus/rules-configmap.yaml"])
    assert yaml.safe_load(config_map["data"]["rules.yaml"]) == found
    assert len(texts["deploy/prometheus/rules-configmap.yaml"]) < 262_144


def test_the_shipped_files_are_valid(tmp_path: Path, require_tool: Callable[[str], str]) -> None:
    """Promtool accepts the rules and the configuration of Prometheus."""
    binary = require_tool("promtool")
    for settings in (ONCE, FAST):
        texts = documents(settings)
        (tmp_path / "rules.yaml").write_text(texts["dashboards/rules.yaml"])
        config = prometheus_config(settings, ["localhost:1"], "rules.yaml", ["localhost:2"], None)
        (tmp_path / "prometheus.yaml").write_text(yaml_text(config))
        done = subprocess.run([binary, "check", "config", "prometheus.yaml"], cwd=tmp_path, capture_output=True)
        assert done.returncode == 0, done.stdout + done.stderr


# --- the tables -----------------------------------------------------------------------------------


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_follows_the_conventions(alert: Alert) -> None:
    """Name, severity, a fixed summary, a description with labels or numbers, and a dashboard."""
    assert re.fullmatch(r"GPUAutopilot[A-Z][A-Za-z]+", alert.name)
    assert "{{" not in alert.summary
    assert alert.summary.endswith(".")
    assert len(alert.dashboard) <= 40
    assert alert.for_s or alert.severity == "none"
    assert "rate(" not in alert.expr, "compare an increase: it is the same at every speed"
    assert "time()" not in alert.expr, "ages are in the time of the controller"
    named = set(re.findall(r"\$labels\.(\w+)", alert.description))
    assert named <= CASES[alert.name].labels.keys()


def test_rules_name_metrics_of_the_table_alone() -> None:
    """A renamed metric is found here, not by a silent alert."""
    records = {rule.record for group in RECORDINGS.values() for rule in group}
    known = {metric.full_name for metric in METRICS}
    for expr in [alert.expr for alert in ALERTS] + [rule.expr for group in RECORDINGS.values() for rule in group]:
        recorded = set(re.findall(r"\b[a-z]+:gpu_autopilot_[a-z0-9_]+:[a-z0-9_]+", expr))
        assert recorded <= records, expr
        bare = set(METRIC.findall(re.sub(r"\b[a-z]+:gpu_autopilot_[a-z0-9_]+:[a-z0-9_]+", "", expr)))
        assert bare <= known, expr


def test_every_expression_keeps_the_cluster() -> None:
    """Each `by (...)` names the label `cluster`, so that several clusters can share a Prometheus."""
    for expr in [alert.expr for alert in ALERTS] + [rule.expr for group in RECORDINGS.values() for rule in group]:
        assert all("cluster" in labels for labels in re.findall(r"\bby \(([^)]*)\)", expr)), expr


def test_every_threshold_is_used_and_explained() -> None:
    """The settings of a site, each with its meaning."""
    used = {name for alert in ALERTS for name in re.findall(r"<([a-z_]+)>", alert.expr)}
    assert used == THRESHOLDS.keys() == MEANING_OF_THRESHOLDS.keys()


# --- settings and speed ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expr", "scaled"),
    [
        ("avg_over_time(x[5m])", "avg_over_time(x[5s])"),
        ("max_over_time((x > 60)[1h:5m])", "max_over_time((x > 60)[1m:5s])"),
        ("x offset 30m", "x offset 30s"),
        ('x{le="5m"} > 3600', 'x{le="5m"} > 3600'),
        ("x[30s]", "x[500ms]"),
        ("increase(x[1d])", "increase(x[24m])"),
    ],
)
def test_durations_in_expressions_are_divided(expr: str, scaled: str) -> None:
    """Ranges, steps of subqueries and offsets; thresholds and label values stay."""
    assert at_speed(expr, 60.0) == scaled
    assert at_speed(expr, 1.0) == expr


def test_durations_are_written_as_prometheus_reads_them() -> None:
    """The largest unit that has no remainder."""
    assert [duration_text(each) for each in (86400, 5400, 90, 0.5)] == ["1d", "90m", "90s", "500ms"]
    assert duration_text(900, 60) == "15s"


def test_every_duration_of_the_rules_is_divided() -> None:
    """`for`, `keep_firing_for` and intervals; the thresholds are those of speed 1."""
    slow, fast = (rule_groups(settings)["groups"] for settings in (ONCE, FAST))
    for before, after in zip(slow, fast, strict=True):
        assert seconds(before["interval"]) == 60 * seconds(after["interval"])
        for one, other in zip(before["rules"], after["rules"], strict=True):
            for name in ("for", "keep_firing_for"):
                assert seconds(one.get(name, "0s")) == 60 * seconds(other.get(name, "0s"))
            assert re.findall(r"[<>=]+ [\d.]+", one["expr"]) == re.findall(r"[<>=]+ [\d.]+", other["expr"])
    config = prometheus_config(FAST, [], "", [], None)["global"]
    assert config["scrape_interval"] == config["evaluation_interval"] == "500ms"


def seconds(text: str) -> float:
    """A duration of Prometheus in seconds."""
    match = re.fullmatch(rules.DURATION, text)
    assert match is not None
    return int(match[1]) * rules.UNIT_MS[match[2]] / 1000


def test_a_site_sets_thresholds_and_addresses() -> None:
    """Overrides reach the expression and the annotations."""
    settings = RuleSettings(runbook_base="https://wiki/x/", thresholds={"starving_seconds": 60})
    rule = next(
        rule
        for group in rule_groups(settings)["groups"]
        for rule in group["rules"]
        if rule.get("alert") == "GPUAutopilotPendingGangStarving"
    )
    assert rule["expr"].endswith("> 60")
    assert rule["annotations"]["runbook_url"] == "https://wiki/x/GPUAutopilotPendingGangStarving.md"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--speed", "0"], "speed: 0 is not allowed"),
        (["--speed", "301"], "at most 300"),
        (["--set", "starving=1"], "threshold 'starving' does not exist"),
        (["--set", "starving_seconds=soon"], "write NAME=VALUE"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One message with the name and the fix; nothing is written."""
    assert main([*arguments, "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
