"""`autopilot check`: asks a cluster and its Prometheus, and prints one line for each finding."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autopilot.app.commands.json_out import write_json
from autopilot.contract.sharing_configs import configs_of
from autopilot.kube.access import Access, Address
from autopilot.kube.cluster_api import ClusterApi
from autopilot.oncall.queries import PrometheusAsker, QueryError
from autopilot.operate.check_policies import shipped_policies
from autopilot.operate.check_rights import further_rights
from autopilot.readiness.checks import run_checks
from autopilot.readiness.line import Asked, Line, Sample, Status
from autopilot.readiness.report import document, summary, text_of
from autopilot.service.settings import Kubernetes, Settings
from autopilot.service.settings_file import load_settings
from autopilot.service.wiring import secret

SCHEMA = "gpu-autopilot/check/1"
NOT_READY = 1


class ScrapedTelemetry:
    """A Prometheus as the checks ask it."""

    def __init__(self, url: str, token: str) -> None:
        self.url, self._ask = url, PrometheusAsker(url, token)

    def query(self, expression: str) -> list[Sample]:
        """An instant query. Raises `OSError`."""
        try:
            return [Sample(labels, value) for labels, value in self._ask(expression)]
        except QueryError as error:
            raise OSError(str(error)) from error


def check_cluster(
    config: Path | None,
    over: Mapping[str, Any],
    json_out: Path | None,
    say: Callable[[str], None],
    now_s: Callable[[], float] = time.time,
) -> int:
    """Print the findings as they come, or one document; the exit status is 0 if nothing failed, else 1."""
    settings = load_settings(config, over)
    cluster = settings.kubernetes or Kubernetes()
    access = Access(Address(cluster.kubeconfig, cluster.context, cluster.in_cluster))
    rights, policies = further_rights(cluster), shipped_policies(cluster)
    sharing = configs_of(cluster.sharing_configs)
    asked = Asked(ClusterApi(access), _telemetry(settings), now_s, cluster.namespace, rights, policies, sharing)
    lines: list[Line] = []
    for line in run_checks(asked):
        lines.append(line)
        if json_out is None:
            say(text_of(line))
            sys.stdout.flush()
    if json_out is None:
        say(summary(lines))
    else:
        write_json(json_out, {"schema": SCHEMA, "cluster": access.host, **document(lines)})
    return NOT_READY if any(line.status == Status.FAILED for line in lines) else 0


def _telemetry(settings: Settings) -> ScrapedTelemetry | None:
    source = settings.collectors.prometheus
    return ScrapedTelemetry(source.url, secret(source.token_file)) if source is not None else None
