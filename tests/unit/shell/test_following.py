"""Effects of several steps: continued at each tick before the observation, and not while nothing may act."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from autopilot.core.model.records import Command, CommandKind, Gap, Instruction, Outcome, OutcomeKind
from tests.kits.core_world import snapshot, waits
from tests.properties.strategies import Quiet
from tests.unit.shell.test_controller import World, built


class Follower(World):
    """An actuator that accepts, and reports later."""

    def __init__(self) -> None:
        super().__init__(snapshot("1x8", [waits("a", 8)]))
        self.calls: list[tuple[int | None, list[str]]] = []
        self.late: tuple[Outcome, ...] = ()

    def apply(self, instruction: Instruction, now_s: float) -> Outcome:
        """Under way."""
        self._maybe("apply")
        return Outcome(instruction.id, OutcomeKind.ACCEPTED, now_s)

    def advance(self, now_s: float, fence: int | None, under_way: Sequence[Instruction]) -> tuple[Outcome, ...]:
        """What the test says."""
        self._maybe("advance")
        self.calls.append((fence, [each.id for each in under_way]))
        late, self.late = self.late, ()
        return late


def test_a_late_outcome_is_part_of_the_next_observation() -> None:
    """It follows the answer of the last tick, and the decision obeys it at once."""
    world = Follower()
    controller = built(world)
    step = controller.tick(0.0)
    assert step is not None
    (sent,) = step.instructions
    world.late = (Outcome(sent.id, OutcomeKind.FAILED, 1.0, "no"),)
    controller.tick(1.0)
    assert world.calls == [(1, []), (1, [sent.id])]
    assert [each.kind for each in world.seen[-2][0].outcomes] == [OutcomeKind.ACCEPTED, OutcomeKind.FAILED]
    assert len(controller.memory.halt.failed) == 1
    assert world.log.index("advance") < world.log.index("collect")


@pytest.mark.parametrize("how", ["switch", CommandKind.KILL, CommandKind.PAUSE])
def test_nothing_is_continued_while_nothing_may_act(how: str) -> None:
    """A command counts from the tick that receives it."""
    world, quiet = Follower(), Quiet()
    controller = built(world, quiet)
    controller.tick(0.0)
    if how == "switch":
        quiet.killed = True
    else:
        quiet.commands = [Command(CommandKind(how), "ada", 1.0, sequence=0)]
    controller.tick(1.0)
    controller.tick(2.0)
    assert [fence for fence, _ in world.calls] == [1, None, None]


def test_a_follower_that_breaks_is_a_gap() -> None:
    """The tick goes on, and effects are continued at the next one."""
    world = Follower()
    world.breaks["advance"] = TimeoutError("slow")
    built(world).tick(0.0)
    assert Gap("world", "", "", "effects not continued: TimeoutError: slow") in world.seen[0][0].gaps
