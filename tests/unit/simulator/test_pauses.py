"""Work that waits at a step boundary makes no progress, and takes nothing but memory."""

from __future__ import annotations

import numpy as np
import pytest

from autopilot.core.model.objects import SharingConfig, Subject, SubjectKind
from autopilot.core.model.records import Instruction, Outcome, OutcomeKind
from autopilot.core.model.verb import Operation
from autopilot.core.neighbours.pausing import Pause, Resume
from simulator.running.cluster_actuator import ClusterActuator
from simulator.signals.occupants import Occupants
from tests.kits.cluster_kit import make_jobs
from tests.unit.simulator.test_sharing import SLICED, Shared

WHOLE = None


class Pausing(Shared):
    """A world whose work is paused by instructions."""

    def __init__(self, jobs: int, config: SharingConfig | None, *, saves: bool = True) -> None:
        super().__init__(make_jobs([(0, 1000, 1)] * jobs, saves_on_request=saves), [(0.7, 1.0, 0.0)] * jobs, config)
        self.actuator = ClusterActuator(self.cluster)
        self.told: list[Outcome] = []

    def send(self, at_s: float, operation: Operation, incarnation: int = 0) -> None:
        """An instruction about the first job."""
        subject = Subject(SubjectKind.WORKLOAD, self.jobs.id[0], "job-0", incarnation)
        instruction = Instruction(f"{at_s}", subject, operation, at_s + 60.0, 1, "p")
        self.at(at_s, lambda now_s: self.told.append(self.actuator.apply(instruction, now_s)))


def pause(seconds: float) -> Pause:
    """A request to pause."""
    return Pause(seconds=seconds, again=False, victim="v", victim_uid="v")


@pytest.mark.parametrize(
    ("pauses", "resumes", "end_s"),
    [
        ([(100.0, 300.0)], [], 1300.0),  # by itself
        ([(100.0, 300.0)], [200.0], 1100.0),
        ([(100.0, 300.0), (300.0, 300.0)], [], 1500.0),  # asked for again
        ([(100.0, 300.0), (300.0, 300.0)], [350.0], 1250.0),
        ([(100.0, 300.0), (700.0, 100.0)], [], 1400.0),  # twice
        ([(900.0, 300.0)], [], 1300.0),  # over its old end
    ],
)
def test_a_pause_makes_the_end_later_by_its_length(
    pauses: list[tuple[float, float]], resumes: list[float], end_s: float
) -> None:
    """On whole GPUs; it ends by itself, or earlier."""
    world = Pausing(1, WHOLE)
    world.starts((0, 0, [0]))
    for at_s, seconds in pauses:
        world.send(at_s, pause(seconds))
    for at_s in resumes:
        world.send(at_s, Resume())
    world.run()
    assert {each.kind for each in world.told} == {OutcomeKind.DONE}
    assert world.cluster.end_s[0] == end_s


def test_the_neighbour_of_paused_work_goes_on_alone() -> None:
    """On a GPU that software shares; the GPU shows the activity of one."""
    worlds = [Pausing(2, SLICED), Pausing(2, SLICED)]
    for world in worlds:
        world.starts((0, 0, [0]), (0, 1, [0]))
    worlds[0].send(100.0, pause(300.0))
    for world in worlds:
        world.run()
    (paused, ends), (usual, other) = (world.cluster.end_s for world in worlds)
    assert ends < other - 100.0  # it was alone for 300 s
    assert paused == pytest.approx(usual, abs=60.0)  # and makes room for the other earlier


def test_paused_work_holds_memory_and_computes_nothing() -> None:
    """Its telemetry shows no SM activity, and the usual after it."""
    world = Pausing(1, WHOLE)
    occupants = Occupants(world.cluster, 1)
    world.starts((0, 0, [0]))
    usual: list[int] = []
    world.at(50.0, lambda _: usual.append(int(occupants.state.archetype[0])))
    world.send(100.0, pause(300.0))
    world.engine.advance(150.0)
    assert (int(occupants.state.job_code[0]), float(occupants.state.level[0])) == (0, 0.0)
    assert world.cluster.progress_s(0, 150.0) == 100.0
    world.engine.advance(450.0)
    assert int(occupants.state.archetype[0]) == usual[0]
    assert not np.isnan(world.cluster.progress_s(0, 450.0))


@pytest.mark.parametrize(
    ("saves", "incarnation", "operation", "words"),
    [
        (False, 0, pause(60.0), "takes no pauses"),
        (True, 1, pause(60.0), "was restarted"),
        (True, 0, Resume(), "is not paused"),
    ],
)
def test_what_cannot_pause_says_why(saves: bool, incarnation: int, operation: Operation, words: str) -> None:
    """Work without a helper, another run of it, and work that goes on already."""
    world = Pausing(1, WHOLE, saves=saves)
    world.starts((0, 0, [0]))
    world.send(100.0, operation, incarnation)
    world.run()
    assert words in world.told[0].reason
    assert world.cluster.end_s[0] == 1000.0


def test_a_stop_ends_a_pause() -> None:
    """Evicted work keeps its progress up to the pause, and runs on later without it."""
    world = Pausing(1, WHOLE)
    world.starts((0, 0, [0]))
    world.send(100.0, pause(300.0))
    world.at(200.0, lambda now_s: world.cluster.evict(0, now_s))
    world.at(500.0, lambda now_s: world.cluster.start(0, [0], now_s))
    world.run()
    assert not world.cluster.paused
    assert world.cluster.end_s[0] == 500.0 + 900.0
