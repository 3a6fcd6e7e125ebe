"""Every story with a controller that dies at one boundary: nothing is lost, nothing is done twice, the story ends.

    played = play("backfill", 17)

`STORIES` names the stories of tests/stories. A story is the test function that tells it, so that what it states is
also asked after a death.
"""

from __future__ import annotations

import importlib
import inspect
import json
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from actuators.kubernetes.actuator import KubernetesActuator
from autopilot.contract.annotations import MIG_GEOMETRY
from autopilot.core.geometry.recut import RecutGpu
from autopilot.core.model.records import Instruction, Outcome, OutcomeKind
from tests.kits.acting_story import Begin
from tests.kits.killing import TAKEOVER_S, Boundaries, Killed, MortalDeciding, MortalRun, make_mortal
from tests.kits.mig_kit import Scene
from tests.kits.standing import USUAL, Standing
from tests.kits.tools import find_tool


@dataclass(frozen=True)
class Told:
    """One story: the function that tells it, its boundaries (at least), and the stops of work that are part of it.

    0 boundaries: somebody is faster than the controller in it, so that nothing may delay that one's writes.
    """

    function: str
    boundaries: int
    stops: int = 0
    of: str = ""  # its file, tests/stories/test_NAME.py, where several stories are told there
    way: str = ""  # the parameter of its function
    ours: bool = True  # the autopilot makes the stops
    scales: bool = False  # it takes replicas from a service


STORIES = {
    "api_server_down": Told("test_an_outage_harms_nothing", 28),
    "approval_by_annotation": Told("test_an_approval_is_carried_out_once", 33),
    "backfill": Told("test_short_work_starts_in_the_gaps_before_a_gang", 75),
    "defragment": Told("test_narrow_work_moves_together_for_a_wide_gang", 76, stops=1),
    "drain_answered": Told("test_what_is_left_saves_before_it_moves", 30, stops=1, of="node_drain"),
    "drain_of_a_gang": Told("test_a_gang_leaves_a_node_that_is_drained_as_a_whole", 30, stops=1, of="node_drain"),
    "drain_of_a_job": Told(
        "test_a_job_without_kueue_whose_pods_all_left_starts_elsewhere", 28, stops=1, of="node_drain"
    ),
    "drain_without_a_place": Told("test_a_gang_without_another_place_waits_as_a_whole", 28, stops=1, of="node_drain"),
    "drain_without_loss": Told(
        "test_a_gang_of_the_playground_moves_without_loss", 27, stops=1, of="node_drain", ours=False
    ),
    "gang_admitted_whole": Told("test_a_gang_waits_until_all_of_it_has_room", 39),
    "idle_reclaim": Told("test_idle_work_yields_and_its_owner_brings_it_back", 56, stops=1),
    "idle_service": Told("test_an_idle_service_makes_room_until_it_is_asked_for", 107, scales=True),
    "job_without_kueue": Told("test_it_starts_whole_at_its_place_once_there_is_room", 26),
    "kueue_down": Told("test_an_outage_of_kueue_is_waited_out", 162),
    "lost_node": Told("test_a_gang_moves_away_from_a_lost_node", 29, stops=1, ours=False),
    "lost_node_without_kueue": Told(
        "test_work_whose_node_is_lost_is_stopped_and_starts_elsewhere", 16, stops=1, of="tenant_without_kueue"
    ),
    "mig_for_a_job": Told("test_the_autopilot_cuts_a_gpu_for_a_job_that_waits", 24, of="mig_regeometry"),
    "mig_mode_off": Told("test_a_node_leaves_mig_mode_for_a_gang", 41, of="mig_mode"),
    "mig_mode_on": Told("test_a_node_of_whole_gpus_enters_mig_mode_for_requests", 33, of="mig_mode"),
    "mig_regeometry": Told("test_a_gpu_is_cut_for_work_that_waits", 15),
    "node_fills_up": Told(
        "test_a_gang_whose_place_fills_up_in_part_starts_elsewhere", 0, stops=1, of="node_fills_up", way="kueue"
    ),
    "node_fills_up_plain": Told(
        "test_a_gang_whose_place_fills_up_in_part_starts_elsewhere", 0, stops=1, of="node_fills_up", way="plain"
    ),
    "preempt_for_inference": Told("test_a_victim_saves_before_it_leaves", 53, stops=1),
    "spot_drain": Told("test_work_leaves_a_spot_node_in_time", 36, stops=1),
}

