from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from autopilot.core.model.errors import InputError
from autopilot.core.model.objects import Share, Trust
from simulator.inference.deployments import requests_for
from simulator.scenarios import load_scenario, scenario_names
from simulator.signals.programs import behaviours_of
from simulator.specs.inventory import build_inventory
from simulator.world.placing import never_fits
from simulator.world.work import Jobs, jobs_from_trace
from tests.kits.cluster_kit import cluster_of

SMALL: dict[str, Any] = {
    "horizon": "2h",
    "cluster": "2x8",
    "jobs": {
        "synthetic": {"load": 0.4, "tenants": ["a", "b"]},
        "groups": [{"kind": "notebook", "count": 3, "tenants": ["a"], "duration": "30m"}],
    },
    "services": [
        {
            "name": "chat",
            "tenant": "web",
            "slots": 4,
            "prefill_tokens_per_s": 8000,
            "decode_tokens_per_s": 40,
            "replicas": {"initial": 1, "max": 3},
            "requests": {"mean_rps": 1},
        }
    ],
    "faults": {"node_mtbf": "1h"},
}


def written(tmp_path: Path, **changes: Any) -> Path:
    """A scenario file: SMALL with fields replaced; a dotted name reaches inside, None removes."""
    tree: dict[str, Any] = yaml.safe_load(yaml.safe_dump(SMALL))
    for name, value in changes.items():
        *parents, last = name.split(".")
        place: Any = tree
        for part in parents:
            place = place[int(part) if part.isdigit() else part]
        if value is None:
            del place[last]
        else:
            place[last] = value
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return path


# --- the shipped ones -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", scenario_names())
def test_every_shipped_scenario_can_run_on_its_own_cluster(name: str) -> None:
    """It loads, its file name is its name, and every job and replica fits the cluster that it names."""
    scenario = load_scenario(name)
    assert scenario.name == name
    assert scenario.description
    assert scenario.policies
    hardware = build_inventory(scenario.cluster)
    jobs = jobs_from_trace(scenario.jobs(), hardware)
    cluster = cluster_of(Jobs(), hardware)
    shapes = [*jobs.shapes, *(service.shape(hardware) for service in scenario.services)]
    assert [never_fits(cluster.hardware, shape) for shape in shapes] == [""] * len(shapes)
    queues = {queue.name for queue in scenario.cluster.queues}
    tenants = {*jobs.tenants, *(service.tenant for service in scenario.services)}
    assert not queues or tenants <= queues, "a tenant of the scenario has no queue"


def test_the_demo_is_a_busy_day_of_six_tenants() -> None:
    """128 H100, a day, wide gangs, notebooks, hoarders, three services; asked for: about 0.8 beside them."""
    demo = load_scenario("demo")
    trace = demo.jobs()
    assert demo.cluster.gpus_by_model == {"H100-80GB": 128}
    assert demo.horizon_s == 86_400.0
    tenants = {*trace.tenant.tolist(), *(service.tenant for service in demo.services)}
    assert len(tenants) == 6
    assert int(trace.gpus.max()) >= 32
    assert {"notebook", "hoarder", "train"} <= set(trace.kind.tolist())
    assert len(demo.services) == 3
    assert 0.7 < trace.total_gpu_s / (128 * 86_400) < 0.9
    peaks = [service.load.peak_at_s for service in demo.services if service.load]
    assert len(set(peaks)) == 3, "their peaks lie at different times of the day"


@pytest.mark.parametrize("name", scenario_names())
def test_jobs_depend_on_the_seed_alone(name: str) -> None:
    """One seed, one trace; another seed, another one."""
    scenario = load_scenario(name)
    first, again, other = scenario.jobs(3), scenario.jobs(3), scenario.jobs(4)
    np.testing.assert_array_equal(first.submit_s, again.submit_s)
    np.testing.assert_array_equal(first.job_id, again.job_id)
    assert len(first) != len(other) or (first.duration_s != other.duration_s).any()
    assert (np.diff(first.submit_s) >= 0).all()
    assert len(set(first.job_id.tolist())) == len(first)


def test_synthetic_requests_of_a_scenario_reach_every_service() -> None:
    """Each deployment has its own requests up to the horizon, none before they begin."""
    scenario = load_scenario("quickstart")
    found = requests_for(scenario.services, horizon_s=scenario.horizon_s, seed=scenario.seed)
    t_s = found.sources()[0].upto(scenario.horizon_s).t_s
    assert len(t_s) > 1000
    assert t_s[0] >= 300.0
    assert found.horizon_s == scenario.horizon_s


