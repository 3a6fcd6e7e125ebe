"""Rule documents from the tables: for Prometheus, the Prometheus operator and ConfigMaps, at any speed.

The simulated cluster may run faster than the clock. At speed S every duration in expressions, `for`,
`keep_firing_for`, and every interval, is divided by S. Thresholds are in the time of the controller and stay.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from autopilot.alerts.recording import RECORDINGS
from autopilot.alerts.table import ALERTS, Alert
from autopilot.alerts.thresholds import THRESHOLDS
from autopilot.core.model.errors import InputError, nearest

UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
DURATION = r"(\d+)(ms|s|m|h|d)"
RANGE = re.compile(rf"\[{DURATION}(?::{DURATION})?\]|\boffset\s+{DURATION}")
THRESHOLD = re.compile(r"<([a-z_]+)>")

INTERVAL_S = 30.0
"""Interval of scrapes and of the evaluation of rules, at speed 1."""

FASTEST = 300.0
"""The highest speed: the shortest window (5 min) is then 1 s."""


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """What a site may set. `labels` select the PrometheusRule (`ruleSelector` of the Prometheus). An alert has a link
    to its runbook and its dashboard where the base is set.
    """

    speed: float = 1.0
    runbook_base: str = ""
    dashboard_base: str = ""
    namespace: str = "gpu-autopilot"
    labels: Mapping[str, str] = field(default_factory=lambda: {"prometheus": "k8s", "role": "alert-rules"})
    thresholds: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise `InputError` for a speed or threshold that cannot be used."""
        if not 0.0 < self.speed <= FASTEST:
            raise InputError(f"speed: {self.speed:g} is not allowed; write a number above 0, at most {FASTEST:g}")
        for name in self.thresholds.keys() - THRESHOLDS.keys():
            raise InputError(f"threshold {name!r} does not exist; {nearest(name, tuple(THRESHOLDS))}")


def rule_groups(settings: RuleSettings) -> dict[str, Any]:
    """The rule file of Prometheus: recording rules first, then alerts."""
    interval = duration_text(INTERVAL_S, settings.speed)
    recorded = [
        {
            "name": f"gpu-autopilot-record-{group}",
            "interval": interval,
            "rules": [{"record": rule.record, "expr": at_speed(rule.expr, settings.speed)} for rule in rules],
        }
        for group, rules in RECORDINGS.items()
    ]
    alerting = [
        {
            "name": f"gpu-autopilot-{group}",
            "interval": interval,
            "rules": [_alert(alert, settings) for alert in ALERTS if alert.group == group],
        }
        for group in dict.fromkeys(alert.group for alert in ALERTS)
    ]
    return {"groups": recorded + alerting}


def _alert(alert: Alert, settings: RuleSettings) -> dict[str, Any]:
    values = {**THRESHOLDS, **settings.thresholds}
    expr = THRESHOLD.sub(lambda match: f"{values[match[1]]:g}", alert.expr)
    rule: dict[str, Any] = {"alert": alert.name, "expr": at_speed(expr, settings.speed)}
    if alert.for_s:
        rule["for"] = duration_text(alert.for_s, settings.speed)
    if alert.keep_firing_s:
        rule["keep_firing_for"] = duration_text(alert.keep_firing_s, settings.speed)
    rule["labels"] = {"severity": alert.severity}
    rule["annotations"] = {"summary": alert.summary, "description": alert.description}
    if settings.runbook_base:
        rule["annotations"]["runbook_url"] = f"{settings.runbook_base.rstrip('/')}/{alert.name}.md"
    if settings.dashboard_base:
        rule["annotations"]["dashboard_url"] = f"{settings.dashboard_base.rstrip('/')}/{alert.dashboard}"
    return rule


def at_speed(expr: str, speed: float) -> str:
    """The expression with every range, subquery step and offset divided by `speed`."""

    def scaled(match: re.Match[str]) -> str:
        texts = [_text(int(number) * UNIT_MS[unit] / speed) for number, unit in re.findall(DURATION, match[0])]
        if match[0].startswith("offset"):
            return f"offset {texts[0]}"
        return f"[{':'.join(texts)}]"

    return expr if speed == 1.0 else RANGE.sub(scaled, expr)


def duration_text(duration_s: float, speed: float = 1.0) -> str:
    """A duration as Prometheus writes it, divided by `speed`."""
    return _text(1000.0 * duration_s / speed)


def _text(duration_ms: float) -> str:
    whole = max(round(duration_ms), 1)
    unit = next(name for name in ("d", "h", "m", "s", "ms") if whole % UNIT_MS[name] == 0)
    return f"{whole // UNIT_MS[unit]}{unit}"


def prometheus_config(
    settings: RuleSettings, targets: list[str], rule_file: str, alertmanagers: list[str], token_file: str | None
) -> dict[str, Any]:
    """The configuration of a Prometheus that scrapes the controllers and sends their alerts."""
    interval = duration_text(INTERVAL_S, settings.speed)
    scrape: dict[str, Any] = {"job_name": "gpu-autopilot", "static_configs": [{"targets": targets}]}
    if token_file is not None:
        scrape["authorization"] = {"type": "Bearer", "credentials_file": token_file}
    return {
        "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
        "rule_files": [rule_file],
        "scrape_configs": [scrape],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": alertmanagers}]}]},
    }


def prometheus_rule(settings: RuleSettings) -> dict[str, Any]:
    """The same rules as an object of the Prometheus operator."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "gpu-autopilot", "namespace": settings.namespace, "labels": dict(settings.labels)},
        "spec": rule_groups(settings),
    }


def config_map(name: str, settings: RuleSettings, files: Mapping[str, str], **labels: str) -> dict[str, Any]:
    """Files as a ConfigMap."""
    metadata: dict[str, Any] = {"name": name, "namespace": settings.namespace}
    if labels:
        metadata["labels"] = labels
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(files)}


class _Dumper(yaml.SafeDumper):
    """Long texts as blocks, so that a diff shows what changed."""


def _text_node(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text_node)


def yaml_text(document: Mapping[str, Any]) -> str:
    """A document as YAML, in its own order."""
    text: str = yaml.dump(dict(document), Dumper=_Dumper, sort_keys=False, width=118, allow_unicode=True)
    return text