MORTAL = sorted(name for name, told in STORIES.items() if told.boundaries)
"""Those in which the controller may die."""
STOPPING = sorted(name for name, told in STORIES.items() if (told.stops and told.ours) or told.scales)
"""Those in which the autopilot stops work."""


@dataclass
class Played:
    """What came of one story."""

    boundaries: int  # that were passed in all
    died: str  # at which one; "" where there are fewer
    problems: list[str] = field(default_factory=list)


def play(
    name: str,
    at: int,
    folder: Path,
    tool: Callable[[str], str] = find_tool,
    standing: Standing | None = None,
    *,
    stands: bool = False,
) -> Played:
    """Tell a story whose controller dies at boundary `at`; 0: it lives, and the boundaries are counted.

    `tool`: the path of kubectl. `standing`: the controller-manager stands still from the first stop on; with `stands`
    from boundary `at` on, where nothing dies then.
    """
    told, boundaries = STORIES[name], Boundaries(at, stands)
    module = importlib.import_module(f"tests.stories.test_{told.of or name}")
    tell: Callable[..., None] = getattr(module, told.function)
    asks = inspect.signature(tell).parameters
    where = on_playground if "begin" in asks else on_nodes if "scene" in asks else on_pods
    problems = where(module, partial(call, tell, tool, told.way), told, Way(boundaries, standing, folder))
    doubled = [f"done twice: {each}" for each in boundaries.doubled() if not stands]  # a late start is tried again
    return Played(boundaries.passed, boundaries.where, [*problems, *doubled])


@dataclass(frozen=True)
class Way:
    """How a story is played."""

    boundaries: Boundaries
    standing: Standing | None
    folder: Path


def call(tell: Callable[..., None], tool: Callable[[str], str], way: str, **fixtures: Any) -> None:
    """Tell a story with those of these that it asks for; `kubectl` is made for its cluster."""
    asks = inspect.signature(tell).parameters
    given = {**fixtures, "require_tool": tool, "way": way}
    if "kubectl" in asks:
        given["kubectl"] = [tool("kubectl"), f"--kubeconfig={fixtures['cluster'].kubeconfig}"]
    tell(**{key: value for key, value in given.items() if key in asks})


def on_playground(_module: ModuleType, tell: Callable[..., None], told: Told, way: Way) -> list[str]:
    """A story of work on the playground."""
    begin = Begin(way.folder, way.boundaries, way.standing or USUAL)
    problems = failure(lambda: tell(begin=begin))
    for story in begin.begun:
        stops = sum(story.cluster.evictions) - story.given_up
        if not problems and stops != told.stops:
            problems.append(f"work was stopped {stops} times, not {told.stops}")
        if isinstance(story.run, MortalRun):
            problems += [f"lost: {each}" for each in story.run.lost]
        problems += failure(story.close)
    return problems


def on_pods(module: ModuleType, tell: Callable[..., None], told: Told, way: Way) -> list[str]:
    """A story in which each pod lives by itself."""
    kind = partial(MortalDeciding, boundaries=way.boundaries, standing=way.standing)
    cluster: MortalDeciding = module.open_cluster(way.folder, kind)
    try:
        problems = failure(lambda: tell(cluster=cluster))
        if not problems and len(cluster.stops) != told.stops:
            problems.append(f"work was stopped {len(cluster.stops)} times, not {told.stops}: {sorted(cluster.stops)}")
        return problems + [f"lost: {each}" for each in cluster.lost]
    finally:
        cluster.close()