# --- files ----------------------------------------------------------------------------------------


def test_a_small_file_is_read_with_its_defaults(tmp_path: Path) -> None:
    """What is left out has a stated default; durations are read as people write them."""
    scenario = load_scenario(written(tmp_path))
    assert (scenario.name, scenario.horizon_s, scenario.cluster.gpus) == ("scenario", 7200.0, 16)
    assert (scenario.physics, scenario.telemetry, scenario.durations) == ("real", "windowed", "predicted")
    assert scenario.faults is not None
    assert scenario.faults.node_mtbf_s == 3600.0
    assert scenario.faults.until_s == float("inf")
    chat = scenario.services[0]
    assert (chat.initial_replicas, chat.autoscaler.min_replicas, chat.autoscaler.max_replicas) == (1, 1, 3)
    assert chat.serving.objective_s is None
    group = scenario.job_groups[0]
    assert (group.from_s, group.to_s, group.gpus) == (0.0, 7200.0, (1,))
    kinds = scenario.jobs(1).kind.tolist()
    assert kinds.count("notebook") == 3


def test_work_of_one_program_behaves_alike(tmp_path: Path) -> None:
    """With `images` the level of a job follows user, name and image within a tenth; trust and memory are as stated."""
    group = {"kind": "small-training", "count": 60, "tenants": ["a"], "duration": "30m", "users": 3, "images": 2}
    said = {"trust": "across-tenants", "share": "pair", "memory_gib": 30}
    scenario = load_scenario(written(tmp_path, **{"jobs.synthetic": None, "jobs.groups": [group | said]}))
    jobs = jobs_from_trace(scenario.jobs(1), build_inventory(scenario.cluster))
    assert set(zip(jobs.trust, jobs.share, jobs.peak_memory_gib, strict=True)) == {(Trust.ACROSS, Share.PAIR, 30.0)}
    levels: dict[tuple[str, str], list[float]] = {}
    for user, image, level in zip(jobs.user, jobs.image, behaviours_of(1, jobs)[1].tolist(), strict=True):
        levels.setdefault((user, image), []).append(level)
    assert len(levels) == 6
    assert all(max(each) < 1.23 * min(each) for each in levels.values())
    assert max(map(max, levels.values())) > 1.3 * min(map(min, levels.values()))


def test_only_narrow_synthetic_work_declares_that_it_shares(tmp_path: Path) -> None:
    """Work wider than four GPUs stays as drawn, and the draws are those without the declarations."""
    plain = {"load": 2.0, "tenants": ["a"], "max_width": 16}
    made, said = (
        load_scenario(written(tmp_path, **{"jobs.groups": [], "jobs.synthetic": plain | more})).jobs(1)
        for more in ({}, {"trust": "trusted", "share": "pair"})
    )
    assert made.duration_s.tolist() == said.duration_s.tolist()
    found = set(zip((said.gpus <= 4).tolist(), said.trust.tolist(), said.share.tolist(), strict=True))
    assert found == {(True, "trusted", "pair"), (False, "", "")}


def test_jobs_and_cluster_may_be_files_beside_the_scenario(tmp_path: Path) -> None:
    """Relative paths start at the scenario file's folder, wherever the program runs."""
    (tmp_path / "jobs.csv").write_text("job_id,tenant,submit_s,duration_s,gpus\nx,a,0,60,2\n", encoding="utf-8")
    pool = {"name": "p", "nodes": 1, "gpus_per_node": 4, "gpu_model": "A100-80GB"}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump({"pools": [pool]}), encoding="utf-8")
    path = written(tmp_path, cluster="small.yaml", jobs={"file": "jobs.csv"}, services=[])
    scenario = load_scenario(path)
    assert scenario.cluster.gpus == 4
    assert scenario.jobs().job_id.tolist() == ["x"]


