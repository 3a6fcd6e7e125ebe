"""One family of signals of the demo fails for an hour: no healthy work is stopped.

The runs are a slice of the demo: four of its nodes, with its queues, services, work and owners, and with spot notices
and failing GPUs. The policy acts on idle and hung work as soon as its bounds allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from autopilot.app.runs.world import World
from autopilot.core.idle import follow as evidence
from autopilot.core.intake.usage import activity as verdict
from autopilot.core.intake.usage.facts import SnapshotFacts
from autopilot.core.model.snapshot import Bools, ClusterSnapshot
from autopilot.core.recovery import hangs
from collectors import exposition
from simulator.running.simulation import Simulation
from simulator.signals.signal_faults import FAULTS, TEXT_FAMILIES, Kind, SignalFault, SignalFaults
from tests.kits.policies import simulated
from tests.simulation.kit import Moment, Ran, Setup, run, scenario

DEMO = Path(__file__).parents[2] / "simulator" / "scenarios" / "demo.yaml"
SHIPPED = simulated()
EAGER = replace(
    SHIPPED,
    recovery=replace(SHIPPED.recovery, hung_after_s=1800.0),
    idle=replace(SHIPPED.idle, interactive_grace_s=300.0, batch_grace_s=300.0, gone_s=1800.0),
)
NODES, BEGIN_S, FAULT_S, AFTER_S, SOON_S = 4, 1800.0, 3600.0, 3600.0, 600.0
"""The fault begins and lasts; what follows is watched for an hour, in every test run for ten minutes."""
IN_CI = {
    "profiling-zeroed-one-node",
    "power-removed",
    "exporter-swapped-one-node",
    "exporter-frozen",
    "pods-removed",
    "rates-doubled",
}
"""Names of the faults that every test run plays; `make soak` plays all."""

NO_ROOM = {"conditions", "allocatable", "lists"}
"""Families without which no GPU may be given away: what is owed meanwhile comes late."""


def slice_of_the_demo(folder: Path) -> World:
    """The demo on four nodes, its work in the first minutes."""
    given = yaml.safe_load(DEMO.read_text("utf-8"))
    (pool,) = given["cluster"]["pools"]
    given["cluster"]["pools"] = [
        {**pool, "nodes": NODES - 1},
        {**pool, "name": "spot", "nodes": 1, "spot": True},
    ]
    for queue in given["cluster"]["queues"]:
        queue["guarantee"] = {model: gpus * NODES // pool["nodes"] for model, gpus in queue["guarantee"].items()}
    given["jobs"]["synthetic"]["load"] = 0.1
    for group in given["jobs"]["groups"]:
        group |= {"count": max(1, group["count"] // 6), "from": "0m", "to": "10m"}
        if group["kind"] == "train":
            group |= {"duration": "3h", "gpus": [8, 16] if min(group["gpus"]) > 8 else group["gpus"]}
    for service in given["services"]:
        service["requests"]["mean_rps"] *= NODES / pool["nodes"]
        service["replicas"] |= {"initial": max(1, service["replicas"]["initial"] // 3), "min": 1}
    given |= {
        "horizon": f"{(BEGIN_S + FAULT_S + AFTER_S) / 60:.0f}m",
        "faults": {"gpu_mtbf": "80h", "gpu_app_ratio": 0.3, "gpu_reset_ratio": 0.3, "gpu_hang_ratio": 0.2}
        | {"spot_mtbr": "60m", "spot_notice": "5m", "member_mtbf": "60h"},
        "telemetry": "full",
        "durations": "last-two",
    }
    return scenario(yaml.safe_dump(given), folder, 7)


def play(folder: Path, fault: SignalFault, after_s: float) -> Ran:
    """The slice with a fault of an hour, up to `after_s` after it."""

    def ends(simulation: Simulation, _controller: object) -> None:
        simulation.engine.horizon_s = BEGIN_S + FAULT_S + after_s

    signals = SignalFaults(replace(fault, from_s=BEGIN_S, to_s=BEGIN_S + FAULT_S))
    return run(slice_of_the_demo(folder), Setup(policy=EAGER, signals=signals, change=ends))


def during(ran: Ran) -> list[Moment]:
    """The ticks in which the fault has lasted for the longest window of telemetry."""
    return [each for each in ran.tape.moments if BEGIN_S + 1800 <= each.observation.now_s < BEGIN_S + FAULT_S]


@pytest.mark.parametrize(
    "fault", [pytest.param(each, id=each.name, marks=() if each.name in IN_CI else pytest.mark.soak) for each in FAULTS]
)
def test_a_fault_of_signals_stops_no_healthy_work(fault: SignalFault, tmp_path: Path) -> None:
    """The checkers know what was broken or idle. What is removed lowers the share that is measured, or leaves a gap."""
    ran = play(tmp_path, fault, SOON_S if fault.name in IN_CI else AFTER_S)
    late = {"guarantees"} if fault.family in NO_ROOM else set()
    assert [each for each in ran.simulated.found.violations if each.checker not in late] == []
    moments = during(ran)
    assert moments
    if fault.family in {"all-activity", "exporter"} and fault.kind is Kind.REMOVED:
        assert all(each.observation.signals.measured_ratio < 1.0 for each in moments)
    if fault.family in TEXT_FAMILIES and fault.kind is Kind.REMOVED:
        assert any(each.observation.gaps for each in moments)


def test_there_are_thirty_faults_and_six_in_every_test_run() -> None:
    """Each family and kind once for all nodes, and once for one where it belongs to nodes."""
    names = [each.name for each in FAULTS]
    assert len(names) == len(set(names)) >= 30
    assert set(names) >= IN_CI
    assert len(IN_CI) == 6


def test_a_controller_that_believes_counters_alone_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: nothing contradicts profiling counters that stand at 0."""

    def nothing(snapshot: ClusterSnapshot) -> Bools:
        return np.zeros(len(snapshot.gpus.uuid) + len(snapshot.instances.id), np.bool_)

    def believed(_fields: object, nodes: Sequence[str]) -> Bools:
        return np.zeros(len(nodes), np.bool_)

    for module in (hangs, verdict, evidence):
        monkeypatch.setattr(module, "contradicted", nothing)
    monkeypatch.setattr(vars(SnapshotFacts)["contradicted"], "function", nothing)
    monkeypatch.setattr(exposition, "dead_counters", believed)
    ran = play(tmp_path, SignalFault("profiling", Kind.ZEROED), SOON_S)
    assert "healthy" in ran.violated