def on_nodes(_module: ModuleType, tell: Callable[..., None], _told: Told, way: Way) -> list[str]:
    """A story of a node with the GPU operator, which gives its instruction itself."""
    scene = MortalScene(way.folder, way.boundaries)
    try:
        return failure(lambda: tell(scene=scene))
    finally:
        scene.close()


def failure(act: Callable[[], None]) -> list[str]:
    """The statement of a story that does not hold, in one sentence."""
    try:
        act()
    except Exception as error:  # noqa: BLE001 - whatever goes wrong in a story is a finding
        at = traceback.extract_tb(error.__traceback__)[-1]
        return [f"{Path(at.filename).name}:{at.lineno}: {at.line or ''}: {type(error).__name__}: {error}"[:600]]
    return []


class MortalScene(Scene):
    """A cluster with the GPU operator, whose actuator dies once."""

    def __init__(self, folder: Path, boundaries: Boundaries) -> None:
        super().__init__(folder)
        self.boundaries = boundaries

    def actuator(self) -> Any:
        """A process that dies, and the one that goes on."""
        return MortalActuator(self)

    def shown(self, instruction: Instruction) -> Outcome | None:
        """What the view of the cluster says of an effect that no process follows: done, where it shows the geometry."""
        operation = instruction.operation
        assert isinstance(operation, RecutGpu)
        note = self.node(operation.node)["metadata"].get("annotations", {}).get(MIG_GEOMETRY)
        wanted = Counter(profile for profile, _ in operation.after or ())
        if not note or json.loads(note)[operation.index] != wanted:
            return None
        text = " and ".join(f"{number} x {profile}" for profile, number in wanted.items())
        return Outcome(instruction.id, OutcomeKind.DONE, self.now_s, f"it is {text}")

    def process(self) -> tuple[KubernetesActuator, Callable[[], None]]:
        """A new process, and what ends it."""
        made = super().actuator()
        return made, make_mortal(made.api, self.boundaries)


class MortalActuator:
    """An actuator, and what a controller does around it: it records, sends, dies, and its successor sends anew."""

    def __init__(self, scene: MortalScene) -> None:
        self._scene, self._fence, self._sent = scene, 1, dict[str, Instruction]()
        self._inner, self._die = scene.process()

    def apply(self, instruction: Instruction, now_s: float) -> Outcome:
        """Send an instruction that memory knows."""
        self._sent[instruction.id] = instruction
        try:
            self._scene.boundaries.cross("after the record of memory")
            outcome = self._inner.apply(instruction, now_s)
            self._scene.boundaries.cross("after the record of outcomes")
        except Killed:
            self._succeed()
            self.advance(self._scene.now_s, self._fence, [instruction])
            return Outcome(instruction.id, OutcomeKind.ACCEPTED, now_s)
        return outcome

    def advance(self, now_s: float, _fence: int | None, under_way: Sequence[Instruction]) -> tuple[Outcome, ...]:
        """Go on. What no process began is decided anew, as another instruction."""
        try:
            ended = self._inner.advance(now_s, self._fence, [self._sent[each.id] for each in under_way])
            if ended:
                self._scene.boundaries.cross("after the record of outcomes")
        except Killed:
            self._succeed()
            return self.advance(self._scene.now_s, self._fence, under_way)
        began = {sent.id: given for given, sent in self._sent.items()}
        found = []
        for outcome in ended:
            after = outcome
            if outcome.kind == OutcomeKind.FAILED and outcome.retryable:
                given = began[outcome.instruction_id]
                after = self._scene.shown(self._sent[given]) or self._anew(given)
            if after.kind != OutcomeKind.ACCEPTED:
                found.append(after)
        return tuple(found)

    def _anew(self, given: str) -> Outcome:
        scene, old = self._scene, self._sent[given]
        self._sent[given] = replace(
            old, id=f"{self._fence}/{old.id}", fence=self._fence, deadline_s=scene.now_s + 1500.0
        )
        return self._inner.apply(self._sent[given], scene.now_s)

    def _succeed(self) -> None:
        self._die()
        self._scene.run(TAKEOVER_S)
        self._fence += 1
        self._inner, self._die = self._scene.process()
