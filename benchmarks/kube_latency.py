"""From the creation of a pending latency-critical pod to its recommendation, and to the release of its gate.

An API server with 500 nodes of 8 GPUs, all held by preemptible batch work, and 5,000 pending pods; beside it runs
`autopilot run --kubeconfig` in a process of its own. A pod is created, and the API of the controller is asked until it
shows a proposal for it; then the pod is deleted. In the second part the controller acts: one GPU is free, every
pending pod has our scheduling gate, the others ask for more than one GPU, and the pod is read until its gate is gone.
Both processes and this one share the machine.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import requests
import yaml

from apiserver.admission import PLUGINS
from apiserver.client import Client
from apiserver.http.serve import Running, serve
from apiserver.server import Server
from apiserver.timeline import Timeline
from apiserver.users import ADMIN
from autopilot.contract.annotations import CONTROLLER
from benchmarks.kit import FIGURE, ended, judged, options

GOAL_S = 2.0
PENDING, PER_NODE = 5000, 8
ASK_S = 0.04  # between two questions; the API allows 50 in a second
START_S, FOUND_S = 120.0, 30.0
AGE_S = 3 * 3600.0
SPACE = "team"
POLICY = "base: recommend\nname: admits\nmodes: {admit_gang: auto}\nhysteresis: {dwell_s: 0}\n"
"""Of the part in which it acts: it starts waiting work, and only recommends all else."""

Json = dict[str, Any]


def _pod(
    name: str, gpus: int, node: str = "", notes: Json | None = None, priority: int = 0, *, gated: bool = False
) -> Json:
    asked = {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": str(gpus)}
    return {
        "metadata": {"name": name, "namespace": SPACE, "annotations": notes or {}},
        "spec": {
            **({"nodeName": node} if node else {}),
            **({"priorityClassName": "urgent"} if priority else {}),
            **({"schedulingGates": [{"name": CONTROLLER}]} if gated else {}),
            "containers": [{"name": "main", "image": "app", "resources": {"requests": asked, "limits": asked}}],
        },
    }


def _node(name: str) -> Json:
    has = {"cpu": "192", "memory": "2113431260Ki", "pods": "250", "nvidia.com/gpu": str(PER_NODE)}
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": str(PER_NODE)}
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": _stamp()}
    status = {"capacity": has, "allocatable": has, "conditions": [ready]}
    return {"metadata": {"name": name, "labels": labels}, "status": status}


def _stamp(ago_s: float = 0.0) -> str:
    return datetime.fromtimestamp(time.time() - ago_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _furnish(client: Client, nodes: int, pending: int, *, acts: bool) -> None:
    """A full cluster, and pods that wait. `acts`: for the controller, and one GPU is free."""
    client.create("namespaces", {"metadata": {"name": SPACE}})
    client.create("priorityclasses.scheduling.k8s.io", {"metadata": {"name": "urgent"}, "value": 1000})
    for number in range(nodes):
        node = f"node-{number:03}"
        client.create("nodes", _node(node))
        client.patch("nodes", "", node, {"spec": {"taints": None}, "status": _node(node)["status"]}, "status")
        client.patch("nodes", "", node, {"spec": {"taints": None}})
        for gpu in range(PER_NODE - (acts and number == 0)):
            _run(client, f"batch-{number:03}-{gpu}", node)
    for number in range(pending):
        gpus = 2 + number % 3 if acts else 1 + number % 4
        client.create("pods", _pod(f"waits-{number:04}", gpus, gated=acts))


def _run(client: Client, name: str, node: str) -> None:
    """A batch pod of one GPU that has run for three hours, and writes a checkpoint every ten minutes."""
    client.create("pods", _pod(name, 1, node, {"gpu-autopilot.io/checkpoint-interval-s": "10m"}))
    conditions = [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}]
    status = {"phase": "Running", "startTime": _stamp(AGE_S), "conditions": conditions}
    client.patch("pods", SPACE, name, {"status": status}, "status")


@contextmanager
def _controller(running: Running, folder: Path, *, acts: bool) -> Iterator[tuple[str, dict[str, str], int]]:
    """The controller in a process of its own; yields the address of its API, the headers for it, and its process."""
    kubeconfig, settings, log = folder / "kubeconfig", folder / "service.yaml", folder / "log"
    kubeconfig.write_text(running.kubeconfig())
    state, policy = folder / "state", folder / "policy.yaml"
    policy.write_text(POLICY)
    content = {
        "state": str(state),
        **({"policy": str(policy)} if acts else {}),
        "kubernetes": {"kubeconfig": str(kubeconfig), "act": acts},
        "http": {"listen": "127.0.0.1:0"},
        "metrics": {"listen": None},
        "forecasting": {"fit": False, "registry": False},
    }
    settings.write_text(yaml.safe_dump(content))
    command = [sys.executable, "-m", "autopilot.cli", "run", "--config", str(settings)]
    with (
        log.open("wb") as out,
        subprocess.Popen(command, stderr=out, env={**os.environ, "OMP_NUM_THREADS": "1"}) as run,
    ):
        try:
            note = _wait_for(lambda: _note(state), START_S, log)
            token = Path(note["token_file"]).read_text().strip()
            yield note["url"], {"Authorization": f"Bearer {token}"}, run.pid
        finally:
            run.terminate()


def _note(state: Path) -> Json:
    path = next(state.rglob("service.json"), None)
    return dict(json.loads(path.read_text())) if path is not None else {}


def _wait_for(ask: Any, most_s: float, log: Path) -> Any:
    end_s = time.monotonic() + most_s
    while not (found := ask()):
        if time.monotonic() > end_s:
            raise SystemExit(f"no answer within {most_s:.0f} s; the controller's log: {log.read_text()[-2000:]}")
        time.sleep(ASK_S)
    return found


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of each round, the CPU of the controller in a round, and the median duration of a tick and its stages by
    the controller's own account.
    """

    took_s: list[float]
    tick_s: float
    cpu_s: float
    stages_s: dict[str, float]


