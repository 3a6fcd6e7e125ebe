"""A service beside a simulated cluster: a real Prometheus watches it, and a real Alertmanager delivers its alerts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from autopilot.playground.monitoring import find_programs
from autopilot.playground.monitoring import running as watching
from tests.e2e.test_prometheus_collector import free_port
from tests.kits.prometheus_kit import answers, until
from tests.service.kit import Running, cli, ended, launch, poll, service, write_yaml

ROLES = ("alerts", "viewer", "approver", "admin")

QUICK = {"forecasting": {"durations": "last-two", "fit": False, "registry": False}}
"""Settings without fits, which take long."""
WATCHED = re.compile(r"`autopilot alerts` lists: (\S+) and (\S+)$", re.MULTILINE)
"""Where the playground says that its Prometheus and its Alertmanager are."""

HALVES = """job_id,submit_s,duration_s,gpus,tenant,kind,checkpoint_gib
keep-a,0,14400,4,vision,compute-training,30
go-a,1,400,4,language,compute-training,10
keep-b,2,14400,4,vision,compute-training,300
go-b,3,400,4,language,compute-training,10
wide,300,3600,8,language,compute-training,10
"""
"""At 1,500 s half of each of two nodes is free, and `wide` wants a whole node: `keep-a` can move to the other half."""

FRAGMENTED: dict[str, Any] = {
    "name": "halves",
    "description": "Two half-empty nodes, and a gang that wants a whole one.",
    "seed": 1,
    "horizon": "5h",
    "cluster": "2x8",
    "physics": "charged",
    "telemetry": "windowed",
    "policies": ["autopilot"],
}


def _group(name: str, kind: str, tenant: str, gpus: int, submit: str, duration: str) -> dict[str, Any]:
    group = {"kind": kind, "name": name, "count": 1, "tenants": [tenant], "gpus": [gpus], "from": submit, "to": submit}
    return group | {"duration": duration, "spread": 0.0, "preemptible": True}


HOARDED: dict[str, Any] = {
    "name": "borrowed-and-idle",
    "description": "A tenant borrows a node and leaves it idle, while the owner of that share waits.",
    "seed": 1,
    "horizon": "5h",
    "cluster": {
        "pools": [{"name": "main", "nodes": 2, "gpus_per_node": 8, "gpu_model": "A100-80GB"}],
        "queues": [
            {"name": "art", "guarantee": {"A100-80GB": 4}},
            {"name": "film", "guarantee": {"A100-80GB": 12}},
        ],
    },
    "jobs": {
        "groups": [
            _group("sketch", "hoarder", "art", 8, "0s", "5h"),
            _group("paint", "compute-training", "art", 4, "10s", "5h"),
            _group("shoot", "compute-training", "film", 4, "20s", "5h"),
            _group("cut", "compute-training", "film", 8, "20m", "1h"),
        ]
    },
    "physics": "charged",
    "telemetry": "windowed",
    "policies": ["autopilot"],
}


def halves(folder: Path) -> Path:
    """The scenario file of a fragmented cluster."""
    (folder / "halves.csv").write_text(HALVES, "utf-8")
    jobs = {"file": {"path": str(folder / "halves.csv")}}
    return write_yaml(folder / "halves.yaml", FRAGMENTED | {"jobs": jobs})


def hoarded(folder: Path) -> Path:
    """The scenario file of a hoarding tenant."""
    return write_yaml(folder / "hoarded.yaml", HOARDED)


@dataclass(frozen=True, slots=True)
class OnCall:
    """What runs."""

    running: Running
    prometheus: str
    folder: Path
    alertmanager: str

    @property
    def now_s(self) -> float:
        """The time of the cluster."""
        return float(self.ask("/api/v1/state")["now_s"])

    def cli(self, *words: str) -> str:
        """What a command prints for an approver."""
        where = ("--state", str(self.running.state), "--token-file", "approver.token")
        done = cli(self.folder, *words, *where)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def firing(self) -> dict[tuple[str, str], str]:
        """When each alert that fires started, by name and object, as the Alertmanager has it."""
        found = requests.get(f"{self.alertmanager}/api/v2/alerts", timeout=30).json()
        return {
            (labels["alertname"], labels.get("tenant") or labels.get("pool", "")): each["startsAt"]
            for each in found
            for labels in [each["labels"]]
        }

    def ask(self, path: str, method: str = "GET", role: str = "admin", **given: Any) -> dict[str, Any]:
        """The answer of the service to a role."""
        found: dict[str, Any] = self.running.ask(path, method, token_of(role), **given).json()
        return found

    def alert(self, name: str) -> dict[str, Any] | None:
        """The first alert of this name, as the service has it."""
        found = [each for each in self.ask("/api/v1/alerts").get("alerts", ()) if each["alert"] == name]
        return found[-1] if found else None

    def at_stage(self, name: str, *stages: str) -> Callable[[], dict[str, Any] | None]:
        """Looks for the alert at one of these stages."""

        def look() -> dict[str, Any] | None:
            found = self.alert(name)
            return found if found is not None and found["stage"] in stages else None

        return look


def token_of(role: str) -> str:
    """The token of a role."""
    return f"token-of-{role}-0123456789"


@contextmanager
def on_call(
    folder: Path, require_tool: Callable[[str], str], scenario: Path, speed: float, policy: str = "approve", **over: Any
) -> Iterator[OnCall]:
    """A service beside a simulated cluster, connected with both as the playground is."""
    for tool in ("prometheus", "prometheus-alertmanager"):
        require_tool(tool)
    around, http, metrics = find_programs(), _http(folder), f"127.0.0.1:{free_port()}"
    content: dict[str, Any] = {
        "state": str(folder / "state"),
        "alerts": around.settings(),
        "http": http,
        "metrics": {"listen": metrics},
        "policy": policy,
        "simulation": {"scenario": str(scenario), "speed": speed},
        **QUICK,
        **over,
    }
    api, reader, sender = f"http://{http['listen']}", folder / "viewer.token", folder / "alerts.token"
    with service(folder, content) as running:
        _first_tick(running)
        with watching(around, api=api, metrics=metrics, reader=reader, sender=sender, speed=speed):
            url, delivers = around.settings().values()
            until(lambda: answers(f"{url}/-/ready") and answers(f"{delivers}/-/ready"), "both are ready")
            yield OnCall(running, url, folder, delivers)


@contextmanager
def on_call_playground(
    folder: Path, require_tool: Callable[[str], str], scenario: str, speed: float
) -> Iterator[OnCall]:
    """The playground in which the autopilot does what a person approves, connected with both."""
    for tool in ("prometheus", "prometheus-alertmanager"):
        require_tool(tool)
    state, words = folder / "state", ("--scenario", scenario, "--mode", "approve", "--speed", f"{speed:g}", "--alerts")
    environment = {
        f"GPU_AUTOPILOT_{section}__{name}".upper(): value if isinstance(value, str) else json.dumps(value)
        for section, fields in {"http": _http(folder), **QUICK}.items()
        for name, value in fields.items()
    }
    command = ("-m", "autopilot.cli", "playground", *words, "--state", str(state))
    with ended(launch(folder, state, command, **environment)) as running:
        found = poll(lambda: WATCHED.search(running.log.read_text("utf-8")), "the alerts are watched")
        _first_tick(running)
        yield OnCall(running, found[1], folder, found[2])


def _http(folder: Path) -> dict[str, Any]:
    """The API with a token for each role."""
    for role in ROLES:
        (folder / f"{role}.token").write_text(token_of(role), "utf-8")
    tokens = [{"name": role, "role": role, "file": str(folder / f"{role}.token")} for role in ROLES]
    return {"listen": f"127.0.0.1:{free_port()}", "tokens": tokens}


def _first_tick(running: Running) -> None:
    poll(lambda: running.ask("/api/v1/state", token=token_of("viewer")).status_code == 200, "the first tick")
