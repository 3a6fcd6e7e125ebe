"""The playground on sockets: a clock that stands during exchanges, a controller that sees what the simulator is."""

from __future__ import annotations

import json
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.world import build_world
from autopilot.core.model.errors import InputError
from autopilot.core.model.modes import Mode
from autopilot.operate.finding import find_api
from autopilot.operate.where import Where
from autopilot.playground.agreement import disagreements
from autopilot.playground.live import AtMost, Live, controller_site, go_live
from autopilot.playground.run import free_address, what_to_try, write_private
from autopilot.settings import StaticPolicySource, shipped_policy
from tests.conftest import ROOT
from tests.kits.playground_kit import job, stage_of
from tests.kits.playground_proposals import compare, shown, simulated


@pytest.fixture
def live() -> Iterator[Live]:
    """A quickstart that answers, at 100 virtual seconds per second."""
    with go_live(stage_of(speed=100.0, token="secret"), tls=False) as running:
        yield running


def ask(live: Live, path: str, method: str = "GET", token: str = "secret", **more: object) -> requests.Response:
    """One request, as a client without kubectl sends it."""
    headers = {"Authorization": f"Bearer {token}"}
    return requests.request(method, f"{live.api.url}{path}", headers=headers, timeout=10, **more)  # type: ignore[arg-type]


def test_it_answers_only_with_its_token(live: Live) -> None:
    """The nodes of the scenario, and 401 for anybody else."""
    names = [each["metadata"]["name"] for each in ask(live, "/api/v1/nodes").json()["items"]]
    assert names == [f"default-00{number}" for number in range(4)]
    assert ask(live, "/api/v1/nodes", token="wrong").status_code == 401


def test_time_passes_at_its_speed_and_stands_while_it_is_held(live: Live) -> None:
    """And what a request changes is in the simulation before the request is answered."""
    clock = live.stage.clock
    before_s, began_s = clock.virtual_s, time.monotonic()
    while clock.virtual_s < before_s + 20.0:
        assert time.monotonic() < began_s + 30.0
        ask(live, "/api/v1/nodes")
    with clock.hold():
        held_s = clock.virtual_s
        answer = ask(live, "/apis/batch/v1/namespaces/vision/jobs", "POST", json=job("mine"))
        assert answer.status_code == 201
        assert "vision/mine" in live.stage.cluster.jobs.id
        assert clock.virtual_s == held_s
        assert disagreements(live.stage.cluster, live.stage.projection, held_s) == []
        assert answer.headers["date"] == ask(live, "/api/v1/nodes").headers["date"]


def test_metrics_of_each_node_name_the_pods(live: Live) -> None:
    """In the format of dcgm-exporter, found by the service discovery of Prometheus."""
    with live.stage.clock.hold():
        live.stage.clock.run_to(900.0)
        targets = requests.get(f"{live.metrics.url}/sd/exporters", timeout=10).json()
        assert len(targets) == 4
        text = "".join(requests.get(address, timeout=10).text for address in live.exporters())
        pods = {each["metadata"]["name"] for each in live.stage.server.store.objects("pods")}
    named = {
        line.partition('pod="')[2].partition('"')[0]
        for line in text.splitlines()
        if line.startswith("DCGM_FI_DEV_GPU_UTIL")
    }
    assert named - {""}
    assert named - {""} <= pods


def test_fifteen_minutes_of_quickstart_agree(tmp_path: Path) -> None:
    """API and simulator at every tick, and the proposals of both sides at every moment."""
    world = build_world(SimulateOptions(scenario="quickstart"))
    there, wrong = shown(world, 900.0, tmp_path, check=True)
    assert wrong == 0
    result = compare(simulated(world, 900.0), there)
    assert result.ticks == 30
    assert result.simulated_only == result.playground_only == []


def test_proposals_agree_while_nodes_are_lost(tmp_path: Path) -> None:
    """Spot nodes are reclaimed at once: what is proposed then is the same on both sides."""
    text = (ROOT / "simulator" / "scenarios" / "spot-cascade.yaml").read_text("utf-8")
    assert text.count("spot_at: 1h") == 1
    (tmp_path / "soon.yaml").write_text(text.replace("spot_at: 1h", "spot_at: 20m"), "utf-8")
    world = build_world(SimulateOptions(scenario=str(tmp_path / "soon.yaml")))
    there, wrong = shown(world, 1500.0, tmp_path, check=True)
    result = compare(simulated(world, 1500.0), there)
    assert wrong == 0
    assert result.equal > 20
    assert result.ratio >= 0.95
    assert {"recover", "admit_gang"} <= {key[0] for found in there.values() for key in found}


