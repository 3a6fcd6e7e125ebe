"""What GPUs did over a run, as expected from who held them."""

from __future__ import annotations

import numpy as np
import pytest

from autopilot.app.runs.recorder import StayRecorder
from simulator.baselines import BASELINES
from simulator.running.simulation import Simulation
from simulator.signals.occupants import Occupants
from simulator.signals.programs import behaviours_of
from simulator.signals.telemetry import SM, TelemetryGenerator
from simulator.world.physics import IDEAL, REAL, Physics
from simulator.world.work import Jobs
from tests.kits.cluster_kit import gang, inventory, make_jobs

SEED, SCRAPE_S = 3, 30.0


def busy_jobs() -> Jobs:
    """Two days' worth of training on 16 GPUs, with enough changes that `las` stops some of it."""
    jobs = Jobs()
    for number in range(16):
        width, submit_s = (2, 4, 8)[number % 3], 2_000.0 * number
        jobs.add(f"j{number}", "t", gang(width), submit_s, 12_000.0, kind="train", restart_s=600.0)
    return jobs


@pytest.mark.parametrize("physics", [IDEAL, REAL], ids=lambda each: each.name)
@pytest.mark.parametrize("name", ["fifo-skip", "las"])
def test_the_samples_average_to_what_is_expected_stay_by_stay(name: str, physics: Physics) -> None:
    """Every scrape of every GPU under a baseline, summed up, is the expected SM-active time; start-up is not active."""
    jobs = busy_jobs()
    simulation = Simulation(inventory(2, 8), jobs, lambda _cluster: BASELINES[name](), physics)
    stays = StayRecorder(simulation.cluster)
    occupants, generator = Occupants(simulation.cluster, SEED), TelemetryGenerator(SEED)
    sampled = []

    def scrape(now_s: float) -> None:
        values, _ = generator.sample(round(now_s / SCRAPE_S), occupants.entities, occupants.state)
        sampled.append(float(np.nansum(values[SM])) * SCRAPE_S)
        simulation.engine.at(now_s + SCRAPE_S, scrape, essential=False)

    simulation.engine.at(SCRAPE_S, scrape, essential=False)
    simulated = simulation.run()
    stays.know(*behaviours_of(SEED, jobs))
    expected = stays.active_gpu_s()
    assert simulated.run.complete
    assert expected == pytest.approx(sum(sampled), rel=0.02)


def test_activity_until_a_moment_ends_there() -> None:
    """Up to half of the only stay half of its activity was there; before its start none."""
    jobs = make_jobs([(100.0, 1000.0, 8)], kind="train")
    simulation = Simulation(inventory(1, 8), jobs, lambda _cluster: BASELINES["fifo"]())
    stays = StayRecorder(simulation.cluster)
    simulation.run()
    assert stays.active_gpu_s() is None
    stays.know(np.ones(1, np.int8), np.full(1, 0.5, np.float32))
    assert [stays.active_gpu_s(until_s) for until_s in (50.0, 600.0, 5000.0)] == [0.0, 2000.0, 4000.0]
