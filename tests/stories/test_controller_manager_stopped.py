"""kube-controller-manager stands still after an eviction, and one start stops no more than it needs.

Kueue writes the eviction on the Workload at once; the pods keep their GPUs until the Job controller deletes them, which
takes as long as that stands still (recording 35).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kits.acting_kit import CHECKED
from tests.kits.deciding_kit import Deciding
from tests.kits.killed_stories import STOPPING
from tests.kits.killed_stories import play as tell
from tests.kits.kueue_kit import JOBS
from tests.kits.playground_acting import policy_of
from tests.kits.standing import EVERY, USUAL, WORST, Standing
from tests.kits.stopping_stories import STORIES, play

NODES = 8


class Borrowed(Deciding):
    """Eight nodes of eight GPUs that queue `owner` is guaranteed; eight gangs of queue `borrower` run on them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, policy_of(), NODES)
        cohort: dict[str, Any] = {"cohortName": "all", "admissionChecksStrategy": CHECKED}
        self.kueue.queue("owner", 8 * NODES, preemption={"reclaimWithinCohort": "Any"}, **cohort)
        self.kueue.queue("borrower", 0, **cohort)
        for number in range(NODES):
            self.submit(f"train-{number}", "borrower")
        self.wait(60.0)
        assert len({each for number in range(NODES) for each in self.hosts(f"train-{number}")}) == NODES

    def submit(self, name: str, queue: str) -> None:
        """A Job of eight GPUs."""
        self.ask("POST", JOBS, self.kueue.job_of(name, queue, 8))

    def told(self) -> set[str]:
        """Gangs that were told to stop, whether Kueue has looked or not."""
        names = [f"train-{number}" for number in range(NODES)]
        return {name for name in names if not self.workload(name)["spec"].get("active", True)} | set(self.stopped())

    def begin_again(self) -> None:
        """Another process takes over, with nothing in its memory."""
        with self.running.clock.lock:
            self._begin()

    def stopped(self) -> list[str]:
        """Gangs that Kueue has counted as evicted, or that are about to be."""
        names = [f"train-{number}" for number in range(NODES)]
        return [name for name in names if self.revision(self.job(name)["metadata"]["uid"]) > 0]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Borrowed]:
    """That cluster."""
    found = Borrowed(tmp_path)
    yield found
    found.close()


def test_one_start_stops_one_gang(cluster: Borrowed) -> None:
    """While it stands still nothing more is stopped, and the start follows once it goes on."""
    cluster.stop_controllers()
    cluster.submit("owed", "owner")
    cluster.wait(120.0)
    assert len(cluster.stopped()) == 1
    cluster.stop_controllers(stopped=False)
    cluster.wait(20.0)
    assert cluster.hosts("owed")
    assert len(cluster.stopped()) == 1


@pytest.mark.parametrize("stops", ["kube-controller-manager", "kueue"])
def test_a_new_leader_without_memory_stops_nobody_else(cluster: Borrowed, stops: str) -> None:
    """It sees in the cluster what leaves, also where Kueue has not answered the Retry of our check yet."""
    process = cluster.kueue.server.process(stops)
    if stops == "kube-controller-manager":
        process.stop()
    cluster.submit("owed", "owner")
    cluster.until(cluster.told, 30.0)
    process.stop()
    for _ in range(3):
        cluster.begin_again()
        cluster.wait(20.0)
    assert len(cluster.told()) == 1
    process.resume()
    cluster.until(lambda: cluster.hosts("owed"))
    assert len(cluster.told()) == 1


STANDINGS = [pytest.param(each, marks=() if each in {USUAL, WORST} else pytest.mark.soak) for each in EVERY]


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("standing", STANDINGS, ids=str)
def test_one_start_stops_one_gang_in_every_story(story: str, standing: Standing, tmp_path: Path) -> None:
    """However long the Job controller stands still and pods take to end: one gang goes, and the other one starts."""
    play(story, tmp_path, standing.stands_s, standing.ends_s)


AT_HOME = {"idle_reclaim", "idle_service"}
"""The test of such a story is itself told with the longest standing, that of another one with the shortest."""
PLAYS = [
    pytest.param(name, each, marks=() if each == WORST else pytest.mark.soak, id=f"{name}-{each}")
    for each in EVERY
    for name in STOPPING
    if each != WORST or name not in AT_HOME
]


@pytest.mark.parametrize(("name", "standing"), PLAYS)
def test_a_story_ends_as_told_and_stops_no_more(
    name: str, standing: Standing, tmp_path: Path, require_tool: Callable[[str], str]
) -> None:
    """What it states holds once the GPUs of stopped work are free, and nothing else is stopped meanwhile."""
    told = tell(name, 0, tmp_path, require_tool, standing)
    assert not told.problems, told.problems
