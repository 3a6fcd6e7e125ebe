"""`autopilot run --simulate` from start to end, as a person uses it."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import requests

from autopilot.metering.prices import load_prices
from autopilot.metering.segments import Store, open_store
from autopilot.metering.showback import showback
from autopilot.records.audit.entry import Kind, parse_line
from autopilot.records.journal.reader import JournalReader
from autopilot.service.state_folder import read_note
from tests.kits.metering_kit import asked
from tests.service.kit import APPROVE, Running, cli, cluster, poll, service, settings, start, write_yaml

ROLES = (("ada", "approver"), ("eve", "viewer"))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service that acts by itself, for the tests that only ask."""
    folder = tmp_path_factory.mktemp("service")
    slow = {"scenario": "quickstart", "speed": 60}
    with service(folder, settings(folder / "state", policy="autopilot", simulation=slow)) as found:
        poll(found.tick, "the first tick")
        yield found


def _cli(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command with the settings of the service, where it takes them."""
    config = () if words[0] == "audit" else ("--config", str(folder / "service.yaml"))
    return cli(folder, *words, *config)


def _open(running: Running) -> list[dict[str, object]]:
    answer = running.ask("/api/v1/recommendations")
    if answer.status_code != 200:
        return []
    return [each for each in answer.json()["recommendations"] or [] if each["approvable"]]


def _accepted(running: Running) -> list[dict[str, object]]:
    found: list[dict[str, object]] = running.ask("/api/v1/decisions?answer=accepted").json()["decisions"]
    return found


def _metered(running: Running) -> Store:
    """What the service has metered."""
    return open_store(next(running.state.rglob("*.metering")))


def _content(shared: dict[str, Any], folder: Path, policy: Path) -> dict[str, Any]:
    return settings(folder / "state", policy=str(policy), simulation={"attach": shared["url"]})


def _beside(shared: dict[str, Any], folder: Path, policy: Path) -> AbstractContextManager[Running]:
    return service(folder, _content(shared, folder, policy))


def test_a_recommendation_is_approved_and_carried_out_and_a_killed_service_goes_on(tmp_path: Path) -> None:
    """A person approves what waits; the service is killed and started again beside the cluster that lives on."""
    policy = write_yaml(tmp_path / "policy.yaml", APPROVE)
    with cluster(tmp_path, "quickstart", 30) as shared, _beside(shared, tmp_path, policy) as running:
        shown = poll(lambda: _open(running), "a recommendation waits")[0]
        listed = _cli(tmp_path, "recommendations")
        assert str(shown["id"]) in listed.stdout, listed.stderr
        approved = _cli(tmp_path, "approve", str(shown["id"]))
        assert "its effects were sent" in approved.stdout, approved.stderr
        assert shown["workload"] in {each["workload"] for each in _accepted(running)}
        again = running.ask(f"/api/v1/recommendations/{shown['id']}/approve", "POST")
        assert (again.status_code, "is no longer what was shown" in again.json()["detail"]) == (409, True), again.text
        tick = running.tick()
        assert running.end(signal.SIGKILL) == -signal.SIGKILL
        assert requests.get(f"{shared['url']}/v1/clock", timeout=5).json()["run"] == shared["run"]
        second = start(tmp_path, _content(shared, tmp_path, policy))
        assert poll(second.tick, "it decides again") >= tick
        poll(lambda: _metered(second).segments, "an interval of metering ends")
        assert second.end(signal.SIGINT) == 0, second.log.read_text("utf-8")
        assert requests.get(f"{shared['url']}/v1/clock", timeout=5).json()["run"] == shared["run"]
        assert not list(running.state.glob("*.json")), "the notes of what runs are gone"
        assert "Traceback" not in second.log.read_text("utf-8")
        metered = _metered(second)
        assert not metered.holes, "a restart leaves no time without a row"
        assert showback(asked(metered, load_prices())).reconciled.good


def test_pause_resume_and_kill_reach_the_next_tick(running: Running) -> None:
    """Each command is obeyed by the tick that follows, and shown; the kill switch file needs no command."""
    for verb, halted in (("pause", "paused by admin"), ("resume", None), ("kill", "kill switch"), ("resume", None)):
        answer = running.ask(f"/api/v1/{verb}", "POST").json()
        assert (answer["result"], answer["halted"]) == ("obeyed", halted)
    file = running.state / "kill"
    file.touch()
    poll(lambda: running.ask("/api/v1/state").json()["halted"] == "kill switch", "the switch is read")
    assert "still on" in running.ask("/api/v1/resume", "POST").json()["message"]
    file.write_text("off\n", "utf-8")
    poll(lambda: running.ask("/api/v1/state").json()["halted"] is None, "the switch is off")


def test_the_audit_log_has_every_command_effect_and_denial_and_no_secret(tmp_path: Path) -> None:
    """Who did what, from where; tokens are in no log, journal or audit line."""
    secrets = {}
    for name, _role in ROLES:
        secrets[name] = f"planted-{name}-0123456789abcdef"
        (tmp_path / f"{name}.token").write_text(secrets[name], "utf-8")
    tokens = [{"name": name, "role": role, "file": str(tmp_path / f"{name}.token")} for name, role in ROLES]
    content = settings(tmp_path / "state", http={"listen": "127.0.0.1:0", "tokens": tokens}, log={"level": "debug"})
    with service(tmp_path, content) as running:
        poll(lambda: running.ask("/api/v1/state", token=secrets["eve"]).status_code == 200, "the first tick")
        assert running.ask("/api/v1/pause", "POST", token=secrets["eve"]).status_code == 403
        assert running.ask("/api/v1/pause?token=planted-in-query", "POST", token="planted-unknown").status_code == 401
        assert running.ask("/api/v1/pause", "POST", token=secrets["ada"]).json()["result"] == "obeyed"
        assert running.ask("/api/v1/resume", "POST", token=secrets["ada"]).status_code == 403
        assert running.end() == 0, running.log.read_text("utf-8")
    folder = running.state / "audit"
    entries = [parse_line(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_bytes().splitlines()]
    kinds = [entry.event.kind for entry in entries]
    assert (kinds[0], kinds[-2:]) == (Kind.START, [Kind.STOP, Kind.SEAL])
    assert kinds.count(Kind.INSTRUCTION) == kinds.count(Kind.OUTCOME) > 0
    assert kinds.count(Kind.SETTINGS) == 1
    (command,) = [entry.event for entry in entries if entry.event.kind == Kind.COMMAND]
    assert (command.who, command.role, command.origin) == ("ada", "approver", "127.0.0.1")
    denied = [(entry.event.who, entry.event.facts["reason"]) for entry in entries if entry.event.kind == Kind.DENIED]
    assert denied == [("eve", "needs approver"), ("", "unknown token"), ("ada", "needs admin")]
    assert _cli(tmp_path, "audit", "verify", str(folder)).returncode == 0
    kept = b"".join(path.read_bytes() for path in running.state.rglob("*") if path.is_file()) + running.log.read_bytes()
    with JournalReader(next(running.state.rglob("*.journal"))) as reader:
        kept += repr([tick.observation.commands for tick in reader.ticks()]).encode()
    assert b"'ada'" in kept
    assert b"planted" not in kept


def test_nothing_is_open_but_health(running: Running) -> None:
    """Without a token only health answers; metrics have a listener of their own, and want the token too."""
    assert requests.get(f"{running.url}/healthz", timeout=5).json() == {"status": "ok"}
    assert requests.get(f"{running.url}/readyz", timeout=5).status_code == 200
    for method, path in (
        ("GET", "/api/v1/state"),
        ("GET", "/api/v1/recommendations"),
        ("GET", "/api/v1/decisions"),
        ("POST", "/api/v1/kill"),
        ("POST", "/api/v1/recommendations/admit-x-1/approve"),
    ):
        assert requests.request(method, f"{running.url}{path}", timeout=5).status_code == 401
        assert running.ask(path, method, token="x" * 43).status_code == 401
    metrics = f"{read_note(running.state / 'service.json')['metrics']}/metrics"
    assert requests.get(metrics, timeout=5).status_code == 401
    text = requests.get(metrics, headers={"Authorization": f"Bearer {running.token}"}, timeout=5).text
    assert "gpu_autopilot_fleet_capacity_gpus 32.0" in text
    assert running.token not in running.log.read_text("utf-8")


def test_forged_and_malformed_deliveries_change_nothing(running: Running) -> None:
    """Each is answered with its reason; the service goes on, and markup in labels stays text."""
    name = "<script>alert(1)</script>$(reboot)"
    alert = {"status": "firing", "labels": {"alertname": name}, "startsAt": "2026-11-23T12:00:00Z"}
    for body, status in (
        (b"{", 400),
        (b'{"alerts": 5}', 400),
        (b" " * (5 << 20), 413),
        (json.dumps({"version": "4", "alerts": [{**alert, "fingerprint": "00000000000000aa"}]}).encode(), 200),
    ):
        assert running.ask("/api/v1/alerts", "POST", data=body).status_code == status

    def followed() -> dict[str, Any] | None:
        """The alert once its stage says that it has no runbook."""
        found: dict[str, Any] = running.ask("/api/v1/alerts").json()["alerts"][0]
        return found if found["stage"] == "no_runbook" else None

    assert poll(followed, "it is followed")["alert"] == name
    assert running.ask("/api/v1/runbooks/..%2f..%2fetc%2fpasswd").status_code == 404


def test_the_simulated_cluster_serves_exporters_and_inference_servers(running: Running) -> None:
    """Prometheus finds each node and each service, and reads metrics of their real names."""
    url = read_note(running.state / "cluster.json")["url"]
    found = {}
    for kind in ("exporters", "servers"):
        targets = requests.get(f"{url}/sd/{kind}", timeout=5).json()
        path = targets[0]["labels"]["__metrics_path__"]
        found[kind] = len(targets), requests.get(f"http://{targets[0]['targets'][0]}{path}", timeout=5).text
    assert found["exporters"][0] == 4
    assert 'DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-' in found["exporters"][1]
    assert found["servers"][0] == 1
    assert 'vllm:num_requests_waiting{model_name="chat",engine="0"}' in found["servers"][1]
