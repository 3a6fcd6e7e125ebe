"""Hardware that lies and spot nodes that go: the shipped controller from the error to the end of the work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from autopilot.core.model.policy import Mode, Modes, Policy
from autopilot.core.model.records import NoteCode
from autopilot.core.model.snapshot import State
from simulator.running.faults import XID_FIRMWARE_TIMEOUT
from simulator.running.simulation import Simulation
from simulator.scenarios import SHIPPED
from simulator.world.facts import Evicting, Why
from tests.simulation.kit import AUTOPILOT, Ran, Setup, run, scenario

SMALL = """
name: silent
horizon: 2h
cluster:
  pools: [{name: h100, nodes: 2, gpus_per_node: 4, gpu_model: H100-80GB}]
jobs:
  groups: [{kind: train, count: 2, tenants: [a], gpus: [4], duration: 1h, spread: 0, from: 0h, to: 0h}]
physics: real
telemetry: "off"
durations: exact
"""
HOUR_S = 3600.0


class Told:
    """Evictions: workload, time and reason."""

    def __init__(self) -> None:
        self.found: list[tuple[float, int, Why]] = []

    def on_evicting(self, fact: Evicting) -> None:
        """Keep it."""
        self.found.append((fact.at_s, fact.job, fact.why))


def silenced(folder: Path, policy: Policy = AUTOPILOT) -> tuple[Ran, Told]:
    """After ten minutes one GPU of the first node hangs and reports it, for an hour; it stays in use."""
    told = Told()

    def change(simulation: Simulation, _controller: object) -> None:
        cluster = simulation.cluster
        cluster.observe(told)
        simulation.engine.at(600.0, lambda now_s: cluster.silence_gpu(1, now_s, XID_FIRMWARE_TIMEOUT, HOUR_S))
        simulation.engine.at(4200.0, lambda now_s: cluster.restore_gpu(1, now_s))

    return run(scenario(SMALL, folder), Setup(policy=policy, change=change)), told


def test_a_gang_on_a_gpu_that_hangs_is_stopped_once_and_goes_on_elsewhere(tmp_path: Path) -> None:
    """Evicted at the instant of the error; it waits for the other node, and starts on its own when that was
    repaired.
    """
    ran, told = silenced(tmp_path)
    assert ran.simulated.found.violations == ()
    assert [(at_s, why) for at_s, _, why in told.found] == [(600.0, Why.RECOVER)]
    assert set(ran.cluster.state) == {int(State.SUCCEEDED)}
    assert sum(ran.cluster.evictions) == 1


def test_without_recovery_it_holds_its_gpus_for_nothing(tmp_path: Path) -> None:
    """The same world with the action off: the gang hangs until it notices, and comes to its end later."""
    off = replace(AUTOPILOT, modes=replace(AUTOPILOT.modes, recover=Modes().recover))
    (with_it, _), (without, told) = silenced(tmp_path), silenced(tmp_path, off)
    assert told.found == []
    assert without.simulated.found.violations == ()
    assert without.simulated.run.end_s > with_it.simulated.run.end_s
    assert without.simulated.totals.all.overhead > 5 * with_it.simulated.totals.all.overhead


def cascade(folder: Path, policy: Policy, **changes: str) -> Ran:
    """The shipped spot cascade, with words of it changed."""
    words = (SHIPPED / "spot-cascade.yaml").read_text(encoding="utf-8")
    for was, now in changes.items():
        words = words.replace(was, now)
    return run(scenario(words, folder, seed=4), Setup(policy=policy, telemetry="off"))


def test_a_spot_notice_saves_what_the_store_can_take(tmp_path: Path) -> None:
    """Five writers and two minutes: less is lost than without requests to save, and unsaved work was named in time."""
    planned = replace(AUTOPILOT, preemption=replace(AUTOPILOT.preemption, checkpoint_writers=5))
    off = replace(planned, modes=replace(planned.modes, recover=Modes().recover))
    with_it, without = cascade(tmp_path, planned), cascade(tmp_path, off)
    assert with_it.simulated.found.violations == without.simulated.found.violations == ()
    lost, before = with_it.simulated.totals.all.lost, without.simulated.totals.all.lost
    assert lost < 0.7 * before
    told = {
        moment.observation.now_s
        for moment in with_it.tape.moments
        if any(p.action == "recover" and p.accepted for p in moment.decision.plan.proposals)
    }
    assert told
    assert min(told) >= HOUR_S
    assert max(told) < HOUR_S + 120.0
    codes = {note.code for moment in with_it.tape.moments for note in moment.decision.notes}
    assert codes <= {"too_slow_to_save", "makes_no_checkpoint", NoteCode.NO_TURN_TO_SAVE}


LIMITED = """
name: limited
horizon: 3h
cluster:
  pools: [{name: h100, nodes: 1, gpus_per_node: 4, gpu_model: H100-80GB}]
jobs:
  groups:
    - {kind: train, count: 1, tenants: [a], gpus: [4], duration: 2h, spread: 0, from: 0h, to: 0h, limit_ratio: 0.5}
    - {kind: train, count: 1, tenants: [a], gpus: [4], duration: 10m, spread: 0, from: 5m, to: 5m, limit_ratio: 2}
physics: real
telemetry: "off"
durations: exact
"""


def test_work_past_its_limit_is_saved_and_makes_room(tmp_path: Path) -> None:
    """It declared an hour and takes two: warned for a quarter of an hour, saved, gone; the next gang has its GPUs."""
    calm = replace(AUTOPILOT, preemption=replace(AUTOPILOT.preemption, time_sharing=False))
    auto = replace(calm, modes=replace(calm.modes, enforce_limit=Mode.AUTO))
    (ran, told), (shipped, untold) = limited(tmp_path, auto), limited(tmp_path, calm)
    assert ran.simulated.found.violations == shipped.simulated.found.violations == ()
    ((at_s, job, why),) = told.found
    assert (job, why) == (0, Why.SUSPEND)
    assert 4500.0 <= at_s <= 4560.0
    assert ran.cluster.state == [int(State.FAILED), int(State.SUCCEEDED)]
    assert ran.cluster.first_start_s[1] - at_s < 130.0
    assert ran.simulated.totals.all.lost == 0
    assert (untold.found, shipped.cluster.state) == ([], [int(State.SUCCEEDED)] * 2)


def limited(folder: Path, policy: Policy) -> tuple[Ran, Told]:
    """One run of it."""
    told = Told()
    return run(
        scenario(LIMITED, folder),
        Setup(policy=policy, change=lambda simulation, _: simulation.cluster.observe(told)),
    ), told