def measure(nodes: int, pending: int, rounds: int, *, acts: bool = False) -> Measured:
    """Until a recommendation serves the pod; `acts`: until its gate is gone."""
    server = Server(Timeline(datetime.now(UTC)), random.Random(1))
    for plugin in PLUGINS:
        server.admission.add(plugin())
    client = server.client(ADMIN, "benchmark")
    began_s = time.monotonic()
    _furnish(client, nodes, pending, acts=acts)
    server.timeline.run_for(time.monotonic() - began_s)  # its clock stood meanwhile
    took: list[float] = []
    ticks: list[float] = []
    stages: list[dict[str, float]] = []
    with (
        tempfile.TemporaryDirectory() as name,
        serve(server) as running,
        _controller(running, Path(name), acts=acts) as (url, auth, process),
    ):
        log, session, pods = Path(name) / "log", requests.Session(), f"{running.url}/api/v1/namespaces/{SPACE}/pods"
        session.trust_env = False

        def asked(path: str) -> Json:
            answer = session.get(f"{url}/api/v1/{path}", headers=auth, timeout=30)
            return dict(answer.json()) if answer.ok else {}

        def shown(pod: str) -> bool:
            return _serves(asked("recommendations?details=false"), pod)

        def released(pod: str) -> bool:
            return not session.get(f"{pods}/{pod}", timeout=30).json()["spec"].get("schedulingGates")

        def settled() -> bool:
            """The controller has seen that the pod is gone, and effects on it are over."""
            return not asked("state").get("in_flight")

        _wait_for(lambda: asked("state").get("tick", 0) >= 3, START_S, log)
        cpu_s = _cpu_s(process)
        for number in range(rounds):
            pod = f"urgent-{number}"
            notes = {"gpu-autopilot.io/slo-class": "latency-critical"}
            body = _pod(pod, 1, notes=notes, priority=1000, gated=acts)
            start_s = time.monotonic()
            session.post(pods, json=body, timeout=30).raise_for_status()
            _wait_for(partial(released if acts else shown, pod), FOUND_S, log)
            took.append(time.monotonic() - start_s)
            state = asked("state")
            ticks.append(float(state.get("took_s") or float("nan")))
            stages.append(state.get("stages_s") or {})
            session.delete(f"{pods}/{pod}", json={"gracePeriodSeconds": 0}, timeout=30).raise_for_status()
            _wait_for(settled if acts else lambda pod=pod: not shown(pod), FOUND_S, log)
        cpu_s = (_cpu_s(process) - cpu_s) / rounds
    names = dict.fromkeys(name for each in stages for name in each)
    by_stage = {name: float(np.median([each.get(name, 0.0) for each in stages])) for name in names}
    return Measured(took, float(np.nanmedian(ticks)), cpu_s, by_stage)


def _cpu_s(process: int) -> float:
    """CPU that a process has used; NaN where the system does not tell."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _serves(found: Json, pod: str) -> bool:
    return any(f"{SPACE}/{pod}-" in str(each.get("id", "")) for each in found.get("recommendations", ()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 where a figure misses its goal."""
    given = options(__doc__, arguments, rounds=100, only="")
    nodes, pending, rounds = (50, 500, 5) if given.quick else (500, PENDING, given.rounds)
    rows = [("GPUs; pending pods; rounds", f"{nodes * PER_NODE:,}; {pending:,}; {rounds}")]
    figures: Json = {"rounds": rounds}
    for acts, what in ((False, "recommendation"), (True, "release of its gate")):
        if given.only and given.only != ("release" if acts else "recommendation"):
            continue
        found = measure(nodes, pending, rounds, acts=acts)
        p50_s, p99_s = (float(each) for each in np.quantile(found.took_s, [0.5, 0.99]))
        rows += [
            (f"pod to {what}, median, s", f"{p50_s:.2f}"),
            ("the same, p99, s", judged(p99_s, GOAL_S)),
            ("the tick alone, median, s", f"{found.tick_s:.2f}"),
            ("of it by stage, s", ", ".join(f"{name} {took_s:.2f}" for name, took_s in found.stages_s.items())),
            ("CPU of the controller for a round, s", f"{found.cpu_s:.2f}"),
        ]
        figures["release" if acts else "recommendation"] = {
            "p50_s": p50_s,
            "p99_s": p99_s,
            "tick_s": found.tick_s,
            "cpu_s": found.cpu_s,
            "stages_s": found.stages_s,
        }
    rows.append(("load of the machine, 1 min", f"{os.getloadavg()[0]:.1f}"))
    return ended(given, FIGURE, rows, figures)


if __name__ == "__main__":
    raise SystemExit(main())