def test_a_bare_off_means_no_telemetry(tmp_path: Path) -> None:
    """YAML 1.1 reads `telemetry: off` as false; people mean the word."""
    path = written(tmp_path)
    path.write_text(path.read_text(encoding="utf-8") + "telemetry: off\n", encoding="utf-8")
    assert load_scenario(path).telemetry == "off"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"horizon": None}, "horizon: is missing"),
        ({"horizon": "soon"}, "horizon: 'soon' is not a duration"),
        ({"cluster": "8by8"}, "neither a shape"),
        ({"cluster": {"pools": []}}, "cluster.pools: .* at least one pool"),
        (
            {"cluster": {"pools": [{"name": "p", "nodes": 1, "gpus_per_node": 8, "gpu_model": "Z9"}]}},
            r"cluster\.pools\[0\]\.gpu_model: 'Z9'",
        ),
        ({"jobs.synthetic.load": "much"}, r"jobs\.synthetic\.load: 'much'"),
        ({"jobs.synthetic.load": None}, r"jobs\.synthetic\.load: is missing"),
        ({"jobs.synthetic.colour": 1}, r"jobs\.synthetic\.colour: no such field"),
        ({"jobs.groups.0.count": -1}, r"jobs\.groups\[0\]\.count: -1"),
        ({"jobs.groups.0.gpus": [0]}, r"jobs\.groups\[0\]\.gpus: \[0\]"),
        ({"jobs.groups.0.from": "3h"}, r"jobs\.groups\[0\]\.to: is missing; write a time after"),
        ({"jobs.groups.0.trust": "friends"}, r"jobs\.groups\[0\]\.trust: 'friends'.*across-tenants"),
        ({"jobs.groups.0.share": "half"}, r"jobs\.groups\[0\]\.share: 'half'.*never, dev, pair"),
        ({"jobs.groups.0.mig_profile": "half"}, r"jobs\.groups\[0\]\.mig_profile: 'half'"),
        ({"jobs.file": "nowhere.csv"}, r"jobs\.file\.path: .*there is no file"),
        ({"services.0.slots": 0}, r"services\[0\]\.slots: 0"),
        ({"services.0.decode_tokens_per_s": float("nan")}, r"services\[0\]\.decode_tokens_per_s: nan"),
        ({"services.0.objective": -3}, r"services\[0\]\.objective: -3"),
        ({"services.0.replicas": None}, r"services\[0\]\.replicas: is missing"),
        ({"services.0.replicas": {"initial": 5, "max": 3}}, r"services\[0\]: .*initial_replicas = 5"),
        ({"services.0.replicas": {"initial": 1, "min": 4, "max": 3}}, r"services\[0\]: .*min_replicas 4"),
        ({"services.0.autoscaler": {"target": 3}}, r"services\[0\]: .*target: 3"),
        (
            {"services.0.gpu_models": ["H100-80GB"]},
            r"services\[0\]\.gpu_models: .*the cluster has no H100-80GB; .*there are A100-80GB",
        ),
        (
            {"services.0.requests": {"mean_rps": 1, "shape": "round"}},
            r"services\[0\]\.requests\.shape: 'round'",
        ),
        (
            {
                "services.0.requests": {
                    "mean_rps": 1,
                    "bursts": {"per_day": 0, "factor": 2, "rise": "5m", "length": "1h", "daily": ["25h"]},
                }
            },
            r"bursts\.daily: .*times of day from 0h to 24h",
        ),
        (
            {"services": [SMALL["services"][0], copy.deepcopy(SMALL["services"][0])]},
            r"services\[1\]\.name: 'chat' occurs twice",
        ),
        ({"faults.node_mtbf": -1}, r"faults\.node_mtbf: -1"),
        ({"faults.conflict_ratio": 2}, r"faults\.conflict_ratio: 2"),
        ({"faults.gremlins": 2}, r"faults\.gremlins: no such field"),
        ({"physics": "magic"}, "physics: 'magic'.*ideal, charged, real"),
        ({"policies": []}, "policies: .*list of names"),
        ({"seed": -1}, "seed: -1"),
        ({"jobs": None, "services": None}, "neither jobs nor services"),
    ],
)
def test_a_mistake_is_one_message_with_file_field_and_value(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """Every refusal is an InputError that names the place; no traceback from within."""
    with pytest.raises(InputError, match=message) as error:
        load_scenario(written(tmp_path, **changes))
    assert "scenario.yaml" in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_name_is_answered_with_the_list() -> None:
    """A mistyped scenario lists those that exist."""
    with pytest.raises(
        InputError,
        match=r"neither a file nor a shipped scenario; did you mean demo.*demo.*notebooks",
    ):
        load_scenario("demmo")


def test_an_empty_or_broken_file_is_one_clear_error(tmp_path: Path) -> None:
    """Empty, not YAML, not a mapping: each has its message."""
    path = tmp_path / "x.yaml"
    for text, message in (("", "is empty"), ("a: [", "invalid YAML"), ("- 1", "not a mapping")):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=message):
            load_scenario(path)