def test_the_controller_sees_the_cluster_through_the_api_alone(live: Live, tmp_path: Path) -> None:
    """Its view is whole, under Kueue's queues."""
    (tmp_path / "config").write_text(live.api.kubeconfig("secret"))
    site = controller_site(live, tmp_path / "config")
    end = site.watch(lambda _hurry: None)
    try:
        with site.still():
            batch = site.collector.collect(site.now_s())
    finally:
        end()
    assert batch.gaps == ()
    assert batch.inventory is not None
    assert len(batch.inventory.gpus.uuid) == 32
    assert batch.work is not None
    assert batch.work_list.complete
    assert {"vision", "language", "assistants"} <= set(batch.work.queues.id.tolist())


def test_a_port_that_another_process_holds_is_not_taken() -> None:
    """A service runs beside the playground: its metrics port stays its own, and a free one is found."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        taken = f"127.0.0.1:{held.getsockname()[1]}"
        found = free_address(taken)
    assert found is not None
    assert found != taken
    assert free_address(found) == found
    assert free_address(None) is None


def test_what_to_try_names_the_kubeconfig_and_a_namespace(live: Live, tmp_path: Path) -> None:
    """With kubectl and without it."""
    text = "\n".join(what_to_try(live.stage, live, tmp_path / "config", "secret", "http://127.0.0.1:9470"))
    for words in (str(tmp_path / "config"), "kubectl -n vision create job", "curl -s", "autopilot recommendations"):
        assert words in text


def test_what_to_try_names_the_state_that_commands_must_find(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --state the commands find the service by the variable that is printed before them."""
    state = tmp_path / "my state"
    lines = what_to_try(live.stage, live, state / "config", "secret", "http://x", state=state)
    (export,) = (each.strip() for each in lines if "GPU_AUTOPILOT_STATE" in each)
    assert lines.index(f"  {export}") + 1 == lines.index("  autopilot recommendations")
    name, _, value = export.removeprefix("export ").partition("=")
    monkeypatch.setenv(name, *shlex.split(value))
    state.mkdir()
    (state / "admin.token").write_text("t", "utf-8")
    note = {"url": "http://127.0.0.1:1", "token_file": str(state / "admin.token")}
    (state / "service.json").write_text(json.dumps(note), "utf-8")
    assert find_api(Where()).url == "http://127.0.0.1:1"


def test_what_to_try_says_how_to_approve(live: Live, tmp_path: Path) -> None:
    """Where the autopilot acts on what a person approves."""
    lines = what_to_try(live.stage, live, tmp_path / "config", "secret", "http://127.0.0.1:9470", Mode.APPROVE)
    assert "  kubectl annotate recommendation NAME gpu-autopilot.io/approve=yes" in lines
    assert "the autopilot in charge of what a person approves" in lines[0]


def test_no_mode_of_a_policy_goes_further_than_that_of_the_playground() -> None:
    """The policy stays the same object while nothing changes."""
    source = AtMost(StaticPolicySource(shipped_policy("autopilot")), Mode.APPROVE)
    modes = source.current().modes
    assert (modes.admit_gang, modes.recover, modes.enforce_limit) == (Mode.APPROVE, Mode.APPROVE, Mode.APPROVE)
    assert source.current() is source.current()
    assert source.problem is None


def test_a_port_that_is_taken_is_one_message(live: Live) -> None:
    """With the flag."""
    with pytest.raises(InputError, match=r"--port: .* cannot be used"):
        go_live(stage_of(), port=live.api.port, tls=False)


def test_the_kubeconfig_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    """It holds a token."""
    write_private(tmp_path / "a" / "config", "x")
    assert (tmp_path / "a" / "config").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed; run make test-services")
def test_kubectl_reads_creates_and_deletes(tmp_path: Path) -> None:
    """The commands that the playground prints; kubectl sends its token by TLS only."""
    with go_live(stage_of(speed=10.0, token="secret")) as live:
        use_kubectl(live, tmp_path)


def use_kubectl(live: Live, tmp_path: Path) -> None:
    """Read, create, describe and delete."""
    config = tmp_path / "config"
    config.write_text(live.api.kubeconfig("secret"))

    def kubectl(*words: str) -> subprocess.CompletedProcess[str]:
        command = ["kubectl", "--kubeconfig", str(config), "--cache-dir", str(tmp_path / "cache"), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    nodes = kubectl("get", "nodes").stdout
    assert nodes.count("Ready") == 4
    made = kubectl("-n", "vision", "create", "job", "mine", "--image=busybox", "--", "sleep", "20m")
    assert made.stdout == "job.batch/mine created\n"
    shown = kubectl("-n", "vision", "get", "pods,jobs,workloads").stdout
    assert "pod/mine-0-" in shown
    assert "job.batch/mine" in shown
    assert "workload.kueue.x-k8s.io/job-mine-" in shown
    assert "Suspend:" in kubectl("-n", "vision", "describe", "job", "mine").stdout
    assert "are simulated and print nothing" in kubectl("-n", "vision", "logs", "job/mine").stderr
    kubectl("-n", "vision", "delete", "job", "mine")
    assert "mine" not in kubectl("-n", "vision", "get", "pods,jobs,workloads").stdout
