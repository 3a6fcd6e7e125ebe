"""`simulate --engine kueue`: Kueue's rules run the cluster, and the autopilot beside it only recommends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autopilot.app.options import ENGINE_NAMES, SimulateOptions
from autopilot.app.runs.simulate import SimulationOutcome, simulate
from autopilot.cli import main
from autopilot.records.journal import JournalReader
from autopilot.records.replay import replay
from simulator.baselines import BASELINES
from simulator.baselines.kueue import Kueue, cohort_specs
from simulator.running.simulation import Simulation
from simulator.running.turn import QUIET_S, AdvisedScheduler
from simulator.specs.clusterqueues import ROOT, QueueSpec
from tests.kits.cluster_kit import inventory, make_jobs

CLUSTER = """
pools:
  - {name: p, nodes: 2, gpus_per_node: 8, gpu_model: A100-80GB}
queues:
  - {name: a, guarantee: {A100-80GB: 8}}
  - {name: b, guarantee: {A100-80GB: 4}}
"""
JOBS = """job_id,tenant,submit_s,duration_s,gpus
b0,b,0,4000,8
b1,b,0,3000,8
a0,a,70,900,8
a1,a,80,600,2
c0,c,100,500,1
b2,b,200,400,16
"""
ELASTIC = """job_id,tenant,submit_s,duration_s,gpus,nodes,min_gpus
c0,c,0,900,12,3,12
c1,c,60,900,16,4,4
"""
"""c1 may start with 4 GPUs; the engine waits for all 16."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster with quotas, and work that exceeds them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "jobs.csv").write_text(JOBS)
    return tmp_path


def beside(engine: str | None, *policies: str, **more: object) -> SimulationOutcome:
    """A run of the files, with the engine in charge or with the policies themselves."""
    options = {"jobs": Path("jobs.csv"), "cluster": "cluster.yaml", "telemetry": "off", "series": False, **more}
    return simulate(SimulateOptions(engine=engine, policies=policies, **options))  # type: ignore[arg-type]


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a refused command says."""
    with pytest.raises(SystemExit) as ended:
        main(["simulate", "--jobs", "jobs.csv", "--cluster", "cluster.yaml", *arguments])
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_the_engine_does_the_same_with_and_without_the_autopilot_beside_it() -> None:
    """Starts, stops and evictions are those of the baseline, although the autopilot proposes something."""
    alone = beside(None, "kueue").policies[0]
    advised = beside("kueue").policies[0]
    for column in ("first_start_s", "end_s", "evictions", "incarnation"):
        assert repr(getattr(advised.simulated.cluster, column)) == repr(getattr(alone.simulated.cluster, column))
    assert alone.result["disruptions"]["preemptions"] > 0
    assert advised.name == "kueue + recommend"


def test_what_it_recommends_is_not_carried_out(folder: Path) -> None:
    """It recommends to start the elastic gang narrow; the engine does not know how, and the gang waits."""
    (folder / "jobs.csv").write_text(ELASTIC)
    advised = beside("kueue").policies[0]
    assert advised.result["advice"]["by_action"]["admit_gang"] > 0
    assert advised.simulated.cluster.first_start_s == [0.0, 900.0]


def test_the_autopilot_decides_at_every_multiple_of_the_interval(folder: Path) -> None:
    """And at no other time, so that another run can be compared at the same moments."""
    outcome = beside("kueue", "recommend", journal=folder / "run.journal", interval_s=60.0)
    with JournalReader(folder / "run.journal") as reader:
        times_s = [record.observation.now_s for record in reader.ticks()]
    assert times_s == [60.0 * number for number in range(len(times_s))]
    assert len(times_s) == outcome.policies[0].result["advice"]["ticks"]
    assert times_s[-1] <= outcome.policies[0].simulated.run.end_s


def test_the_journal_replays(folder: Path) -> None:
    """With the engine's rule set, whatever the policy names."""
    beside("kueue", "recommend", journal=folder / "run.journal")
    assert replay(folder / "run.journal").identical


def test_a_run_that_cannot_go_on_ends(folder: Path) -> None:
    """Work above what its queue may borrow never starts; the autopilot alone does not keep such a run alive."""
    (folder / "cluster.yaml").write_text(CLUSTER.replace("name: b,", "name: b, borrow_limit: 4,"))
    outcome = beside("kueue", interval_s=600.0)
    assert "1 job waits" in outcome.policies[0].simulated.run.stuck
    assert outcome.policies[0].result["advice"]["ticks"] < (8000 + QUIET_S) / 600


def test_the_result_names_the_engine(folder: Path) -> None:
    """The document says who was in charge and what was recommended."""
    done = json.loads(json.dumps(beside("kueue").document()))
    assert done["engine"] == "kueue"
    advice = done["policies"]["kueue + recommend"]["advice"]
    assert advice["proposals"] == sum(advice["by_action"].values())
    assert beside(None, "kueue").document()["engine"] is None


def test_the_names_in_the_help_are_baselines() -> None:
    """An engine is a baseline."""
    assert set(ENGINE_NAMES) <= set(BASELINES)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--engine", "slurm"), "--engine: 'slurm' is not one of kueue"),
        (("--engine", "kueue", "--policy", "fifo"), "fifo is a baseline and cannot recommend beside an engine"),
        (("--engine", "kueue", "--policy", "autopilot"), "modes.admit_gang: auto would act"),
        (("--engine", "kueue", "--policy", "nosuch"), "nosuch"),
        (("--interval", "1m"), "--interval: applies beside an engine only"),
        (("--engine", "kueue", "--interval", "2h"), "--interval: 7200 s is not allowed"),
    ],
)
def test_what_cannot_be_run_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    """One message that names the flag, the value and the fix."""
    assert words in refusal(capsys, *arguments)


def test_the_cohort_owns_what_no_queue_is_guaranteed() -> None:
    """Every queue and every tenant without one is below it; guarantees above the capacity leave it nothing."""
    jobs = make_jobs([(0, 10, 1)])
    cluster = Simulation(inventory(2, 8), jobs, lambda _: Kueue()).cluster
    model = cluster.inventory.names.gpu_models[0]
    specs = (
        QueueSpec("x", ROOT, {model: 6}, None, 1.0, 0, None),
        QueueSpec("y", "x", {model: 2}, None, 1.0, 0, None),
    )
    found = {spec.name: spec for spec in cohort_specs(specs, cluster)}
    assert found["cohort"].guarantee == {model: 16}
    assert found["x"].parent == found[jobs.tenants[0]].parent == "cohort"
    assert found["y"].parent == "x"
    wide = (QueueSpec("cohort", ROOT, {model: 20}, None, 1.0, 0, None),)
    assert cohort_specs(wide, cluster)[0] == QueueSpec("cohort-", ROOT, {model: 20}, None, 1.0, 0, "submission")


def test_the_controller_sees_a_moment_after_the_engine() -> None:
    """At one instant the engine acts first."""
    order: list[str] = []

    class Slow:
        wake_at_s = 0.0

        def tick(self, now_s: float) -> None:
            order.append(f"controller {now_s:g}")

    class Engine(Kueue):
        def decide(self, now_s: float) -> None:
            order.append(f"engine {now_s:g}")
            super().decide(now_s)

    jobs = make_jobs([(0, 45, 1), (30, 10, 1)])
    Simulation(inventory(1, 8), jobs, lambda _: AdvisedScheduler(Engine(), Slow(), 30.0)).run()
    assert order == ["engine 0", "controller 0", "engine 30", "controller 30", "engine 40", "engine 45"]
