"""A real Prometheus and Alertmanager on loopback ports of their own, and a receiver of alerts."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from autopilot.alerts.rules import yaml_text
from tests.e2e.test_prometheus_collector import free_port

READY_S = 120.0

T = TypeVar("T")


def until(look: Callable[[], T], what: str, within_s: float = READY_S, every_s: float = 0.05) -> T:
    """The first result of `look` that is true. Fails after `within_s`, naming what did not happen."""
    end_s = time.monotonic() + within_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < end_s, f"{what}: not within {within_s:g} s"
        time.sleep(every_s)


@contextmanager
def running(command: list[str], url: str, folder: Path) -> Iterator[str]:
    """A server that is ready at `url`; its log is kept in `folder`."""
    with (folder / f"{Path(command[0]).name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            until(lambda: answers(f"{url}/-/ready"), f"{command[0]} is ready")
            yield url
        finally:
            process.terminate()
            process.wait(10)


def answers(url: str) -> bool:
    """True when a server answers with success."""
    try:
        with urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


@contextmanager
def prometheus(
    binary: str, folder: Path, config: Mapping[str, Any], retention: str = "30d", listen: str = ""
) -> Iterator[str]:
    """A Prometheus with this configuration; its data is `folder`/data, which may hold history."""
    (folder / "prometheus.yaml").write_text(yaml_text(config))
    address = listen or f"127.0.0.1:{free_port()}"
    command = [
        binary,
        "--config.file=prometheus.yaml",
        "--storage.tsdb.path=data",
        f"--storage.tsdb.retention.time={retention}",
        f"--web.listen-address={address}",
        f"--web.external-url=http://{address}",
        "--rules.alert.resend-delay=1s",  # the Alertmanager is discovered seconds after the first alert
        "--web.enable-lifecycle",
        "--log.level=warn",
    ]
    with running(command, f"http://{address}", folder) as url:
        yield url


def write_history(promtool: str, folder: Path, text: str) -> None:
    """Blocks of a Prometheus in `folder`/data, from samples in the format of OpenMetrics; they may lie ahead."""
    (folder / "history").write_text(text, "utf-8")
    command = [promtool, "tsdb", "create-blocks-from", "openmetrics", "history", "data"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)


def reload(url: str) -> None:
    """Prometheus reads its configuration and rules again; returns when they apply. Raises `HTTPError` if it refuses."""
    with urlopen(Request(f"{url}/-/reload", method="POST"), timeout=30):
        pass


@contextmanager
def alertmanager(
    binary: str, folder: Path, receiver: str, token_file: Path | None = None, most: int = 0
) -> Iterator[str]:
    """An Alertmanager that delivers each alert to `receiver` at once; the result is host:port.

    `most`: alerts of one name are delivered together, at most this number, and the rest is left out.
    """
    webhook: dict[str, Any] = {"url": receiver, "send_resolved": True}
    if most:
        webhook["max_alerts"] = most
    if token_file is not None:
        webhook["http_config"] = {"authorization": {"type": "Bearer", "credentials_file": str(token_file)}}
    config = {
        "route": {
            "receiver": "autopilot",
            "group_by": ["alertname"] if most else ["..."],
            "group_wait": "100ms",
            "group_interval": "200ms",
            "repeat_interval": "1h",
        },
        "receivers": [{"name": "autopilot", "webhook_configs": [webhook]}],
    }
    (folder / "alertmanager.yaml").write_text(yaml_text(config))
    address = f"127.0.0.1:{free_port()}"
    command = [
        binary,
        "--config.file=alertmanager.yaml",
        "--storage.path=alertmanager",
        f"--web.listen-address={address}",
        "--cluster.listen-address=",
    ]
    with running(command, f"http://{address}", folder):
        yield address


class Webhook:
    """Receives what an Alertmanager posts."""

    def __init__(self) -> None:
        self.posts: list[dict[str, Any]] = []

    def alerts(self, name: str, status: str) -> list[dict[str, Any]]:
        """Alerts of this name and status, as delivered so far."""
        found = [alert for post in list(self.posts) for alert in post["alerts"]]
        return [each for each in found if each["labels"]["alertname"] == name and each["status"] == status]


@contextmanager
def webhook() -> Iterator[tuple[Webhook, str]]:
    """A receiver on loopback, and its address."""
    kept = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            kept.posts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield kept, f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def query(url: str, expr: str, at_s: float | None = None) -> list[dict[str, Any]]:
    """The result of an instant query: a list of {metric, value}. Fails where Prometheus refuses the expression."""
    asked = {"query": expr} | ({"time": f"{at_s:.3f}"} if at_s is not None else {})
    with urlopen(f"{url}/api/v1/query?{urlencode(asked)}", timeout=30) as answer:
        found = json.loads(answer.read())["data"]
    result: list[dict[str, Any]] = found["result"] if found["resultType"] != "scalar" else [{"value": found["result"]}]
    return result
