"""The gravest error of a GPU counts until the GPU is known to be whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autopilot.core.hardware.xid_facts import Remedy, remedy_of
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.recovery import ErrorRecord, RecoveryMemory
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.recovery.follow_errors import follow_errors, with_gravest
from tests.kits.core_world import AUTO, observe, snapshot
from tests.kits.ticks import follow

KNOWN = ErrorRecord(79, "node-0", "1")
CODES = st.sampled_from((-1, 0, 13, 31, 45, 154, 200, 95, 140, 79, 151))


def seen(xid: int, boot: str = "1", count: str = "1x8") -> ClusterSnapshot:
    """GPU 3 of the first node shows this code."""
    nodes = int(count.partition("x")[0])
    return snapshot(count, xids={3: xid}, nodes={"boot": [boot] * nodes})


@given(st.lists(st.tuples(CODES, st.sampled_from("1112"), st.booleans()), max_size=12))
def test_a_lesser_code_never_clears_a_greater_one(steps: list[tuple[int, str, bool]]) -> None:
    """Whatever the order of codes, boots, and views that are not trusted."""
    memory, gravest, last = ControllerMemory(), Remedy.NONE, "1"
    for code, boot, trusted in steps:
        view = with_gravest(memory, seen(code, boot))
        memory = follow(follow_errors, memory, observe(view), AUTO, blind=not trusted)
        if boot != last or code == 0:
            gravest = Remedy.NONE
        gravest, last = max(gravest, remedy_of(code)), boot
        shown = remedy_of(int(view.gpus.xid[3]))
        assert shown >= remedy_of(code)
        assert shown >= gravest or code == 0


def test_codes_of_applications_are_not_remembered() -> None:
    """A fleet shows them for weeks."""
    assert follow(follow_errors, ControllerMemory(), observe(seen(45)), AUTO) == ControllerMemory()


def test_a_gpu_that_vanishes_keeps_its_error() -> None:
    """Its node has not booted; the record ends with the node, once a trusted view lacks it."""
    memory = ControllerMemory(recovery=RecoveryMemory(gpu_errors={"GPU-lost": KNOWN}))
    assert follow(follow_errors, memory, observe(seen(0)), AUTO) == memory
    assert not follow(follow_errors, memory, observe(seen(0, "2")), AUTO).recovery.gpu_errors
    elsewhere = ControllerMemory(recovery=RecoveryMemory(gpu_errors={"GPU-lost": ErrorRecord(79, "node-9", "1")}))
    assert not follow(follow_errors, elsewhere, observe(seen(0)), AUTO).recovery.gpu_errors
    assert follow(follow_errors, elsewhere, observe(seen(0)), AUTO, blind=True) == elsewhere


def test_without_a_record_the_snapshot_stays_as_it_is() -> None:
    """The same object, so that what is derived from it is not made again."""
    view = seen(79)
    assert with_gravest(ControllerMemory(), view) is view
