"""The API shows what the simulator holds, at every instant; and the checker that says so notices when it does not."""

from __future__ import annotations

from functools import partial
from math import isfinite

import pytest

from actuators.kubernetes.mig_node import CONFIG, STATE
from autopilot.app.options import SimulateOptions
from autopilot.app.runs.simulate import simulate
from autopilot.core.model.errors import InputError
from autopilot.playground.agreement import disagreements
from autopilot.playground.projection import Projection
from simulator.world.facts import Stopped
from tests.kits.playground_kit import found_until, person, stage_of


@pytest.mark.parametrize(
    ("scenario", "to_s"),
    [
        ("quickstart", 1800.0),
        ("demo", 1800.0),
        ("mig-churn", 3600.0),
        ("mig-nodes", 1800.0),
        ("spot-cascade", 7200.0),
        ("reclaim-storm", 7200.0),
    ],
)
def test_the_api_agrees_with_the_simulator_at_every_instant(scenario: str, to_s: float) -> None:
    """Nodes, Jobs, Workloads and the pods on each node."""
    assert found_until(stage_of(scenario), to_s) == []


def test_the_engine_does_what_it_does_without_an_api() -> None:
    """Every start is at the time at which the baseline starts it."""
    stage = stage_of()
    stage.clock.run_to(1800.0)
    options = SimulateOptions(scenario="quickstart", policies=("kueue",), telemetry="off", series=False)
    alone = simulate(options).policies[0].simulated.cluster
    starts = [at_s for at_s in stage.cluster.first_start_s if isfinite(at_s)]
    assert len(starts) > 40
    assert starts == [at_s for at_s in alone.first_start_s[: len(stage.cluster.first_start_s)] if at_s <= 1800.0]


def test_the_checker_notices_a_stop_that_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the projection misses that one job has left its GPUs."""
    honest = Projection.on_stopped
    missed: list[int] = []

    def forgetful(self: Projection, fact: Stopped) -> None:
        if not missed or missed == [fact.job]:
            missed.append(fact.job)
            return
        honest(self, fact)

    monkeypatch.setattr(Projection, "on_stopped", forgetful)
    found = found_until(stage_of(), 1800.0)
    assert missed
    assert any("holds 0 GPUs" in each for each in found)
    assert any("Finished of its Workload is False" in each for each in found)


def test_the_checker_notices_a_pod_on_another_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: two nodes are mixed up."""
    stage = stage_of()
    names = stage.projection.nodes.names
    stage.projection._objects._nodes = [names[1], names[0], *names[2:]]
    assert any("and its pods show" in each for each in found_until(stage, 1800.0))


def test_the_checker_notices_a_node_that_is_shown_as_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the projection misses that a node was lost."""
    monkeypatch.setattr(Projection, "on_node", lambda _self, _fact: None)
    stage = stage_of()

    def lose(now_s: float) -> None:
        stage.cluster.fail_node(0, now_s)

    stage.engine.at(60.0, lose)
    assert any("ready is False, and Ready is True" in each for each in found_until(stage, 120.0))


def test_work_reports_its_checkpoints_as_it_makes_them() -> None:
    """The first pod of a gang that saves states when; the collector of the simulator knows the same."""
    stage = stage_of("reclaim-storm")
    stage.clock.run_to(7200.0)
    start_s, told = stage.projection.start_s, 0
    for job in stage.cluster.holding:
        gang = stage.projection.gangs[job]
        notes = [pod["metadata"]["annotations"].get("gpu-autopilot.io/last-checkpoint") for pod in gang.shown.values()]
        known = stage.cluster.last_checkpoint_s(job, 7200.0)
        if isfinite(known):
            told += 1
            assert float(notes[0] or "nan") == pytest.approx(start_s + known, abs=0.01)
    assert told


def test_a_scenario_with_shared_gpus_is_refused() -> None:
    """Pods cannot request a part of a GPU."""
    with pytest.raises(InputError, match="mixed has jobs that request a part of a GPU"):
        stage_of("mixed")


def test_a_speed_out_of_range_is_refused() -> None:
    """With the range."""
    with pytest.raises(InputError, match="--speed: 0 is not allowed"):
        stage_of(speed=0)


def test_a_replica_that_waits_is_bound_when_there_is_room() -> None:
    """Its pod is gated while every node is cordoned, and is the same pod on its node afterwards."""
    stage = stage_of()
    nodes = range(len(stage.projection.nodes.names))

    def cordon(now_s: float, *, cordoned: bool) -> None:
        for node in nodes:
            stage.cluster.cordon(node, now_s, cordoned=cordoned)

    stage.engine.at(1.0, partial(cordon, cordoned=True))
    assert found_until(stage, 1800.0) == []
    waiting = [job for job in stage.cluster.pending if stage.cluster.jobs.service[job] >= 0]
    assert waiting
    before = stage.projection.gangs[waiting[0]].name
    stage.engine.at(1801.0, partial(cordon, cordoned=False))
    assert found_until(stage, 1830.0) == []
    assert waiting[0] in stage.cluster.holding
    assert stage.projection.gangs[waiting[0]].name == before


def test_the_checker_notices_instances_that_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the projection misses that the GPUs of a node change."""
    monkeypatch.setattr(Projection, "on_recut", lambda _self, _fact: None)
    monkeypatch.setattr(Projection, "on_recutting", lambda _self, _fact: None)
    stage = stage_of("mig-nodes")
    person(stage).patch("nodes", "", "h100-002", {"metadata": {"labels": {CONFIG: "all-3g.40gb"}}})
    missing = "node h100-002: 0 of nvidia.com/mig-1g.10gb work, and allocatable is 14"
    stage.clock.run_to(30.0)
    assert disagreements(stage.cluster, stage.projection, 30.0) == [missing]


def test_a_label_that_cannot_be_carried_out_changes_nothing() -> None:
    """An entry that the file lacks, and one that the GPUs cannot have: the state is failed, and the node offers all."""
    stage = stage_of("mig-nodes")
    ada = person(stage)
    file = ada.get("configmaps", "gpu-operator", "gpu-autopilot-mig")
    assert file is not None
    more = "  nine: [{devices: all, mig-enabled: true, mig-devices: {1g.10gb: 9}}]\n"
    ada.patch(
        "configmaps", "gpu-operator", "gpu-autopilot-mig", {"data": {"config.yaml": file["data"]["config.yaml"] + more}}
    )
    for value in ("unheard-of", "nine"):
        ada.patch("nodes", "", "h100-002", {"metadata": {"labels": {CONFIG: value, STATE: None}}})
        stage.clock.run_to(stage.clock.virtual_s + 1.0)
        assert disagreements(stage.cluster, stage.projection, stage.clock.virtual_s) == []
        node = ada.get("nodes", "", "h100-002")
        assert node is not None
        assert node["metadata"]["labels"][STATE] == "failed"
        assert node["status"]["allocatable"]["nvidia.com/mig-1g.10gb"] == "14"
