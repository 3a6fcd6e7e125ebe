"""Starts the service and simulated clusters as processes, on loopback, and ends them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import requests
import yaml

from autopilot.service.state_folder import read_note
from tests.tidy.tree import ROOT

DEADLINE_S = 240.0
"""A wait that ends only where something is broken: no test judges by it."""
APPROVE = {"base": "autopilot", "modes": {"admit_gang": "approve"}}

T = TypeVar("T")


def poll(look: Callable[[], T | None], what: str, deadline_s: float = DEADLINE_S) -> T:
    """The first value of `look` that is not None or empty; fails after the deadline."""
    end_s = time.monotonic() + deadline_s
    while not (found := look()):
        assert time.monotonic() < end_s, f"{what}: not within {deadline_s:g} s"
        time.sleep(0.05)
    return found


@dataclass
class Running:
    """A service in a process of its own."""

    process: subprocess.Popen[bytes]
    state: Path
    log: Path

    @property
    def url(self) -> str:
        return str(read_note(self.state / "service.json")["url"])

    @property
    def token(self) -> str:
        return (self.state / "admin.token").read_text("utf-8").strip()

    def ask(self, path: str, method: str = "GET", token: str | None = None, **given: Any) -> requests.Response:
        headers = {"Authorization": f"Bearer {token or self.token}"}
        return requests.request(method, f"{self.url}{path}", headers=headers, timeout=30, **given)

    def tick(self) -> int:
        answer = self.ask("/api/v1/state")
        return int(answer.json()["tick"]) + 1 if answer.status_code == 200 else 0

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)


def settings(state: Path, **over: Any) -> dict[str, Any]:
    """Settings of a service with free ports, and without runbooks and fits, which take long."""
    runbooks = state.parent / "runbooks"
    runbooks.mkdir(exist_ok=True)
    return {
        "state": str(state),
        "alerts": {"runbooks": str(runbooks)},
        "simulation": {"scenario": "quickstart", "speed": 600},
        "http": {"listen": "127.0.0.1:0"},
        "metrics": {"listen": "127.0.0.1:0"},
        "forecasting": {"durations": "last-two", "fit": False, "registry": False},
        **over,
    }


def free_port() -> int:
    """A port of loopback that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def write_yaml(path: Path, content: dict[str, Any]) -> Path:
    """A YAML file; returns its path."""
    path.write_text(yaml.safe_dump(content), "utf-8")
    return path


def start(folder: Path, content: dict[str, Any], entry: tuple[str, ...] = ("-m", "autopilot.cli", "run")) -> Running:
    """Start the service and wait until it answers."""
    config = write_yaml(folder / "service.yaml", content)
    return launch(folder, Path(content["state"]), (*entry, "--config", str(config)))


def launch(folder: Path, state: Path, words: tuple[str, ...], **environment: str) -> Running:
    """Start a process with a service in it, and wait until that answers."""
    log = folder / "service.log"
    (state / "service.json").unlink(missing_ok=True)
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, *words],
            stdout=out,
            stderr=out,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        )
    running = Running(process, state, log)

    def answers() -> bool:
        assert process.poll() is None, log.read_text("utf-8")[-2000:]
        return bool(read_note(state / "service.json"))

    poll(answers, "the service answers")
    return running


def cli(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, in this folder."""
    return subprocess.run(
        [sys.executable, "-m", "autopilot.cli", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


@contextmanager
def service(folder: Path, content: dict[str, Any]) -> Iterator[Running]:
    """A service that is ended with the test."""
    with ended(start(folder, content)) as running:
        yield running


@contextmanager
def ended(running: Running) -> Iterator[Running]:
    """It is ended with the test."""
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.end()


@contextmanager
def cluster(folder: Path, scenario: str, speed: float) -> Iterator[dict[str, Any]]:
    """A simulated cluster that belongs to the test; yields its note, with address and run."""
    note = folder / "own-cluster.json"
    command = [sys.executable, "-m", "autopilot.simulated.process", scenario, "--tied"]
    with subprocess.Popen(
        [*command, "--speed", repr(speed), "--ready", str(note)],
        stdin=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as process:
        try:
            yield poll(lambda: read_note(note), "the cluster answers")
        finally:
            process.terminate()
