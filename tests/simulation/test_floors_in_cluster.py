"""A service with a burst beside training: the autopilot with a forecast, without one, and with planted bugs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from autopilot.app.runs.world import World
from autopilot.core.replicas.scale import Scale
from autopilot.records.journal import JournalReader
from autopilot.records.replay import replay
from simulator.inference.autoscaler import Autoscaler, Scaling
from simulator.inference.service_state import Service
from tests.kits.demand_world import Growing
from tests.kits.policies import simulated
from tests.simulation.kit import AUTOPILOT, Ran, Setup, faulty_world, run, scenario

REACTIVE = simulated(modes__scale_ahead="off")

BURST = """
name: small-burst
horizon: 100m
cluster:
  pools:
    - {name: h100, nodes: 2, gpus_per_node: 6, gpu_model: H100-80GB}
  queues:
    - {name: product, guarantee: {H100-80GB: 8}, priority: 10}
    - {name: research, guarantee: {H100-80GB: 4}}
jobs:
  groups:
    - {kind: train, count: 40, tenants: [research], gpus: [1], duration: 12m, spread: 0.5, to: 80m}
services:
  - name: chat
    tenant: product
    slots: 8
    prefill_tokens_per_s: 8000
    decode_tokens_per_s: 60
    objective: 20s
    load_time: 3m
    replicas: {initial: 3, min: 1, max: 8}
    autoscaler: {target: 0.7, period: 30s}
    requests: {mean_rps: 3, shape: azure, swing: 0, from: 6m, bursts: {per_day: 60, factor: 3, rise: 8m, length: 10m}}
physics: real
telemetry: "off"
policies: [reactive, autopilot]
"""


def world(folder: Path) -> World:
    """Two bursts in a hundred minutes."""
    return scenario(BURST, folder, seed=4)


def late_ratio(ran: Ran) -> float:
    """Requests over their objective, as the collector last saw them, summed over the ticks of whole minutes."""
    minutes = {int(m.observation.now_s // 60): m.observation.snapshot.services for m in ran.tape.moments}
    asked = sum(float(table.recent_rps[0]) for table in minutes.values() if table.recent_rps[0] > 0)
    late = sum(
        float(table.recent_rps[0] * table.recent_violation_ratio[0])
        for table in minutes.values()
        if table.recent_rps[0] > 0 and table.recent_violation_ratio[0] >= 0
    )
    return late / asked


def floors(ran: Ran) -> list[int]:
    """The floors that were asked for, in order."""
    return [
        each.change.replicas
        for moment in ran.tape.moments
        for each in moment.decision.plan.proposals
        if isinstance(each.change, Scale) and each.accepted
    ]


@pytest.fixture(scope="module")
def ahead(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Path]:
    """A run with a forecaster that foresees the bursts, and its journal."""
    folder = tmp_path_factory.mktemp("ahead")
    path = folder / "run.journal"
    ran = run(world(folder), Setup(demand=Growing(1.8), journal=path))
    ran.close()
    return ran, path


def test_a_floor_ahead_of_the_burst_spares_violations_and_is_given_back(
    ahead: tuple[Ran, Path], tmp_path: Path
) -> None:
    """Less than half of the late requests of the reactive policy; no promise is broken; every floor ends."""
    reactive, early = run(world(tmp_path), Setup(policy=REACTIVE)), ahead[0]
    assert reactive.violated == early.violated == set()
    assert floors(reactive) == []
    assert max(floors(early)) > 3
    assert late_ratio(early) < late_ratio(reactive) / 2
    assert late_ratio(reactive) > 0.02
    stands = [int(moment.observation.snapshot.services.floor[0]) for moment in early.tape.moments]
    assert max(stands) > 3
    assert stands[-1] == 0


def test_what_was_foreseen_is_in_the_journal(ahead: tuple[Ran, Path]) -> None:
    """Replay decides the same without any model; the forecasts are read as they were written."""
    ran, path = ahead
    again = replay(path)
    assert again.identical
    assert again.ticks == len(ran.tape.moments)
    with JournalReader(path) as reader:
        for record, moment in zip(reader.ticks(), ran.tape.moments, strict=True):
            kept, made = record.observation.forecasts.demand, moment.observation.forecasts.demand
            assert [each.values.tobytes() for each in kept] == [each.values.tobytes() for each in made]
            assert [each.made_s for each in kept] == [each.made_s for each in made]


class Silent(Growing):
    """Says nothing in the second half of the run."""

    def update(self, now_s: float, snapshot: object) -> None:
        """Stop listening."""
        if now_s < 2400.0:
            super().update(now_s, snapshot)  # type: ignore[arg-type]


def test_a_forecaster_that_falls_silent_leaves_the_service_to_its_autoscaler(tmp_path: Path) -> None:
    """Its last forecast ages, the last floor on it lapses with its lease, nothing else is changed, and the verdict
    says why.
    """
    ran = run(world(tmp_path), Setup(demand=Silent(1.8)))
    assert ran.violated == set()
    after = [moment for moment in ran.tape.moments if moment.observation.now_s > 2400.0 + 180.0 + 1800.0]
    assert {int(moment.observation.snapshot.services.floor[0]) for moment in after} == {0}
    late = [proposal for moment in after for proposal in moment.decision.plan.proposals if proposal.kind == "scale"]
    assert late
    assert {verdict.code for proposal in late for verdict in proposal.verdicts if not verdict.allowed} == {
        "forecast_stale"
    }


@pytest.mark.seeds(6)
def test_floors_keep_their_promises_while_everything_goes_wrong(soak_seed: int, tmp_path: Path) -> None:
    """Nodes fail, effects are lost, late or refused: no promise is broken, and the run is decided again alike."""
    path = tmp_path / "run.journal"
    ran = run(faulty_world(2 + soak_seed, tmp_path, horizon_min=30), Setup(demand=Growing(2.0), journal=path))
    ran.close()
    assert ran.violated == set()
    assert any(each.kind == "scale" for moment in ran.tape.moments for each in moment.decision.plan.proposals)
    assert replay(path).identical


# --- planted bugs -----------------------------------------------------------------------------------

USUAL = Autoscaler.decide


def never_more_than_foreseen(self: Autoscaler, *given: float, **named: float) -> Scaling:
    """The floor is taken for the number of replicas."""
    found = USUAL(self, *given, **named)  # type: ignore[arg-type]
    floor = int(given[5]) if len(given) > 5 else 0
    return found._replace(replicas=min(found.replicas, floor)) if floor else found


def kept_for_ever(self: Service, _now_s: float) -> tuple[int, float]:
    """The lease is forgotten."""
    return self._floor, self._floor_until_s


@pytest.mark.soak
@pytest.mark.parametrize(
    ("place", "name", "bug"),
    [(Autoscaler, "decide", never_more_than_foreseen), (Service, "floor", kept_for_ever)],
    ids=["below-the-need", "not-given-back"],
)
def test_a_planted_bug_is_found_out(
    place: type, name: str, bug: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer replicas than the load needs, and a floor that outlives its lease: the checker says so."""
    monkeypatch.setattr(place, name, bug)
    assert "floors" in run(world(tmp_path), Setup(policy=AUTOPILOT, demand=Silent(1.2))).violated
