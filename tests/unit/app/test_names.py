"""Names in policy, cluster and scenario files: each means something that exists, or is refused with the nearest one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.named import check_policies
from autopilot.app.runs.plan import plan_at
from autopilot.app.runs.simulate import simulate
from autopilot.app.runs.world import build_world
from autopilot.core.model.errors import InputError, nearest, unknown_name
from autopilot.core.model.policy import Policy
from autopilot.core.model.policy.bounds import Protection, SloClassName
from autopilot.core.model.snapshot import SLO_CLASS_NAMES
from autopilot.settings import load_policy, parse_policy
from simulator.scenarios import load_scenario
from simulator.specs.clusterfile import parse_cluster
from tests.kits.core_world import AUTO
from tests.properties.strategies import Held
from tests.unit.shell.test_controller import built, one_waits

POOL = "{name: train, nodes: 2, gpus_per_node: 8, gpu_model: H100-80GB}"
QUEUES = "queues: [{name: research, guarantee: {H100-80GB: 8}}"


def refused(text: str, folder: Path) -> str:
    """The message with which a cluster file is refused."""
    path = folder / "cluster.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        parse_cluster(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


def test_the_classes_of_a_policy_are_those_of_the_work() -> None:
    """One list of names, in one order."""
    assert tuple(SloClassName) == SLO_CLASS_NAMES
    assert Policy().protection == Protection(classes=(SloClassName.LATENCY_CRITICAL,))


@pytest.mark.parametrize("name", ["latency_critical", "Latency-Critical", "latency-criticall", "batch ", "gold", ""])
def test_a_misspelt_class_does_not_load(name: str) -> None:
    """It would protect nothing."""
    with pytest.raises(InputError, match=r"mine\.yaml: protection\.classes\[0\]: .*one of latency-critical") as caught:
        parse_policy(f"protection: {{classes: ['{name}']}}", "mine.yaml")
    assert ("did you mean" in str(caught.value)) is (name not in ("gold", ""))


@pytest.mark.parametrize(
    ("text", "field", "near"),
    [
        (f"pools: [{POOL}]\nqueus: []", "queus", "queues"),
        (f"poools: [{POOL}]", "pools", ""),
        (
            "pools: [{name: a, nodes: 1, gpus_per_nod: 8, gpu_model: T4, gpus_per_node: 8}]",
            "pools[0].gpus_per_nod",
            "gpus_per_node",
        ),
        (f"pools: [{POOL.replace('H100-80GB', 'H100-80BG')}]", "pools[0].gpu_model", "H100-80GB"),
        (
            f"pools: [{POOL.replace('}', ', mig: {geometry: {1g.10bg: 7}}}')}]",
            "pools[0].mig[0].geometry.1g.10bg",
            "1g.10gb",
        ),
        (f"pools: [{POOL}]\n{QUEUES}, {{name: a, parent: reserch}}]", "queues[1].parent", "research"),
        (f"pools: [{POOL}]\n{QUEUES.replace('H100', 'H10')}]", "queues[0].guarantee.H10-80GB", "H100-80GB"),
        (f"pools: [{POOL}]\nqueues: [{{name: a, limit: {{al: 3}}}}]", "queues[0].limit.al", "all"),
        (f"pools: [{POOL}]\nqueues: [{{name: a, order: indx}}]", "queues[0].order", "index"),
        (f"pools: [{POOL}]\nqueues: [{{name: a, within_queue: lowr}}]", "queues[0].within_queue", "lower"),
        (f"pools: [{POOL}]\nqueues: [{{name: a, gurantee: {{}}}}]", "queues[0].gurantee", "guarantee"),
        (
            f"pools: [{POOL}]\n{QUEUES}]\nreservations: "
            f"[{{name: r, queue: Reserch, gpu_model: T4, gpus: 1, from: 1h}}]",
            "reservations[0].queue",
            "research",
        ),
        (
            f"pools: [{POOL}]\n{QUEUES}]\nreservations: "
            f"[{{name: r, queue: research, gpu_model: h100, gpus: 1, from: 1h}}]",
            "reservations[0].gpu_model",
            "H100-80GB",
        ),
    ],
)
def test_a_name_in_a_cluster_file_that_nothing_bears_is_refused(
    text: str, field: str, near: str, tmp_path: Path
) -> None:
    """The message names the file, the field and the nearest name."""
    message = refused(text, tmp_path)
    assert f": {field}: " in message
    assert not near or f"did you mean {near}?" in message


def scenario(folder: Path, queues: str, tenants: str) -> Path:
    """A scenario of one pool with these queues and tenants."""
    path = folder / "s.yaml"
    path.write_text(
        f"horizon: 1h\ncluster: {{pools: [{POOL}], queues: [{queues}]}}\n"
        f"jobs: {{groups: [{{kind: train, count: 4, tenants: [{tenants}], duration: 5m}}]}}\n",
        encoding="utf-8",
    )
    return path


@pytest.mark.parametrize(("queue", "tenant"), [("reserch", "research"), ("Research", "research"), ("team_1", "team-1")])
def test_a_queue_that_its_tenant_misses_by_a_slip_is_refused(queue: str, tenant: str, tmp_path: Path) -> None:
    """The tenant would be guaranteed nothing, and nothing would say so."""
    path = scenario(tmp_path, f"{{name: {queue}}}", tenant)
    with pytest.raises(InputError, match=f"'{queue}': no tenant has this name, did you mean {tenant}\\?"):
        build_world(SimulateOptions(scenario=str(path)))


def test_queues_and_tenants_that_do_not_meet_are_told(tmp_path: Path) -> None:
    """Other names are no slip: a queue whose tenants have no work now, a tenant without an agreement."""
    path = scenario(tmp_path, "{name: up}, {name: team-1, parent: up}, {name: lab}", "lab, team-2")
    assert build_world(SimulateOptions(scenario=str(path))).notes == (
        "queues without work: team-1",
        "tenants without a queue, and so without a guarantee: team-2",
    )


MISSPELT = "base: autopilot\nprice_weight: {H100-80BG: 2}"


def test_a_gpu_model_that_the_cluster_lacks_stops_the_start(tmp_path: Path) -> None:
    """Every command that plays a policy on a cluster names the policy file, the field and the nearest model."""
    path = tmp_path / "mine.yaml"
    path.write_text(MISSPELT, encoding="utf-8")
    said = r"mine\.yaml: price_weight\.H100-80BG: no node has this GPU model; did you mean H100-80GB\?"
    cluster = scenario(tmp_path, "", "a")
    with pytest.raises(InputError, match=said):
        simulate(SimulateOptions(scenario=str(cluster), policies=(str(path),)))
    with pytest.raises(InputError, match=said):
        plan_at(SimulateOptions(scenario=str(cluster)), 60.0, str(path))
    good = parse_policy(MISSPELT.replace("80BG", "80GB"), "good.yaml")
    assert good.price_weight == {"H100-80GB": 2.0}


def test_a_pool_that_the_cluster_lacks_stops_the_start(tmp_path: Path) -> None:
    """A slip in its name would leave the pool as it is."""
    path, cluster = tmp_path / "mine.yaml", scenario(tmp_path, "", "lab")
    path.write_text("base: autopilot\ncapacity: {pools: {trian: 4}}", encoding="utf-8")
    with pytest.raises(InputError, match=r"capacity\.pools\.trian: no node is of this pool; did you mean train\?"):
        plan_at(SimulateOptions(scenario=str(cluster)), 60.0, str(path))


def test_policies_and_scenarios_are_answered_with_the_nearest() -> None:
    """A shipped name with a slip in it."""
    with pytest.raises(InputError, match=r"did you mean autopilot\?"):
        check_policies(("autopilott",))
    with pytest.raises(InputError, match=r"did you mean fifo-skip\?"):
        check_policies(("fifo_skip",))
    with pytest.raises(InputError, match=r"did you mean demo\?"):
        load_scenario("demmo")
    with pytest.raises(InputError, match=r"--durations: .*did you mean exact\?"):
        SimulateOptions(durations="exat")


def test_a_value_that_its_base_contradicts_names_both_files(tmp_path: Path) -> None:
    """What the file does not say comes from its base, and the message says so."""
    path = tmp_path / "mine.yaml"
    path.write_text("base: autopilot\nbudget: {per_cluster: 3}", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_policy(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: budget.concurrent: 4 exceeds budget.per_cluster (3)")
    assert said.endswith("; budget.concurrent comes from its base, the shipped policy autopilot")


def test_near_is_said_of_short_names_alone() -> None:
    """A megabyte is compared with nothing, and a name that is right is near to itself only."""
    assert nearest("x" * 1_000_000, ["x"]) == ""
    assert nearest("batch", ["batch"]) == ""
    assert unknown_name("zzz", [f"n{number}" for number in range(30)], most=2) == "there are n0, n1 and 28 more"
    assert unknown_name("a", []) == "there are none"


def test_two_jobs_of_one_id_from_two_sources_are_refused(tmp_path: Path) -> None:
    """A scenario may take jobs from several places; an id stands for one of them."""
    (tmp_path / "jobs.csv").write_text(
        "job_id,tenant,submit_s,duration_s,gpus\ntrain-0-0001,lab,0,10,1\n", encoding="utf-8"
    )
    path = scenario(tmp_path, "", "lab")
    text = path.read_text(encoding="utf-8").replace("jobs: {", "jobs: {file: jobs.csv, ")
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="two jobs have the id 'train-0-0001'"):
        build_world(SimulateOptions(scenario=str(path)))


def test_a_name_that_the_cluster_lost_is_told_at_every_tick() -> None:
    """A model, queue or pool that leaves the cluster cannot stop the loop: it is a gap, of no object of the cluster."""
    grows = replace(AUTO.capacity, pools={"empty": 4})
    policy = replace(AUTO, price_weight={"A100-80BG": 2.0}, capacity=grows)
    step = built(world := one_waits(), policy=Held(policy)).tick(0.0)
    assert step is not None
    assert [item.subject.name for item in step.instructions] == ["a"]
    gap, third = world.seen[0][0].gaps
    assert (gap.source, gap.object_id) == ("policy", "price_weight.A100-80BG")
    assert "did you mean A100-80GB?" in gap.reason
    assert (third.source, third.object_id) == ("policy", "capacity.pools.empty")
    assert third.reason.startswith("no node is of this pool; there are ")


@pytest.mark.parametrize("number", ["0x" + "f" * 10_000, "9" * 10_000])
def test_a_number_of_thousands_of_digits_is_one_message(number: str, tmp_path: Path) -> None:
    """In a policy, a cluster file or a scenario: the line is named, and the digits are not repeated."""
    path = tmp_path / "x.yaml"
    path.write_text(f"pools: [{POOL.replace('nodes: 2', f'nodes: {number}')}]", encoding="utf-8")
    for read in (parse_cluster, load_policy, load_scenario):
        with pytest.raises(InputError, match=r"x\.yaml line 1, column .*a number of [\d,]+ characters") as caught:
            read(path)
        assert len(str(caught.value)) < 400
