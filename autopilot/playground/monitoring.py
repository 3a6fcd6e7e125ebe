"""A Prometheus and an Alertmanager beside a playground: they watch its controller and deliver its alerts to it."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from autopilot.alerts.rules import RuleSettings, prometheus_config, rule_groups, yaml_text
from autopilot.core.model.errors import InputError

PROGRAMS = {"Prometheus": ("prometheus",), "Alertmanager": ("prometheus-alertmanager", "alertmanager")}
"""The names of their programs: Debian's, then the publisher's."""
RESEND_S = 60.0
"""Time until a Prometheus repeats a still firing alert (its own default), in virtual time."""
END_S = 10.0
"""Time for a program to end before it is killed."""


@dataclass(frozen=True, slots=True)
class Monitoring:
    """Programs and addresses (host:port) of both."""

    prometheus: str
    alertmanager: str
    prometheus_at: str
    alertmanager_at: str

    def settings(self) -> dict[str, str]:
        """Addresses for the controller (the section `alerts` of its settings)."""
        return {"prometheus": f"http://{self.prometheus_at}", "alertmanager": f"http://{self.alertmanager_at}"}


def find_programs() -> Monitoring:
    """Both programs with free ports of loopback. Raises `InputError` if PATH lacks one."""
    found = {title: next(filter(None, map(shutil.which, names)), None) for title, names in PROGRAMS.items()}
    prometheus, alertmanager = found.values()
    if prometheus is None or alertmanager is None:
        absent = " and ".join(title for title, path in found.items() if path is None)
        raise InputError(
            f"--alerts: {absent} not found on PATH; install the Debian packages prometheus and "
            "prometheus-alertmanager (`make test-services` does), or leave --alerts out"
        )
    return Monitoring(prometheus, alertmanager, *(f"127.0.0.1:{port}" for port in _free_ports(2)))


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(each.getsockname()[1]) for each in held]


@contextmanager
def running(around: Monitoring, *, api: str, metrics: str, reader: Path, sender: Path, speed: float) -> Iterator[None]:
    """Run both until the end of the block.

    `api`: address of the controller. `metrics`: host:port of its metrics. Files with tokens: that of `reader` may read
    the metrics, that of `sender` deliver alerts. All times of the rules are divided by `speed`. Data and logs are
    removed at the end.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="gpu-autopilot-alerts-")))
        rules = RuleSettings(speed=speed)
        _write(folder / "rules.yaml", rule_groups(rules))
        _write(folder / "alertmanager.yaml", _alertmanager_config(f"{api}/api/v1/alerts", sender))
        scrape = prometheus_config(rules, [metrics], "rules.yaml", [around.alertmanager_at], str(reader))
        _write(folder / "prometheus.yaml", scrape)
        commands = (
            (
                around.alertmanager,
                "--config.file=alertmanager.yaml",
                "--storage.path=alertmanager",
                f"--web.listen-address={around.alertmanager_at}",
                "--cluster.listen-address=",
            ),
            (
                around.prometheus,
                "--config.file=prometheus.yaml",
                "--storage.tsdb.path=data",
                f"--web.listen-address={around.prometheus_at}",
                f"--web.external-url=http://{around.prometheus_at}",
                f"--rules.alert.resend-delay={max(round(1000.0 * RESEND_S / speed), 1)}ms",
            ),
        )
        for command in commands:
            stack.enter_context(_program(command, folder))
        yield


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(yaml_text(content), encoding="utf-8")


def _alertmanager_config(receiver: str, token: Path) -> dict[str, Any]:
    """Every alert is delivered alone and at once."""
    secret = {"authorization": {"type": "Bearer", "credentials_file": str(token)}}
    webhook = {"url": receiver, "send_resolved": True, "http_config": secret}
    waits = {"group_wait": "100ms", "group_interval": "200ms", "repeat_interval": "1h"}
    return {
        "route": {"receiver": "autopilot", "group_by": ["..."], **waits},
        "receivers": [{"name": "autopilot", "webhook_configs": [webhook]}],
    }


@contextmanager
def _program(command: tuple[str, ...], folder: Path) -> Iterator[None]:
    """One program, with its log in `folder`."""
    with (folder / f"{Path(command[0]).name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)  # noqa: S603 - both found on PATH
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
