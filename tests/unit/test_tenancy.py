"""Hard limits along the path of a queue."""

from __future__ import annotations

import numpy as np

from autopilot.core.snapshot import State
from autopilot.core.tenancy import limit_room, queue_use, spend_room
from tests.core_world import holds, queue_tree, snapshot, waits

TREE = queue_tree(("org", 0, 10), ("team-a", 1, 6), ("team-b", 1, -1), ("other", 0, -1))


def test_use_counts_up_to_the_root() -> None:
    """What a queue's work holds counts for it and for every queue above; ended work counts nowhere."""
    work = [holds("a", 4, queue=2), holds("b", 2, queue=3), waits("p", 8, queue=2),
            holds("gone", 1, queue=2, state=State.SUCCEEDED)]  # fmt: skip
    assert queue_use(snapshot("2x8", work, queues=TREE)).tolist() == [6, 6, 4, 2, 0]


def test_room_is_the_least_along_the_path() -> None:
    """A queue may take what its own limit and every limit above leaves; without any limit, all there is."""
    room = limit_room(TREE, np.array([6, 6, 4, 2, 0], np.int32))
    assert room.tolist() == [np.inf, 4.0, 2.0, 4.0, np.inf]
    assert not len(limit_room(queue_tree(), np.zeros(1, np.int32)))


def test_spending_lowers_the_path_and_what_hangs_below_it() -> None:
    """A gang of one team takes room from its team, its organisation and so from the other team; not elsewhere."""
    room = limit_room(TREE, np.array([6, 6, 4, 2, 0], np.int32))
    spend_room(TREE, room, 3, 3)
    assert room.tolist() == [np.inf, 1.0, 1.0, 1.0, np.inf]
